"""Sizes of memory as text."""

from __future__ import annotations

import pytest

from eval.memory import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512 << 20),
        ("8G", 8 << 30),
        ("8GiB", 8 << 30),
        (" 1.5 gb ", 3 << 29),
        ("64k", 65536),
        ("2T", 2 << 40),
        ("1000", 1000),
        (".5K", 512),
        ("12B", 12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "0.2", "8 X", "8GG", "1e9", "nan", "9" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="512M"):
        parse_size(text)
