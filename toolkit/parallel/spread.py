"""Losses in many processes: the whole batch for every loss, and classes spread over processes.

One rule holds: **the loss always sees the whole batch.** Each process embeds its slice. `loss_of`
gathers the slices, and every process computes the loss L of the whole batch and calls backward on L
itself. The collectives of toolkit/parallel/distributed.py have adjoints for gradients, which sum
over the W processes:

- The gradient at a process's own embeddings is W dL/dz. DistributedDataParallel averages the
  backbone's gradients, which makes it exact.
- For a loss parameter that every process has whole, the mean of the gradients over the processes is
  exact. For one whose classes are spread, the own gradient divided by W is. `average_gradients`
  does both.

A loss that draws pairs at random may draw others in every process. Then the mean of the processes'
losses is trained.

Sampling of classes (Partial FC, An et al. 2021 and 2022): with rate < 1 every process takes those
of its classes that the batch has, and random others until it has rate times its classes. The loss
is that of the union over the processes. Rows that were not drawn have gradient 0 but are not
frozen: momentum moves them on along their old direction, and weight decay shrinks them.
insightface's partial_fc_v2.py does so too; its older partial_fc.py kept weight and momentum of such
rows as they were.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as processes

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.classes import OwnClasses, spread_classes
from likeness.toolkit.losses.contract import Remembering, Spreadable
from likeness.toolkit.parallel.distributed import gather, largest, lengths_of, rank, total, world
from likeness.toolkit.vmf.rows import full


@dataclass(frozen=True)
class Layout:
    """How a loss was spread over the processes.

    Attributes:
        axes: Name of a parameter or buffer -> the axis of it that counts the classes.
        num_classes: The number of all classes.
        start: The first class of this process.
        stop: The class after its last one.
    """

    axes: Mapping[str, int]
    num_classes: int
    start: int
    stop: int


def class_axes(loss_part: Callable[[int, int], nn.Module], dim: int) -> dict[str, int]:
    """Find the class axis of every parameter and buffer of a loss that has one.

    The loss is built twice without memory (on the meta device), with two numbers of classes, and
    the shapes are compared.

    Args:
        loss_part: Builds the loss from (dim, num_classes).
        dim: The size of the embeddings.

    Returns:
        Name in the state_dict -> axis.
    """
    counts = 11, 13
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        few, many = (loss_part(dim, count).state_dict() for count in counts)
    axes: dict[str, int] = {}
    for name, tensor in few.items():
        for axis, sizes in enumerate(zip(tensor.shape, many[name].shape, strict=True)):
            if sizes[0] != sizes[1]:
                assert name not in axes, f"{name} has two axes of classes"
                assert sizes == counts, f"{name} has not one row for each class"
                axes[name] = axis
    return axes


def cut(loss: nn.Module, axes: Mapping[str, int]) -> Layout:
    """Cut a loss that was built with all classes down to this process's classes, in place.

    With one process nothing is cut. Classes are cut as torch.chunk does, so that `as_dtensor`
    describes them. Parameters are new objects, so make the optimiser afterwards; their names and
    loss.num_classes stay. From then on the loss is called through `loss_of`. Every process must
    have built the same values (same seed), so that any number of processes starts equal.

    Args:
        loss: The loss.
        axes: The class axes, from `class_axes`.

    Raises:
        LikenessError: The loss does not support it, or a process would have no class.
    """
    # Every part that keeps something per class must agree. MarginLoss is one although it has no
    # proxies: it indexes a beta per class by y itself.
    owners = {name.rpartition(".")[0] for name in axes}
    parts = [part for path, part in loss.named_modules() if path in owners]
    cannot = [type(part).__name__ for part in parts if not isinstance(part, Spreadable)]
    if cannot or not axes:
        name = (*cannot, type(loss).__name__)[0]
        raise LikenessError(f"{name} has no classes that processes can share; leave it whole")
    classes = int(loss.num_classes)  # type: ignore[arg-type]
    size = -(-classes // world())
    first, last = rank() * size, min((rank() + 1) * size, classes)
    if first >= last:
        raise LikenessError(f"{world()} processes are too many for {classes} classes; start fewer")
    if world() > 1:
        made: dict[int, nn.Parameter] = {}  # a parameter that two parts share remains a single one
        for name, axis in axes.items():
            path, _, own = name.rpartition(".")
            module, whole = loss.get_submodule(path), loss.get_submodule(path).__getattr__(own)
            assert isinstance(whole, Tensor) and whole.shape[axis] == classes, name  # noqa: PT018
            rows = whole.detach().narrow(axis, first, last - first)
            local = rows.clone(memory_format=torch.contiguous_format)
            if isinstance(whole, nn.Parameter):
                local = made.setdefault(id(whole), nn.Parameter(local, whole.requires_grad))
            setattr(module, own, local)
    return Layout(dict(axes), classes, first, last)


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
    """Return the loss of the whole batch, of which this process has a slice.

    The value is the same in every process. Call backward on it as it is, then `average_gradients`.

    Args:
        loss: The loss.
        z: This process's embeddings (n, D), for any n. Where n is 0, z has to require grad all the
            same.
        y: Their classes (n,).
        z_key: The embeddings (n, D) of a second network, for losses that use one.
        layout: What `cut` returned; None for a loss that is whole in every process.
        rate: The share of its classes that every process draws (see the top of the file).
        seed: The draw depends on seed, step and process only.
        step: The number of the training step.
    """
    assert rate == 1 or (layout is not None and 0 < rate < 1)
    z = full(z)
    if world() > 1:
        lengths = lengths_of(len(y), y.device)
        z, y = gather(z, lengths), gather(y, lengths)
        z_key = None if z_key is None else gather(z_key.detach(), lengths)
    if layout is None or (world() == 1 and rate == 1):
        return cast(Tensor, loss(z, y, z_key))
    own, rows = torch.arange(layout.start, layout.stop, device=y.device), dict[str, Tensor]()
    if rate < 1:
        # Some parts of a loss read rows of other classes than those of y.
        more = (part.reads(y) for part in loss.modules() if isinstance(part, Remembering))
        read = torch.cat([y, *more])
        drawn = draw(read - layout.start, len(own), rate, seed=(seed, step, rank()))
        axes, named = layout.axes, (*loss.named_parameters(), *loss.named_buffers())
        rows = {name: x.index_select(axes[name], drawn) for name, x in named if name in axes}
        own = own[drawn]
    with spread_classes(OwnClasses(own, total, largest, gather)):
        return cast(Tensor, torch.func.functional_call(loss, rows, (z, y, z_key)))


@torch.no_grad()
def draw(classes: Tensor, size: int, rate: float, *, seed: tuple[int, ...]) -> Tensor:
    """Draw numbers below `size`: all of `classes`, and random others up to a share of `size`.

    Args:
        classes: (n,) numbers; those outside 0..size - 1 belong to other processes and are ignored.
        size: The number of classes to draw from.
        rate: The share that is drawn: rate * size numbers, rounded down, at least one.
        seed: Decides the draw.

    Returns:
        The numbers, ascending.
    """
    number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    generator = torch.Generator(classes.device).manual_seed(number)
    order = torch.rand(size, generator=generator, device=classes.device)
    inside = (classes >= 0) & (classes < size)
    # numbers outside go to one more place behind the last
    order = torch.cat([order, order.new_zeros(1)])
    order = order.index_fill_(0, torch.where(inside, classes, size), 2.0)[:size]
    count = max(int(rate * size), 1)
    if count < len(classes):  # only then a GPU has to be waited for
        count = max(count, int((order == 2.0).sum()))
    return order.topk(count).indices.sort().values


@torch.no_grad()
def average_gradients(loss: nn.Module, layout: Layout | None = None) -> None:
    """Make the gradients of the loss's parameters exact, after backward.

    They become the mean over the processes; those that `layout` calls spread are divided by the
    number of processes.
    """
    if world() == 1:
        return
    for name, parameter in loss.named_parameters():
        if parameter.grad is not None:  # all processes run the same graph, so it is so in all
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
    """Scale gradients so that their joint norm is at most max_norm; return the norm before.

    Call it after `average_gradients`. It is like nn.utils.clip_grad_norm_, but the norm counts the
    spread parameters of all processes, so that all scale by the same number and stay equal.

    Args:
        parameters: The parameters whose gradients are scaled.
        max_norm: The largest norm.
        loss: The loss, where it is spread.
        layout: What `cut` returned.
    """
    shares: set[int] = set()
    if loss is not None and layout is not None:
        shares = {id(x) for name, x in loss.named_parameters() if name in layout.axes}
    gradients: dict[bool, list[Tensor]] = {False: [], True: []}  # by whether they are spread
    trained = []
    for parameter in parameters:
        if parameter.grad is not None:
            trained.append(parameter)
            gradients[id(parameter) in shares].append(parameter.grad)
    own, parts = (nn.utils.get_total_norm(gradients[apart]) for apart in (False, True))
    norm = torch.hypot(own, total(parts.to(own.device).square()).sqrt())
    nn.utils.clip_grads_with_norm_(trained, max_norm, norm)
    return norm


def as_dtensor(local: Tensor, axis: int, num_classes: int) -> Tensor:
    """Describe this process's part of a tensor as a DTensor of all classes that shares its memory.

    torch.distributed.checkpoint saves it, and loads it into any number of processes.

    Args:
        local: A parameter, a buffer, or the optimiser's state of one (momentum).
        axis: Its class axis.
        num_classes: The number of all classes.

    Returns:
        The DTensor; with one process `local` itself, without gradient.
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
