"""RTTM files, who speaks when, as items: a stretch of a recording for each turn."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.rttm import Turn, as_field, read_turns
from eval.types import name_first
from toolkit.data import tree
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Items, ItemsBuilder


def read_rttm(path: Path, suffixes: Collection[str], *, root: Path | None = None) -> Items:
    """Reads the SPEAKER lines of an RTTM file.

    Args:
        path: The file, with lines `SPEAKER file channel start duration <NA> <NA> speaker ...`.
        suffixes: The suffixes of recordings, in small letters.
        root: The folder that holds the recordings at any depth, as FILE.wav or such, with
            underscores or with blanks; by default that of the file.

    Returns:
        An item for each turn. Its id is `speaker/file@start-end`, and its label the speaker.

    Raises:
        LikenessError: Lines are malformed, recordings are missing or there twice, a recording has
            turns of several channels, or a turn is there twice. They are counted, and the first is
            named.
    """
    turns = _turns(path)
    folder = path.parent if root is None else root
    place_of = _places(path, {turn.file for turn in turns}, folder, suffixes)
    made = ItemsBuilder()
    made.add(
        [f"{turn.speaker}/{turn.file}@{turn.start:.10g}-{turn.end:.10g}" for turn in turns],
        [place_of[turn.file] for turn in turns],
        [turn.speaker for turn in turns],
        further={
            "start": [repr(turn.start) for turn in turns],
            "end": [repr(turn.end) for turn in turns],
        },
    )
    try:
        items = made.build()
    except ValueError as error:
        raise LikenessError(f"{path}: {error}") from None
    check_unique(items, str(path))
    return items


def _turns(path: Path) -> list[Turn]:
    """The turns of a file whose recordings have one channel each."""
    turns = read_turns(path)
    channels: dict[str, set[str]] = {}
    for turn in turns:
        channels.setdefault(turn.file, set()).add(turn.channel)
    several = sorted(file for file, names in channels.items() if len(names) > 1)
    if several:
        raise LikenessError(
            f"{path}: {len(several)} recordings have turns of several channels "
            f"({name_first(several)}), and the channels of a file are averaged; write each channel "
            "as a recording of its own"
        )
    return turns


def _places(path: Path, names: set[str], folder: Path, suffixes: Collection[str]) -> dict[str, str]:
    """File of the RTTM -> path."""
    if not folder.is_dir():
        raise LikenessError(f"{folder}: there is no such folder of recordings; correct it")
    places: dict[str, list[str]] = {}
    for item in tree.anywhere(folder, suffixes):
        name = as_field(item.path.stem)  # as it was written: a blank would end the field
        if name in names:
            places.setdefault(name, []).append(item.path.as_posix())
    missing = sorted(names - places.keys())
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} of {len(names)} recordings are not in {folder} "
            f"({name_first(missing)}, as .wav or such); say where they lie with --root"
        )
    twice = sorted(name for name, found in places.items() if len(found) > 1)
    if twice:
        raise LikenessError(
            f"{path}: {len(twice)} recordings are in {folder} several times ({name_first(twice)}: "
            f"{', '.join(places[twice[0]][:2])}); name a folder that has each once, with --root"
        )
    return {name: found[0] for name, found in places.items()}
