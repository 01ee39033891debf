"""What the benchmarks over folds share: pooling, AS-norm and rows, against their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import write_scores
from likeness.eval.metrics.verification import eer
from likeness.eval.types import Trials
from tests.scripts import loaded

folds = loaded(Path(__file__).parents[2] / "benchmarks" / "folds.py")


def trials_of(speakers: str, rng: np.random.Generator) -> tuple[Trials, np.ndarray]:
    """All pairs of three recordings of each speaker, with random scores."""
    names = tuple(f"{speaker}/{number}" for speaker in speakers for number in range(3))
    enrol, probe = np.triu_indices(len(names), 1)
    target = np.array([names[i][0] == names[j][0] for i, j in zip(enrol, probe, strict=True)])
    scores = rng.standard_normal(len(enrol)) + 2 * target
    return Trials(names, names, enrol.astype(np.int32), probe.astype(np.int32), target), scores


def test_pooled_folds_have_all_trials_and_none_across(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = [trials_of(speakers, rng) for speakers in ("abc", "de")]
    files = [tmp_path / f"fold{number}.txt" for number in range(2)]
    for file, (trials, scores) in zip(files, written, strict=True):
        write_scores(file, trials, scores)
    trials, scores = folds.pooled(files)
    expected = np.concatenate([scores for _, scores in written])
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(trials.enrol_ids) == 15
    sides = {
        (trials.enrol_ids[i], trials.probe_ids[j])
        for i, j in zip(trials.enrol, trials.probe, strict=True)
    }
    assert len(sides) == 9 * 8 // 2 + 6 * 5 // 2
    assert not any((a[0] in "abc") != (b[0] in "abc") for a, b in sides)

    errors = folds.errors_of(trials, scores)
    value = errors.values["eer"]
    assert value == pytest.approx(eer(expected[trials.target], expected[~trials.target]))
    assert folds.with_interval(errors, "eer").startswith(f"{100 * value:.2f} [")
    assert folds.difference(errors, errors, "eer") == "no interval"


def test_as_norm_is_the_definition_written_as_loops() -> None:
    rng = np.random.default_rng(1)
    trials, _ = trials_of("ab", rng)
    tested = Embeddings(trials.enrol_ids, rng.standard_normal((6, 4)))
    labels = np.array(["k", "k", "l", "m", "m", "m"])
    known = Embeddings(tuple(f"t{row}" for row in range(6)), rng.standard_normal((6, 4)))
    ours = folds.normalised(trials, tested, known, labels)

    def unit(row: np.ndarray) -> np.ndarray:
        return np.asarray(row / np.linalg.norm(row))

    centre = np.mean(known.matrix, axis=0)
    speakers = [
        np.mean(
            [unit(known.matrix[row] - centre) for row in np.flatnonzero(labels == label)], axis=0
        )
        for label in ("k", "l", "m")
    ]
    for place, (i, j) in enumerate(zip(trials.enrol, trials.probe, strict=True)):
        sides = [unit(tested.matrix[row] - centre) for row in (i, j)]
        halves = []
        for side in sides:
            cohort = [float(side @ unit(speaker)) for speaker in speakers]
            halves.append((float(sides[0] @ sides[1]) - np.mean(cohort)) / np.std(cohort))
        assert ours[place] == pytest.approx(np.mean(halves), abs=1e-4)
