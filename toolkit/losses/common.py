"""What every loss shares: checked arguments in full precision, unit rows, and the keys that a batch is compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

Forward = TypeVar("Forward", bound=Callable[..., Tensor])


class Rates(Protocol):
    """What a loss needs of the optimiser's settings to state its parameter groups."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def proxy_lr_scale(self) -> float: ...


class KeyBank(Protocol):
    """A first-in-first-out store of key embeddings (toolkit.memory.Bank)."""

    keys: Tensor  # (Q, D)
    labels: Tensor  # (Q,) int64, -1 = empty slot

    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor: ...  # -> (B,) slots written


def checked(forward: Forward) -> Forward:
    """Run a loss's forward(z, y, ...) outside autocast in float32 at least, on arguments whose shapes, types and labels were checked."""

    @wraps(forward)
    def run(self: nn.Module, z: Tensor, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dim, classes = getattr(self, "dim", None), getattr(self, "num_classes", None)
        if z.ndim != 2 or (dim is not None and z.shape[1] != dim):
            raise ValueError(f"{type(self).__name__}: embeddings must be (B, {dim or 'D'}), but their shape is {tuple(z.shape)}")
        if not z.is_floating_point():
            raise TypeError(f"{type(self).__name__}: embeddings must be floating point, but are {z.dtype}")
        if y.shape != z.shape[:1] or y.dtype != torch.int64:
            raise ValueError(f"{type(self).__name__}: labels must be ({z.shape[0]},) int64, but are {tuple(y.shape)} {y.dtype}")
        if classes is not None and not torch.compiler.is_compiling() and y.numel():
            outside = (y < 0) | (y >= classes)
            if bool(outside.any()):
                raise ValueError(
                    f"{type(self).__name__}: {int(outside.sum())} of {y.numel()} labels are outside 0..{classes - 1} (first: {int(y[outside][0])}); "
                    "num_classes must cover every label"
                )
        with torch.autocast(z.device.type, enabled=False):
            return forward(self, full(z), y, *args, **kwargs)

    return cast(Forward, run)


def full(z: Tensor) -> Tensor:
    """float32 at least; float64 stays."""
    return z if z.dtype == torch.float64 else z.float()


def unit(z: Tensor) -> Tensor:
    """Rows divided by max(norm, 1e-12)."""
    return nn.functional.normalize(full(z), dim=-1, eps=1e-12)


def against(bank: KeyBank | None, z: Tensor, y: Tensor, z_key: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The keys that a batch is compared with: (keys (Q, D), their labels (Q,) with -1 for empty slots, own (B,)).

    own[i] is the column of row i's own key: that cell is a self-pair. Without z_key the batch itself is the keys (with gradient);
    with z_key and a bank, z_key is enqueued first and the whole bank is the keys; with z_key alone, z_key is.
    """
    if z_key is None:
        return z, y, torch.arange(len(y), device=y.device)
    if z_key.shape != z.shape:
        raise ValueError(f"z_key must hold one key per embedding, {tuple(z.shape)}, but its shape is {tuple(z_key.shape)}")
    z_key = z_key.detach()
    if bank is None:
        return z_key.to(z.dtype), y, torch.arange(len(y), device=y.device)
    own = bank.enqueue(z_key, y)
    return bank.keys.to(z.dtype), bank.labels, own


def proxy_groups(loss: nn.Module, proxies: nn.Parameter, optim: Rates) -> list[dict[str, Any]]:
    """Proxies with their own rate and the usual decay; every other parameter (scales, biases) at the base rate without decay."""
    rest = [parameter for parameter in loss.parameters() if parameter is not proxies]
    groups: list[dict[str, Any]] = [{"params": [proxies], "lr": optim.lr * optim.proxy_lr_scale, "weight_decay": optim.weight_decay}]
    return [*groups, {"params": rest, "lr": optim.lr, "weight_decay": 0.0}] if rest else groups
