"""docs/reference/papers.md names every table and figure of the three papers, and every row of their
recipes; what it names exists, and its commands are taken.
"""

from __future__ import annotations

import ast
import re
import shlex
from argparse import Namespace
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from likeness.commands.recipes import located
from toolkit.models import user_files
from toolkit.models.parts import describe
from toolkit.training import recipe as recipes
from toolkit.training.compare import check_variants

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}
# The recipes of the papers. Some of their variants are no row of them.
RECIPES = {
    "image/vmf": "",
    "image/nivmf": "",
    "image/nivmf_table_2": "",
    "image/simple": "",
    "face/vggface2": "",
    "face/ms1mv2": "insightface_r100",
    "speaker/voxceleb": "wespeaker_*",
}
NAMED = re.findall(r"`((?:image|face|speaker)/\w+):([^`\s]+)`", TEXT)
FILES = sorted(set(re.findall(r"(?:examples|tests|recipes)/[\w/]+\.py", TEXT)))
COMMANDS = [
    shlex.split(re.sub(r"\s*\\\n\s*", " ", line))
    for block in re.findall(r"^```\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    for line in re.split(r"(?<!\\)\n", block)
    if line and not line.startswith("#")
]


def listed(name: str) -> dict[str, recipes.Recipe]:
    made: dict[str, recipes.Recipe] = recipes.read(located(name))["RECIPES"]
    return made


def test_patterns_are_found_on_the_page() -> None:
    assert len(NAMED) > 40
    assert len(FILES) > 20
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("name", "pattern"), NAMED)
def test_a_named_variant_exists(name: str, pattern: str) -> None:
    # a data set stands for its group
    assert any(
        fnmatchcase(variant, pattern) or variant.startswith(f"{pattern}.")
        for variant in listed(name)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_row_of_a_papers_recipe_is_on_the_page(name: str) -> None:
    # a pattern of marks alone names no row
    patterns = [text for file, text in NAMED if file == name and re.search(r"\w", text)]
    for variant in listed(name):
        named = any(fnmatchcase(variant, pattern) for pattern in patterns)
        assert named != fnmatchcase(variant, RECIPES[name]), variant


@pytest.mark.parametrize("path", FILES)
def test_a_named_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


def test_every_script_of_the_papers_is_on_the_page() -> None:
    systems = (ROOT / "examples" / "systems").glob("*.py")
    figures = (ROOT / "examples").glob("*_figures.py")
    scripts = {path.relative_to(ROOT).as_posix() for path in (*systems, *figures)}
    assert scripts - {"examples/systems/shared.py"} <= {*FILES}


def numbers_of(cell: str) -> set[int]:
    """The numbers of "Tables 1 to 3" or "Figures 1, 3, 6 to 10"."""
    made: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", cell):
        made |= {*range(int(first), int(last or first) + 1)}
    return made


@pytest.mark.parametrize("paper", ["vmf", "nivmf", "simple"])
def test_every_table_and_figure_of_a_paper_is_in_its_section(paper: str, shared: Path) -> None:
    text = (shared / "papers" / f"{paper}.txt").read_text(encoding="utf-8")
    section = {name.lower(): part for name, part in SECTIONS.items()}[paper]
    for kind, captions in (
        ("Table", r"^Table (\d+)[.:]"),
        ("Figure", r"^(?:Figure|Fig\.) (\d+)[.:]"),
    ):
        printed = {int(number) for number in re.findall(captions, text, flags=re.MULTILINE)}
        cells = re.findall(rf"^\| {kind}s? ([^|]+?)(?:, [A-Za-z][^|]*)? \|", section, re.MULTILINE)
        assert printed
        assert set().union(*map(numbers_of, cells)) == printed, kind


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
    check_variants(chosen, 1, "", values_of(command, "--allow-different"))


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


def test_heads_of_the_papers_recipes_show_no_comparison_that_is_refused() -> None:
    """Their commands stand indented, and continue on deeper lines."""
    for name in RECIPES:
        head = ast.get_docstring(ast.parse(Path(located(name)).read_text(encoding="utf-8"))) or ""
        commands = re.findall(r"^    likeness compare .*(?:\n        .*)*", head, re.MULTILINE)
        for command in commands:
            words = command.split()
            file, _, group = words[2].partition(":")
            made = listed(file)
            in_group = [text for text in made if text.startswith(f"{group}.")] if group else [*made]
            names = values_of(words, "--variants")
            asked = (
                [f"{group}.{text}" if group else text for text in names[0].split(",")]
                if names
                else in_group
            )
            allowed = values_of(words, "--allow-different")[:1]
            check_variants({text: made[text] for text in asked}, 1, "", allowed)
