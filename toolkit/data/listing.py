"""Whatever a person has as items: a folder, a list, a table, a Kaldi folder or an RTTM file."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import parse_columns
from likeness.eval.formats.files import text_lines
from likeness.eval.formats.subjects import read_mapping
from likeness.eval.progress import step
from likeness.eval.types import name_first, nfc
from likeness.toolkit.data import tree
from likeness.toolkit.data.item_lists import read_items
from likeness.toolkit.data.items import Items, check_unique
from likeness.toolkit.data.labels import LabelPattern
from likeness.toolkit.data.remote import is_url, place_below

Scan = Callable[[Path], Items]


@step("listing the data")
def list_items(
    data: str | Path,
    *,
    suffixes: Collection[str],
    scan: Scan | None = None,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
    missing: Literal["refuse", "leave"] = "refuse",
    passed_over: list[str] | None = None,
) -> Items:
    """Lists the items of whatever a person has.

    Args:
        data: One of
            a folder, whose sub-folders are the labels;
            a folder of Kaldi (see `read_kaldi_folder`), or its wav.scp;
            a .csv, .tsv or .parquet file, or another text whose first line names columns
            (see `likeness.eval.formats.column_names`);
            an .rttm file (see `read_rttm`);
            a list with lines `path` or `id path [label]` (see `item_lists`).
        suffixes: The suffixes of the files that count as data, in small letters.
        scan: Lists a folder, by default all files of these suffixes at any depth.
        columns: Which column is which, where their names do not say it: "label=spk", or a mapping.
        label: A pattern of paths, from which labels are taken instead: "{label}_*.wav" (see
            `labels`).
        root: The folder that relative paths start from, by default that of the list or table. For
            an RTTM file, where the recordings lie.
        missing: Whether files that do not exist are refused, or left for whoever reads them.
        passed_over: Takes what of a folder has a name that cannot be used (see `tree.files`);
            by default it is refused.

    Returns:
        The items. Those of a list may have further columns: `items.column("sex")`.

    Raises:
        LikenessError: There is no such data, or files are missing; they are counted, and the first
            is named. Columns or rows cannot be understood, or there are no items.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     table = Path(folder) / "voices.csv"
        ...     _ = table.write_text("file;speaker;start;end\\na.wav;ann;0;1.5\\n")
        ...     items = list_items(table, suffixes=[".wav"], missing="leave")
        >>> items[0].id, items[0].label, items[0].stretch
        ('a.wav@0-1.5', 'ann', (0.0, 1.5))
    """
    path, stated = Path(data), parse_columns(columns)
    start_from = Path(root) if root else None
    if not os.path.exists(path):
        raise LikenessError(f"{str(data)!r}: there is no such file or folder; correct the path")
    path = path.parent if path.name == "wav.scp" else path
    base = start_from or (path if path.is_dir() else path.parent)
    has_columns = not path.is_dir() and path.suffix.lower() != ".rttm"
    if stated and not has_columns:
        raise LikenessError(f"{path} is no table, so that it has no columns; leave these out")
    if path.is_dir() and not is_kaldi_folder(path):
        if scan is not None and not label:
            return scan(path)
        items = tree.files(path, suffixes, passed_over=passed_over)
        if not items:
            raise LikenessError(
                f"{path}: the folder holds no files that are read here ({', '.join(suffixes)})"
            )
    elif path.is_dir():
        items = read_kaldi_folder(path, root=start_from)
    elif has_columns:
        items = read_items(path, base, columns=stated)
    else:
        items = read_rttm(path, suffixes, root=start_from)
    if label:
        items = LabelPattern(label).relabelled(items, base, str(path))
    if missing == "refuse":
        _refuse_missing(items, path, base)
    return items


def _refuse_missing(items: Items, path: Path, base: Path) -> None:
    """Raises LikenessError for items that are no files."""
    paths = dict.fromkeys(item.path for item in items)
    # Path.is_file raises where a name is too long.
    missing = [place for place in paths if not is_url(place) and not os.path.isfile(place)]
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} of {len(paths)} files do not exist "
            f"({name_first(map(str, missing))}); correct the paths, say with --root where they "
            f"start (now {base}; --root . is the current folder), put the names of the columns "
            "such as path,label above a list of paths and labels, or take the list that "
            "`likeness check --out` writes without them"
        )


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
    recordings: dict[str, str] = {}
    for number, line in text_lines(folder / "wav.scp"):
        id, _, path = line.replace("\t", " ").partition(" ")
        path = path.strip()
        if not path or re.search(r"^\||\|$|^-$|\.ark(:\d+)?(\[.*\])?$", path) or id in recordings:
            raise LikenessError(
                f"{folder / 'wav.scp'}: line {number} ({id}) is no `recording path`, or repeats a "
                "recording; a pipe (a command beside |) is never run, and an archive (.ark) is not "
                "read: write each recording as a file, and list this"
            )
        recordings[id] = place_below(folder if root is None else root, path)
    if not recordings:
        raise LikenessError(f"{folder / 'wav.scp'}: the file is empty; a line names a recording")
    ids, paths, times = list(recordings), list(recordings.values()), None
    if (folder / "segments").is_file():
        ids, names, times = _segments(folder / "segments", recordings)
        paths = [recordings[name] for name in names]
    speakers, sexes = (
        read_mapping(folder / name) if (folder / name).is_file() else {}
        for name in ("utt2spk", "spk2gender")
    )
    unknown = [id for id in ids if nfc(id) not in speakers] if speakers else []
    if unknown:
        raise LikenessError(
            f"{folder / 'utt2spk'}: {len(unknown)} of {len(ids)} utterances have no speaker "
            f"({name_first(unknown)}); add them, or run Kaldi's utils/fix_data_dir.sh"
        )
    labels = [speakers.get(nfc(id), "") for id in ids]
    further = {"sex": [sexes.get(label, "") for label in labels]} if sexes else {}
    items = Items.rows(ids, paths, labels, times=times, further=further)
    check_unique(items, str(folder))
    return items


def _segments(
    file: Path, recordings: Collection[str]
) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """The utterance, recording, and start and end of each line."""
    ids, names, times = [], [], []
    for number, line in text_lines(file):
        fields = line.split()
        try:
            id, name, start, end = fields[:4]  # a fifth is a channel
            seconds = float(start), float(end)
        except ValueError:
            name, seconds = "", (0.0, 0.0)
        if name not in recordings or not np.isfinite(seconds).all():
            raise LikenessError(
                f"{file}: line {number} is no `utterance recording start end`, or its recording "
                f"is not in wav.scp ({line[:80]}); correct or remove it"
            )
        ids.append(id)
        names.append(name)
        times.append((seconds[0], np.nan if seconds[1] == -1 else seconds[1]))  # -1 is open
    return ids, names, np.array(times, dtype=np.float64).reshape(-1, 2)


def read_rttm(path: Path, suffixes: Collection[str], *, root: Path | None = None) -> Items:
    """Reads the SPEAKER lines of an RTTM file; all other lines are skipped.

    RTTM is NIST's format of who speaks when, which pyannote.audio, NeMo and others write. Times are
    in seconds:

        SPEAKER FILE CHANNEL START DURATION <NA> <NA> SPEAKER <NA> <NA>

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
    recordings = defaultdict[str, list[str]](list)
    for item in tree.files(folder, suffixes):
        # RTTM has underscores where a name has blanks, which would be several fields.
        recordings[nfc("_".join(item.path.stem.split()))].append(item.path.as_posix())
    channels: dict[str, str] = {}
    ids, paths, speakers, times = [], [], [], []
    for number, line in text_lines(path):
        fields = nfc(line).split()
        if fields[0] != "SPEAKER":
            continue
        try:
            _, file, channel, begin, duration, _, _, speaker = fields[:8]
            start, end = float(begin), round(float(begin) + float(duration), 9)
            if not np.isfinite((start, end)).all():
                raise ValueError
        except ValueError:
            raise LikenessError(
                f"{path}, line {number}: {line[:100]!r} is no `SPEAKER file channel start duration "
                "<NA> <NA> speaker`; correct it"
            ) from None
        found = recordings[file]
        if len(found) != 1 or channels.setdefault(file, channel) != channel:
            raise LikenessError(
                f"{path}, line {number}: {len(found)} recordings in {folder} are called {file!r} "
                "(as .wav or such), with turns of one channel; name a folder that has each once "
                "with --root, and write each channel as a recording of its own"
            )
        ids.append(f"{speaker}/{file}@{start:.10g}-{end:.10g}")
        paths.append(found[0])
        speakers.append("" if speaker == "<NA>" else speaker)
        times.append((start, end))
    if not ids:
        raise LikenessError(f"{path}: there are no turns of speakers; give another file")
    items = Items.rows(ids, paths, speakers, times=np.array(times, dtype=np.float64))
    check_unique(items, str(path))
    return items
