"""The networks there are, and what second writings of them are made of: layers as functions over a
state dict.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import likeness.toolkit.backbones
from likeness.toolkit.backbones import redimnet


def networks(takes: str) -> list[Any]:
    """Every network that takes features, or images, by name."""
    return sorted(
        {
            cls
            for module in pkgutil.walk_packages(
                likeness.toolkit.backbones.__path__, "likeness.toolkit.backbones."
            )
            for name, cls in inspect.getmembers(
                importlib.import_module(module.name), inspect.isclass
            )
            if issubclass(cls, nn.Module) and cls.__module__ == module.name
            # BasicBlock is a part of two of them
            if not name.startswith("_") and name != "BasicBlock"
            if getattr(cls, "takes", "features") == takes
        },
        key=lambda found: found.__name__,
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
