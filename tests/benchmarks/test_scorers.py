"""benchmarks/scorers.py: its own rules derived once more in exact fractions, the scores whose
answers are counted by hand, and the command itself on a small file.

What docs/explanation/comparing.md says of these rules is measured again.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import loaded

scorers = loaded(Path(__file__).parents[2] / "benchmarks" / "scorers.py")


rows = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=14).filter(
    lambda trials: 0 < sum(target for _, target in trials) < len(trials)
)


def arrays(trials: list[tuple[int, bool]], step: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = zip(*trials, strict=True)
    return np.array(scores) * step, np.array(labels, dtype=np.int64)


def shares(rejected: list[bool], labels: np.ndarray) -> tuple[Fraction, Fraction]:
    """FRR and FAR of a decision, counted trial by trial."""
    misses = sum(no and label == 1 for no, label in zip(rejected, labels, strict=True))
    accepts = sum(not no and label == 0 for no, label in zip(rejected, labels, strict=True))
    return Fraction(misses, int(sum(labels == 1))), Fraction(accepts, int(sum(labels == 0)))


def cost(frr: Fraction, far: Fraction, p: Fraction) -> Fraction:
    return (p * frr + (1 - p) * far) / min(p, 1 - p)


# ---------------------------------------------------------------- rules


@given(rows)
def test_one_point_per_row_rejects_each_row_with_the_lower_scores_and_the_earlier_equals(
    trials: list[tuple[int, bool]],
) -> None:
    scores, labels = arrays(trials)
    points = [
        shares(
            [
                (scores[j], j) <= (scores[i], i)  # no sort: a pair of score and place
                for j in range(len(scores))
            ],
            labels,
        )
        for i in range(len(scores))
    ]
    frr, far = scorers.rates_by_row(scores, labels)
    expected = np.array(sorted(points), dtype=np.float64)
    assert np.array(sorted(zip(frr, far, strict=True))) == pytest.approx(expected)
    for p in (Fraction(1, 20), Fraction(1, 100)):
        least = min(cost(*point, p) for point in points)
        assert scorers.min_dcf_by_row(scores, labels, float(p)) == pytest.approx(float(least))
    gap = min(abs(a - b) for a, b in points)
    means = {float(a + b) / 2 for a, b in points if abs(a - b) == gap}
    # of several points at the least distance rounding picks one
    assert min(abs(scorers.eer_by_row(scores, labels) - mean) for mean in means) < 1e-12


@given(rows)
def test_kaldis_eer_is_the_first_share_of_targets_that_the_far_there_does_not_exceed(
    trials: list[tuple[int, bool]],
) -> None:
    scores, labels = arrays(trials)
    target, nontarget = np.sort(scores[labels == 1]), scores[labels == 0]
    num = len(target)
    fitting = [
        Fraction(k, num)
        for k in range(num)
        if Fraction(int(sum(nontarget >= target[k])), len(nontarget)) <= Fraction(k, num)
    ]
    expected = min([*fitting, Fraction(num - 1, num)])
    assert scorers.eer_kaldi(scores, labels) == pytest.approx(float(expected))


# ---------------------------------------------------------------- scores with exact answers

# of the sets of scorers.TINY in their order, counted by hand
EXACT = {
    ("Likeness", "EERS"): ["0", "1", "1/2", "1/4", "1/2", "3/4"],
    ("Likeness", "MIN_DCFS"): ["0", "1", "2/3", "1/2", "1", "1"],
    ("Likeness, convex_hull", "EERS"): ["0", "1/2", "2/7", "1/4", "1/2", "3/7"],
    ("Likeness, nearest", "EERS"): ["0", "1", "5/12", "1/4", "1/2", "3/4"],
    ("one point per row", "MIN_DCFS"): ["0", "1", "2/3", "1/2", "1", "1"],
    ("scikit-learn, argmin", "EERS"): ["0", "1", "1/2", "0", "0", "3/4"],
    ("Kaldi's compute-eer", "EERS"): ["0", "1/2", "2/3", "1/2", "3/4", "3/4"],
}


@pytest.mark.parametrize(("name", "metric"), EXACT)
def test_tiny_sets_have_the_answers_that_were_counted_by_hand(name: str, metric: str) -> None:
    scorer = getattr(scorers, metric)[name]
    values = [scorer(*scorers.tiny(title)) for title in scorers.TINY]
    assert values == pytest.approx([float(Fraction(text)) for text in EXACT[name, metric]])


# ---------------------------------------------------------------- the command
