"""A model that is ready to embed, whatever runs it: torch or ONNX Runtime.

Nothing here imports torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from likeness.eval.items.items import Item
from likeness.eval.metrics.unlabelled import subtract_centre
from likeness.toolkit.data.reading import Array, Floats, Read

Flip = Literal["none", "sum", "mean", "concat"]
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


class _Changed:
    """An embedder with other inputs and embeddings than the one that does the work.

    Args:
        embedder: What does the work.
        inputs_of: Gives the inputs that it embeds in place of a batch of inputs.
        joined: Makes one embedding of those of all of them.
        dim: The size of that embedding.
    """

    def __init__(
        self,
        embedder: Embedder,
        inputs_of: Callable[[Array], Sequence[Array]],
        joined: Callable[..., Floats],
        dim: int,
    ):
        self._embedder, self._inputs_of, self._joined, self.dim = embedder, inputs_of, joined, dim

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_embedder"], name)

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...)."""
        return self.begin_batch(inputs, lengths)()

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Begin what `embed_batch` does, and return what waits for the embeddings."""
        begun = [self._embedder.begin_batch(each, lengths) for each in self._inputs_of(inputs)]
        return lambda: self._joined(*(wait() for wait in begun))


def flipped(embedder: Embedder, flip: Flip) -> Embedder:
    """Return an embedder of images that joins the embeddings of each image and its mirror image.

    Args:
        embedder: The embedder of one image.
        flip: "sum" and "mean" keep the dimensions; "concat" puts both side by side, which doubles
            them.
    """
    dim = 2 * embedder.dim if flip == "concat" else embedder.dim
    return cast(Embedder, _Changed(embedder, _with_mirror, partial(_join, flip), dim))


def _with_mirror(inputs: Array) -> tuple[Array, Array]:
    mirror: Any = np.ascontiguousarray(inputs[..., ::-1])
    return inputs, mirror


def _join(flip: Flip, z: Floats, mirrored: Floats) -> Floats:
    if flip == "concat":
        return np.concatenate((z, mirrored), axis=1)
    both: Floats = z + mirrored
    return both if flip == "sum" else both / np.float32(2)


def drop_centre(embedder: Embedder, centre: Sequence[float]) -> Embedder:
    """Return an embedder whose embeddings lack the mean direction of a place; norms stay.

    Args:
        embedder: The embedder as it is elsewhere.
        centre: (D,), see likeness.eval.metrics.unlabelled.
    """

    def turned(z: Floats) -> Floats:
        return subtract_centre(z, np.asarray(centre)).astype(np.float32)

    return cast(Embedder, _Changed(embedder, lambda inputs: [inputs], turned, embedder.dim))


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
