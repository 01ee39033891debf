"""The image recipes, found by themselves: every loss trains and is measured on drawn images in its
data set's own layout.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Sequence
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
from tests.tiny import QUICK

FOLDER = Path(__file__).parents[1] / "recipes" / "image"
SMALL = {
    "ImageResNet": ["backbone.blocks=1,1,1,1", "backbone.width=8", "backbone.dim=8"],
    "BNInception": ["backbone.dim=8"],
    "SFNet": ["backbone.width=8", "backbone.dim=8"],
}
TINY = [*QUICK, "schedule.eval_every=2", "schedule.save_every=2"]
MODULES = {
    path.stem: SimpleNamespace(**recipes.read(str(path)))
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem != "_shared"
}


def parts_of(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Field, dotted where parts are within parts -> its description."""
    result: dict[str, dict[str, Any]] = {}

    def look(value: Any, name: str) -> None:
        if isinstance(value, dict):
            if set(value) == {"call", "args"}:
                result[name] = value
                value = value["args"]
            for key, entry in value.items():
                look(entry, f"{name}.{key}" if name else key)

    look(describe(recipe), "")
    return result


def by_data_set(listed: Sequence[str]) -> list[list[str]]:
    """The variants of each data set, where they are called DATA_SET.METHOD; otherwise all."""
    groups: dict[str, list[str]] = {}
    dotted = all("." in variant for variant in listed)
    for variant in listed:
        groups.setdefault(variant.partition(".")[0] if dotted else "", []).append(variant)
    return list(groups.values())


def to_train() -> list[Any]:
    """One variant of each data set of each file (True); slow, of every way of measuring each loss
    once.

    The others are the same parts with other numbers.
    """
    chosen, seen = [], set()
    for name, module in MODULES.items():
        for variants in by_data_set(list(module.RECIPES)):
            vmf = [variant for variant in variants if variant.rpartition(".")[2] == "vmf"]
            first = [*vmf, *variants][0]
            for variant in dict.fromkeys([first, *variants]):
                recipe = module.RECIPES[variant]
                kind = (type(recipe.measure), parts_of(recipe)["loss"]["call"])
                if variant == first or kind not in seen:
                    marks = [] if variant == first else [pytest.mark.slow]
                    chosen.append(pytest.param(name, variant, variant == first, marks=marks))
                seen.add(kind)
    return chosen


def small(recipe: Recipe, own_network: bool) -> Recipe:
    """The recipe with a network and images small enough for a test; its parts stay what they are,
    but for a network that cannot be made small.
    """
    if not own_network and parts_of(recipe)["backbone"]["call"].endswith(".BNInception"):
        recipe = replace(recipe, backbone=ImageResNet)
    if recipe.tuning.freeze_until:  # of two steps the first
        recipe = replace(recipe, tuning=replace(recipe.tuning, freeze_until=1))
    made = recipes.override(recipe, small_settings(recipe))
    return replace(made, memory=replace(made.memory, size=16) if made.memory else None)


def small_settings(recipe: Recipe) -> list[str]:
    """FIELD=VALUE by which a recipe has small images and few steps, and takes the part of its data
    set that is there.
    """
    parts = parts_of(recipe)
    expected = [
        *TINY,
        *SMALL.get(parts["backbone"]["call"].rpartition(".")[2], []),
        f"sampling.items_per_class={min(2, recipe.sampling.items_per_class)}",
    ]
    if "weights" in inspect.signature(recipe.backbone).parameters:
        expected.append("backbone.weights=")
    # a network for one size, which is small already
    fixed = "image_size" in parts["backbone"]["args"]
    edges = (
        {} if fixed else {"short_edge": EDGE + 4, "size": f"{EDGE + 4},{EDGE + 4}", "crop": EDGE}
    )
    expected += [
        f"{name}.{key}={value}"
        for name in ("read", "train_read", "frontend")
        for key, value in edges.items()
        if key in parts.get(name, {"args": ()})["args"]
    ]
    if (
        not fixed
        and recipe.augment is not None
        and "size" in inspect.signature(recipe.augment).parameters
    ):
        expected.append(f"augment.size={EDGE}")
    for name, part in parts.items():  # data sets of which only a part is there
        module, _, function = part["call"].rpartition(".")
        if (
            "whole"
            in inspect.signature(getattr(importlib.import_module(module), function)).parameters
        ):
            expected.append(f"{name}.whole=false")
    return expected


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
