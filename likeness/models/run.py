"""The model of a checkpoint, or of the folder of a run, from what it says of itself: no recipe is
needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from likeness.models.parts import restore
from toolkit.models.checkpoint import (
    FORMAT,
    Loaded,
    find_model,
    norm_is_quality,
    put,
    read,
    without_loss,
)
from toolkit.models.embed import TorchEmbedder
from toolkit.models.parts import Part

_MAX_NAME = 256  # characters
_FREE_SIZE = 2**18  # sampling rates, lengths of windows and such are below
_DAMAGED = "they are not those of its own description: copy or train it again"


def load_model(path: Path) -> Loaded:
    """The embedder of a checkpoint file or a run directory (its best checkpoint where the run kept
    one, else its last).

    ValueError for a file of another kind or version, or whose weights do not fit its description.
    Nothing in the file is executed.
    """
    path = find_model(path)
    tensors, description, digest = read(path, FORMAT)
    _refuse_description(description, sum(one.numel() for one in tensors.values()), path)
    try:
        parts = [
            restore(description[name], name, kind="module", untrusted=True)
            for name in ("frontend", "backbone")
        ]
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; use the version of Likeness that wrote it "
            f"({description.get('version', 'unknown')}), or train it again"
        ) from None
    # The file that training started from: what became of it is here, and no checkpoint chooses a
    # file to be opened.
    frontend_part, network = (
        partial(one, weights="") if "weights" in getattr(one, "keywords", {}) else one
        for one in parts
    )
    try:
        frontend = frontend_part()
        _refuse_larger(network, frontend.dim, tensors, path)
        embedder = TorchEmbedder(frontend, network(frontend.dim), features=description["features"])
    except (ImportError, ValueError):
        raise
    except (
        Exception
    ) as error:  # arguments of other types than a part takes lead to errors of any kind
        raise ValueError(
            f"{path}: its description cannot be built ({type(error).__name__}: "
            f"{str(error)[:200]}); it is damaged, copy it again"
        ) from None
    put(embedder, without_loss(tensors), str(path), _DAMAGED)
    reading = restore(description["read"], f"{path}: read", kind="read", untrusted=True)
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
    )


def _refuse_description(description: dict[str, Any], num_weights: int, path: Path) -> None:
    """ValueError unless it says what load_model needs, with no size beyond what the file's weights
    can be those of: parts allocate what they are told.
    """
    kinds = {
        "frontend": dict,
        "backbone": dict,
        "read": dict,
        "features": str,
        "modality": str,
        "similarity": str,
        "step": int,
    }
    wrong = [
        name
        for name, kind in kinds.items()
        if not isinstance(description.get(name), kind) or isinstance(description[name], bool)
    ]
    wrong += [
        name
        for name in ("modality", "similarity")
        if name not in wrong and len(description[name]) > _MAX_NAME
    ]
    if wrong or description["features"] not in ("raw", "polarlike"):
        raise ValueError(
            f"{path}: its description lacks {', '.join(wrong) or 'known features'}, or has it of "
            "another type; it is damaged: copy it again"
        )
    largest = max(num_weights, _FREE_SIZE)
    asked: float = 0
    values: list[Any] = [description["frontend"], description["backbone"]]
    while values:
        one = values.pop()
        if isinstance(one, dict | list):
            values += one.values() if isinstance(one, dict) else one
        elif isinstance(one, int | float):
            asked = max(asked, abs(one)) if abs(one) < float("inf") else largest + 1
    if not 0 <= description["step"] < 2**53:
        raise ValueError(
            f"{path}: its description states step {str(description['step'])[:40]}, which no "
            "training has; it is damaged: copy it again"
        )
    if asked > largest:
        raise ValueError(
            f"{path}: its description states {asked}, beyond any size of its {num_weights} "
            "weights; it is damaged or hostile"
        )


def _refuse_larger(network: Part, dim: int, tensors: Mapping[str, Tensor], path: Path) -> None:
    """ValueError if the network that is described has more weights than the file, before it takes
    their memory.
    """
    asked = 0
    with (
        suppress(Exception),
        torch.device("meta"),
    ):  # one that cannot be made without memory is not judged
        asked = sum(one.numel() for one in network(dim).parameters())
    held = sum(one.numel() for one in tensors.values())
    if asked > held:
        raise ValueError(
            f"{path}: weights do not fit: its description is of a network with {asked} weights, "
            f"and the file has {held}"
        )
