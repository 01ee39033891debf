"""Free Spoken Digit Dataset: six speakers say ten digits, 50 times each, 8 kHz, about .4 s.

Layout: DATA/fsdd/recordings/{digit}_{speaker}_{index}.wav.

With six speakers (five in its release 1.0.9) verification of unseen speakers can only be tested by
leaving speakers out: fold k holds out the k-th pair of speakers in alphabetical order and trains on
the others, so that over all folds every two speakers meet once as nontargets and no model has heard
either. Four classes to train on teach little: numbers on it compare code paths, not methods. One
session per speaker, one microphone each: see an4.py on channels.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Literal

from eval.types import Trials, name_first
from modalities.speaker.audio import speed_copies
from modalities.speaker.folders import Split, check_split
from toolkit.data.batch import Item
from toolkit.data.pairs import all_pairs

FETCH = (
    "`likeness prepare fsdd --data DATA` fetches it; files are "
    "DATA/fsdd/recordings/{digit}_{speaker}_{index}.wav"
)
RATE_HZ = 8_000


def items(
    data: str | Path,
    *,
    split: Split = "train",
    fold: int = 0,
    label: Literal["speaker", "digit"] = "speaker",
    speeds: tuple[float, ...] = (),
) -> list[Item]:
    """Items with id SPEAKER/digit_index.wav, sorted. data: the folder that holds fsdd/ (or fsdd
    itself, or recordings/).

    split: "test" are the two speakers of pair number `fold`, "train" the others, "all" everyone.
    label: who speaks or which digit it is.
    speeds: copies at these speeds as new classes (speed_copies); with label="digit" they would be
    wrong classes and are refused. Raises FileNotFoundError without the folder; ValueError: file
    names of another form (counted, the first named), a fold out of range, under 4 speakers.
    """
    check_split(split)
    if label not in ("speaker", "digit") or (label == "digit" and speeds):
        raise ValueError(
            f"fsdd: label={label!r} with speeds={speeds}; allowed are 'speaker' and, without "
            "speeds, 'digit'"
        )
    every = _scan(Path(data))
    pairs = list(combinations(sorted({who for who, _, _ in every}), 2))
    if len(pairs) < 6:
        raise ValueError(
            f"{data}: {len({who for who, _, _ in every})} speakers; at least 4 are needed, two to "
            f"hold out and two to train on; {FETCH}"
        )
    if not 0 <= fold < len(pairs):
        raise ValueError(
            f"fsdd: fold is {fold}; 0 to {len(pairs) - 1} are allowed, one for each pair of "
            "speakers"
        )
    held_out = pairs[fold]
    chosen = [
        Item(
            f"{who}/{digit}_{path.stem.rpartition('_')[2]}.wav",
            path,
            who if label == "speaker" else digit,
        )
        for who, digit, path in every
        if split == "all" or (who in held_out) == (split == "test")
    ]
    return speed_copies(sorted(chosen), speeds)


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    fold: int = 0,
    digits: Literal["any", "same", "different"] = "any",
) -> tuple[list[Item], Trials]:
    """Items of a split and all their pairs i < j, labelled by speaker; digits="same" keeps the
    pairs that say the same digit, "different" the others.
    """
    if digits not in ("any", "same", "different"):
        raise ValueError(f"fsdd: digits is {digits!r}; allowed are 'any', 'same' and 'different'")
    chosen = items(data, split=split, fold=fold)
    said = [one.id.rpartition("/")[2].split("_")[0] for one in chosen]
    if digits != "different":
        return chosen, all_pairs(chosen, within=said if digits == "same" else None)
    pairs = all_pairs(chosen)
    assert pairs.target is not None
    kept = [
        said[i] != said[j] for i, j in zip(pairs.enrol.tolist(), pairs.probe.tolist(), strict=True)
    ]
    return chosen, Trials(
        pairs.enrol_ids, pairs.probe_ids, pairs.enrol[kept], pairs.probe[kept], pairs.target[kept]
    )


def num_folds(data: str | Path) -> int:
    """Pairs of speakers: 15 of six."""
    speakers = len({who for who, _, _ in _scan(Path(data))})
    return speakers * (speakers - 1) // 2


def _scan(data: Path) -> list[tuple[str, str, Path]]:
    """(speaker, digit, path) of every recording."""
    folder = next(
        (
            one
            for one in (data / "fsdd" / "recordings", data / "recordings", data)
            if any(one.glob("*_*_*.wav"))
        ),
        None,
    )
    if folder is None:
        raise FileNotFoundError(f"{data}: no recordings of FSDD; {FETCH}")
    found, strange = [], []
    for path in sorted(folder.glob("*.wav")):
        named = re.fullmatch(r"(\d)_([^_]+)_(\d+)", path.stem)
        if named:
            found.append((named[2], named[1], path))
        else:
            strange.append(path.name)
    if strange:
        raise ValueError(
            f"{folder}: {len(strange)} of {len(strange) + len(found)} files are not named "
            f"digit_speaker_index.wav ({name_first(strange)}); remove them"
        )
    return found
