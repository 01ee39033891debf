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


def released() -> list[str]:
    """The versions of the change log, the newest first; what is not released yet has none."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert titles[0].startswith("Unreleased")
    return [title.split()[0] for title in titles[1:]]


def test_the_citation_is_of_the_newest_release() -> None:
    cited = parsed("CITATION.cff")
    assert str(cited["version"]) == released()[0]
    assert cited["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_this_version_is_the_newest_release_or_on_the_way_to_the_next() -> None:
    now, newest = Version(PROJECT["version"]), Version(released()[0])
    assert now == newest or (now > newest and now.is_devrelease)
