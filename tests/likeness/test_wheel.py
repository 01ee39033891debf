"""Likeness without a clone: the wheel is built from the source distribution, installed beside the
dependencies of this environment in a fresh one, and used from an empty folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats import embeddings
from likeness.modalities import synthetic
from tests.installed import ROOT, built, clone, environment, install, shell
from tests.scripts import refused, run_command

pytestmark = pytest.mark.slow  # minutes: an installation, and trainings


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source distribution of the clone, without building anything in the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    packed, made = built(clone(folder / "source"), folder)
    with tarfile.open(packed) as archive:
        assert any(name.endswith("/recipes/speaker/an4.py") for name in archive.getnames())
    return made


@pytest.fixture(scope="module")
def likeness(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a fresh environment that has the wheel and this one's dependencies."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    python = environment(folder)
    install(python, "--quiet", "--no-deps", wheel)
    where = shell(python, "-c", "import likeness; print(likeness.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(folder)
    return folder / "bin" / "likeness"


def test_the_wheel_holds_data_and_types_and_nothing_else_of_the_clone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    # Anything else at the top would hide a user's own eval.py, or be hidden by it.
    assert {name.partition("/")[0] for name in names} == {"likeness"}
    assert "likeness/py.typed" in names
    folders = ("likeness", "eval", "toolkit", "modalities")
    listed = shell("git", "ls-files", *folders, cwd=ROOT).split()
    data = [name for name in listed if not name.endswith(".py") and not (ROOT / name).is_symlink()]
    assert len(data) >= 7
    # The folders at the top lie in the package.
    assert {f"likeness/{name.removeprefix('likeness/')}" for name in data} <= names


def test_the_demo_of_all_modalities_beats_raw_features_and_its_commands_run(
    likeness: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wheel runs the demo, and the clone runs the commands that the demo prints."""
    out = tmp_path / "demo"
    output = shell(likeness, "demo", "--out", out, cwd=tmp_path)
    rates = {
        result["system"]: result["value"]
        for kind in ("speaker", "face", "image")
        for result in json.loads((out / kind / "results.json").read_text())["results"]
        if result["metric"] == "eer"
    }
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
    capsys.readouterr()
    assert "choose another --out" in refused("demo", "--only", "speaker", "--out", out / "speaker")


def test_without_extras_it_brings_no_torch_and_measures(
    wheel: Path, example: Path, run: Path, tmp_path: Path
) -> None:
    import likeness

    likeness.load(run).export(tmp_path / "voices.onnx")
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
    model, voices = ("--model", "voices.onnx"), example / "voices"
    command("embed", *model, "--items", voices, "--out", "e.npz", "--workers", "2")
    trials = ("--trials", example / "trials.txt", "--embeddings", "e.npz", "--out", "s.txt")
    command("score", *trials)
    command("evaluate", "s.txt", "--far", "0.5", "--save-to", "voices.onnx", "--report", "report")
    assert "Bokeh" in (tmp_path / "report" / "index.html").read_text()
    error = command("train", "speaker/folders", "--data", voices, "--out", "run", code=2)
    assert 'pip install "likeness-toolkit[train]"' in error
