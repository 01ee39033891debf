"""What the embeddings of a data set say: labels that are likely wrong, and near copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from eval.cleaning import near_pairs, suspects
from eval.errors import LikenessError
from eval.types import Embeddings, name_first
from likeness.checking.findings import Finding
from toolkit.data.items import Items


@dataclass(frozen=True)
class Similar:
    """Findings, each with the rows that --clean leaves out and why; and notes."""

    findings: list[tuple[Finding, dict[int, str]]]
    notes: list[str]


def similar_findings(
    items: Items, left_out: Sequence[str], embeddings: Embeddings, near: float, of: str
) -> Similar:
    """Find labels that are likely wrong and items that are nearly the same.

    Args:
        items: N items.
        left_out: (N,) why an item is left out already; such items are not compared.
        embeddings: By the ids of the items.
        near: The cosine from which on two items are nearly the same.
        of: What a label is, for messages.

    Raises:
        LikenessError: No item has an embedding.
    """
    ids, labels = list(items.ids), list(items.labels)
    row_of = {id: row for row, id in enumerate(embeddings.ids)}
    kept = [row for row in range(len(ids)) if not left_out[row]]
    rows = [row for row in kept if ids[row] in row_of]
    if kept and not rows:
        raise LikenessError(
            f"none of {len(kept)} items has an embedding of its id ({name_first(ids)} against "
            f"{name_first(embeddings.ids)}); embed the same data: likeness embed --items DATA"
        )
    notes = []
    if len(rows) < len(kept):
        without = [ids[row] for row in kept if ids[row] not in row_of]
        notes.append(
            f"{len(without):,} of {len(kept):,} items have no embedding ({name_first(without)}) "
            "and were compared with nothing."
        )
    unit = embeddings.unit()[[row_of[ids[row]] for row in rows]]
    found = [
        _near_copies(rows, unit, near, ids, labels),
        _wrong_labels(rows, unit, ids, labels, of),
    ]
    return Similar([pair for pair in found if pair is not None], notes)


def _near_copies(
    rows: Sequence[int],
    unit: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    near: float,
    ids: Sequence[str],
    labels: Sequence[str | None],
) -> tuple[Finding, dict[int, str]] | None:
    pairs = near_pairs(unit, near)
    if not len(pairs):
        return None
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(rows),) * 2)
    _, parts = connected_components(graph, directed=False)
    groups = defaultdict(list)
    for place in np.unique(pairs).tolist():
        groups[int(parts[place])].append(rows[place])
    num = sum(len(group) - 1 for group in groups.values())
    across = sum(len({labels[row] for row in group}) > 1 for group in groups.values())
    finding = Finding(
        "near-duplicate",
        num,
        f"{_items(num, 'is', 'are')} nearly the same as another one: the "
        f"embeddings have a cosine of {near:g} or more"
        + (f"; {across:,} groups have several labels." if across else "."),
        "Look whether they are copies, and keep one of each; --clean keeps the first.",
        tuple(tuple(ids[row] for row in group) for group in groups.values()),
        {ids[row]: str(labels[row]) for group in groups.values() for row in group},
    )
    dropped = {
        row: f"near-duplicate: of {ids[group[0]]}" for group in groups.values() for row in group[1:]
    }
    return finding, dropped


def _wrong_labels(
    rows: Sequence[int],
    unit: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    ids: Sequence[str],
    labels: Sequence[str | None],
    of: str,
) -> tuple[Finding, dict[int, str]] | None:
    labelled = [place for place, row in enumerate(rows) if labels[row] is not None]
    names, numbers = np.unique(
        np.array([str(labels[rows[place]]) for place in labelled], dtype=object).astype(str),
        return_inverse=True,
    )
    if len(names) < 2:
        return None
    wrong = suspects(unit[labelled], numbers)
    if not len(wrong.rows):
        return None
    details, dropped = {}, {}
    chosen = [rows[labelled[place]] for place in wrong.rows.tolist()]
    for row, other, own, nearer in zip(
        chosen, wrong.looks_like.tolist(), wrong.own, wrong.other, strict=True
    ):
        like = str(names[other])
        details[ids[row]] = (
            f"is called {labels[row]}, looks like {like} (cosine {nearer:.3f} against {own:.3f})"
        )
        dropped[row] = f"wrong-label: looks like {like}"
    finding = Finding(
        "wrong-label",
        len(chosen),
        f"{_items(len(chosen), 'looks', 'look')} like another {of} than the label "
        "says: each is nearer to the mean of the other than to that of its own without "
        "itself, and as near as the other's own items are on average.",
        "Look at them, the surest first, and correct the labels; --clean leaves them out.",
        tuple((ids[row],) for row in chosen),
        details,
    )
    return finding, dropped


def _items(number: int, one: str, several: str) -> str:
    """A number of items and a verb.

    Example:
        >>> _items(1, "is", "are"), _items(2, "is", "are")
        ('1 item is', '2 items are')
    """
    return f"1 item {one}" if number == 1 else f"{number:,} items {several}"
