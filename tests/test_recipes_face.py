"""The face recipes of the field: every variant trains two steps on drawn faces in its data set's
layout, and holds the settings of its paper or config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from likeness.eval.items.items import Item
from likeness.eval.types import Trials
from likeness.modalities import synthetic_faces
from likeness.toolkit.data.images import encode
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.train import fit
from tests.modalities.face import bin_file
from tests.scripts import loaded
from tests.tiny import shrunk

NAMES = ("vggface2", "ms1mv2", "webface")
SMALL = ("schedule.warmup_steps=1", "schedule.save_every=2", "compute.accumulate=1")
SMALL += ("backbone.dim=8", "backbone.image_size=32", "read.size=32,32", "read.fit=resize")
FOLDER = Path(__file__).parents[1] / "recipes" / "face"
MODULES = {name: SimpleNamespace(**recipes.read(str(FOLDER / f"{name}.py"))) for name in NAMES}
# those differ in views alone
VARIANTS = [
    (name, recipe)
    for name in NAMES
    for recipe in MODULES[name].RECIPES
    if "simple" in recipe or not recipe.endswith("_released")
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Six subjects x 4 images in VGGFace2's folders and in InsightFace's RecordIO; beside them
    lfw.bin and its like, of two other subjects.
    """
    root = tmp_path_factory.mktemp("faces")
    folders, packed = root / "vggface2", root / "faces_emore"
    train = [
        _draw(folders / f"n{subject:06d}" / f"{shot:04d}_01.jpg", subject, shot)
        for subject in range(6)
        for shot in range(4)
    ]
    loaded(Path(__file__).with_name("recordio_writer.py")).write(train, packed)
    tested = [
        _draw(root / "tested" / f"{subject}_{shot}.jpg", subject, shot)
        for subject in (6, 7)
        for shot in range(2)
    ]
    ids = tuple(item.id for item in tested)
    first, second = (np.array(columns, dtype=np.int32) for columns in ([0, 2, 0, 1], [1, 3, 2, 3]))
    for where in (folders, packed):
        for name in ("lfw", "agedb_30", "calfw", "cplfw", "cfp_fp"):
            bin_file.write(
                tested,
                Trials(ids, ids, first, second, np.array([True, True, False, False])),
                where / f"{name}.bin",
            )
    return {"vggface2": folders, "ms1mv2": packed, "webface": packed}


def _draw(path: Path, subject: int, shot: int) -> Item:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(synthetic_faces.face(subject, shot).image, ".jpg"))
    return Item(f"{path.parent.name}/{path.name}", path, path.parent.name)


def to_train() -> Iterator[Any]:
    """In every run of the tests the first variant of each file."""
    for name in NAMES:
        first, *others = (variant for file, variant in VARIANTS if file == name)
        yield pytest.param(name, first)
        yield from (pytest.param(name, other, marks=pytest.mark.slow) for other in others)


@pytest.mark.parametrize(("name", "variant"), to_train())
def test_trains(name: str, variant: str, data: dict[str, Path], tmp_path: Path) -> None:
    recipe: Recipe = MODULES[name].RECIPES[variant]
    small = shrunk(recipe, *SMALL)
    if small.init:  # SCF starts from an ArcFace run
        first = shrunk(MODULES[name].RECIPES[small.init.removeprefix("runs/")], *SMALL)
        fit(
            replace(first, measure=None, schedule=replace(first.schedule, watch="")),
            data=data[name],
            out=tmp_path / "first",
        )
        small = replace(small, init=str(tmp_path / "first"))
    fit(small, data=data[name], out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses
    assert np.isfinite(losses).all()
    if recipe.measure is not None:
        assert 0 <= lines[-1]["eer"] <= 1
        assert all(np.isfinite(lines[-1][metric]) for metric in recipe.metrics)


@pytest.mark.parametrize(
    ("variant", "steps", "warmup_steps", "rates"),
    # by hand, from the images and batches of the configs:
    # insightface/recognition/arcface_torch/configs/*.py
    [
        ("webface4m_r100", 82_700, 0, {0: 0.1, 41_350: 0.025}),
        ("webface42m_r100_pfc02", 829_580, 0, {414_790: 0.025}),
        ("webface42m_r100_pfc02_4k", 207_380, 10_369, {5_183: 0.15, 10_369: 0.3, 207_380: 0.0}),
        ("webface42m_r50_pfc02_4k", 207_380, 20_738, {10_368: 0.2, 20_738: 0.4, 114_059: 0.1}),
        ("webface42m_vit_b_pfc03", 69_120, 6_912, {6_912: 0.001}),
        ("glint360k_r100", 333_820, 0, {166_910: 0.025}),
    ],
)
def test_schedules_are_insightfaces(
    variant: str, steps: int, warmup_steps: int, rates: dict[int, float]
) -> None:
    recipe: Recipe = MODULES["webface"].RECIPES[variant]
    schedule = recipe.schedule
    assert (schedule.steps, schedule.warmup_steps) == (steps, warmup_steps)
    for step, rate in rates.items():
        warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
        assert recipe.optim.lr * warm * schedule.decay(step / steps) == pytest.approx(
            rate, rel=2e-4
        )


@pytest.mark.parametrize(
    ("name", "variant", "drops"),
    [
        ("vggface2", "arcface", (40_000, 60_000)),
        ("ms1mv2", "c_simple", (80_000, 140_000, 200_000)),
        ("ms1mv2", "b_simple", (100_000, 180_000, 220_000)),
    ],
)
def test_rates_drop_where_opensphere_drops_them(
    name: str, variant: str, drops: tuple[int, ...]
) -> None:
    schedule = MODULES[name].RECIPES[variant].schedule
    for number, step in enumerate(drops):
        assert schedule.decay((step - 1) / schedule.steps) == pytest.approx(0.1**number)
        assert schedule.decay(step / schedule.steps) == pytest.approx(0.1 ** (number + 1))
