"""What every loss shares: checked arguments in full precision, unit rows, the keys of a batch, and
the axis of classes, whole or in shards.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from toolkit.vmf.precision import full, once_in_full

Forward = TypeVar("Forward", bound=Callable[..., Tensor])
Init = TypeVar("Init", bound=Callable[..., None])
Method = TypeVar("Method", bound=Callable[..., Tensor])


class Rates(Protocol):
    """What a loss needs of the optimiser's settings to state its parameter groups."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def proxy_lr_scale(self) -> float: ...


class KeyBank(Protocol):
    """A first-in-first-out store of key embeddings (toolkit.training.memory.Bank)."""

    keys: Tensor  # (Q, D)
    labels: Tensor  # (Q,) int64, -1 = empty slot

    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor: ...  # -> (B,) slots written


def unknown_settings(part: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """One sentence for each given setting of a class or function that is not among what its type, a
    Literal, lists; other types are not looked at.
    """
    target = inspect.unwrap(part.__init__ if inspect.isclass(part) else part)
    allowed = {
        name: _listed(hint) for name, hint in typing.get_type_hints(target).items() if name in given
    }
    return [
        f"{name}={given[name]!r} must be one of {', '.join(map(str, values))}"
        for name, values in allowed.items()
        if values and given[name] not in values
    ]


def _listed(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal, or of a union of such or with None; () for any other type."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return ()
    parts = [(None,) if one is types.NoneType else _listed(one) for one in typing.get_args(hint)]
    return tuple(value for part in parts for value in part) if all(parts) else ()


def known_settings(init: Init) -> Init:
    """Run a loss's __init__ on named settings that its signature lists: a misspelt method would
    otherwise become whichever comes last. ValueError.
    """

    @wraps(init)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if unknown := unknown_settings(init, kwargs):
            raise ValueError(f"{type(self).__name__}: {'; '.join(unknown)}")
        init(self, *args, **kwargs)

    return cast(Init, run)


def refuse_angular_bias(owner: str, b_theta: float) -> None:
    """ValueError for a b_theta that is no cosine, as eval.similarity would refuse it after
    training.
    """
    if not -1 <= b_theta <= 1:
        raise ValueError(
            f"{owner}: b_theta={b_theta} is the cosine of an angle and must lie in [-1, 1]; the "
            "SimPLE paper uses 0.3"
        )


def checked(forward: Forward) -> Forward:
    """Run a loss's forward(z, y, z_key, ...) outside autocast in float32 at least, on checked
    arguments.

    Their shapes, types and labels are checked. z and z_key may be half; their gradient is then
    half.
    NaN or infinity in z makes the value NaN, whatever the loss does with such rows: mined pairs,
    say, leave them out.
    """

    @wraps(forward)
    def run(
        self: nn.Module, z: Tensor, y: Tensor, z_key: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        dim, classes = getattr(self, "dim", None), getattr(self, "num_classes", None)
        if z.ndim != 2 or (dim is not None and z.shape[1] != dim):
            raise ValueError(
                f"{type(self).__name__}: embeddings must be (B, {dim or 'D'}), but their shape is "
                f"{tuple(z.shape)}"
            )
        if not z.is_floating_point():
            raise TypeError(
                f"{type(self).__name__}: embeddings must be floating point, but are {z.dtype}"
            )
        if y.shape != z.shape[:1] or y.dtype != torch.int64:
            raise ValueError(
                f"{type(self).__name__}: labels must be ({z.shape[0]},) int64, but are "
                f"{tuple(y.shape)} {y.dtype}"
            )
        if classes is not None and not torch.compiler.is_compiling() and y.numel():
            outside = (y < 0) | (y >= classes)
            if bool(outside.any()):
                raise ValueError(
                    f"{type(self).__name__}: {int(outside.sum())} of {y.numel()} labels are "
                    f"outside 0..{classes - 1} (first: {int(y[outside][0])}); "
                    "num_classes must cover every label"
                )
        with torch.autocast(z.device.type, enabled=False):
            loss = forward(self, full(z), y, None if z_key is None else full(z_key), **kwargs)
            return loss + (full(z).detach() * 0).sum()  # adds 0, or NaN, and no gradient

    return cast(Forward, run)


def in_full(method: Method) -> Method:
    """Run a loss's method of embeddings (`logits`, `posterior`) outside autocast, in float32 at
    least.

    `checked` does the same for `forward`, and checks the arguments besides.
    """

    @wraps(method)
    def run(self: nn.Module, z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return method(self, full(z), *args, **kwargs)

    return cast(Method, run)


def against(
    bank: KeyBank | None, z: Tensor, y: Tensor, z_key: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys that a batch is compared with: (keys (Q, D), their labels (Q,) with -1 for empty
    slots, own (B,)).

    own[i] is the column of row i's own key: that cell is a self-pair. Without z_key the batch
    itself is the keys (with gradient); with z_key and a bank, z_key is enqueued first and the whole
    bank is the keys; with z_key alone, z_key is.
    """
    if z_key is None:
        return z, y, torch.arange(len(y), device=y.device)
    if z_key.shape != z.shape:
        raise ValueError(
            f"z_key must hold one key per embedding, {tuple(z.shape)}, but its shape is "
            f"{tuple(z_key.shape)}"
        )
    z_key = z_key.detach()
    if bank is None:
        return z_key.to(z.dtype), y, torch.arange(len(y), device=y.device)
    own = bank.enqueue(z_key, y)
    return bank.keys.to(z.dtype), bank.labels, own


def proxy_groups(loss: nn.Module, proxies: nn.Parameter, optim: Rates) -> list[dict[str, Any]]:
    """Proxies with their own rate and the usual decay; every other parameter (scales, biases) at
    the base rate without decay.
    """
    rest = [parameter for parameter in loss.parameters() if parameter is not proxies]
    groups: list[dict[str, Any]] = [
        {
            "params": [proxies],
            "lr": optim.lr * optim.proxy_lr_scale,
            "weight_decay": optim.weight_decay,
        }
    ]
    return [*groups, {"params": rest, "lr": optim.lr, "weight_decay": 0.0}] if rest else groups


# The axis of classes. Every classification loss goes through the functions below instead of
# indexing by y or reducing over classes itself: then the same loss works on all C columns, as
# always, or, inside `with sharded(...)`, on the c columns of one process among several. y is global
# in both cases.


@dataclass(frozen=True, eq=False)
class Shard:
    """The classes whose columns this process holds, and how they join the other processes'
    (toolkit.parallel.spread makes it).

    Every process holds at least one class, no class has two holders, and every label of the batch
    has one. `sum` and `gather` are differentiable and adjoint to
    what they compute: the backward pass sums the gradients of all processes.
    """

    classes: Tensor  # (c,) int64, ascending: the global number of every local column
    sum: Callable[[Tensor], Tensor]  # element by element over the processes
    max: Callable[[Tensor], Tensor]  # the same; without gradient
    gather: Callable[
        [Tensor], Tensor
    ]  # (n, ...) -> (N, ...): the rows of all processes, in their order

    def locate(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) global labels -> (B,) local columns, (B,) whether they are here; the column of a
        label that is elsewhere is any.
        """
        column = torch.searchsorted(self.classes, y).clamp(max=len(self.classes) - 1)
        return column, self.classes[column] == y


_shards: list[Shard] = []  # a list, not a ContextVar: torch.compile sees through it


def _current() -> Shard | None:
    return _shards[-1] if _shards else None


@contextmanager
def sharded(shard: Shard) -> Iterator[None]:
    """Inside, the class axis of the losses that this process computes is the one of `shard`.

    Their backward pass may run outside.
    """
    _shards.append(shard)
    try:
        yield
    finally:
        _shards.pop()


def is_sharded() -> bool:
    """Whether this runs inside `with sharded(...)`."""
    return _current() is not None


def target_column(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C), (B,) -> (B,) the target's logits.

    By indexing: unlike gather it keeps no hold of `logits`, which add_to_target then may change in
    place.
    """
    rows, shard = torch.arange(len(y), device=y.device), _current()
    if shard is None:
        return logits[rows, y]
    column, here = shard.locate(y)
    return shard.sum(torch.where(here, logits[rows, column], 0.0))


def with_target(logits: Tensor, y: Tensor, value: Tensor | float) -> Tensor:
    """A copy of (B, C) whose target's logits are `value`, (B,) or a number."""
    shard = _current()
    if shard is None:
        return (
            logits.scatter(1, y[:, None], value[:, None])
            if isinstance(value, Tensor)
            else logits.scatter(1, y[:, None], value)
        )
    column, here = shard.locate(y)
    kept = logits[torch.arange(len(y), device=y.device), column]
    return logits.scatter(1, column[:, None], torch.where(here, value, kept)[:, None])


def add_to_target(logits: Tensor, y: Tensor, change: Tensor) -> Tensor:
    """`logits` (B, C), overwritten: `change` (B,) is added to the target's.

    No second (B, C) block is made.
    """
    shard = _current()
    if shard is None:
        return logits.scatter_add_(1, y[:, None], change[:, None])
    column, here = shard.locate(y)
    return logits.scatter_add_(1, column[:, None], torch.where(here, change, 0.0)[:, None])


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C), (B,) -> scalar: mean of logsumexp over classes minus the target's logit."""
    shard = _current()
    return (
        nn.functional.cross_entropy(logits, y)
        if shard is None
        else _shard_logsumexp(logits, y, shard).mean()
    )


def class_logsumexp(logits: Tensor) -> Tensor:
    """(B, C) -> (B,) log sum over classes of exp."""
    shard = _current()
    return logits.logsumexp(dim=1) if shard is None else _shard_logsumexp(logits, None, shard)


def class_sum(values: Tensor) -> Tensor:
    """(..., C) -> (...)"""
    shard = _current()
    return values.sum(dim=-1) if shard is None else shard.sum(values.sum(dim=-1))


def class_mean(values: Tensor) -> Tensor:
    """(C,) -> scalar"""
    shard = _current()
    if shard is None:
        return values.mean()
    total, count = shard.sum(torch.stack([values.sum(), values.new_tensor(len(values))]))
    mean: Tensor = total / count
    return mean


def class_rows(rows: Tensor, y: Tensor) -> Tensor:
    """(C, ...), (B,) -> (B, ...): rows[y]"""
    shard = _current()
    if shard is None:
        return rows[y]
    column, here = shard.locate(y)
    here = here.view(-1, *[1] * (rows.ndim - 1))
    return shard.sum(torch.where(here, rows[column], 0.0))


def class_gather(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(c, ...) -> (C, ...) the rows of all classes, (c,) the place of every given row among them.

    Unsharded c is C.
    """
    shard = _current()
    if shard is None:
        return rows, torch.arange(len(rows), device=rows.device)
    return shard.gather(rows), torch.searchsorted(shard.gather(shard.classes), shard.classes)


def _shard_logsumexp(logits: Tensor, y: Tensor | None, shard: Shard) -> Tensor:
    made: Tensor = _ShardLogSumExp.apply(logits, y, shard)  # type: ignore[no-untyped-call]
    return made


class _ShardLogSumExp(torch.autograd.Function):
    """logsumexp over the columns of all processes, minus the target's logit unless y is None.

    One (B, c) block, the softmax, is kept for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor | None, shard: Shard) -> Tensor:
        top = shard.max(logits.amax(dim=1))
        share = (logits - top[:, None]).exp_()
        parts = [share.sum(dim=1)]
        column = here = None
        if y is not None:
            column, here = shard.locate(y)
            parts.append(
                torch.where(here, logits[torch.arange(len(y), device=y.device), column] - top, 0.0)
            )
        total, *own = shard.sum(torch.stack(parts))
        ctx.save_for_backward(share.div_(total[:, None]), column, here)
        ctx.shard = shard
        value: Tensor = total.log() - own[0] if own else total.log() + top
        return value

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        share, column, here = ctx.saved_tensors
        grad = ctx.shard.sum(grad)
        slope = share * grad[:, None]
        if column is not None:
            slope.scatter_add_(1, column[:, None], torch.where(here, -grad, 0.0)[:, None])
        return slope, None, None
