"""The commands that most people type import no library that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from likeness.modalities.synthetic import write_voices

ROOT = Path(__file__).parents[2]
CONSOLE = {"lazy_loader", "typer"}
VALUES = {"numpy", "pyarrow", "pydantic", "scipy", "charset_normalizer"}
VOICES = {"numpy", "onnx", "onnxruntime", "pydantic", "soundfile", "soxr"}
LIBRARIES = """
import sys
from importlib.metadata import packages_distributions

from likeness.cli import main

try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code
parts = {".".join(name.split(".")[:2]) for name in sys.modules}
names = {name.partition(".")[0] for name in parts} & set(packages_distributions())
print(*names, *(parts & {"scipy.stats", "scipy.signal"}), file=sys.stderr)
"""
# What comes with those, or stands in every process of an environment.
BESIDE = {
    *("likeness", "annotated_doc", "annotated_types", "shellingham", "typing_extensions"),
    *("typing_inspection", "pydantic_core", "_soundfile", "_soundfile_data", "google", "ml_dtypes"),
    *("_cffi_backend", "_distutils_hack", "cloudpickle", "rich", "click"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials with scores, and two recordings."""
    folder = tmp_path_factory.mktemp("start")
    write_voices(folder / "voices", num_speakers=1, num_utterances=2, seconds=(2.0, 2.5))
    for number, path in enumerate(sorted((folder / "voices").rglob("*.flac"))):
        path.rename(folder / f"{number}.flac")
    rows = (f"a{i % 7}/1 a{i % 7 + i % 2}/{i} {1 - i % 2} {0.1 * (i % 17)}\n" for i in range(210))
    (folder / "scores.txt").write_text("".join(rows))
    return folder


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--help"], CONSOLE),
        (["--version"], CONSOLE),
        (["verify", "--help"], CONSOLE | {"numpy", "pydantic"}),
        (["evaluate", "scores.txt"], CONSOLE | VALUES),
        (["verify", "0.flac", "1.flac"], CONSOLE | VOICES),
    ],
)
def test_only_what_is_needed_is_imported(folder: Path, words: list[str], needed: set[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIBRARIES, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stderr.split("\n")[-2].split()) - BESIDE <= needed
