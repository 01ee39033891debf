"""Generated pages are up to date, and what they name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_losses", ROOT / "docs" / "make_losses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_page_is_what_the_classes_say() -> None:
    made = generator().page()
    assert (ROOT / "docs" / "losses.md").read_text(encoding="utf-8") == made, "docs/losses.md is out of date; run: python docs/make_losses.py"


def test_constants_of_losses_are_of_the_agreed_kind_and_their_golden_files_exist() -> None:
    golden = {path.stem for path in (ROOT / "tests" / "golden").glob("*.npz")}
    for cls in generator().find():
        assert isinstance(cls.PROXY, bool), cls
        assert cls.COMPARES in ("pair", "triplet"), cls
        assert all(isinstance(getattr(cls, name), str) for name in ("PAPER", "GEOMETRY", "NORMALISED", "VERIFIED", "NOTES")), cls
        assert cls.PAPER, cls
        assert cls.VERIFIED, cls
        assert cls.__doc__, cls
        missing = [name for name in re.findall(r"[\w.-]+__\w+", cls.VERIFIED) if not any(stem.endswith(name) or name.endswith(stem) for stem in golden)]
        assert not missing, f"{cls.__name__} is verified against {missing}, which tests/golden lacks"
