"""Several networks side by side: their embeddings make one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn


class Beside(nn.Module):
    """Backbones that take the same features, whose embeddings are put one after the other.

    The dot product of two such embeddings is the sum of those of the networks: it sums the scores
    of several systems in one model.

    Args:
        in_dim: The dimensions of the front-end.
        networks: Each is called as network(in_dim) and gives embeddings (B, its dim).

    Raises:
        ValueError: There is no network, or they do not all take features, or all images.

    Example:
        >>> from functools import partial
        >>> from toolkit.backbones.statistics import OrderStatistics
        >>> net = Beside(8, networks=[partial(OrderStatistics, dim=size) for size in (4, 6)])
        >>> net.eval()(torch.randn(2, 50, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, in_dim: int, *, networks: Sequence[Callable[[int], nn.Module]]):
        super().__init__()
        self.networks: Any = nn.ModuleList(network(in_dim) for network in networks)
        kinds = {getattr(network, "takes", "features") for network in self.networks}
        if len(kinds) != 1:
            raise ValueError(
                f"Beside: {len(self.networks)} networks that take {' and '.join(sorted(kinds))}; "
                "give one or more that take the same"
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
        """Let every network that learns constants from (features, lengths, labels) do so."""
        kept = list(batches)
        for network in self.networks:
            if hasattr(network, "estimate"):
                network.estimate(kept)
