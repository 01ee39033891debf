"""Load the model of a checkpoint, or of the folder of a run, without its recipe.

What the checkpoint states about itself is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.errors import LikenessError
from likeness.models.trust import check_trusted
from toolkit.models.checkpoint import (
    FORMAT,
    find_model,
    norm_is_quality,
    put,
    read,
    without_loss,
)
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded
from toolkit.models.parts import Part, parts_in, restore

_MAX_DEPTH = 64  # of parts that hold parts, each of which is two levels of a description
_FREE_SIZE = 2**18  # sampling rates, lengths of windows and the like are smaller
_DAMAGED = "they are not those of its own description: copy or train it again"


def load_model(path: Path, *, trust: Sequence[str] = ()) -> Loaded:
    """Return the model of a checkpoint file or of the folder of a run.

    Of a run's folder it is the best checkpoint where the run kept one, otherwise the last. Nothing
    in the file is executed.

    Args:
        path: The file or the folder.
        trust: The packages and Python files of others that may be imported for its parts.

    Raises:
        LikenessError: The file is of another kind or version, its weights do not fit its
            description, or a part of it is of a package that is not trusted or not installed.
    """
    path = find_model(path)
    tensors, description, digest = read(path, FORMAT)
    _refuse_description(description, sum(x.numel() for x in tensors.values()), path)
    names = ("frontend", "backbone", "read")
    described = [description[name] for name in names]
    trusted = check_trusted(described, trust, str(path))
    try:
        parts = [
            restore(description[name], name, kind="module", trusted=trusted) for name in names[:2]
        ]
    except ValueError as error:
        raise LikenessError(
            f"{path}: {error}; use the version of Likeness that wrote it "
            f"({description.get('version', 'unknown')}), or train it again"
        ) from None
    frontend_part, network = parts
    try:
        frontend = frontend_part()
        _refuse_larger(network, frontend.dim, tensors, path)
        embedder = TorchEmbedder(frontend, network(frontend.dim), features=description["features"])
    except (ImportError, ValueError):
        raise
    except Exception as error:
        # Arguments of other types than a part takes lead to errors of any type.
        raise LikenessError(
            f"{path}: its description cannot be built ({type(error).__name__}: "
            f"{str(error)[:200]}); {_remedy(described, 'it is damaged: copy it again')}"
        ) from error
    put(embedder, without_loss(tensors), str(path), _remedy(described, _DAMAGED))
    reading = restore(description["read"], f"{path}: read", kind="read", trusted=trusted)
    step = int(description["step"])
    quality = norm_is_quality(description)
    return Loaded(
        embedder.eval(),
        reading,
        description["modality"],
        description["similarity"],
        digest,
        step,
        norm_is_quality=quality,
        parts={name: description[name] for name in ("frontend", "backbone", "read")},
    )


def _remedy(descriptions: Sequence[Any], otherwise: str) -> str:
    """Return what is to be done about weights or arguments that do not fit the parts of others that
    are described; `otherwise` where all parts are ours.
    """
    versions = {f"{part['package']} {part['version']}" for part in parts_in(descriptions)}
    if not versions:
        return otherwise
    return f"take its packages as they were when it was trained: {', '.join(sorted(versions))}"


def _refuse_description(description: dict[str, Any], num_weights: int, path: Path) -> None:
    """Check that a description states what `load_model` needs, and no size beyond its weights.

    Parts allocate what their arguments ask for, so a size that no part of the file's weights can
    have is refused with a ValueError.
    """
    kinds = {"frontend": dict, "backbone": dict, "read": dict, "step": int} | dict.fromkeys(
        ("features", "modality", "similarity"), str
    )
    wrong = [name for name, kind in kinds.items() if type(description.get(name)) is not kind]
    if wrong or description["features"] not in ("raw", "polarlike"):
        raise LikenessError(
            f"{path}: its description lacks {', '.join(wrong) or 'known features'}, or has it of "
            "another type; it is damaged: copy it again"
        )
    largest = max(num_weights, _FREE_SIZE)
    values: list[tuple[Any, int]] = [(description["frontend"], 1), (description["backbone"], 1)]
    while values:
        value, depth = values.pop()
        if depth > _MAX_DEPTH:
            raise LikenessError(
                f"{path}: its description has parts inside parts over {_MAX_DEPTH} levels; it is "
                "damaged"
            )
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            values += [(element, depth + 1) for element in inner]
        elif isinstance(value, int | float) and not abs(value) <= largest:
            raise LikenessError(
                f"{path}: its description states {value:g}, beyond any size of its {num_weights} "
                "weights; it is damaged"
            )


def _refuse_larger(network: Part, dim: int, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise ValueError if the network that is described has more weights than the file.

    This comes before the network takes the memory of its weights.
    """
    needed = 0
    # A network that cannot be made without memory passes: `put` compares it with the weights.
    with suppress(Exception), torch.device("meta"):
        needed = sum(parameter.numel() for parameter in network(dim).parameters())
    stored = sum(tensor.numel() for tensor in tensors.values())
    if needed > stored:
        raise LikenessError(
            f"{path}: weights do not fit: its description is of a network with {needed} weights, "
            f"and the file has {stored}"
        )
