"""Integers in the bytes of a text, a whole block of lines at a time.

Eight digits are read as one 64-bit number, whose bytes become the value by three multiplications
(D. Lemire, "Quickly parsing eight digits", 2018). What is not in the plainest form is left to
`careful_table`, which takes twice as long and counts what is wrong.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.files import at_lines
from eval.types import Ints

_WORD = 8  # digits that fit into one 64-bit number
MAX_DIGITS = 18  # of a number that surely fits into int64
_ZEROS = np.uint64(0x3030303030303030)  # the digit 0 in every byte
# With these added, a byte of 10 and more has its highest bit set.
_OVER_NINE, _HIGHEST_BITS = np.uint64(0x7676767676767676), np.uint64(0x8080808080808080)


def numbers_at(
    text: bytes, ends: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The non-negative integers of up to eight digits that end at some places of a text.

    Args:
        text: The bytes.
        ends: (N,) the place behind each number.
        lengths: (N,) how many bytes each number has, at least 1.

    Returns:
        (N,) int64, or None where a number is longer or where bytes are no digits.

    Example:
        >>> numbers_at(b"a 12,345", np.array([4, 8]), np.array([2, 3]))
        array([ 12, 345])
    """
    longest = int(lengths.max(initial=0))
    if longest > _WORD:
        return None
    if longest == 1:
        single = np.frombuffer(text, dtype=np.uint8).take(ends - 1) - np.uint8(48)
        return single.astype(np.int64) if single.max(initial=0) < 10 else None
    # Eight bytes lie before every number, so that a word that ends with it begins in the text.
    padded = b"\0" * _WORD + text
    words = np.ndarray((len(text) + 1,), dtype="<u8", buffer=padded, strides=(1,))[ends]
    words ^= _ZEROS  # every digit becomes its value
    foreign = ((_WORD - lengths) * 8).astype(np.uint64)  # bits of what stands before the number
    words >>= foreign
    words <<= foreign
    if np.bitwise_or.reduce((words + _OVER_NINE) | words) & _HIGHEST_BITS:
        return None
    # Neighbours join: 8 numbers of one digit become 4 of two, 2 of four and 1 of eight.
    for base, bits, mask in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10_000, 32, 0x00000000FFFFFFFF),
    ):
        later = words >> np.uint64(bits)
        words *= np.uint64(base)
        words += later
        words &= np.uint64(mask)
    return words.view(np.int64)


def plain_table(text: bytes, width: int) -> list[NDArray[np.int64]] | None:
    """The columns of a text in the plainest form, or None for any other text.

    In that form, every line is `width` numbers of up to 8 digits with one blank or tab between
    them, and ends with a newline.

    Args:
        text: Whole lines.
        width: How many numbers a line has.

    Returns:
        For each column its numbers, (lines,) int64.

    Example:
        >>> [column.tolist() for column in plain_table(b"1 20\\n3 4\\n", 2)]
        [[1, 3], [20, 4]]
    """
    data = np.frombuffer(text, dtype=np.uint8)
    gaps = np.flatnonzero(data <= 32)  # what lies between numbers
    if not gaps.size or gaps.size % width or gaps[-1] != data.size - 1:
        return None
    # Columns are checked one by one: numpy is slow on many short rows.
    between = data.take(gaps)
    if not (between[width - 1 :: width] == 10).all():
        return None
    for place in range(width - 1):
        if not ((between[place::width] == 32) | (between[place::width] == 9)).all():
            return None
    lengths = np.empty_like(gaps)
    lengths[0] = gaps[0]
    np.subtract(gaps[1:], gaps[:-1], out=lengths[1:])
    lengths[1:] -= 1
    if not lengths.all():
        return None
    columns = []
    for place in range(width):
        column = numbers_at(text, gaps[place::width], lengths[place::width])
        if column is None:
            return None
        columns.append(column)
    return columns


def careful_table(
    path: Path, text: bytes, width: int, first_line: int
) -> tuple[Ints, NDArray[np.int64]]:
    """The numbers of the lines, and all integers in them.

    The text ends with a newline. The integers are computed digit place by digit place.

    Args:
        path: The file, for the message.
        text: Whole lines of it; blank ones are skipped.
        width: How many numbers a line has.
        first_line: The number of the first line.

    Returns:
        (lines,) and (lines, width).

    Raises:
        LikenessError: Lines are of another kind; all are counted.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    digit = (data >= 48) & (data <= 57)
    ends = np.flatnonzero(digit[:-1] & ~digit[1:])  # the last byte is a newline
    lengths = ends - np.flatnonzero(digit & np.append(True, ~digit[:-1])) + 1
    newlines = np.flatnonzero(data == 10)
    each = np.diff(np.searchsorted(ends, newlines), prepend=0)
    strange = np.flatnonzero(~digit & (data != 32) & (data != 9) & (data != 10) & (data != 13))
    wrong = (each != width) & (each != 0)
    wrong[np.searchsorted(newlines, strange)] = True
    wrong[np.searchsorted(newlines, ends[lengths > MAX_DIGITS])] = True
    if wrong.any():
        lines = (np.flatnonzero(wrong) + first_line).astype(np.int32)
        raise LikenessError(
            f"{path}: {lines.size} lines are not {width} non-negative integers "
            f"({at_lines(lines)}); correct them or fetch the file again"
        )
    values = np.zeros(ends.size, dtype=np.int64)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        if there.all():
            values += (data[ends - place] - 48) * np.int64(10**place)
        else:
            values[there] += (data[ends[there] - place] - 48) * np.int64(10**place)
    return (np.flatnonzero(each) + first_line).astype(np.int32), values.reshape(-1, width)
