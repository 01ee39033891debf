"""Scripts of docs/ and examples/, and files that tests write, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def loaded(path: Path, name: str = "") -> ModuleType:
    """Run a file as a module, which is not entered into sys.modules.

    Args:
        path: The file. What lies in its folder can be imported by it, as when it is a program.
        name: The module's name, by default that of the file.
    """
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        spec.loader.exec_module(module)
    return module
