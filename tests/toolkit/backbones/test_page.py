"""docs/reference/backbones.md is what the classes say, and names them all."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import loaded

ROOT = Path(__file__).parents[3]


@cache
def generator() -> ModuleType:
    return loaded(ROOT / "docs" / "make_backbones.py")


@pytest.mark.slow  # makes every network of the page
def test_backbones_page_is_what_the_classes_say() -> None:
    written = (ROOT / "docs" / "reference" / "backbones.md").read_text(encoding="utf-8")
    assert written == generator().page(), (
        "docs/reference/backbones.md is out of date; run: python docs/make_backbones.py"
    )
