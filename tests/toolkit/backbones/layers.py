"""The networks there are, and what second writings of them are made of: layers as functions over a
state dict.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import likeness.toolkit.backbones


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


class Layers:
    """Layers that make their weights at their first call, under the names given to them, on the
    device of what they get.
    """

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def new(
        self, name: str, like: Tensor, *shape: int, scale: float = 0.3, centre: float = 0.0
    ) -> Tensor:
        self.state[name] = torch.randn(shape, dtype=like.dtype, device=like.device) * scale + centre
        return self.state[name]

    def conv(
        self,
        name: str,
        x: Tensor,
        out: int,
        size: int,
        *,
        bias: bool = False,
        groups: int = 1,
        **how: Any,
    ) -> Tensor:
        sizes = (x.shape[1] // groups, *[size] * (x.ndim - 2))
        weight = self.new(f"{name}.weight", x, out, *sizes, scale=1.4 / math.prod(sizes) ** 0.5)
        numbers = self.new(f"{name}.bias", x, out) if bias else None
        convolution = F.conv1d if x.ndim == 3 else F.conv2d
        return convolution(x, weight, numbers, groups=groups, **how)

    def norm(self, name: str, x: Tensor, eps: float = 1e-5, *, affine: bool = True) -> Tensor:
        size = x.shape[1]
        self.state[f"{name}.num_batches_tracked"] = torch.tensor(7, device=x.device)
        mean, variance = (
            self.new(f"{name}.running_mean", x, size),
            self.new(f"{name}.running_var", x, size).square() + 0.5,
        )
        self.state[f"{name}.running_var"] = variance
        shape = (1, size, *[1] * (x.ndim - 2))
        y = (x - mean.view(shape)) / (variance.view(shape) + eps).sqrt()
        if not affine:
            return y
        weight = self.new(f"{name}.weight", x, size, centre=1.0)
        return y * weight.view(shape) + self.new(f"{name}.bias", x, size).view(shape)

    def layer_norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        x = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return x * self.new(f"{name}.weight", x, x.shape[-1], centre=1.0) + self.new(
            f"{name}.bias", x, x.shape[-1]
        )

    def prelu(self, name: str, x: Tensor) -> Tensor:
        return torch.where(
            x > 0, x, x * self.new(f"{name}.weight", x, x.shape[1]).view(1, -1, 1, 1)
        )

    def linear(self, name: str, x: Tensor, out: int, *, bias: bool = True) -> Tensor:
        y = x @ self.new(f"{name}.weight", x, out, x.shape[-1], scale=x.shape[-1] ** -0.5).T
        return y + self.new(f"{name}.bias", x, out) if bias else y

    def shortcut(self, name: str, x: Tensor, out: int, stride: int | tuple[int, int]) -> Tensor:
        if stride in (1, (1, 1)) and x.shape[1] == out:
            return x
        return self.norm(f"{name}.1", self.conv(f"{name}.0", x, out, 1, stride=stride))

    def residual(
        self, x: Tensor, width: int, blocks: tuple[int, ...], bottleneck: bool, shortcut: str
    ) -> Tensor:
        """Four stages of residual blocks: He et al. 2016."""
        for stage, count in enumerate(blocks):
            for i in range(count):
                name, planes = f"layer{stage + 1}.{i}", width * 2**stage
                stride = 2 if stage and i == 0 else 1
                parts = [(planes, 3, stride), (planes, 3, 1)]
                if bottleneck:
                    parts = [(planes, 1, 1), (planes, 3, stride), (4 * planes, 1, 1)]
                y = x
                for number, (out, size, step) in enumerate(parts, start=1):
                    y = self.conv(
                        f"{name}.conv{number}", y, out, size, stride=step, padding=size // 2
                    )
                    y = self.norm(f"{name}.bn{number}", y)
                    y = y.relu() if number < len(parts) else y
                x = (y + self.shortcut(f"{name}.{shortcut}", x, y.shape[1], stride)).relu()
        return x
