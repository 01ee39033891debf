"""RTTM files, NIST's format of who speaks when, as items: a stretch of a recording for each turn.

    SPEAKER FILE CHANNEL START DURATION <NA> <NA> SPEAKER <NA> <NA>

Times are in seconds. pyannote.audio, NeMo and others write such files.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.files import text_lines
from eval.types import nfc
from toolkit.data import tree
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Items, ItemsBuilder

_MAX_SECONDS = 1e10  # three hundred years; beyond, nanoseconds are lost
_OTHER_KINDS = (
    *("LEXEME", "NON-LEX", "NON-SPEECH", "SPKR-INFO", "SEGMENT", "NOSCORE", "NO_RT_METADATA"),
    *("SU", "FILLER", "IP", "CB", "EDIT", "A/P"),
)


def read_rttm(path: Path, suffixes: Collection[str], *, root: Path | None = None) -> Items:
    """Reads the SPEAKER lines of an RTTM file; those of the format's other kinds are skipped.

    Args:
        path: The file, which may be compressed by gzip.
        suffixes: The suffixes of recordings, in small letters.
        root: The folder that holds the recordings at any depth, as FILE.wav or such, with
            underscores or with blanks; by default that of the file.

    Returns:
        An item for each turn. Its id is `speaker/file@start-end`, and its label the speaker.

    Raises:
        LikenessError: A line is malformed, a recording is missing or there twice, has turns of
            several channels, or a turn is there twice.
        FileNotFoundError: There is no such folder of recordings.
    """
    folder = path.parent if root is None else root
    if not folder.is_dir():
        raise LikenessError(f"{folder}: there is no such folder of recordings; correct it")
    recordings: dict[str, list[str]] = {}
    for item in tree.anywhere(folder, suffixes):
        # RTTM has underscores where a name has blanks, which would be several fields.
        name = nfc("_".join(item.path.stem.split()))
        recordings.setdefault(name, []).append(item.path.as_posix())
    channels: dict[str, str] = {}
    ids, paths, speakers, starts, ends = [], [], [], [], []
    for number, line in text_lines(path):
        fields = nfc(line).split()
        if line.startswith(";;") or fields[0] in _OTHER_KINDS:
            continue
        file, channel, start, end, speaker = _turn(f"{path}, line {number}", fields)
        found = recordings.get(file, [])
        if len(found) != 1:
            raise LikenessError(
                f"{path}, line {number}: {len(found)} recordings in {folder} are called {file!r} "
                "(as .wav or such); name a folder that has each once, with --root"
            )
        if channels.setdefault(file, channel) != channel:
            raise LikenessError(
                f"{path}, line {number}: {file!r} has turns of several channels, which are "
                "averaged here; write each channel as a recording of its own"
            )
        ids.append(f"{speaker}/{file}@{start:.10g}-{end:.10g}")
        paths.append(found[0])
        speakers.append(speaker)
        starts.append(repr(start))
        ends.append(repr(end))
    if not ids:
        raise LikenessError(f"{path}: there are no turns of speakers; give another file")
    made = ItemsBuilder()
    made.add(ids, paths, speakers, further={"start": starts, "end": ends})
    items = made.build()
    check_unique(items, str(path))
    return items


def _turn(where: str, fields: list[str]) -> tuple[str, str, float, float, str]:
    """The file, channel, start, end and speaker of a SPEAKER line."""
    try:
        kind, file, channel, start, duration, _, _, speaker = fields[:8]
        begin, end = float(start), round(float(start) + float(duration), 9)
    except ValueError:
        kind, begin, end = "", 0.0, 0.0
    if kind != "SPEAKER" or speaker == "<NA>" or not 0 <= begin < end < _MAX_SECONDS:
        raise LikenessError(
            f"{where}: {' '.join(fields)[:100]!r} is no `SPEAKER file channel start duration <NA> "
            "<NA> speaker` with a start of 0 or more and a duration above 0 seconds; correct it"
        )
    return file, channel, begin, end, speaker
