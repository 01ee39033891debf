"""What tests/toolkit/parallel/test_distributed.py runs in every process: torchrun ... processes.py
FOLDER LOSS ... compares each LOSS with itself in one process.

Reads the checkpoint FOLDER/one, writes FOLDER/many and FOLDER/errors.json: {case: largest relative
error over values, gradients, parameters and buffers in any process, or a message}.
"""

import copy
import faulthandler
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from likeness import losses
from likeness.toolkit.losses.contract import Spreadable
from likeness.toolkit.parallel import distributed, spread
from tests.toolkit.losses.drawn import LOSSES

DIM, CLASSES, BATCH = 5, 7, 11
Part = Callable[[int, int], nn.Module]


FOUND: dict[str, Any] = {made.__name__: made for made in LOSSES}
VARIANTS: dict[str, Part] = {
    "Softmax, bias": partial(losses.Softmax, bias=True),
    "Softmax, generalised": partial(losses.Softmax, product="generalised"),
    "CosFace, generalised": partial(losses.CosFace, product="generalised"),
    "ArcFace, learned scale": partial(losses.ArcFace, learn_scale=True, scale=4.0),
    "SphereFaceR, version 2": partial(losses.SphereFaceR, version=2, grad="exact"),
    "SphereFace2, A": partial(losses.SphereFace2, kind="A"),
    "CenterLoss, loss": partial(losses.CenterLoss, centre_grad="loss"),
    "CenterLoss, centres only": partial(losses.CenterLoss, classify=False),
}


def spreadable() -> dict[str, Part]:
    """Losses whose classes can be spread."""
    return {name: x for name, x in FOUND.items() if isinstance(x, Spreadable)} | VARIANTS


def batch(step: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    z = 3 * torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    return z, torch.randint(classes, (BATCH,), generator=generator)


def build(part: Part, classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(0)
    loss = part(DIM, classes).double()
    for parameter in loss.parameters():
        if not bool(parameter.any()):  # what starts at zero hides errors
            nn.init.normal_(parameter)
    return loss


def mine(step: int) -> slice:
    """This process's rows: slices of unequal length; in step 1 the first process has all rows."""
    rank, world = distributed.rank(), distributed.world()
    others = 0 if step == 1 else BATCH // (world + 1)
    ends = [0, *(BATCH - others * (world - 1 - number) for number in range(world))]
    return slice(ends[rank], ends[rank + 1])


def error(ours: Tensor | None, expected: Tensor | None) -> float:
    """Largest difference, relative where the expected number is above 1.

    A gradient that one of both lacks must be 0.
    """
    if ours is None or expected is None:
        parameter = ours if ours is not None else expected
        return 0.0 if parameter is None or not parameter.numel() else float(parameter.abs().max())
    if ours.shape != expected.shape:
        return float("inf")
    gap = (ours.double() - expected.double()).abs() / expected.double().abs().clamp(min=1.0)
    return float(gap.nan_to_num(torch.inf).max()) if gap.numel() else 0.0


def own(tensor: Tensor | None, axis: int | None, layout: spread.Layout | None) -> Tensor | None:
    if tensor is None or axis is None or layout is None:
        return tensor
    return tensor.narrow(axis, layout.start, layout.stop - layout.start)


def passes(
    single: nn.Module,
    ours: nn.Module,
    batch: tuple[Tensor, Tensor],
    rows: slice,
    *,
    labels: Tensor | None = None,
    layout: spread.Layout | None = None,
    **draw: Any,
) -> float:
    """Compute both losses and their gradients; the error of the value and of the embeddings'
    gradient. `labels` are those of `single`, where it has other classes.
    """
    z, y = batch
    x, x_mine = z.clone().requires_grad_(), z[rows].clone().requires_grad_()
    value = single(x, y if labels is None else labels)
    torch.autograd.backward(value)
    made = spread.loss_of(ours, x_mine, y[rows], layout=layout, **draw)
    torch.autograd.backward(made)
    spread.average_gradients(ours, layout)
    gradient = None if x_mine.grad is None else x_mine.grad / distributed.world()
    return max(error(made.detach(), value.detach()), error(gradient, x.grad[rows]))


def compare(part: Part, *, cut: bool) -> float:
    """Three steps of plain gradient descent on the loss's parameters, in one process and in all;
    the largest error of any number.
    """
    single = build(part)
    ours = copy.deepcopy(single)
    layout = spread.cut(ours, spread.class_axes(part, DIM)) if cut else None
    axes: dict[str, int] = dict(layout.axes) if layout else {}
    errors: list[float] = []
    for step in range(3):
        errors.append(passes(single, ours, batch(step), mine(step), layout=layout))
        with torch.no_grad():
            theirs = dict(single.named_parameters())
            for name, parameter in ours.named_parameters():
                expected = own(theirs[name].grad, axes.get(name), layout)
                errors.append(error(parameter.grad, expected))
            for parameter in (*single.parameters(), *ours.parameters()):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.02)
                    parameter.grad = None
            whole = single.state_dict()
            for name, kept in ours.state_dict().items():
                errors.append(error(kept, own(whole[name], axes.get(name), layout)))
    return max(errors)


def union_of(y: Tensor, past: Tensor, rate: float, step: int) -> Tensor:
    """The classes that all processes draw for a batch, given those that a queue holds."""
    size = -(-CLASSES // distributed.world())
    read, drawn = torch.cat([y, past]), []
    for rank in range(distributed.world()):
        first, last = rank * size, min((rank + 1) * size, CLASSES)
        drawn.append(first + spread.draw(read - first, last - first, rate, seed=(9, step, rank)))
    return torch.cat(drawn)


def sampled(part: Part, rate: float, labels: int = 3) -> float:
    """With rate < 1 the loss is that of the union of the drawn classes, built alone with their
    rows. Batches have `labels` classes; CLASSES: all are drawn.
    """
    single = build(part)
    ours = copy.deepcopy(single)
    axes = spread.class_axes(part, DIM)
    layout = spread.cut(ours, axes)
    errors: list[float] = []
    for step in range(2):
        z, y = batch(step, labels)
        # a queue's classes are then not the batch's
        y = torch.arange(BATCH) % CLASSES if labels == CLASSES else y + labels * step
        queues = [m.past_labels for m in single.modules() if hasattr(m, "past_labels")]
        past = torch.cat([y[:0], *queues])  # type: ignore[list-item]
        union = union_of(y, past, rate, step)
        assert labels == CLASSES or len(union) < CLASSES or len(past), union
        alone = part(DIM, len(union)).double()
        state = {
            name: tensor.index_select(axes[name], union) if name in axes else tensor
            for name, tensor in single.state_dict().items()
        }
        if "past_labels" in state:
            place = torch.searchsorted(union, state["past_labels"])
            state["past_labels"] = torch.where(state["past_labels"] < 0, -1, place)
        alone.load_state_dict(state)
        drawn = {"rate": rate, "seed": 9, "step": step, "layout": layout}
        places = torch.searchsorted(union, y)
        errors.append(passes(alone, ours, (z, y), mine(step), labels=places, **drawn))
        with torch.no_grad():
            theirs = dict(alone.named_parameters())
            for name, parameter in ours.named_parameters():
                expected = theirs[name].grad
                if expected is not None and name in axes:
                    shape = list(expected.shape)
                    shape[axes[name]] = CLASSES
                    expected = expected.new_zeros(shape).index_copy(axes[name], union, expected)
                errors.append(error(parameter.grad, own(expected, axes.get(name), layout)))
                parameter.grad = None
            kept = {name: tensor for name, tensor in alone.state_dict().items() if name not in axes}
            if "past_labels" in kept:
                of_union = union[kept["past_labels"].clamp(min=0)]
                kept["past_labels"] = torch.where(kept["past_labels"] < 0, -1, of_union)
            errors += [error(ours.state_dict()[name], value) for name, value in kept.items()]
            single.load_state_dict({**single.state_dict(), **kept})
    return max(errors)


def adjoint() -> float:
    """<gather x, u> = <x, gather' u> and the same for total, each process with its own x and u; and
    a slice without rows.
    """

    def drawn(num: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num, 2, dtype=torch.float64, generator=generator)

    rank, world, worst = distributed.rank(), distributed.world(), 0.0
    for lengths in ([3 + r for r in range(world)], [0, *[2] * (world - 1)]):
        x = drawn(lengths[rank], rank).requires_grad_()
        every = distributed.gather(x)
        torch.autograd.backward((every * drawn(sum(lengths), 50 + rank)).sum())
        whole = torch.cat([drawn(length, r) for r, length in enumerate(lengths)])
        us = torch.stack([drawn(sum(lengths), 50 + r) for r in range(world)]).sum(dim=0)
        start = sum(lengths[:rank])
        gradient = us[start : start + lengths[rank]]
        worst = max(worst, error(every.detach(), whole), error(x.grad, gradient))
    x = torch.full((3,), rank + 1.0, requires_grad=True)
    torch.autograd.backward((distributed.total(x) * (rank + 1)).sum())
    worst = max(worst, error(x.grad, torch.full((3,), world * (world + 1) / 2)))
    flags = distributed.gather(torch.tensor([rank == 0] * (rank + 1)))
    assert flags.tolist() == [True] + [False] * (world * (world + 1) // 2 - 1)
    assert distributed.any_rank(rank == world - 1)
    assert not distributed.any_rank(False)
    copied = distributed.broadcast(torch.full((2, 2), float(rank)).T)
    return max(worst, error(copied, torch.zeros(2, 2)))


def checkpointed(folder: Path) -> float:
    """Proxies and momentum that one process has saved are loaded by several, each its own part;
    what several save, one process loads (in the test).
    """
    loss = build(losses.Cosine)
    layout = spread.cut(loss, spread.class_axes(losses.Cosine, DIM))
    momentum = torch.zeros_like(loss.proxies)  # type: ignore[arg-type]
    state = loss.state_dict()
    for name, axis in layout.axes.items():
        state[name] = spread.as_dtensor(state[name], axis, CLASSES)
    state["momentum"] = spread.as_dtensor(momentum, 0, CLASSES)
    load(state, checkpoint_id=folder / "one")
    expected = torch.arange(CLASSES * DIM, dtype=torch.float64).view(CLASSES, DIM)
    worst = max(
        error(loss.proxies.detach(), own(expected, 0, layout)),  # type: ignore[operator]
        error(momentum, own(-expected, 0, layout)),
        error(loss.tau.detach(), torch.tensor(0.25)),  # type: ignore[operator]
    )
    momentum.mul_(2)
    save(state, checkpoint_id=folder / "many")
    return worst


def main(folder: Path, names: list[str]) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    device = distributed.start()
    report: dict[str, Any] = {"device": str(device), "world": distributed.world()}
    cases = {"adjoint": adjoint, "checkpointed": partial(checkpointed, folder)}
    parts = spreadable()
    for name in names:  # in the same order in every process
        if name in FOUND:
            cases[f"{name}, whole"] = partial(compare, FOUND[name], cut=False)
        if name in parts:
            cases[f"{name}, spread"] = partial(compare, parts[name], cut=True)
            cases[f"{name}, sampled"] = partial(sampled, parts[name], 0.5)
            cases[f"{name}, all drawn"] = partial(sampled, parts[name], 0.01, CLASSES)
    for name, case in cases.items():
        try:
            report[name] = float(distributed.largest(torch.tensor(case(), dtype=torch.float64)))
        except Exception as raised:
            print(f"process {distributed.rank()}, {name}", file=sys.stderr)
            raise raised
    if distributed.is_main():
        (folder / "errors.json").write_text(json.dumps(report), encoding="utf-8")
    distributed.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
