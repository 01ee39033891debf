"""What a package needs beside its modules is in the wheel, and is found where it is installed."""

from __future__ import annotations

import subprocess
import tomllib
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import pytest

from likeness.eval.reports.page import SCRIPTS as REPORT_SCRIPTS
from likeness.service.pages import SCRIPTS

ROOT = Path(__file__).parents[1]
FLOORS = ("toolkit", "modalities", "eval")


def data_files() -> list[Path]:
    """The files of the packages in the repository that are no modules."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "likeness", *FLOORS], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("this is no clone: git lists no files")
    names = [name for name in listed.stdout.split("\0") if name and not name.endswith(".py")]
    # Those of the floors lie in the package through its links.
    return [
        Path("likeness", name) if name.startswith(FLOORS) else Path(name)
        for name in names
        if not (ROOT / name).is_symlink()
    ]


def test_every_data_file_is_packaged() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, names in setup["tool"]["setuptools"]["package-data"].items()
        for pattern in names
    ]
    paths = data_files()
    assert len(paths) >= 7
    assert [
        path for path in paths if not any(fnmatch(path.as_posix(), pattern) for pattern in patterns)
    ] == []


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (
            "likeness.eval.reports",
            sorted(["blocks.html", "figures.json", "page.css", "page.html", *REPORT_SCRIPTS]),
        ),
        (
            "likeness.service",
            sorted(["answers.json", "docs.html", "page.css", "page.html", *SCRIPTS]),
        ),
    ],
)
def test_templates_are_found_through_the_package(package: str, names: list[str]) -> None:
    assert sorted(path.name for path in (files(package) / "templates").iterdir()) == names
