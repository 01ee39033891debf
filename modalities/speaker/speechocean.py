"""speechocean762: read English of 250 speakers whose first language is Mandarin, half of them
children (Zhang et al. 2021, arXiv 2104.01378). 16 kHz, 2 to 14 s.

The layout is DATA/speechocean/flac/SPEAKER/*.flac with DATA/speechocean/speakers.tsv, a table of
speaker, sex and age. The archive of its authors is read as well: DATA/speechocean762/WAVE/
SPEAKERxxxx/*.WAV, with spk2gender and spk2age in train/ and test/.

Sex and age are known of every speaker, so that error rates can be measured by group. There is most
likely one session per speaker; an4.py says what that means for the channel.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Items
from likeness.eval.items.pairs import all_pairs
from likeness.eval.types import Trials, name_first
from likeness.modalities.folders import scan
from likeness.modalities.speaker._folds import Split, items_of_fold
from likeness.modalities.speaker.audio import speed_copies

FETCH = (
    "`likeness prepare speechocean --data DATA` fetches it; recordings are "
    "DATA/speechocean762/WAVE/SPEAKERxxxx/*.WAV"
)
ADULT = 18  # years
_CHILD = 11  # years: below are children, from here to ADULT teenagers


class Speaker(NamedTuple):
    """Who speaks.

    Attributes:
        sex: "f" or "m".
        age: In years.
    """

    sex: str
    age: int

    @property
    def band(self) -> str:
        """The band of age by which the folds are balanced: child, teenager or adult."""
        return "child" if self.age < _CHILD else "teenager" if self.age < ADULT else "adult"


def speakers(data: str | Path) -> dict[str, Speaker]:
    """Read sex and age of every speaker.

    Args:
        data: The folder that holds speechocean/ or speechocean762/.

    Returns:
        Speaker, such as "0001", to sex and age, in alphabetical order.

    Raises:
        LikenessError: There is neither folder; the message says what to fetch. A line of the tables
            has another form.
    """
    recordings = _folder(Path(data))
    home = recordings.parent
    if recordings.name == "flac":
        rows = [line.split("\t") for line in _lines(home / "speakers.tsv")]
        return _checked(home / "speakers.tsv", rows[1:])
    rows = []
    for part in ("train", "test"):
        sexes, ages = (
            dict(line.split(maxsplit=1) for line in _lines(home / part / name) if " " in line)
            for name in ("spk2gender", "spk2age")
        )
        rows += [[who, sex, ages.get(who, "")] for who, sex in sexes.items()]
    return _checked(home, rows)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    fold: int = 0,
    num_folds: int = 5,
    speeds: Sequence[float] = (),
) -> Items:
    """List the recordings of a split, sorted by id.

    The speakers are divided into num_folds folds with even shares of each sex and band of age
    (seed 0).

    Args:
        data: The folder that holds speechocean/ or speechocean762/.
        split: "test" is fold number `fold`, "train" the rest, "all" everyone.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are.
        speeds: The speeds of copies, which are new classes (speed_copies).

    Returns:
        Items with id "SPEAKER/name" and label SPEAKER, such as "0001/000010011" and "0001".

    Raises:
        LikenessError: A folder is missing; the message says what to fetch. A folder is laid out
            otherwise, speakers have no sex or age, or the fold is out of range.
    """
    folder = _folder(Path(data))
    known = speakers(data)
    every = [
        item._replace(
            id=item.id.rpartition(".")[0].removeprefix("SPEAKER"),
            label=str(item.label).removeprefix("SPEAKER"),
        )
        for item in scan(folder)
    ]
    present = sorted({str(item.label) for item in every})
    if unknown := [name for name in present if name not in known]:
        raise LikenessError(
            f"{folder}: {len(unknown)} of {len(present)} speakers have no sex and age "
            f"({name_first(unknown)}); {FETCH}"
        )
    groups = groups_of(present, known)
    chosen = items_of_fold(every, groups, split, fold, num_folds)
    return speed_copies(chosen, speeds)


def groups_of(names: Iterable[str], known: Mapping[str, Speaker]) -> list[list[str]]:
    """Group speakers by sex and band of age, which stratified_folds divides evenly.

    Args:
        names: The speakers.
        known: The sex and age of each, as speakers() reads them.

    Example:
        >>> groups_of(["a", "b", "c"], {"a": Speaker("f", 9), "b": Speaker("m", 9),
        ...     "c": Speaker("f", 8)})
        [['a', 'c'], ['b']]
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        groups.setdefault((known[name].sex, known[name].band), []).append(name)
    return [groups[key] for key in sorted(groups)]


def trials(
    data: str | Path, *, split: Split = "test", fold: int = 0, num_folds: int = 5
) -> tuple[Items, Trials]:
    """List the recordings of a split, without speeds, and all their pairs i < j.

    Args:
        data: As in items(). So are split, fold and num_folds.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: A folder is missing. Items() refuses the data.
    """
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    return chosen, all_pairs(chosen)


def _folder(data: Path) -> Path:
    """The folder of the speakers' folders, in either layout."""
    for folder in (data / "speechocean" / "flac", data / "speechocean762" / "WAVE"):
        if folder.is_dir():
            return folder
    raise LikenessError(f"{data}: there is no speechocean/flac or speechocean762/WAVE; {FETCH}")


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise LikenessError(f"{path}: no such file; {FETCH}")
    return path.read_text(encoding="utf-8").split("\n")


def _checked(where: Path, rows: Sequence[Sequence[str]]) -> dict[str, Speaker]:
    """Sex and age by speaker; empty rows are left out."""
    stated = [row for row in rows if any(row)]
    wrong = [
        row
        for row in stated
        if len(row) != 3 or row[1] not in ("f", "m") or not re.fullmatch("[0-9]{1,3}", row[2])
    ]
    if wrong or not stated:
        raise LikenessError(
            f"{where}: {len(wrong)} of {len(stated)} speakers have no sex f or m and no age in "
            f"years ({name_first([row[0] for row in wrong])}); {FETCH}"
        )
    return {name: Speaker(sex, int(age)) for name, sex, age in sorted(map(tuple, stated))}
