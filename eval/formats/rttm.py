"""RTTM, NIST's format of who speaks when: a line for each turn of a speaker in a recording.

    SPEAKER FILE 1 START DURATION <NA> <NA> SPEAKER <NA> <NA>

Times are in seconds. A name with blanks would be several fields, so that blanks become underscores.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from eval.errors import LikenessError
from eval.formats.files import text_lines
from eval.formats.writing import atomic_path
from eval.types import name_first, nfc

MAX_TURNS = 2_000_000  # of one file, which take about half a gigabyte
MAX_SECONDS = 1e10  # three hundred years; beyond, nanoseconds are lost and products overflow
_KINDS = (
    *("SPEAKER", "LEXEME", "NON-LEX", "NON-SPEECH", "SPKR-INFO", "SEGMENT", "NOSCORE"),
    *("NO_RT_METADATA", "SU", "FILLER", "IP", "CB", "EDIT", "A/P"),
)


class Turn(NamedTuple):
    """A stretch of a recording in which one speaker speaks.

    Attributes:
        file: The recording, without folder and suffix.
        start: In seconds.
        end: In seconds, after the start.
        speaker: A name, which may be a number.
        channel: Of the recording, "1" for the first or only one.
    """

    file: str
    start: float
    end: float
    speaker: str
    channel: str = "1"


def read_turns(path: Path) -> list[Turn]:
    """Read the SPEAKER lines of an RTTM file.

    Blank lines, lines that begin with # or ;;, and the lines of the format's other kinds are
    skipped.

    Args:
        path: The file, which may be compressed by gzip.

    Returns:
        The turns in the order of the file; there is at least one.

    Raises:
        LikenessError: Lines are malformed, which are counted and of which the first are named; or
            there are no turns, or more than 2,000,000.
    """
    turns, bad = list[Turn](), list[str]()
    for number, line in text_lines(path):
        fields = line.split()
        if line.startswith(";;") or (fields[0] in _KINDS and fields[0] != "SPEAKER"):
            continue
        try:
            start, duration = float(fields[3]), float(fields[4])
            if fields[0] != "SPEAKER" or not duration > 0 or fields[7] == "<NA>":
                raise ValueError
            end = round(start + duration, 9)
            if not 0 <= start < end < MAX_SECONDS:  # which also refuses NaN
                raise ValueError
        except (ValueError, IndexError):
            bad.append(f"line {number}")
            continue
        if len(turns) == MAX_TURNS:
            raise LikenessError(f"{path}: over {MAX_TURNS:,} turns; divide the file")
        turns.append(Turn(nfc(fields[1]), start, end, nfc(fields[7]), fields[2]))
    if bad or not turns:
        raise LikenessError(
            f"{path}: {len(bad)} lines are no `SPEAKER file channel start duration <NA> <NA> "
            f"speaker` with a start of 0 or more, a duration above 0 and an end below "
            f"1e10 s ({name_first(bad) if bad else 'it has no turns'}); correct them"
        )
    return turns


def rttm_text(turns: Iterable[Turn]) -> str:
    r"""Return turns as the text of an RTTM file, with times to the millisecond.

    A turn that is shorter than half a millisecond is left out.

    Example:
        >>> rttm_text([Turn("talk", 0.5, 2.25, "ann lee")])
        'SPEAKER talk 1 0.500 1.750 <NA> <NA> ann_lee <NA> <NA>\n'
    """
    lines = []
    for turn in turns:
        start, end = round(1000 * turn.start), round(1000 * turn.end)
        if end > start:
            lines.append(
                f"SPEAKER {as_field(turn.file)} {turn.channel} {start / 1000:.3f} "
                f"{(end - start) / 1000:.3f} <NA> <NA> {as_field(turn.speaker)} <NA> <NA>\n"
            )
    return "".join(lines)


def write_turns(path: Path, turns: Iterable[Turn]) -> None:
    """Write an RTTM file, whole or not at all."""
    text = rttm_text(turns)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def as_field(name: str) -> str:
    """Return a name as one field: blanks become underscores.

    Example:
        >>> as_field(" ann  lee ")
        'ann_lee'
    """
    return "_".join(name.split()) or "_"
