"""The pages of docs/reference that are made from the code say what the code says."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from likeness.commands.recipes import located
from toolkit.training import recipe as recipes
from toolkit.training.memory import Memory

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
# A field with its default, as the page of recipes has it.
PATTERN = r"^- `([\w.]+)=([^`]*)`(?: \(|:)"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- recipes


def test_the_page_of_recipes_is_what_the_classes_say() -> None:
    made = script("make_recipes").page()
    assert (REFERENCE / "recipes.md").read_text(encoding="utf-8") == made, (
        "docs/reference/recipes.md is out of date; run: python docs/make_recipes.py"
    )


def test_every_default_of_the_page_can_be_set_as_it_stands_there() -> None:
    page = (REFERENCE / "recipes.md").read_text(encoding="utf-8")
    plain, _ = recipes.load(located("speaker/folders"))
    checked = 0
    for cls in (recipes.Verification, recipes.Classification, recipes.Retrieval):
        # Other values than the defaults, so that setting a default changes something.
        measure: Any = cls(plain.items, plain.metrics)  # type: ignore[arg-type]
        if cls is recipes.Retrieval:
            measure = cls(plain.items, ks=(3,), num_samples=3, disjoint=False)
        start = dataclasses.replace(plain, memory=Memory(8, 0.5), measure=measure, seed=7)
        block = page.partition(f"\n## {cls.__name__},")[2].partition("\n## ")[0]
        common = page.partition("\n## Recipe\n")[2].partition("\n## Verification")[0]
        for name, text in re.findall(PATTERN, common + block, re.MULTILINE):
            if name in ("memory", "measure"):
                assert getattr(recipes.override(start, [f"{name}={text}"]), name) is None
                continue
            value: Any = recipes.override(start, [f"{name}={text}"])
            owner: Any = None
            for part in name.split("."):
                owner, value = value, getattr(value, part)
            (field,) = (one for one in dataclasses.fields(owner) if one.name == part)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            assert value == default, name
            checked += 1
    assert checked > 100


def test_a_field_that_the_docstring_leaves_out_is_refused() -> None:
    @dataclasses.dataclass
    class Odd:
        """It has two fields.

        Attributes:
            first: This one is known.
        """

        first: int = 0
        second: int = 0

    with pytest.raises(ValueError, match="second"):
        script("make_recipes").section("odd.", Odd)
