"""What must not cost a run, or pass in silence: data that is missing or damaged, settings that
train nothing, other data under the same names.
"""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from likeness.modalities.image import small_sets
from likeness.models.run import load_model
from likeness.toolkit.backbones.small import SmallCNN
from likeness.toolkit.console import Interrupted
from likeness.toolkit.data.pixels import PixelScale
from likeness.toolkit.losses.softmax import Cosine, Softmax
from likeness.toolkit.losses.vmf import VMF
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training import run
from likeness.toolkit.training.build import build
from likeness.toolkit.training.log import Log, read_log
from likeness.toolkit.training.measure import metrics_of
from likeness.toolkit.training.recipe import (
    Classification,
    Optim,
    Recipe,
    Retrieval,
    Schedule,
)
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.train import fit, step

TINY = Path(__file__).parents[2] / "tiny.py"
CPU = torch.device("cpu")


def recipe(**changes: Any) -> Recipe:
    return replace(recipes.load(f"{TINY}:arcface")[0], **changes)


def test_missing_files_of_the_test_are_said_before_the_first_step(tmp_path: Path) -> None:
    part = partial(small_sets.digits_items, split="train", validation_share=0.2)
    lacking = Recipe(
        modality="image",
        frontend=partial(PixelScale),
        backbone=partial(SmallCNN, dim=3, image_size=8),
        loss=partial(Softmax),
        items=part,
        read=small_sets.read,
        measure=Classification(items=partial(small_sets.digits_items, split="test")),
    )
    for name in ("items", "calibrate_on"):
        absent = {name: partial(small_sets.mnist_items, split="test")}
        test = replace(lacking.measure, **absent)  # type: ignore[type-var]
        with pytest.raises(ValueError, match="t10k-images"):
            fit(replace(lacking, measure=test), data=tmp_path, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    unknown = partial(small_sets.digits_items, split="train", protocol="open")
    for test, says in (
        (Retrieval(items=part), "is both trained and tested on"),
        (Retrieval(items=part, similarity="cosin", disjoint=False), "unknown similarity 'cosin'"),
        (
            Classification(items=partial(small_sets.digits_items, split="test")),
            "is none that the model was trained on",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            fit(
                replace(
                    lacking,
                    measure=test,
                    items=unknown if isinstance(test, Classification) else part,
                ),
                data=tmp_path,
                out=tmp_path / "run",
            )
        assert not (tmp_path / "run").exists()


def test_a_network_that_diverged_overwrites_no_checkpoint(voices: Path, tmp_path: Path) -> None:
    def explodes(run: Run, batch: Any, recipe: Recipe) -> Tensor:
        loss = step(run, batch, recipe)
        return loss * 1e30 if run.step == 4 else loss

    short = recipe(schedule=Schedule(steps=5, save_every=2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit(short, data=voices, out=tmp_path / "run", step=explodes)
    newest = run.latest(tmp_path / "run")
    assert newest is not None
    assert newest[1]["step"] == 4
    assert load_model(tmp_path / "run").step == 4


def test_ctrl_c_during_the_last_evaluation_is_heard(
    voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return metrics_of(*arguments)

    monkeypatch.setattr("likeness.toolkit.training.measure.metrics_of", interrupted)
    with pytest.raises(Interrupted, match=r"stopped after the last step; .* is whole"):
        fit(recipe(schedule=Schedule(steps=2)), data=voices, out=tmp_path / "run")
    assert load_model(tmp_path / "run").step == 2


def test_fine_tuning_keeps_the_constants_of_a_loss_that_came_along(
    voices: Path, tmp_path: Path
) -> None:
    vmf = recipe(
        loss=partial(VMF, resultant=0.4), schedule=Schedule(steps=4, eval_every=1, watch="eer")
    )
    fit(vmf, data=voices, out=tmp_path / "first")
    newest = run.latest(tmp_path / "first")
    assert newest is not None
    again = build(replace(vmf, init=str(tmp_path / "first")), 6, CPU)
    fit(
        replace(vmf, init=str(tmp_path / "first"), optim=Optim(lr=0.0), schedule=Schedule(steps=1)),
        data=voices,
        out=tmp_path / "again",
    )
    stored = {
        name: value
        for name, value in again.tensors().items()
        if name in ("loss.alpha", "loss.proxies", "embedder.backbone.conv1.weight")
    }
    other = {name: value.clone() for name, value in stored.items()}
    run.read(newest[0], stored)
    latest = run.latest(tmp_path / "again")
    assert latest is not None
    run.read(latest[0], other)
    # network and loss of one step, the last, although an earlier one may have been the best
    assert all(torch.equal(value, other[name]) for name, value in stored.items())
    assert newest[1]["step"] == 4


def test_the_log_is_json_without_nan(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.write(1, loss=math.nan, lr=0.1, eer=math.inf, items=["a"])
    assert read_log(tmp_path) == [{"step": 1, "lr": 0.1, "items": ["a"]}]


def test_optimiser_state_is_made_where_the_parameter_is() -> None:
    """Fused optimisers refuse a step counter on another device, and a learned scale has no
    dimensions either.
    """
    made = build(recipe(loss=partial(Cosine), optim=Optim(name="adam")), 6, CPU)
    places = [parameter for group in made.optimizer.param_groups for parameter in group["params"]]
    elsewhere = [nn.Parameter(torch.empty_like(place, device="meta")) for place in places]
    made.optimizer.param_groups[:] = [{**made.optimizer.param_groups[0], "params": elsewhere}]
    shapes = {
        f"optimizer.{i}.{key}": torch.Size() if key == "step" else array.shape
        for i, array in enumerate(elsewhere)
        for key in ("step", "exp_avg")
    }
    run._make_optimizer_state(made, shapes)
    state = [made.optimizer.state[value] for value in elsewhere]
    assert {value.device.type for entry in state for value in entry.values()} == {"meta"}
    assert all(
        line["step"].shape == () and line["exp_avg"].shape == parameter.shape
        for line, parameter in zip(state, elsewhere, strict=True)
    )
