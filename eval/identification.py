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

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from eval.errors import LikenessError
from eval.searching import Counts as Counts
from eval.searching import Searched as Searched
from eval.searching import search as search
from eval.searching import search_embeddings as search_embeddings
from eval.types import Floats, check_choice
from eval.verification import Measured, num_allowed

Protocol = Literal["open", "closed", "ijb_evals"]

RULES: dict[Protocol, str] = {
    "open": "open set: alone at rank 1 and score > the (floor(fpir N) + 1)-th largest top score of "
    "the N non-mated probes",
    "closed": "closed set (SimPLE, OpenSphere, insightface ijb_1n): score > the ceil(fpir Q)-th "
    "largest of all non-mated scores, Q probes, any rank",
    "ijb_evals": "open set as insightface ijb_evals: alone at rank 1 and score > the "
    "max(floor(fpir N), 1)-th largest top score of the N non-mated probes",
}


def rank_k(
    scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike, k: int
) -> float:
    """Closed-set identification rate: the share of probes whose subject is among the k best.

    scores: (Q, G), higher = more similar. gallery_subjects: (G,), probe_subjects: (Q,), integers or
    strings. Ties: the expected value over tie orders.
    LikenessError: no probes, a probe without a mate (counted), k below 1 or above the number of
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


def rank_hits(searched: Searched, k: int) -> Floats:
    """(Q,) the chance that each probe's subject is among the k best; 0 without a mate."""
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
        LikenessError: The search kept fewer scores than are needed, or none for the weights.
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
    assert searched.highest.size >= min(required if exact else 1, num_non_mated), "search with keep"
    of_highest = counts[searched.highest_probe]
    return _nth(searched.highest, of_highest, required - 1, num_non_mated)


def _open_limit(searched: Searched, fpir: float, counts: Counts, protocol: Protocol) -> float:
    """The score that a hit must exceed in an open protocol."""
    mated = searched.mated
    num_non_mated = int(counts.sum() - np.sum(counts * mated))
    if not mated.any() or not num_non_mated:
        raise LikenessError(
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
        raise LikenessError(
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
        raise LikenessError(
            f"identification: {lone.size} of {searched.mate.size} probes have no mate in the "
            f"gallery (first: probe {int(lone[0]) + 1}); {remedy}"
        )
