"""VoxCeleb1 (1,251 speakers) and VoxCeleb2 (6,112): interviews of celebrities, 4 s and more, many
sessions (videos) per speaker, 16 kHz.

Where the audio lies: anywhere up to five folders below DATA, as SPEAKER/VIDEO/name.wav (or .flac,
.m4a, ...), so that the usual trees are found as they are: vox1/dev/wav/id10001/...,
vox1/wav/id10001/..., voxceleb2/dev/aac/id00012/..., voxceleb2/id00012/.... What a speaker belongs
to follows from the number: id10001 to id11251 are VoxCeleb1's, of which id10270 to id10309 are its
test split; smaller numbers are VoxCeleb2's, whose split is the nearest folder named dev or test
above the speaker, otherwise what vox2_meta.csv says. An utterance found twice (wav beside the
original m4a) is taken once, wav first. Ids are those of the trial lists, SPEAKER/VIDEO/name.wav,
whatever suffix the file has.

VoxCeleb1-O tests the 40 test speakers; -E all 1,251 speakers and -H 1,190 of them, so that both
need the audio of dev AND test, and a model that was trained on VoxCeleb1's dev split has heard
their speakers: with -E and -H train on VoxCeleb2 alone, as everybody does. VoxCeleb2's dev and
VoxCeleb1 share nobody. Sources: Nagrani et al. 2017, Chung et al. 2018; counts of files and trials:
PaddleSpeech examples/voxceleb/README.md (VoxCeleb2's test: the data set's page).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from eval.formats.trials import read_trials
from eval.types import Trials, name_first
from modalities.speaker.audio import AV_SUFFIXES, SUFFIXES, speed_copies
from modalities.speaker.lists import find, matched
from toolkit.data.batch import Item
from toolkit.data.source import Count

Corpus = Literal["voxceleb1", "voxceleb2", "both"]
Split = Literal["dev", "test", "all"]
Protocol = Literal["O", "E", "H", "O_cleaned", "E_cleaned", "H_cleaned"]
SpeedItems = Literal["all", "one"]

FETCH = "`likeness prepare voxceleb1` (or voxceleb2) says what to fetch and where to put it"

# protocol -> (names that its list goes by, trials, target trials)
PROTOCOLS: dict[Protocol, tuple[tuple[str, ...], int, int]] = {
    "O": (("veri_test.txt", "vox1-O.txt", "vox1_O.txt"), 37_720, 18_860),
    "E": (("list_test_all.txt", "vox1-E.txt", "vox1_E.txt"), 581_480, 290_743),
    "H": (("list_test_hard.txt", "vox1-H.txt", "vox1_H.txt"), 552_536, 276_270),
    "O_cleaned": (
        (
            "veri_test2.txt",
            "veri_test2_cleaned.txt",
            "vox1-O(cleaned).txt",
            "vox1_O_cleaned.txt",
            "vox1_O_cleaned.kaldi",
        ),
        37_611,
        18_802,
    ),
    "E_cleaned": (
        (
            "list_test_all2.txt",
            "list_test_all2_cleaned.txt",
            "vox1-E(cleaned).txt",
            "vox1_E_cleaned.txt",
            "vox1_E_cleaned.kaldi",
        ),
        579_818,
        289_921,
    ),
    "H_cleaned": (
        (
            "list_test_hard2.txt",
            "list_test_hard2_cleaned.txt",
            "vox1-H(cleaned).txt",
            "vox1_H_cleaned.txt",
            "vox1_H_cleaned.kaldi",
        ),
        550_894,
        275_488,
    ),
}
_SETS = {  # (corpus, split) -> (files, speakers)
    ("voxceleb1", "dev"): (148_642, 1_211),
    ("voxceleb1", "test"): (4_874, 40),
    ("voxceleb2", "dev"): (1_092_009, 5_994),
    ("voxceleb2", "test"): (36_237, 118),
}
_TOPS = (
    "",
    "vox1",
    "vox2",
    "voxceleb1",
    "voxceleb2",
    "VoxCeleb1",
    "VoxCeleb2",
    "voxceleb",
    "VoxCeleb",
)
_PLACES = tuple(
    os.path.join(top, below) for below in ("", "meta", "trials", "lists") for top in _TOPS
)
_DEPTH = 5  # folders above a speaker's: DATA/raw/voxceleb2/dev/aac has four
_AUDIO = (
    ".wav",
    ".flac",
    *(one for one in SUFFIXES + AV_SUFFIXES if one not in (".wav", ".flac", ".mp4")),
)  # the first that is found is taken
_VOX1_TEST = range(10_270, 10_310)


class _Nothing(ValueError):
    """There is no audio at all, as opposed to audio that cannot be told apart."""


class Speaker(NamedTuple):
    """One line of vox1_meta.csv or vox2_meta.csv. gender: m or f; nationality: "" for VoxCeleb2,
    whose file has none; split: dev or test.
    """

    id: str
    name: str
    gender: str
    nationality: str
    split: str


def items(
    data: str | Path,
    *,
    corpus: Corpus = "voxceleb2",
    split: Split = "dev",
    speeds: Sequence[float] = (),
    speed_items: SpeedItems = "all",
) -> list[Item]:
    """Items with id SPEAKER/VIDEO/name.wav and label SPEAKER, sorted. data: a folder above the
    audio, see the head of this file.

    speeds: copies at these speeds as new classes (audio.speed_copies). speed_items="one": only each
    speaker's first utterance has copies, which keeps the classes, and so the class proxies of a run
    to fine-tune from, while sped-up speech is 1 % of the draws: the large-margin stage. Raises
    FileNotFoundError without the folder; ValueError: no audio, or VoxCeleb2 speakers whose split
    nothing says (counted, the first named).
    """
    if (
        split not in ("dev", "test", "all")
        or corpus not in ("voxceleb1", "voxceleb2", "both")
        or speed_items not in ("all", "one")
    ):
        raise ValueError(
            f"voxceleb: corpus={corpus!r}, split={split!r}, speed_items={speed_items!r}; allowed "
            "are voxceleb1, voxceleb2, both; dev, test, all; and all, one"
        )
    chosen = _scan(Path(data), corpus, split)
    if speed_items == "all" or not speeds:
        return speed_copies(chosen, speeds)
    firsts = [
        one
        for before, one in zip([None, *chosen], chosen, strict=False)
        if before is None or before.label != one.label
    ]
    return chosen + speed_copies(firsts, speeds)[len(firsts) :]


def trials(
    data: str | Path, *, protocol: Protocol = "O_cleaned", file: str = ""
) -> tuple[list[Item], Trials]:
    """The items that a VoxCeleb1 trial list names, and its trials.

    Ids are matched as lists.matched says: as they are, otherwise without their suffix.

    The list is looked for in DATA, DATA/vox1, DATA/voxceleb1, ... and the folders meta, trials and
    lists there, under its usual names, also .gz; its numbers of trials and target trials must be
    the protocol's. file: another list instead (any format of eval.formats.trials), from DATA unless
    absolute, of any length.
    Raises FileNotFoundError without a list, ValueError: another number of trials, or ids without
    audio (counted, the first named).
    """
    data = Path(data)
    if protocol not in PROTOCOLS:
        raise ValueError(f"voxceleb: protocol is {protocol!r}; allowed are {', '.join(PROTOCOLS)}")
    names, num_trials, num_target = PROTOCOLS[protocol]
    where = data / file if file else find(data, names, _PLACES)
    if where is None:
        raise FileNotFoundError(
            f"{data}: no trial list of VoxCeleb1-{protocol} ({' or '.join(names)}) in it or in "
            f"vox1/, meta/, ...; {FETCH}"
        )
    listed = read_trials(where)
    if not file:
        target = -1 if listed.target is None else int(listed.target.sum())
        if (len(listed), target) != (num_trials, num_target):
            raise ValueError(
                f"{where}: {len(listed)} trials, {target if target >= 0 else 'none'} labelled "
                f"target, but VoxCeleb1-{protocol} has {num_trials}"
                f" with {num_target}; fetch the list again"
            )
    only_test = not file and protocol.startswith("O")
    need = (
        "VoxCeleb1-O needs the audio of the test split"
        if only_test
        else "VoxCeleb1-E and -H need the audio of both dev and test"
    )
    return matched(
        listed,
        _scan(data, "voxceleb1", "test" if only_test else "all"),
        where=str(where),
        hint=f"{need}; {FETCH}",
    )


def metadata(data: str | Path) -> dict[str, Speaker]:
    """What vox1_meta.csv and vox2_meta.csv (tabs or commas), found like trial lists, say of each
    speaker; either may be absent.

    Raises FileNotFoundError if both are; ValueError for a file that is not laid out so, with its
    malformed lines counted.
    """
    data = Path(data)
    found = [
        one
        for one in (
            find(data, [name], (*_PLACES, "voxceleb1_meta"))
            for name in ("vox1_meta.csv", "vox2_meta.csv")
        )
        if one is not None
    ]
    if not found:
        raise FileNotFoundError(
            f"{data}: neither vox1_meta.csv nor vox2_meta.csv in it or in vox1/, meta/, ...; "
            f"{FETCH}"
        )
    return {one.id: one for path in found for one in _read_meta(path)}


def check1(data: Path) -> list[Count]:
    """What of VoxCeleb1 is there: files and speakers of both splits, speakers with metadata, trials
    of the six lists.
    """
    counts = _count(data, "voxceleb1")
    people = metadata(data) if find(data, ["vox1_meta.csv"], (*_PLACES, "voxceleb1_meta")) else {}
    counts.append(
        Count(
            "speakers in vox1_meta.csv", sum(_corpus(one) == "voxceleb1" for one in people), 1_251
        )
    )
    for protocol, (names, expected, _) in PROTOCOLS.items():
        where = find(data, names, _PLACES)
        counts.append(
            Count(
                f"trials of VoxCeleb1-{protocol} ({names[0]})",
                len(read_trials(where)) if where else 0,
                expected,
            )
        )
    return counts


def check2(data: Path) -> list[Count]:
    """What of VoxCeleb2 is there: files and speakers of both splits.

    ValueError for speakers whose split nothing says.
    """
    return _count(data, "voxceleb2")


def _count(data: Path, corpus: Literal["voxceleb1", "voxceleb2"]) -> list[Count]:
    counts = []
    for split in ("dev", "test"):
        try:
            there = _scan(data, corpus, "dev" if split == "dev" else "test")
        except (_Nothing, FileNotFoundError):  # other errors say why nothing can be counted
            there = []
        files, speakers = _SETS[corpus, split]
        counts.append(Count(f"audio files of {corpus} {split}", len(there), files))
        counts.append(
            Count(f"speakers of {corpus} {split}", len({one.label for one in there}), speakers)
        )
    return counts


def _corpus(speaker: str) -> str:
    return "voxceleb1" if int(speaker[2:]) > 10_000 else "voxceleb2"


def _scan(data: Path, corpus: Corpus, split: Split) -> list[Item]:
    """Every utterance of a corpus and split once, sorted by id."""
    if not data.is_dir():
        raise FileNotFoundError(f"{data}: no such folder; {FETCH}")
    best: dict[str, tuple[int, Path]] = {}
    people = None if split == "all" else _vox2_people(data)
    unknown: dict[str, None] = {}
    for folder in _speaker_folders(data, _DEPTH):
        of = "all" if people is None else _split_of(folder.relative_to(data), people)
        if corpus not in ("both", _corpus(folder.name)) or of not in ("", split):
            continue
        found = list(_utterances(folder))
        # a folder without VIDEO/name.wav is another data set's, such as CN-Celeb's, whose speakers
        # are numbered alike
        if found and not of:
            unknown[folder.name] = None
        for id, rank, path in found:
            if id not in best or rank < best[id][0]:
                best[id] = rank, path
    if unknown:
        raise ValueError(
            f"{data}: {len(unknown)} VoxCeleb2 speakers lie in no folder dev or test and in no "
            f"vox2_meta.csv ({name_first(unknown)});"
            " `likeness prepare voxceleb2` fetches vox2_meta.csv"
        )
    if not best:
        what = (
            "VoxCeleb1 or VoxCeleb2"
            if corpus == "both"
            else {"voxceleb1": "VoxCeleb1", "voxceleb2": "VoxCeleb2"}[corpus]
        )
        raise _Nothing(
            f"{data}: no audio of {what}, split {split!r}, in folders such as "
            f".../id10001/VIDEO/00001.wav; {FETCH}"
        )
    return [Item(id, path, id.split("/", 1)[0]) for id, (_, path) in sorted(best.items())]


def _split_of(folder: Path, people: Mapping[str, Speaker]) -> str:
    """dev, test, or "" if nothing says; folder: the speaker's, from DATA."""
    if _corpus(folder.name) == "voxceleb1":
        return "test" if int(folder.name[2:]) in _VOX1_TEST else "dev"
    above = next((one for one in reversed(folder.parts[:-1]) if one in ("dev", "test")), "")
    return above or (people[folder.name].split if folder.name in people else "")


def _utterances(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """(id, rank of its suffix, path) of a speaker's files."""
    for video in _folders(folder):
        for entry in os.scandir(video):
            name, suffix = os.path.splitext(entry.name)
            if suffix.lower() in _AUDIO and not entry.name.startswith("."):
                yield (
                    f"{folder.name}/{video.name}/{name}.wav",
                    _AUDIO.index(suffix.lower()),
                    Path(entry.path),
                )


def _speaker_folders(folder: Path, depth: int) -> Iterator[Path]:
    for one in _folders(folder):
        if re.fullmatch(r"id[01]\d{4}", one.name):
            yield one
        elif depth > 1:
            yield from _speaker_folders(one, depth - 1)


def _folders(folder: Path) -> list[Path]:
    return sorted(
        Path(one.path)
        for one in os.scandir(folder)
        if one.is_dir() and not one.name.startswith(".")
    )


def _vox2_people(data: Path) -> dict[str, Speaker]:
    where = find(data, ["vox2_meta.csv"], _PLACES)
    return {one.id: one for one in _read_meta(where)} if where else {}


def _read_meta(path: Path) -> list[Speaker]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = file.read(1 << 22).splitlines()  # the real ones have 60 and 180 KB
    try:
        rows = [
            [one.strip() for one in row]
            for row in csv.reader(lines, delimiter="\t" if lines and "\t" in lines[0] else ",")
            if any(row)
        ]
    except csv.Error as error:
        raise ValueError(f"{path}: no table of speakers ({error}); fetch the file again") from None
    header = [re.sub(r"[^a-z0-9]", "", one.lower()) for one in rows[0]] if rows else []
    place = {
        role: next((i for i, one in enumerate(header) if re.fullmatch(name, one)), -1)
        for role, name in _META.items()
    }
    if min(place[role] for role in ("id", "gender", "split")) < 0:
        raise ValueError(
            f"{path}: the header is {', '.join(rows[0])[:100] if rows else 'missing'!r}; expected "
            "VoxCeleb1 ID, VGGFace1 ID, Gender, Nationality, Set"
        )
    bad = [
        number
        for number, row in enumerate(rows[1:], 2)
        if len(row) != len(header) or not re.fullmatch(r"id\d{5}", row[place["id"]])
    ]
    if bad:
        raise ValueError(
            f"{path}: {len(bad)} lines are malformed ({name_first(f'line {one}' for one in bad)}); "
            "fetch the file again"
        )
    return [
        Speaker(*(row[place[role]] if place[role] >= 0 else "" for role in _META))
        for row in rows[1:]
    ]


_META = {
    "id": r"voxceleb[12]id",
    "name": r"vggface[12]id",
    "gender": "gender",
    "nationality": "nationality",
    "split": "set",
}
