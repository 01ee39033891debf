"""Trials and scores in .parquet files, our own and those of others."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from likeness import Embeddings, LikenessError, Trials
from likeness.eval.formats import _trial_writing, files
from likeness.eval.formats.embeddings import read_embeddings
from likeness.eval.formats.trials import read_scores, read_trials, write_scores, write_trials
from tests.eval.formats.triples import rows


@pytest.fixture
def parquet(tmp_path):
    """Writes a .parquet file of other people."""

    def parquet(**columns: object) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "list.parquet")
        return tmp_path / "list.parquet"

    return parquet


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"model-id": ["a", "b"], "Test": ["x", "x"], "target": ["tgt", "imp"]}, True),
        ({"enrol": ["a", "b"], "probe": ["x", "x"], "is_same": [1, 0], "note": ["", ""]}, True),
        ({"key": [1.0, 0.0], "id1": ["a", "b"], "id2": ["x", "x"]}, True),
        ({"probe": ["x", "x"], "enroll": ["a", "b"]}, None),
    ],
)
def test_columns_have_the_names_of_header_lines(parquet, columns, label):
    expected = [("a", "x", label), ("b", "x", None if label is None else False)]
    assert rows(read_trials(parquet(**columns))) == expected


def test_scores_of_others_may_be_narrow_and_ids_numbers(parquet):
    llr = np.array([0.1, 2], np.float32)
    trials, values = read_scores(parquet(enrol=np.array([12, 3]), probe=np.array([7, 7]), llr=llr))
    assert rows(trials) == [("12", "7", None), ("3", "7", None)]
    assert values.tolist() == [float(np.float32(0.1)), 2.0]


@pytest.mark.parametrize(
    "columns",
    [
        {"enrol": ["a"], "other": ["x"]},
        {"enrol": ["a"], "model": ["b"], "probe": ["x"]},
        {"enrol": ["a", None], "probe": ["x", "x"]},
        {"enrol": ["a", "b"], "probe": ["x", "x"], "label": [None, True]},
        {"enrol": [["a"]], "probe": ["x"]},
        {"enrol": ["a"], "probe": ["x"], "label": ["maybe"]},
        {"enrol": np.array([], dtype=str), "probe": np.array([], dtype=str)},
        {"enrol": [b"a"], "probe": ["x"]},
        {"enrol": ["a" * (files.MAX_LINE + 1)], "probe": ["x"]},
        {"enrol": ["a", "b"], "probe": ["x", "x"], "score": [None, 1.0]},
    ],
)
def test_refused_in_a_short_sentence(parquet, columns):
    path = parquet(**columns)
    read = read_scores if "score" in columns else read_trials
    with pytest.raises(LikenessError, match=r"list\.parquet") as caught:
        read(path)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_damaged_files_and_ids_that_cannot_be_kept(tmp_path):
    path = tmp_path / "list.parquet"
    path.write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(LikenessError, match=r"list\.parquet"):
        read_trials(path)
    before = path.read_bytes()
    for bad in ("", "\ud800"):
        with pytest.raises(ValueError, match=r"ids|UTF-8"):
            write_trials(path, Trials((bad,), ("x",), [0], [0]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_expands_is_refused(tmp_path, monkeypatch):
    many = np.zeros(100_000, dtype=np.int32)
    write_trials(tmp_path / "list.parquet", Trials(("a",), ("x",), many, many))
    monkeypatch.setattr(files, "FREE_EXPANSION", 1 << 10)
    monkeypatch.setattr(files, "EXPANSION", 1)
    with pytest.raises(LikenessError, match="at most"):
        read_trials(tmp_path / "list.parquet")


@pytest.mark.parametrize("rows_of_group", [1, 7, 1000])
def test_ids_are_numbered_as_those_of_text(tmp_path, monkeypatch, rows_of_group):
    """The order of the numbers decides which subjects the bootstrap draws."""
    monkeypatch.setattr(_trial_writing, "_ROWS_OF_GROUP", rows_of_group)
    ids, rng = tuple(f"s{k}" for k in range(9)), np.random.default_rng(0)
    trials = Trials((*ids, "in no trial"), ids, *rng.integers(9, size=(2, 30)))
    read = []
    for name in ("list.txt", "list.parquet"):
        write_trials(tmp_path / name, trials)
        read.append(read_trials(tmp_path / name))
    assert read[0].enrol_ids == read[1].enrol_ids
    assert read[0].probe_ids == read[1].probe_ids
    assert rows(read[0]) == rows(read[1]) == rows(trials)
    assert "in no trial" not in read[1].enrol_ids


def test_a_flipped_bit_is_no_other_score_and_no_other_embedding(tmp_path):
    path, values = tmp_path / "list.parquet", np.random.default_rng(0).standard_normal(50)
    ids = tuple(f"id {i}" for i in range(50))
    rows = Embeddings(ids, values[:, None])
    trials = Trials(("a",), ids, np.zeros(50, int), np.arange(50))
    for write, read, name, stored in (
        (lambda: write_scores(path, trials, values), read_scores, b"id 0", values),
        (lambda: rows.save(path), read_embeddings, b"id 30", rows.matrix),
    ):
        write()
        content = path.read_bytes()
        for part in (name, stored[20:22].tobytes()):
            place = content.index(part)
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(LikenessError, match="damaged"):
                read(path)
