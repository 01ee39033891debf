"""CMU AN4: 54 speakers with 9 to 14 utterances of 0.7 to 6.4 s each, 16 kHz, close-talking.

Names that begin with f are women, names that begin with m are men. There is one session per
speaker, which makes the long-term spectrum (microphone, room) a cue: never quote results on this
data set for robustness to the channel.

The layout is DATA/an4/wav/SPEAKER/*.flac.
"""

from collections.abc import Sequence
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item, Items
from likeness.eval.items.pairs import all_pairs
from likeness.eval.types import Trials, name_first
from likeness.modalities.folders import scan
from likeness.modalities.speaker._folds import Split, items_of_fold
from likeness.modalities.speaker.audio import speed_copies

FETCH = (
    "fetch AN4 (free for any purpose) from http://www.speech.cs.cmu.edu/databases/an4/ and store "
    "it as DATA/an4/wav/SPEAKER/name.flac"
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    fold: int = 0,
    num_folds: int = 5,
    speeds: Sequence[float] = (),
) -> Items:
    """List the utterances of a split, sorted by id.

    The speakers are divided into num_folds folds with even shares of each sex (seed 0).

    Args:
        data: The folder that holds an4/.
        split: "test" is fold number `fold`, "train" the rest, "all" everyone.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are.
        speeds: The speeds of copies, which are new classes (speed_copies).

    Returns:
        Items with id "SPEAKER/name" and label SPEAKER.

    Raises:
        LikenessError: The folder is missing or laid out otherwise (the message says what to fetch),
            or the fold is out of range.
    """
    folder = Path(data) / "an4" / "wav"
    every = _scan(folder)
    speakers = sorted({str(item.label) for item in every})
    strange = [speaker for speaker in speakers if speaker[0] not in "fm"]
    if strange:
        raise LikenessError(
            f"{folder}: {len(strange)} of {len(speakers)} folders do not start with "
            f"f or m ({name_first(strange)}); {FETCH}"
        )
    groups = [[speaker for speaker in speakers if speaker[0] == sex] for sex in "fm"]
    chosen = items_of_fold(every, groups, split, fold, num_folds)
    return speed_copies(chosen, speeds)


def trials(
    data: str | Path, *, split: Split = "test", fold: int = 0, num_folds: int = 5
) -> tuple[Items, Trials]:
    """List the utterances of a split, without speeds, and all their pairs i < j.

    Args:
        data: As in items(). So are split, fold and num_folds.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: The folder is missing, or items() refuses the data.
    """
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    return chosen, all_pairs(chosen)


def _scan(folder: Path) -> list[Item]:
    """List the utterances in the folders of speakers, with ids that have no suffix."""
    try:
        scanned = scan(folder)
    except LikenessError as error:
        raise LikenessError(f"{folder}: no audio files in its folders; {FETCH}") from error
    return [item._replace(id=item.id.removesuffix(item.suffix)) for item in scanned]
