"""What every gallery does, what it gives back, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from eval.errors import LikenessError
from eval.scoring.templates import pool
from eval.similarity import pairs
from eval.types import Embeddings, Floats32, name_first
from toolkit.gallery.search import PRODUCTS, angular_bias
from toolkit.gallery.store import MAX_NUMBER, MAX_SUBJECT, contradictions

EXTRA = 8  # candidates beside k: rounding of products must not decide who is among the best


class Match(NamedTuple):
    """One subject that a search gives back.

    Attributes:
        subject: The name.
        score: The similarity of template and probe; a higher score means more similar.
        norm: The norm of the template, which measures its quality if the loss made it do so.
    """

    subject: str
    score: float
    norm: float


class Entry(NamedTuple):
    """A subject with its number of enrolments and the norm of its template."""

    subject: str
    enrolments: int
    norm: float


class Gallery(Protocol):
    """What every store does; ExactGallery (exact.py) describes arguments and errors.

    A change is there whole, and kept, when the method returns; after a kill the store holds what it
    held before the change or after it. Subjects are compared in Unicode NFC.

    Attributes:
        shared: Whether several processes may change the gallery at the same time.
        similarity: How embeddings are compared.
    """

    shared: bool
    similarity: str

    @property
    def meta(self) -> Mapping[str, str]:
        """What the gallery says of the model and the settings that made its embeddings."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder beside which media may be kept; None where the gallery has none."""
        ...

    def __len__(self) -> int:
        """How many subjects are enrolled."""
        ...

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds one enrolment for each row."""
        ...

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Puts enrolments in place of all that the subjects have."""
        ...

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects."""
        ...

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, best first."""
        ...

    def entries(self) -> list[Entry]:
        """Lists who is enrolled."""
        ...

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, in the order in which they were made."""
        ...

    def close(self) -> None:
        """Frees what the gallery holds."""
        ...


def pooled(subjects: Sequence[str], rows: Floats32, pooling: str) -> Embeddings:
    """Pools enrolments into one template per subject, by eval.scoring.templates.pool.

    Args:
        subjects: The subject of each row, R names.
        rows: Raw enrolments (R, D).
        pooling: "mean" or "norm_weighted".

    Returns:
        The templates, with the subjects as ids.
    """
    # A single enrolment is its own template. Of a million of them, the float64 sums of `pool` would
    # take gigabytes.
    if len(set(subjects)) == len(subjects):
        return Embeddings(tuple(subjects), rows)
    return pool(
        Embeddings(tuple(map(str, range(len(rows)))), rows),
        np.array(subjects, dtype=object),
        method=pooling,  # type: ignore[arg-type]
    )


def joined(
    embeddings: Embeddings, subjects: Sequence[str], before: Mapping[str, Floats32], pooling: str
) -> tuple[dict[str, Floats32], Embeddings]:
    """Puts new enrolments behind those that subjects have, and pools all of them.

    Args:
        embeddings: The new enrolments, at least one.
        subjects: The subject of each.
        before: What subjects have already (R, D); the others have nothing.
        pooling: "mean" or "norm_weighted".

    Returns:
        All raw enrolments of each subject, and the templates in the same order.

    Example:
        >>> rows = Embeddings(("1", "2"), [[0, 1], [0, 3]])
        >>> blocks, templates = joined(rows, ["ann", "ann"], {}, "mean")
        >>> blocks["ann"].shape, templates.ids, templates.matrix.tolist()
        ((2, 2), ('ann',), [[0.0, 2.0]])
    """
    mine: dict[str, list[int]] = {}
    for i, name in enumerate(subjects):
        mine.setdefault(name, []).append(i)
    blocks = {
        name: np.concatenate([*([before[name]] if name in before else []), part])
        for name, part in ((name, embeddings.matrix[places]) for name, places in mine.items())
    }
    names = [name for name, block in blocks.items() for _ in block]
    return blocks, pooled(names, np.concatenate(list(blocks.values())), pooling)


def ranked(
    candidates: Mapping[str, Floats32],
    probe: Floats32,
    k: int,
    threshold: float | None,
    *,
    pooling: str,
    similarity: str,
) -> tuple[Match, ...]:
    """Scores the candidates of one probe like trials, and keeps the best.

    Args:
        candidates: The raw enrolments (R, D) of each candidate; of equal scores, the candidate that
            comes first here comes first.
        probe: The raw probe (D,).
        k: How many matches to give back at most.
        threshold: Keeps only matches with score >= threshold.
        pooling: "mean" or "norm_weighted".
        similarity: The name of the similarity.
    """
    if not candidates:
        return ()
    names = list(candidates)
    templates = pooled(
        [name for name, rows in candidates.items() for _ in rows],
        np.concatenate(list(candidates.values())),
        pooling,
    )
    scores = pairs(
        templates.matrix,
        probe[None],
        np.arange(len(names)),
        np.zeros(len(names), dtype=np.int64),
        similarity,
    )
    return tuple(
        Match(names[i], float(scores[i]), float(templates.norms[i]))
        for i in np.argsort(-scores, kind="stable")[:k].tolist()
        if threshold is None or scores[i] >= threshold
    )


def stated(
    meta: Mapping[str, str] | None, similarity: str | None, pooling: str, new: bool
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """Returns what a gallery has to agree with, and what a new gallery says beside that.

    Args:
        meta: The meta of the embeddings to come; None if the gallery is there and decides.
        similarity: The similarity that the caller asks for.
        pooling: "mean" or "norm_weighted".
        new: Whether there is no gallery yet.

    Returns:
        The entries to agree with, None for whatever the gallery says; and the similarity and
        pooling that a new gallery gets.

    Raises:
        LikenessError: The pooling or the similarity is unknown.
    """
    if pooling not in ("mean", "norm_weighted"):
        raise LikenessError(f"gallery: pooling {pooling!r} must be mean or norm_weighted")
    usual = similarity or (meta or {}).get("similarity", "cosine")
    angular_bias(usual)
    agreed = {key: value for key, value in (meta or {}).items() if key != "similarity"}
    if similarity:
        agreed["similarity"] = similarity
    whatever_it_says = meta is None and not similarity and not new
    return None if whatever_it_says else agreed, {"similarity": usual, "pooling": pooling}


def refuse_other(meta: Mapping[str, str], dim: int, embeddings: Embeddings, k: int = 1) -> None:
    """Refuses embeddings that do not belong to a gallery.

    Args:
        meta: The meta of the gallery.
        dim: The size of its embeddings, 0 before the first.
        embeddings: The embeddings to enrol or search.
        k: How many matches are asked for.

    Raises:
        LikenessError: They are of another model, other settings (crops, flip, detector) or another
            size, or k is below 1; or their numbers are so large that no gallery could be read again
            that holds them.
    """
    mine, theirs = meta.get("model"), embeddings.meta.get("model")
    if mine != theirs:
        origin = (
            "do not say which model made them" if theirs is None else f"are of model {theirs[:16]}"
        )
        raise LikenessError(
            f"these embeddings {origin}, but the gallery is of "
            f"{'no known model' if mine is None else f'model {mine[:16]}'}; use one model for both"
        )
    settings = [
        {key: value for key, value in entries.items() if key not in ("modality", "similarity")}
        for entries in (meta, embeddings.meta)
    ]
    wrong = contradictions(*settings)
    if wrong:
        raise LikenessError(
            f"the gallery was made with {'; '.join(wrong)}, as these embeddings were; make both "
            "with the same settings"
        )
    if dim and embeddings.matrix.shape[1] != dim:
        raise LikenessError(
            f"these embeddings have {embeddings.matrix.shape[1]} dimensions, but the gallery has "
            f"{dim}; use one model for both"
        )
    huge = np.abs(embeddings.matrix).max(axis=1) > MAX_NUMBER
    if huge.any():
        raise LikenessError(
            f"{np.count_nonzero(huge)} embeddings hold numbers beyond {MAX_NUMBER:g} "
            f"({name_first(embeddings.ids[i] for i in np.flatnonzero(huge))}), which are not "
            "compared; the network or these items are damaged: leave them out"
        )
    if k < 1:
        raise LikenessError(f"k = {k}: at least one match must be asked for")


def refuse_names(subjects: Sequence[str], rows: int) -> None:
    """Raises ValueError unless there is one usable name for each row."""
    if len(subjects) != rows:
        raise LikenessError(f"{len(subjects)} subjects for {rows} embeddings; each needs one")
    bad = [
        name
        for name in dict.fromkeys(subjects)
        if not 0 < len(name) <= MAX_SUBJECT or not name.isprintable() or name != name.strip()
    ]
    if bad:
        raise LikenessError(
            f"{len(bad)} subjects have unusable names ({name_first(name[:40] for name in bad)}); "
            f"a name has 1 to {MAX_SUBJECT} printable characters, and no blanks at its ends"
        )


class NotEnrolled(LikenessError):
    """A subject is not enrolled."""


def refuse_unknown(subjects: Mapping[str, Any] | Sequence[str], known: Collection[str]) -> None:
    """Raises NotEnrolled for subjects that are not enrolled.

    Args:
        subjects: The names that are asked for.
        known: The names that are enrolled.
    """
    absent = [name for name in subjects if name not in known]
    if absent:
        raise NotEnrolled(f"{absent[0]!r} is not enrolled; check the name")


def refuse_similarity(similarity: str, store: str) -> None:
    """Raises ValueError for a similarity whose order is not that of an inner product."""
    if similarity.partition(":")[0] not in PRODUCTS:
        raise LikenessError(
            f"similarity {similarity!r}: {store} searches by {', '.join(PRODUCTS)}; use a folder, "
            "which is an ExactGallery, for the others"
        )


def storable(subjects: Sequence[str]) -> list[str]:
    """Those of the names that can be enrolled at all; a database need not be asked for the others.

    Some databases refuse texts with NUL or half a surrogate pair even in a question.

    Example:
        >>> storable(["ann", "a\\0b"])
        ['ann']
    """
    return [name for name in subjects if name.isprintable() and 0 < len(name) <= MAX_SUBJECT]
