"""Integers in the bytes of a text, against Python's own reading."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.formats.integers import careful_table, numbers_at, plain_table

numbers = st.integers(0, 10**8 - 1)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20), st.data())
def test_plain_tables_are_read_as_python_reads_them(
    rows: list[tuple[int, ...]], data: st.DataObject
) -> None:
    lines = [data.draw(st.sampled_from(" \t")).join(map(str, row)) for row in rows]
    text = "".join(f"{line}\n" for line in lines).encode()
    columns = plain_table(text, 3)
    assert columns is not None
    assert np.stack(columns, axis=1).tolist() == [list(row) for row in rows]
    assert careful_table(Path("x"), text, 3, 1)[1].tolist() == [list(row) for row in rows]


@given(st.text(alphabet="0159 \t\n\r-+.,x\0\u00e9", max_size=30))
def test_only_plain_tables_are_taken(text: str) -> None:
    """Whatever is taken is what a plain reader gives; all plain tables are taken."""
    encoded = text.encode()
    plain = re.fullmatch(r"([0-9]{1,8}[ \t][0-9]{1,8}\n)+", text)
    columns = plain_table(encoded, 2)
    assert (columns is not None) == (plain is not None)
    if columns is not None:
        expected = [[int(field) for field in line.split()] for line in text.splitlines()]
        assert np.stack(columns, axis=1).tolist() == expected


@pytest.mark.parametrize("text", [b"123456789 1\n", b"1 2", b"", b"\n", b" 1 2\n", b"1:2 3\n"])
def test_other_tables_are_left_alone(text: bytes) -> None:
    assert plain_table(text, 2) is None


@pytest.mark.parametrize("wrong", [b"1/3", b"1:3", b"-13", b"a", b"12345678x"])
def test_bytes_that_are_no_digits_are_seen(wrong: bytes) -> None:
    ends, lengths = np.array([len(wrong)]), np.array([len(wrong)])
    assert numbers_at(wrong, ends, lengths) is None
