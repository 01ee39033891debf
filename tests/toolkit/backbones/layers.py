"""The networks there are, and what their tests ask of them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from likeness import backbones
from likeness.toolkit.backbones import redimnet


def networks(takes: str) -> list[Any]:
    """Every network that takes features, or images, by name."""
    every = [value for value in vars(backbones).values() if isinstance(value, type)]
    return sorted(
        (network for network in every if getattr(network, "takes", "features") == takes),
        key=lambda network: network.__name__,
    )


def small_redimnet(in_dim: int, cls: Any, *, size: str, shape: dict[str, Any], **how: Any) -> Any:
    """A ReDimNet of a size of which some parts are others."""
    shapes: Any = redimnet.SHAPES if cls is redimnet.ReDimNet else redimnet.SHAPES_2
    with patch.dict(shapes, {size: shapes[size]._replace(**shape)}):
        return cls(in_dim, size=size, **how)


def without_gradient(network: nn.Module, z: Tensor) -> list[str]:
    """The trained parameters of a network that its embeddings give no finite gradient."""
    (z * torch.randn_like(z)).sum().backward()
    return [
        name
        for name, p in network.named_parameters()
        if p.requires_grad
        and (p.grad is None or not torch.isfinite(p.grad).all() or not p.grad.any())
    ]
