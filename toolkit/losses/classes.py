"""The axis of classes, whole or spread over processes.

Every loss with proxies goes through the functions of this file instead of indexing by y or reducing
over classes itself. The same loss then works on all C columns, as always, or, inside
`with spread_classes(...)`, on the c columns of one process among several. Labels y are global in
both cases: they count all classes. toolkit/parallel/spread.py spreads a loss.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from likeness.toolkit.vmf.rows import once_in_full


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """The classes that this process keeps, and how their columns join the other processes'.

    Every process keeps at least one class, no class is kept twice, and every label of the batch is
    kept by one process. `sum` and `gather` are differentiable, with gradients that are adjoint to
    what they compute: the backward pass sums the gradients of all processes.

    Args:
        classes: (c,) int64, ascending: the global number of every local column.
        sum: Adds a tensor element by element over the processes.
        max: Takes the largest, element by element over the processes, without gradient.
        gather: (n, ...) -> (N, ...): joins the rows of all processes in their order.
    """

    classes: Tensor
    sum: Callable[[Tensor], Tensor]
    max: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]

    def locate(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Find the local columns of global labels (B,).

        Returns:
            The columns (B,), and whether each label is kept here (B,). The column of a label that
            is kept elsewhere is any valid one.
        """
        column = torch.searchsorted(self.classes, y).clamp(max=len(self.classes) - 1)
        return column, self.classes[column] == y


_spread: list[OwnClasses] = []  # a list, not a ContextVar: torch.compile sees through it


def _current() -> OwnClasses | None:
    return _spread[-1] if _spread else None


@contextmanager
def spread_classes(own: OwnClasses) -> Iterator[None]:
    """Within the block, the class axis of every loss is that of `own`.

    The backward pass may run outside.
    """
    _spread.append(own)
    try:
        yield
    finally:
        _spread.pop()


def is_spread() -> bool:
    """Whether this runs inside `with spread_classes(...)`."""
    return _current() is not None


def target_column(logits: Tensor, y: Tensor) -> Tensor:
    """Pick each row's logit of its own class: (B, C), (B,) -> (B,).

    The result shares no memory with `logits`, so that `add_to_target` may change them in place
    afterwards.
    """
    rows, own = torch.arange(len(y), device=y.device), _current()
    if own is None:
        return logits[rows, y]
    column, here = own.locate(y)
    return own.sum(torch.where(here, logits[rows, column], 0.0))


def set_target(logits: Tensor, y: Tensor, value: Tensor | float) -> Tensor:
    """Copy (B, C) logits with each row's own class set to `value`, (B,) or a number."""
    own = _current()
    if own is None:
        return (
            logits.scatter(1, y[:, None], value[:, None])
            if isinstance(value, Tensor)
            else logits.scatter(1, y[:, None], value)
        )
    column, here = own.locate(y)
    kept = logits[torch.arange(len(y), device=y.device), column]
    return logits.scatter(1, column[:, None], torch.where(here, value, kept)[:, None])


def add_to_target(logits: Tensor, y: Tensor, change: Tensor) -> Tensor:
    """Add `change` (B,) to each row's own class, in place: `logits` (B, C) are overwritten.

    No second (B, C) block is made.
    """
    own = _current()
    if own is None:
        return logits.scatter_add_(1, y[:, None], change[:, None])
    column, here = own.locate(y)
    return logits.scatter_add_(1, column[:, None], torch.where(here, change, 0.0)[:, None])


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean of logsumexp over classes minus the target's logit: (B, C), (B,) -> scalar."""
    own = _current()
    if own is None:
        return nn.functional.cross_entropy(logits, y)
    return _spread_logsumexp(logits, y, own).mean()


def class_logsumexp(logits: Tensor) -> Tensor:
    """The logarithm of the sum over classes of exp: (B, C) -> (B,)."""
    own = _current()
    return logits.logsumexp(dim=1) if own is None else _spread_logsumexp(logits, None, own)


@torch.no_grad()
def hardest_classes(logits: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the wrong classes with the largest logits of every row.

    Args:
        logits: (B, C).
        y: Labels (B,).
        count: How many wrong classes to find in each row; all of them if there are fewer.

    Returns:
        Local columns (B, k) with the largest logits here, and whether each of them belongs to the
        `count` largest over all wrong classes (B, k).
    """
    wrong, own = set_target(logits, y, -math.inf), _current()
    values, columns = wrong.topk(min(count, wrong.shape[1]), dim=1)
    chosen = values > -math.inf
    if own is None:
        return columns, chosen
    ids = own.classes[columns].T
    every, every_id = own.gather(values.T.contiguous()), own.gather(ids.contiguous())
    best = every_id.gather(0, every.topk(min(count, len(every)), dim=0).indices)
    return columns, chosen & (ids[:, None] == best).any(dim=1).T


def class_sum(values: Tensor) -> Tensor:
    """The sum over classes: (..., C) -> (...)."""
    own = _current()
    return values.sum(dim=-1) if own is None else own.sum(values.sum(dim=-1))


def class_mean(values: Tensor) -> Tensor:
    """The mean over classes: (C,) -> scalar."""
    own = _current()
    if own is None:
        return values.mean()
    total, count = own.sum(torch.stack([values.sum(), values.new_tensor(len(values))]))
    mean: Tensor = total / count
    return mean


def class_rows(rows: Tensor, y: Tensor) -> Tensor:
    """The rows of the labels' classes, rows[y]: (C, ...), (B,) -> (B, ...)."""
    own = _current()
    if own is None:
        return rows[y]
    column, here = own.locate(y)
    here = here.view(-1, *[1] * (rows.ndim - 1))
    return own.sum(torch.where(here, rows[column], 0.0))


def class_gather(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Join the rows of all classes.

    Args:
        rows: (c, ...) of this process's classes; c is C where classes are not spread.

    Returns:
        The rows of all classes (C, ...), and the place among them of every row of `rows` (c,).
    """
    own = _current()
    if own is None:
        return rows, torch.arange(len(rows), device=rows.device)
    return own.gather(rows), torch.searchsorted(own.gather(own.classes), own.classes)


def _spread_logsumexp(logits: Tensor, y: Tensor | None, own: OwnClasses) -> Tensor:
    value: Tensor = _SpreadLogSumExp.apply(logits, y, own)  # type: ignore[no-untyped-call]
    return value


class _SpreadLogSumExp(torch.autograd.Function):
    """logsumexp over the columns of all processes, minus the target's logit unless y is None.

    One (B, c) block, the softmax, is kept for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor | None, own: OwnClasses) -> Tensor:
        top = own.max(logits.amax(dim=1))
        share = (logits - top[:, None]).exp_()
        parts = [share.sum(dim=1)]
        column = here = None
        if y is not None:
            column, here = own.locate(y)
            rows = torch.arange(len(y), device=y.device)
            parts.append(torch.where(here, logits[rows, column] - top, 0.0))
        total, *targets = own.sum(torch.stack(parts))
        ctx.save_for_backward(share.div_(total[:, None]), column, here)
        ctx.own = own
        value: Tensor = total.log() - targets[0] if targets else total.log() + top
        return value

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        share, column, here = ctx.saved_tensors
        grad = ctx.own.sum(grad)
        slope = share * grad[:, None]
        if column is not None:
            slope.scatter_add_(1, column[:, None], torch.where(here, -grad, 0.0)[:, None])
        return slope, None, None
