"""Accuracy, calibration error, temperature and AUROC against loops, the golden file and
scikit-learn.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from likeness.eval.classification import accuracy, auroc, ece, fit_temperature, softmax
from likeness.eval.errors import LikenessError

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "calibration_metrics__bruteforce.npz")


def brute_ece(confidence, correct, num_bins: int, bins: str, power: int) -> float:
    """Items one by one into lists; a tie parted by equal-mass bins gives each bin the same share of
    hits.
    """
    n = len(confidence)
    contents: list[list[tuple[float, float]]] = [[] for _ in range(num_bins)]
    for rank, i in enumerate(sorted(range(n), key=lambda i: confidence[i])):
        tied = [correct[j] for j in range(n) if confidence[j] == confidence[i]]
        where = (
            rank * num_bins // n
            if bins == "mass"
            else min(num_bins - 1, int(confidence[i] * num_bins))
        )
        contents[where].append((sum(tied) / len(tied), confidence[i]))
    total = sum(
        len(value)
        / n
        * abs(np.mean([a for a, _ in value]) - np.mean([c for _, c in value])) ** power
        for value in contents
        if value
    )
    return float(total ** (1 / power))


CONFIDENCES = st.lists(
    st.tuples(st.one_of(st.floats(0, 1), st.integers(0, 8).map(lambda i: i / 8)), st.booleans()),
    min_size=1,
    max_size=40,
)


@given(
    CONFIDENCES,
    st.integers(1, 16),
    st.sampled_from(["mass", "width"]),
    st.sampled_from([1, 2]),
    st.randoms(),
)
def test_ece_against_a_loop(items, num_bins, bins, power, random):
    confidence, correct = zip(*items, strict=True)
    result = ece(confidence, correct, num_bins=num_bins, bins=bins, power=power)
    assert result == pytest.approx(brute_ece(confidence, correct, num_bins, bins, power), abs=1e-12)
    random.shuffle(items)
    confidence, correct = zip(*items, strict=True)
    assert ece(confidence, correct, num_bins=num_bins, bins=bins, power=power) == pytest.approx(
        result, abs=1e-12
    )


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden(case):
    confidence, correct = GOLDEN[f"{case}/confidence"], GOLDEN[f"{case}/correct"]
    assert ece(confidence, correct, ties="row") == pytest.approx(
        float(GOLDEN[f"{case}/ece_l1_equal_mass15"]), abs=1e-12
    )
    assert ece(confidence, correct, ties="row", power=2) == pytest.approx(
        float(GOLDEN[f"{case}/ece_l2_equal_mass15"]), abs=1e-12
    )
    assert ece(confidence, correct, bins="width") == pytest.approx(
        float(GOLDEN[f"{case}/ece_l1_equal_width15"]), abs=1e-12
    )
    tolerance = 5e-3 if case == "c0" else 1e-12  # c0 holds tied confidences
    for power in (1, 2):
        assert ece(confidence, correct, power=power) == pytest.approx(
            float(GOLDEN[f"{case}/seed_code_lambda{power}"]), abs=tolerance
        )
    assert accuracy(GOLDEN[f"{case}/probs"], GOLDEN[f"{case}/labels"]) == pytest.approx(
        correct.mean(), abs=0.02 if case == "c0" else 1e-12
    )


def test_accuracy_shares_ties():
    assert accuracy(np.ones((5, 4)), [0, 1, 2, 3, 0]) == 0.25
    assert accuracy([[1, 0], [0, 1]], np.array([1, 0], np.uint8)) == 0


@given(CONFIDENCES, st.randoms())
def test_auroc_against_a_loop(items, random):
    confidence, correct = (np.array(value) for value in zip(*items, strict=True))
    right, wrong = confidence[correct], confidence[~correct]
    if not (right.size and wrong.size):
        with pytest.raises(LikenessError):
            auroc(confidence, correct)
        return
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong]
    assert auroc(confidence, correct) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auroc(confidence, correct) == pytest.approx(
        roc_auc_score(correct, confidence), abs=1e-12
    )
    random.shuffle(items)
    assert auroc(*zip(*items, strict=True)) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e6])
def test_temperature_is_found(scale):
    """Labels drawn from softmax(logits / T): T comes back, at any magnitude of the logits, and the
    gradient vanishes there.
    """
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4000, 5))
    probabilities = softmax(logits, 0.5)
    labels = np.array([rng.choice(5, p=probability) for probability in probabilities])
    result = fit_temperature(scale * logits, labels)
    assert result == pytest.approx(0.5 * scale, rel=0.05)
    expected = softmax(scale * logits, result)
    slope = (expected * logits).sum(axis=1) - logits[np.arange(4000), labels]
    assert abs(slope.mean()) < 1e-6
    before, after = (
        ece(p.max(axis=1), p.argmax(axis=1) == labels) for p in (softmax(logits), expected)
    )
    assert after < before / 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: accuracy([[0.5, np.nan]], [0]),
        lambda: accuracy([[0.5, 0.5]], [2]),
        lambda: accuracy([[0.5, 0.5]], [-1]),
        lambda: ece([0.5, np.nan], [1, 0]),
        lambda: ece([0.5, 1.5], [1, 0]),
        lambda: ece([0.5], [2]),
        lambda: ece([0.5], [1], bins="equal"),
        lambda: auroc([0.5, 0.4], [1, 1]),
        lambda: fit_temperature([[2.0, 1.0], [0.0, 1.0]], [0, 1]),  # every item is right
        lambda: fit_temperature([[1.0, 1.0], [1.0, 1.0]], [0, 1]),
        lambda: fit_temperature([[2.0, 1.0], [2.0, 1.0]], [1, 1]),
    ],
)
def test_bad_input(call):
    with pytest.raises(LikenessError):
        call()
