"""Items and lists of items: spans of shards, names, and lists that are written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.types import nfc
from toolkit.data.item_lists import read_items, write_items
from toolkit.data.items import MAX_SPAN, Item


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_span_opens_as_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("span") / "shard.tar"
    path.write_bytes(content)
    offset = data.draw(st.integers(0, len(content)))
    size = data.draw(st.integers(0, len(content) - offset))
    with Item("a", path, span=(offset, size)).open() as file:
        assert file.read() == content[offset : offset + size]
    with Item("a", path).open() as file:
        assert file.read() == content


def test_spans_outside_the_shard_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(bytes(1000))
    for span, says in [
        ((990, 20), "only 10 of its 20 bytes"),
        ((5000, 1), "only 0 of its 1 bytes"),
        ((-1, 5), "from byte -1"),
        ((0, MAX_SPAN + 1), "at most"),
    ]:
        with pytest.raises(ValueError, match=says) as caught:
            Item("spk/a", path, span=span).open()
        assert str(caught.value).startswith(f"{path}[spk/a]: ")
    with pytest.raises(FileNotFoundError):
        Item("a", tmp_path / "none.tar", span=(0, 1)).open()


def test_suffix_and_name() -> None:
    assert Item("a", Path("x/a.FLAC")).suffix == ".flac"
    assert Item("a", Path("x.tar"), span=(0, 1), ending=".wav").suffix == ".wav"
    assert Item("a", Path("x/a.FLAC")).name == str(Path("x/a.FLAC"))
    assert Item("a", Path("x.tar"), span=(0, 1)).name == "x.tar[a]"


def test_items_of_shards_are_not_written_as_their_shard(tmp_path: Path) -> None:
    files = [Item("a/1", tmp_path / "a b/1.wav"), Item("a/2", tmp_path / "2.wav")]
    inside = [Item(f"s/{i}", tmp_path / "0.tar", span=(i, 1), ending=".wav") for i in range(2)]
    write_items(tmp_path / "list.txt", files, tmp_path)
    assert read_items(tmp_path / "list.txt") == files
    with pytest.raises(ValueError, match=r"2 of 4 items .*'s/0', 's/1'"):
        write_items(tmp_path / "list.txt", files + inside, tmp_path)
    assert read_items(tmp_path / "list.txt") == files


@pytest.mark.parametrize("name", ["#a", '"a"', "a\tb", "a\nb", "a\rb", " a", "a ", ""])
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


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique_by=nfc))
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


def test_a_name_that_is_no_text_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match="UTF-8") as caught:
        Item("caf\udce9/1.wav", Path("1.wav"))
    assert "\\udce9" in str(caught.value)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_list_that_never_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="line 1"):
        read_items(tmp_path / "list.txt")


def test_a_list_that_is_no_text_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a.wav\n\xff\x80")
    with pytest.raises(ValueError, match=r"list\.txt is not UTF-8"):
        read_items(tmp_path / "list.txt")
