"""Recipes as version 0.1 described them are read as this version describes them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from eval.verification import eer
from modalities.image import digits
from toolkit.models.parts import describe
from toolkit.training.moved import flat, place
from toolkit.training.recipe import Classification, Retrieval, Verification, current

RUN = Path(__file__).parents[2] / "golden" / "likeness-0.1"


def old(**fields: Any) -> dict[str, Any]:
    """A part of a description of version 0.1."""
    nothing = {"trials": None, "test": None, "validation": None, "metrics": {}}
    return {"modality": "image", "workers": 3, "proxy_rate": 0.5, **nothing, **fields}


def part(call: str, **args: Any) -> dict[str, Any]:
    return {"call": call, "args": args}


def test_a_stored_recipe_of_version_0_1_is_regrouped() -> None:
    stored = json.loads((RUN / "recipe.json").read_text())
    now = current(stored)
    assert now["compute"]["threads"] == stored["threads"]
    assert now["parallel"]["spread_classes"] == stored["shard_proxies"]
    assert now["measure"]["calibrate_on"]["args"]["split"] == "validation"
    assert set(now["measure"]["metrics"]) == set(stored["metrics"])
    assert not {"workers", "test", "validation", "metrics"} & now.keys()
    assert current(now) == now


def test_each_way_of_measuring_has_its_description() -> None:
    items, metrics = part("modalities.image.digits.items"), {"eer": part("eval.verification.eer")}
    measure: Verification | Classification | Retrieval = Verification(digits.items, {"eer": eer})
    assert current(old(trials=items, metrics=metrics))["measure"] == describe(measure)
    test = part("toolkit.measure.retrieval", items=items, ks=[1, 5])
    validation = part("toolkit.measure.retrieval", items=part(items["call"], split="train"))
    measure = Retrieval(
        digits.items,
        ks=(1, 5),
        metrics={"eer": eer},
        validation=Retrieval(partial(digits.items, split="train")),
    )
    both = old(test=test, validation=validation, metrics=metrics)
    assert current(both)["measure"] == describe(measure)
    test = part("toolkit.measure.classification", items=items)
    assert current(old(test=test))["measure"] == describe(Classification(digits.items))
    assert current(old())["measure"] is None


def test_fields_of_groups_are_told_apart() -> None:
    now = flat(current(old()))
    assert now["compute.workers"] == 3
    assert now["parallel.class_rate"] == 0.5
    assert "compute" not in now
    assert place("proxy_rate") == "parallel.class_rate"
