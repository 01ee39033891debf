"""What every gallery gives back, and what every gallery refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eval.scoring.templates import pool
from eval.types import Embeddings, Floats32, name_first
from toolkit.gallery.search import angular_bias
from toolkit.gallery.store import MAX_SUBJECT, contradictions


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
        ValueError: The pooling or the similarity is unknown.
    """
    if pooling not in ("mean", "norm_weighted"):
        raise ValueError(f"gallery: pooling {pooling!r} must be mean or norm_weighted")
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
        ValueError: They are of another model, other settings (crops, flip, detector) or another
            size, or k is below 1.
    """
    mine, theirs = meta.get("model"), embeddings.meta.get("model")
    if mine != theirs:
        origin = (
            "do not say which model made them" if theirs is None else f"are of model {theirs[:16]}"
        )
        raise ValueError(
            f"these embeddings {origin}, but the gallery is of "
            f"{'no known model' if mine is None else f'model {mine[:16]}'}; use one model for both"
        )
    settings = [
        {key: value for key, value in entries.items() if key not in ("modality", "similarity")}
        for entries in (meta, embeddings.meta)
    ]
    wrong = contradictions(*settings)
    if wrong:
        raise ValueError(
            f"the gallery was made with {'; '.join(wrong)}, as these embeddings were; make both "
            "with the same settings"
        )
    if dim and embeddings.matrix.shape[1] != dim:
        raise ValueError(
            f"these embeddings have {embeddings.matrix.shape[1]} dimensions, but the gallery has "
            f"{dim}; use one model for both"
        )
    if k < 1:
        raise ValueError(f"k = {k}: at least one match must be asked for")


def refuse_names(subjects: Sequence[str], rows: int) -> None:
    """Raises ValueError unless there is one usable name for each row."""
    if len(subjects) != rows:
        raise ValueError(f"{len(subjects)} subjects for {rows} embeddings; each needs one")
    bad = [
        name
        for name in dict.fromkeys(subjects)
        if not 0 < len(name) <= MAX_SUBJECT or not name.isprintable() or name != name.strip()
    ]
    if bad:
        raise ValueError(
            f"{len(bad)} subjects have unusable names ({name_first(name[:40] for name in bad)}); "
            f"a name has 1 to {MAX_SUBJECT} printable characters, and no blanks at its ends"
        )


def refuse_unknown(subjects: Mapping[str, Any] | Sequence[str], known: Mapping[str, int]) -> None:
    """Raises KeyError for subjects that are not enrolled.

    Args:
        subjects: The names that are asked for.
        known: The names that are enrolled.
    """
    absent = [name for name in subjects if name not in known]
    if absent:
        raise KeyError(
            f"{len(absent)} of {len(subjects)} subjects are not enrolled ({name_first(absent)}); "
            "check the names"
        )
