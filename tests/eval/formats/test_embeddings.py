"""Embedding files: bit-exact round trips in every format, kaldiio and pyarrow as peers, the tables
of others, and hostile files.
"""

import json
import struct
from pathlib import Path
from typing import Any

import kaldiio
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pyarrow import parquet

from likeness.eval.errors import LikenessError
from likeness.eval.formats import files
from likeness.eval.formats.embeddings import Embeddings, read_embeddings, write_embeddings
from likeness.eval.types import nfc

NAMES = ("e.npz", "e.ark", "e.parquet")
SMALL = Embeddings(
    ("a/1.wav", "b:2", "ü"),
    np.array([[1.5, -0.0], [5e-45, 3e38], [0, 0]], dtype=np.float32),
    {"similarity": "cosine", "model": "abc"},
)
IDS, GOOD = np.array(["a", "b"]), np.ones((2, 3), np.float32)


def equal(a: Embeddings, b: Embeddings) -> bool:
    parts = [(of.ids, of.matrix.shape, of.matrix.tobytes(), dict(of.meta)) for of in (a, b)]
    return parts[0] == parts[1]


@pytest.mark.parametrize("name", [*NAMES, "E.NPZ", "a.b.ark"])
def test_round_trip_and_replacement(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    num = 40_000 if name == "e.parquet" else 4_000  # of which a .parquet has several batches
    rows = np.random.default_rng(0).standard_normal((num, 5), dtype=np.float32)
    dim = 1 if name.endswith("ark") else 3  # an archive has no place for the dimension of none
    none = Embeddings((), np.zeros((0, dim), np.float32), {"x": "ü"})
    for embeddings in (SMALL, none, Embeddings(tuple(f"i{k}" for k in range(num)), rows)):
        write_embeddings(path, embeddings)
        assert equal(read_embeddings(path), embeddings)
        if name.endswith("ark"):
            assert equal(read_embeddings(path.with_suffix(".scp")), embeddings)
    assert len(list(tmp_path.iterdir())) == (3 if name.endswith("ark") else 1)


@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.data(),
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_any_values_and_ids(tmp_path, name, data, matrix, meta):
    # a backslash is read as /
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\\")
    texts = st.text(letters, min_size=1, max_size=8).map(nfc)
    allowed = texts.filter(lambda one: not one.endswith("\0"))
    if name == "e.ark":
        allowed = texts.filter(lambda one: one.split() == [one])
    size = len(matrix)
    ids = data.draw(st.lists(allowed, min_size=size, max_size=size, unique=True))
    expected = Embeddings(tuple(ids), matrix, meta)
    write_embeddings(tmp_path / name, expected)
    assert equal(read_embeddings(tmp_path / name), expected)


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    """By numpy, pyarrow and kaldiio alone, as someone else's program would."""
    for name in NAMES:
        write_embeddings(tmp_path / name, SMALL)
    table = parquet.read_table(tmp_path / "e.parquet")
    assert table.column("id").to_pylist() == list(SMALL.ids)
    assert table.column("norm").to_numpy().tobytes() == SMALL.norms.tobytes()
    assert np.stack(table.column("vector").to_numpy()).tobytes() == SMALL.matrix.tobytes()
    assert json.loads(table.schema.metadata[b"likeness"]) == dict(SMALL.meta)
    with np.load(tmp_path / "e.npz") as contents:
        assert contents["norms"].tobytes() == SMALL.norms.tobytes()
    by_ark = dict(kaldiio.load_ark(str(tmp_path / "e.ark")))
    for loaded in (by_ark, dict(kaldiio.load_scp(str(tmp_path / "e.scp")))):
        assert list(loaded) == list(SMALL.ids)
        assert np.stack(list(loaded.values())).tobytes() == SMALL.matrix.tobytes()


def test_what_kaldiio_writes(tmp_path: Path) -> None:
    rows = dict(zip(SMALL.ids, SMALL.matrix, strict=True))
    path, expected = str(tmp_path / "k.ark"), Embeddings(SMALL.ids, SMALL.matrix)
    kaldiio.save_ark(path, rows, scp=str(tmp_path / "k.scp"))
    assert equal(read_embeddings(tmp_path / "k.scp"), expected)
    (tmp_path / "k.meta.json").write_text('{"similarity": "dot"}')  # by hand
    for name in ("k.ark", "k.scp"):
        assert read_embeddings(tmp_path / name).meta == {"similarity": "dot"}
    (tmp_path / "k.meta.json").unlink()
    doubles = {name: row.astype(np.float64) for name, row in rows.items()}
    for written in (rows, doubles, {name: row[None] for name, row in rows.items()}):
        kaldiio.save_ark(path, written)
        assert equal(read_embeddings(path), expected)


def test_paths_of_a_scp_start_at_its_folder_and_fields_end_at_blanks_or_tabs(tmp_path, monkeypatch):
    folder = tmp_path / "a\tb"  # a tab in the path stays
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_embeddings("e.ark", SMALL)
    monkeypatch.chdir(tmp_path)
    assert equal(read_embeddings(folder / "e.scp"), SMALL)
    write_embeddings("a\tb/e.ark", SMALL)
    monkeypatch.chdir(folder)
    assert equal(read_embeddings("e.scp"), SMALL)
    monkeypatch.chdir(tmp_path)
    folder = folder.rename(tmp_path / "moved\tto")
    assert equal(read_embeddings(folder / "e.scp"), SMALL)
    write_embeddings(folder / "e.ark", SMALL)
    lines = zip((folder / "e.scp").read_text().splitlines(), ("\t", " \t ", "  "), strict=True)
    (folder / "e.scp").write_text("\n".join(line.replace(" ", mark, 1) for line, mark in lines))
    assert equal(read_embeddings(folder / "e.scp"), SMALL)


def test_a_list_of_many_names_for_one_vector_keeps_the_bound(tmp_path, monkeypatch):
    """Also where lines write the archive's path in other ways."""
    paths = ["e.ark", "d/../e.ark", "d/../d/../e.ark"]
    monkeypatch.setattr(files, "FREE_EXPANSION", 1_000)
    monkeypatch.setattr(files, "EXPANSION", 10)
    write_embeddings(tmp_path / "e.ark", Embeddings(("a",), np.ones((1, 50), np.float32)))
    size = (tmp_path / "e.ark").stat().st_size
    (tmp_path / "d").mkdir()
    allowed = 10 * size // 200
    lines = [f"u{k} {tmp_path}/{paths[k % len(paths)]}:2\n" for k in range(allowed + 1)]
    (tmp_path / "e.scp").write_text("".join(lines[:allowed]))
    assert read_embeddings(tmp_path / "e.scp").matrix.shape == (allowed, 50)
    (tmp_path / "e.scp").write_text("".join(lines))
    with pytest.raises(LikenessError, match=f"{10 * size} bytes"):
        read_embeddings(tmp_path / "e.scp")


@pytest.mark.parametrize("name", ["e.hdf5", "e.pkl", "e", "e.pt"])
def test_other_suffixes(tmp_path: Path, name: str) -> None:
    with pytest.raises(LikenessError, match=r"\.npz"):
        write_embeddings(tmp_path / name, SMALL)
    with pytest.raises(LikenessError, match=r"\.scp"):
        read_embeddings(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("e.npz", "a\0"), ("e.ark", "a b"), ("e.ark", ""), ("e.ark", "a\n"), ("e.parquet", "\ud800")],
)
def test_writing_refuses_ids_it_cannot_give_back(tmp_path: Path, name: str, bad: str) -> None:
    with pytest.raises(LikenessError, match="ids"):
        write_embeddings(tmp_path / name, Embeddings((bad, "fine"), np.ones((2, 2))))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "entry", ["mkdir {trap} |", "| mkdir {trap}", "e.ark:2[0:2]", "`mkdir {trap}`", "", "e.ark:999"]
)
def test_commands_and_broken_lines_in_scp_are_refused(tmp_path: Path, entry: str) -> None:
    trap = tmp_path / "sprung"
    write_embeddings(tmp_path / "e.ark", SMALL)
    (tmp_path / "e.scp").write_text(f"a {entry.format(trap=trap)}\n")
    with pytest.raises(LikenessError, match="line 1"):
        read_embeddings(tmp_path / "e.scp")
    assert not trap.exists()


def test_an_archive_expands_within_its_bound(tmp_path, monkeypatch):
    path = tmp_path / "e.npz"
    np.savez_compressed(path, ids=IDS, matrix=np.zeros((2, 1_000_000), np.float32))
    assert read_embeddings(path).matrix.shape == (2, 1_000_000)
    monkeypatch.setattr(files, "FREE_EXPANSION", 1_000)
    with pytest.raises(LikenessError, match="expands to over"):
        read_embeddings(path)


@pytest.mark.parametrize("name", ["e.npz", "e.ark", "e.scp"])
def test_every_truncation_is_noticed(tmp_path: Path, name: str) -> None:
    write_embeddings(tmp_path / name.replace("scp", "ark"), SMALL)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / "cut").mkdir()
    path = tmp_path / "cut" / name
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            loaded = read_embeddings(path)
        except LikenessError:
            continue
        # archives of fewer whole entries are valid, and a .scp may lose its last newline or entries
        assert name != "e.npz"
        assert loaded.ids == SMALL.ids[: len(loaded.ids)]
        assert loaded.matrix.tobytes() == SMALL.matrix[: len(loaded.ids)].tobytes()


def arrow_file(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


VECTOR = b"\0BFV \4" + struct.pack("<iff", 2, 1, 3)
NO_EMBEDDINGS: dict[str, list[Any]] = {
    "e.npz": [
        {"ids": np.ones(2), "matrix": GOOD},
        {"ids": IDS, "matrix": GOOD.astype(complex)},
        {"ids": np.array(["a", "b"], object), "matrix": GOOD},
        {"ids": IDS, "matrix": np.ones((3, 3), np.float32)},
        {"ids": np.array(["a", "a"]), "matrix": GOOD},
        {"ids": IDS, "matrix": np.full((2, 3), np.nan, np.float32)},
        {"ids": IDS, "matrix": GOOD, "meta": np.array("{")},
        {"ids": IDS, "matrix": GOOD, "meta": np.array("[1]")},
        {"ids": IDS, "matrix": GOOD, "meta": np.array('{"a": 1}')},
    ],
    "e.ark": [
        b"a \0BFV \4" + struct.pack("<i", -1),
        b"a \0BFV \4" + struct.pack("<i", 3) + b"1234",
        b"a \0BFM \4" + struct.pack("<i", 2) + b"\4" + struct.pack("<i", 1) + b"12345678",
        b"a \0BCM \4" + b"0" * 20,
        b"a [ 1 2 ]\n",
        b"a " + VECTOR + b"b " + VECTOR.replace(b"\2", b"\1")[:-4],
        b"a " + VECTOR + b"a " + VECTOR,
        b"a " + VECTOR[:-4] + b"\xff\xff\xff\x7f",
        b"",
    ],
    "e.parquet": [
        {"x": ["a"], "y": ["b"], "vector": [[1.0]]},
        {"id": [[1]], "vector": [[1.0]]},
        {"id": ["a"], "score": [1.0]},
        {"id": ["a"], "vector": pa.array([[]], pa.list_(pa.float32()))},
        {"id": ["a", "b"], "vector": [[1.0], [None]]},
        {"id": ["a", "a"], "vector": [[1.0], [2.0]]},
        {"id": ["a"], "vector": [[float("nan")]]},
    ],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, each) for name, every in NO_EMBEDDINGS.items() for each in every]
)
def test_files_of_others_that_hold_no_embeddings_are_refused(tmp_path, name, content):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (np.savez if name == "e.npz" else arrow_file)(tmp_path / name, **content)
    with pytest.raises(LikenessError, match=name):
        read_embeddings(tmp_path / name)


def test_a_small_parquet_file_does_not_become_a_large_matrix(tmp_path, monkeypatch):
    """Equal values take next to nothing in a dictionary: vectors are counted before any is read."""
    monkeypatch.setattr(files, "FREE_EXPANSION", 1 << 20)
    monkeypatch.setattr(files, "EXPANSION", 2)
    path, count = tmp_path / "e.parquet", 70_000
    deep = pa.concat_arrays([pa.array([[0.5] * 50], pa.list_(pa.float32()))] * count)
    arrow_file(path, id=[str(k) for k in range(count)], vector=deep)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(LikenessError, match=f"{(64 + 4 * 50) * count} bytes"):
        read_embeddings(path)
