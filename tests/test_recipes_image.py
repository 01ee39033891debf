"""The image recipes, found by themselves: every loss trains and is measured on drawn images in its
data set's own layout.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from likeness.modalities import synthetic_glyphs
from likeness.modalities.image import small_sets
from likeness.toolkit.backbones.image_resnet import ImageResNet
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.measure import metrics_of, run_test, settings_of
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.train import fit
from tests.modalities.image import test_retrieval_sets, test_small_sets
from tests.modalities.image.drawn import EDGE
from tests.tiny import small_settings

FOLDER = Path(__file__).parents[1] / "recipes" / "image"
EDGES = {"short_edge": EDGE + 4, "size": f"{EDGE + 4},{EDGE + 4}", "crop": EDGE}
MODULES = {
    path.stem: SimpleNamespace(**recipes.read(str(path)))
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem != "_shared"
}


def data_set_of(name: str, variant: str) -> str:
    """The data set of a variant, where a file's variants are called DATA_SET.METHOD."""
    is_dotted = all("." in variant for variant in MODULES[name].RECIPES)
    return variant.partition(".")[0] if is_dotted else ""


def to_train() -> list[Any]:
    """One variant of each data set of each file (True); slow, of every way of measuring each loss
    once.

    The others are the same parts with other numbers.
    """
    chosen, seen = [], set()
    for name, module in MODULES.items():
        # the variant vmf comes first
        variants = sorted(module.RECIPES, key=lambda name: name.rpartition(".")[2] != "vmf")
        for variant in variants:
            recipe, data_set = module.RECIPES[variant], (name, data_set_of(name, variant))
            kind = (type(recipe.measure), describe(recipe)["loss"]["call"])
            is_first = data_set not in seen
            if is_first or kind not in seen:
                marks = [] if is_first else [pytest.mark.slow]
                chosen.append(pytest.param(name, variant, is_first, marks=marks))
            seen |= {kind, data_set}
    return chosen


def small(recipe: Recipe, own_network: bool) -> Recipe:
    """The recipe with a network and images small enough for a test, on the part of its data set
    that is there; its parts stay what they are, but for a network that cannot be made small.
    """
    if not own_network and describe(recipe)["backbone"]["call"].endswith(".BNInception"):
        recipe = replace(recipe, backbone=ImageResNet)
    if recipe.tuning.freeze_until:  # of two steps the first
        recipe = replace(recipe, tuning=replace(recipe.tuning, freeze_until=1))
    return recipes.override(recipe, shrinking(recipe))


def shrinking(recipe: Recipe) -> list[str]:
    """FIELD=VALUE by which a recipe is small, and takes the part of its data set that is there."""
    settings = [f"sampling.items_per_class={min(2, recipe.sampling.items_per_class)}"]
    has_one_size = "image_size" in describe(recipe)["backbone"]["args"]  # which is small already
    for field, text in recipes.fields_of(recipe).items():
        group, _, key = field.rpartition(".")
        if key == "whole":
            settings.append(f"{field}=false")
        elif field == "backbone.weights":
            settings.append(f"{field}=")
        elif field == "augment.size" and not has_one_size:
            settings.append(f"{field}={EDGE}")
        elif group in ("read", "train_read", "frontend") and key in EDGES and not has_one_size:
            settings += [f"{field}={EDGES[key]}"] if text not in ("none", "0") else []
    return small_settings(recipe, "schedule.eval_every=2", "schedule.save_every=2", *settings)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data set in miniature, in the layout of its distribution."""
    root = tmp_path_factory.mktemp("images")
    test_small_sets.miniature(root)
    test_retrieval_sets.miniature(root)
    synthetic_glyphs.write_glyphs(
        root / "folders", num_alphabets=4, num_characters=4, num_drawers=4, size=EDGE
    )
    small_sets.write_digits(root / "demo")
    return root


@pytest.mark.parametrize(("name", "variant", "own_network"), to_train())
def test_trains_and_is_measured(
    name: str, variant: str, own_network: bool, data: Path, tmp_path: Path
) -> None:
    recipe = small(MODULES[name].RECIPES[variant], own_network)
    where = data / name if name in ("folders", "demo") else data
    model = fit(recipe, data=where, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    if len(settings_of(recipe.measure)) == 2 and recipe.schedule.watch:
        assert 0 <= lines[-1][recipe.schedule.watch] <= 1
        assert model.name == "best.safetensors"
    if recipe.measures_items:
        measured = run_test(recipe, tmp_path / "run", where)
        values = metrics_of(recipe.metrics, measured)
        right = measured.columns.get("correct", np.array([0.0, 1.0]))
        assert list(values) == list(recipe.metrics)
        for metric, value in values.items():  # the AUROC of right and wrong predictions needs both
            assert np.isfinite(value) or (metric == "auroc" and not 0 < right.sum() < right.size), (
                metric
            )
