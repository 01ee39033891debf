"""RTTM files, who speaks when, as items: a stretch of a recording for each turn."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from eval.formats.files import text_lines
from eval.types import name_first
from toolkit.data import tree
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Items, ItemsBuilder

_KINDS = (
    *("SPEAKER", "LEXEME", "NON-LEX", "NON-SPEECH", "SPKR-INFO", "SEGMENT", "NOSCORE"),
    *("NO_RT_METADATA", "SU", "FILLER", "IP", "CB", "EDIT", "A/P"),
)


def read_rttm(path: Path, suffixes: Collection[str], *, root: Path | None = None) -> Items:
    """Reads the SPEAKER lines of an RTTM file.

    Args:
        path: The file, with lines `SPEAKER file channel start duration <NA> <NA> speaker ...`.
        suffixes: The suffixes of recordings, in small letters.
        root: The folder that holds the recordings at any depth, as FILE.wav or such; by default
            that of the file.

    Returns:
        An item for each turn. Its id is `speaker/file@start-end`, and its label the speaker.

    Raises:
        ValueError: Lines are malformed, recordings are missing or there twice, a recording has
            turns of several channels, or a turn is there twice. They are counted, and the first is
            named.
    """
    turns = _turns(path)
    folder = path.parent if root is None else root
    place_of = _places(path, {turn[0] for turn in turns}, folder, suffixes)
    made = ItemsBuilder()
    made.add(
        [f"{speaker}/{file}@{start:.10g}-{end:.10g}" for file, start, end, speaker in turns],
        [place_of[turn[0]] for turn in turns],
        [turn[3] for turn in turns],
        further={
            "start": [repr(turn[1]) for turn in turns],
            "end": [repr(turn[2]) for turn in turns],
        },
    )
    try:
        items = made.build()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    check_unique(items, str(path))
    return items


def _turns(path: Path) -> list[tuple[str, float, float, str]]:
    """(file, start, end, speaker) of each line."""
    turns, bad = list[tuple[str, float, float, str]](), list[str]()
    channels: dict[str, set[str]] = {}
    for number, line in text_lines(path):
        fields = line.split()
        if line.startswith(";;") or (fields[0] in _KINDS and fields[0] != "SPEAKER"):
            continue
        try:
            start, duration = float(fields[3]), float(fields[4])
            if fields[0] != "SPEAKER" or not duration > 0 or fields[7] == "<NA>":
                raise ValueError
        except (ValueError, IndexError):
            bad.append(f"line {number}")
            continue
        channels.setdefault(fields[1], set()).add(fields[2])
        turns.append((fields[1], start, round(start + duration, 9), fields[7]))
    if bad or not turns:
        raise ValueError(
            f"{path}: {len(bad)} lines are no `SPEAKER file channel start duration <NA> <NA> "
            f"speaker` with a duration above 0 ({name_first(bad) if bad else 'it has no turns'}); "
            "correct them"
        )
    several = sorted(file for file, names in channels.items() if len(names) > 1)
    if several:
        raise ValueError(
            f"{path}: {len(several)} recordings have turns of several channels "
            f"({name_first(several)}), and the channels of a file are averaged; write each channel "
            "as a recording of its own"
        )
    return turns


def _places(path: Path, names: set[str], folder: Path, suffixes: Collection[str]) -> dict[str, str]:
    """File of the RTTM -> path."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder of recordings; correct it")
    places: dict[str, list[str]] = {}
    for item in tree.anywhere(folder, suffixes):
        if item.path.stem in names:
            places.setdefault(item.path.stem, []).append(item.path.as_posix())
    missing = sorted(names - places.keys())
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(names)} recordings are not in {folder} "
            f"({name_first(missing)}, as .wav or such); say where they lie with --root"
        )
    twice = sorted(name for name, found in places.items() if len(found) > 1)
    if twice:
        raise ValueError(
            f"{path}: {len(twice)} recordings are in {folder} several times ({name_first(twice)}: "
            f"{', '.join(places[twice[0]][:2])}); name a folder that has each once, with --root"
        )
    return {name: found[0] for name, found in places.items()}
