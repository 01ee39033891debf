"""The items that trial lists name: which id fits which item, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.types import Trials
from likeness.modalities.speaker.lists import matched
from likeness.toolkit.data.items import Item


def test_an_exact_id_wins_and_a_doubtful_one_is_refused() -> None:
    both = [Item("x/1.wav", Path("1")), Item("x/1.flac", Path("2")), Item("x/2.flac", Path("3"))]

    def pair(a: str, b: str) -> Trials:
        return Trials((a,), (b,), np.array([0], np.int32), np.array([0], np.int32))

    chosen, _ = matched(pair("x/1.flac", "x/2.wav"), both, where="list")
    assert [item.id for item in chosen] == ["x/1.flac", "x/2.flac"]
    with pytest.raises(ValueError, match=r"2 of.*'x/1.m4a', 'x/3'.*; go"):
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
