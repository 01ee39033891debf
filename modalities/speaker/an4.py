"""CMU AN4: 54 speakers, 9 to 14 utterances each of .7 to 6.4 s, 16 kHz, close-talking, one session
per speaker; f... are women and m... are men.

One session per speaker makes the long-term spectrum (microphone, room) a cue: never quote results
on it for robustness to the channel. Layout: DATA/an4/wav/SPEAKER/*.flac and, optionally,
DATA/librispeech/flac/SPEAKER/*.flac (251 speakers of train-clean-100, more classes to train on).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.types import Trials, name_first
from modalities.speaker.audio import speed_copies
from modalities.speaker.folders import Split, check_split, scan, stratified_folds
from toolkit.data.batch import Item
from toolkit.data.pairs import all_pairs

FETCH = (
    "fetch AN4 (free for any purpose) from http://www.speech.cs.cmu.edu/databases/an4/ and store "
    "it as DATA/an4/wav/SPEAKER/name.flac"
)
FETCH_LIBRISPEECH = (
    "fetch train-clean-100 (CC BY 4.0) from https://www.openslr.org/12 and store utterances as "
    "DATA/librispeech/flac/SPEAKER/name.flac"
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    fold: int = 0,
    num_folds: int = 5,
    speeds: Sequence[float] = (),
    librispeech: bool = False,
) -> list[Item]:
    """Items with id "SPEAKER/name" and label SPEAKER, sorted. data: the folder that holds an4/.

    The speakers are divided into num_folds folds with even shares of each sex (seed 0); "test" is
    fold number `fold`, "train" the rest, "all" everyone.
    speeds: copies at these speeds as new classes (speed_copies). librispeech: its speakers join
    "train" and "all" as classes "libri-SPEAKER". Raises FileNotFoundError or ValueError, saying
    what to fetch, when a folder is missing or laid out otherwise, and ValueError for a fold out of
    range.
    """
    check_split(split)
    data = Path(data)
    every = _scan(data / "an4" / "wav", FETCH, prefix="")
    speakers = sorted({str(one.label) for one in every})
    strange = [one for one in speakers if one[0] not in "fm"]
    if strange:
        raise ValueError(
            f"{data / 'an4' / 'wav'}: {len(strange)} of {len(speakers)} folders do not start with "
            f"f or m ({name_first(strange)}); {FETCH}"
        )
    if not 0 <= fold < num_folds:
        raise ValueError(
            f"an4: fold is {fold}; 0 to {num_folds - 1} are allowed with num_folds {num_folds}"
        )
    held_out = stratified_folds(
        [[one for one in speakers if one[0] == sex] for sex in "fm"], num_folds
    )[fold]
    chosen = (
        every
        if split == "all"
        else [one for one in every if (one.label in held_out) == (split == "test")]
    )
    if librispeech and split != "test":
        chosen = chosen + _scan(data / "librispeech" / "flac", FETCH_LIBRISPEECH, prefix="libri-")
    return speed_copies(chosen, speeds)


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    fold: int = 0,
    num_folds: int = 5,
    same_sex: bool = False,
) -> tuple[list[Item], Trials]:
    """Items of a split (without speeds or LibriSpeech) and all their pairs i < j; same_sex keeps
    the pairs of two women or two men.
    """
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    return chosen, all_pairs(chosen, within=[one.id[0] for one in chosen] if same_sex else None)


def _scan(folder: Path, fetch: str, *, prefix: str) -> list[Item]:
    """scan(), with ids without suffix, a prefix on ids and labels, and errors that say what to
    fetch.
    """
    try:
        found = scan(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder}: no such folder; {fetch}") from error
    except ValueError as error:
        raise ValueError(f"{folder}: no audio files in its folders; {fetch}") from error
    ids = [prefix + one.id.removesuffix(one.suffix) for one in found]
    if len(set(ids)) < len(ids):
        raise ValueError(
            f"{folder}: {len(ids) - len(set(ids))} names occur with two suffixes; keep one of each"
        )
    return [
        one._replace(id=id, label=f"{prefix}{one.label}")
        for id, one in zip(ids, found, strict=True)
    ]
