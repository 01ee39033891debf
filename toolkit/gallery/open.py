"""The gallery that a folder holds, whichever store it is, and a comparison of two stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eval.types import Embeddings
from toolkit.gallery import lance
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.rules import Match


class Searchable(Protocol):
    """What every store can do that a comparison of them needs."""

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]: ...


def recall(gallery: Searchable, exact: Searchable, probes: Embeddings, k: int = 10) -> float:
    """Recall@k against exact search: the share of the k best subjects by `exact` whom `gallery`
    finds too, mean over the probes; tied scores count as found.

    ValueError: k below 1, no probes, an empty exact gallery.
    """
    shares = []
    for mine, best in zip(gallery.search(probes, k), exact.search(probes, k), strict=True):
        if not best:
            raise ValueError("recall: the exact gallery is empty; enrol the same subjects in both")
        least = best[-1].score - 1e-6 * max(1.0, abs(best[-1].score))
        shares.append(sum(one.score >= least for one in mine) / len(best))
    if not shares:
        raise ValueError("recall: no probes; give at least one")
    return float(np.mean(shares))


def open_gallery(folder: str | Path, meta: Mapping[str, str] | None = None) -> Any:
    """The gallery that a folder holds, LanceGallery or ExactGallery; an empty or new folder becomes
    an ExactGallery of `meta`.
    """
    return (
        lance.LanceGallery(folder, meta)
        if lance.holds(Path(folder))
        else ExactGallery(folder, meta)
    )
