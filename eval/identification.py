"""Identification (1:N): closed-set rank-k and CMC, open-set TPIR@FPIR, and the field's other rules
by name.

A gallery enrols subjects, each by one or several templates; a probe's score for a subject is the
best over that subject's templates. A probe is mated if its subject is enrolled. The order of rows
never matters: rank-k and CMC are expected values over the orders of tied subjects (as in
eval.retrieval), so constant scores give chance; TPIR, the rate of a system that acts on its first
candidate, counts a tie for first place as a miss.

Identification needs only a probe's mate, its best rival and how many stand before the mate: that is
what a search keeps, block by block, never the scores of all probes against all subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.similarity import matrix
from eval.types import Floats, check_choice
from eval.verification import Measured, num_allowed

Protocol = Literal["open", "closed", "ijb_evals"]
Counts = NDArray[np.int64]

RULES: dict[Protocol, str] = {
    "open": "open set: alone at rank 1 and score > the (floor(fpir N) + 1)-th largest top score of "
    "the N non-mated probes",
    "closed": "closed set (SimPLE, OpenSphere, insightface ijb_1n): score > the ceil(fpir Q)-th "
    "largest of all non-mated scores, Q probes, any rank",
    "ijb_evals": "open set as insightface ijb_evals: alone at rank 1 and score > the "
    "max(floor(fpir N), 1)-th largest top score of the N non-mated probes",
}

_CELLS = 1 << 23  # scores held at once: 32 MB in float32


@dataclass(frozen=True, eq=False)
class Searched:
    """What identification keeps of Q probes searched in a gallery of S subjects.

    Made by `search` or `search_embeddings`.

    mate: (Q,) score of the probe's own subject, -inf without a mate. rival: (Q,) best score of any
    other subject, -inf if there is none.
    above, tied: (Q,) how many other subjects score above the mate, and just as high (0 without a
    mate).
    highest, highest_probe: (K,) the largest non-mated scores of all, descending, and their probes;
    K as asked for or all there are.
    """

    mate: Floats
    rival: Floats
    above: Counts
    tied: Counts
    highest: Floats
    highest_probe: Counts
    num_subjects: int

    @cached_property
    def mated(self) -> NDArray[np.bool_]:
        """(Q,) whether the probe's subject is in the gallery."""
        return self.mate > -np.inf

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """(Q,) whether the probe's subject stands alone at rank 1."""
        return self.mated & (self.mate > self.rival)

    @cached_property
    def tops(self) -> Floats:
        """(Q,) top scores of all probes, ascending."""
        return np.sort(np.maximum(self.mate, self.rival))

    @cached_property
    def mates(self) -> Floats:
        """(Q,) mates' scores of all probes, ascending."""
        return np.sort(self.mate)

    @cached_property
    def non_mated_first(self) -> Counts:
        """The probes without a mate, by descending top score."""
        probes = np.flatnonzero(~self.mated)
        return probes[np.argsort(-self.rival[probes], kind="stable")]


def rank_k(
    scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike, k: int
) -> float:
    """Closed-set identification rate: the share of probes whose subject is among the k best.

    scores: (Q, G), higher = more similar. gallery_subjects: (G,), probe_subjects: (Q,), integers or
    strings. Ties: the expected value over tie orders.
    ValueError: no probes, a probe without a mate (counted), k below 1 or above the number of
    gallery subjects, NaN or infinite scores, float labels.

    >>> rank_k([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]], ["ann", "bob", "cy"], ["ann", "bob"], 1)
    0.75
    """
    return rank_rate(search(scores, gallery_subjects, probe_subjects), k)


def cmc(
    scores: ArrayLike,
    gallery_subjects: ArrayLike,
    probe_subjects: ArrayLike,
    max_rank: int | None = None,
) -> Floats:
    """Cumulative match characteristic: rank_k for k = 1 .. max_rank (default: all gallery
    subjects). Arguments and errors as for `rank_k`.

    >>> cmc([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]], [0, 1, 2], [0, 2])
    array([0.5, 0.5, 1. ])
    """
    searched = search(scores, gallery_subjects, probe_subjects)
    return np.array(
        [
            rank_rate(searched, k)
            for k in range(1, (searched.num_subjects if max_rank is None else max_rank) + 1)
        ]
    )


def tpir_at_fpir(
    scores: ArrayLike,
    gallery_subjects: ArrayLike,
    probe_subjects: ArrayLike,
    fpir: float,
    *,
    protocol: Protocol = "open",
) -> float:
    """True positive identification rate at a false positive identification rate of `fpir`.

    protocol: open (NIST: a mated probe counts if its subject alone comes first and scores above a
    threshold that at most floor(fpir N) of the N non-mated probes exceed with their top score),
    closed (as SimPLE, OpenSphere, AdaFace and insightface's ijb_1n.py: every probe mated; the
    threshold is the ceil(fpir Q)-th largest of all non-mated scores; no rank condition), ijb_evals
    (insightface's ijb_evals.py: open, but the threshold is the floor(fpir N)-th largest top score).
    `RULES` spells them out. scores: (Q, G); labels and errors as for `rank_k`; open needs mated and
    non-mated probes.
    Source: ISO/IEC 19795-1, NIST IR 8271; the variants: the tools' code.

    >>> scores = [[0.9, 0.1], [0.2, 0.4], [0.3, 0.5]]
    >>> enrolled, probes = ["ann", "bob"], ["ann", "bob", "eve"]
    >>> [tpir_at_fpir(scores, enrolled, probes, fpir) for fpir in (0.0, 1.0)]
    [0.5, 1.0]
    """
    keep = _num_required(fpir, len(np.asarray(probe_subjects))) if protocol == "closed" else 0
    return tpir(
        search(scores, gallery_subjects, probe_subjects, keep=keep), fpir, protocol=protocol
    ).value


def tpir_galleries_apart(
    scores: Sequence[ArrayLike],
    gallery_subjects: Sequence[ArrayLike],
    probe_subjects: ArrayLike,
    fpir: float,
    *,
    protocol: Protocol = "open",
) -> float:
    """Mean over galleries of the open-set TPIR, as IJB's G1 and G2 are evaluated: a probe mated in
    one gallery is non-mated for the other.

    scores: one (Q, G) array per gallery, gallery_subjects: one (G,) each; the same probes
    throughout. Errors as for `tpir_at_fpir`.
    """
    if len(scores) != len(gallery_subjects) or not len(scores):
        raise ValueError(
            f"tpir: {len(scores)} score arrays for {len(gallery_subjects)} galleries; pass one of "
            "each per gallery, and at least one"
        )
    return float(
        np.mean(
            [
                tpir_at_fpir(values, known, probe_subjects, fpir, protocol=protocol)
                for values, known in zip(scores, gallery_subjects, strict=True)
            ]
        )
    )


def search(
    scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike, *, keep: int = 0
) -> Searched:
    """What identification needs of given scores (Q, G). keep: how many of the largest non-mated
    scores (the closed protocol needs ceil(fpir Q)).

    ValueError: scores that are not (Q, G), no probe or no template, NaN or infinity (counted, the
    first named), labels that are no integers or strings.
    """
    values = np.asarray(scores)
    enrolled, probes, mate = _labels(gallery_subjects, probe_subjects)
    if values.shape != (probes, enrolled.size) or values.dtype.kind not in "fiub":
        raise ValueError(
            f"identification: scores are {values.dtype} of shape {values.shape}, but {probes} "
            f"probes and {enrolled.size} templates need a number each"
        )
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    order, starts = _grouped(enrolled)

    def block(rows: slice) -> NDArray[Any]:
        some = values[rows]
        if not np.isfinite(some).all():
            bad = np.argwhere(~np.isfinite(values))
            raise ValueError(
                f"identification: {len(bad)} scores are NaN or infinite (first: probe "
                f"{bad[0][0] + 1}, template {bad[0][1] + 1}); score them again"
            )
        return (
            np.array(some) if order is None else np.maximum.reduceat(some[:, order], starts, axis=1)
        )

    column = np.argsort(enrolled) if order is None else np.arange(starts.size)
    return _search(
        block,
        np.arange(probes),
        np.where(mate >= 0, column[mate], -1),
        starts.size,
        enrolled.size,
        keep,
    )


def search_embeddings(
    probes: ArrayLike,
    gallery: ArrayLike,
    gallery_subjects: ArrayLike,
    probe_subjects: ArrayLike,
    *,
    similarity: str = "cosine",
    keep: int = 0,
) -> Searched:
    """`search` straight from embeddings, in blocks: about 150 MB beside the inputs, whatever their
    number.

    probes: (Q, D) raw rows. gallery: (G, D). similarity: a name of eval.similarity. Equal rows give
    equal scores to the last bit, so ties stay ties.
    ValueError: as for `search`, rows with NaN or infinity, D that differs, unknown similarity.
    """
    enrolled, num_probes, mate = _labels(gallery_subjects, probe_subjects)
    (x, of_probe), (y, of_template) = (
        _distinct("probe", probes, num_probes),
        _distinct("gallery", gallery, enrolled.size),
    )
    order, starts = _grouped(enrolled)
    # by subject, or as the templates were given
    columns = of_template if order is None else of_template[order]
    # equal probes side by side, and blocks that no row order changes
    all_distinct, sequence = len(x) == num_probes, np.argsort(of_probe, kind="stable")

    def block(rows: slice) -> NDArray[Any]:
        rows_of_block = of_probe[sequence[rows]]
        values = matrix(x[rows_of_block[0] : rows_of_block[-1] + 1], y, similarity)
        if not all_distinct:
            values = values[rows_of_block - rows_of_block[0]]
        if order is None and len(y) == enrolled.size:
            return values
        values = values[:, columns]
        return values if order is None else np.maximum.reduceat(values, starts, axis=1)

    if order is None:
        template = np.argsort(enrolled)  # of each subject
        column = of_template[template] if len(y) == enrolled.size else template
    else:
        column = np.arange(starts.size)
    return _search(
        block, sequence, np.where(mate >= 0, column[mate], -1), starts.size, enrolled.size, keep
    )


def rank_hits(searched: Searched, k: int) -> Floats:
    """(Q,) the chance that each probe's subject is among the k best; 0 without a mate.

    ValueError unless 1 <= k <= S.
    """
    if not 1 <= k <= searched.num_subjects:
        raise ValueError(
            f"rank_k: k = {k}, but the gallery has {searched.num_subjects} subjects; k must lie "
            "between 1 and that"
        )
    hits: Floats = np.where(
        searched.mated, np.clip((k - searched.above) / (searched.tied + 1), 0, 1), 0.0
    )
    return hits


def rank_rate(searched: Searched, k: int) -> float:
    """rank_k of a search."""
    hits = rank_hits(searched, k)
    _need_mates(searched, "rank-k is a closed-set rate: leave such probes out, or use tpir_at_fpir")
    return float(hits.mean())


def tpir(
    searched: Searched,
    fpir: float,
    *,
    protocol: Protocol = "open",
    weights: ArrayLike | None = None,
) -> Measured:
    """TPIR of a search and its threshold, see `tpir_at_fpir`.

    Args:
        searched: What `search` found.
        fpir: False-positive identification rate.
        protocol: A name of `RULES`.
        weights: (Q,) how often each probe counts (a bootstrap draw). The closed rule then stays on
            the `highest` scores kept; should a draw lack them, the lowest of these is the
            threshold, on the strict side.

    Returns:
        The rate, and the threshold: the score of a probe counts if it is at least this. Infinity
        means that no score counts.

    Raises:
        ValueError: The search kept fewer scores than are needed, or none for the weights.
    """
    check_choice("protocol", protocol, get_args(Protocol))
    counts = np.ones(searched.mate.size, dtype=np.int64) if weights is None else np.asarray(weights)
    mated = searched.mated
    if protocol == "closed":
        limit = _closed_limit(searched, fpir, counts, exact=weights is None)
        hits = searched.mate > limit
        tops = searched.mates  # the score of the mate counts, which need not come first
    else:
        limit = _open_limit(searched, fpir, counts, protocol)
        hits = (searched.mate > limit) & searched.first
        tops = searched.tops
    place = int(np.searchsorted(tops, limit, side="right"))
    return Measured(
        float(np.sum(counts * hits) / np.sum(counts * mated)),
        float(tops[place]) if place < tops.size else float("inf"),
    )


def _closed_limit(searched: Searched, fpir: float, counts: Counts, *, exact: bool) -> float:
    """The score that a hit must exceed in the closed protocol. exact: all probes count once."""
    _need_mates(
        searched,
        "the closed protocol needs one for each: leave such probes out, or use protocol='open'",
    )
    required = _num_required(fpir, int(counts.sum()))
    num_non_mated = searched.mated.size * (searched.num_subjects - 1)
    if searched.highest.size < min(required if exact else 1, num_non_mated):
        raise ValueError(
            f"tpir: the search kept {searched.highest.size} non-mated scores, but fpir = {fpir} "
            f"needs {required}; search with keep={required}"
        )
    of_highest = counts[searched.highest_probe]
    return _nth(searched.highest, of_highest, required - 1, num_non_mated)


def _open_limit(searched: Searched, fpir: float, counts: Counts, protocol: Protocol) -> float:
    """The score that a hit must exceed in an open protocol."""
    mated = searched.mated
    num_non_mated = int(counts.sum() - np.sum(counts * mated))
    if not mated.any() or not num_non_mated:
        raise ValueError(
            f"tpir: {np.count_nonzero(mated)} mated and {np.count_nonzero(~mated)} non-mated "
            "probes, but an open set needs both; "
            "add probes of subjects that are not enrolled (for galleries apart, those of the "
            "other gallery) or use protocol='closed'"
        )
    allowed = _num_allowed(fpir, num_non_mated)
    order = searched.non_mated_first
    n = allowed if protocol == "open" else max(allowed - 1, 0)
    return _nth(searched.rival[order], counts[order], n, order.size)


def _nth(descending: Floats, weights: Counts, n: int, num_all: int) -> float:
    """The score at place n (from 0) where each counts `weights` times; beyond the end -inf, or the
    last one if there were more than are listed.
    """
    place = int(np.searchsorted(np.cumsum(weights), n, side="right"))
    if place < descending.size:
        return float(descending[place])
    return -np.inf if descending.size == num_all or not descending.size else float(descending[-1])


def check_fpir(fpir: float) -> None:
    """Refuses a false positive identification rate outside 0 to 1."""
    if not 0 <= fpir <= 1:
        raise ValueError(
            f"fpir = {fpir}: a false positive identification rate lies between 0 and 1"
        )


def _num_allowed(fpir: float, number: int) -> int:
    check_fpir(fpir)
    return num_allowed(fpir, number)


def _num_required(fpir: float, number: int) -> int:
    """ceil(fpir number), at least 1; a product within rounding of a whole number counts as it."""
    floor = _num_allowed(fpir, number)
    return max(1, floor + (fpir * number - floor > 1e-9 * max(floor, 1)))


def _need_mates(searched: Searched, remedy: str) -> None:
    lone = np.flatnonzero(~searched.mated)
    if lone.size:
        raise ValueError(
            f"identification: {lone.size} of {searched.mate.size} probes have no mate in the "
            f"gallery (first: probe {int(lone[0]) + 1}); {remedy}"
        )


def _labels(gallery_subjects: ArrayLike, probe_subjects: ArrayLike) -> tuple[Counts, int, Counts]:
    """Gallery subjects as numbers 0..S-1 (G,), the number of probes, and each probe's subject among
    them, -1 without a mate (Q,).
    """
    gallery, probes = np.asarray(gallery_subjects), np.asarray(probe_subjects)
    for name, labels in (("gallery_subjects", gallery), ("probe_subjects", probes)):
        if labels.ndim != 1 or not labels.size:
            raise ValueError(
                f"{name}: shape {labels.shape}, but one label for each of at least one row is "
                "needed"
            )
        if labels.dtype.kind not in "iuUS":
            raise ValueError(
                f"{name}: labels are {labels.dtype}, but must be integers or strings (floats "
                "cannot tell integers above 2^24 or 2^53 apart)"
            )
    if gallery.dtype.kind != probes.dtype.kind and {gallery.dtype.kind, probes.dtype.kind} != {
        "i",
        "u",
    }:
        raise ValueError(
            f"subjects: the gallery's labels are {gallery.dtype}, the probes' {probes.dtype}; one "
            "kind is needed to compare them"
        )
    if gallery.dtype != probes.dtype and gallery.dtype.kind in "iu":
        # int64 and uint64 meet in float64, which is not exact
        gallery, probes = (labels.astype(object) for labels in (gallery, probes))
    names, enrolled = np.unique(gallery, return_inverse=True)
    place = np.minimum(np.searchsorted(names, probes), names.size - 1)
    return (
        enrolled.astype(np.int64),
        probes.size,
        np.where(names[place] == probes, place, -1).astype(np.int64),
    )


def _grouped(enrolled: Counts) -> tuple[Counts | None, Counts]:
    """Templates ordered by subject, None if each subject has one; and where each subject begins in
    that order (S,).
    """
    each = np.bincount(enrolled)
    return (None if (each == 1).all() else np.argsort(enrolled, kind="stable")), np.cumsum(
        each
    ) - each


def _distinct(name: str, rows: ArrayLike, count: int) -> tuple[NDArray[np.float32], Counts]:
    """The distinct rows, in an order of their own, and the one of each row given."""
    values = np.ascontiguousarray(rows, dtype=np.float32)
    if values.ndim != 2 or len(values) != count or values.shape[1] < 1:
        raise ValueError(
            f"identification: the {name} embeddings have shape {values.shape}, but ({count}, D) "
            "are needed, one row per label"
        )
    bad = np.flatnonzero(~np.isfinite(values.sum(axis=1, dtype=np.float64)))
    if bad.size:
        raise ValueError(
            f"identification: {bad.size} of {count} {name} embeddings hold NaN or infinity "
            f"(first: row {int(bad[0]) + 1}); extract them again"
        )
    _, first, of_row = np.unique(
        values.view(np.dtype((np.void, values.dtype.itemsize * values.shape[1]))).ravel(),
        return_index=True,
        return_inverse=True,
    )
    return values[first], of_row.astype(np.int64)


def _search(
    block: Callable[[slice], NDArray[Any]],
    sequence: Counts,
    mate_column: Counts,
    num_subjects: int,
    num_templates: int,
    keep: int,
) -> Searched:
    """block(slice of `sequence`) gives fresh scores (rows, S) of these probes."""
    num_probes = sequence.size
    mate, rival = np.full(num_probes, -np.inf), np.empty(num_probes)
    above, tied = np.zeros(num_probes, np.int64), np.zeros(num_probes, np.int64)
    highest, highest_probe, floor = np.empty(0), np.empty(0, np.int64), -np.inf
    step = max(1, _CELLS // num_templates)
    for start in range(0, num_probes, step):
        scores, probes = block(slice(start, start + step)), sequence[start : start + step]
        own = np.flatnonzero(mate_column[probes] >= 0)
        columns = mate_column[probes[own]]
        mate[probes[own]] = scores[own, columns]
        scores[own, columns] = -np.inf
        best = scores.max(axis=1)
        rival[probes] = best
        behind = own[best[own] >= mate[probes[own]]]
        marks = mate[probes[behind], None].astype(scores.dtype)
        above[probes[behind]] = np.count_nonzero(scores[behind] > marks, axis=1)
        tied[probes[behind]] = np.count_nonzero(scores[behind] == marks, axis=1)
        if keep:
            # a first floor, or the whole first block would pass
            if start == 0 and scores.size > keep:
                floor = float(
                    np.nextafter(
                        np.partition(scores, scores.size - keep, axis=None)[scores.size - keep],
                        scores.dtype.type(-np.inf),
                    )
                )
            rows = np.flatnonzero(best > floor)
            at = np.nonzero(scores[rows] > floor)
            highest = np.concatenate([highest, scores[rows[at[0]], at[1]]])
            highest_probe = np.concatenate([highest_probe, probes[rows[at[0]]]])
            if highest.size > keep:
                kept = np.argpartition(-highest, keep - 1)[:keep]
                highest, highest_probe, floor = (
                    highest[kept],
                    highest_probe[kept],
                    float(highest[kept].min()),
                )
    order = np.argsort(-highest, kind="stable")
    return Searched(mate, rival, above, tied, highest[order], highest_probe[order], num_subjects)
