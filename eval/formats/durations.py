"""A number for each id, from a list of two columns: durations of recordings, qualities of items."""

from __future__ import annotations

import math
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.subjects import read_mapping
from eval.types import name_first


def read_durations(path: str | Path) -> dict[str, float]:
    """Reads lines `id seconds` (Kaldi's utt2dur) into a dictionary from id to seconds.

    Args:
        path: The list; it may have a header.

    Returns:
        The duration of each id, in seconds.

    Raises:
        LikenessError: Lines whose second field is no number, all counted; and as `read_mapping`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "utt2dur"
        ...     _ = path.write_text("id seconds\\nutterance1 2.5")
        ...     read_durations(path)
        {'utterance1': 2.5}
    """
    return _read_numbers(path, "durations", "seconds")


def read_qualities(path: str | Path) -> dict[str, float]:
    """Reads lines `id quality` into a dictionary from id to quality.

    Args:
        path: The list; it may have a header.

    Returns:
        The quality of each id, a finite number, higher for items to be trusted more.

    Raises:
        LikenessError: As `read_durations`; also for NaN and infinity.
    """
    listed = _read_numbers(path, "qualities", "quality")
    wrong = [f"{name} {value}" for name, value in listed.items() if not math.isfinite(value)]
    if wrong:
        raise LikenessError(
            f"{path}: {len(wrong)} of {len(listed)} qualities are NaN or infinite "
            f"({name_first(wrong)}); give a finite number for each id"
        )
    return listed


def _read_numbers(path: str | Path, what: str, column: str) -> dict[str, float]:
    listed = read_mapping(path, column=column)
    wrong = [name for name, text in listed.items() if not _is_number(text)]
    if wrong == list(listed)[:1] and len(listed) > 1:
        del listed[wrong.pop()]  # the header, which the reader of any list cannot know
    if wrong:
        raise LikenessError(
            f"{path}: {len(wrong)} of {len(listed)} {what} are no numbers "
            f"({name_first(f'{name} {listed[name]}' for name in wrong)}); expected lines "
            f"`id {column}`"
        )
    return {name: float(text) for name, text in listed.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
