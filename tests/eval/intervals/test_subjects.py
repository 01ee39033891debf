"""The subjects of trials, and the groups that target trials connect."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from likeness.eval.intervals.subjects import connected_groups, subjects_of
from tests.eval.formats.triples import PLAIN, made


def test_subjects_from_a_mapping():
    trials = made(PLAIN)
    subjects, _ = subjects_of(trials, {"a": "s", "x": "s", "y": "t", "b": "u"})
    assert (subjects[0].tolist(), subjects[1].tolist()) == ([0, 1], [0, 2])
    with pytest.raises(ValueError, match="no subject \\('b'\\)"):
        subjects_of(trials, {"a": "s", "x": "s"})
    with pytest.raises(ValueError, match="b x"):
        subjects_of(trials, {"a": "s", "x": "s", "y": "t", "b": "s"})


def test_subjects_from_paths_only_if_the_labels_agree():
    agreeing = made([("s/1", "s/2", True), ("s/1", "t/1", False), ("t/2", "t/1", True)])
    subjects, how = subjects_of(agreeing)
    assert how == "first path component of the ids"
    assert (subjects[0].tolist(), subjects[1].tolist()) == ([0, 1], [0, 1])
    subjects, how = subjects_of(
        made([("wav/1", "wav/2", True), ("wav/1", "wav/3", False), ("wav/3", "wav/4", True)])
    )
    assert how == "groups connected by target trials"
    assert subjects is not None
    enrol, probe = subjects
    assert enrol.tolist() == [probe[0], probe[1]]  # 1 with 2, and 3 with itself and 4
    assert probe[1] == probe[2] != probe[0]


def test_subjects_unknown():
    subjects, how = subjects_of(
        made([("a", "x", True), ("b", "x", True), ("b", "y", True), ("a", "y", False)])
    )
    assert subjects is None
    assert "nontarget trials lie inside" in how
    assert subjects_of(made([("s/1", "s/2", None)]))[0] is None


def test_same_id_on_both_sides_is_one_item():
    subjects, _ = subjects_of(made([("a", "b", True), ("b", "c", True), ("a", "d", False)]))
    assert subjects is not None
    enrol, probe = subjects
    assert {*enrol.tolist(), *probe[:2].tolist()} == {enrol[0]}
    assert probe[2] != enrol[0]


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=14))
def test_groups_are_what_scipy_finds_connected(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(12, 12))
    number, expected = connected_components(graph, directed=False)
    groups = connected_groups(first, second, 12)
    assert len(set(zip(groups.tolist(), expected.tolist(), strict=True))) == number
    firsts = np.unique(groups, return_index=True)[1]
    assert (groups[np.sort(firsts)] == np.arange(number)).all()
