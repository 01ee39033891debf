"""What the rows of a table of items are called, and which part of a recording each of them is."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.tables import is_number

Cells = Mapping[str, list[str]]  # the texts of each column by its role
# How a column names channels; a number may be written as pandas does beside missing ones: 2.0.
_CHANNEL = re.compile(r"(?:(\d{1,2})(?:\.0)?|(a|l|left)|(b|r|right))\Z", re.IGNORECASE)
_NO_CHANNEL = ("", "<NA>", "nan", "NaN")


def name_rows(cells: Cells) -> tuple[list[str], NDArray[np.float64] | None, list[int | None]]:
    """Returns the ids of rows, and of which times and channels of a recording they are.

    Args:
        cells: The columns of N rows, of which one has the paths. A row without an id has its path
            as its id, and behind it its times and its channel, if it has any.

    Returns:
        N ids; (N, 2) start and end in seconds, NaN for none, or None without such columns; and the
        channels, or nothing without such a column.

    Raises:
        LikenessError: A time is no number, or some rows name channels and others something else.

    Example:
        >>> name_rows({"path": ["a.wav", "a.wav"], "start": ["0", "1.5"], "end": ["1.5", ""]})[0]
        ['a.wav@0-1.5', 'a.wav@1.5-']
    """
    own, times = cells["path"], None
    if "start" in cells or "end" in cells:
        times = _times(cells, len(own))
        own = [
            name if start != start and end != end else f"{name}@{_short(start)}-{_short(end)}"
            for name, (start, end) in zip(own, times.tolist(), strict=True)
        ]
    channels = _channels(cells.get("channel", ()))
    if channels:
        own = [f"{name}{channel_mark(each)}" for name, each in zip(own, channels, strict=True)]
    ids = cells.get("id", own)
    if "" in ids:
        ids = [id or name for id, name in zip(ids, own, strict=True)]
    return ids, times, channels


def channel_mark(channel: int | None) -> str:
    """Returns what the id of an item has behind it that is a channel of a recording but its first.

    Example:
        >>> channel_mark(1), channel_mark(2)
        ('', '#channel=2')
    """
    return f"#channel={channel}" if channel is not None and channel > 1 else ""


def channel_of(text: str) -> int | None:
    """Returns the channel that a text names, from 1; None for the average of all.

    Raises:
        LikenessError: It names none.

    Example:
        >>> channel_of("2"), channel_of("A"), channel_of("<NA>")
        (2, 1, None)
    """
    if text in _NO_CHANNEL:
        return None
    match = _CHANNEL.match(text)
    if match is None:
        problem = f"the channel {text[:40]!r} is no number from 1, A or B, left or right"
        raise LikenessError(f"{problem}; correct it, or rename the column")
    return int(match[1] or (1 if match[2] else 2))


def _channels(texts: Sequence[str]) -> list[int | None]:
    """The channel that each row names; none where a column of this name is the user's own.

    Raises:
        LikenessError: Some rows name channels, and others something else.
    """
    distinct = set(texts)
    if not any(_CHANNEL.match(text) or is_number(text) for text in distinct):
        return []
    numbers = {text: channel_of(text) for text in distinct}
    return [numbers[text] for text in texts]


def _times(cells: Cells, num: int) -> NDArray[np.float64]:
    """The start and end (N, 2) of each row in seconds, NaN for none."""
    columns = []
    for role in ("start", "end", "duration"):
        try:  # The comma of many languages, beside semicolons.
            seconds = [float(text.replace(",", ".") or "nan") for text in cells.get(role, ())]
        except ValueError as error:
            raise LikenessError(f"a time is no number of seconds: {error}") from None
        columns.append(np.array(seconds or [np.nan] * num))
    start, end, length = columns
    # A duration without a start is that of the whole file.
    if "end" not in cells:
        end = np.round(np.nan_to_num(start) + length, 9)
    return np.stack((start, end), axis=1)


def _short(seconds: float) -> str:
    """A number of seconds with no more digits than it needs; "" for NaN."""
    return f"{seconds:.10g}" if seconds == seconds else ""
