"""The processes of one training run: the group that torchrun starts, and collectives with
gradients. What losses make of them: toolkit/parallel/spread.py.

The collectives' backward passes are their adjoints, which sum over the processes. Nothing depends
on how the batch is cut: slices may be of different lengths and empty. Without torchrun there is one
process, and all of this does nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

# The group


def start(*, timeout_seconds: float = 600.0) -> torch.device | None:
    """Join the processes that torchrun started; returns this one's device.

    None, and nothing done, without torchrun or with one process.

    Reads RANK, WORLD_SIZE and LOCAL_RANK. Tensors of the CPU go through gloo, of a GPU through
    NCCL. A collective that waits longer than the timeout for a process is an error. ValueError if
    there are more processes on this machine than GPUs, while it has GPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if gpus and local >= gpus:
        raise ValueError(
            f"process {local} on this machine has no GPU: there are {gpus}; start at most {gpus} "
            "processes per machine (--nproc-per-node)"
        )
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if distributed.is_initialized():  # a second run in the same processes
        return device
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timedelta(seconds=timeout_seconds)
    )
    return device


def end() -> None:
    """Leave the group, if there is one: together with the others, unless called while an exception
    passes (in a finally), when they may be anywhere.
    """
    if distributed.is_initialized():
        if sys.exc_info()[0] is None:
            wait()  # gloo's threads abort a process that leaves while others still talk to it
        distributed.destroy_process_group()


def rank() -> int:
    """This process's number; 0 without a group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    """The number of processes; 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the process that logs and writes."""
    return rank() == 0


def is_lost(error: BaseException) -> bool:
    """Whether an error of a collective says that another process is gone or does not answer."""
    told = str(error).lower()
    signs = (
        "connection closed by peer",
        "connection reset",
        "broken pipe",
        "timed out",
        "timeout",
        "nccl",
        "remote process",
    )
    return world() > 1 and isinstance(error, RuntimeError) and any(one in told for one in signs)


def wait() -> None:
    """Return when every process has come here."""
    any_rank(False)


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true in any process: the same answer in all (Ctrl-C, a loss that is not
    finite).
    """
    return bool(largest(torch.tensor([flag], dtype=torch.int64)))


def on_main(work: Callable[[], object]) -> None:
    """Run `work` in the main process.

    Where it raises, all others raise as well, instead of waiting for it.
    """
    error: Exception | None = None
    if is_main():
        try:
            work()
        except Exception as caught:
            error = caught
    if any_rank(error is not None):
        raise (
            error
            if error is not None
            else ValueError(
                f"process {rank()}: the first process has refused to go on, and says why"
            )
        )


def broadcast(x: Tensor, source: int = 0) -> Tensor:
    """Overwrite `x` with process `source`'s; returns it."""
    if world() > 1:
        whole = x.detach().contiguous()
        distributed.broadcast(whole, source)
        with torch.no_grad():
            x.copy_(whole)
    return x


def agree(**values: Any) -> None:
    """ValueError naming each value that is not the same in every process, and the processes that
    differ from process 0. Values: anything JSON can write.
    """
    text = torch.tensor(
        list(json.dumps(values, sort_keys=True, default=repr).encode()), dtype=torch.uint8
    )
    lengths = lengths_of(len(text), text.device)
    found = [
        json.loads(bytes(part.tolist()))
        for part in torch.split(gather_plain(text, lengths), lengths)
    ]
    wrong = []
    for name in sorted({name for one in found for name in one}):
        theirs = [json.dumps(one[name]) if name in one else "nothing" for one in found]
        differ = [k for k in range(len(found)) if theirs[k] != theirs[0]]
        if differ:
            others = ", ".join(f"{theirs[k]} in process {k}" for k in differ[:5]) + (
                ", ..." if len(differ) > 5 else ""
            )
            wrong.append(f"{name} is {theirs[0]} in process 0, but {others}")
    if wrong:
        raise ValueError(
            f"the processes disagree on {len(wrong)} of {len(values)} values: {'; '.join(wrong)}; "
            "start all with the same command on the same data"
        )


# Collectives


def gather(x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """(n, ...) -> (N, ...): the rows of all processes in their order, n being any number.

    The gradient is the sum of the processes', cut to the own rows.

    lengths: every process's n where it is known, which saves asking for it.
    """
    if world() == 1:
        return x
    made: Tensor = _Gather.apply(x, lengths or lengths_of(len(x), x.device))  # type: ignore[no-untyped-call]
    return made


def gather_plain(x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """gather without gradient, of any type."""
    return (
        x.detach() if world() == 1 else _join(x.detach(), lengths or lengths_of(len(x), x.device))
    )


def total(x: Tensor) -> Tensor:
    """Sum over the processes, element by element; so is its gradient."""
    if world() == 1:
        return x
    made: Tensor = _Total.apply(x)  # type: ignore[no-untyped-call]
    return made


def largest(x: Tensor) -> Tensor:
    """The largest over the processes, element by element; without gradient."""
    x = x.detach().clone()
    if world() > 1:
        distributed.all_reduce(x, distributed.ReduceOp.MAX)
    return x


def lengths_of(length: int, device: torch.device) -> list[int]:
    """`length` in every process."""
    found = torch.zeros(world(), dtype=torch.int64, device=device)
    found[rank()] = length
    return [int(one) for one in total(found)]


def _padded(x: Tensor, length: int) -> Tensor:
    return (
        x.contiguous()
        if len(x) == length
        else torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])
    )


def _join(x: Tensor, lengths: list[int]) -> Tensor:
    """Collectives want equal shapes: slices travel padded to the longest."""
    longest = max(lengths)
    found = [x.new_empty(longest, *x.shape[1:]) for _ in lengths]
    distributed.all_gather(found, _padded(x, longest))
    return torch.cat([one[:length] for one, length in zip(found, lengths, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths = lengths
        return _join(x, lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        longest = max(ctx.lengths)
        parts = [_padded(one, longest) for one in torch.split(grad, ctx.lengths)]
        mine = torch.empty_like(parts[0])
        distributed.reduce_scatter(mine, parts)
        return mine[: ctx.lengths[rank()]], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Total.forward(ctx, grad)
