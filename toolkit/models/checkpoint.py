"""Checkpoints: safetensors with JSON in its header, no pickle.

One file = one state, replaced in one step, so a kill at any moment leaves a whole one.

Model file (best.safetensors, last.safetensors): the embedder's weights and its description
(front-end, backbone, reading, similarity): enough to embed. What a run needs to go on as if it had
not stopped is in its folder resume/ (toolkit/training/run.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from eval.formats.files import atomic_path
from eval.formats.provenance import likeness_version
from toolkit.backbones.weights import first_names
from toolkit.data.batch import Read
from toolkit.models.embed import ReadParts, TorchEmbedder
from toolkit.models.parts import Part, Parts, describe

FORMAT = "likeness.checkpoint/1"
BEST, LAST = "best.safetensors", "last.safetensors"
_HEADER_LIMIT = 16 * 2**20
_QUALITY_LOSSES = frozenset({"SimPLE", "VMF", "SCF", "ProbabilisticNCA", "MagFace", "AdaFace"})
LOSS = "loss."  # tensors of the loss beside "frontend." and "backbone."
_FOREIGN = "weights of another project start an image network by backbone.weights=FILE"


@dataclass(frozen=True)
class Loaded:
    """A model ready to embed, with what its checkpoint says of it. settings: what else embeddings
    made with it have to say (crops, chunks).

    norm_is_quality: whether the loss made the norm of an embedding a measure of its input's
    quality.
    """

    embedder: TorchEmbedder
    read: Read | ReadParts
    modality: str
    similarity: str
    digest: str
    step: int
    settings: Mapping[str, str] = field(default_factory=dict)
    norm_is_quality: bool = False

    @property
    def meta(self) -> dict[str, str]:
        """What travels with exported embeddings."""
        return {
            "model": self.digest,
            "modality": self.modality,
            "similarity": self.similarity,
            **self.settings,
        }


def save_model(
    path: Path,
    embedder: TorchEmbedder,
    recipe: Parts,
    *,
    similarity: str,
    step: int,
    metrics: dict[str, float],
    loss: nn.Module | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Write the embedder so that `load_model` needs no recipe. loss, classes: class vectors and the
    names of their rows, for a recipe that classifies.
    """
    description = {
        "modality": recipe.modality,
        "frontend": describe(recipe.frontend, "frontend"),
        "backbone": describe(recipe.backbone, "backbone"),
        "read": describe(recipe.read, "read"),
        "features": embedder.features,
        "similarity": similarity,
        "step": step,
        "metrics": metrics,
        "version": likeness_version(),
        "recipe": describe(recipe),
    }
    tensors = dict(embedder.state_dict())
    if loss is not None:
        description["classes"] = list(classes)
        # copies, since a joint loss holds one tensor under two names, which safetensors refuses
        tensors |= {
            f"{LOSS}{name}": value.clone()
            for name, value in loss.state_dict().items()
            if not name.startswith("bank.")
        }
    save(path, tensors, description, FORMAT)


def load_loss(path: Path, part: Part, dim: int) -> tuple[nn.Module, list[str]]:
    """The loss that a model file keeps, made by the recipe's `part` for embeddings (B, dim), and
    its classes. ValueError if it keeps none or another one.
    """
    tensors, description = load(find_model(path), FORMAT)
    if "classes" not in description:
        raise ValueError(
            f"{path} keeps no class vectors: it was trained by a recipe without a test of "
            "classification or retrieval; train it again with one"
        )
    classes = [str(one) for one in description["classes"]]
    loss: nn.Module = part(dim, len(classes))
    put(
        loss,
        {
            name.removeprefix(LOSS): value
            for name, value in tensors.items()
            if name.startswith(LOSS)
        },
        f"{path}: loss",
    )
    return loss, classes


def without_loss(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model file that are the embedder's."""
    return {name: value for name, value in tensors.items() if not name.startswith(LOSS)}


def norm_is_quality(description: Mapping[str, Any]) -> bool:
    """Whether a description names a loss that makes the norm a measure of quality, and no
    similarity that says otherwise.

    The norm is SimPLE's in its inner product, the concentration of vMF, SCF and the probabilistic
    proxy losses, and what MagFace and AdaFace set their margins by. Losses that normalise the
    embedding give the norm no meaning, nor does SimPLE on cosines.
    """
    recipe = description.get("recipe")
    values: list[Any] = [recipe.get("loss")] if isinstance(recipe, dict) else []
    while values:
        value = values.pop()
        if isinstance(value, dict):
            name = str(value.get("call")).rpartition(".")[2]
            if name in _QUALITY_LOSSES and (
                name != "SimPLE" or str(description.get("similarity")).startswith("simple:")
            ):
                return True
            values += value.values()
        elif isinstance(value, list):
            values += value
    return False


def find_model(path: Path) -> Path:
    """The model file that MODEL means: the file itself, or a run directory's best or last."""
    if path.is_dir():
        found = next((path / name for name in (BEST, LAST) if (path / name).is_file()), None)
        if found is None:
            raise ValueError(
                f"{path} holds no checkpoint ({BEST} or {LAST}); give a run directory of `likeness "
                "train` or a .safetensors file"
            )
        return found
    if not path.is_file():
        raise ValueError(
            f"model {str(path)!r} does not exist; give a run directory of `likeness train` or a "
            ".safetensors file"
        )
    return path


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any], kind: str) -> None:
    """Write tensors and JSON as one safetensors file in one step; equal contents give equal bytes,
    and so equal digests.

    Raises:
        OSError: the disk is full, say; the file that was there before stays.
    """
    text = json.dumps(state)
    if len(text) > _HEADER_LIMIT // 2:  # beside it, the header names every tensor
        raise ValueError(
            f"{path}: its description has {len(text)} characters; at most {_HEADER_LIMIT // 2} can "
            "be read back: shorten the names of classes"
        )
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as partial_path:
        try:
            save_file(whole, partial_path, metadata={"format": kind, "state": text})
        except SafetensorError as error:  # safetensors wraps the operating system's errors
            raise OSError(f"writing {path} failed: {error}") from error
        _sort_metadata(partial_path)


def _sort_metadata(path: Path) -> None:
    """Sort the texts in the header of a file that safetensors wrote: it keeps them in a hash map,
    whose order is random. Tensors are sorted already.
    """
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= size, "the same JSON in another order"
        file.seek(8)
        file.write(text.ljust(size))


def load(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON of a file written by `save`. ValueError says what the file is instead."""
    tensors, state, _ = read(path, kind)
    return tensors, state


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """As `load`, and the file's SHA-256.

    All three are of the same bytes: the file may change or shrink while it is read, which ends a
    process that maps it.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _HEADER_LIMIT:
                raise ValueError(
                    f"{path} is no safetensors file of Likeness: its header would be {size} bytes; "
                    f"{_FOREIGN}"
                )
            file.seek(0)
            content = file.read()
        digest = hashlib.sha256(content).hexdigest()
        metadata = _metadata(content[: 8 + size])
        found = metadata.get("format", "")
        if metadata and found != kind:  # before all of it is parsed
            _refuse_kind(path, found, kind)
        tensors = parse_tensors(content)
        if found != kind:
            _refuse_kind(path, found, kind)
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from None
    try:
        state = json.loads(metadata["state"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: its description is no JSON ({type(error).__name__}); it is damaged: copy or "
            "train it again"
        ) from None
    if not isinstance(state, dict):
        raise ValueError(
            f"{path}: its description is a {type(state).__name__} and no JSON object; it is "
            "damaged: copy or train it again"
        )
    return tensors, state, digest


def _metadata(start: bytes) -> dict[str, str]:
    """The texts in a safetensors header; none where it is damaged, which its parser says better."""
    try:
        found = json.loads(start[8:])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return (
        found
        if isinstance(found, dict) and all(isinstance(one, str) for one in found.values())
        else {}
    )


def _refuse_kind(path: Path, found: str, kind: str) -> NoReturn:
    family = kind.partition("/")[0]
    what = (
        f"of version {found!r}"
        if found.startswith(f"{family}/")
        else "of another kind"
        if found
        else "without a description by Likeness"
    )
    todo = "" if found.startswith("likeness.") else f"; {_FOREIGN}"
    raise ValueError(
        f"{path} is a checkpoint {what}; this version of Likeness ({likeness_version()}) reads "
        f"{kind!r}{todo}"
    )


def put(
    module: nn.Module,
    tensors: dict[str, Tensor],
    where: str,
    todo: str = "take the recipe and settings that the weights were trained with",
) -> None:
    """load_state_dict, strictly, with one sentence instead of a page. todo: what it ends with where
    they do not fit.
    """
    if found := misfits(
        *(
            {name: one.shape for name, one in some.items()}
            for some in (module.state_dict(), tensors)
        )
    ):
        raise ValueError(f"{where}: weights do not fit: {found}; {todo}")
    module.load_state_dict(tensors)


def misfits(wanted: Mapping[str, torch.Size], stored: Mapping[str, torch.Size]) -> str:
    """What is missing, unknown or of another shape: counted, three of each named; "" if nothing."""
    shapes = [
        f"{name} {tuple(stored[name])} for {tuple(one)}"
        for name, one in wanted.items()
        if name in stored and one != stored[name]
    ]
    kinds = (
        ("missing", sorted(wanted.keys() - stored.keys())),
        ("unknown", sorted(stored.keys() - wanted.keys())),
        ("of another shape", shapes),
    )
    return ", ".join(
        f"{len(names)} {what} ({first_names(names)})" for what, names in kinds if names
    )


def best_of(step: int) -> str:
    """The name of one of several best checkpoints."""
    return f"best-{step:09d}.safetensors"


def remove_stale(out: Path, kept: Sequence[tuple[float, int]]) -> None:
    """Remove the best-STEP files that are no longer, or after a kill not yet, among the best."""
    names = {best_of(step) for _, step in kept}
    for path in out.glob("best-*.safetensors"):
        if path.name not in names:
            path.unlink()
