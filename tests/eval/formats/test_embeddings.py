"""Embedding files: bit-exact round trips, kaldiio as the peer, and hostile files."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from eval.errors import LikenessError
from eval.formats import embeddings as module
from eval.formats.embeddings import read, write
from eval.types import Embeddings, nfc

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MATRICES = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5), elements=FLOATS
)
SMALL = Embeddings(
    ("a/1.wav", "b:2", "ü"),
    np.array([[1.5, -0.0], [5e-45, 3e38], [0, 0]], dtype=np.float32),
    {"similarity": "cosine", "model": "abc"},
)


def equal(a: Embeddings, b: Embeddings) -> bool:
    return (
        a.ids == b.ids
        and a.matrix.tobytes() == b.matrix.tobytes()
        and a.matrix.shape == b.matrix.shape
        and dict(a.meta) == dict(b.meta)
    )


@pytest.mark.parametrize("name", ["e.npz", "e.ark", "E.NPZ", "a.b.ark"])
def test_round_trip(tmp_path, name):
    write(tmp_path / name, SMALL)
    assert equal(read(tmp_path / name), SMALL)
    if name.endswith("ark"):
        assert equal(read((tmp_path / name).with_suffix(".scp")), SMALL)
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".ark", ".json", ".scp"]
    else:
        assert len(list(tmp_path.iterdir())) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), MATRICES, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_any_values_and_ids(tmp_path, data, matrix, meta):
    ids = data.draw(
        st.lists(
            # the reader gives ids in Unicode NFC
            st.text(max_size=8).map(nfc).filter(lambda one: not one.endswith("\0")),
            min_size=len(matrix),
            max_size=len(matrix),
            unique=True,
        )
    )
    write(tmp_path / "e.npz", Embeddings(tuple(ids), matrix, meta))
    assert equal(read(tmp_path / "e.npz"), Embeddings(tuple(ids), matrix, meta))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), MATRICES)
def test_any_kaldi_ids(tmp_path, data, matrix):
    letters = st.characters(exclude_categories=["Cs"])
    ids = data.draw(
        st.lists(
            st.text(letters, min_size=1, max_size=8)
            .map(nfc)
            .filter(lambda one: one.split() == [one]),
            min_size=len(matrix),
            max_size=len(matrix),
            unique=True,
        )
    )
    expected = Embeddings(tuple(ids), matrix)
    write(tmp_path / "e.ark", expected)
    assert equal(read(tmp_path / "e.ark"), expected)
    assert equal(read(tmp_path / "e.scp"), expected)


def test_what_kaldiio_writes(tmp_path):
    kaldiio = pytest.importorskip("kaldiio")
    rows = dict(zip(SMALL.ids, SMALL.matrix, strict=True))
    path = str(tmp_path / "k.ark")
    kaldiio.save_ark(path, rows, scp=str(tmp_path / "k.scp"))
    for suffix in ("ark", "scp"):
        assert equal(read(tmp_path / f"k.{suffix}"), Embeddings(SMALL.ids, SMALL.matrix))
    kaldiio.save_ark(path, {name: row.astype(np.float64) for name, row in rows.items()})  # doubles
    assert equal(read(path), Embeddings(SMALL.ids, SMALL.matrix))
    kaldiio.save_ark(path, {name: row[None] for name, row in rows.items()})  # matrices of one row
    assert equal(read(path), Embeddings(SMALL.ids, SMALL.matrix))


def test_what_kaldiio_reads(tmp_path):
    kaldiio = pytest.importorskip("kaldiio")
    write(tmp_path / "e.ark", SMALL)
    for loaded in (
        dict(kaldiio.load_ark(str(tmp_path / "e.ark"))),
        dict(kaldiio.load_scp(str(tmp_path / "e.scp"))),
    ):
        assert list(loaded) == list(SMALL.ids)
        assert np.stack(list(loaded.values())).tobytes() == SMALL.matrix.tobytes()


def test_scp_paths_count_from_the_scp_too(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    write("e.ark", SMALL)
    monkeypatch.chdir(tmp_path)
    assert equal(read(Path("sub") / "e.scp"), SMALL)


def test_scp_fields_are_parted_by_blanks_or_tabs(tmp_path):
    write(tmp_path / "e.ark", SMALL)
    lines = (tmp_path / "e.scp").read_text().splitlines()
    (tmp_path / "e.scp").write_text(
        "\n".join(
            line.replace(" ", blank, 1)
            for line, blank in zip(lines, ("\t", " \t ", "  "), strict=True)
        )
    )
    assert equal(read(tmp_path / "e.scp"), SMALL)
    (tmp_path / "a\tb").mkdir()
    write(tmp_path / "a\tb" / "e.ark", SMALL)  # a tab in the path stays
    assert equal(read(tmp_path / "a\tb" / "e.scp"), SMALL)
    for line in ("\u3000", "a", "a\t"):
        (tmp_path / "e.scp").write_text(line)
        with pytest.raises(ValueError, match="line 1 is not `id FILE"):
            read(tmp_path / "e.scp")


def test_a_list_of_many_names_for_one_vector_keeps_the_bound(tmp_path, monkeypatch):
    """Also where each line writes the archive's path in another way, or by a link."""
    monkeypatch.setattr(module, "FREE_EXPANSION", 1_000)
    monkeypatch.setattr(module, "EXPANSION", 10)
    write(tmp_path / "e.ark", Embeddings(("a",), np.ones((1, 50), np.float32)))
    size, place = (
        (tmp_path / "e.ark").stat().st_size,
        (tmp_path / "e.scp").read_text().rpartition(":")[2].strip(),
    )
    (tmp_path / "d").mkdir()
    allowed = 10 * size // 200
    for paths in (
        ["e.ark"],
        ["e.ark", "d/../e.ark", *("d/../" * k + "e.ark" for k in range(2, 40))],
    ):
        for count in (allowed, allowed + 1):
            (tmp_path / "e.scp").write_text(
                "".join(f"u{k} {tmp_path}/{paths[k % len(paths)]}:{place}\n" for k in range(count))
            )
            if count == allowed:
                assert read(tmp_path / "e.scp").matrix.shape == (allowed, 50)
            else:
                with pytest.raises(ValueError, match=rf"{10 * size} bytes"):
                    read(tmp_path / "e.scp")


def test_an_old_meta_file_is_replaced(tmp_path):
    write(tmp_path / "e.ark", SMALL)
    write(tmp_path / "e.ark", Embeddings(("a",), np.ones((1, 2))))
    assert dict(read(tmp_path / "e.ark").meta) == {}


@pytest.mark.parametrize("name", ["e.hdf5", "e.pkl", "e", "e.npy"])
def test_other_suffixes(tmp_path, name):
    with pytest.raises(ValueError, match=r"\.npz.*\.parquet"):
        write(tmp_path / name, SMALL)
    with pytest.raises(ValueError, match=r"\.npz.*\.scp"):
        read(tmp_path / name)


def test_writing_refuses_ids_it_cannot_give_back(tmp_path):
    for name, bad in (("e.npz", "a\0"), ("e.ark", "a b"), ("e.ark", ""), ("e.ark", "a\n")):
        with pytest.raises(ValueError, match="1 ids"):
            write(tmp_path / name, Embeddings((bad, "fine"), np.ones((2, 2))))
    assert list(tmp_path.iterdir()) == []


def saved(path: Path, **named: object) -> Path:
    np.savez(path, **named)  # type: ignore[arg-type]
    return path


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


IDS, GOOD = np.array(["a", "b"]), np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "named",
    [
        {"x": np.ones(3), "y": np.array(["q"])},
        {"ids": IDS},
        {"ids": np.arange(2), "matrix": GOOD},
        {"ids": IDS, "matrix": np.ones((2, 3), int)},
        {"ids": IDS, "matrix": np.ones((2, 3), complex)},
        {"ids": IDS, "matrix": np.ones(2, np.float32)},
        {"ids": IDS, "matrix": np.ones((3, 3), np.float32)},
        {"ids": np.array(["a", "a"]), "matrix": GOOD},
        {"ids": IDS, "matrix": np.full((2, 3), np.nan, np.float32)},
        {"ids": IDS, "matrix": GOOD, "meta": np.array("{")},
        {"ids": IDS, "matrix": GOOD, "meta": np.array("[1]")},
        {"ids": IDS, "matrix": GOOD, "meta": np.array('{"a": 1}')},
    ],
)
def test_foreign_npz(tmp_path, named):
    with pytest.raises(LikenessError, match=r"e\.npz"):
        read(saved(tmp_path / "e.npz", **named))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_and_no_meta(tmp_path, dtype):
    assert equal(
        read(saved(tmp_path / "e.npz", ids=IDS, matrix=GOOD.astype(dtype), more=np.arange(3))),
        Embeddings(("a", "b"), GOOD),
    )


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_beyond_unicode_is_refused(tmp_path, order):
    codes = np.array([[97, 0x10FFFF, 0], [98, 0x110000, 0xFFFFFFFF]], f"{order}u4")
    np.savez(tmp_path / "e.npz", ids=codes[:1].view(f"{order}U3")[:, 0], matrix=np.eye(1))
    assert read(tmp_path / "e.npz").ids == ("a\U0010ffff",)
    np.savez(tmp_path / "e.npz", ids=codes.view(f"{order}U3")[:, 0], matrix=np.eye(2))
    with pytest.raises(ValueError, match=r"2 numbers .* 0x110000"):
        read(tmp_path / "e.npz")


def test_pickles_are_refused(tmp_path):
    trap = tmp_path / "sprung"
    objects = np.array([Evil(trap), Evil(trap)], dtype=object)
    with pytest.raises(ValueError, match="pickled objects"):
        read(saved(tmp_path / "e.npz", ids=objects, matrix=GOOD))
    (tmp_path / "e.ark").write_bytes(b"a PKL" + pickle.dumps(Evil(trap)))
    with pytest.raises(ValueError, match="pickles"):
        read(tmp_path / "e.ark")
    assert not trap.exists()


@pytest.mark.parametrize(
    "entry",
    [
        "mkdir {trap} |",
        "| mkdir {trap}",
        "mkdir {trap}|",
        " |mkdir {trap}",
        "-",
        "mkdir {trap} |[0:1]",
        "x.ark:5[0:2]",
        "`mkdir {trap}`",
    ],
)
def test_commands_in_scp_are_refused(tmp_path, entry):
    trap = tmp_path / "sprung"
    (tmp_path / "e.scp").write_text(f"a {entry.format(trap=trap)}\n")
    with pytest.raises(ValueError, match=r"line 1"):
        read(tmp_path / "e.scp")
    assert not trap.exists()


def npy(header_of: np.ndarray, data: bytes, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": header_of.dtype.str, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + data


def test_sizes_are_checked_before_anything_is_allocated(tmp_path, monkeypatch):
    path = tmp_path / "e.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids.npy", npy(IDS, IDS.tobytes(), (2,)))
        archive.writestr("matrix.npy", npy(GOOD, GOOD.tobytes(), (2, 1 << 50)))
    with pytest.raises(ValueError, match=r"1125899906842624.* 24 bytes"):
        read(path)
    np.savez_compressed(path, ids=IDS, matrix=np.zeros((2, 1_000_000), np.float32))
    assert read(path).matrix.shape == (2, 1_000_000)
    monkeypatch.setattr(module, "FREE_EXPANSION", 1_000)
    with pytest.raises(ValueError, match="expands to over"):
        read(path)


@pytest.mark.parametrize("name", ["e.npz", "e.ark", "e.scp"])
def test_every_truncation_is_noticed(tmp_path, name):
    write(tmp_path / name.replace("scp", "ark"), SMALL)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / "cut").mkdir()
    path = tmp_path / "cut" / name
    complete = {0, 1, 2, 3}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            loaded = read(path)
        except ValueError:
            continue
        # archives of fewer whole entries are valid, and a .scp may lose its last newline or entries
        assert name != "e.npz"
        assert len(loaded.ids) in complete
        assert loaded.ids == SMALL.ids[: len(loaded.ids)]
        assert loaded.matrix.tobytes() == SMALL.matrix[: len(loaded.ids)].tobytes()


VECTOR = b"\0BFV \4" + struct.pack("<iff", 2, 1, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"a \0BFV \4" + struct.pack("<i", 1 << 30),
        b"a \0BFV \4" + struct.pack("<i", -1),
        b"a \0BFV \4" + struct.pack("<i", 3) + b"1234",
        b"a \0BFM \4" + struct.pack("<i", 2) + b"\4" + struct.pack("<i", 1) + b"12345678",
        b"a \0BCM \4" + b"0" * 20,
        b"a RIFF" + b"0" * 20,
        b"a [ 1 2 ]\n",
        b"a " + VECTOR + b"b " + VECTOR.replace(b"\2", b"\1")[:-4],
        b"a " + VECTOR + b"a " + VECTOR,
        b"a " + VECTOR[:-4] + b"\xff\xff\xff\x7f",
        b"",
    ],
)
def test_bad_archives(tmp_path, data):
    (tmp_path / "e.ark").write_bytes(data)
    with pytest.raises(LikenessError, match=r"e\.ark"):
        read(tmp_path / "e.ark")


def test_bad_meta_file(tmp_path):
    write(tmp_path / "e.ark", SMALL)
    (tmp_path / "e.meta.json").write_text(json.dumps({"a": [1]}))
    with pytest.raises(ValueError, match=r"e\.meta\.json: meta must be"):
        read(tmp_path / "e.ark")


def test_a_failed_write_leaves_the_old_files(tmp_path, monkeypatch):
    for name in ("e.npz", "e.ark"):
        write(tmp_path / name, SMALL)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("e.npz", "e.ark"):
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / name, Embeddings(("z",), np.ones((1, 2))))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_missing_file(tmp_path):
    for suffix in ("npz", "ark", "scp"):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / f"none.{suffix}")


def test_a_file_that_changes_after_it_was_read_changes_no_number(tmp_path):
    rows = np.arange(4000, dtype=np.float32).reshape(500, 8)
    write(tmp_path / "e.npz", Embeddings(tuple(map(str, range(500))), rows))
    loaded = read(tmp_path / "e.npz")
    size = (tmp_path / "e.npz").stat().st_size
    with (tmp_path / "e.npz").open("rb+") as file:  # in place: what others do, we rename
        file.write(b"\1" * size)
    assert np.array_equal(loaded.matrix, rows)
