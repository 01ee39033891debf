"""Lists of recordings: their columns, the trials that they give, and what is refused in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.types import Trials
from modalities.speaker.lists import items, matched, trials
from toolkit.data.items import Item


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("a/1.wav", "a/2.wav", "b/1.wav", "b, c/2.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def write(data: Path, text: str) -> Path:
    (data / "items.csv").write_bytes(text.encode("utf-8"))
    return data


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_columns_by_name_in_any_order(data: Path, delimiter: str) -> None:
    rows = [
        "who,part,path,key",
        "ann,dev,a/1.wav,u1",
        '"bob",test,"b, c/2.wav",u2',
        "",
        "cy,dev,b/1.wav,u3",
    ]
    text = "\ufeff" + "\r\n".join(
        row if '"b, c' in row and delimiter == "," else row.replace(",", delimiter) for row in rows
    )
    write(data, text.replace(f"b{delimiter} c", "b, c"))
    assert items(data, label="who", id="key") == [
        Item("u1", data / "a/1.wav", "ann"),
        Item("u2", data / "b, c/2.wav", "bob"),
        Item("u3", data / "b/1.wav", "cy"),
    ]
    assert [item.id for item in items(data, label="", split_column="part", split="dev")] == [
        "a/1.wav",
        "b/1.wav",
    ]
    assert items(data, label="")[0].label is None
    with pytest.raises(ValueError, match=r"no rows with 'train' in column 'part'"):
        items(data, label="who", split_column="part", split="train")


def test_columns_by_number_without_a_header(data: Path) -> None:
    write(data, "x,a/1.wav,ann\ny,b/1.wav,bob")
    assert items(data, path="2", label="3", id="1") == [
        Item("x", data / "a/1.wav", "ann"),
        Item("y", data / "b/1.wav", "bob"),
    ]
    with pytest.raises(ValueError, match="no column '4' for label"):
        items(data, path="2", label="4")


def test_refusals_count_and_name(data: Path) -> None:
    for text, message in {
        "": "the file is empty",
        "path,label\na/1.wav,x\n,y\n": "no path",
        "path,label\na/1.wav,x\na/7.wav,x\na/8.wav,y\n": r"2 of 3 files .*'a/7.wav', 'a/8.wav'",
        "path,label\na/1.wav,x\na/1.wav,y\n": "twice|repeated",
        "file,label\na/1.wav,x\n": "no column 'path'.*file, label",
        "path,label\na\0,b\n": "NUL",
    }.items():
        with pytest.raises(ValueError, match=message):
            items(write(data, text))
    write(data, "path,label,key\na/1.wav,x,u\na/2.wav,x,\nb/1.wav,y, \n")
    with pytest.raises(ValueError, match="no id"):
        items(data, id="key")
    assert len(items(data)) == 3
    (data / "items.csv").write_bytes(b"path,label\n\xff\xfe,x\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        items(data)
    with pytest.raises(ValueError, match=r"absent\.csv: no such file"):
        items(data, file="absent.csv")
    with pytest.raises(ValueError, match="the last two go together"):
        items(data, split="dev")


def test_trials_of_a_list(data: Path) -> None:
    write(data, "path,label\na/1.wav,a\na/2.wav,a\nb/1.wav,b\n")
    (data / "trials.txt").write_text("b/1 a/1.flac 0\na/2.wav a/1.wav 1\n", encoding="utf-8")
    chosen, made = trials(data)
    assert [item.id for item in chosen] == ["a/1.wav", "a/2.wav", "b/1.wav"]
    assert [
        (made.enrol_ids[i], made.probe_ids[j]) for i, j in zip(made.enrol, made.probe, strict=True)
    ] == [("b/1.wav", "a/1.wav"), ("a/2.wav", "a/1.wav")]


def test_an_exact_id_wins_and_a_doubtful_one_is_refused() -> None:
    both = [Item("x/1.wav", Path("1")), Item("x/1.flac", Path("2")), Item("x/2.flac", Path("3"))]

    def pair(a: str, b: str) -> Trials:
        return Trials((a,), (b,), np.array([0], np.int32), np.array([0], np.int32))

    chosen, _ = matched(pair("x/1.flac", "x/2.wav"), both, where="list")
    assert [item.id for item in chosen] == ["x/1.flac", "x/2.flac"]
    with pytest.raises(
        ValueError,
        match=r"1 of.*'x/3'.* 1 fit.*'x/1.m4a'.*; go",
    ):
        matched(pair("x/1.m4a", "x/3"), both, where="list", hint="go")


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=20),
    st.sampled_from(["", ".wav", ".flac", ".M4A"]),
)
def test_matching_keeps_every_pair(pairs: list[tuple[int, int]], suffix: str) -> None:
    contents = [Item(f"s{i}/u.v{i}.flac", Path(str(i)), f"s{i}") for i in range(8)]
    ids = tuple(f"s{i}/u.v{i}{suffix}" for i in reversed(range(8)))
    index = np.array([[7 - a, 7 - b] for a, b in pairs], dtype=np.int32)
    chosen, made = matched(Trials(ids, ids, index[:, 0], index[:, 1]), contents, where="list")
    assert [
        (made.enrol_ids[i], made.probe_ids[j]) for i, j in zip(made.enrol, made.probe, strict=True)
    ] == [(contents[a].id, contents[b].id) for a, b in pairs]
    assert chosen == [contents[i] for i in sorted({i for pair in pairs for i in pair})]
