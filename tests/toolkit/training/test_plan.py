"""plan and start by themselves: what they list and build, and what they leave on the disk."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.toolkit.data.items import Item
from likeness.toolkit.data.sampling import Sampling
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.keeper import Keeper
from likeness.toolkit.training.memory import Memory
from likeness.toolkit.training.plan import LOWEST, check_settings, plan
from likeness.toolkit.training.recipe import (
    Classification,
    Compute,
    Optim,
    Parallel,
    Recipe,
    Retrieval,
    Schedule,
)
from likeness.toolkit.training.start import start
from likeness.toolkit.training.train import fit, train
from tests.toolkit.training import tiny_runs


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return tiny_runs.recipe(schedule=Schedule(steps=2, save_every=1))


def test_a_plan_lists_what_is_trained_on_and_measured(recipe: Recipe, voices: Path) -> None:
    planned = plan(recipe, voices)
    assert len(planned.items) == 24
    assert len(planned.classes) == 6
    assert [planned.classes[number] for number in planned.labels] == [
        item.label for item in planned.items
    ]
    assert planned.shards is None
    assert len(planned.held_out()) == 8
    assert plan(recipe, voices).fingerprint == planned.fingerprint
    fewer = plan(recipe, voices, items=planned.items[:-1])
    assert fewer.fingerprint != planned.fingerprint
    assert np.array_equal(fewer.labels, planned.labels[:-1])


def listed_too_early(data: Path, **_: object) -> list[Item]:
    raise AssertionError(f"{data} was listed before the settings were checked")


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"loss": partial(ArcFace, margn=0.2)}, "margn"),
        ({"schedule": Schedule(steps=0)}, "steps"),
        ({"schedule": Schedule(watch="accuracy")}, "watch"),
        ({"sampling": Sampling(batch_size=9, items_per_class=2)}, "multiple"),
        ({"sampling": Sampling(batch_size=1)}, "batch_size"),
        ({"compute": replace(Compute(), precision="float8")}, "precision"),  # type: ignore[arg-type]
        ({"optim": replace(Optim(), name="lamb")}, "name"),  # type: ignore[arg-type]
        ({"memory": Memory(size=4)}, "memory"),
        ({"compute": Compute(accumulate=5)}, "accumulate=5 needs 10"),
        ({"similarity": "cosin"}, "similarity"),
        ({"measure": Retrieval(listed_too_early, similarity="cosin")}, "similarity"),
        (
            {
                "measure": Classification(listed_too_early),
                "parallel": Parallel(spread_classes=True),
            },
            "spread_classes",
        ),
    ],
)
def test_a_wrong_setting_is_refused_before_any_item_is_listed(
    recipe: Recipe, tmp_path: Path, changes: dict[str, Any], keyword: str
) -> None:
    wrong = replace(recipe, items=listed_too_early, **changes)
    with pytest.raises(ValueError, match=keyword):
        fit(wrong, data=tmp_path / "data", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "setting",
    [f"{name}={lowest - 1}" for name, lowest in LOWEST.items()]
    + ["optim.lr=nan", "parallel.class_rate=0", "parallel.class_rate=1.5"]
    + ["tuning.layer_decay=0", "tuning.rates=backbone:-1"],
)
def test_a_number_outside_its_range_is_refused(recipe: Recipe, setting: str) -> None:
    with pytest.raises(ValueError, match=setting.partition("=")[0].replace(".", r"\.")):
        check_settings(recipes.override(recipe, [setting]))


def test_a_run_is_built_or_restored(recipe: Recipe, voices: Path, tmp_path: Path) -> None:
    """The parts of fit, put together by hand, train as fit does."""
    planned = plan(recipe, voices)
    run = start(planned, tmp_path / "ours")
    assert run.step == 0
    keeper = Keeper(run, planned, tmp_path / "ours")
    train(run, planned, keeper)
    assert run.step == 2
    fit(recipe, data=voices, out=tmp_path / "theirs")
    restored = start(planned, tmp_path / "theirs", resume=True)
    assert restored.step == 2
    theirs = restored.tensors()
    assert theirs.keys() == run.tensors().keys()
    assert all(torch.equal(theirs[name], value) for name, value in run.tensors().items())
    with pytest.raises(ValueError, match="already holds"):
        start(planned, tmp_path / "ours")
