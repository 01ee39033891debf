"""Likeness installs from every clone, and says how to install what is missing.

A clone on Windows and a ZIP have no links: there likeness/eval and its like are files.
"""

from __future__ import annotations

import re
import shlex
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from likeness.modalities import synthetic
from tests.installed import FOLDERS, ROOT, built, clone, environment, install, shell

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MISSING = """
from likeness.errors import explain
print(explain(ModuleNotFoundError(name="granian")))
"""


@pytest.fixture(scope="module")
def linkless(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A clone without links, and the source distribution and the wheel that are built of it."""
    folder = tmp_path_factory.mktemp("linkless")
    source = clone(folder / "a clone", has_links=False)
    packed, wheel = built(source, folder)
    return {"clone": source, "editable": source, "sdist": packed, "wheel": wheel}


@pytest.mark.slow  # builds, and makes environments
def test_a_wheel_without_links_has_every_file(linkless: Mapping[str, Path], tmp_path: Path) -> None:
    _, wheel = built(clone(tmp_path / "clone"), tmp_path)
    names = [set(zipfile.ZipFile(each).namelist()) for each in (wheel, linkless["wheel"])]
    assert names[0] == names[1]
    sources = {
        f"likeness/{path.relative_to(ROOT).as_posix().removeprefix('likeness/')}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(sources) > 300
    assert {name for name in names[1] if name.endswith(".py")} == sources


@pytest.mark.slow
@pytest.mark.parametrize("form", ["clone", "editable", "sdist", "wheel"])
def test_it_works_from_a_clone_without_links_and_says_the_line_that_installs(
    form: str, linkless: Mapping[str, Path], tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv")
    option = ["--editable"] if form == "editable" else []
    install(python, "--quiet", "--no-deps", *option, linkless[form])
    synthetic.write_voices(tmp_path / "voices", num_speakers=1, num_utterances=2, seconds=(2, 2.5))
    verify = ("-m", "likeness", "verify", *sorted((tmp_path / "voices").rglob("*.flac")))
    # In the root of the clone Python finds the folder likeness first.
    folders = [tmp_path, *([linkless["clone"]] if form == "editable" else [])]
    for folder in folders:
        assert "probability" in shell(python, *verify, cwd=folder)
        assert "speaker/an4" in shell(python, "-m", "likeness", "recipes", cwd=folder)
    sentence = shell(python, "-c", MISSING, cwd=tmp_path)
    (line,) = re.findall(r"`pip install (.+)`", sentence)
    (requirement,) = shlex.split(line)
    from_folder = form in ("clone", "editable")
    source = str(linkless["clone"]) if from_folder else "likeness-toolkit"
    assert requirement == f"{source}[serve]"
    result = install(python, "--dry-run", requirement)
    assert ("Would install likeness-toolkit" in result) == from_folder
    assert "granian" in result  # of the extra, which this environment has


def test_both_opencv_are_of_one_version() -> None:
    """They are one folder, cv2: insightface needs the one, and albumentations the other."""
    pins = dict(text.split("==") for text in EXTRAS["train"] if text.startswith("opencv"))
    names = ("opencv-python", "opencv-python-headless")
    assert set(pins) == set(names)
    assert len(set(pins.values())) == 1
    try:
        installed = {version(name) for name in names}
    except PackageNotFoundError:
        pytest.skip("the extra train is not installed")
    assert len(installed) == 1


def test_an_extra_names_only_extras_of_its_own_distribution() -> None:
    """`likeness` on the package index is another project."""
    own = [text for texts in EXTRAS.values() for text in texts if text.startswith("likeness")]
    assert own
    for text in own:
        name, _, extras = text.rstrip("]").partition("[")
        assert name == "likeness-toolkit"
        assert set(extras.split(",")) <= set(EXTRAS)


def test_no_page_installs_the_other_project_of_that_name() -> None:
    patterns = ("*.py", "*.md", "*.toml", "*.yml", "*.html", "Makefile")
    folders = [ROOT / name for name in (*FOLDERS, "docs", "benchmarks", "examples", ".github")]
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    paths += [path for folder in folders for pattern in patterns for path in folder.rglob(pattern)]
    other = re.compile(r"pip install ['\"]?likeness\b(?!-toolkit)|['\"`]likeness\[")
    assert len(paths) > 400
    assert [path for path in paths if other.search(path.read_text(encoding="utf-8"))] == []
