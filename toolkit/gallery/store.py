"""What a gallery needs of the store in which it lies.

`Gallery` (gallery.py) checks, pools and compares. A store keeps what it is given, and proposes
candidates:

    sqlite.py    a SQLite file, whose templates are in memory and all compared
    faiss.py     the same file, searched by an index of FAISS
    postgres.py  PostgreSQL with pgvector, which many processes share
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.scoring.templates import pool
from eval.types import Embeddings, Floats32
from toolkit.gallery.search import PRODUCTS, angular_bias, as_searched


class Entry(NamedTuple):
    """A subject with its number of enrolments and the norm of its template."""

    subject: str
    enrolments: int
    norm: float


class Templates(NamedTuple):
    """One template for each of G subjects.

    Attributes:
        subjects: Their names.
        counts: How many enrolments each has.
        norms: The norms (G,) of the raw templates.
        vectors: The templates (G, W) as they are searched, see `as_searched`.
    """

    subjects: Sequence[str]
    counts: Sequence[int]
    norms: Floats32
    vectors: Floats32


class Candidates(NamedTuple):
    """Who may be the most similar to some probes.

    Attributes:
        subjects: The names of all candidates, in the order in which they were enrolled.
        norms: The norm of the template of each.
        vectors: The template of each, as it is searched.
        asked: The numbers (N,) of the probes, in ascending order; each stands with one candidate.
        places: The candidates (N,) of these probes, as places in `subjects`.
    """

    subjects: Sequence[str]
    norms: Floats32
    vectors: Floats32
    asked: NDArray[np.int64]
    places: NDArray[np.int64]


class Store(Protocol):
    """Keeps enrolments and templates. Each change is there whole when the method returns.

    Attributes:
        name: What messages call it.
        shared: Whether several processes may change it at the same time.
        folder: The folder beside which media may be kept; None where there is none.
        meta: What it says of the model, the similarity and the pooling.
    """

    name: str
    shared: bool
    folder: Path | None
    meta: Mapping[str, str]

    @property
    def dim(self) -> int:
        """The size of embeddings; 0 before the first."""

    def __len__(self) -> int:
        """How many subjects are enrolled."""

    def changing(self) -> AbstractContextManager[object]:
        """A block in which nobody else changes the gallery."""

    def known(self, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""

    def enrolments(self, subjects: Sequence[str]) -> dict[str, Floats32]:
        """The raw enrolments (R, D) of those subjects who are enrolled."""

    def write(
        self, subjects: Sequence[str], rows: Floats32, templates: Templates, *, replace: bool
    ) -> None:
        """Adds an enrolment for each row, and puts the templates of their subjects.

        Args:
            subjects: The subject of each row, R names.
            rows: Raw enrolments (R, D).
            templates: Of these subjects, in the order in which they first appear.
            replace: Whether what the subjects had goes.
        """

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects who are enrolled."""

    def erase(self) -> None:
        """Erases from all files what was removed or replaced; called after such a change."""

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """The `count` subjects whose templates are most similar to each probe.

        Args:
            asked: Probes (Q, W) as they are searched for, see `as_asked`.
            count: How many candidates each probe gets at most.
        """

    def entries(self) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""

    def close(self) -> None:
        """Frees what the store holds."""


def templates_of(subjects: Sequence[str], rows: Floats32, meta: Mapping[str, str]) -> Templates:
    """Pools enrolments into one template per subject, by eval.scoring.templates.pool.

    Args:
        subjects: The subject of each row, R names.
        rows: All raw enrolments (R, D) of these subjects.
        meta: Of the gallery, which says similarity and pooling.

    Returns:
        The templates, in the order in which the subjects first appear.

    Example:
        >>> pooled = templates_of(["a", "b", "a"], np.float32([[3, 4], [1, 0], [3, 4]]), {})
        >>> pooled.subjects, pooled.counts, pooled.norms.tolist()
        (('a', 'b'), [2, 1], [5.0, 1.0])
    """
    counts = dict.fromkeys(subjects, 0)
    for name in subjects:
        counts[name] += 1
    if len(counts) == len(subjects):
        # A single enrolment is its own template. Of a million of them, the float64 sums of `pool`
        # would take gigabytes.
        pooled = Embeddings(tuple(subjects), rows)
    else:
        pooled = pool(
            Embeddings(tuple(map(str, range(len(rows)))), rows),
            np.array(subjects, dtype=object),
            method=meta.get("pooling", "mean"),  # type: ignore[arg-type]
        )
    similarity = meta.get("similarity", "cosine")
    vectors = as_searched(pooled.matrix, angular_bias(similarity), similarity)
    return Templates(pooled.ids, [counts[name] for name in pooled.ids], pooled.norms, vectors)


def contradictions(meta: Mapping[str, str], expected: Mapping[str, str] | None) -> list[str]:
    """Lists in what the meta of a gallery differs from what is expected of it.

    Where the expected meta names a model, settings (crops, flip, faces) that only the gallery has
    count too, because without them that model gives other embeddings. The similarity is the
    exception.

    Args:
        meta: What the gallery says.
        expected: What it should say; None for whatever it says.

    Returns:
        A text for each entry that differs.

    Example:
        >>> contradictions({"model": "a"}, {"model": "b"})
        ["model 'a' and not 'b'"]
    """
    needed = dict(expected or {})
    more = []
    if "model" in needed:
        more = [key for key in meta if key not in needed and key != "similarity"]
    return [
        f"{key} {meta.get(key)!r} and not {needed.get(key)!r}"
        for key in (*needed, *more)
        if meta.get(key) != needed.get(key)
    ]


def no_gallery(where: str) -> LikenessError:
    """What is said of a place without a gallery, where nothing says what to make one of."""
    return LikenessError(
        f"{where} contains no gallery; give the meta of the embeddings to make one"
    )


def refuse_similarity(similarity: str, store: str) -> None:
    """Raises LikenessError for a similarity whose order is not that of an inner product."""
    if similarity.partition(":")[0] not in PRODUCTS:
        raise LikenessError(
            f"similarity {similarity!r}: {store} searches by {', '.join(PRODUCTS)}; use a gallery "
            "in a folder for the others"
        )
