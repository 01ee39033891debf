"""Metrics of classification, and values item by item."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.intervals import per_item
from likeness.eval.intervals.bootstrap import Drawn, bounds
from likeness.eval.intervals.per_item import PerItem
from likeness.eval.metrics import classification
from likeness.eval.metrics.classification import accuracy, auroc, ece, fit_temperature, softmax

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "calibration_metrics__bruteforce.npz")


def brute_ece(confidence, correct, num_bins: int, bins: str, power: int) -> float:
    """Items one by one into lists; a tie parted by equal-mass bins gives each bin the same share of
    hits.
    """
    n = len(confidence)
    contents: list[list[tuple[float, float]]] = [[] for _ in range(num_bins)]
    for rank, i in enumerate(sorted(range(n), key=lambda i: confidence[i])):
        tied = [correct[j] for j in range(n) if confidence[j] == confidence[i]]
        by_width = min(num_bins - 1, int(confidence[i] * num_bins))
        where = rank * num_bins // n if bins == "mass" else by_width
        contents[where].append((sum(tied) / len(tied), confidence[i]))
    total = 0.0
    for value in filter(None, contents):
        hits, confidences = np.mean(value, axis=0)
        total += len(value) / n * abs(hits - confidences) ** power
    return float(total ** (1 / power))


CONFIDENCE = st.one_of(st.floats(0, 1), st.integers(0, 8).map(lambda i: i / 8))
CONFIDENCES = st.lists(st.tuples(CONFIDENCE, st.booleans()), min_size=1, max_size=40)


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
    again = ece(*zip(*items, strict=True), num_bins=num_bins, bins=bins, power=power)
    assert again == pytest.approx(result, abs=1e-12)


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden(case):
    confidence, correct = GOLDEN[f"{case}/confidence"], GOLDEN[f"{case}/correct"]
    tied = {"abs": 5e-3 if case == "c0" else 1e-12}  # c0 holds tied confidences, cut by their rows
    for name, arguments, tolerance in (
        ("ece_l1_equal_mass15", {}, tied),
        ("ece_l2_equal_mass15", {"power": 2}, tied),
        ("seed_code_lambda1", {}, tied),
        ("seed_code_lambda2", {"power": 2}, tied),
        ("ece_l1_equal_width15", {"bins": "width"}, {"abs": 1e-12}),
    ):
        expected = float(GOLDEN[f"{case}/{name}"])
        assert ece(confidence, correct, **arguments) == pytest.approx(expected, **tolerance)
    found = accuracy(GOLDEN[f"{case}/probs"], GOLDEN[f"{case}/labels"])
    assert found == pytest.approx(correct.mean(), abs=0.02 if case == "c0" else 1e-12)


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
    both = (softmax(logits), expected)
    before, after = (ece(p.max(axis=1), p.argmax(axis=1) == labels) for p in both)
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


def measured(
    columns: dict[str, list[float]], groups: list[int] | None = None, over: str = "classes"
) -> PerItem:
    arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    size = len(next(iter(arrays.values())))
    numbers = None if groups is None else np.array(groups, dtype=np.int32)
    return PerItem(tuple(f"item{i}" for i in range(size)), arrays, numbers, over)


def test_metrics_are_taken_of_columns_where_items_have_a_value():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(12), rng.integers(0, 2, 12).astype(np.float64)
    columns = {"scaled": confidence, "norm": confidence, "correct": correct}
    found = per_item.calibration_error(columns, confidence="scaled", num_bins=3, power=2)
    assert found == classification.ece(confidence, correct, num_bins=3, power=2)
    assert per_item.norm_auroc(columns) == classification.auroc(confidence, correct)
    queries = {"norm": confidence, "recall@1": np.where(correct == 1, 0.5, np.nan)}
    assert np.isnan(per_item.norm_auroc(queries, correct="recall@1"))
    assert per_item.mean({"x": np.array([1.0, np.nan, 4.0])}, column="x") == 2.5
    assert np.isnan(per_item.mean({"x": np.array([np.nan])}, column="x"))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(-3, 3)), min_size=1, max_size=15),
    st.booleans(),
    st.integers(0, 3),
)
def test_resamples_are_those_of_a_slow_loop(items, grouped, seed):
    values, groups = [value for value, _ in items], [group for _, group in items]
    first = measured({"x": values, "y": values[::-1]}, groups if grouped else None)
    metrics = {
        "x": partial(per_item.mean, column="x"),
        "size": lambda columns: float(columns["x"].size),
    }
    result = per_item.resample(metrics, first, num_resamples=6, seed=seed)
    own = groups if grouped else list(range(len(values)))
    members = [[i for i, group in enumerate(own) if group == name] for name in sorted(set(own))]
    rng = np.random.default_rng(seed)
    for number in range(6):
        draw = rng.integers(len(members), size=len(members))
        rows = [i for drawn in draw for i in members[drawn]]
        expected = sum(values[i] for i in rows) / len(rows)
        assert result["x"][number] == pytest.approx(expected, abs=1e-12)
        assert result["size"][number] == len(rows)
    assert first.num_groups == len(members)


def test_draws_without_a_value_are_nan_and_left_out():
    """One wrong item of 5: (4/5)^5 of the draws lose it, and have no AUROC."""
    first = measured({"norm": [5.0, 4.0, 3.0, 2.0, 1.0], "correct": [1.0, 1.0, 1.0, 1.0, 0.0]})
    values = per_item.resample({"auroc": per_item.norm_auroc}, first, num_resamples=2000)["auroc"]
    share = 0.8**5 + 0.2**5  # or all are the wrong one
    standard = (share * (1 - share) / 2000) ** 0.5
    assert np.isnan(values).mean() == pytest.approx(share, abs=4 * standard)
    assert "same value" in bounds(values, 1.0, 0.95, Drawn(40, "items")).note


def test_the_digest_is_of_what_was_measured_not_of_the_values():
    first = measured({"x": [1.0, 2.0]}, [0, 1])
    assert first.digest == measured({"x": [3.0, 4.0], "y": [0.0, 0.0]}, [0, 1]).digest
    others = [measured({"x": [1.0, 2.0]}, *more) for more in ((), ([0, 0],), ([0, 1], "items"))]
    others += [measured({"x": [1.0]}, [0])]
    assert len({first.digest, *(other.digest for other in others)}) == 5


@pytest.mark.parametrize("groups", [None, [3, 0, 3]])
def test_what_is_written_is_read(tmp_path, groups):
    written = measured({"map@r": [0.5, float("nan"), -0.0], "norm": [1.0, 2.0, 3.0]}, groups)
    written = replace(written, ids=("Zoë/1", "a b", "#\t"))
    per_item.write(tmp_path / "test.npz", written)
    loaded = per_item.read(tmp_path / "test.npz")
    assert (loaded.ids, loaded.over, loaded.digest) == (written.ids, written.over, written.digest)
    for name, column in written.columns.items():
        np.testing.assert_array_equal(loaded.columns[name], column)


def test_other_files_and_lengths_that_differ_are_refused(tmp_path):
    path = tmp_path / "test.npz"
    names, over = np.array(["a", "b"]), np.array('"items"')
    for arrays in (
        {"over": over, "column.x": np.zeros(2)},
        {"over": over, "ids": names, "column.x": np.zeros(3)},
        {"over": over, "ids": names, "column.x": np.zeros(2), "groups": np.zeros(1, np.int32)},
        {"over": over, "ids": names[:0], "column.x": np.zeros(0)},
    ):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(LikenessError):
            per_item.read(path)
    path.write_text("no archive")
    with pytest.raises(LikenessError):
        per_item.read(path)
    with pytest.raises(FileNotFoundError):
        per_item.read(tmp_path / "absent.npz")
