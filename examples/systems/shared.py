"""What the training systems of this folder share: the recipe, the command, and a few parts.

Each system is a file of its own with three names. PLAIN is the recipe that it is compared with,
SYSTEM is its own recipe, and `prepare(recipe, data)` gives the recipe with what it has to know of
the data, and the step that `likeness.toolkit.training.train.fit` takes. A system whose loss or
items depend on the recipe has a fourth, `adapted(recipe)`, which suits another recipe to it, or
refuses it.

What a system has to remember between steps is a buffer of its loss, so that checkpoints keep it and
a resumed run goes on with it. All of them run in one process: a step of their own takes the batch
as it is, and does not join the parts that several processes would have.

Each system also trains on the data, the network and the schedule of another recipe, beside the
plain loss on the same. So the systems of the nivMF paper's Table 2 are trained at the paper's size,
where the network starts from ImageNet's weights:

    python examples/systems/divide_and_conquer.py --recipe image/nivmf:cub200.margin
        --set backbone.weights=resnet50.pth loss.every=104 loss.divided=0.95
        --data DATA --out runs/divide
    python examples/systems/mic.py --recipe image/nivmf:cub200.margin
        --set backbone.weights=resnet50.pth loss.every=52 --data DATA --out runs/mic
    python examples/systems/rankmi.py --recipe image/nivmf:cub200.margin
        --set backbone.weights=resnet50.pth --data DATA --out runs/rankmi
    python examples/systems/diva.py --recipe image/nivmf:cub200.margin
        --set backbone.weights=resnet50.pth backbone.dim=512 loss.weight=0.3
        loss.decorrelation=1500 --data DATA --out runs/diva

cars196.margin and sop.margin are the other two data sets (`likeness recipes image/nivmf` says what
DATA holds). image/nivmf's margin has the batches and rates that the code of MIC and DiVA was
written around; 52 of its steps are an epoch of cub200. None of this was run by us, but for a few
steps on drawn images.

The numbers in the files are of 300 steps of a small network that starts from random weights, in one
run each. They say that a system trains, and not what it is worth: the papers start from networks
that are pretrained on ImageNet, and train them for many epochs. Where a file says that a setting
was chosen, it was by a look at these same test characters, so the numbers compare nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from likeness.data import Item
from likeness.losses import MarginLoss
from likeness.recipe import Recipe, fit, one_sentence
from likeness.toolkit.data.batch import View, collate_views
from likeness.toolkit.losses.mining import Triplets
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.measure import metrics_of, run_test
from likeness.toolkit.training.plan import plan
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.train import Step, step
from likeness.training.recipe_files import locate

# Omniglot: the network, views, batches and optimiser with which docs/reference/results.md compares
# losses.
OMNIGLOT = recipes.load(locate("image/omniglot_losses:softmax"))[0]
# The loss that most of the papers build on (Wu et al. 2017).
MARGIN = partial(MarginLoss, mining="distance_weighted")


def main(file: str) -> None:
    """Run the command of a system: train plainly, train the system, print recall@1 of both.

    Args:
        file: The system's file. It is imported by its name, since a checkpoint cannot name parts
            of the program that was started.
    """
    system: Any = importlib.import_module(Path(file).stem)
    summary = str(system.__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--data", type=Path, required=True, help="the folder with omniglot/")
    parser.add_argument("--out", type=Path, required=True, help="gets the runs plain/ and system/")
    parser.add_argument("--recipe", default="", help="whose data, network and schedule are taken")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings")
    parser.add_argument("--steps", type=int, help="300 unless given, or as many as --recipe has")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on with runs that were stopped")
    options = parser.parse_args()
    with one_sentence(Path(file).name):
        assert "WORLD_SIZE" not in os.environ, "start without torchrun: these train in one process"
        plain, recipe = (chosen(system, name, options) for name in ("plain", "system"))
        recipe, own_step = system.prepare(recipe, options.data)
        works = (("plain", plain, step), ("system", recipe, own_step))
        lines = [trained(name, made, taken, options) for name, made, taken in works]
    print("\n".join(lines))


def trained(name: str, recipe: Recipe, step: Step, options: argparse.Namespace) -> str:
    """Train the recipe "plain" or "system" and measure it; return a line that says so."""
    out = options.out / name
    fit(recipe, data=options.data, out=out, resume=options.resume, step=step)
    recall = metrics_of(recipe.metrics, run_test(recipe, out, options.data), only="recall@1")
    return f"{name:7} recall@1 {recall['recall@1']:.4f}  {out}"


def chosen(system: Any, name: str, options: argparse.Namespace) -> Recipe:
    """The recipe that the command trains: PLAIN or SYSTEM of a system, or another with its loss.

    Raises:
        ValueError: The recipe does not exist, does not suit the system, or has no recall@1.
    """
    own: Recipe = getattr(system, name.upper())
    settings = [text for text in options.set if name == "system" or not text.startswith("loss.")]
    if not options.recipe:
        return recipes.override(shortened(own, options.steps or 300, options.seed), settings)
    recipe = recipes.load(locate(options.recipe))[0]
    recipe = replace(recipe, loss=own.loss, memory=own.memory, seed=options.seed)
    # `adapted` may build the network to look at it, for which it needs no weights
    weights = [text for text in settings if text.startswith("backbone.weights=")]
    recipe = recipes.override(recipe, [text for text in settings if text not in weights])
    if hasattr(system, "adapted"):
        recipe = system.adapted(recipe)
    recipe = recipes.override(recipe, weights)
    if "recall@1" not in recipe.metrics:
        raise ValueError(f"--recipe {options.recipe} has no recall@1; choose one of image/nivmf")
    return shortened(recipe, options.steps, options.seed) if options.steps else recipe


def shortened(recipe: Recipe, steps: int, seed: int) -> Recipe:
    """The recipe with so many steps, of which a tenth warm the rate up."""
    schedule = replace(recipe.schedule, steps=steps, warmup_steps=max(1, steps // 10))
    return replace(recipe, seed=seed, schedule=replace(schedule, save_every=max(1, steps // 2)))


def with_items(step: Callable[..., Tensor], recipe: Recipe, data: Path) -> tuple[Recipe, Step]:
    """The `prepare` of a system that groups the items that it trains on.

    Args:
        step: Its step, which takes the plan as `planned`.
        recipe: Its recipe, whose loss takes the number of items as `num_items`.
        data: The data.
    """
    planned = plan(recipe, data)
    recipe = replace(recipe, loss=partial(recipe.loss, num_items=len(planned.items)))
    return recipe, partial(step, planned=planned)


@torch.no_grad()
def embedded(run: Run, items: Sequence[Item], recipe: Recipe) -> Tensor:
    """Embed items (N, D) with the network as it is, in evaluation mode and in their order."""
    run.embedder.eval()
    rows = []
    for start in range(0, len(items), 256):
        part = items[start : start + 256]
        views = [View(np.asarray(recipe.read(item)), -1, row) for row, item in enumerate(part)]
        batch, _ = collate_views(views)
        assert batch is not None
        batch = batch.to(run.device, recipe.compute.is_channels_last(run.device.type))
        rows.append(run.embedder.encode(batch.inputs, batch.lengths).float())
    run.embedder.train()
    return torch.cat(rows)


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what goes into a layer of the network while the block runs."""
    collected: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: collected.append(inputs[0]))
    try:
        yield collected
    finally:
        hook.remove()


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


def reverse_gradient(x: Tensor) -> Tensor:
    """Return x itself, whose gradient is turned round on its way back (Ganin & Lempitsky 2015)."""
    reversed_: Tensor = _Reversal.apply(x)  # type: ignore[no-untyped-call]
    return reversed_


def correlation(a: Tensor, b: Tensor, project: nn.Module) -> Tensor:
    """How much of the embeddings b can be found in the embeddings a of the same items.

    mean over rows and dimensions of (a' * project(b'))^2, where a' and b' are a and b at length 1,
    and so is the projection. Subtract it from a loss: the projection then learns to find more in
    common, and the embeddings, whose gradients are reversed, learn to have less in common.

    Args:
        a: Embeddings (B, D).
        b: Embeddings (B, E).
        project: A network from E to D dimensions.
    """
    a, b = (normalize(reverse_gradient(rows), dim=1) for rows in (a, b))
    return (a * normalize(project(b), dim=1)).square().mean()


def boundary(d: Tensor, triplets: Triplets, beta: Tensor, margin: float) -> Tensor:
    """The margin loss of given triplets: hinges at a boundary, averaged over those above 0.

    Args:
        d: Distances (B, B).
        triplets: Rows of anchors, columns of positives and of negatives.
        beta: The boundary ().
        margin: How far from it positives and negatives are to be.
    """
    a, p, n = triplets
    hinges = torch.cat(((d[a, p] - beta + margin).relu(), (beta - d[a, n] + margin).relu()))
    return hinges.sum() / (hinges > 0).sum().clamp(min=1)


def two_layers(dim: int, hidden: int, out: int) -> nn.Sequential:
    """A network with one hidden layer."""
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))
