"""Embeddings, trials and scores are checked once, and labels in place of split scores."""

from posixpath import normpath
from unicodedata import normalize

import numpy as np
import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import read_scores
from likeness.eval.metrics.verification import eer
from likeness.eval.types import Scores, Trials, ascending, item_keys, number_items, same_items


def test_embeddings_are_raw():
    matrix = np.array([[3.0, 4.0], [0.0, 0.0]])
    made = Embeddings(("a", "b"), matrix, {"model": "m"})
    assert made.matrix.dtype == np.float32
    np.testing.assert_array_equal(made.matrix, matrix)
    np.testing.assert_array_equal(made.norms, [5, 0])
    assert Embeddings(("a",), np.full((1, 4), 1e30)).norms[0] == pytest.approx(2e30)
    np.testing.assert_allclose(made.unit(), [[0.6, 0.8], [0, 0]])
    np.testing.assert_array_equal(made.matrix, matrix)  # unit() made a copy
    assert made.rows(["b", "a", "b"]).tolist() == [1, 0, 1]
    with pytest.raises(LikenessError):
        made.rows("acdefgh")


@pytest.mark.parametrize(
    ("ids", "matrix"),
    [
        (("a", "b"), np.ones((3, 2))),
        (("a", "b"), np.ones(2)),
        (("a", "b"), np.ones((2, 0))),
        (("a", "b", "a", "a"), np.ones((4, 2))),
        (("a", "b", "c"), np.array([[1, 1], [1, np.nan], [np.inf, 1]])),
    ],
)
def test_bad_embeddings(ids, matrix):
    with pytest.raises(LikenessError):
        Embeddings(ids, matrix)


def test_trials():
    rows = np.array([0, 1, 1]), np.array([0, 0, 0]), np.array([1, 0, 0])
    trials = Trials(("a", "b"), ("c",), *rows)
    assert len(trials) == 3
    assert trials.enrol.dtype == np.int32
    assert trials.target.tolist() == [True, False, False]
    assert Trials(("a",), ("c",), np.array([0]), np.array([0])).target is None
    assert len(Trials((), (), np.array([]), np.array([]))) == 0


def test_a_row_that_is_named_twice_is_a_repeat():
    trials = Trials(("a", "b"), ("c", "d"), [0, 1], [0, 1], [True, False])
    assert trials.rows(np.array([1, 1])).repeats == 1
    assert trials.rows(np.array([True, True])).repeats == 0


@pytest.mark.parametrize("ids", [("a", "b", "c"), ("./a", "b", "x//../c"), ("Zoe\u0308", "b", "c")])
def test_a_pair_with_two_labels_is_refused_in_any_order(ids):
    plain = tuple(normpath(normalize("NFC", id)) for id in ids)
    with pytest.raises(ValueError, match="labelled both"):
        Trials(ids, plain, [0, 2, 1], [1, 0, 0], [True, False, False])
    with pytest.raises(ValueError, match="both spoof and nontarget"):
        Trials(ids, plain, [0, 0], [1, 1], [0, 0], [True, False])
    trials = Trials(ids, plain, [0, 1, 2, 2], [1, 0, 2, 0], [True, True, False, False])
    assert (trials.repeats, trials.itself.tolist()) == (1, [2])


# 2**32: which int32 would change
ENROL = [[0, 2], [0, -1], [[0, 1]], [2**32, 0], [0.5, 0], [np.nan, 0]]


@pytest.mark.parametrize(
    "sides", [*((enrol, [0, 0]) for enrol in ENROL), ([0, 1], [0, 1]), ([0, 1], [0])]
)
def test_bad_trials(sides):
    with pytest.raises(LikenessError):
        Trials(("a", "b"), ("c",), *map(np.array, sides))
    with pytest.raises(LikenessError):
        Trials(("a", "b"), ("c",), [0, 1], [0, 0], [True])


def test_an_item_is_one_however_it_is_spelled(tmp_path):
    names = np.array(["a/1", "./a/1", "a//1", "b", "./b", "Zo\u00eb", "Zoe\u0308", "c"])
    rng = np.random.default_rng(0)
    first, second = ([*rng.choice(names, size)] for size in (9, 13))
    keys = [*item_keys(first), *item_keys(second)]
    numbers = np.concatenate(number_items(first, second)).tolist()
    assert numbers == [keys.index(key) for key in keys]
    pairs = [(i, j) for i in range(9) for j in range(13) if keys[i] == keys[9 + j]]
    assert np.stack(same_items(first, second), axis=1).tolist() == [list(pair) for pair in pairs]
    assert Embeddings(("a", "b"), [[1], [2]]).rows(["./b", "a"]).tolist() == [1, 0]
    path = tmp_path / "scores.txt"
    path.write_text("./b a 2.5\nc a 1.5\n")
    listed = Trials(("c", "b"), ("./a",), [0, 1], [0, 0], [True, False])
    assert read_scores(path, listed)[1].tolist() == [1.5, 2.5]


@pytest.mark.parametrize("scale", [1, 1e-13, 1e300])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_rows_stand_in_ascending_order_and_equal_ones_as_before(kind, scale):
    """Also of numbers that differ in their last digits alone, and of zeros of both signs."""
    rng = np.random.default_rng(0)
    values = np.concatenate([1 + rng.standard_normal(5_000) * scale, [0.0, -0.0, 5, -5] * 300])
    with np.errstate(over="ignore", invalid="ignore"):
        values = rng.permutation(np.clip(values, -1e9, 1e9) if kind is np.int64 else values)
        values = values.astype(kind)
    expected = np.argsort(values, kind="stable")
    np.testing.assert_array_equal(ascending(values), expected)
    assert ascending(values[:0]).size == 0


def test_scores():
    scores = Scores(np.float32([1, 2, 3]), np.array([True, False, True]))
    assert scores.values.dtype == np.float64
    assert (scores.targets.tolist(), scores.nontargets.tolist()) == ([1, 3], [2])
    for values, labels in ((np.array([0, np.nan, 1]), np.ones(3, bool)), (np.zeros(3), [1, 0])):
        with pytest.raises(LikenessError):
            Scores(values, labels)


@pytest.mark.parametrize("label", [np.nan, -1, 2, "0"])
def test_labels_that_are_no_booleans_are_refused(label):
    """As booleans all of them would be True."""
    labels = np.array([label, label])
    with pytest.raises(LikenessError):
        Scores(np.zeros(2), labels)
    with pytest.raises(LikenessError):
        Trials(("a",), ("b",), np.zeros(2, int), np.zeros(2, int), labels)
    assert Scores(np.zeros(2), np.array([0.0, 1.0])).target.tolist() == [False, True]


def test_decisions_and_whole_numbers_are_scores():
    """Two arrays of 0 and 1 are decisions; of unequal length or constant they cannot be labels; few
    whole numbers are no sign of them.
    """
    for repeats in (1, 3):
        assert eer([1, 1, 0, 1] * repeats, [0, 1, 0, 0] * repeats) == 0.25
    assert eer([0.9, 0.8, 0.5], [0, 1]) == pytest.approx(eer([0.9, 0.8, 0.5], [0.0, 1.0 + 1e-9]))
    assert eer([1.0, 1.0], [0.5, 0.25]) == 0
    assert eer([3.0, 2.0], [0.0, 1.0]) == 0
    split = Scores(np.array([1.0, 0.0] * 10 + [0.5, 0.25] * 10), np.arange(40) < 20)
    assert eer(split.targets, split.nontargets) == eer(split.targets + 1, split.nontargets + 1)
