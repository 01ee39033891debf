"""Embeddings that other programs wrote: .npy with a list of ids, arrays and columns of any names,
lists, text, and a column for each dimension.
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from likeness.eval.errors import LikenessError
from likeness.eval.formats import files
from likeness.eval.formats.embeddings import read_embeddings, vectors_of

IDS = ["ann/1 a.wav", "ann/2.wav", "bob/1.wav"]
ROWS = np.array([[0.5, -1.25, 3], [1e-3, 2, -0.0], [7, 8, 9]], np.float32)
TEXTS = np.array(IDS)
LISTS = pa.array(ROWS.tolist(), pa.list_(pa.float64()))
FIXED = pa.array(ROWS.tolist(), pa.list_(pa.float32(), 3))
DIMENSIONS = {f"dim_{i}": ROWS[:, i] for i in (2, 0, 1)}  # in the order of their numbers
SPEAKERS = ["ann", "ann", "bob"]


def table(path: Path, /, **columns: Any) -> Path:
    (parquet.write_table if path.suffix == ".parquet" else csv.write_csv)(pa.table(columns), path)
    return path


def assert_read(path: Path, columns: Any = "", ids: list[str] = IDS) -> None:
    read = read_embeddings(path, columns=columns)
    assert read.ids == tuple(ids)
    assert read.matrix.tobytes() == ROWS.tobytes()


@pytest.mark.parametrize(
    ("arrays", "columns"),
    [
        ({"names": TEXTS, "embeddings": ROWS}, ""),
        ({"paths": TEXTS, "x": ROWS.astype(np.float64), "labels": np.array(SPEAKERS)}, ""),
        ({"arr_0": TEXTS, "arr_1": ROWS}, ""),
        ({"wav": np.char.encode(TEXTS), "resnet": ROWS, "n": np.arange(3)}, ""),
        ({"utt": TEXTS, "a": ROWS, "b": ROWS + 1, "c": TEXTS}, "id=utt,vector=a"),
        ({"id": TEXTS, "a": ROWS, "b": ROWS + 1, "c": TEXTS}, {"vector": "a"}),
        ({"id": TEXTS, "a": ROWS, "more": np.array([{}, {}, {}], object)}, ""),
        ({"id": np.asfortranarray(TEXTS), "vectors": np.asfortranarray(ROWS)}, ""),
        (dict(zip(IDS, ROWS, strict=True)), ""),  # a vector for each id
    ],
)
def test_arrays_of_any_names(tmp_path: Path, arrays: dict[str, Any], columns: Any) -> None:
    np.savez(tmp_path / "e.npz", **arrays)
    assert_read(tmp_path / "e.npz", columns)


def test_ids_that_are_numbers_and_vectors_of_integers(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", id=np.array([7, 8]), codes=np.array([[1, -2], [3, 4]], np.int8))
    read = read_embeddings(tmp_path / "e.npz")
    assert read.ids == ("7", "8")
    assert read.matrix.tolist() == [[1, -2], [3, 4]]
    table(tmp_path / "e.parquet", id=[7, 8], v=[[1, -2], [3, 4]])
    assert read_embeddings(tmp_path / "e.parquet").matrix.tolist() == [[1, -2], [3, 4]]


def test_a_npy_has_its_ids_in_a_list_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "e.npy"
    np.save(path, ROWS)
    with pytest.raises(LikenessError, match=r"e\.txt"):
        read_embeddings(path)
    lines = "\n".join(IDS)
    for text in (lines, f"id\n{lines}\n", "".join(f"{name}\tann\n" for name in IDS)):
        (tmp_path / "e.txt").write_text(text)
        assert_read(path)
        (tmp_path / "other.list").write_text(text)
        assert_read(path, {"id": str(tmp_path / "other.list")})
    np.save(tmp_path / "ids.npy", TEXTS)
    assert_read(path, f"id={tmp_path / 'ids.npy'}")
    np.savez(tmp_path / "e.npz", matrix=ROWS)
    assert_read(tmp_path / "e.npz")
    (tmp_path / "e.txt").write_text(lines + "\none more")
    with pytest.raises(LikenessError, match="4 rows, one per id"):
        read_embeddings(path)


@pytest.mark.parametrize("ending", [".npy", ".npz"])
def test_pickles_are_refused_by_their_name(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"e{ending}"
    (tmp_path / "e.txt").write_text("\n".join(IDS))
    objects = np.array([*ROWS, None], object)[:3]
    for array in (objects, np.array(dict(zip(IDS, ROWS, strict=True)), object)):
        np.save(path, array) if ending == ".npy" else np.savez(path, vector=array)
        with pytest.raises(LikenessError, match="pickled"):
            read_embeddings(path)


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("columns", "stated"),
    [
        ({"utterance_id": IDS, **DIMENSIONS, "speaker": SPEAKERS}, ""),
        ({"": [0, 1, 2], "file": IDS, "0": ROWS[:, 0], "1": ROWS[:, 1], "2": ROWS[:, 2]}, ""),
        ({"clip": IDS, "age": [1, 2, 3], **DIMENSIONS}, "id=clip,vector=dim"),
        ({"clip": IDS, "v1": [1, 2, 3], "v2": [1, 2, 3], **DIMENSIONS}, "id=clip,vector=dim_"),
    ],
)
def test_tables_of_any_names(tmp_path: Path, ending: str, columns: Any, stated: str) -> None:
    assert_read(table(tmp_path / f"e{ending}", **columns), stated)


@pytest.mark.parametrize(
    ("columns", "stated"),
    [
        ({"id": IDS, "emb": [str(row.tolist()) for row in ROWS]}, ""),
        ({"wav": IDS, "v": [str(row.tolist()) for row in ROWS], "speaker": SPEAKERS}, ""),
        ({"id": IDS, "emb": [" ".join(map(repr, map(float, row))) for row in ROWS]}, ""),
        ({"clip": IDS, "s": SPEAKERS, "of": [str(row) for row in ROWS]}, "id=clip,vector=of"),
    ],
)
def test_lists_that_are_written_as_text(tmp_path: Path, columns: Any, stated: str) -> None:
    assert_read(table(tmp_path / "e.csv", **columns), stated)


@pytest.mark.parametrize("vectors", [LISTS, FIXED, LISTS.cast(pa.large_list(pa.float32()))])
@pytest.mark.parametrize(
    ("names", "stated"),
    [
        (("id", "xvec"), ""),
        (("clip", "embedding"), ""),
        (("__index_level_0__", "any"), ""),
        (("clip", "any"), "id=clip,vector=any"),
        (("clip", "any"), "id=1,vector=2"),
    ],
)
def test_arrow_lists_of_any_names(tmp_path, vectors, names, stated):
    ids = pa.array(IDS).dictionary_encode()
    columns = {names[0]: ids, names[1]: vectors, "speaker": SPEAKERS, "age": [1, 2, 3]}
    assert_read(table(tmp_path / "e.parquet", **columns), stated)


@pytest.mark.parametrize(
    ("name", "text", "stated"),
    [
        ("e.csv", "{0},0.5,-1.25,3\n{1},0.001,2,-0.0\n{2},7,8,9\n", ""),
        ("e.tsv", "{0}\t0.5\t-1.25\t3\n{1}\t0.001\t2\t-0.0\n{2}\t7\t8\t9\n", ""),
        ("e.csv", "x;{0};.5;-1.25;3\nx;{1};0.001;2;-0.0\nx;{2};7;8;9\n", "id=2,vector=3"),
        ("e.csv", "n,{0},e\n5,{0},.5 -1.25 3\n5,{1},0.001 2 -0.0\n6,{2},7 8 9", {"id": "{0}"}),
        ("e.csv", '{0},"[0.5, -1.25, 3]"\n{1},"[0.001, 2, -0.0]"\n{2},"[7, 8,\n 9]"\n', ""),
        ("e.csv", "id,0,1,2\n{0},0.5,-1.25,3\n{1},0.001,2,-0.0\n{2},7,8,9\n", ""),
        (
            "e.csv",
            '{0},"[np.float32(0.5), np.float32(-1.25), np.float32(3)]"\n'
            '{1},"array([1e-3, 2, -0.0])"\n{2},"[7, 8, 9]"\n',
            "",
        ),
    ],
)
def test_text_with_and_without_a_header(tmp_path: Path, name: str, text: str, stated: Any) -> None:
    if isinstance(stated, dict):
        stated = {"id": IDS[0], "vector": "e"}  # a column may have any name
    (tmp_path / name).write_text(text.format(*IDS))
    assert_read(tmp_path / name, stated)


def test_many_dimensions_and_blocks_of_text(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((900, 2_048), dtype=np.float32)
    lines = (f"i{k}," + ",".join(map(str, row.tolist())) for k, row in enumerate(rows))
    (tmp_path / "e.csv").write_text("\n".join(lines))
    read = read_embeddings(tmp_path / "e.csv")
    assert len(read) == 900
    assert read.matrix.tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("e.parquet", {"clip": IDS, "a": LISTS, "b": LISTS}, "vector"),
        ("e.parquet", {"clip": IDS, "other": IDS, "a": LISTS}, "clip, other"),
        ("e.parquet", {"id": IDS, "vector": [[1.0], [1.0, 2.0], [1.0]]}, "ann/2.wav.*2 numbers"),
        ("e.parquet", {"id": IDS, "vector": [[1.0], None, [1.0]]}, "ann/2.wav.*0 numbers"),
        ("e.parquet", {"id": IDS, "vector": [[[1.0]]] * 3}, "lists of numbers"),
        ("e.parquet", {"id": IDS, "vector": ["[1, 2]"] * 3}, "lists of numbers"),
        ("e.parquet", {"id": IDS, "d0": [1.0, None, 1.0], "d1": [1.0] * 3}, "ann/2.wav.*finite"),
        ("e.csv", {"id": IDS, "d0": ["1", "", "1"], "d1": ["1", "1", "1"]}, "ann/2.wav.*finite"),
        ("e.csv", {"path": IDS, "speaker": SPEAKERS}, "path, speaker.*vector"),
        ("e.csv", {"id": IDS, "emb": ["[1 2]", "[1 2]", "[1 ... 2]"]}, "3 numbers"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_called_damaged(tmp_path, name, columns, words):
    with pytest.raises(LikenessError, match=words) as caught:
        read_embeddings(table(tmp_path / name, **columns))
    assert "damaged" not in str(caught.value)


def test_columns_that_are_not_there_or_of_no_role(tmp_path: Path) -> None:
    path = table(tmp_path / "e.parquet", id=IDS, v=LISTS)
    for columns, words in (("vector=x", "the vector 'x'"), ("label=v", "label"), ("v", "ROLE")):
        with pytest.raises(LikenessError, match=words):
            read_embeddings(path, columns=columns)


def test_vectors_need_no_ids_where_nobody_asks_for_them(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "mean.npy", ROWS.mean(axis=0))
    np.savez(tmp_path / "rows.npz", utt=TEXTS, xvec=ROWS)
    assert vectors_of(tmp_path / "rows.npy").matrix.tobytes() == ROWS.tobytes()
    assert vectors_of(tmp_path / "mean.npy").matrix.tolist() == [ROWS.mean(axis=0).tolist()]
    for columns in ("vector=xvec", "id=of_another.txt,vector=xvec", "id=utt,vector=xvec"):
        assert vectors_of(tmp_path / "rows.npz", columns).ids == tuple(IDS)
    for wrong in (TEXTS, ROWS[None], np.array(3.0)):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(LikenessError, match="write vectors"):
            vectors_of(tmp_path / "wrong.npy")


@pytest.mark.parametrize(("text", "stated"), [("a\n", "id=1"), ("x,y\na,1\n", "id=x,vector=x")])
def test_ids_without_vectors_beside_them(tmp_path: Path, text: str, stated: str) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(LikenessError, match="holds vectors"):
        read_embeddings(tmp_path / "e.csv", columns=stated)


@pytest.mark.parametrize("name", ["e.npz", "e.csv", "e.parquet"])
def test_a_small_file_does_not_become_many_ids_or_numbers(tmp_path, monkeypatch, name):
    """What is alike takes next to nothing in a compressed file."""
    path, count = tmp_path / name, 40_000
    monkeypatch.setattr(files, "FREE_EXPANSION", 1 << 20)
    if name == "e.npz":
        np.savez_compressed(path, ids=np.zeros(count, np.int8), matrix=np.ones((count, 1), np.int8))
    elif name == "e.csv":
        path.write_bytes(gzip.compress(b"a,2\n" * count))
    else:
        lists = pa.ListArray.from_arrays([0, 1, 300_001], np.zeros(300_001, np.float32))
        table(path, id=["a", "b"], vector=lists)
    assert path.stat().st_size < 2_000
    with pytest.raises(LikenessError, match="embeddings would take"):
        read_embeddings(path)


def test_a_column_whose_name_begins_alike_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE_EXPANSION", 1 << 20)
    lists = pa.ListArray.from_arrays([0, 1, 300_001], np.zeros(300_001, np.float32))
    path = table(tmp_path / "e.parquet", id=["a", "b"], vector=[[1.0], [2.0]], vector_old=lists)
    assert read_embeddings(path).matrix.tolist() == [[1.0], [2.0]]


def test_an_id_of_any_length_makes_no_long_message(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", ids=np.array(["a" * 10_000] * 2), matrix=np.ones((2, 3)))
    with pytest.raises(LikenessError, match="is there twice") as refused:
        read_embeddings(tmp_path / "e.npz")
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_refused_in_one_sentence(tmp_path: Path) -> None:
    path = table(tmp_path / "e.parquet", id=IDS, vector=[[1e300, 1.0]] * 3)
    with pytest.raises(LikenessError, match="not finite"):
        read_embeddings(path)
