"""Fusion, and scores where embeddings are missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings, write_embeddings
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.metrics.calibration import load_fusion
from likeness.eval.types import Trials
from tests.scripts import refused, run_command

IDS = tuple(f"{name}/{number}" for name in "abcdef" for number in (1, 2, 3))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scores of two systems on two lists; rows of the second are in reverse."""
    i, j = np.triu_indices(len(IDS), k=1)
    target = np.array([IDS[a][0] == IDS[b][0] for a, b in zip(i, j, strict=True)])
    for number, name in enumerate(("dev", "test")):
        rng = np.random.default_rng(number)
        first, second = (target + 0.4 * rng.standard_normal(len(i)) for _ in range(2))
        write_scores(tmp_path / f"{name}1.txt", Trials(IDS, IDS, i, j, target), first)
        backwards = Trials(IDS, IDS, i[::-1], j[::-1], target[::-1])
        write_scores(tmp_path / f"{name}2.txt", backwards, second[::-1])
        write_scores(tmp_path / f"blind{name}2.txt", Trials(IDS, IDS, i, j), second)
    matrix = np.random.default_rng(2).standard_normal((len(IDS), 4)).astype(np.float32)
    write_embeddings(tmp_path / "embeddings.npz", Embeddings(IDS, matrix))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fitted_on_one_list_and_applied_to_another(place: Path) -> None:
    fitting = ("fit", "fusion", "blinddev2.txt", "dev1.txt", "--out", "fusion.json")
    assert run_command(*fitting) == 0
    fusion = load_fusion("fusion.json")
    applying = ("--fusion", "fusion.json", "--out", "fused.txt")
    assert run_command("score", "test2.txt", "test1.txt", *applying) == 0
    trials, first = read_scores("test2.txt")
    second = read_scores("test1.txt")[1][::-1]
    expected = fusion.weights[0] * first + fusion.weights[1] * second + fusion.offset
    fused_trials, fused = read_scores("fused.txt")
    np.testing.assert_allclose(fused, expected, rtol=1e-12, atol=1e-12)
    assert fused_trials.target is not None
    assert (fused_trials.target == trials.target).all()


def test_quality_measures_enter_the_fusion(place: Path) -> None:
    quality = ("--quality", "log_norm", "--embeddings", "embeddings.npz")
    fitting = ("fit", "fusion", "dev1.txt", "dev2.txt", "--out", "fusion.json")
    assert run_command(*fitting, *quality) == 0
    assert load_fusion("fusion.json").names == ("log_norm_low", "log_norm_high")
    applying = ("score", "test1.txt", "test2.txt", "--fusion", "fusion.json")
    assert run_command(*applying, "--out", "fused.txt") == 2
    assert not Path("fused.txt").exists()
    assert run_command(*applying, "--embeddings", "embeddings.npz", "--out", "fused.txt") == 0


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (("fit", "fusion", "dev1.txt"), "two score files"),
        (("fit", "fusion", "dev1.txt", "test1.txt", "other.txt"), "other.txt"),
        (("fit", "fusion", "blinddev2.txt", "blindtest2.txt"), "labels"),
        (("score", "dev1.txt"), "without --fusion"),
        (("score",), "--trials is missing"),
    ],
)
def test_wrong_use_is_said(place: Path, arguments: tuple[str, ...], keyword: str) -> None:
    write_scores("other.txt", Trials(("a",), ("b", "c"), [0, 0], [0, 1], [True, False]), [1.0, 0.0])
    assert keyword in refused(*arguments, "--out", "fusion.json")
    assert not Path("fusion.json").exists()


ITEMS = ("ann/1", "ann/2", "bob/1", "bob/2", "zoe/1")
MATRIX = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
LINES = [f"{a} {b} {int(a[:3] == b[:3])}" for i, a in enumerate(ITEMS) for b in ITEMS[i + 1 :]]


def written(folder: Path, without: set[str]) -> tuple[Path, Path]:
    """A trial list of all pairs, and embeddings that lack some."""
    rows = [k for k, name in enumerate(ITEMS) if name not in without]
    files.write_embeddings(
        folder / "z.npz", Embeddings(tuple(ITEMS[k] for k in rows), MATRIX[rows], {})
    )
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
    assert "--missing skip" in refused(*asked, "--out", out, "--force")


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
