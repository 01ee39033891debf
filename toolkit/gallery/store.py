"""What goes between a gallery and the store in which it lies.

`Gallery` (gallery.py) checks, pools and compares. A store keeps what it is given, and proposes
candidates. SqliteStore says what its methods do; those of PostgresStore do the same.

    sqlite.py    a SQLite file, whose templates are in memory and all compared
    faiss.py     the same file, searched by an index of FAISS
    postgres.py  PostgreSQL with pgvector, which many processes share
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.scoring.templates import pool
from likeness.eval.types import Floats32
from likeness.toolkit.gallery._search import angular_bias, as_searched


class Entry(NamedTuple):
    """A subject with its number of enrolments and the norm of its template."""

    subject: str
    enrolments: int
    norm: float


class Enrolments(NamedTuple):
    """R raw enrolments, in the order in which they were made.

    Attributes:
        subjects: Whose each is.
        items: The id of the file or item that each was made from.
        rows: The embeddings (R, D).
    """

    subjects: Sequence[str]
    items: Sequence[str]
    rows: Floats32


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


def templates_of(subjects: Sequence[str], rows: Floats32, meta: Mapping[str, str]) -> Templates:
    """Pools enrolments into one template per subject, by likeness.eval.scoring.templates.pool.

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
            method=meta.get("template_pooling", "mean"),  # type: ignore[arg-type]
        )
    similarity = meta.get("similarity", "cosine")
    vectors = as_searched(pooled.matrix, angular_bias(similarity), similarity)
    return Templates(pooled.ids, [counts[name] for name in pooled.ids], pooled.norms, vectors)


def several_templates(
    made: Enrolments, most: int, meta: Mapping[str, str]
) -> tuple[list[str], Floats32]:
    """Groups the enrolments of each subject by k-means, and pools every group into a template.

    Args:
        made: Raw enrolments.
        most: How many templates a subject gets at most.
        meta: Of the gallery, which says the pooling.

    Returns:
        The subject of each template, those of one subject side by side, and the raw templates.

    Example:
        >>> rows = np.float32([[1, 0], [0, 2], [9, 0], [0, 1]])
        >>> made = Enrolments(["a", "a", "a", "b"], ["1", "2", "3", "4"], rows)
        >>> several_templates(made, 2, {})[0]
        ['a', 'a', 'b']
    """
    from sklearn.cluster import KMeans

    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(made.subjects):
        rows_of.setdefault(name, []).append(row)
    rows = Embeddings(tuple(map(str, range(len(made.rows)))), made.rows)
    unit, template_of = rows.unit(), np.empty(len(made.rows), dtype=object)
    for name, places in rows_of.items():
        groups = range(len(places))
        if len(places) > most:
            groups = KMeans(most, n_init=4, random_state=0).fit_predict(unit[places]).tolist()
        template_of[places] = [f"{group} {name}" for group in groups]
    order = np.concatenate(list(rows_of.values()))
    by_subject = Embeddings(tuple(map(str, order)), made.rows[order])
    method: Any = meta.get("template_pooling", "mean")
    pooled = pool(by_subject, template_of[order], method=method)
    return [name.split(" ", 1)[1] for name in pooled.ids], pooled.matrix
