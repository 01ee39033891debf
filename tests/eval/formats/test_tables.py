"""Tables of every kind, and mappings from ids to subjects."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.formats import tables
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.parquet import text_of
from likeness.eval.formats.subjects import read_mapping
from likeness.eval.formats.tables import Shape, read_rows, read_values, separator_of, split
from likeness.eval.items.item_lists import read_items
from likeness.eval.protocols.retrieval import retrieve

ROWS = [["a, b.wav", "ann"], ["c;d.wav", 'b"ob'], ["é.wav", ""], ["e f.wav", "7"]]


def choose(names: list[str]) -> dict[str, int]:
    return {"path": names.index("file"), "label": names.index("who")}


def shape(sample: list[str]) -> Shape:
    separator = separator_of(sample[0])
    fields = split(sample[0], separator)
    return Shape(separator, len(fields), choose(fields), header=True)


def read(path: Path) -> list[list[str]]:
    """The rows of a table with the columns file and who."""
    blocks = [(cells["path"], cells["label"]) for cells in read_rows(path, shape, choose)]
    return [list(row) for columns in blocks for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_one_table_in_many_ways(tmp_path, encoding, end, delimiter, quoting):
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerows([["file", "text", "who"], *([path, "x", who] for path, who in ROWS)])
    (tmp_path / "t").write_bytes(written.getvalue().encode(encoding))
    assert read(tmp_path / "t") == ROWS


def test_rows_are_read_alike_over_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 300)
    plain = [[f"{i}.wav", f"s{i % 7}"] for i in range(500)]
    lines = [f"{path},{i},{who}" for i, (path, who) in enumerate(plain)]
    (tmp_path / "t").write_text("\n".join(["file,n,who", *lines]))
    assert read(tmp_path / "t") == plain
    lines[250] = '"250.wav","two\nlines","s5"'
    (tmp_path / "t").write_text("\n".join(["file,n,who", *lines]))
    assert read(tmp_path / "t") == plain
    lines[300], lines[301] = ",,", ""
    (tmp_path / "t").write_text("\r\n".join(["file,n,who", *lines]))
    assert read(tmp_path / "t") == [*plain[:300], *plain[302:]]
    lines[300] = "300.wav"
    (tmp_path / "t").write_text("\r\n".join(["file,n,who", *lines]))
    with pytest.raises(LikenessError, match="line 303 has 1 fields"):
        read(tmp_path / "t")


@pytest.mark.parametrize(
    "text",
    [
        "file who\na.wav  ann\n\nb.wav bob\n",
        'file\twho\tsentence\na.wav\tann\t"Stop" he said\nb.wav\tbob\tx\n',
    ],
)
def test_blanks_separate_fields_and_quotation_marks_between_tabs_are_text(tmp_path, text):
    (tmp_path / "t").write_text(text)
    assert read(tmp_path / "t") == [["a.wav", "ann"], ["b.wav", "bob"]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"file,who\n\xe9.wav,ann\n", "iconv"),
        ("file,who\n".encode("utf-16-le"), "byte order mark"),
        (b'file,who\n"a.wav,ann\nb.wav,bob\n', "quotation marks"),
        (b"PK\x03\x04\0\0of a spreadsheet", "CSV"),
        # Each short row would get a cell for every name: 10^9 cells of a file of 120 kB.
        (b"file,who" + b"," * 50_000 + b"\n" + b"a\n" * 20_000, "fields"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(LikenessError, match=says):
        read(tmp_path / "t")


def test_parquet_gives_texts_and_numbers_as_texts(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {
        "file": ["a.wav", None, "c.wav"],
        "who": pandas.Categorical(["ann", "bob", None]),
        "whole": [1, 2, 3],
        "some": [1.0, None, 2.5],
    }
    pandas.DataFrame({**columns, "vector": [[1.0]] * 3}).to_parquet(tmp_path / "t.parquet")
    places = {name: place for place, name in enumerate(columns)}
    (cells,) = read_rows(tmp_path / "t.parquet", shape, lambda names: places)
    assert cells == {
        "file": ["a.wav", "", "c.wav"],
        "who": ["ann", "bob", ""],
        "whole": ["1", "2", "3"],
        "some": ["1", "", "2.5"],
    }
    with pytest.raises(LikenessError, match="list"):
        read_values(tmp_path / "t.parquet", lambda names: {"path": 4})
    assert [text_of(value) for value in (None, float("nan"), pandas.NA, pandas.NaT)] == [""] * 4


def test_mapping(tmp_path: Path) -> None:
    def mapping(content: str) -> dict[str, str]:
        (tmp_path / "list.txt").write_text(content)
        return read_mapping(tmp_path / "list.txt")

    assert mapping("u1 s1\nu2 s1\n# x\nu1 s1\n") == {"u1": "s1", "u2": "s1"}
    assert mapping("u1,John Doe\nu2,s\n") == {"u1": "John Doe", "u2": "s"}
    for table, ids in (
        ("path,label,start,end\na,s,0,1.5\na,t,1.5,\n", ["a@0-1.5", "a@1.5-"]),
        ("label;file;start;duration\ns;a;0,5;1\nt;b;;\n", ["a@0.5-1.5", "b"]),
        ("path,label,channel,sex\na,s,1,f\na,t,B,m\n", ["a", "a#channel=2"]),
        ("id,path,label\n,a.wav,s\nx\\1,b.wav,t\n", ["a.wav", "x/1"]),
        ("\ta.wav\ts\nx\tb.wav\tt\n", ["a.wav", "x"]),
    ):
        assert mapping(table) == dict(zip(ids, "st", strict=True))
        items = read_items(tmp_path / "list.txt")
        assert (items.ids, items.labels) == (ids, ["s", "t"])
    for name in ("Smith, John", "a;b", 'O"Brien', '"', "Smith, John; Jr"):
        assert mapping(f"{name}/1\t{name}\nx/1\tx\n") == {f"{name}/1": name, "x/1": "x"}
        assert mapping(f"{name}/1\t1.wav\t{name}\nx\t2.wav\tx\n") == {f"{name}/1": name, "x": "x"}
    assert mapping('"u\t1","Doe, J"\nu2,s\n') == {"u\t1": "Doe, J", "u2": "s"}
    for wrong, says in (
        ("u1 s1\nu2 s1\nu1 s2\n", "'u1'"),
        ("a/u1 s1\n./a/u1 s2\n", "more than one"),
        ("u1 s1 x\n", "fields"),
        ("u1,s\nu2,\n", "no subject"),
        ("path,label,start\na,s,0:05\n", r"list\.txt: a time is no number of seconds.*0:05"),
    ):
        with pytest.raises(LikenessError, match=says):
            mapping(wrong)


def test_a_mapping_in_memory_gives_the_names_that_a_file_would_give() -> None:
    pandas = pytest.importorskip("pandas")
    rows = Embeddings(("Zo\u00eb/1", "b", "3", "d"), [[1, 0], [2, 0], [0, 1], [0, 2]])
    labels: dict[Any, Any] = {"Zoe\u0308/1": 0, "b": 0.0, 3: "Zoe\u0308 ", "d": "Zo\u00eb"}
    results = retrieve(rows, labels=labels).results
    assert [of.value for of in results if of.metric == "recall@1"] == [1]
    for missing in (None, float("nan"), pandas.NA, " "):
        with pytest.raises(LikenessError, match=r"1 of 4 ids have no label \('d'\)"):
            retrieve(rows, labels=labels | {"d": missing})
    with pytest.raises(LikenessError, match=r"'b' has two names, '0' and 'x'"):
        retrieve(rows, labels=labels | {"./b": "x"})
