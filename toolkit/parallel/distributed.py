"""The processes of one training run: the group that torchrun starts, and its collectives.

The collectives have gradients. Their backward passes are their adjoints, which sum over the
processes. Nothing depends on how the batch is cut: slices may have different lengths and may be
empty. Without torchrun there is one process, and all of this does nothing. What losses make of the
collectives is in toolkit/parallel/spread.py.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from likeness.eval.errors import LikenessError, Unreachable, first_line
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.items import Item
from likeness.eval.types import name_first
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models.embed import embedded_rows, refuse_diverged
from likeness.toolkit.models.loaded import Embedder, ReadParts

Result = TypeVar("Result")
# What gloo and NCCL say where a process is gone.
_LOST = re.compile("(?i)connection (closed|reset)|broken pipe|time(d )?out|nccl|remote process")

# The group
# --------------------------------------------------------------------------------------------------


def start() -> torch.device | None:
    """Join the processes that torchrun started, and return the device of this one.

    It reads RANK, WORLD_SIZE and LOCAL_RANK. Tensors on the CPU go through gloo, those on a GPU
    through NCCL. A collective that waits ten minutes for a process raises an error.

    Returns:
        The device; None, with nothing done, without torchrun or with one process.

    Raises:
        LikenessError: This machine has GPUs, but fewer of them than processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if gpus and local >= gpus:
        raise LikenessError(f"process {local} has no GPU; start at most {gpus} (--nproc-per-node)")
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if distributed.is_initialized():  # a second run in the same processes
        return device
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    distributed.init_process_group(backend, timeout=timedelta(minutes=10))
    return device


def end() -> None:
    """Leave the group, if there is one, together with the other processes.

    While an exception passes (in a finally), the others may be anywhere. Whoever ends the process
    then leaves at once (likeness.toolkit.signals.leave), as the group may wait for one that died.
    """
    if distributed.is_initialized() and sys.exc_info()[0] is None:
        with lost_named("this one had done its part"):
            wait()  # gloo's threads abort a process that leaves while others still talk to it
        distributed.destroy_process_group()


def rank() -> int:
    """Return this process's number; 0 without a group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    """Return the number of processes; 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_main() -> bool:
    """Say whether this is the process that logs and writes."""
    return rank() == 0


@contextmanager
def lost_named(again: str) -> Iterator[None]:
    """One sentence when another process of the run has died: gloo notices at once, NCCL through
    torchrun or its timeout.

    Args:
        again: What is whole, and how all go on.
    """
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or isinstance(error, Unreachable) or not _LOST.search(str(error)):
            raise
        gone = f"another process of the run died or does not answer ({first_line(error)})"
        raise Unreachable(f"process {rank()}: {gone}; {again}") from error


def wait() -> None:
    """Return when every process has come here."""
    any_rank(False)


def any_rank(flag: bool) -> bool:
    """Say whether `flag` is true in any process; the answer is the same in all of them.

    It is asked for Ctrl-C and for a loss that is not finite.
    """
    return bool(largest(torch.tensor([flag], dtype=torch.int64)))


def run_on_main(work: Callable[[], object]) -> None:
    """Run `work` in the main process.

    Where it raises there, all other processes raise a LikenessError instead of waiting for it.
    """
    run_on_all(work if is_main() else lambda: None)


def run_on_all(work: Callable[[], Result]) -> Result:
    """Run `work`, which talks to no other process, in every process, and return what it gives.

    Where it raises in some of them, all others raise a LikenessError instead of waiting for them.
    """
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    if any_rank(error is not None):
        raise error or LikenessError(f"process {rank()}: another process has refused and says why")
    return result


def broadcast(x: Tensor) -> Tensor:
    """Overwrite `x` with the values that it has in the first process, and return it."""
    if world() > 1:
        whole = x.detach().contiguous()
        distributed.broadcast(whole, 0)
        x.detach().copy_(whole)
    return x


def agree(**values: Any) -> None:
    """Check that each value is the same in every process.

    Args:
        **values: Values that can be compared.

    Raises:
        LikenessError: A value differs. It is named, with that of the first process that has another
            one than process 0.
    """
    stated = gather_objects(values)
    for number, theirs in enumerate(stated):
        for name, value in stated[0].items():
            if (other := theirs.get(name)) != value:
                text = f"{name} is {value!r} in process 0, but {other!r} in process {number}"
                remedy = "start all by one command on the same data"
                raise LikenessError(f"the processes disagree: {text}; {remedy}")


def embed_all(
    embedder: Embedder, items: Sequence[Item], read: Read | ReadParts, *, what: str, workers: int
) -> Embeddings:
    """Embed items of which none may be missing, while each process of the run takes its part.

    Args:
        embedder: The network, the same in every process.
        items: All items, the same in every process.
        read: Gives an item's input, or several of them.
        what: What the error calls the items, such as "validation".
        workers: The number of processes that read.

    Returns:
        The embeddings of all items in their order, the same in every process.

    Raises:
        LikenessError: Some items cannot be read. They are counted and the first are named.
    """
    first, stop = (len(items) * number // world() for number in (rank(), rank() + 1))
    rows, own_bad = embedded_rows(embedder, items[first:stop], read, workers=workers)
    bad = [item for part in gather_objects(own_bad) for item in part]
    refuse_diverged(bad, len(items) - len(bad))
    if bad:
        names = name_first(item.id for item in bad)
        share = f"{len(bad)} of {len(items)} {what} items cannot be read"
        raise LikenessError(f"{share} ({names}): {bad[0].reason}")
    own = np.stack([rows[place] for place in sorted(rows)]) if rows else np.zeros((0, embedder.dim))
    matrix = gather(torch.from_numpy(own.astype(np.float32, copy=False))).numpy()
    return Embeddings(tuple(item.id for item in items), matrix, {})


# Collectives
# --------------------------------------------------------------------------------------------------


def gather(x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """Return the rows of all processes in their order: (n, ...) -> (N, ...), for any n.

    The gradient is the sum of the processes' gradients, cut to this process's own rows.

    Args:
        x: This process's rows, of any type.
        lengths: Every process's n where it is known, which saves asking for it.
    """
    if world() == 1:
        return x
    lengths = lengths or lengths_of(len(x), x.device)
    return cast(Tensor, _Gather.apply(x, lengths))  # type: ignore[no-untyped-call]


def gather_objects(value: Result) -> list[Result]:
    """Return what `value`, any object, is in every process."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    distributed.all_gather_object(values, value)
    return values


def total(x: Tensor) -> Tensor:
    """Return the sum over the processes, element by element; its gradient is such a sum too."""
    if world() == 1:
        return x
    return cast(Tensor, _Total.apply(x))  # type: ignore[no-untyped-call]


def largest(x: Tensor) -> Tensor:
    """Return the largest value over the processes, element by element, without gradient."""
    x = x.detach().clone()
    if world() > 1:
        distributed.all_reduce(x, distributed.ReduceOp.MAX)
    return x


def lengths_of(length: int, device: torch.device) -> list[int]:
    """Return what `length` is in every process."""
    if world() == 1:
        return [length]
    lengths = torch.zeros(world(), dtype=torch.int64, device=device)
    lengths[rank()] = length
    return [int(value) for value in total(lengths)]


def _padded(x: Tensor, length: int) -> Tensor:
    """Return x with zeros below it, up to this number of rows."""
    if len(x) == length:
        return x.contiguous()
    return torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


class _Gather(torch.autograd.Function):
    """The gathering of rows; its backward pass sums over the processes and takes the own rows.

    Collectives need equal shapes, so rows travel padded.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths, longest = lengths, max(lengths)
        parts = [x.new_empty(longest, *x.shape[1:]) for _ in lengths]
        distributed.all_gather(parts, _padded(x, longest))
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        longest = max(ctx.lengths)
        parts = [_padded(part, longest) for part in torch.split(grad, ctx.lengths)]
        mine = torch.empty_like(parts[0])
        distributed.reduce_scatter(mine, parts)
        return mine[: ctx.lengths[rank()]], None


class _Total(torch.autograd.Function):
    """The sum over the processes; its backward pass is a sum over them too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Total.forward(ctx, grad)
