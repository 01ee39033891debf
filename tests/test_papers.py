"""docs/reference/papers.md names every table and figure of the three papers, and every row of their
recipes; what it names exists, and its commands are taken.
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from likeness.recipe_files import located
from likeness.toolkit.models import user_files
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.compare import Terms, check_variants

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:image|face|speaker)/\w+):([^`\s]+)`", TEXT)
COMMANDS = [
    shlex.split(re.sub(r"\s*\\\n\s*", " ", line))
    for block in re.findall(r"^```\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    for line in re.split(r"(?<!\\)\n", block)
    if line and not line.startswith("#")
]


@cache
def listed(name: str) -> dict[str, recipes.Recipe]:
    made: dict[str, recipes.Recipe] = recipes.read(located(name))["RECIPES"]
    return made


@pytest.mark.parametrize(("name", "pattern"), NAMED)
def test_a_named_variant_exists(name: str, pattern: str) -> None:
    # a data set stands for its group
    assert any(
        fnmatchcase(variant, pattern) or variant.startswith(f"{pattern}.")
        for variant in listed(name)
    )


def values_of(arguments: list[str], option: str) -> list[str]:
    """What follows an option, up to the next one."""
    if option not in arguments:
        return []
    rest = arguments[arguments.index(option) + 1 :]
    end = next((place for place, text in enumerate(rest) if text.startswith("--")), len(rest))
    return rest[:end]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_variants_of_a_comparison_are_comparable(command: list[str]) -> None:
    if command[:2] != ["likeness", "compare"]:
        assert command[0] in ("likeness", "python")
        return
    name, _, group = command[2].partition(":")
    names = values_of(command, "--variants")[0].split(",")
    made = listed(name)
    chosen = {text: made[f"{group}.{text}" if group else text] for text in names}
    check_variants(chosen, Terms(allow_different=values_of(command, "--allow-different")))


@pytest.mark.parametrize(
    "command", [line for line in COMMANDS if line[0] == "python"], ids=" ".join
)
def test_commands_of_scripts_name_what_exists(command: list[str]) -> None:
    """Recipes, variants and settings; tests/test_docs.py looks at the options."""
    if command[1] == "examples/run_figures.py":
        assert command[2] in user_files.run(ROOT / command[1], anew=False).FIGURES
    for recipe in values_of(command, "--recipe"):
        variants = listed(recipe.partition(":")[0])
        panels = [text.partition("=")[0] for text in command if text.startswith("mnist.")]
        assert {*filter(None, [recipe.partition(":")[2]]), *panels} <= {*variants}
    if "examples/systems/" in command[1] and "--recipe" in command:
        system, shared = (
            user_files.run(ROOT / path, anew=False)
            for path in (command[1], "examples/systems/shared.py")
        )
        (recipe,) = values_of(command, "--recipe")
        settings = values_of(command, "--set")
        options = Namespace(recipe=recipe, set=settings, steps=None, seed=0)
        made = shared.chosen(system, "system", options)
        assert made.backbone.keywords["weights"] == "resnet50.pth"


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
