"""VoxCeleb1 (1,251 speakers) and VoxCeleb2 (6,112): interviews of celebrities at 16 kHz.

Utterances last 4 s and more, and each speaker has many sessions, which are videos.

The audio may lie anywhere up to five folders below DATA, as SPEAKER/VIDEO/name.wav (or .flac, .m4a,
...), so that the usual trees are found as they are: vox1/dev/wav/id10001/..., vox1/wav/id10001/...,
voxceleb2/dev/aac/id00012/..., voxceleb2/id00012/....

What a speaker belongs to follows from the number. id10001 to id11251 are VoxCeleb1's, of which
id10270 to id10309 are its test split. Smaller numbers are VoxCeleb2's; their split is the nearest
folder named dev or test above the speaker, and otherwise what vox2_meta.csv states. An utterance
that is there twice (as wav beside the original m4a) is taken once, wav first. Ids are those of the
trial lists, SPEAKER/VIDEO/name.wav, whatever suffix the file has.

VoxCeleb1-O tests the 40 test speakers. VoxCeleb1-E tests all 1,251 speakers and -H 1,190 of them,
so that both need the audio of dev AND test. A model that was trained on VoxCeleb1's dev split has
heard the speakers of -E and -H, so train on VoxCeleb2 alone for these, as is usual. VoxCeleb2's dev
split and VoxCeleb1 share no speaker.

Sources: Nagrani et al. 2017, Chung et al. 2018. The counts of files and trials are those of
PaddleSpeech, examples/voxceleb/README.md (VoxCeleb2's test: the data set's page).
"""

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import read_trials
from likeness.eval.items.items import Items
from likeness.eval.items.suffixes import SOUNDS
from likeness.eval.types import Trials, check_choice, name_first
from likeness.modalities.speaker._trial_items import match_items
from likeness.modalities.speaker.audio import SpeedItems, speed_copies

Corpus = Literal["voxceleb1", "voxceleb2", "both"]
Split = Literal["dev", "test", "all"]
Protocol = Literal["O", "E", "H", "O_cleaned", "E_cleaned", "H_cleaned"]

FETCH = "`likeness prepare voxceleb1` (or voxceleb2) says what to fetch and where to put it"


def _cleaned(stem: str, letter: str) -> tuple[str, ...]:
    """The usual names of a list that was cleaned of errors."""
    usual = f"{stem}2.txt", f"{stem}2_cleaned.txt", f"vox1-{letter}(cleaned).txt"
    return (*usual, f"vox1_{letter}_cleaned.txt", f"vox1_{letter}_cleaned.kaldi")


# For each protocol: the usual names of its list, the number of trials, the number of target trials.
PROTOCOLS: dict[Protocol, tuple[tuple[str, ...], int, int]] = {
    "O": (("veri_test.txt", "vox1-O.txt", "vox1_O.txt"), 37_720, 18_860),
    "E": (("list_test_all.txt", "vox1-E.txt", "vox1_E.txt"), 581_480, 290_743),
    "H": (("list_test_hard.txt", "vox1-H.txt", "vox1_H.txt"), 552_536, 276_270),
    "O_cleaned": (_cleaned("veri_test", "O"), 37_611, 18_802),
    "E_cleaned": (_cleaned("list_test_all", "E"), 579_818, 289_921),
    "H_cleaned": (_cleaned("list_test_hard", "H"), 550_894, 275_488),
}
_TOPS = ("", *(top + n for top in ("vox", "voxceleb", "VoxCeleb") for n in ("1", "2", "")))
_BELOW = ("", "meta", "trials", "lists")
_PLACES = tuple(os.path.join(top, below) for below in _BELOW for top in _TOPS)
_DEPTH = 5  # how deep a speaker's folder may lie: DATA/raw/voxceleb2/dev/aac has four above it
# The suffixes that an utterance may have. The first one that is there is taken.
_AUDIO = tuple(dict.fromkeys((".wav", ".flac", *SOUNDS, ".m4a", ".aac")))
_VOX1_TEST = range(10_270, 10_310)
_Utterance = tuple[str, int, str]  # id, rank of the suffix, path


def items(
    data: str | Path,
    *,
    corpus: Corpus = "voxceleb2",
    split: Split = "dev",
    speeds: Sequence[float] = (),
    speed_items: SpeedItems = "all",
) -> Items:
    """List the utterances of a corpus and split, sorted by id.

    Args:
        data: A folder above the audio, see the head of this file.
        corpus: "voxceleb1", "voxceleb2" or "both".
        split: "dev", "test" or "all".
        speeds: The speeds of copies, which are new classes (audio.speed_copies).
        speed_items: Which utterances are copied: "all", or "one" of each speaker.

    Returns:
        Items with id SPEAKER/VIDEO/name.wav and label SPEAKER.

    Raises:
        LikenessError: The folder is missing. There is no audio, or nothing states the split of
            VoxCeleb2 speakers; these are counted, and the first is named.
    """
    check_choice("corpus", corpus, get_args(Corpus))
    check_choice("split", split, get_args(Split))
    return speed_copies(_scan(Path(data), corpus, split), speeds, speed_items=speed_items)


def trials(data: str | Path, *, protocol: Protocol = "O_cleaned") -> tuple[Items, Trials]:
    """List the utterances that a VoxCeleb1 trial list names, and its trials.

    The list is looked for in DATA, DATA/vox1, DATA/voxceleb1, ... and in the folders meta, trials
    and lists there, under its usual names, also as .gz. Its numbers of trials and of target trials
    must be those of the protocol. Ids are matched by the rule of lists.matched: as they are,
    otherwise without their suffix.

    Args:
        data: A folder above the audio and the list.
        protocol: "O", "E" or "H", or with "_cleaned" the list that was cleaned of errors.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: There is no list. The list has another number of trials, or ids have no
            audio; these are counted, and the first is named.
    """
    data = Path(data)
    check_choice("protocol", protocol, PROTOCOLS)
    names, num_trials, num_target = PROTOCOLS[protocol]
    path = _find(data, names)
    if path is None:
        raise LikenessError(
            f"{data}: no trial list of VoxCeleb1-{protocol} ({' or '.join(names)}) in it or in "
            f"vox1/, meta/, ...; {FETCH}, and measure=none trains without it"
        )
    listed = read_trials(path)
    target = 0 if listed.target is None else int(listed.target.sum())
    if (len(listed), target) != (num_trials, num_target):
        raise LikenessError(
            f"{path}: the list has {len(listed)} trials, {target} labelled target, but "
            f"VoxCeleb1-{protocol} has {num_trials} with {num_target}; fetch the "
            "list again, or train without it by measure=none"
        )
    only_test = protocol.startswith("O")
    need = "the test split" if only_test else "both dev and test"
    hint = f"VoxCeleb1-{protocol} needs the audio of {need}; {FETCH}, and measure=none trains "
    scanned = _scan(data, "voxceleb1", "test" if only_test else "all")
    return match_items(listed, scanned, where=str(path), hint=f"{hint}without it")


def _corpus(speaker: str) -> str:
    """Return the corpus that a speaker's id, such as id10001, belongs to."""
    return "voxceleb1" if int(speaker[2:]) > 10_000 else "voxceleb2"


def _scan(data: Path, corpus: Corpus, split: Split) -> Items:
    """List every utterance of a corpus and split once, sorted by id."""
    if not data.is_dir():
        raise LikenessError(f"{data}: no such folder; {FETCH}")
    utterances = list[_Utterance]()
    splits = None if split == "all" else _vox2_splits(data)
    unknown: dict[str, None] = {}
    for folder in _speaker_folders(data, _DEPTH):
        own_split = "all" if splits is None else _split_of(folder.relative_to(data), splits)
        if corpus not in ("both", _corpus(folder.name)) or own_split not in ("", split):
            continue
        own = list(_utterances(folder))
        # A folder without VIDEO/name.wav is another data set's, such as CN-Celeb's, whose speakers
        # are numbered alike.
        if own and not own_split:
            unknown[folder.name] = None
        utterances += own
    if unknown:
        raise LikenessError(
            f"{data}: {len(unknown)} VoxCeleb2 speakers lie in no folder dev or test and in no "
            f"vox2_meta.csv ({name_first(unknown)});"
            " `likeness prepare voxceleb2` fetches vox2_meta.csv"
        )
    if not utterances:
        raise LikenessError(
            f"{data}: no audio of corpus {corpus!r}, split {split!r}, in folders such as "
            f".../id10001/VIDEO/00001.wav; {FETCH}"
        )
    # The first of each id has the first suffix; the paths decide where the suffixes are equal.
    first: dict[str, str] = {}
    for id, _, path in sorted(utterances):
        first.setdefault(id, path)
    return Items.rows(list(first), list(first.values()), [id.partition("/")[0] for id in first])


def _split_of(folder: Path, splits: Mapping[str, str]) -> str:
    """Return dev, test, or "" if nothing states the split of a speaker's folder below DATA."""
    if _corpus(folder.name) == "voxceleb1":
        return "test" if int(folder.name[2:]) in _VOX1_TEST else "dev"
    above = next((part for part in reversed(folder.parts[:-1]) if part in ("dev", "test")), "")
    return above or splits.get(folder.name, "")


def _utterances(folder: Path) -> Iterator[_Utterance]:
    """Yield the id, the rank of the suffix and the path of each of a speaker's files."""
    for video in _folders(folder):
        for entry in os.scandir(video):
            name, suffix = os.path.splitext(entry.name)
            if suffix.lower() in _AUDIO and not entry.name.startswith("."):
                id = f"{folder.name}/{video.name}/{name}.wav"
                yield id, _AUDIO.index(suffix.lower()), f"{video.as_posix()}/{entry.name}"


def _speaker_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the speakers' folders that lie at most `depth` folders below a folder."""
    for inner in _folders(folder):
        if re.fullmatch(r"id[01]\d{4}", inner.name):
            yield inner
        elif depth > 1:
            yield from _speaker_folders(inner, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """List the folders in a folder, sorted, without hidden ones."""
    return sorted(
        Path(entry.path)
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def _find(data: Path, names: Sequence[str]) -> Path | None:
    """Return the first list of these names, plain or .gz, that there is."""
    endings = ("", ".gz")
    paths = [data / place / (name + x) for name in names for place in _PLACES for x in endings]
    return next((path for path in paths if path.is_file()), None)


def _vox2_splits(data: Path) -> dict[str, str]:
    """Read the split of each speaker from vox2_meta.csv; nothing if it is not there."""
    path = _find(data, ["vox2_meta.csv"])
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        delimiter = "\t" if "\t" in lines[0] else ","
        rows = [[field.strip() for field in row] for row in csv.reader(lines, delimiter=delimiter)]
        speaker, split = rows[0].index("VoxCeleb2 ID"), rows[0].index("Set")
        return {row[speaker]: row[split] for row in rows[1:] if any(row)}
    except (ValueError, IndexError, csv.Error):
        raise LikenessError(
            f"{path}: this is no table with the columns VoxCeleb2 ID and Set; fetch the file again"
        ) from None
