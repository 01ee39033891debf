"""The items that trial lists name, and where the lists of a data set lie."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.types import Trials, name_first
from likeness.modalities.speaker.decoding import AV_SUFFIXES, SUFFIXES
from likeness.toolkit.data.items import Item, Items


def matched(
    listed: Trials, candidates: Sequence[Item], *, where: str, hint: str = ""
) -> tuple[Items, Trials]:
    """Find the items that trials name.

    An id is found as it is. Otherwise it is found without its audio suffix (.wav, .flac, .m4a, ...
    on either side), where only one item is left by that name.

    Args:
        listed: The trials, as they were read.
        candidates: The items to look among.
        where: What the trials were read from, for the messages.
        hint: What to do when ids are not found, for the messages.

    Returns:
        The items that the trials name, in the order of the candidates, and the trials with the ids
        of these items.

    Raises:
        LikenessError: Ids are not found, or are found more than once. All are counted, and the
            first is named.
    """
    candidates = Items.of(candidates)
    exact = {id: number for number, id in enumerate(candidates.ids)}
    bare: dict[str, int] = {}  # -1 where several items are left by one name
    for number, id in enumerate(candidates.ids):
        bare[stem(id)] = number if stem(id) not in bare else -1
    missing: dict[str, None] = {}

    def rows(ids: Sequence[str], used: NDArray[np.int32]) -> NDArray[np.int64]:
        numbers = np.full(len(ids), -1, dtype=np.int64)
        for i in np.unique(used).tolist():
            numbers[i] = exact.get(ids[i], bare.get(stem(ids[i]), -1))
            if numbers[i] < 0:
                missing[ids[i]] = None
        return numbers[used]

    enrol, probe = rows(listed.enrol_ids, listed.enrol), rows(listed.probe_ids, listed.probe)
    if missing:
        raise LikenessError(
            f"{where}: {len(missing)} of its ids are no items, or fit several without their suffix "
            f"({name_first(missing)}){'; ' + hint if hint else ''}"
        )
    used, place = np.unique(np.concatenate((enrol, probe)), return_inverse=True)
    chosen = candidates.take(used)
    ids = tuple(chosen.ids)
    sides = place.astype(np.int32).reshape(2, -1)
    return chosen, Trials(ids, ids, sides[0], sides[1], listed.target)


def stem(id: str) -> str:
    """Return an id without its audio suffix.

    Example:
        >>> stem("id10270/5r0dWxy17C8/00001.m4a"), stem("a.b/v1.0")
        ('id10270/5r0dWxy17C8/00001', 'a.b/v1.0')
    """
    head, dot, suffix = id.rpartition(".")
    return head if dot and "." + suffix.lower() in SUFFIXES + AV_SUFFIXES else id


def find(data: Path, names: Iterable[str], folders: Iterable[str]) -> Path | None:
    """Return the first file of these names, plain or .gz, in these folders below `data`.

    Args:
        data: The folder above the folders.
        names: The names to look for; earlier names come first.
        folders: The folders to look in, from `data`.

    Returns:
        The path, or None if there is no such file.
    """
    places = list(folders)
    for name in names:
        for folder in places:
            for ending in ("", ".gz"):
                path = data / folder / (name + ending)
                if path.is_file():
                    return path
    return None
