"""The subject or class of every item: from a mapping, or from the first folder of its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from likeness.eval.errors import LikenessError
from likeness.eval.types import name_first


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
    missing = [id for id in ids if ("/" not in id if mapping is None else id not in mapping)]
    if missing:
        raise LikenessError(
            f"{side}: {len(missing)} of {len(ids)} ids have no {kind} ({name_first(missing)}); add "
            f"them to an `id {kind}` list, without which it is the first path component of each id"
        )
    return [id.split("/", 1)[0] if mapping is None else mapping[id] for id in ids]
