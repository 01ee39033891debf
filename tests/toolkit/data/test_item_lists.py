"""Lists of items that are written and read back, by the plain way and by that of any lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.types import nfc
from likeness.toolkit.data.item_lists import read_items, write_items
from likeness.toolkit.data.items import Item


def test_items_of_shards_are_not_written_as_their_shard(tmp_path: Path) -> None:
    files = [Item("a/1", tmp_path / "a b/1.wav"), Item("a/2", tmp_path / "2.wav")]
    inside = [Item(f"s/{i}", tmp_path / "0.tar", span=(i, 1), ending=".wav") for i in range(2)]
    write_items(tmp_path / "list.txt", files, tmp_path)
    assert read_items(tmp_path / "list.txt") == files
    with pytest.raises(ValueError, match=r"2 of 4 items .*'s/0', 's/1'"):
        write_items(tmp_path / "list.txt", files + inside, tmp_path)
    assert read_items(tmp_path / "list.txt") == files


@pytest.mark.parametrize("name", ["#a", "a\tb", "a\nb", "a\rb", " a", "a ", ""])
def test_a_list_holds_no_name_that_would_be_read_back_as_another(name: str, tmp_path: Path) -> None:
    files = [
        Item("good", tmp_path / "good.wav"),
        Item(f"{name}/1.wav", tmp_path / name / "1.wav") if name else Item("", tmp_path / "1.wav"),
    ]
    if name == "a ":  # a blank before the suffix or a slash stays
        write_items(tmp_path / "list.txt", files, tmp_path)
        assert read_items(tmp_path / "list.txt") == files
        files[1] = Item("a ", tmp_path / "a ")
    with pytest.raises(ValueError, match="1 of 2"):
        write_items(tmp_path / "other.txt", files, tmp_path)
    assert not (tmp_path / "other.txt").exists()


@given(st.lists(st.text(min_size=1, max_size=8).map(nfc), min_size=1, max_size=5, unique=True))
def test_what_a_list_takes_it_gives_back(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("list")
    try:
        items = [Item(name, Path(f"{number}.wav")) for number, name in enumerate(names)]
        write_items(folder / "list.txt", items)
    except ValueError:
        return
    assert read_items(folder / "list.txt", Path()) == items


def test_further_columns_are_carried(tmp_path: Path) -> None:
    rows = [f"{i}.wav,s{i % 3},{i / 8},{'f' if i % 2 else ''},{i}-{i + 9},x" for i in range(2000)]
    rows[1500] = '"1500.wav",s0,,"m",a b,x'
    (tmp_path / "list.csv").write_text(
        "\n".join(["path,label,start,sex,age,codec", *rows]), encoding="utf-8"
    )
    items = read_items(tmp_path / "list.csv")
    starts = items.column("start")
    assert isinstance(starts, np.ndarray)
    assert starts[:3].tolist() == [0.0, 0.125, 0.25]
    assert np.flatnonzero(np.isnan(starts)).tolist() == [1500]
    assert [items.column("sex")[i] for i in (0, 1, 1500)] == [None, "f", "m"]
    assert items[::-1].column("age")[499] == "a b"
    assert items[2].stretch == (0.25, np.inf)
    assert items[1500].stretch is None
    assert items.column("codec")[1999] == "x"  # the user's own, under its own name
    with pytest.raises(ValueError, match="device"):
        items.column("device")


@pytest.mark.parametrize("times", ["late,9", "-1,9", "3,3", "3,2", "inf,inf", ",0"])
def test_times_that_are_no_stretch_are_refused(tmp_path: Path, times: str) -> None:
    (tmp_path / "list.csv").write_text(f"path,start,end\na.wav,0,1\nb.wav,{times}\n")
    with pytest.raises(ValueError, match=r"list\.csv: .*(b\.wav|late)"):
        read_items(tmp_path / "list.csv")


@pytest.mark.parametrize("name", ["path", "Path"])
def test_a_first_line_like_a_header_gets_one_above_it(tmp_path: Path, name: str) -> None:
    files = [Item(name, tmp_path / "a"), Item("b", tmp_path / name)]
    write_items(tmp_path / "list.txt", files, tmp_path)
    assert read_items(tmp_path / "list.txt") == files
