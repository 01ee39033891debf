"""The networks there are, and what their tests ask of them."""

from typing import Any

import torch
from torch import Tensor, nn

from likeness import backbones


def networks(takes: str) -> list[Any]:
    """Every network that takes features, or images, by name."""
    every = [value for value in vars(backbones).values() if isinstance(value, type)]
    found = [network for network in every if getattr(network, "takes", "features") == takes]
    return sorted(found, key=lambda network: network.__name__)


def without_gradient(network: nn.Module, z: Tensor) -> list[str]:
    """The trained parameters of a network that its embeddings give no finite gradient."""
    (z * torch.randn_like(z)).sum().backward()
    trained = [(name, p.grad) for name, p in network.named_parameters() if p.requires_grad]
    return [name for name, g in trained if g is None or not g.isfinite().all() or not g.any()]
