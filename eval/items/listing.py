"""Whatever a person has as items: a folder, a list, a table, a Kaldi folder or an RTTM file."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path, PureWindowsPath
from typing import Literal

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import parse_columns
from likeness.eval.formats.files import refuse_device, text_lines
from likeness.eval.formats.row_names import channel_mark, channel_of
from likeness.eval.formats.subjects import read_mapping
from likeness.eval.items.item_lists import items_of_rows, read_items
from likeness.eval.items.items import BLOCK, Items
from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.levels import labels_of_ids
from likeness.eval.items.remote import is_url
from likeness.eval.items.suffixes import AV_SOUNDS, IMAGES, SOUNDS, UNREAD
from likeness.eval.option import if_option
from likeness.eval.progress import step, track
from likeness.eval.types import counted, item_id, name_first, nfc

_NOT_UTF8 = re.compile("[\ud800-\udfff]")  # how Python shows bytes of names that are not UTF-8


@step("listing the data")
def list_items(
    data: str | Path,
    *,
    suffixes: Collection[str],
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
        columns: Which column is which, where their names do not say it: "label=spk", or a mapping.
        label: A pattern of paths, from which labels are taken instead: "{label}_*.wav" (see
            `labels`).
        root: The folder that relative paths start from, by default that of the list or table. For
            an RTTM file, where the recordings lie.
        missing: Whether files that do not exist are refused, or left for whoever reads them.
        passed_over: Takes the names of what cannot be used in a folder (see `files_below`).

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
    if not os.path.exists(path):
        raise LikenessError(f"{str(data)!r}: there is no such file or folder; correct the path")
    if path.suffix.lower() in (*SOUNDS, *AV_SOUNDS, *IMAGES, ".rec"):
        refuse_device(path)  # of a list a pipe will do
    path = path.parent if path.name == "wav.scp" else path
    base = Path(root) if root else path if path.is_dir() else path.parent
    is_table = not path.is_dir() and not is_rttm(path)
    if stated and not is_table:
        raise LikenessError(f"{path} is no table, so that it has no columns; leave these out")
    if is_table:
        items = read_items(path, base, columns=stated)
    elif is_rttm(path):
        items = read_rttm(path, suffixes, base)
    elif is_kaldi_folder(path):
        items = read_kaldi_folder(path, base)
    else:
        items = files_below(path, suffixes, passed_over=passed_over)
    if not items:
        raise LikenessError(f"{path} holds no files of {', '.join(suffixes)}; name another")
    if label:
        items = LabelPattern(label).relabelled(items, base, str(path))
    if missing == "refuse":
        _refuse_missing(items, path, base)
    return items


def _refuse_missing(items: Items, path: Path, base: Path) -> None:
    """Raises LikenessError for items that are no files."""
    paths = dict.fromkeys(item.path for item in items)
    # Path.is_file raises where a name is too long.
    missing = [str(p) for p in paths if not is_url(p) and not os.path.isfile(p)]
    if missing:
        by_root = if_option(f", say with --root where they start (now {base})")
        raise LikenessError(
            f"{path}: {len(missing)} of {len(paths)} files do not exist ({name_first(missing)}); "
            f"correct the paths{by_root}, or name the columns above the list, as in path,label"
        )


def is_rttm(data: object) -> bool:
    """Returns whether data is the path of an RTTM file, and not of a folder of that name."""
    is_named = isinstance(data, str | Path) and str(data).lower().endswith((".rttm", ".rttm.gz"))
    return is_named and not os.path.isdir(str(data))


def is_kaldi_folder(folder: Path) -> bool:
    """Returns whether a folder is one of Kaldi's."""
    return (folder / "wav.scp").is_file()


def is_plain_folder(path: Path, label: str = "") -> bool:
    """Returns whether the first folders of the files are their labels."""
    return path.is_dir() and not label and not is_kaldi_folder(path)


def read_kaldi_folder(folder: Path, root: Path) -> Items:
    """Reads a Kaldi data folder.

    Args:
        folder: The folder with wav.scp. Where it has segments, their utterances are the items,
            stretches of the recordings, of the channel in a fifth field, which counts from 0;
            otherwise the recordings are. reco2file_and_channel (`recording call channel`) says
            which channel a recording is, if its file is called CALL or holds several recordings.
            Speakers are in utt2spk, and their sex in spk2gender.
        root: The folder that relative paths of wav.scp start from.

    Returns:
        The items in the order of wav.scp or of segments; without utt2spk they have no label. A
        warning counts the utterances of utt2spk that are not among them.

    Raises:
        LikenessError: wav.scp has commands (pipes), which are never run, or archives; lines are
            malformed or name what is not there; ids are repeated.
    """
    recordings: dict[str, str] = {}
    for _, line in text_lines(folder / "wav.scp"):
        id, path = (*line.split(maxsplit=1), "")[:2]
        if not path or re.search(r"^\||\|$|^-$|\.ark(:\d+)?(\[.*\])?$", path) or id in recordings:
            problem = f"{line[:80]!r} is no `recording path` of a file, or repeats a recording"
            remedy = "correct it (pipes are never run, and archives are not read)"
            raise LikenessError(f"{folder / 'wav.scp'}: {problem}; {remedy}")
        recordings[id] = path
    cells = {"id": list(recordings), "path": list(recordings.values())}
    cells["channel"] = _sides(folder / "reco2file_and_channel", recordings)
    if (folder / "segments").is_file():
        cells = _segments(folder / "segments", cells)
    if not any(cells["channel"]):
        del cells["channel"]
    speakers, sexes = (
        read_mapping(folder / name, separator=" ") if (folder / name).is_file() else {}
        for name in ("utt2spk", "spk2gender")
    )
    cells["label"] = [speakers.get(item_id(id), "") for id in cells["id"]]
    absent = speakers.keys() - map(item_id, cells["id"])
    if absent:
        total, first = counted(len(speakers), "utterance"), name_first(sorted(absent))
        text = f"{len(absent):,} of {total} ({first}) are not in wav.scp or segments"
        warnings.warn(f"{folder / 'utt2spk'}: {text}, and are left out", stacklevel=2)
    if sexes:
        cells["sex"] = [sexes.get(label, "") for label in cells["label"]]
    return items_of_rows([cells], str(folder), root)


def _sides(file: Path, recordings: Mapping[str, str]) -> list[str]:
    """The channel of each recording that is a side of its file; an empty text for the others.

    Its file is shared with another recording, or has the name that stands beside the channel. A
    file of another name is one channel of that call already.
    """
    sides: dict[str, tuple[str, str]] = {}
    for _, line in text_lines(file) if file.is_file() else ():
        try:
            id, call, channel = line.split()
            channel_of(channel)
        except ValueError:
            problem = f"{line[:80]!r} is no `recording file channel`"
            raise LikenessError(f"{file}: {problem}; correct it") from None
        sides[id] = call, channel
    num, channels = Counter(recordings.values()), []
    for id, path in recordings.items():
        call, channel = sides.get(id, ("", ""))
        of_file = PureWindowsPath(path)  # which takes either slash for a separator
        is_side = num[path] > 1 or nfc(call) in (nfc(of_file.stem), nfc(of_file.name))
        channels.append(channel if is_side else "")
    return channels


def _segments(file: Path, recordings: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The columns of a list of segments of recordings, which are columns too."""
    rows = [line.split() for _, line in text_lines(file)]
    rows_of = {id: row for row, id in enumerate(recordings["id"])}
    wrong = [
        row
        for row in rows
        if len(row) < 4 or row[1] not in rows_of or not re.fullmatch(r"\d{0,2}", "".join(row[4:]))
    ]
    if wrong:
        problem = f"{' '.join(wrong[0])[:80]!r} is no `utterance recording start end [channel]`"
        raise LikenessError(f"{file}: {problem} of a recording in wav.scp; correct it")
    of = [rows_of[row[1]] for row in rows]
    return {
        "id": [row[0] for row in rows],
        "path": [recordings["path"][i] for i in of],
        "channel": [
            str(int(row[4]) + 1) if row[4:] else recordings["channel"][i]
            for row, i in zip(rows, of, strict=True)
        ],
        "start": [row[2] for row in rows],
        "end": [re.sub(r"^-1(\.0*)?$", "", row[3]) for row in rows],  # -1 is open
    }


def read_rttm(path: Path, suffixes: Collection[str], folder: Path) -> Items:
    """Reads the SPEAKER lines of an RTTM file; all other lines are skipped.

    RTTM is NIST's format of who speaks when, which pyannote.audio, NeMo and others write. Times are
    in seconds:

        SPEAKER FILE CHANNEL START DURATION <NA> <NA> SPEAKER <NA> <NA>

    Args:
        path: The file, which may be compressed by gzip.
        suffixes: The suffixes of recordings, in small letters.
        folder: The folder that holds the recordings at any depth, as FILE.wav or such, with
            underscores or with blanks.

    Returns:
        An item for each turn, of the channel that its line names: from 1, A or B, or <NA> for the
        average of all. Its id is `speaker/file@start-end`, with `#channel=2` behind it from the
        second channel on, and its label the speaker.

    Raises:
        LikenessError: A line is malformed, a recording is missing or there twice, or a turn is
            there twice.
        FileNotFoundError: There is no such folder of recordings.
    """
    recordings = defaultdict[str, list[str]](list)
    for item in files_below(folder, suffixes):
        # RTTM has underscores where a name has blanks, which would be several fields.
        for name in (item.path.stem, item.path.name):
            recordings[nfc("_".join(name.split()))].append(item.path.as_posix())
    roles = ("id", "path", "label", "start", "end", "channel")
    cells: dict[str, list[str]] = {role: [] for role in roles}
    for _, line in text_lines(path):
        fields = nfc(line).split()
        if fields[0] != "SPEAKER":
            continue
        try:
            _, file, side, begin, duration, _, _, speaker = fields[:8]
            channel = channel_of(side)
            start, end = float(begin), round(float(begin) + float(duration), 9)
            if not math.isfinite(end):
                raise ValueError
        except ValueError:
            form = "SPEAKER file channel start duration <NA> <NA> speaker"
            raise LikenessError(f"{path}: {line[:100]!r} is no `{form}`; correct it") from None
        recording = recordings[file]
        if len(recording) != 1:
            remedy = f"name a folder that has each once{if_option(' with --root')}"
            problem = f"{len(recording)} recordings in {folder} are called {file!r}"
            raise LikenessError(f"{path}: {problem}; {remedy}")
        label = "" if speaker == "<NA>" else speaker
        id = f"{speaker}/{file}@{start:.10g}-{end:.10g}{channel_mark(channel)}"
        row = (id, recording[0], label, str(start), str(end), side)
        for column, text in zip(cells.values(), row, strict=True):
            column.append(text)
    return items_of_rows([cells], str(path), Path())


def files_below(
    root: Path, suffixes: Collection[str], *, passed_over: list[str] | None = None
) -> Items:
    """Lists the files below `root`, at any depth, in the order of their paths.

    A folder of `root` may be a link to another; a link below it is not followed. What is hidden, or
    lies in a hidden folder, is passed over.

    Args:
        root: The folder.
        suffixes: The suffixes of the files to list, in small letters.
        passed_over: Takes the names of files and folders that are not UTF-8, and the folders that
            cannot be listed. By default a warning names them.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder; None for
        those that lie directly in root.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as data:
        ...     (Path(data) / "ann").mkdir()
        ...     (Path(data) / "ann" / "1.wav").touch()
        ...     files_below(Path(data), [".wav"])[0].id
        'ann/1.wav'
    """
    unread: Counter[str] = Counter()
    unusable = [] if passed_over is None else passed_over
    walk = _walk(root, suffixes, unusable, unread)
    runs = track(walk, f"listing {root.name}", unit="folders")
    ids = (below + name for below, names in runs for name in names)
    before = (root / "x").as_posix()[:-1]

    def rows(block: list[str]) -> Items:
        labels = labels_of_ids(block)
        return Items.rows(block, [before + id for id in block], labels)

    blocks = iter(lambda: list(islice(ids, BLOCK)), [])
    items = Items.joined(map(rows, blocks)).sorted_as_paths()
    if unusable and passed_over is None:
        text = f"{root}: passed over what is not named in UTF-8 or cannot be listed"
        text = f"{text} ({name_first(unusable)}); rename it, or change its permissions"
        warnings.warn(text, stacklevel=2)
    if unread:
        formats = ", ".join(f"{suffix} {count:,}" for suffix, count in unread.most_common())
        text = f"{root}: files were passed over that are not read ({formats}); convert them"
        warnings.warn(f"{text}, as to .jpg or .flac", stacklevel=2)
    return items


def _walk(
    root: Path, suffixes: Collection[str], unusable: list[str], unread: Counter[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder, as its path below the root with a slash, and the names of its files."""

    def note(error: OSError) -> None:
        """Notes a folder that cannot be listed."""
        unusable.append(str(error.filename))

    top, others = os.fspath(root), UNREAD.difference(suffixes)
    linked = [entry.path for entry in os.scandir(top) if entry.is_symlink()]
    for start in [top, *filter(os.path.isdir, linked)]:
        for folder, folders, names in os.walk(start, onerror=note):
            below = (os.path.relpath(folder, top).replace(os.sep, "/") + "/").removeprefix("./")
            endings = [name[name.rfind(".") :].lower() for name in names]
            fitting = [n for n, end in zip(names, endings, strict=True) if end in suffixes]
            unread.update(end for end in endings if end in others)
            # mostly in the order of paths already
            yield below, sorted(_usable(fitting, below, unusable))
            folders[:] = sorted(_usable(folders, below, unusable))


def _usable(names: list[str], below: str, unusable: list[str]) -> list[str]:
    """The names that are neither hidden nor passed over."""
    shown = [name for name in names if name[0] != "."]
    odd = [name for name in shown if not name.isascii() and _NOT_UTF8.search(name)]
    unusable += [below + name for name in odd]
    return [name for name in shown if name not in odd] if odd else shown
