"""Opens the gallery that a folder contains, whichever store it is, and compares two stores."""

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
    """What every store can do that a comparison of two stores needs."""

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, best first."""
        ...


def recall(gallery: Searchable, exact: Searchable, probes: Embeddings, k: int = 10) -> float:
    """Measures the recall@k of a gallery against exact search.

    This is the share of the k best subjects by `exact` that `gallery` finds too, as a mean over the
    probes. Subjects with a score equal to the k-th best count as found.

    Args:
        gallery: The gallery to measure.
        exact: A gallery of the same subjects that searches exactly.
        probes: Raw embeddings (Q, D), at least one.
        k: How many subjects are searched for.

    Returns:
        The recall, from 0 to 1.

    Raises:
        ValueError: k is below 1, there are no probes, or the exact gallery is empty.
    """
    shares = []
    for mine, best in zip(gallery.search(probes, k), exact.search(probes, k), strict=True):
        if not best:
            raise ValueError("recall: the exact gallery is empty; enrol the same subjects in both")
        least = best[-1].score - 1e-6 * max(1.0, abs(best[-1].score))
        shares.append(sum(match.score >= least for match in mine) / len(best))
    if not shares:
        raise ValueError("recall: no probes; give at least one")
    return float(np.mean(shares))


def open_gallery(folder: str | Path, meta: Mapping[str, str] | None = None) -> Any:
    """Opens the gallery that a folder contains, a LanceGallery or an ExactGallery.

    Args:
        folder: Its folder. An empty or new folder becomes an ExactGallery.
        meta: The meta of the embeddings to come; may be None for a folder that contains a gallery.

    Returns:
        The gallery.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> people = Embeddings(("ann/1", "bob/1"), [[3, 4], [4, -3]], {"similarity": "cosine"})
        >>> with TemporaryDirectory() as folder:
        ...     gallery = open_gallery(folder, people.meta)
        ...     gallery.enrol(people, ["ann", "bob"])
        ...     (match,) = gallery.search(Embeddings(("who",), [[3, 3]]), k=1)[0]
        >>> match.subject, round(match.score, 2)
        ('ann', 0.99)
    """
    store: Any = lance.LanceGallery if lance.holds(Path(folder)) else ExactGallery
    return store(folder, meta)
