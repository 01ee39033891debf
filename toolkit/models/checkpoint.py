"""Checkpoints: safetensors files with JSON in their header, and no pickle.

One file holds one state and is replaced in one step, so a process that is ended at any moment
leaves a whole file.

A model file (best.safetensors, last.safetensors) holds the embedder's weights and its description
(front-end, backbone, reading, similarity), which is enough to embed. Adapters (LoRA) lie beside the
weights, and are merged into them by whatever loads the file. What a run needs beyond it, to
go on as if it had not stopped, is in the run's folder resume/ (toolkit/training/run.py).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.runs import find_model
from likeness.eval.writing import atomic_path
from likeness.toolkit.backbones.weights import put
from likeness.toolkit.models import adapter
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.parts import Part, describe, describe_parts, values_in

FORMAT = "likeness.checkpoint/1"
_QUALITY_LOSSES = frozenset({"SimPLE", "VMF", "SCF", "ProbabilisticNCA", "MagFace", "AdaFace"})
LOSS = "loss."  # before the names of the loss's tensors, as "frontend." and "backbone." are
_FOREIGN = (
    "for weights of another project write own.py with MODEL = likeness.Network(network=CLASS, "
    "weights=FILE, ...), and give own.py as the model (docs/tutorials/own_network.md)"
)


def save_model(
    path: Path,
    embedder: TorchEmbedder,
    recipe: Any,
    *,
    similarity: str,
    step: int,
    metrics: dict[str, float],
    loss: nn.Module | None = None,
    classes: Sequence[str] = (),
    init: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the embedder and its description so that a model can be loaded without the recipe.

    Args:
        path: The file to write.
        embedder: The network.
        recipe: The recipe, whose modality, frontend, backbone and read are enough to embed.
        similarity: The similarity that the embeddings are scored by.
        step: The number of training steps so far.
        metrics: Name -> value of what was measured at this step.
        loss: The loss whose class vectors are saved too, for a recipe that classifies.
        classes: The names of the rows of these class vectors.
        init: The model that fine-tuning started from: its name, digest and revision.
    """
    description = {
        "modality": recipe.modality,
        **describe_parts(recipe.frontend, recipe.backbone, recipe.read),
        "features": embedder.features,
        "similarity": similarity,
        "step": step,
        "metrics": metrics,
        "version": likeness_version(),
        "recipe": describe(recipe),
        **({"init": dict(init)} if init else {}),
    }
    tensors = adapter.tensors_of(embedder)
    if loss is not None:
        description["classes"] = list(classes)
        # A joint loss has one tensor under two names, which safetensors refuses: copies are saved.
        tensors |= {
            f"{LOSS}{name}": value.clone()
            for name, value in loss.state_dict().items()
            if not name.startswith("bank.")
        }
    save(path, tensors, description, FORMAT)


def load_loss(path: Path, part: Part, dim: int) -> tuple[nn.Module, list[str]]:
    """Return the loss that a model file keeps, and the names of its classes.

    Args:
        path: A model file or the folder of a run.
        part: The recipe's loss; it is called with (dim, num_classes).
        dim: The size of the embeddings (B, dim).

    Raises:
        LikenessError: The file keeps no loss, or another one.
    """
    tensors, description, _ = read(find_model(path), FORMAT)
    if "classes" not in description:
        raise LikenessError(
            f"{path} keeps no class vectors; train it by a recipe with a test of classification"
        )
    classes = [str(name) for name in description["classes"]]
    loss: nn.Module = part(dim, len(classes))
    own = {name.removeprefix(LOSS): x for name, x in tensors.items() if name.startswith(LOSS)}
    put(loss, own, f"{path}: loss")
    return loss, classes


def embedder_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model file that belong to the embedder, its adapters merged."""
    own = {name: value for name, value in tensors.items() if not name.startswith(LOSS)}
    return adapter.merge_adapters(own)


def norm_is_quality(loss: Any, similarity: object) -> bool:
    """Say whether a described loss makes the norm a measure of quality.

    The norm is part of SimPLE's inner product; it is the concentration of vMF, SCF and the
    probabilistic proxy losses; MagFace and AdaFace set their margins by it. Losses that normalise
    the embedding give the norm no meaning. Nor does SimPLE on cosines: its similarity has to be one
    of SimPLE's too.
    """
    parts = [value for value in values_in(loss) if isinstance(value, dict)]
    names = {str(part.get("call")).rpartition(".")[2] for part in parts}
    if not str(similarity).startswith("simple:"):
        names.discard("SimPLE")
    return bool(names & _QUALITY_LOSSES)


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any], kind: str) -> None:
    """Write tensors and JSON as one safetensors file in one step.

    Equal contents give equal bytes, and so equal digests.

    Args:
        path: The file to write.
        tensors: Name -> tensor.
        state: The description, as JSON values.
        kind: The format and its version, such as "likeness.checkpoint/1".

    Raises:
        LikenessError, OSError: The file cannot be written, for instance because the disk is full.
            The file that was there before stays.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as partial_path:
        try:
            save_file(whole, partial_path, metadata={"format": kind, "state": json.dumps(state)})
        except SafetensorError as error:  # safetensors wraps the operating system's errors
            raise LikenessError(f"writing {path} failed: {error}") from error
        _sort_metadata(partial_path)


def _sort_metadata(path: Path) -> None:
    """Sort the texts in the header of a file that safetensors wrote.

    safetensors keeps them in a hash map, whose order is random. It sorts the tensors itself.
    """
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= size, "the same JSON in another order"
        file.seek(8)
        file.write(text.ljust(size))


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Return tensors and JSON of a file written by `save`, and its SHA-256.

    All three come from the same bytes. The file is not mapped into memory, because it may shrink
    while it is read, and that would end the process.

    Raises:
        LikenessError: The file is of another kind or version, or damaged. The message says what it
            is.
    """
    content = path.read_bytes()
    try:
        tensors = parse_tensors(content)
    except SafetensorError as error:
        raise LikenessError(
            f"{path} is no whole model file of Likeness ({error}); {_FOREIGN}"
        ) from None
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
    stored_kind = metadata.get("format", "")
    try:
        state = json.loads(metadata["state"])
    except (LookupError, ValueError, RecursionError):
        state = None
    if stored_kind != kind or not isinstance(state, dict):
        if not stored_kind.startswith("likeness."):
            raise LikenessError(f"{path} is no checkpoint of Likeness; {_FOREIGN}")
        raise LikenessError(
            f"{path} is a checkpoint of format {stored_kind!r}, but Likeness {likeness_version()} "
            f"reads {kind!r}; give another file"
        )
    return tensors, state, hashlib.sha256(content).hexdigest()
