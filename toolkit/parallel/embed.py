"""Embedding by all processes of a run, each of which takes its part of the items."""

from collections.abc import Sequence

import numpy as np
import torch

from likeness.eval.errors import LikenessError
from likeness.eval.types import Embeddings, name_first
from likeness.toolkit.data.items import Item
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models.embed import embedded_rows, refuse_diverged
from likeness.toolkit.models.loaded import Embedder, ReadParts
from likeness.toolkit.parallel import distributed


def embed_all(
    embedder: Embedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    what: str,
    workers: int = 0,
) -> Embeddings:
    """Embed items of which none may be missing, while each process of the run takes its part.

    Args:
        embedder: The network, the same in every process.
        items: All items, the same in every process.
        read: Gives an item's input, or several of them.
        what: What the error calls the items, such as "validation".
        workers: The number of processes that read.

    Returns:
        The embeddings of all items in their order, the same in every process.

    Raises:
        LikenessError: Some items cannot be read. They are counted and the first are named.
    """
    rank, world = distributed.rank(), distributed.world()
    first, stop = len(items) * rank // world, len(items) * (rank + 1) // world
    rows, own_bad = embedded_rows(embedder, items[first:stop], read, workers=workers)
    bad = [item for part in distributed.gather_objects(own_bad) for item in part]
    refuse_diverged(bad, len(items) - len(bad))
    if bad:
        raise LikenessError(
            f"{len(bad)} of {len(items)} {what} items cannot be read "
            f"({name_first(item.id for item in bad)}): {bad[0].reason}"
        )
    own = np.stack([rows[place] for place in sorted(rows)]) if rows else np.zeros((0, embedder.dim))
    matrix = distributed.gather(torch.from_numpy(own.astype(np.float32, copy=False))).numpy()
    return Embeddings(tuple(item.id for item in items), matrix, {})
