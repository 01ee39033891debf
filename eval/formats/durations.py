"""The durations of recordings, from an `id seconds` list."""

from __future__ import annotations

from pathlib import Path

from eval.formats.subjects import read_mapping
from eval.types import name_first


def read_durations(path: str | Path) -> dict[str, float]:
    """Reads lines `id seconds` (Kaldi's utt2dur) into a dictionary from id to seconds.

    Args:
        path: The list; it may have a header.

    Returns:
        The duration of each id, in seconds.

    Raises:
        ValueError: Lines whose second field is no number, all counted; and as `read_mapping`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "utt2dur"
        ...     _ = path.write_text("id seconds\\nutterance1 2.5")
        ...     read_durations(path)
        {'utterance1': 2.5}
    """
    listed = read_mapping(path)
    wrong = [name for name, text in listed.items() if not _is_number(text)]
    if wrong == list(listed)[:1] and len(listed) > 1:
        del listed[wrong.pop()]  # the header `id seconds`, which the reader of any list cannot know
    if wrong:
        raise ValueError(
            f"{path}: {len(wrong)} of {len(listed)} durations are no numbers "
            f"({name_first(f'{name} {listed[name]}' for name in wrong)}); expected lines "
            "`id seconds`"
        )
    return {name: float(text) for name, text in listed.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
