"""Several networks side by side, whose embeddings are joined into one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError


class Beside(nn.Module):
    """Backbones that take the same input, whose embeddings are put one after the other.

    The dot product of two such embeddings is the sum of the networks' dot products. So one model
    has the summed scores of several systems.

    Args:
        in_dim: The size of what all of them take: that of the front-end's features.
        networks: Each is called as network(in_dim), and has a `dim` as every backbone here.

    Raises:
        LikenessError: There is no network, or one takes features and another one images or
            embeddings.

    Example:
        >>> from functools import partial
        >>> from likeness.toolkit.backbones.statistics import OrderStatistics
        >>> net = Beside(8, networks=[partial(OrderStatistics, dim=size) for size in (4, 6)])
        >>> net.eval()(torch.randn(2, 50, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, in_dim: int, *, networks: Sequence[Callable[[int], nn.Module]]):
        super().__init__()
        self.networks: Any = nn.ModuleList(network(in_dim) for network in networks)
        if not len(self.networks):
            raise LikenessError("Beside: networks is empty; give one or more")
        kinds = {getattr(network, "takes", "features") for network in self.networks}
        if len(kinds) != 1:
            raise LikenessError(
                f"Beside: the {len(self.networks)} networks take {' and '.join(sorted(kinds))}; "
                "give networks that take the same"
            )
        self.in_dim, self.takes = in_dim, kinds.pop()
        self.dim = sum(cast(int, network.dim) for network in self.networks)
        self.pads_exactly = all(
            bool(getattr(network, "pads_exactly", False)) for network in self.networks
        )

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim), those of the first network first."""
        return torch.cat([network(features, lengths) for network in self.networks], dim=1)

    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Let every network that learns constants from (features, lengths, labels) do so.

        The batches are kept in memory meanwhile.
        """
        kept = list(batches)
        for network in self.networks:
            if hasattr(network, "estimate"):
                network.estimate(kept)
