"""Free Spoken Digit Dataset: six speakers say ten digits, 50 times each, at 8 kHz, about 0.4 s.

The layout is DATA/fsdd/recordings/{digit}_{speaker}_{index}.wav.

There are six speakers (five in release 1.0.9), so verification of unseen speakers can only be
tested by leaving speakers out. Fold k holds out the k-th pair of speakers in alphabetical order and
trains on the others. Over all folds every two speakers meet once as nontargets, and no model has
heard either of them. Four classes to train on teach little: numbers on this data set compare code
paths, not methods. There is one session per speaker, with one microphone each; an4.py says what
that means for the channel.
"""

import re
from itertools import combinations
from pathlib import Path
from typing import get_args

from likeness.eval.errors import LikenessError
from likeness.eval.types import Trials, check_choice
from likeness.modalities.speaker.audio import speed_copies
from likeness.modalities.speaker.folds import Split
from likeness.toolkit.data.items import Item, Items
from likeness.toolkit.data.pairs import all_pairs

FETCH = (
    "`likeness prepare fsdd --data DATA` fetches it; files are "
    "DATA/fsdd/recordings/{digit}_{speaker}_{index}.wav"
)
RATE_HZ = 8_000


def items(
    data: str | Path, *, split: Split = "train", fold: int = 0, speeds: tuple[float, ...] = ()
) -> Items:
    """List the recordings of a split, sorted by id.

    Args:
        data: The folder that holds fsdd/, or fsdd itself, or recordings/.
        split: "test" are the two speakers of pair number `fold`, "train" the others, "all"
            everyone.
        fold: The number of the pair of speakers, from 0.
        speeds: The speeds of copies, which are new classes (speed_copies).

    Returns:
        Items with id SPEAKER/digit_index.wav.

    Raises:
        LikenessError: The folder is missing. File names have another form (they are counted, and
            the first is named), the fold is out of range, or there are fewer than 4 speakers.
    """
    check_choice("split", split, get_args(Split))
    every = _scan(Path(data))
    speakers = sorted({speaker for speaker, _, _ in every})
    pairs = list(combinations(speakers, 2))
    if len(speakers) < 4 or not 0 <= fold < len(pairs):
        raise LikenessError(
            f"{data}: fold is {fold}, and there are {len(speakers)} speakers; at least 4 are "
            f"needed, two to hold out and two to train on, and a fold for each of {len(pairs)} "
            f"pairs of speakers, from 0; {FETCH}"
        )
    held_out = pairs[fold]
    chosen = [
        Item(f"{speaker}/{digit}_{path.stem.rpartition('_')[2]}.wav", path, speaker)
        for speaker, digit, path in every
        if split == "all" or (speaker in held_out) == (split == "test")
    ]
    return speed_copies(sorted(chosen), speeds)


def trials(data: str | Path, *, split: Split = "test", fold: int = 0) -> tuple[Items, Trials]:
    """List the recordings of a split and all their pairs i < j, labelled by speaker.

    Args:
        data: As in items(). So are split and fold.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: The folder is missing, or items() refuses the data.
    """
    chosen = items(data, split=split, fold=fold)
    return chosen, all_pairs(chosen)


def num_folds(data: str | Path) -> int:
    """Return the number of pairs of speakers, which is 15 for six speakers."""
    speakers = len({speaker for speaker, _, _ in _scan(Path(data))})
    return speakers * (speakers - 1) // 2


def _scan(data: Path) -> list[tuple[str, str, Path]]:
    """List (speaker, digit, path) of every recording."""
    places = (data / "fsdd" / "recordings", data / "recordings", data)
    folder = next((place for place in places if any(place.glob("*_*_*.wav"))), None)
    if folder is None:
        raise LikenessError(f"{data}: there are no recordings of FSDD; {FETCH}")
    named = ((re.fullmatch(r"(\d)_([^_]+)_\d+", p.stem), p) for p in sorted(folder.glob("*.wav")))
    return [(parts[2], parts[1], path) for parts, path in named if parts]
