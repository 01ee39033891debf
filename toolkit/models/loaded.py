"""A model that is ready to embed, whatever runs it: torch or ONNX Runtime.

Nothing here imports torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.unlabelled import centred
from likeness.toolkit.data.items import Item
from likeness.toolkit.data.reading import Array, Floats, Read

Flip = Literal["none", "sum", "mean", "concat"]
BEST, LAST = "best.safetensors", "last.safetensors"  # the model files of a run
# A reading that gives an item in several inputs: crops, or the chunks of a long recording.
ReadParts = Callable[[Item], Iterator[Array]]


class Embedder(Protocol):
    """Front-end and network together: a batch of inputs in, raw embeddings out.

    `TorchEmbedder` (toolkit/models/embedder.py) runs in torch, and `OnnxEmbedder`
    (toolkit/models/onnx.py) in ONNX Runtime.
    """

    @property
    def dim(self) -> int:
        """The size of an embedding."""

    @property
    def pads_exactly(self) -> bool:
        """Whether padding leaves embeddings unchanged; if not, batches hold equal lengths only."""

    @property
    def is_on_cpu(self) -> bool:
        """Whether the network runs on the CPU, which likes small batches."""

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...), whose relative lengths are (B,).

        Raises:
            LikenessError: The network cannot take these inputs.
        """

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Begin what `embed_batch` does, and return what waits for the embeddings.

        A GPU works meanwhile.
        """

    def used_length(self, length: int) -> int:
        """Return how much of an input of this length has a part in its embedding."""

    def to_device(self, device: str = "") -> None:
        """Run on this device from now on; "" is a GPU where there is one, otherwise the CPU.

        Raises:
            LikenessError: There is no such device.
        """

    def share_cores(self, num_calls: int) -> None:
        """Divide the cores of the machine between so many calls at a time."""


class Flipped:
    """An embedder of images that joins the embedding of each image with that of its mirror image.

    Args:
        embedder: The embedder, which does all else.
        flip: "sum" and "mean" keep the dimensions; "concat" puts both side by side, which doubles
            them.
    """

    def __init__(self, embedder: Embedder, flip: Flip):
        self._embedder, self._flip = embedder, flip
        self.dim = 2 * embedder.dim if flip == "concat" else embedder.dim

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_embedder"], name)

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of images (B, C, H, W)."""
        return self.begin_batch(inputs, lengths)()

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Begin what `embed_batch` does, and return what waits for the embeddings."""
        sides: tuple[Array, Any] = (inputs, np.ascontiguousarray(inputs[..., ::-1]))
        begun = [self._embedder.begin_batch(side, lengths) for side in sides]

        def joined() -> Floats:
            z, mirrored = (wait() for wait in begun)
            if self._flip == "concat":
                return np.concatenate((z, mirrored), axis=1)
            both: Floats = z + mirrored
            return both if self._flip == "sum" else both / np.float32(2)

        return joined


class Centred:
    """An embedder whose embeddings lack the mean direction of a place; they keep their norms.

    Args:
        embedder: The embedder, which does all else.
        centre: (D,), see likeness.eval.unlabelled.
    """

    def __init__(self, embedder: Embedder, centre: Sequence[float]):
        self._embedder, self._centre = embedder, np.asarray(centre)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_embedder"], name)

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...)."""
        return self.begin_batch(inputs, lengths)()

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Begin what `embed_batch` does, and return what waits for the embeddings."""
        wait = self._embedder.begin_batch(inputs, lengths)
        return lambda: centred(wait(), self._centre).astype(np.float32)


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to embed, with what its checkpoint says of it.

    Attributes:
        embedder: Front-end and network, in evaluation mode.
        read: Gives an item's input, or several of them.
        modality: "speaker", "face" or "image".
        similarity: The similarity that its embeddings are scored by.
        digest: The SHA-256 that tells this model from others.
        step: The training step that it was saved at.
        settings: What else embeddings made with it have to state (crops, chunks).
        norm_is_quality: Whether the loss made the norm of an embedding a measure of its input's
            quality.
        parts: The descriptions of its frontend, backbone and read, from which a checkpoint can
            build it; empty for a model of torch that no checkpoint can describe, and for ONNX.
    """

    embedder: Embedder
    read: Read | ReadParts
    modality: str
    similarity: str
    digest: str
    step: int
    settings: Mapping[str, str] = field(default_factory=dict)
    norm_is_quality: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def meta(self) -> dict[str, str]:
        """Return what travels with exported embeddings."""
        return {
            "model": self.digest,
            "modality": self.modality,
            "similarity": self.similarity,
            **self.settings,
        }


def find_model(path: Path) -> Path:
    """Return the model file that a path means: itself, or the best or last of a run's folder."""
    if path.is_dir():
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
    if not path.is_file():
        what = f"holds no checkpoint ({BEST} or {LAST})" if path.is_dir() else "does not exist"
        raise LikenessError(
            f"model {str(path)!r} {what}; give a run directory of `likeness train` or a "
            ".safetensors file"
        )
    return path
