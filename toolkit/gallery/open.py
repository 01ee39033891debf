"""Opens the gallery at a place, whichever store it is, and compares two stores."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from eval.errors import LikenessError
from eval.types import Embeddings
from toolkit.gallery import faiss, lance
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.location import location
from toolkit.gallery.postgres import gallery as postgres
from toolkit.gallery.qdrant import gallery as qdrant
from toolkit.gallery.rules import Gallery
from toolkit.gallery.store import FILE


def recall(gallery: Gallery, exact: Gallery, probes: Embeddings, k: int = 10) -> float:
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
        LikenessError: k is below 1, there are no probes, or the exact gallery is empty.
    """
    shares = []
    for mine, best in zip(gallery.search(probes, k), exact.search(probes, k), strict=True):
        if not best:
            raise LikenessError(
                "recall: the exact gallery is empty; enrol the same subjects in both"
            )
        least = best[-1].score - 1e-6 * max(1.0, abs(best[-1].score))
        shares.append(sum(match.score >= least for match in mine) / len(best))
    if not shares:
        raise LikenessError("recall: no probes; give at least one")
    return float(np.mean(shares))


def exists(place: str | PathLike[str]) -> bool:
    """Returns whether there is a gallery of any kind at a place.

    Args:
        place: A folder or an address, see toolkit.gallery.location.

    Raises:
        LikenessError: The address names no store. A package of the store is missing; the message
            names the extra to install.
        ConnectionError: A server does not answer.
    """
    where = location(place)
    if where.kind == "postgresql":
        return postgres.holds(where)
    if where.kind == "qdrant":
        return qdrant.holds(where)
    folder = Path(where.place)
    return lance.holds(folder) if where.kind == "lance" else _is_folder_of_gallery(folder)


def open_gallery(place: str | PathLike[str], meta: Mapping[str, str] | None = None) -> Gallery:
    """Opens the gallery at a place, or makes one there.

    Args:
        place: Its folder, or an address that names another store: faiss:FOLDER, lance:FOLDER,
            qdrant:FOLDER, qdrant:http://HOST:6333, postgresql://USER@HOST/DATABASE or
            postgresql:FOLDER. A folder without a kind may contain an ExactGallery or a
            LanceGallery; an empty or new one becomes an ExactGallery.
        meta: The meta of the embeddings to come; may be None where there is a gallery.

    Returns:
        The gallery.

    Raises:
        LikenessError: The gallery is of another model, damaged, or used by another process; or the
            address names no store, or a folder that contains another kind of gallery. A package of
            the store is missing; the message names the extra to install.
        OSError: The disk refuses it, or a server does not answer.

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
    where = location(place)
    if where.kind == "postgresql":
        return postgres.PostgresGallery(where, meta)
    if where.kind == "qdrant":
        return qdrant.QdrantGallery(where, meta)
    folder = Path(where.place)
    has_table, has_file = lance.holds(folder), (folder / FILE).is_file()
    if where.kind == "lance" and has_file and not has_table:
        raise LikenessError(
            f"{folder} contains a gallery in a SQLite file, and no LanceDB table; write {folder} "
            f"or faiss:{folder}, or choose another folder"
        )
    if where.kind == "faiss" and has_table and not has_file:
        raise LikenessError(
            f"{folder} contains a gallery in a LanceDB table, which FAISS does not search; write "
            f"lance:{folder}, or choose another folder"
        )
    if where.kind == "lance" or (where.kind == "folder" and has_table):
        return lance.LanceGallery(folder, meta)
    if where.kind == "faiss":
        return faiss.FaissGallery(folder, meta)
    return ExactGallery(folder, meta)


def _is_folder_of_gallery(folder: Path) -> bool:
    return (folder / FILE).is_file() or lance.holds(folder)
