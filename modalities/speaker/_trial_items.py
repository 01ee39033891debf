"""The items that trial lists name."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item, Items
from likeness.eval.items.pairs import among
from likeness.eval.items.suffixes import AV_SOUNDS, SOUNDS
from likeness.eval.types import Trials, name_first


def match_items(
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
    return among(candidates, enrol, probe, listed.target)


def stem(id: str) -> str:
    """Return an id without its audio suffix.

    Example:
        >>> stem("id10270/5r0dWxy17C8/00001.m4a"), stem("a.b/v1.0")
        ('id10270/5r0dWxy17C8/00001', 'a.b/v1.0')
    """
    head, dot, suffix = id.rpartition(".")
    return head if dot and "." + suffix.lower() in SOUNDS + AV_SOUNDS else id
