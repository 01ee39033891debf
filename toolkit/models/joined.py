"""A network and the head that was trained on its embeddings, as one backbone."""

from collections.abc import Callable
from typing import Any, Literal, cast

from torch import Tensor, nn

from likeness.toolkit.losses.simple import polarlike


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
        >>> from likeness.toolkit.backbones.small import SmallCNN
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
