"""`likeness score --missing skip` scores the other trials as a list without the missing ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings as files
from likeness.eval.types import Embeddings
from tests.scripts import run_command

IDS = ("ann/1", "ann/2", "bob/1", "bob/2", "zoe/1")
MATRIX = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
LINES = [f"{a} {b} {int(a[:3] == b[:3])}" for i, a in enumerate(IDS) for b in IDS[i + 1 :]]


def written(folder: Path, without: set[str]) -> tuple[Path, Path]:
    """A trial list of all pairs, and embeddings that lack some."""
    rows = [k for k, name in enumerate(IDS) if name not in without]
    files.write(folder / "z.npz", Embeddings(tuple(IDS[k] for k in rows), MATRIX[rows], {}))
    (folder / "trials.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return folder / "trials.txt", folder / "z.npz"


def test_the_rest_is_scored_as_a_list_of_the_rest_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials, embeddings = written(tmp_path, {"bob/2", "zoe/1"})
    rest = [line for line in LINES if not {"bob/2", "zoe/1"} & set(line.split()[:2])]
    (tmp_path / "rest.txt").write_text("\n".join(rest) + "\n", encoding="utf-8")
    expected = likeness.score(tmp_path / "rest.txt", embeddings)
    asked = ("score", "--trials", trials, "--embeddings", embeddings)
    out = tmp_path / "scores.txt"
    assert run_command(*asked, "--missing", "skip", "--out", out) == 0
    assert "7 of 10 trials are left out, because 2 ids have no embedding" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="7 of 10 trials are left out"):
        scored = likeness.score(trials, embeddings, missing="skip")
    np.testing.assert_array_equal(scored.values, expected.values)
    assert [line.split()[:2] for line in out.read_text("utf-8").splitlines()] == [
        line.split()[:2] for line in rest
    ]
    origin = json.loads((tmp_path / "scores.txt.origin.json").read_text("utf-8"))
    assert "trials.txt, without 7 of 10 trials" in json.dumps(origin)
    assert run_command(*asked, "--out", out, "--force") == 2
    assert "--missing skip" in capsys.readouterr().err


def test_a_model_without_all_of_its_items_is_left_out(tmp_path: Path) -> None:
    _, embeddings = written(tmp_path, {"ann/2"})
    trials = likeness.Trials(("ann", "bob"), ("zoe/1", "bob/2"), [0, 0, 1], [0, 1, 1])
    models = {"ann": ["ann/1", "ann/2"], "bob": ["bob/1"]}
    with pytest.warns(UserWarning, match="2 of 3 trials are left out"):
        scored = likeness.score(trials, embeddings, models=models, missing="skip")
    whole = likeness.score(likeness.Trials(("bob/1",), ("bob/2",), [0], [0]), embeddings)
    np.testing.assert_allclose(scored.values, whole.values, rtol=1e-6)


def test_nothing_is_left_out_without_need_and_not_everything(tmp_path: Path) -> None:
    trials, embeddings = written(tmp_path, set())
    assert len(likeness.score(trials, embeddings, missing="skip")) == 10
    other = Embeddings(("x",), MATRIX[:1], {})
    with pytest.raises(ValueError, match="no embedding for"):
        likeness.score(trials, other, missing="skip")
