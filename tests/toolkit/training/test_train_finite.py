"""A run whose numbers are no longer finite stops, names the step and its items, and leaves the
checkpoint before as it was.
"""

import gc
import math
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from likeness.eval.formats.runs import BEST, LAST
from likeness.eval.items.items import Item
from likeness.losses import VMF, ArcFace, MultiSimilarity, RankedList
from likeness.models.run import load_model
from likeness.recipe import Compute, Optim, Recipe, Schedule, fit, step
from likeness.toolkit.data.batch import Batch, Draw, Views, collate_views
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.training import run
from likeness.toolkit.training._finite import all_finite, not_finite
from likeness.toolkit.training._keeper import Keeper
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.plan import plan
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.start import start
from likeness.toolkit.training.train import train
from tests.toolkit.training.tiny_runs import before, recipe, short, state_of, step_of, watching


def saved(out: Path) -> dict[str, Tensor]:
    """All numbers that are saved of a run."""
    state = {key: value for key, value in state_of(out).items() if not key.startswith("random.")}
    return state | load_file(out / LAST)


def check_stopped(out: Path, at: int, saved_at: int) -> None:
    """The run was stopped after step `at`, whose items are named, and what was saved after
    `saved_at` steps is there and finite.
    """
    assert load_model(out).step == step_of(out) == saved_at
    assert not not_finite(saved(out))
    last = read_log(out)[-1]
    assert last["step"] == at
    assert len(last["items"]) == 8


class Hiding(nn.Module):
    """A loss of somebody else: whatever its embeddings are, its value and gradients are finite."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.scale * z.detach().nan_to_num(0.0, 0.0, 0.0).square().mean()
        return hidden

    def param_groups(self, optim: Any) -> list[dict[str, Any]]:
        return [{"params": [self.scale]}]


Hiding.__module__ = MultiSimilarity.__module__  # a recipe's parts are of the toolkit


@pytest.mark.parametrize(
    "loss", [MultiSimilarity, RankedList, ArcFace, VMF, Hiding], ids=lambda loss: loss.__name__
)
def test_embeddings_that_are_not_finite_stop_a_run(loss, voices, tmp_path):
    """Of one recording: batch norm makes the whole batch NaN, and a loss of mined pairs 0."""
    spoilt = before(4, lambda _, batch: batch.inputs[3].mul_(1e25))
    with pytest.raises(Diverged, match="embeddings are NaN or infinite"):
        fit(short(loss=partial(loss)), data=voices, out=tmp_path / "run", step=spoilt)
    check_stopped(tmp_path / "run", at=4, saved_at=4)


@pytest.mark.parametrize(
    ("grad_clip", "what"), [(0.0, "gradients are"), (1.0, "gradients are"), (0.0, "the loss is")]
)
def test_what_is_not_finite_stops_a_run_before_its_weights(grad_clip, what, voices, tmp_path):
    made: list[Run] = []

    def steep(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        made.append(run)
        loss = step(run, batch, recipe)
        if run.step != 3:
            return loss
        weight = next(run.embedder.backbone.parameters())
        added = (weight - weight.detach()).sum().sqrt()  # 0, with an infinite gradient
        return loss + added if what == "gradients are" else loss * math.nan

    changed = short(optim=Optim(lr=0.05, grad_clip=grad_clip))
    with pytest.raises(Diverged, match=rf"step 3: {what} NaN or infinite at lr 0\.025.*spk\d+"):
        fit(changed, data=voices, out=tmp_path / "run", step=steep)
    check_stopped(tmp_path / "run", at=3, saved_at=2)
    assert bool(all_finite(made[0].embedder.state_dict().values()))


def spoil_optimizer(run: Run) -> None:
    """Of a parameter that has no gradient in the last step, so that the next does not show it."""
    parameter = run.optimizer.param_groups[0]["params"][0]
    parameter.requires_grad_(False)
    parameter.grad = None
    run.optimizer.state[parameter]["momentum_buffer"][:] = math.nan


# Training goes on with the statistics of each batch, and does not see the running ones.
SPOILT: dict[str, tuple[str, Callable[[Run], object]]] = {
    "running_mean": ("arcface", lambda run: run.embedder.backbone.bn1.running_mean.fill_(math.nan)),
    "encoder.*running_var": (
        "simple",
        lambda run: run.encoder.backbone.bn1.running_var.fill_(math.inf),
    ),
    "optimizer": ("arcface", spoil_optimizer),
}


@pytest.mark.parametrize("named", SPOILT)
def test_a_state_that_is_not_finite_replaces_no_checkpoint(named, voices, tmp_path):
    """Losses, embeddings and gradients are finite all the while.

    Neither the last nor the best model is written over.
    """
    variant, spoil = SPOILT[named]
    schedule = Schedule(steps=6, save_every=2, eval_every=2, watch="eer")
    spoilt = before(3, lambda run, _: spoil(run))
    with pytest.raises(Diverged, match=named):
        fit(recipe(variant, schedule=schedule), data=voices, out=tmp_path / "run", step=spoilt)
    check_stopped(tmp_path / "run", at=3, saved_at=2)
    assert not not_finite(load_file(tmp_path / "run" / BEST))


@pytest.mark.parametrize("always", [False, True])
def test_steps_that_overflow_in_float16_are_left_out(always, voices, tmp_path):
    """The loss is finite, and its gradient is not after GradScaler has multiplied it by 2^16. A run
    whose gradients never fit stops.
    """

    def overflowing(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        if run.step == 1 and always:
            run.scaler.update(2.0**-12)  # as if it had halved the scale in 28 steps
        return step(run, batch, recipe) * (1e36 if always or run.step in (2, 3) else 1.0)

    out, made = tmp_path / "run", short(compute=Compute(precision="float16"))
    if always:
        with pytest.raises(Diverged, match="float16"):
            fit(made, data=voices, out=out, step=overflowing)
        return
    fit(made, data=voices, out=out, step=overflowing)
    newest = run.latest(out)
    assert newest[1]["step"] == 6
    assert newest[1]["scaler"]["scale"] <= 2.0**14  # both were left out
    assert not not_finite(saved(out))


def test_a_run_that_has_ended_holds_no_memory(voices, tmp_path):
    """A search trains many networks in one process; none may wait for the garbage collector."""
    runs = list[weakref.ref[Run]]()
    noting = watching(lambda run, _: runs.append(weakref.ref(run)))
    gc.disable()
    try:
        fit(short(steps=1), data=voices, out=tmp_path / "run", step=noting)
        assert [run() for run in runs] == [None]
    finally:
        gc.enable()


def not_a_number(item: Item) -> Any:
    levels = {"b": [1.0, math.nan, 3.0], "c": [1.0, 2.0, math.inf]}
    return np.array(levels.get(item.id, [1.0, 2.0, 3.0]), np.float32)


def test_views_that_are_not_finite_are_bad_items():
    items = [Item(id, Path(id), "x") for id in "abcd"]
    views = Views(items, np.zeros(4, np.int64), not_a_number, None, seed=0)
    draws = [Draw(place, 0, place) for place in range(4)]
    batch, bad = collate_views([views[draw] for draw in draws])
    assert batch.places.tolist() == [0, 3]
    assert [item.id for item in bad] == ["b", "c"]

    def spoils(value: Any, rng: np.random.Generator, batch_rng: np.random.Generator) -> Any:
        return value * np.float32(2e38)

    augmented = Views(items[:1], np.zeros(1, np.int64), not_a_number, spoils, seed=0)
    with np.errstate(over="ignore"):
        result = augmented[draws[0]]
    assert result[0] == "a"
    assert "NaN" in str(result[1])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_one_number_among_many_is_found(number):
    made = {"a": torch.randn(1000, 7), "b": torch.randn(3, 5, dtype=torch.float64)}
    made |= {"count": torch.tensor(2**62), "none": torch.zeros(0)}
    made["half"] = torch.full((2**12,), 60_000.0, dtype=torch.float16)
    assert bool(all_finite(made.values()))
    assert not not_finite(made)
    for name in ("a", "b", "half"):
        spoilt = {**made, name: made[name].clone()}
        spoilt[name].view(-1)[-1] = number
        assert not bool(all_finite(spoilt.values()))
        assert not_finite(spoilt) == [name]
    assert bool(all_finite([]))
    both = torch.tensor([math.inf, -math.inf])
    assert not_finite({"both": both}) == ["both"]


def test_where_gradients_wait_they_stop_the_next_step(voices, tmp_path):
    """As on a GPU, where nothing clips them: the items of both steps are named."""
    out = tmp_path / "run"
    planned = plan(short(), voices)
    keeper = Keeper(start(planned, out), planned, out)

    def steep(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        keeper.nan_check.every = 5
        weight = next(run.embedder.backbone.parameters())
        added = (weight - weight.detach()).sum().sqrt()  # 0, with an infinite gradient
        return step(run, batch, recipe) + (added if run.step == 2 else 0)

    with pytest.raises(Diverged, match="step 3: embeddings are NaN"):
        train(keeper.run, planned, keeper, steep)
    last, draws = read_log(out)[-1], planned.draws(start=2, stop=4)
    named = [planned.items[draw.item].id for each in reversed(list(draws)) for draw in each]
    assert last["items"] == named
