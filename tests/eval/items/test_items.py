"""Items and their columns, trials within groups."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.items.items import MAX_SPAN, Item, Items
from likeness.eval.items.listing import files_below
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.types import item_id, nfc
from likeness.toolkit.data.shards import shard_numbers
from tests.scripts import touch

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6).map(nfc)  # as in lists
rows = st.builds(
    Item,
    st.one_of(names, st.sampled_from(["a/b", "a/c.wav", "caf\u00e9"])),
    st.builds(Path, st.one_of(names, st.sampled_from(["a/b", "/x/a/b", ".", "x/a/c.wav"]))),
    st.one_of(st.none(), names, st.sampled_from(["ann", "bob"])),
    st.one_of(st.none(), st.tuples(st.integers(0, 2**62), st.integers(0, 2**62))),
    st.sampled_from(["", ".wav", ".\u00e9"]),
    st.one_of(
        st.none(),
        st.tuples(st.floats(0, 1e6), st.one_of(st.floats(2e6, 1e9), st.just(float("inf")))),
    ),
    st.one_of(st.none(), st.integers(0, 99)),
)


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
        ((990, 20), "10 of its 20 bytes"),
        ((5000, 1), "0 of its 1 bytes"),
        ((-1, 5), "from byte -1"),
        ((0, MAX_SPAN + 1), "at most"),
    ]:
        with pytest.raises(ValueError, match=says) as caught:
            Item("spk/a", path, span=span).open()
        assert str(caught.value).startswith(f"{path}[spk/a]: ")
    with pytest.raises(FileNotFoundError):
        Item("a", tmp_path / "none.tar", span=(0, 1)).open()


def test_a_name_that_is_no_text_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match="UTF-8") as caught:
        Items.of([Item("caf\udce9/1.wav", Path("1.wav"))])
    assert "\\udce9" in str(caught.value)


@given(st.lists(rows, max_size=12), st.data())
def test_columns_are_the_items_of_their_list(listed: list[Item], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(listed)), max_size=2)))
    bounds = zip([0, *cuts], [*cuts, len(listed)], strict=True)
    items = Items.joined(Items.of(listed[start:stop]) for start, stop in bounds)
    assert items == listed
    assert listed == Items.of(iter(listed))
    assert [items[i] for i in range(-len(listed), 0)] == listed
    index = data.draw(st.slices(len(listed)))
    assert list(items[index]) == listed[index]
    assert list(items[:: 2**63]) == listed[:: 2**63]
    assert items[index][::-1] == listed[index][::-1]
    indices = data.draw(st.lists(st.integers(0, max(0, len(listed) - 1)), max_size=20))
    if listed:
        taken = items[np.array(indices, dtype=np.int64)]
        assert taken == [listed[i] for i in indices]
        assert pickle.loads(pickle.dumps(taken)) == taken
        assert items[np.arange(len(listed)) % 2 == 0] == listed[::2]
    for row in (-len(listed) - 1, len(listed)):
        with pytest.raises(IndexError):
            items[row]


@given(st.lists(rows, max_size=12))
def test_shards_are_numbered_by_their_first_item(listed: list[Item]) -> None:
    inside = [item for item in listed if item.span is not None]
    known: dict[Path, int] = {}
    expected = [known.setdefault(item.path, len(known)) for item in inside]
    assert shard_numbers(Items.of(inside)).tolist() == expected


@given(st.lists(names, max_size=20))
def test_paths_are_sorted_part_by_part(listed: list[str]) -> None:
    plain = [item_id(text.replace("\0", "")).strip("/.") for text in listed]
    plain = [text for text in plain if text and "//" not in text and "/." not in text]
    items = Items.of(Item(text, Path("x")) for text in plain)
    assert items.sorted_as_paths().ids == sorted(plain, key=lambda text: text.split("/"))


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A tree with what makes an order and a choice of files difficult."""
    names = "b/1.jpg b/1/2.JPG b/1.jpg.txt b/x.jpg/3.jpg b-c/4.jpg b/.5.jpg b/.hidden/6.jpg"
    more = ".hidden/7.jpg a\u00e9/8.jpg loose.jpg jpg b/.jpg b/9.jpg."
    touch(tmp_path, *names.split(), *more.split())
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "b")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    (tmp_path / "b" / "inner").symlink_to(tmp_path / "b-c")
    (tmp_path / "b" / "z.jpg").symlink_to(tmp_path / "b" / "1.jpg")
    (tmp_path / "b" / "broken.jpg").symlink_to(tmp_path / "nothing.jpg")
    (tmp_path / "b" / "round.jpg").symlink_to(tmp_path / "b" / "round.jpg")
    return tmp_path


def test_a_tree_is_listed_as_pathlib_lists_it(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = sorted(
        path.relative_to(folders)
        for path in folders.rglob("*")
        if path.suffix.lower() == ".jpg" and not path.is_dir()
    )
    linked = [Path("linked") / path.relative_to("b") for path in below if path.parts[0] == "b"]
    expected = [
        Item(path.as_posix(), folders / path, path.parts[0] if len(path.parts) > 1 else None)
        for path in sorted({*below, *linked})
        if not any(part[0] == "." for part in path.parts)
    ]
    assert len(expected) == 15
    assert files_below(folders, {".jpg"}) == expected
    monkeypatch.chdir(folders)
    assert files_below(Path(), {".jpg"})[0] == expected[0]._replace(path=Path(expected[0].id))


@pytest.mark.parametrize("num_trials", [10, 40, 10_000])
@pytest.mark.parametrize("has_sexes", [False, True])
@pytest.mark.parametrize("has_sessions", [False, True])
def test_trials_within_groups_and_across_sessions(
    num_trials: int, has_sexes: bool, has_sessions: bool
) -> None:
    """Against all pairs by loops."""
    rng = np.random.default_rng(1)
    labels = [f"s{number}" for number in rng.integers(0, 7, 40)]
    items = [Item(str(i), Path(str(i)), label) for i, label in enumerate(labels)]
    sexes = ["fm"[int(label[1]) % 2] for label in labels]
    sessions = [str(number) for number in rng.integers(0, 3, 40)]
    allowed = {
        (i, j): labels[i] == labels[j]
        for i in range(40)
        for j in range(i + 1, 40)
        if (not has_sexes or sexes[i] == sexes[j])
        and (not has_sessions or labels[i] != labels[j] or sessions[i] != sessions[j])
    }
    trials = draw_pairs(
        items,
        num_trials,
        np.random.default_rng(0),
        same=sexes if has_sexes else None,
        across=sessions if has_sessions else None,
    )
    drawn = list(zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True))
    assert drawn == sorted(set(drawn))
    assert [allowed[pair] for pair in drawn] == trials.target.tolist()
    assert len(drawn) == min(num_trials, len(allowed))
    if num_trials <= 40:
        assert trials.target.sum() == num_trials // 2
