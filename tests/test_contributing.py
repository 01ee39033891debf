"""CONTRIBUTING.md says in five lines how to add a data set and a backbone, and names real files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lines(title: str) -> list[str]:
    """The numbered lines below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. (.*(?:\n   .*)*)", section, flags=re.MULTILINE)


def paths(listed: list[str], **names: str) -> set[str]:
    """The files that the lines name first."""
    firsts = {re.match(r"`([\w/.]+)`", line)[1] for line in listed[:4]}  # type: ignore[index]
    for placeholder, name in names.items():
        firsts = {path.replace(placeholder, name) for path in firsts}
    return firsts


@pytest.mark.parametrize("title", ["Add a data set", "Add a backbone"])
def test_there_are_five_lines_and_what_they_name_exists(title: str) -> None:
    listed = lines(title)
    assert len(listed) == 5
    assert all(
        (ROOT / path.replace("MODALITY", "speaker")).exists() or "NAME" in path
        for path in paths(listed)
    )
    assert "python -m pytest" in listed[4]
