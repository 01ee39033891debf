"""Subjects: from a mapping file, from the ids, from the labels, and where they cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest

from likeness.eval.formats.subjects import read_mapping, subjects_of
from tests.eval.formats.triples import PLAIN, made


@pytest.fixture
def put(tmp_path):
    def put(content: str) -> Path:
        path = tmp_path / "list.txt"
        path.write_text(content)
        return path

    return put


def test_mapping(put):
    assert read_mapping(put("u1 s1\nu2 s1\n# x\nu1 s1\n")) == {"u1": "s1", "u2": "s1"}
    assert read_mapping(put("u1,John Doe\nu2,s\n")) == {"u1": "John Doe", "u2": "s"}
    with pytest.raises(ValueError, match="'u1'"):
        read_mapping(put("u1 s1\nu2 s1\nu1 s2\n"))
    with pytest.raises(ValueError, match="fields"):
        read_mapping(put("u1 s1 x\n"))
    with pytest.raises(ValueError, match="no subject"):
        read_mapping(put("u1,s\nu2,\n"))


def test_subjects_from_a_mapping():
    trials = made(PLAIN)
    subjects, _ = subjects_of(trials, {"a": "s", "x": "s", "y": "t", "b": "u"})
    assert subjects is not None
    assert (subjects[0].tolist(), subjects[1].tolist()) == ([0, 1], [0, 2])
    with pytest.raises(ValueError, match="'b' has no subject"):
        subjects_of(trials, {"a": "s", "x": "s"})
    with pytest.raises(ValueError, match="b x"):
        subjects_of(trials, {"a": "s", "x": "s", "y": "t", "b": "s"})


def test_subjects_from_paths_only_if_the_labels_agree():
    agreeing = made([("s/1", "s/2", True), ("s/1", "t/1", False), ("t/2", "t/1", True)])
    subjects, how = subjects_of(agreeing)
    assert how == "first path component of the ids"
    assert subjects is not None
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
