"""Every recipe of the clone, found by itself: it describes, restores, and trains on synthetic voices for a few steps."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from modalities import synthetic
from toolkit import recipe as recipes
from toolkit.checkpoint import load_model
from toolkit.recipe import Recipe
from toolkit.train import fit

ROOT = Path(__file__).parents[1]


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


FILES = sorted((ROOT / "recipes").rglob("*.py"))
VARIANTS = [(path, name) for path in FILES for name in module(path).RECIPES]
IDS = [f"{path.relative_to(ROOT / 'recipes')}:{name}" for path, name in VARIANTS]

# What makes a variant small enough for a test; its parts stay what they are.
SMALL = {
    "ResNet34": ["backbone.width=4", "backbone.dim=16"],
    "ECAPA": ["backbone.channels=16", "backbone.dim=16", "backbone.attention_channels=8", "backbone.se_channels=8"],
    "OrderStatistics": [],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten synthetic speakers in the layout of AN4 (an4/wav/f..., m...), which is also DATA/SPEAKER/**/*.flac for folders."""
    folder = tmp_path_factory.mktemp("data")
    synthetic.write_voices(folder / "an4" / "wav", num_speakers=10, num_utterances=3, seconds=(0.8, 1.2))
    for number, speaker in enumerate(sorted((folder / "an4" / "wav").iterdir())):
        speaker.rename(speaker.with_name("fm"[number % 2] + speaker.name))
    return folder


@pytest.mark.parametrize(("path", "variant"), VARIANTS, ids=IDS)
def test_describes_and_restores(path: Path, variant: str) -> None:
    recipe, _ = recipes.load(f"{path}:{variant}")
    described = json.loads(json.dumps(recipes.describe(recipe)))
    frontend = recipes.restore(described["frontend"], "frontend", kind="module")()
    backbone = recipes.restore(described["backbone"], "backbone", kind="module")(frontend.dim)
    assert sum(p.numel() for p in backbone.parameters()) == sum(p.numel() for p in recipe.backbone(recipe.frontend().dim).parameters())
    recipes.restore(described["read"], "read", kind="read")


@pytest.mark.parametrize(("path", "variant"), VARIANTS, ids=IDS)
def test_trains_and_embeds(path: Path, variant: str, data: Path, tmp_path: Path) -> None:
    recipe, _ = recipes.load(f"{path}:{variant}")
    steps = ["schedule.steps=3", "schedule.warmup_steps=1", "schedule.eval_every=0", "sampling.batch_size=4", "workers=0", "threads=1"]
    small: Recipe = recipes.override(recipe, [*SMALL[recipes.describe(recipe)["backbone"]["call"].rpartition(".")[2]], *steps])
    where = data / "an4" / "wav" if path.stem in ("folders", "demo") else data
    small = replace(small, memory=replace(small.memory, size=8) if small.memory else None)
    loaded = load_model(fit(small, data=where, out=tmp_path / "run"))
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["eer"] <= 1
    assert np.isfinite(last["min_dcf(.01)"])
    assert loaded.embedder.dim > 1


def test_heads_state_their_command_and_where_numbers_are() -> None:
    for path in FILES:
        head = module(path).__doc__ or ""
        assert "likeness " in head, path
        assert path.stem == "demo" or "docs/results.md" in head, path
