"""What a project has beside its code agrees with the code: versions, workflow, hooks, changes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parsed(*parts: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def newest() -> str:
    """The newest version that the change log has a section for."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.findall(r"^## (\d\S*)", text, flags=re.MULTILINE)[0]


def test_the_citation_is_of_the_newest_version() -> None:
    cited = parsed("CITATION.cff")
    assert str(cited["version"]) == newest()
    assert cited["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_this_version_is_the_newest_or_on_the_way_to_the_next() -> None:
    now, stated = Version(PROJECT["version"]), Version(newest())
    assert now == stated or (now > stated and now.is_devrelease)
