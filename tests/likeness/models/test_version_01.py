"""What version 0.1 wrote is read: its modules had other names then.

tests/golden/likeness-0.1 is a run of recipes/image/digits.py that version 0.1 was stopped in.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from likeness.models.run import load_model
from toolkit.backbones.vit import ViT
from toolkit.data.pixels import PixelScale
from toolkit.models.parts import RENAMED, renamed
from toolkit.training import recipe as recipes
from toolkit.training.train import fit

ROOT = Path(__file__).parents[3]
RUN = ROOT / "tests" / "golden" / "likeness-0.1"
EMBEDDING = [0.02126043476164341, -0.07527130842208862]  # by version 0.1
SETTINGS = [
    "schedule.steps=4",
    "schedule.warmup_steps=0",
    "schedule.save_every=2",
    "schedule.eval_every=0",
]
SETTINGS += ["sampling.batch_size=10", "sampling.items_per_class=2", "workers=0"]


def test_a_model_embeds_as_it_did() -> None:
    model = load_model(RUN)
    assert isinstance(model.embedder.frontend, PixelScale)
    with torch.no_grad():
        row = model.embedder(torch.linspace(0, 255, 256).reshape(1, 1, 16, 16))[0]
    torch.testing.assert_close(row, torch.tensor(EMBEDDING), rtol=1e-4, atol=1e-5)
    assert (model.step, model.modality, model.similarity) == (2, "image", "cosine")


def test_a_run_goes_on(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    recipe, _ = recipes.load(str(ROOT / "recipes" / "image" / "digits.py") + ":standard")
    backbone = partial(ViT, dim=2, width=4, depth=1, heads=1, patch=8, image_size=16)
    recipe = replace(recipes.override(recipe, SETTINGS), backbone=backbone)
    fit(recipe, data=tmp_path, out=tmp_path / "run", resume=True)
    assert load_model(tmp_path / "run").step == 4
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    assert steps[:4] == [1, 2, 3, 4]
    other = recipes.override(recipe, ["optim.lr=0.5"])
    with pytest.raises(ValueError, match="optim"):
        fit(other, data=tmp_path, out=tmp_path / "run", resume=True)


def test_every_new_name_exists() -> None:
    for module in RENAMED.values():
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    assert renamed(
        {"call": "toolkit.pixels.PixelScale", "args": {"x": [{"call": "eval.eer", "args": {}}]}}
    ) == {
        "call": "toolkit.data.pixels.PixelScale",
        "args": {"x": [{"call": "eval.eer", "args": {}}]},
    }
