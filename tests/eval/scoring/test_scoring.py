"""Fusion, and scores where embeddings are missing."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.eval.formats.embeddings import Embeddings, read_embeddings, write_embeddings
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.metrics.calibration import load_fusion
from likeness.eval.types import Trials
from tests.scripts import refused, run_command

IDS = tuple(f"{name}/{number}" for name in "abcdef" for number in (1, 2, 3))
PAIRS = list(combinations(IDS, 2))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scores of two systems on two lists; rows of the second are in reverse."""
    i, j = np.triu_indices(len(IDS), k=1)
    target = np.array([a[0] == b[0] for a, b in PAIRS])
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
    fitting = ("fit", "fusion", "dev1.txt", "dev2.txt", *quality[:2])
    for ids, remedy in ((IDS[1:], "embed these"), ([f"{id}.wav" for id in IDS], "both alike")):
        write_embeddings("other.npz", Embeddings(tuple(ids), np.ones((len(ids), 4))))
        for command in (fitting, applying):
            said = refused(*command, "--embeddings", "other.npz", "--out", "other.json")
            assert remedy in said
            assert "--missing" not in said
            assert "--strip-extension" not in said


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (("fit", "fusion", "dev1.txt"), "two score files"),
        (("fit", "fusion", "dev1.txt", "./dev1.txt"), "is given twice"),
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


def embed_without(*lacking: str) -> None:
    rows = [k for k, name in enumerate(IDS) if name not in lacking]
    whole = read_embeddings("embeddings.npz")
    write_embeddings("few.npz", Embeddings(tuple(IDS[k] for k in rows), whole.matrix[rows]))


def test_the_rest_is_scored_as_a_list_of_the_rest_is(place: Path) -> None:
    embed_without("f/2", "f/3")
    rest = [pair for pair in PAIRS if not {"f/2", "f/3"} & {*pair}]
    for name, listed in (("trials.txt", PAIRS), ("rest.txt", rest)):
        Path(name).write_text("".join(f"{a} {b}\n" for a, b in listed))
    expected = likeness.score("rest.txt", "few.npz")
    with pytest.warns(UserWarning, match="33 of 153 trials .* 2 ids have"):
        scored = likeness.score("trials.txt", "few.npz", missing="skip")
    np.testing.assert_array_equal(scored.values, expected.values)
    scored.save("scores.txt")
    lines = Path("scores.txt").read_text().splitlines()
    assert [tuple(line.split()[:2]) for line in lines] == rest
    assert "trials.txt, without 33 of 153 trials" in Path("scores.txt.origin.json").read_text()
    with pytest.raises(ValueError, match="--missing skip"):
        likeness.score("trials.txt", "few.npz")


def test_a_model_without_all_of_its_items_is_left_out(place: Path) -> None:
    embed_without("a/2")
    trials = Trials(("a", "b"), ("f/1", "b/2"), [0, 0, 1], [0, 1, 1])
    models = {"a": ["a/1", "a/2"], "b": ["b/1"]}
    with pytest.warns(UserWarning, match="2 of 3 trials are left out"):
        scored = likeness.score(trials, "few.npz", models=models, missing="skip")
    whole = likeness.score(Trials(("b/1",), ("b/2",), [0], [0]), "few.npz")
    np.testing.assert_allclose(scored.values, whole.values, rtol=1e-6)


def test_nothing_is_left_out_without_need_and_not_everything(place: Path) -> None:
    trials = Trials(("a/1",), ("b/1", "b/2"), [0, 0], [0, 1])
    assert len(likeness.score(trials, "embeddings.npz", missing="skip")) == 2
    embed_without("a/1")
    with pytest.raises(ValueError, match="no embedding for"):
        likeness.score(trials, "few.npz", missing="skip")


def test_the_mean_to_subtract_may_be_given_itself(place: Path) -> None:
    rows = read_embeddings("embeddings.npz").matrix
    np.save("mean.npy", rows.mean(axis=0, dtype=np.float64))
    np.save("rows.npy", rows)
    scores = []
    for mean_of in ("embeddings.npz", "rows.npy", "mean.npy"):
        words = ("--embeddings", "embeddings.npz", "--subtract-mean", mean_of)
        assert run_command("score", "--trials", "dev1.txt", *words, "--out", f"{mean_of}.txt") == 0
        scores.append(read_scores(f"{mean_of}.txt")[1])
    np.testing.assert_array_equal(scores[1], scores[0])
    np.testing.assert_allclose(scores[2], scores[0], atol=1e-6)
