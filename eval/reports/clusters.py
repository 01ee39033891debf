"""The page of a clustering: every cluster with its pictures or sounds, and the doubtful items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from eval.clustering import Counts, Fit
from eval.progress import step
from eval.reports.media import SECONDS, Media
from eval.reports.page import EMPTY, MINUS, block, folded, headed, joined, prose, table, write

_NUM_CLUSTERS = 100  # shown with their items; the others are counted
_NUM_ITEMS = 24  # of a cluster
_NUM_DOUBTFUL = 20


@step("drawing the page")
def write_page(
    folder: str | Path,
    ids: Sequence[str],
    clusters: Counts,
    fit: Fit,
    *,
    how: str,
    command: str,
    media: Media | None = None,
) -> Path:
    """Write the page, `index.html`, into a folder.

    Args:
        folder: Where it is written; it is made if it does not exist.
        ids: N items.
        clusters: Of each item (N,), from 1 by size; 0 stands for none.
        fit: How well each item sits in its cluster.
        how: How the clusters were found, as a sentence.
        command: Makes the page again.
        media: Shows an item by its id.

    Returns:
        The path of the page.
    """
    shown = media or Media(lambda _: None)
    count = int(clusters.max(initial=0))
    sizes = np.bincount(clusters, minlength=count + 1)
    left_out = f", {sizes[0]:,} items belong to none" if sizes[0] else ""
    alone = int((sizes[1:] == 1).sum())
    sections = {
        "Clusters": prose(
            f"{len(ids):,} items in {count:,} clusters, of which {alone:,} "
            f"{'has' if alone == 1 else 'have'} a single item{left_out}. {how}"
        )
        + _sizes(sizes, clusters, fit),
        "Doubtful items": _doubtful(ids, clusters, fit, shown),
        "Items by cluster": _items(ids, clusters, fit, sizes, shown),
        "Images and sound": prose(shown.note()),
        "Recompute": block("command", text=command),
    }
    about = f"{len(ids):,} items in {count:,} clusters"
    return write(Path(folder) / "index.html", "Clusters", about, sections)


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3f}".replace("-", MINUS)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _sizes(sizes: Counts, clusters: Counts, fit: Fit) -> Markup:
    rows = []
    shared = int((sizes[1:] > 1).sum())  # they come first; single items are counted only
    for number in range(1, min(shared, _NUM_CLUSTERS) + 1):
        inside = clusters == number
        rows.append(
            [f"cluster {number}", f"{sizes[number]:,}", _number(_mean(fit.own[inside].tolist()))]
        )
    return table(["", "items", "mean score within"], rows, kind="t") if rows else EMPTY


def _doubtful(ids: Sequence[str], clusters: Counts, fit: Fit, media: Media) -> Markup:
    """The items that are nearly as similar to another cluster as to their own."""
    margin = fit.own - fit.other
    known = np.flatnonzero(~np.isnan(margin))
    if not known.size:
        return EMPTY
    rows = [
        {
            "score": _number(float(margin[i])),
            "sides": [(media.show(ids[i]), f"{ids[i]}: in {clusters[i]}, near {fit.nearest[i]}")],
            "number": "",
        }
        for i in known[np.argsort(margin[known], kind="stable")][:_NUM_DOUBTFUL].tolist()
    ]
    text = prose(
        "Look and listen here first. The score is that with the item's own cluster minus that with "
        "the most similar other cluster: near 0 the item may belong to either."
    )
    head = "Item, its cluster, and the other one"
    return text + block("trials", caption="Least certain", head=head, rows=rows)


def _items(ids: Sequence[str], clusters: Counts, fit: Fit, sizes: Counts, media: Media) -> Markup:
    """The items of each cluster, the most typical first, each with its mean score with the rest."""
    parts = {}
    for number in [*range(1, min(len(sizes) - 1, _NUM_CLUSTERS) + 1), *([0] if sizes[0] else [])]:
        inside = np.flatnonzero(clusters == number)
        own = np.where(np.isnan(fit.own[inside]), np.inf, -fit.own[inside])
        order = inside[np.argsort(own, kind="stable")]
        items = []
        for i in order[:_NUM_ITEMS].tolist():
            picture = media.show(ids[i])
            items.append(
                {
                    "id": ids[i],
                    "shown": picture,
                    "norm": _number(float(fit.own[i])),
                    "named": 'class="shown image"' not in picture,
                }
            )
        rows = any(item["named"] for item in items)
        more = len(inside) - len(items)
        name = f"Cluster {number}" if number else "In no cluster"
        plural = "" if len(inside) == 1 else "s"
        heading = f"{name}: {len(inside):,} item{plural}"
        heading += f", {more:,} not shown" if more else ""
        parts[heading] = block("tiles", heading="", items=items, rows=rows)
    if len(sizes) - 1 > _NUM_CLUSTERS:
        parts[f"{len(sizes) - 1 - _NUM_CLUSTERS:,} smaller clusters"] = prose(
            "They are in the CSV file only."
        )
    text = (
        "Below each item stands its mean score with the others of its cluster, highest first; of "
        f"recordings the first {SECONDS:g} seconds can be heard."
    )
    if "<audio" in joined(parts.values()):  # players take a line each
        return prose(text, soft=True) + folded(parts)
    return prose(text, soft=True) + joined(headed(heading, part) for heading, part in parts.items())
