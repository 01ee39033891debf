"""The subject or class of every item: from a mapping, or from the first folder of its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.errors import LikenessError
from eval.types import name_first


def labels_of(
    side: str, ids: Sequence[str], mapping: Mapping[str, str] | None = None, kind: str = "subject"
) -> list[str]:
    """The label of each id.

    Args:
        side: What the ids are of, for the messages.
        ids: N ids.
        mapping: Id -> label. None takes the first path component of the ids.
        kind: What a label is: "subject" or "label".

    Raises:
        LikenessError: Ids have no label. All are counted, the first are named.

    >>> labels_of("gallery", ["ann/1", "bob/1"])
    ['ann', 'bob']
    """
    if mapping is None:
        bare = [name for name in ids if "/" not in name]
        if bare:
            raise LikenessError(
                f"{side}: {len(bare)} of {len(ids)} ids name no {kind} as first path component "
                f"({name_first(bare)}); give an `id {kind}` list"
            )
        return [name.split("/", 1)[0] for name in ids]
    missing = [name for name in ids if name not in mapping]
    if missing:
        raise LikenessError(
            f"{side}: {len(missing)} of {len(ids)} ids have no {kind} ({name_first(missing)}); "
            f"add them to the `id {kind}` list"
        )
    return [mapping[name] for name in ids]
