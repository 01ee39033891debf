"""How tests come by the scripts of benchmarks/."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """script(name) imports a script, which imports its neighbours by name, as scripts do."""
    before = set(sys.modules)
    sys.path.insert(0, FOLDER)
    yield importlib.import_module
    sys.path.remove(FOLDER)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(FOLDER):
            del sys.modules[name]
