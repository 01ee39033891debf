"""CMU AN4: 54 speakers with 9 to 14 utterances of 0.7 to 6.4 s each, 16 kHz, close-talking.

Names that begin with f are women, names that begin with m are men. There is one session per
speaker, which makes the long-term spectrum (microphone, room) a cue: never quote results on this
data set for robustness to the channel.

The layout is DATA/an4/wav/SPEAKER/*.flac and, optionally, DATA/librispeech/flac/SPEAKER/*.flac (251
speakers of train-clean-100, which are more classes to train on).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.errors import LikenessError
from eval.types import Trials, name_first
from modalities.folders import scan
from modalities.speaker.audio import speed_copies
from modalities.speaker.folds import Split, check_split, of_fold
from toolkit.data.items import Item, Items
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
) -> Items:
    """List the utterances of a split, sorted by id.

    The speakers are divided into num_folds folds with even shares of each sex (seed 0).

    Args:
        data: The folder that holds an4/.
        split: "test" is fold number `fold`, "train" the rest, "all" everyone.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are.
        speeds: The speeds of copies, which are new classes (speed_copies).
        librispeech: Whether LibriSpeech's speakers join "train" and "all" as classes
            "libri-SPEAKER".

    Returns:
        Items with id "SPEAKER/name" and label SPEAKER.

    Raises:
        LikenessError: A folder is missing; the message says what to fetch. A folder is laid out
            otherwise; the message says what to fetch. Or the fold is out of range.
    """
    check_split(split)
    data = Path(data)
    every = _scan(data / "an4" / "wav", FETCH, prefix="")
    speakers = sorted({str(item.label) for item in every})
    strange = [speaker for speaker in speakers if speaker[0] not in "fm"]
    if strange:
        raise LikenessError(
            f"{data / 'an4' / 'wav'}: {len(strange)} of {len(speakers)} folders do not start with "
            f"f or m ({name_first(strange)}); {FETCH}"
        )
    groups = [[speaker for speaker in speakers if speaker[0] == sex] for sex in "fm"]
    chosen = of_fold(every, groups, split, fold=fold, num_folds=num_folds, data_set="an4")
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
) -> tuple[Items, Trials]:
    """List the utterances of a split, without speeds or LibriSpeech, and all their pairs i < j.

    Args:
        data: As in items(). So are split, fold and num_folds.
        same_sex: Whether to keep only the pairs of two women or two men.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: A folder is missing. Items() refuses the data.
    """
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    sexes = [item.id[0] for item in chosen] if same_sex else None
    return chosen, all_pairs(chosen, within=sexes)


def _scan(folder: Path, fetch: str, *, prefix: str) -> list[Item]:
    """Call scan(), strip suffixes, put a prefix on ids and labels, and say what to fetch."""
    try:
        scanned = scan(folder)
    except LikenessError as error:
        raise LikenessError(f"{folder}: no audio files in its folders; {fetch}") from error
    ids = [prefix + item.id.removesuffix(item.suffix) for item in scanned]
    if len(set(ids)) < len(ids):
        raise LikenessError(
            f"{folder}: {len(ids) - len(set(ids))} names occur with two suffixes; keep one of each"
        )
    return [
        item._replace(id=id, label=f"{prefix}{item.label}")
        for id, item in zip(ids, scanned, strict=True)
    ]
