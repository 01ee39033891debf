"""Embedding by all processes of a run, each of which takes its part of the items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from likeness.eval.errors import LikenessError
from likeness.eval.types import Embeddings, name_first
from likeness.toolkit.data.items import Item
from likeness.toolkit.data.reading import Bad, Read
from likeness.toolkit.models.embed import collected, embed, embedded_rows
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
    """Embed as `embed_on_all_ranks` does, where no item may be missing.

    Args:
        embedder: The network, the same in every process.
        items: All items, the same in every process.
        read: Gives an item's input, or several of them.
        what: What the error calls the items, such as "validation".
        workers: The number of processes that read.

    Raises:
        LikenessError: Some items cannot be read. They are counted and the first are named.
    """
    embeddings, bad = embed_on_all_ranks(embedder, items, read, workers=workers)
    if bad:
        raise LikenessError(
            f"{len(bad)} of {len(items)} {what} items cannot be read "
            f"({name_first(item.id for item in bad)}): {bad[0].reason}"
        )
    return embeddings


def embed_on_all_ranks(
    embedder: Embedder, items: Sequence[Item], read: Read | ReadParts, *, workers: int = 0
) -> tuple[Embeddings, list[Bad]]:
    """Embed as `embed` does, while each process of the run takes its part of the items.

    Every process gets the whole result, the same in the same order.
    """
    rank, world = distributed.rank(), distributed.world()
    if world == 1:
        return embed(embedder, items, read, workers=workers)
    first, stop = len(items) * rank // world, len(items) * (rank + 1) // world
    rows, bad = embedded_rows(embedder, items[first:stop], read, workers=workers)
    places = sorted(rows)
    own = np.stack([rows[place] for place in places]) if rows else np.zeros((0, embedder.dim))
    matrix = distributed.gather(torch.from_numpy(own.astype(np.float32, copy=False))).numpy()
    parts = distributed.gather_objects(([first + place for place in places], bad))
    all_places = [place for listed, _ in parts for place in listed]
    all_bad = [item for _, listed in parts for item in listed]
    return collected(dict(zip(all_places, matrix, strict=True)), items, all_bad, None)
