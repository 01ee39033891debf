"""Losses in many processes: the whole batch for every loss, and classes spread over the processes
(Partial FC).

One rule: **the loss always sees the whole batch.** Each process embeds its slice; loss_of() gathers
the slices, and every process computes the loss L of the whole batch and calls backward on L itself.
The collectives of toolkit/parallel/distributed.py have adjoints for gradients, which sum over the W
processes:
  - the gradient at a process's own embeddings is W dL/dz; DistributedDataParallel, which averages
    the backbone's gradients, makes it exact;
  - for a loss parameter that every process has whole, the mean over the processes is exact, and for
    one that is sharded by class, the own gradient / W: average_gradients() does both.
A loss that draws pairs at random may draw others in every process; then the mean of the processes'
losses is trained.

Sampling of classes (Partial FC, An et al. 2021 and 2022): with rate < 1 every process takes the
batch's classes among its own, and random others up to rate x its classes; the loss is that of their
union. Rows that were not drawn have gradient 0 but are not frozen: momentum moves them on along
their old direction, and weight decay shrinks them. So does insightface's partial_fc_v2.py; its
older partial_fc.py kept weight and momentum of such rows as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as processes

from eval.types import name_first
from toolkit.losses.classes import Shard, is_sharded, sharded
from toolkit.losses.contract import Remembering, Spreadable
from toolkit.parallel.distributed import (
    gather,
    gather_plain,
    largest,
    lengths_of,
    rank,
    total,
    world,
)
from toolkit.vmf.precision import full


@dataclass(frozen=True)
class Layout:
    """How a loss was sharded: the class axis of its parameters and buffers by their names, the
    number of all classes, and this process's: start..stop - 1.
    """

    axes: Mapping[str, int]
    num_classes: int
    start: int
    stop: int


def class_axes(loss_part: Callable[[int, int], nn.Module], dim: int) -> dict[str, int]:
    """The class axis of every parameter and buffer of loss_part(dim, num_classes) that has one, by
    its name in the state_dict.

    Found by building the loss twice without memory (on the meta device), with two numbers of
    classes, and comparing shapes. ValueError for a tensor that grows with the classes otherwise
    than by one row per class.
    """
    counts = 11, 13
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        few, many = (loss_part(dim, count).state_dict() for count in counts)
    axes: dict[str, int] = {}
    for name, one in few.items():
        differ = [
            axis
            for axis, sizes in enumerate(zip(one.shape, many[name].shape, strict=True))
            if sizes[0] != sizes[1]
        ]
        if not differ:
            continue
        if len(differ) > 1 or (one.shape[differ[0]], many[name].shape[differ[0]]) != counts:
            raise ValueError(
                f"{name} is {tuple(one.shape)} for {counts[0]} classes and "
                f"{tuple(many[name].shape)} for {counts[1]}: not one row per class"
            )
        axes[name] = differ[0]
    return axes


def shard(loss: nn.Module, axes: Mapping[str, int]) -> Layout:
    """Cut `loss`, built with all classes, down to this process's classes, in place; `axes` from
    class_axes. With one process nothing is cut.

    Classes are cut as torch.chunk does, so that as_dtensor describes them. Parameters are new
    objects: make the optimiser afterwards. Their names and loss.num_classes stay. From then on the
    loss is called through loss_of(). Every process must have built the same values (same seed), so
    that any number of processes starts equal. ValueError for a loss that does not support it, and
    for more processes than can have a class each.
    """
    # Every part that keeps something per class must agree. MarginLoss is one although it has no
    # proxies: it indexes a beta per class by y itself.
    owners = {name.rpartition(".")[0] for name in axes}
    parts = [part for path, part in loss.named_modules() if path in owners]
    cannot = [type(part).__name__ for part in parts if not isinstance(part, Spreadable)]
    if cannot or not axes:
        what = (
            f"{name_first(cannot)} cannot be sharded by class"
            if cannot
            else f"{type(loss).__name__} has nothing to shard: no parameter has a class axis"
        )
        raise ValueError(f"{what}; leave it whole in every process")
    classes = int(loss.num_classes)  # type: ignore[arg-type]
    size = -(-classes // world())
    first, last = rank() * size, min((rank() + 1) * size, classes)
    if size * (world() - 1) >= classes:
        raise ValueError(
            f"{classes} classes cut into {world()} shards of up to {size} leave a process without "
            "any; start fewer processes"
        )
    if world() > 1:
        cut: dict[int, nn.Parameter] = {}  # a parameter that two parts share stays one
        for name, axis in axes.items():
            path, _, own = name.rpartition(".")
            module, whole = loss.get_submodule(path), loss.get_submodule(path).__getattr__(own)
            assert isinstance(whole, Tensor) and whole.shape[axis] == classes, name  # noqa: PT018
            local = (
                whole.detach()
                .narrow(axis, first, last - first)
                .clone(memory_format=torch.contiguous_format)
            )
            if isinstance(whole, nn.Parameter):
                local = cut.setdefault(
                    id(whole), nn.Parameter(local, requires_grad=whole.requires_grad)
                )
            setattr(module, own, local)
        loss.register_forward_pre_hook(_refuse_alone)
    return Layout(dict(axes), classes, first, last)


def _refuse_alone(loss: nn.Module, _: Any) -> None:
    if not is_sharded():
        raise RuntimeError(
            f"{type(loss).__name__} holds the classes of one process only: call it through "
            "toolkit.parallel.spread.loss_of"
        )


def loss_of(
    loss: nn.Module,
    z: Tensor,
    y: Tensor,
    z_key: Tensor | None = None,
    *,
    layout: Layout | None = None,
    rate: float = 1.0,
    seed: int = 0,
    step: int = 0,
) -> Tensor:
    """The loss of the whole batch, of which z (n, D), y (n,) and z_key (n, D) are this process's
    slice, n being any number; the same value in every process.

    layout: what shard() returned, None for a loss that is whole in every process. rate: the share
    of its classes that every process draws (see the top of the file); the draw depends on seed,
    step and process only. Call backward on the value as it is, then average_gradients(). A process
    whose n is 0 needs a (0, D) z that requires grad all the same. ValueError for a rate outside (0,
    1], or below 1 without a layout.
    """
    if not 0 < rate <= 1 or (layout is None and rate < 1):
        raise ValueError(f"rate={rate} must be in (0, 1], and 1 for a loss that is not sharded")
    lengths = lengths_of(len(y), y.device)
    z, y, z_key = (
        gather(full(z), lengths),
        gather_plain(y, lengths),
        None if z_key is None else gather_plain(z_key, lengths),
    )
    if layout is None or (world() == 1 and rate == 1):
        made: Tensor = loss(z, y, z_key)
        return made
    held = torch.arange(layout.start, layout.stop, device=y.device)
    if rate == 1:
        with sharded(Shard(held, total, largest, gather)):
            whole: Tensor = loss(z, y, z_key)
            return whole
    remembering = (part for part in loss.modules() if isinstance(part, Remembering))
    read = torch.cat([y, *(part.reads(y) for part in remembering)])
    drawn = draw(read - layout.start, len(held), rate, seed=(seed, step, rank()))
    tensors = {
        name: one
        for name, one in [*loss.named_parameters(), *loss.named_buffers()]
        if name in layout.axes
    }
    rows = {name: one.index_select(layout.axes[name], drawn) for name, one in tensors.items()}
    with sharded(Shard(held[drawn], total, largest, gather)):
        part: Tensor = torch.func.functional_call(loss, rows, (z, y, z_key))
        return part


@torch.no_grad()
def draw(wanted: Tensor, size: int, rate: float, *, seed: tuple[int, ...]) -> Tensor:
    """(n,) ascending numbers below `size`: all of `wanted` in 0..size - 1, and random others until
    there are rate * size (rounded down, at least one).
    """
    here = torch.unique(wanted[(wanted >= 0) & (wanted < size)])
    generator = torch.Generator(wanted.device).manual_seed(
        int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    )
    order = torch.rand(size, generator=generator, device=wanted.device)
    order[here] = 2.0
    return order.topk(max(len(here), int(rate * size), 1)).indices.sort().values


@torch.no_grad()
def average_gradients(loss: nn.Module, layout: Layout | None = None) -> None:
    """After backward, make the gradients of the loss's parameters exact: the mean over the
    processes, and 1 / W of those that `layout` says are sharded.
    """
    if world() == 1:
        return
    for name, parameter in loss.named_parameters():
        if parameter.grad is not None:  # the same in every process: all run the same graph
            if layout is None or name not in layout.axes:
                processes.all_reduce(parameter.grad)
            parameter.grad.div_(world())


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    loss: nn.Module | None = None,
    layout: Layout | None = None,
) -> Tensor:
    """Scale the gradients of `parameters` so that their joint norm is max_norm at most; returns the
    norm before. After average_gradients.

    Like nn.utils.clip_grad_norm_, but the norm counts the sharded parameters of all processes, so
    that all scale by the same number and stay equal.
    """
    shares = (
        {id(one) for name, one in loss.named_parameters() if name in layout.axes}
        if loss is not None and layout is not None
        else set()
    )
    given = [one for one in parameters if one.grad is not None]
    norms = [
        nn.utils.get_total_norm(
            [one.grad for one in given if one.grad is not None and (id(one) in shares) is apart]
        )
        for apart in (False, True)
    ]
    norm = torch.hypot(norms[0], total(norms[1].to(norms[0].device).square()).sqrt())
    nn.utils.clip_grads_with_norm_(given, max_norm, norm)
    return norm


def as_dtensor(local: Tensor, axis: int, num_classes: int) -> Tensor:
    """A DTensor of all classes that shares memory with this process's part:
    torch.distributed.checkpoint saves it, and loads it into any number of processes.

    `local` may be a parameter, a buffer, or the optimiser's state of one (momentum). With one
    process `local` itself is returned, without gradient.
    """
    if world() == 1:
        return local.detach()
    from torch.distributed import device_mesh, tensor

    mesh = device_mesh.init_device_mesh(local.device.type, (world(),))
    shape = torch.Size([*local.shape[:axis], num_classes, *local.shape[axis + 1 :]])
    stride = torch.empty(shape, device="meta").stride()
    return tensor.DTensor.from_local(
        local.detach(), mesh, [tensor.Shard(axis)], run_check=False, shape=shape, stride=stride
    )
