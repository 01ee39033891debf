"""Likeness installs from every clone, works without one, and says how to install what is missing.

A clone on Windows and a ZIP have no links: there likeness/eval and its like are files.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats import embeddings
from likeness.modalities import synthetic
from tests.scripts import ROOT, run_command

FOLDERS = ("eval", "toolkit", "modalities", "likeness", "recipes")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
OFFLINE = ("--no-index", "--no-build-isolation", "--disable-pip-version-check")


def shell(*words: str | Path, cwd: Path, code: int = 0) -> str:
    """Run a program that knows nothing of the clone."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    how = {"cwd": cwd, "env": environment, "capture_output": True, "text": True}
    ended = subprocess.run([str(word) for word in words], **how)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def clone(folder: Path, *, has_links: bool = True) -> Path:
    """Copy what is installed; without links it is what git writes on Windows: files with paths."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copyfile(ROOT / name, folder / name)
    for link in [path for path in folder.rglob("*") if path.is_symlink()] * (not has_links):
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    return folder


def built(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build a source distribution of a clone, and a wheel from it alone."""
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    build = f"import setuptools.build_meta as b; print(b.build_sdist({str(folder)!r}))"
    shell(sys.executable, "-c", build, cwd=source)
    (packed,) = folder.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *OFFLINE)
    shell(*pip, "--wheel-dir", folder, packed, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return packed, wheel


def environment(folder: Path) -> Path:
    """Make an environment with the dependencies of this one, and return its Python."""
    shell(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(shell(python, "-c", ask, cwd=folder).strip())
    # A .pth file that names a folder does not read that folder's own .pth files: the editable
    # installation of the clone stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *what: str | Path) -> str:
    """Install into an environment, without network."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-compile")
    return shell(*pip, *OFFLINE, *what, cwd=python.parent)


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MISSING = """
from likeness.errors import explain
print(explain(ModuleNotFoundError(name="granian")))
"""


@pytest.fixture(scope="module")
def linkless(module_path: Path) -> Mapping[str, Path]:
    """A clone without links, and the source distribution and the wheel that are built of it."""
    source = clone(module_path / "a clone", has_links=False)
    packed, wheel = built(source, module_path)
    return {"clone": source, "editable": source, "sdist": packed, "wheel": wheel}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source distribution of the clone, without building anything in the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    packed, made = built(clone(folder / "source"), folder)
    with tarfile.open(packed) as archive:
        assert any(name.endswith("/recipes/speaker/an4.py") for name in archive.getnames())
    return made


@pytest.mark.slow  # builds, and makes environments
def test_a_wheel_has_every_file_and_nothing_else(wheel, linkless):
    archives = [zipfile.ZipFile(each).namelist() for each in (wheel, linkless["wheel"])]
    names = [{name for name in each if ".dist-info/" not in name} for each in archives]
    assert names[0] == names[1]
    # Anything else at the top would hide a user's own eval.py, or be hidden by it.
    assert {name.partition("/")[0] for name in names[0]} == {"likeness"}
    listed = shell("git", "ls-files", *FOLDERS, cwd=ROOT).split()
    files = [name for name in listed if not (ROOT / name).is_symlink()]
    assert len(files) > 300
    # The folders at the top lie in the package.
    assert {f"likeness/{name.removeprefix('likeness/')}" for name in files} == names[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["clone", "editable", "sdist", "wheel"])
def test_a_clone_without_links_works_and_says_the_line_that_installs(form, linkless, tmp_path):
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


def test_both_opencv_are_of_one_version():
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


def test_an_extra_names_only_extras_of_its_own_distribution():
    """`likeness` on the package index is another project."""
    own = [text for texts in EXTRAS.values() for text in texts if text.startswith("likeness")]
    assert own
    for text in own:
        name, _, extras = text.rstrip("]").partition("[")
        assert name == "likeness-toolkit"
        assert set(extras.split(",")) <= set(EXTRAS)


def test_no_page_installs_the_other_project_of_that_name():
    patterns = ("*.py", "*.md", "*.toml", "*.yml", "*.html", "Makefile")
    folders = [ROOT / name for name in (*FOLDERS, "docs", "benchmarks", "examples", ".github")]
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    paths += [path for folder in folders for pattern in patterns for path in folder.rglob(pattern)]
    other = re.compile(r"pip install ['\"]?likeness\b(?!-toolkit)|['\"`]likeness\[")
    assert len(paths) > 400
    assert [path for path in paths if other.search(path.read_text(encoding="utf-8"))] == []


@pytest.fixture(scope="module")
def likeness(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a fresh environment that has the wheel and this one's dependencies."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    python = environment(folder)
    install(python, "--quiet", "--no-deps", wheel)
    where = shell(python, "-c", "import likeness; print(likeness.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(folder)
    return folder / "bin" / "likeness"


@pytest.mark.slow  # three trainings
def test_the_demo_of_all_modalities_beats_raw_features_and_its_commands_run(likeness, tmp_path):
    """The wheel runs the demo, and the clone runs the commands that the demo prints."""
    out = tmp_path / "demo"
    output = shell(likeness, "demo", "--out", out, cwd=tmp_path)
    rates = {}
    for kind in ("speaker", "face", "image"):
        document = json.loads((out / kind / "results.json").read_text())
        eers = [result for result in document["results"] if result["metric"] == "eer"]
        rates |= {result["system"]: result["value"] for result in eers}
    assert rates["speaker-likeness"] < 0.08 < 0.15 < rates["speaker-filterbank"]
    assert rates["face-likeness"] < 0.16 < 0.3 < rates["face-pixels"]
    assert rates["image-likeness"] < 0.06 < 0.15 < rates["image-pixels"]
    page = (out / "report" / "index.html").read_text()
    assert all(name in page for name in rates)
    pages = [(out / kind / "report" / "index.html").read_text() for kind in ("speaker", "face")]
    assert pages[0].count("<audio") > 2 < pages[1].count("<img")
    for name in ("speaker", "face", "image"):
        lines = output[output.index(f"\n{name}:\n") :].splitlines()
        command = next(line for line in lines if "likeness embed" in line).split()[1:]
        command[command.index("--out") + 1] = str(tmp_path / f"{name}.npz")
        assert run_command(*command) == 0
        again = embeddings.read_embeddings(tmp_path / f"{name}.npz")
        before = embeddings.read_embeddings(out / name / f"{name}-likeness.npz")
        assert again.ids == before.ids
        assert np.array_equal(again.matrix, before.matrix)
        command = next(line for line in lines if "likeness verify" in line).split()[1:]
        assert run_command(*command, "--far", "eer") == 0
    assert f"likeness serve --model {out / 'image' / 'run'}" in output


@pytest.mark.slow
def test_without_extras_it_brings_no_torch_and_measures(wheel, tmp_path):
    """What it measures then: tests/likeness/test_torch_free.py."""
    environment = tmp_path / "venv"
    shell(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    done = subprocess.run([*map(str, (*pip, "--quiet", wheel))], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package registry: {done.stderr[-200:]}")
    installed = {path.name for path in environment.glob("lib/python*/site-packages/*")}
    assert "likeness" in installed
    assert not installed & {"torch", "torchaudio", "nvidia", "eval", "toolkit", "modalities"}

    def command(*words: str | Path, code: int = 0) -> str:
        return shell(environment / "bin" / "likeness", *words, cwd=tmp_path, code=code)

    for name in ("eval.py", "toolkit.py", "modalities.py"):  # a user's own
        (tmp_path / name).write_text("raise SystemExit('imported')")
    synthetic.write_voices(tmp_path / "long", num_speakers=1, num_utterances=2, seconds=(2.0, 2.5))
    assert "probability" in command("verify", *sorted((tmp_path / "long").rglob("*.flac")))
    (tmp_path / "s.txt").write_text("a/1 a/2 0.9 1\na/1 b/1 0.2 0\nb/1 b/2 0.8 1\nb/2 a/2 0.1 0\n")
    command("evaluate", "s.txt", "--resamples", "0", "--report", "report")
    assert "Bokeh" in (tmp_path / "report" / "index.html").read_text()
    error = command("train", "speaker/folders", "--data", "long", "--out", "run", code=2)
    assert 'pip install "likeness-toolkit[train]"' in error
