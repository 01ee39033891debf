"""Does a GPU give what the CPU gives? The sections of benchmarks/gpu.py that compare values.

Products are in float32 with TF32 off, so that only the order of sums differs, unless a row names
another precision. "relative" is the norm of the difference over the norm of the CPU's value.
Without a GPU the CPU is compared with itself: that shows only that the section runs.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_setting import Setting, Table
from losses import loss_classes
from torch import Tensor, nn

from likeness.toolkit.backbones.iresnet import IResNet
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.pixels import INSIGHTFACE
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.losses.simple import SimPLE
from likeness.toolkit.training.build import build
from likeness.toolkit.training.memory import Memory
from likeness.toolkit.training.recipe import Compute, Optim, Parallel, Recipe
from likeness.toolkit.training.train import step
from likeness.toolkit.vmf.distribution import log_normalizer, mean_resultant
from likeness.toolkit.vmf.precision import full


def relative(value: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of the expected value."""
    expected = expected.detach().double().cpu()
    difference = value.detach().double().cpu() - expected
    return float(difference.norm() / expected.norm().clamp(min=1e-30))


def gradients(module: nn.Module) -> Tensor:
    """Return all gradients of a module as one vector."""
    every = [value.grad.flatten() for value in module.parameters() if value.grad is not None]
    return torch.cat(every) if every else torch.zeros(1)


# ---------------------------------------------------------------- losses


def losses(setting: Setting) -> Table:
    """Compare value and gradients of every loss, and its value for embeddings in bfloat16."""
    table = Table(
        ["loss", "value, relative", "gradient of z", "of parameters", "z in bfloat16", "remark"],
        "Batches of 64 embeddings of 32 classes. A loss that draws random numbers draws others on "
        "a GPU.",
    )
    torch.manual_seed(0)
    dim, num_classes = setting.size(256, 32), 32
    z, y = torch.randn(64, dim), torch.arange(64) % num_classes

    def cells(make: Any) -> list[object]:
        torch.manual_seed(1)
        return _loss_cells(make(dim, num_classes), z, y, setting.device)

    for name, make in loss_classes().items():
        table.measure(name, partial(cells, make), setting)
    return table


def _loss_cells(loss: nn.Module, z: Tensor, y: Tensor, device: torch.device) -> list[object]:
    """Return the cells of a loss, without its name."""

    def taken(loss: nn.Module, z: Tensor, device: torch.device, seed: int) -> list[Tensor]:
        here, given = copy.deepcopy(loss).to(device), z.detach().clone().to(device).requires_grad_()
        torch.manual_seed(seed)
        value = here(full(given), y.to(device))
        value.backward()
        assert given.grad is not None
        return [value, given.grad, gradients(here)]

    expected, again = (taken(loss, z, torch.device("cpu"), seed) for seed in (2, 3))
    draws = not torch.equal(expected[0], again[0])
    cells: list[object] = [
        relative(one, other) for one, other in zip(taken(loss, z, device, 2), expected, strict=True)
    ]
    half = taken(loss, z.bfloat16(), device, 2)[0]
    finite = bool(torch.isfinite(half))
    return [*cells, relative(half, expected[0]) if finite else "not finite", "draws" * draws]


# ---------------------------------------------------------------- parts


def parts(setting: Setting) -> Table:
    """Compare the von Mises-Fisher functions and ways of computing a step, and count waiting."""
    table = Table(["part", "against", "difference", "how"])
    for dim in (3, 128, 512):
        for function in (log_normalizer, mean_resultant):
            work = partial(_vmf, function, dim, setting.device)
            table.measure(f"{function.__name__}, {dim}", work, setting)
    ways = {"a step of IResNet": "", "channels_last": "channels_last", "torch.compile": "compile"}
    for name, way in ways.items():
        if way != "compile" or not setting.small:  # it would compile for a minute
            table.measure(name, partial(_way_of_a_step, way, setting.device), setting)
    changes: dict[str, dict[str, Any]] = {
        "ArcFace": {},
        "ArcFace, Partial FC": {"parallel": Parallel(class_rate=0.5)},
        "SimPLE": {"loss": SimPLE, "memory": Memory(64)},
    }
    for name, changed in changes.items() if setting.on_gpu else ():
        work = partial(_waiting, _recipe(**changed), setting.device)
        table.measure(f"a step with {name}", work, setting)
    return table


def _vmf(function: Any, dim: int, device: torch.device) -> list[object]:
    kappa = torch.logspace(-2, 4, 601, dtype=torch.float64)
    here = function(kappa.float().to(device), dim).cpu().double()
    expected = function(kappa, dim)
    worst = float(((here - expected).abs() / expected.abs().clamp(min=1.0)).max())
    how = "the largest, relative above 1; kappa .01 to 10,000"
    return ["float64 of the CPU", worst, how]


def _recipe(**changes: Any) -> Recipe:
    """A small recipe of faces; items and reading are not used."""
    recipe = Recipe(
        modality="face",
        frontend=INSIGHTFACE,
        backbone=partial(IResNet, depth=18, width=16, image_size=64),
        loss=partial(ArcFace, scale=16.0),
        items=list,
        read=np.load,
        optim=Optim(lr=0.05),
        compute=Compute(precision="float32"),
    )
    return replace(recipe, **changes)


def trained(recipe: Recipe, device: torch.device, steps: int = 4, size: int = 32) -> float:
    """Return the loss after a few steps on one batch."""
    run = build(recipe, 10, device)
    run.embedder.train()
    inputs = torch.rand(size, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    if recipe.compute.channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    batch = Batch(inputs.to(device), (torch.arange(size) % 10).to(device), None)
    for run.step in range(steps):
        run.optimizer.zero_grad(set_to_none=True)
        loss = step(run, batch, recipe)
        loss.backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
    return float(loss.detach())


def _way_of_a_step(way: str, device: torch.device) -> list[object]:
    """The loss after four steps, computed in another way that must not change it."""
    how = "relative, the loss after four steps"
    here = trained(_recipe(), device)
    if not way:
        return ["the CPU", abs(here / trained(_recipe(), torch.device("cpu")) - 1), how]
    compute = replace(_recipe().compute, **{way: True})
    return ["the same without", abs(trained(_recipe(compute=compute), device) / here - 1), how]


def _waiting(recipe: Recipe, device: torch.device) -> list[object]:
    """How often a step waits for the GPU."""
    run = build(recipe, 100, device)
    run.embedder.train()
    labels = torch.arange(32, device=device) // 2
    batch = Batch(torch.rand(32, 3, 64, 64, device=device), labels, None)
    for _ in range(2):
        step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
            run.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchron" in str(warning.message)]
    places = {f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits}
    return ["no waiting", len(waits), ", ".join(sorted(places))]
