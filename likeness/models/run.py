"""Load the model of a checkpoint, or of the folder of a run, without its recipe.

What the checkpoint states about itself is enough.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.eval.formats.runs import find_model
from likeness.models.trust import check_trusted
from likeness.toolkit.backbones.weights import put
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import Part, restore, values_in

_PARTS = ("frontend", "backbone", "read")
_FREE_SIZE = 2**18  # sampling rates, lengths of windows and the like are smaller


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
    tensors, description, digest = checkpoint.read(path, checkpoint.FORMAT)
    described = {name: description.get(name) for name in _PARTS}
    trusted = check_trusted(described, trust, str(path))
    remedy = (
        "copy it again, take the packages and the version of Likeness "
        f"({description.get('version', 'unknown')}) that it was trained with, or train it again"
    )
    try:
        frontend, backbone = (
            restore(described[name], name, kind="module", trusted=trusted) for name in _PARTS[:2]
        )
        reading = restore(described["read"], "read", kind="read", trusted=trusted)
        parts = _build(frontend, backbone, described, tensors)
        embedder = TorchEmbedder(*parts, features=description["features"])
        step, modality = int(description["step"]), str(description["modality"])
    except Exception as error:
        # Arguments of other types than a part takes lead to errors of any type.
        is_ours = isinstance(error, LikenessError)
        reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
        raise LikenessError(
            f"{path}: its description cannot be built: {reason[:400]}; {remedy}"
        ) from error
    put(embedder, checkpoint.embedder_tensors(tensors), str(path), remedy)
    recipe, similarity = description.get("recipe"), str(description.get("similarity"))
    loss = recipe.get("loss") if isinstance(recipe, dict) else None
    is_quality, read = checkpoint.norm_is_quality(loss, similarity), cast(Read, reading)
    return Loaded(
        embedder.eval(),
        read,
        modality,
        similarity,
        digest,
        step,
        norm_is_quality=is_quality,
        parts=described,
    )


def _build(
    frontend: Part, backbone: Part, described: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[nn.Module, nn.Module]:
    """Build the front-end and the backbone of a description, which take no more memory than the
    weights do.

    Raises:
        LikenessError: The description states sizes beyond any of its weights, or more weights.
    """
    stored = sum(tensor.numel() for tensor in tensors.values())
    for value in values_in([described["frontend"], described["backbone"]]):
        if isinstance(value, int | float) and not abs(value) <= max(stored, _FREE_SIZE):
            raise LikenessError(f"it states {value:g}, beyond any size of its {stored} weights")
    made: nn.Module = frontend()
    dim = cast(int, made.dim)
    needed = 0
    # A network that cannot be made without memory passes: `put` compares it with the weights.
    with suppress(Exception), torch.device("meta"):
        needed = sum(parameter.numel() for parameter in backbone(dim).parameters())
    if needed > stored:
        raise LikenessError(f"weights do not fit: the network has {needed}, and the file {stored}")
    return made, backbone(dim)
