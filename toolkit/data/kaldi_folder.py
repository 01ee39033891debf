"""Kaldi's data folders as items: wav.scp, and perhaps utt2spk, segments and spk2gender."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.files import text_lines
from eval.types import name_first
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
            malformed or name what is not there; ids are repeated. They are counted, and the first
            is named.
    """
    paths = _recordings(folder / "wav.scp")
    start_from = folder if root is None else root
    rows = [(id, id, "", "") for id in paths]
    if (folder / "segments").is_file():
        rows = _segments(folder / "segments", paths)
    speakers = _mapping(folder / "utt2spk")
    sexes = _mapping(folder / "spk2gender") or {}
    if speakers is not None:
        unknown = [row[0] for row in rows if row[0] not in speakers]
        if unknown:
            raise LikenessError(
                f"{folder / 'utt2spk'}: {len(unknown)} of {len(rows)} utterances have no speaker "
                f"({name_first(unknown)}); add them, or run Kaldi's utils/fix_data_dir.sh"
            )
    made = ItemsBuilder()
    ids = [row[0] for row in rows]
    labels = None if speakers is None else [speakers[id] for id in ids]
    further = {"sex": [sexes.get(label, "") for label in labels]} if labels and sexes else {}
    if any(row[2] for row in rows):
        further |= {"start": [row[2] for row in rows], "end": [row[3] for row in rows]}
    files = [place_below(start_from, paths[row[1]]) for row in rows]
    made.add(ids, files, labels, further=further)
    try:
        items = made.build()
    except ValueError as error:
        raise LikenessError(f"{folder / 'segments'}: {error}") from None
    check_unique(items, str(folder))
    return items


def _recordings(scp: Path) -> dict[str, str]:
    """Recording -> path, of wav.scp."""
    paths: dict[str, str] = {}
    pipes, archives, bad = list[str](), list[str](), list[str]()
    for number, line in text_lines(scp):
        id, _, path = line.partition(" ") if " " in line else line.partition("\t")
        path = path.strip()
        if path.endswith("|") or path.startswith("|"):
            pipes.append(f"line {number}: {id}")
        elif re.search(r"\.ark(:\d+)?(\[.*\])?$", path):
            archives.append(f"line {number}: {id}")
        elif not path or path == "-" or id in paths:
            bad.append(f"line {number}: {id}")
        else:
            paths[id] = path
    if pipes:
        raise LikenessError(
            f"{scp}: {len(pipes)} recordings are pipes, commands that end in | "
            f"({name_first(pipes)}), and none is ever run; write their output as files, and list "
            "these"
        )
    if archives:
        raise LikenessError(
            f"{scp}: {len(archives)} recordings lie in archives ({name_first(archives)}), which "
            "are not read; write them as files, as Kaldi's wav-copy does"
        )
    if bad or not paths:
        raise LikenessError(
            f"{scp}: {len(bad)} lines are no `recording path`, or repeat a recording "
            f"({name_first(bad) if bad else 'it is empty'}); correct them"
        )
    return paths


def _segments(file: Path, paths: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """(utterance, recording, start, end) of each line."""
    rows, bad, unknown = list[tuple[str, str, str, str]](), list[str](), list[str]()
    for number, line in text_lines(file):
        fields = line.split()
        if len(fields) not in (4, 5):  # the fifth is a channel
            bad.append(f"line {number}")
        elif fields[1] not in paths:
            unknown.append(f"line {number}: {fields[1]}")
        else:
            # An end of -1 is that of the recording.
            end = "" if fields[3] in ("-1", "-1.0") else fields[3]
            rows.append((fields[0], fields[1], fields[2], end))
    if bad or unknown or not rows:
        faults = []
        if bad:
            faults.append(f"lines that are not `utterance recording start end`: {len(bad)}")
        if unknown:
            faults.append(f"lines whose recording is not in wav.scp: {len(unknown)}")
        named = name_first([*bad, *unknown])
        what = f"{'; '.join(faults)} ({named})" if faults else "it is empty"
        raise LikenessError(f"{file}: {what}; correct or remove them")
    return rows


def _mapping(file: Path) -> dict[str, str] | None:
    """First field -> second, of a file that may be missing."""
    if not file.is_file():
        return None
    pairs, bad = dict[str, str](), list[str]()
    for number, line in text_lines(file):
        fields = line.split(maxsplit=1)
        if len(fields) != 2 or pairs.get(fields[0], fields[1]) != fields[1]:
            bad.append(f"line {number}")
        else:
            pairs[fields[0]] = fields[1]
    if bad:
        raise LikenessError(
            f"{file}: {len(bad)} lines are no `id name`, or contradict an earlier one "
            f"({name_first(bad)}); correct them"
        )
    return pairs
