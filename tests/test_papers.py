"""docs/reference/papers.md names every table and figure of the three papers, and every row of their
recipes; what it names exists.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from likeness.training.recipe_files import locate

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:image|face|speaker)/\w+):([^`\s]+)`", TEXT)


@cache
def listed(name: str) -> dict[str, recipes.Recipe]:
    made: dict[str, recipes.Recipe] = recipes.read(locate(name))["RECIPES"]
    return made


@pytest.mark.parametrize(("name", "pattern"), NAMED)
def test_a_named_variant_exists(name: str, pattern: str) -> None:
    # a data set stands for its group
    assert any(
        fnmatchcase(variant, pattern) or variant.startswith(f"{pattern}.")
        for variant in listed(name)
    )


@pytest.mark.parametrize(
    ("name", "simple"),
    [
        ("face/vggface2", "simple"),
        ("face/ms1mv2", "b_simple"),
        ("face/ms1mv2", "c_simple"),
        ("image/simple", "cub200.simple"),
        ("speaker/voxceleb", "simple"),
    ],
)
def test_the_readings_of_simple_are_eq_8_and_the_angle(name: str, simple: str) -> None:
    made = listed(name)
    paper, angle = made[f"{simple}_paper"], made[f"{simple}_learned_angle"]
    loss = paper.loss(8, 3)
    assert (loss.reduction, loss.weight, loss.features) == ("joint", 1, "raw")
    assert not paper.backbone.keywords["dim"] % 2  # polar-like features take one output more
    assert angle.loss(8, 3).b_theta.requires_grad
    assert describe(replace(angle, loss=made[simple].loss)) == describe(made[simple])


@pytest.mark.parametrize(
    ("name", "simple"), [("image/simple", "cub200.simple"), ("speaker/voxceleb", "simple")]
)
def test_simple_released_has_the_release_s_factor_and_features(name: str, simple: str) -> None:
    made = listed(name)
    released, loss = made[f"{simple}_released"], made[f"{simple}_released"].loss(8, 3)
    assert (loss.reduction, loss.weight, loss.features) == ("separate", 500, "polarlike")
    assert released.backbone.keywords["dim"] == made[simple].backbone.keywords["dim"] + 1
