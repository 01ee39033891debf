"""Every recipe of the clone, found by itself, describes and restores; those of voices, embeddings
and few faces train on synthetic data for a few steps.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from likeness.modalities.speaker import voxceleb
from likeness.models.run import load_model
from likeness.toolkit.losses.contract import param_groups
from likeness.toolkit.models.parts import Part, describe, restore
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.train import fit
from tests.tiny import shrunk

ROOT = Path(__file__).parents[1]


load = cache(recipes.load)


@cache
def module(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**recipes.read(str(path)))


FILES = sorted(path for path in (ROOT / "recipes").rglob("*.py") if path.name != "_shared.py")
# Many and large, in tests/test_recipes_face.py and tests/test_recipes_image.py.
FIELD = [ROOT / "recipes" / "face" / f"{name}.py" for name in ("vggface2", "ms1mv2", "webface")]
FIELD += sorted((ROOT / "recipes" / "image").glob("*.py"))
VARIANTS = [(path, name) for path in FILES if path not in FIELD for name in module(path).RECIPES]
IDS = [f"{path.relative_to(ROOT / 'recipes')}:{name}" for path, name in VARIANTS]
# trained in every run of the tests
FIRST = {path: next(name for here, name in VARIANTS if here == path) for path, _ in VARIANTS}


def modality(path: Path) -> str:
    """What a recipe of this file takes: its folder says it, or it takes embeddings of any."""
    return "embedding" if path.parent.name == "recipes" else path.parent.name


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A recipe's file -> the miniature of its data set, which the data set's test file draws
    (CONTRIBUTING.md). Recipes of any folder take the folders of another data set.
    """

    @cache
    def draw(path: Path) -> Path:
        name, below = path.stem, ""
        if name in ("folders", "demo"):
            name, below = {"speaker": ("an4", "an4/wav"), "face": ("orl", "orl")}[modality(path)]
        folder = tmp_path_factory.mktemp(name)
        tests = ROOT / "tests" / "modalities" / modality(path) / f"test_{name}.py"
        runpy.run_path(str(tests))["miniature"](folder)
        return folder / below

    return draw


def small_vox(folder: Path, recipe: Recipe) -> list[str]:
    """What makes a recipe of voxceleb.py run on the miniature."""
    noisy = describe(recipe)["augment"]["args"].get("corrupt")
    noise = (
        [f"augment.corrupt.musan={folder / 'musan'}", f"augment.corrupt.rirs={folder / 'rirs'}"]
        if noisy
        else []
    )
    return ["augment.seconds=0.3,0.4", *noise]


@pytest.fixture(autouse=True)
def _trials_of_the_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """VoxCeleb1-O of the miniature has 4 trials, 2 of them target."""
    monkeypatch.setitem(voxceleb.PROTOCOLS, "O_cleaned", (("veri_test2.txt",), 4, 2))


def shapes(backbone: Part, in_dim: int) -> dict[str, torch.Size]:
    with torch.device("meta"):  # shapes without weights
        return {name: tensor.shape for name, tensor in backbone(in_dim).state_dict().items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_variant_describes_and_restores(path: Path) -> None:
    built = set()
    for variant, recipe in module(path).RECIPES.items():
        recipes.check(recipe)
        assert recipe.modality == modality(path), variant
        described = json.loads(json.dumps(describe(recipe)))
        frontend = restore(described["frontend"], "frontend", kind="module")()
        backbone = restore(described["backbone"], "backbone", kind="module")
        if (key := (frontend.dim, json.dumps(described["backbone"]))) not in built:
            built.add(key)  # equal networks once
            assert shapes(backbone, frontend.dim) == shapes(recipe.backbone, recipe.frontend().dim)
        restore(described["read"], "read", kind="read")
        loss: Any = recipe.loss(8, 12)
        groups = param_groups(loss, recipe.optim)
        learned = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        assert sum(len(group["params"]) for group in groups) == len(learned)
        assert not recipe.schedule.watch or recipe.schedule.watch in recipe.metrics
        if set(recipe.metrics) & {"accuracy", "recall@1", "map@r"}:
            assert recipe.schedule.higher_is_better


@pytest.mark.parametrize(
    ("path", "variant"),
    [
        pytest.param(path, name, marks=[] if name == FIRST[path] else [pytest.mark.slow])
        for path, name in VARIANTS
    ],
    ids=IDS,
)
def test_trains_and_embeds(
    path: Path, variant: str, data_of: Callable[[Path], Path], tmp_path: Path
) -> None:
    recipe, _ = load(f"{path}:{variant}")
    steps = ("schedule.steps=3", "schedule.warmup_steps=1", "sampling.batch_size=4")
    small = shrunk(recipe, *steps)
    if small.tuning.average_last:  # as many checkpoints as three steps leave
        small = recipes.override(small, ["tuning.average_last=2", "schedule.save_every=1"])
    where = data_of(path)
    if path.stem == "voxceleb":
        small = recipes.override(small, small_vox(where, small))
        if small.init:  # a second stage: its first comes before
            small = replace(small, init=str(tmp_path / "first"))
            fit(
                replace(
                    small, init="", items=load(f"{path}:{variant.removesuffix('_lm')}")[0].items
                ),
                data=where,
                out=tmp_path / "first",
            )
    loaded = load_model(fit(small, data=where, out=tmp_path / "run"))
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["eer"] <= 1
    assert all(np.isfinite(last[name]) for name in recipe.metrics)
    assert loaded.embedder.dim > 1
