"""Whatever a person has as items: a folder, a list, a table, a Kaldi folder or an RTTM file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from eval.errors import LikenessError
from eval.formats.column_names import parse_columns
from eval.formats.files import text_lines
from eval.formats.subjects import read_mapping
from eval.progress import step
from eval.types import name_first, nfc
from toolkit.data import tree
from toolkit.data.item_lists import read_items
from toolkit.data.items import Items, ItemsBuilder, check_unique
from toolkit.data.labels import LabelPattern
from toolkit.data.remote import is_url, place_below

Scan = Callable[[Path], Items]
_MAX_SECONDS = 1e10  # three hundred years; beyond, nanoseconds are lost
_OTHER_KINDS = (
    *("LEXEME", "NON-LEX", "NON-SPEECH", "SPKR-INFO", "SEGMENT", "NOSCORE", "NO_RT_METADATA"),
    *("SU", "FILLER", "IP", "CB", "EDIT", "A/P"),
)


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
            (see `eval.formats.column_names`);
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
        passed_over: Takes what of a folder has a name that cannot be used (see `tree.anywhere`);
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
    pattern = LabelPattern(label) if label else None
    start_from = None if root is None or root == "" else Path(root)
    if not os.path.exists(path):
        raise LikenessError(f"{str(data)!r}: there is no such file or folder; correct the path")
    if path.name == "wav.scp":
        path = path.parent
    if path.is_dir():
        _refuse_columns(stated, path, "a folder")
        if not is_kaldi_folder(path):
            return _of_folder(path, suffixes, scan, pattern, passed_over)
        items, base = read_kaldi_folder(path, root=start_from), start_from or path
    else:
        base = start_from or path.parent
        if path.suffix.lower() == ".rttm":
            _refuse_columns(stated, path, "an RTTM file")
            return _with_pattern(read_rttm(path, suffixes, root=start_from), pattern, base, path)
        items = read_items(path, base, columns=stated)
    items = _with_pattern(items, pattern, base, path)
    if missing == "refuse":
        _refuse_missing(items, path, base, start_from)
    return items


def _of_folder(
    folder: Path,
    suffixes: Collection[str],
    scan: Scan | None,
    pattern: LabelPattern | None,
    passed_over: list[str] | None,
) -> Items:
    """The items of a folder that is no list."""
    if scan is not None and pattern is None:
        return scan(folder)
    items = tree.anywhere(folder, suffixes, passed_over=passed_over)
    if not items:
        raise LikenessError(
            f"{folder}: the folder holds no files that are read here ({', '.join(suffixes)})"
        )
    return _with_pattern(items, pattern, folder, folder)


def _with_pattern(items: Items, pattern: LabelPattern | None, root: Path, where: Path) -> Items:
    return items if pattern is None else pattern.relabelled(items, root, str(where))


def _refuse_columns(stated: Mapping[str, str], path: Path, kind: str) -> None:
    if stated:
        raise LikenessError(f"{path} is {kind}, which has no columns; leave the columns out")


def _refuse_missing(items: Items, path: Path, base: Path, root: Path | None) -> None:
    """Raises LikenessError for items that are no files."""
    paths = dict.fromkeys(item.path for item in items)
    # Path.is_file raises where a name is too long.
    missing = [place for place in paths if not is_url(place) and not os.path.isfile(place)]
    if not missing:
        return
    written = missing[0].as_posix().removeprefix((base / "x").as_posix()[:-1])
    hint = "correct the paths, or say with --root where they start"
    if os.path.splitext(items[0].id)[1] and not items[0].path.suffix:
        hint = (
            "its lines were read as `id path [label]`; put the names of the columns above them, "
            "such as path,label"
        )
    elif root is None and os.path.isfile(written):
        hint = f"they were looked for in {base}, and start from the current folder: add --root ."
    elif len(missing) < len(paths):
        hint += ", or take the list that `likeness check --out` writes without them"
    raise LikenessError(
        f"{path}: {len(missing)} of {len(paths)} files do not exist "
        f"({name_first(map(str, missing))}); {hint}"
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


def read_rttm(path: Path, suffixes: Collection[str], *, root: Path | None = None) -> Items:
    """Reads the SPEAKER lines of an RTTM file; those of the format's other kinds are skipped.

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
