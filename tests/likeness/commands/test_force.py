"""Nothing is overwritten without --force, and an input not even with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import run_command

SCORES = "ann/1 ann/2 0.9 1\nann/1 bob/1 0.2 0\nbob/1 bob/2 0.8 1\nbob/2 ann/2 0.1 0\n"


@pytest.mark.parametrize(
    ("option", "out", "written"),
    [("--json", "results.json", "results.json"), ("--report", "report", "report/index.html")],
)
def test_outputs_stay_unless_they_are_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, out: str, written: str
) -> None:
    scores = tmp_path / "scores.txt"
    scores.write_text(SCORES)
    words = ("evaluate", scores, "--resamples", 0, option, tmp_path / out)
    assert run_command(*words) == 0
    (tmp_path / written).write_text("mine")
    assert run_command(*words) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / written).read_text() == "mine"
    assert run_command(*words, "--force") == 0
    assert (tmp_path / written).read_text() != "mine"
    assert run_command("evaluate", scores, "--json", scores, "--force") == 2
    assert scores.read_text() == SCORES


def test_lists_stay_and_a_device_is_written_to(tmp_path: Path) -> None:
    for name in ("ann/1.wav", "ann/2.wav", "bob/1.wav", "bob/2.wav"):
        (tmp_path / "voices" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "voices" / name).write_bytes(b"")
    words = ("lists", tmp_path / "voices", "--split", "all", "--out", tmp_path / "lists")
    assert run_command(*words) == 0
    assert run_command(*words) == 2
    (tmp_path / "lists" / "items.txt").unlink()
    assert run_command(*words) == 2  # the trials are there
    assert run_command(*words, "--force") == 0
    scores = tmp_path / "scores.txt"
    scores.write_text(SCORES)
    assert run_command("evaluate", scores, "--resamples", 0, "--json", "/dev/null") == 0
