"""Scores without ids: the order of two columns is known, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import likeness
from likeness.cli import main
from likeness.eval.formats.trials import is_bare, read_bare_scores


@pytest.mark.parametrize(
    "text",
    [
        "1 0.5\n0 -2\n1 3\n",
        "0.5,target\n-2,nontarget\n3,target\n",
        "# by x\nTrue\t0.5\nFalse\t-2\nTrue\t3\n",
        "score label\n0.5 1\n-2 0\n3 1\n",
        "label,score\n1,0.5\n0,-2\n1,3\n",
    ],
)
def test_the_order_is_recognised(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.txt").write_text(text)
    assert is_bare(tmp_path / "s.txt")
    scores = read_bare_scores(tmp_path / "s.txt")
    assert scores.values.tolist() == [0.5, -2, 3]
    assert scores.target.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 0\n0 1\n", "header line"),
        ("1 0\n1 1\n", "header line"),
        ("a b\nc d\n", "no label"),
        ("1 0.5\n2 0.3\n", "no label"),
        ("1 0.5\ntarget 0.3\n", "no label"),
        ("label score\n1 0.5\n0 nan\n", "finite score"),
        ("label score\n1 0.5\n0 x\n", "finite score"),
        ("label score\n5 0.5\n0 1\n", "labels"),
    ],
)
def test_what_cannot_be_known_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.txt").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_bare_scores(tmp_path / "s.txt")


def test_they_are_evaluated_over_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.txt"
    path.write_text("".join(f"{i % 2} {i % 2 + (i % 5) / 10}\n" for i in range(100)))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(path), "--resamples", "0", "--json", str(tmp_path / "r.json")])
    assert not ended.value.code
    assert (tmp_path / "r.json").is_file()
    assert "EER" in capsys.readouterr().out
    scores = likeness.Scores(
        [i % 2 + (i % 5) / 10 for i in range(100)], [i % 2 for i in range(100)]
    )
    assert likeness.evaluate(path).eer == likeness.evaluate(scores).eer
    trials = tmp_path / "trials.txt"
    trials.write_text("1 a b\n0 a c\n")
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(path), "--trials", str(trials)])
    assert ended.value.code == 2
    assert "no ids" in capsys.readouterr().err
