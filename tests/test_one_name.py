"""One name, one function: a public name is the object of one module, and no other has its name."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

import likeness

ROOT = Path(__file__).parents[1]
PUBLIC = [name for name in likeness.__all__ if callable(getattr(likeness, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    public = getattr(likeness, name)
    assert public is getattr(sys.modules[public.__module__], name)
    assert public.__module__.partition(".")[0] == "likeness"


def test_evaluation_is_not_wrapped_a_second_time() -> None:
    for name in ("score", "calibrate", "evaluate", "identify", "retrieve", "cluster", "Embeddings"):
        assert getattr(likeness, name).__module__.startswith("likeness.eval."), name


def test_no_other_function_or_class_has_a_public_name() -> None:
    """The commands apart, which are called like the functions that they call."""
    defined = Counter(
        node.name
        for top in ("eval", "likeness")
        for path in (ROOT / top).rglob("*.py")
        if path.parent != ROOT / "likeness" / "commands"
        and not any(parent.is_symlink() for parent in path.parents)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )
    assert [name for name in PUBLIC if defined[name] > 1] == []
