"""What a run is measured on is read before its first step; what fails later leaves the
last checkpoint.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from likeness.modalities import folders
from likeness.modalities.image import images, small_sets
from likeness.modalities.speaker import audio
from likeness.models.run import load_model
from likeness.toolkit.backbones.small import SmallCNN
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.items import Item
from likeness.toolkit.data.pixels import PixelScale
from likeness.toolkit.data.sampling import Sampling
from likeness.toolkit.losses.softmax import Softmax
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.loading import check_held_out
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.recipe import Classification, Compute, Recipe, Schedule
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.train import fit
from tests.toolkit.training.steps import stop_at

TINY = Path(__file__).parents[2] / "tiny.py"


def recipe(**changes: Any) -> Recipe:
    return replace(
        recipes.load(f"{TINY}:arcface")[0],
        **{"schedule": Schedule(steps=4, save_every=100, eval_every=2), **changes},
    )


@pytest.fixture
def data(voices: Path, tmp_path: Path) -> Path:
    shutil.copytree(voices, tmp_path / "data")
    return tmp_path / "data"


def trial_item(data: Path) -> Item:
    return folders.trials(data, split="test", test_share=0.25)[0][0]


def never(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    raise AssertionError("a step was taken")


@pytest.mark.parametrize("workers", [0, 1])
def test_trial_items_are_read_before_the_first_step(
    workers: int, data: Path, tmp_path: Path
) -> None:
    item = trial_item(data)
    item.path.write_bytes(b"no audio")
    with pytest.raises(ValueError, match=rf"'{item.id}' cannot be read"):
        fit(recipe(compute=Compute(workers=workers)), data=data, out=tmp_path / "run", step=never)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["validation", "test"])
def test_validation_and_test_are_read_before_the_first_step(where: str, tmp_path: Path) -> None:
    small_sets.write_digits(tmp_path / "data")
    part = partial(small_sets.digits_items, files=True, validation_share=0.01)
    validation, test = (
        Classification(items=partial(part, split=name)) for name in ("validation", "test")
    )
    made = Recipe(
        modality="image",
        frontend=partial(PixelScale),
        backbone=partial(SmallCNN, dim=3, image_size=8),
        loss=partial(Softmax),
        items=partial(part, split="train"),
        read=images.read,
        sampling=Sampling(batch_size=8),
        schedule=Schedule(steps=1),
        measure=replace(test, validation=validation),
    )
    spoilt = part(tmp_path / "data", split=where)[1]  # type: ignore[arg-type]
    spoilt.path.write_bytes(spoilt.path.read_bytes()[:40])
    with pytest.raises(ValueError, match=rf"'{spoilt.id}' cannot be read"):
        fit(made, data=tmp_path / "data", out=tmp_path / "run", step=never)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_that_fails_keeps_the_last_checkpoint(data: Path, tmp_path: Path) -> None:
    item, out = trial_item(data), tmp_path / "run"
    whole = item.path.read_bytes()
    changed = recipe(schedule=Schedule(steps=4, save_every=1, eval_every=2))
    damages = stop_at(3, lambda: item.path.write_bytes(b"no audio"))
    with pytest.raises(ValueError, match=rf"1 of 8 test items cannot be read \('{item.id}'\)"):
        fit(changed, data=data, out=out, step=damages)
    assert load_model(out).step == 3
    item.path.write_bytes(whole)
    fit(changed, data=data, out=out, resume=True)
    assert [line["step"] for line in read_log(out) if "eer" in line] == [2, 4]
    item.path.write_bytes(b"no audio")
    # nothing is left to do, and nothing is read
    fit(changed, data=data, out=out, resume=True, step=never)


def test_a_list_is_read_once(data: Path) -> None:
    """compare trains many runs that are measured on one list."""
    items = folders.trials(data, split="test", test_share=0.25)[0]
    seen: list[str] = []

    def read(item: Item) -> Any:
        seen.append(item.id)
        return audio.read(item)

    for _ in range(2):
        check_held_out(items, read)
    assert seen == [item.id for item in items]
    check_held_out([], read)


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_read(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fit(recipe(), data=data, out=out)
    trial_item(data).path.write_bytes(b"no audio")
    with pytest.raises(ValueError, match="already holds a run"):
        fit(recipe(), data=data, out=out)
    with pytest.raises(ValueError, match=r"another recipe .*seed"):
        fit(recipe(seed=5), data=data, out=out, resume=True)
