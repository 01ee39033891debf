"""What every gallery gives back, and what every gallery refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eval.templates import pool
from eval.types import Embeddings, Floats32, name_first
from toolkit.gallery.search import angular_bias
from toolkit.gallery.store import MAX_SUBJECT, contradictions


class Match(NamedTuple):
    """score: higher = more similar. norm: of the subject's template, a measure of its quality where
    the loss made it one.
    """

    subject: str
    score: float
    norm: float


class Entry(NamedTuple):
    """A subject with its number of enrolments and its template's norm."""

    subject: str
    enrolments: int
    norm: float


def pooled(subjects: Sequence[str], rows: Floats32, pooling: str) -> Embeddings:
    """One template per subject, by eval.templates.pool."""
    if (
        len(set(subjects)) == len(subjects)
        # one enrolment each is its own template; of a million, pooling's float64 sums would take
        # gigabytes
    ):
        return Embeddings(tuple(subjects), rows)
    return pool(
        Embeddings(tuple(map(str, range(len(rows)))), rows),
        np.array(subjects, dtype=object),
        method=pooling,  # type: ignore[arg-type]
    )


def stated(
    meta: Mapping[str, str] | None, similarity: str | None, pooling: str, new: bool
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """What a gallery has to agree with (None: whatever it holds), and what it says else where it is
    new.
    """
    if pooling not in ("mean", "norm_weighted"):
        raise ValueError(f"gallery: pooling {pooling!r} must be mean or norm_weighted")
    usual = similarity or (meta or {}).get("similarity", "cosine")
    angular_bias(usual)
    agreed = {key: value for key, value in (meta or {}).items() if key != "similarity"} | (
        {"similarity": similarity} if similarity else {}
    )
    return (None if meta is None and not similarity and not new else agreed), {
        "similarity": usual,
        "pooling": pooling,
    }


def refuse_other(meta: Mapping[str, str], dim: int, embeddings: Embeddings, k: int = 1) -> None:
    """ValueError for embeddings of another model, other settings (crops, flip, detector) or another
    size than the gallery's.
    """
    mine, theirs = meta.get("model"), embeddings.meta.get("model")
    if mine != theirs:
        said = (
            "do not say which model made them" if theirs is None else f"are of model {theirs[:16]}"
        )
        raise ValueError(
            f"these embeddings {said}, but the gallery is of "
            f"{'no known model' if mine is None else f'model {mine[:16]}'}; use one model for both"
        )
    made = [
        {key: value for key, value in one.items() if key not in ("modality", "similarity")}
        for one in (meta, embeddings.meta)
    ]
    wrong = contradictions(*made)
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
    """ValueError unless there is one usable name for each row."""
    if len(subjects) != rows:
        raise ValueError(f"{len(subjects)} subjects for {rows} embeddings; one each is needed")
    bad = [
        one
        for one in dict.fromkeys(subjects)
        if not 0 < len(one) <= MAX_SUBJECT or not one.isprintable() or one != one.strip()
    ]
    if bad:
        raise ValueError(
            f"{len(bad)} subjects have unusable names ({name_first(one[:40] for one in bad)}); 1 "
            f"to {MAX_SUBJECT} printable characters, no blanks at the ends"
        )


def refuse_unknown(wanted: Mapping[str, Any] | Sequence[str], known: Mapping[str, int]) -> None:
    """KeyError for subjects that are not enrolled."""
    absent = [one for one in wanted if one not in known]
    if absent:
        raise KeyError(
            f"{len(absent)} of {len(wanted)} subjects are not enrolled ({name_first(absent)}); "
            "check the names"
        )
