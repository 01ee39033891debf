"""Kaldi's data folders as items: wav.scp, and perhaps utt2spk, segments and spk2gender."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.files import text_lines
from eval.formats.subjects import read_mapping
from eval.types import name_first, nfc
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Items, ItemsBuilder
from toolkit.data.remote import place_below


def is_kaldi_folder(folder: Path) -> bool:
    """Returns whether a folder is one of Kaldi's."""
    return (folder / "wav.scp").is_file()


def read_kaldi_folder(folder: Path, *, root: Path | None = None) -> Items:
    """Reads a Kaldi data folder.

    Args:
        folder: The folder with wav.scp. Where it has segments, their utterances are the items,
            stretches of the recordings; otherwise the recordings are. Speakers are in utt2spk, and
            their sex in spk2gender.
        root: The folder that relative paths of wav.scp start from, by default this folder. Kaldi's
            own start from where it was run.

    Returns:
        The items in the order of wav.scp or of segments; without utt2spk they have no label.

    Raises:
        LikenessError: wav.scp has commands (pipes), which are never run, or archives; lines are
            malformed or name what is not there; ids are repeated.
    """
    paths = _recordings(folder / "wav.scp")
    start_from = folder if root is None else root
    rows = [(id, id, "", "") for id in paths]
    if (folder / "segments").is_file():
        rows = _segments(folder / "segments", paths)
    files = (folder / "utt2spk", folder / "spk2gender")
    speakers, sexes = (read_mapping(file) if file.is_file() else None for file in files)
    if speakers is not None:
        unknown = [row[0] for row in rows if nfc(row[0]) not in speakers]
        if unknown:
            raise LikenessError(
                f"{folder / 'utt2spk'}: {len(unknown)} of {len(rows)} utterances have no speaker "
                f"({name_first(unknown)}); add them, or run Kaldi's utils/fix_data_dir.sh"
            )
    made = ItemsBuilder()
    ids = [row[0] for row in rows]
    labels = None if speakers is None else [speakers[nfc(id)] for id in ids]
    further = {"sex": [sexes.get(label, "") for label in labels]} if labels and sexes else {}
    if any(row[2] for row in rows):
        further |= {"start": [row[2] for row in rows], "end": [row[3] for row in rows]}
    places = [place_below(start_from, paths[row[1]]) for row in rows]
    made.add(ids, places, labels, further=further)
    try:
        items = made.build()
    except ValueError as error:
        raise LikenessError(f"{folder / 'segments'}: {error}") from None
    check_unique(items, str(folder))
    return items


def _recordings(scp: Path) -> dict[str, str]:
    """Recording -> path, of wav.scp."""
    paths: dict[str, str] = {}
    for number, line in text_lines(scp):
        id, _, path = line.replace("\t", " ").partition(" ")
        path = path.strip()
        where = f"{scp}: line {number} ({id})"
        if path.endswith("|") or path.startswith("|"):
            raise LikenessError(
                f"{where} is a pipe, a command that ends in |, and none is ever run; write its "
                "output as a file, and list this"
            )
        if re.search(r"\.ark(:\d+)?(\[.*\])?$", path):
            raise LikenessError(
                f"{where} lies in an archive, which is not read; write it as a file, as Kaldi's "
                "wav-copy does"
            )
        if not path or path == "-" or id in paths:
            raise LikenessError(f"{where} is no `recording path`, or repeats a recording")
        paths[id] = path
    if not paths:
        raise LikenessError(f"{scp}: the file is empty; lines `recording path` are needed")
    return paths


def _segments(file: Path, paths: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """(utterance, recording, start, end) of each line."""
    rows = list[tuple[str, str, str, str]]()
    for number, line in text_lines(file):
        fields = line.split()
        if len(fields) not in (4, 5) or fields[1] not in paths:  # the fifth is a channel
            raise LikenessError(
                f"{file}: line {number} is no `utterance recording start end`, or its recording "
                f"is not in wav.scp ({line[:80]}); correct or remove it"
            )
        # An end of -1 is that of the recording.
        end = "" if fields[3] in ("-1", "-1.0") else fields[3]
        rows.append((fields[0], fields[1], fields[2], end))
    return rows
