"""MATLAB files that state more than they hold: one ValueError, within bounds of memory and time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from eval.formats import mat

HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<HH", 0x100, 0x4D49)


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def array(kind: int, rows: int, columns: int, content: bytes) -> bytes:
    body = (
        element(6, struct.pack("<II", kind, 0))
        + element(5, struct.pack("<2i", rows, columns))
        + element(1, b"splits")
        + content
    )
    return struct.pack("<II", 14, len(body)) + body


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (array(1, 2**28, 1, b""), "MiB"),  # cells: without a bound 2 GiB
        (
            array(
                2, 2**26, 1, element(5, struct.pack("<i", 32)) + element(1, b"a".ljust(32, b"\0"))
            ),
            "MiB|processor time",
        ),  # structures: minutes
        (array(2, 1, 1, element(5, struct.pack("<i", 0)) + element(1, b"a")), r"e\.mat"),
    ],
)
def test_a_list_of_any_size_is_refused(
    content: bytes, keyword: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.mat").write_bytes(HEAD + content)
    monkeypatch.setattr(mat, "_SECONDS", 0.5)
    with pytest.raises(ValueError, match=keyword):
        mat.agedb_folds(tmp_path / "e.mat")
