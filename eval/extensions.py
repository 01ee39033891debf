"""Ids with and without the extension of their file: ann/1.wav in one place and ann/1 in another."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from eval.errors import LikenessError
from eval.types import Embeddings, name_first

_EXTENSION = re.compile(r"(?<=[^/\\])\.[A-Za-z][A-Za-z0-9]{1,4}\Z")


def without_extension(id: str) -> str:
    """Returns an id without an ending such as .wav or .jpeg: a dot, a letter and one to four more
    letters or digits.

    Example:
        >>> without_extension("ann/1.wav"), without_extension("v1.0/2"), without_extension("a.mp3")
        ('ann/1', 'v1.0/2', 'a')
    """
    return _EXTENSION.sub("", id)


def with_spellings(embeddings: Embeddings, asked: Sequence[str]) -> Embeddings:
    """Returns embeddings that have the ids that are asked for, too, whatever their extensions.

    Args:
        embeddings: N embeddings.
        asked: Ids, some of which differ from those of the embeddings in their extension alone.

    Returns:
        The embeddings, with a further row for each such id. An id that is there, and one that is
        not there without its extension either, adds none.

    Raises:
        LikenessError: Several embeddings have one id but for their extensions; they are counted,
            and the first is named.

    Example:
        >>> embeddings = Embeddings(("ann/1", "bob/1"), [[1, 0], [0, 1]])
        >>> with_spellings(embeddings, ["ann/1.wav", "bob/1", "cid/1"]).ids
        ('ann/1', 'bob/1', 'ann/1.wav')
    """
    known = set(embeddings.ids)
    others = [id for id in dict.fromkeys(asked) if id not in known]
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(embeddings.ids):
        rows.setdefault(without_extension(id), []).append(row)
    added = {id: rows[without_extension(id)] for id in others if without_extension(id) in rows}
    doubtful = [id for id, found in added.items() if len(found) > 1]
    if doubtful:
        names = [embeddings.ids[row] for row in added[doubtful[0]][:2]]
        raise LikenessError(
            f"{len(doubtful)} ids fit several embeddings without their extensions "
            f"({name_first(doubtful)}: {' and '.join(names)}); write the ids as in the embeddings"
        )
    if not added:
        return embeddings
    chosen = np.array([found[0] for found in added.values()])
    matrix = np.concatenate((embeddings.matrix, embeddings.matrix[chosen]))
    return Embeddings((*embeddings.ids, *added), matrix, embeddings.meta)
