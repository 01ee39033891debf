"""The torch embedder: front-end and backbone as one module."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likeness.eval.cores import num_threads
from likeness.eval.errors import LikenessError, first_line
from likeness.toolkit.data.reading import Array, Floats
from likeness.toolkit.losses.simple import polarlike
from likeness.toolkit.models.loaded import Loaded


class TorchEmbedder(nn.Module):
    """Front-end and backbone as one module that gives raw embeddings.

    Inputs are (B, ...) and relative lengths are (B,); embeddings are (B, dim). `encode` gives what
    losses see. The module itself gives what is scored and stored: the same, or with
    features="polarlike" its transform.

    Args:
        frontend: Takes (inputs, lengths) and gives (features, relative lengths of the features).
        backbone: Takes these and gives (B, backbone.dim).
        features: "raw", or "polarlike" for the transform that SimPLE's release applies.

    Attributes:
        still: The names of modules that stay in evaluation mode while the rest is trained.
    """

    def __init__(
        self,
        frontend: nn.Module,
        backbone: nn.Module,
        *,
        features: Literal["raw", "polarlike"] = "raw",
    ):
        super().__init__()
        self.frontend, self.backbone, self.features = frontend, backbone, features
        self.dim = cast(int, backbone.dim) - (features == "polarlike")
        self.still: tuple[str, ...] = ()

    def train(self, mode: bool = True) -> TorchEmbedder:
        """Set the mode as nn.Module does, but leave the modules that are held still as they are."""
        super().train(mode)
        for name in self.still:
            self.get_submodule(name).eval()
        return self

    @property
    def trains_frontend(self) -> bool:
        """Whether the front-end has parameters that are trained."""
        return any(parameter.requires_grad for parameter in self.frontend.parameters())

    @property
    def pads_exactly(self) -> bool:
        """Whether padding leaves embeddings unchanged; if not, batches hold equal lengths only."""
        return bool(getattr(self.backbone, "pads_exactly", False))

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the backbone's raw outputs (B, backbone.dim), which losses are computed on."""
        features, frames = self.frontend(inputs, lengths)
        if lengths is None:  # nothing is padded, so the backbone has no masks to apply
            frames = None
        return cast(Tensor, self.backbone(features, frames))

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim) that are scored and stored."""
        z = self.encode(inputs, lengths).float()
        return polarlike(z) if self.features == "polarlike" else z

    @property
    def is_on_cpu(self) -> bool:
        """Whether the network runs on the CPU, which likes small batches."""
        return self._device.type == "cpu"

    @property
    def _device(self) -> torch.device:
        # a network in ONNX Runtime has neither parameters nor buffers, and takes what is on the CPU
        tensors = itertools.chain(self.parameters(), self.buffers(), (torch.zeros(0),))
        return next(tensors).device

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...), in evaluation mode.

        Args:
            inputs: Of one length, or padded to one.
            lengths: Their relative lengths (B,); None where nothing is padded.

        Raises:
            LikenessError: The network cannot take these inputs.
        """
        return self.begin_batch(inputs, lengths)()

    @torch.no_grad()
    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Begin what `embed_batch` does, and return what waits for the embeddings.

        A GPU works meanwhile, and copies to it and from it wait for nothing either.
        """
        device, was_training = self._device, self.training
        # Setting the mode of every module takes a fifth of the time of a small network.
        sets_mode = any(module.training for module in self.modules())
        if sets_mode:
            self.eval()
        try:
            relative = None if lengths is None else _sent(lengths, device)
            z = self(_sent(inputs, device).float(), relative).float()
        finally:
            if sets_mode:
                self.train(was_training)
        on_gpu = z.device.type == "cuda"
        copied: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        here = z.to("cpu", non_blocking=on_gpu)
        if on_gpu:
            copied.record(torch.cuda.current_stream(z.device))

        def embeddings() -> Floats:
            if on_gpu:
                copied.synchronize()
            made: Floats = here.numpy()
            return made

        return embeddings

    def used_length(self, length: int) -> int:
        """Return how much of an input of this length the front-end makes whole frames of."""
        trim = getattr(self.frontend, "trim", None)
        return length if trim is None else cast(int, trim(length))

    def to_device(self, device: str = "") -> None:
        """Run on this device from now on; "" is a GPU where there is one, otherwise the CPU.

        Raises:
            LikenessError: This machine, or this installation of torch, has no such device.
        """
        try:
            self.to(device or pick_device())
        except (RuntimeError, AssertionError) as error:
            raise LikenessError(
                f"device {device!r} cannot be used ({first_line(error)}); give cpu, cuda or cuda:N"
            ) from None

    def share_cores(self, num_calls: int) -> None:
        """Divide the threads of this process between so many calls at a time."""
        torch.set_num_threads(max(1, num_threads() // num_calls))


class Joined(nn.Module):
    """A backbone, and a head on the embeddings that it gives.

    It takes what the backbone takes: batches of features (B, T, in_dim) with relative lengths, or
    images (B, in_dim, H, W).

    Args:
        in_dim: The dimensions of the front-end.
        network: network(in_dim) is the backbone.
        head: head(size of the embeddings) is what is put on it, such as
            likeness.toolkit.backbones.head.Head.
        features: The transform of the backbone's outputs that the head was trained on, as of
            TorchEmbedder.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from likeness.toolkit.backbones.head import Head
        >>> from likeness.toolkit.backbones.image_resnet import SmallCNN
        >>> joined = Joined(1, network=partial(SmallCNN, dim=8), head=partial(Head, dim=4))
        >>> joined(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        in_dim: int,
        *,
        network: Callable[[int], nn.Module],
        head: Callable[[int], nn.Module],
        features: Literal["raw", "polarlike"] = "raw",
    ):
        super().__init__()
        self.network: Any = network(in_dim)
        self.features = features
        dim = cast(int, self.network.dim) - (features == "polarlike")
        self.head: Any = head(dim)
        self.in_dim, self.dim = in_dim, cast(int, self.head.dim)
        self.takes = getattr(self.network, "takes", "features")
        self.pads_exactly = bool(getattr(self.network, "pads_exactly", False))
        if hasattr(self.network, "image_size"):
            self.image_size = self.network.image_size

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim) of features or images."""
        z = self.network(features, lengths).float()
        return cast(Tensor, self.head(polarlike(z) if self.features == "polarlike" else z))


def _sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on a device; a GPU takes it when it has come to it, from pinned memory."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def pick_device() -> torch.device:
    """Return the GPU where there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def in_torch(model: Loaded) -> TorchEmbedder:
    """Return the embedder of a model that was loaded or trained in torch."""
    assert isinstance(model.embedder, TorchEmbedder), "callers refuse other models"
    return model.embedder
