"""Embeddings in Parquet: bit-exact round trips, read by pyarrow alone, written whole or
not at all, hostile files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from eval.errors import LikenessError
from eval.formats import embeddings as module
from eval.formats.embeddings import read, write
from eval.types import Embeddings
from tests.likeness.files_scored import score_files

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[3]
SMALL = Embeddings(
    ("a/1.wav", "b:2", "ü"),
    np.array([[1.5, -0.0], [5e-45, 3e38], [0, 0]], dtype=np.float32),
    {"similarity": "cosine", "model": "abc"},
)
FILES = ("e.parquet",)


def equal(a: Embeddings, b: Embeddings) -> bool:
    return (
        a.ids == b.ids
        and a.matrix.tobytes() == b.matrix.tobytes()
        and a.matrix.shape == b.matrix.shape
        and dict(a.meta) == dict(b.meta)
    )


@pytest.mark.parametrize("name", FILES)
def test_round_trip_and_replacement(tmp_path, name):
    write(tmp_path / name, SMALL)
    assert equal(read(tmp_path / name), SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    # several batches
    large = Embeddings(
        tuple(f"i{k}" for k in range(40_000)),
        np.random.default_rng(0).standard_normal((40_000, 5), dtype=np.float32),
    )
    write(tmp_path / name, large)
    assert equal(read(tmp_path / name), large)
    none = Embeddings((), np.zeros((0, 3), np.float32), {"x": "ü"})
    write(tmp_path / name, none)
    assert equal(read(tmp_path / name), none)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.data(),
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.sampled_from(FILES),
)
def test_any_values_and_ids(tmp_path, data, matrix, meta, name):
    letters = st.characters(exclude_categories=["Cs"])
    ids = data.draw(
        st.lists(
            st.text(letters, min_size=1, max_size=8),
            min_size=len(matrix),
            max_size=len(matrix),
            unique=True,
        )
    )
    expected = Embeddings(tuple(ids), matrix, meta)
    write(tmp_path / name, expected)
    assert equal(read(tmp_path / name), expected)


def test_consumers_find_ids_vectors_norms_and_meta(tmp_path):
    """By pyarrow and numpy alone, as someone else's program would."""
    for name in ("e.npz", *FILES):
        write(tmp_path / name, SMALL)
    table = parquet.read_table(tmp_path / "e.parquet")
    assert table.column("id").to_pylist() == list(SMALL.ids)
    assert table.column("norm").to_numpy().tobytes() == SMALL.norms.tobytes()
    assert np.stack(table.column("vector").to_numpy()).tobytes() == SMALL.matrix.tobytes()
    assert json.loads(table.schema.metadata[b"likeness"]) == dict(SMALL.meta)
    with np.load(tmp_path / "e.npz") as contents:
        assert contents["norms"].tobytes() == SMALL.norms.tobytes()


def test_wespeakers_and_speechbrains_scoring_read_ours(tmp_path):
    """WeSpeaker's bin/score.py: a dict by kaldiio, a mean subtracted, cosines.

    SpeechBrain's verification: a dict of arrays by id, cosines of tensors.
    """
    kaldiio = pytest.importorskip("kaldiio")
    rng = np.random.default_rng(0)
    embedded = Embeddings(
        tuple(f"s{k}/{k}.wav" for k in range(6)),
        rng.standard_normal((6, 8), dtype=np.float32),
        {"similarity": "cosine"},
    )
    (tmp_path / "trials").write_text(
        "".join(
            f"{a} {b} {'target' if a < b else 'nontarget'}\n"
            for a in embedded.ids
            for b in embedded.ids
            if a != b
        )
    )
    write(tmp_path / "e.ark", embedded)
    write(tmp_path / "e.npz", embedded)
    by_kaldiio = dict(kaldiio.load_scp_sequential(str(tmp_path / "e.scp")))
    with np.load(tmp_path / "e.npz", allow_pickle=False) as archive:
        by_numpy = dict(zip(archive["ids"].tolist(), archive["matrix"], strict=True))
    names = ["e.npz", "e.ark", "e.scp", *FILES]
    made = {}
    for name in names:
        if not (tmp_path / name).exists():
            write(tmp_path / name, embedded)
        score_files(tmp_path / "trials", tmp_path / name, tmp_path / "scores")
        made[name] = (tmp_path / "scores").read_bytes()
    assert len(set(made.values())) == 1, "the same scores, whatever the format"
    for line in made["e.npz"].decode().splitlines():
        a, b, score, _ = line.split()
        for rows in (by_kaldiio, by_numpy):
            cosine = np.dot(rows[a], rows[b]) / (np.linalg.norm(rows[a]) * np.linalg.norm(rows[b]))
            assert float(score) == pytest.approx(float(cosine), abs=1e-6)


def test_ids_that_a_format_cannot_give_back(tmp_path):
    with pytest.raises(ValueError, match="1 ids"):
        write(tmp_path / "e.parquet", Embeddings(("a\ud800", "fine"), np.ones((2, 2))))
    assert list(tmp_path.iterdir()) == []


def arrow_file(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_parquet_of_others(tmp_path):
    path = tmp_path / "e.parquet"
    rows = [[1.0, 2.0], [3.0, 4.0]]
    arrow_file(path, id=["a", "b"], more=[1, 2], vector=pa.array(rows, pa.list_(pa.float64())))
    assert equal(read(path), Embeddings(("a", "b"), np.array(rows)))
    deep = pa.array([[0.0] * 50], pa.list_(pa.float32()))
    for columns in [
        {"id": ["a"], "scores": [1.0]},
        {"id": ["a"], "x": [[1.0]], "y": [[1.0]]},
        {"x": ["a"], "y": ["b"], "vector": [[1.0]]},
        {"id": [1], "vector": [[1.0]]},
        {"id": ["a"], "vector": [[1]]},
        {"id": ["a"], "vector": [[[1.0]]]},
        {"id": ["a"], "vector": [1.0]},
        {"id": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]},
        {"id": ["a"], "vector": pa.array([[]], pa.list_(pa.float32()))},
        {"id": ["a", None], "vector": [[1.0], [2.0]]},
        {"id": ["a", "b"], "vector": [[1.0], [None]]},
        {"id": ["a", "a"], "vector": [[1.0], [2.0]]},
        {"id": ["a"], "vector": [[float("nan")]]},
        {"id": [str(k) for k in range(70_000)], "vector": pa.concat_arrays([deep] * 70_000)},
    ]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "FREE_EXPANSION", 1 << 20)
            patched.setattr(module, "EXPANSION", 2)
            with pytest.raises(LikenessError, match=r"e\.parquet") as caught:
                read(arrow_file(path, **columns))
        assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize("index", [False, True])
def test_pandas_embeddings_have_a_list_column(tmp_path, index):
    frame = pd.DataFrame(
        {"file": ["a", "b"], "who": ["x", "y"], "embedding": [[1.0, 2.0], [3.0, 4.0]]}
    )
    if index:
        frame = frame.drop(columns="who").set_index("file")
    frame.to_parquet(tmp_path / "e.parquet")
    expected = Embeddings(("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert equal(read(tmp_path / "e.parquet"), expected)


def test_a_flipped_bit_of_a_parquet_file_is_refused(tmp_path):
    path = tmp_path / "e.parquet"
    write(path, SMALL)
    content = path.read_bytes()
    for part in (b"b:2", SMALL.matrix.tobytes()):
        place = content.index(part)
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            read(path)


def test_a_parquet_file_is_read_without_pandas(tmp_path):
    """Importing it takes ten times as long as reading, in every process that reads such a file."""
    pytest.importorskip("pyarrow")
    write(tmp_path / "e.parquet", Embeddings(("a", "b"), np.eye(2)))
    code = (
        "import sys; from eval.formats.embeddings import read; "
        "read(sys.argv[1]); print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "e.parquet")]
    read_apart = subprocess.run(command, capture_output=True, text=True, check=True)
    assert read_apart.stdout == "False\n"


def test_a_small_parquet_file_does_not_become_a_large_matrix(tmp_path, monkeypatch):
    """Equal values take next to nothing in a dictionary: vectors are counted before any is read."""
    monkeypatch.setattr(module, "FREE_EXPANSION", 1 << 20)
    monkeypatch.setattr(module, "EXPANSION", 2)
    path, count = tmp_path / "e.parquet", 70_000
    deep = pa.concat_arrays([pa.array([[0.5] * 50], pa.list_(pa.float32()))] * count)
    arrow_file(path, id=[str(k) for k in range(count)], vector=deep)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=f"its embeddings would take {4 * 50 * count} bytes"):
        read(path)


def test_a_failed_write_leaves_the_old_files(tmp_path, monkeypatch):
    for name in FILES:
        write(tmp_path / name, SMALL)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in FILES:
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / name, Embeddings(("z",), np.ones((1, 2))))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
