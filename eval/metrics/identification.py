"""Identification (1:N): closed-set rank-k and CMC, open-set TPIR@FPIR, and the field's other rules
by name.

A gallery enrols subjects, each by one or several templates; a probe's score for a subject is the
best over that subject's templates. A probe is mated if its subject is enrolled. The order of rows
never matters: rank-k and CMC are expected values over the orders of tied subjects (as in
likeness.eval.metrics.retrieval), so constant scores give chance; TPIR, the rate of a system that
acts on its first candidate, counts a tie for first place as a miss.

Identification needs only a probe's mate, its best rival and how many stand before the mate: that is
what a search keeps, block by block, never the scores of all probes against all subjects.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.cores import keep_freed_memory
from likeness.eval.errors import LikenessError
from likeness.eval.metrics.ranks import Counts, check_rows, duplicates, row_keys, same_kind
from likeness.eval.metrics.similarity import make_scorer, single
from likeness.eval.metrics.verification import Measured, check_rate, num_allowed
from likeness.eval.progress import report
from likeness.eval.types import Bools, Floats, Floats32, check_choice

Protocol = Literal["open", "closed", "ijb_evals"]

# A tile of the gallery and a block of probes are small enough for the cache of a processor.
TILE = 1 << 14  # templates
CELLS = 1 << 23  # scores held at once: 32 MB in float32
_OWN_ROWS = 4096  # templates of mates that are read together
_NO_PAIRS: tuple[Counts, Counts] = np.empty(0, np.int64), np.empty(0, np.int64)

RULES: dict[Protocol, str] = {
    "open": "open set: alone at rank 1 and score > the (floor(fpir N) + 1)-th largest top score of "
    "the N non-mated probes",
    "closed": "closed set (SimPLE, OpenSphere, insightface ijb_1n): score > the ceil(fpir Q)-th "
    "largest of all non-mated scores, Q probes, any rank",
    "ijb_evals": "open set as insightface ijb_evals: alone at rank 1 and score > the "
    "max(floor(fpir N), 1)-th largest top score of the N non-mated probes",
}


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
    LikenessError: no probes, a probe without a mate (counted), k below 1 or above the number of
    gallery subjects, NaN or infinite scores, float labels.

    >>> rank_k([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]], ["ann", "bob", "cy"], ["ann", "bob"], 1)
    0.75
    """
    return rank_rate(search(scores, gallery_subjects, probe_subjects), k)


def cmc(scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike) -> Floats:
    """Cumulative match characteristic: rank_k for k = 1 .. the number of gallery subjects.
    Arguments and errors as for `rank_k`.

    >>> cmc([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]], [0, 1, 2], [0, 2])
    array([0.5, 0.5, 1. ])
    """
    searched = search(scores, gallery_subjects, probe_subjects)
    return np.array([rank_rate(searched, k) for k in range(1, searched.num_subjects + 1)])


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
    check_rate("fpir", fpir)
    keep = _num_required(fpir, len(np.asarray(probe_subjects))) if protocol == "closed" else 0
    searched = search(scores, gallery_subjects, probe_subjects, keep=keep)
    return tpir(searched, fpir, protocol=protocol).value


def rank_hits(searched: Searched, k: int) -> Floats:
    """(Q,) the chance that each probe's subject is among the k best; 0 without a mate."""
    return np.where(searched.mated, np.clip((k - searched.above) / (searched.tied + 1), 0, 1), 0.0)


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
        LikenessError: The search kept no scores, or probes of a kind are missing.
    """
    check_choice("protocol", protocol, get_args(Protocol))
    counts = np.ones(searched.mate.size, dtype=np.int64) if weights is None else np.asarray(weights)
    mated = searched.mated
    if protocol == "closed":
        limit = _closed_limit(searched, fpir, counts)
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


def _closed_limit(searched: Searched, fpir: float, counts: Counts) -> float:
    """The score that a hit must exceed in the closed protocol."""
    _need_mates(
        searched,
        "the closed protocol needs one for each: leave such probes out, or use protocol='open'",
    )
    required = _num_required(fpir, int(counts.sum()))
    num_non_mated = searched.mated.size * (searched.num_subjects - 1)
    assert searched.highest.size or not num_non_mated, "search with keep"
    of_highest = counts[searched.highest_probe]
    return _nth(searched.highest, of_highest, required - 1, num_non_mated)


def _open_limit(searched: Searched, fpir: float, counts: Counts, protocol: Protocol) -> float:
    """The score that a hit must exceed in an open protocol."""
    mated = searched.mated
    num_non_mated = int(counts.sum() - np.sum(counts * mated))
    if not mated.any() or not num_non_mated:
        num = f"{np.count_nonzero(mated)} of {mated.size} probes have mates"
        raise LikenessError(f"tpir: {num}; give both kinds, or protocol='closed'")
    allowed = num_allowed(fpir, num_non_mated)
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


def _num_required(fpir: float, number: int) -> int:
    """ceil(fpir number), at least 1; a product within rounding of a whole number counts as it."""
    floor = num_allowed(fpir, number)
    return max(1, floor + (fpir * number - floor > 1e-9 * max(floor, 1)))


def _need_mates(searched: Searched, remedy: str) -> None:
    lone = np.flatnonzero(~searched.mated)
    if lone.size:
        who = f"{lone.size} of {searched.mate.size} probes (first: probe {int(lone[0]) + 1})"
        raise LikenessError(f"identification: {who} have no mate in the gallery; {remedy}")


def search(
    scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike, *, keep: int = 0
) -> Searched:
    """What identification needs of given scores (Q, G). keep: how many of the largest non-mated
    scores (the closed protocol needs ceil(fpir Q)).

    Raises:
        LikenessError: The scores are not (Q, G), there is no probe or no template, there is NaN or
            infinity, or labels are no integers or strings.
    """
    values = np.asarray(scores)
    enrolled, mate = _labels(gallery_subjects, probe_subjects)
    is_number = values.dtype.kind in "fiub"
    if values.shape != (mate.size, enrolled.size) or not is_number or not np.isfinite(values).all():
        shape = f"({mate.size}, {enrolled.size})"
        raise LikenessError(f"identification: scores {values.shape}; give {shape} finite numbers")
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    return _search(
        np.argsort(enrolled, kind="stable"),
        np.bincount(enrolled),
        mate,
        lambda templates: lambda rows: values[rows][:, templates],
        lambda some, templates: values[some, templates].astype(np.float64),
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
    itself: tuple[Counts, Counts] = _NO_PAIRS,
) -> Searched:
    """`search` straight from embeddings, in blocks: about 150 MB beside the inputs, whatever their
    number.

    probes: (Q, D) raw rows. gallery: (G, D). similarity: a name of
    likeness.eval.metrics.similarity. itself: (K,) probes and (K,) templates that are the same
    items, whose scores do not count. Equal rows give equal scores to the last bit, so ties stay
    ties. LikenessError: as for `search`, rows with NaN or infinity, D that differs, unknown
    similarity.
    """
    keep_freed_memory()
    enrolled, mate = _labels(gallery_subjects, probe_subjects)
    x = np.ascontiguousarray(check_rows("probe embeddings", probes, mate))
    y = np.ascontiguousarray(check_rows("gallery embeddings", gallery, enrolled))
    twins = np.zeros(len(y), dtype=np.bool_)
    twins[np.concatenate(duplicates(y, similarity))] = True

    # The last digit of a product may depend on where a row stands, so rows stand in an order of
    # their own.
    order = np.lexsort((row_keys(y), enrolled))
    sequence = np.argsort(row_keys(x), kind="stable")

    def scores_of(templates: Counts) -> Callable[[slice], NDArray[Any]]:
        scores = scorer(y[templates], twins[templates], similarity)
        return lambda rows: scores(x[sequence[rows]])

    back, place = np.argsort(sequence), np.argsort(order)
    searched = _search(
        order,
        np.bincount(enrolled),
        mate[sequence],
        scores_of,
        lambda some, templates: single(x[sequence[some]], y[templates], similarity),
        keep,
        (back[itself[0]], place[itself[1]]),
    )
    each = {name: getattr(searched, name)[back] for name in ("mate", "rival", "above", "tied")}
    return replace(searched, highest_probe=sequence[searched.highest_probe], **each)


def borders(starts: Counts, total: int, tile: int) -> Counts:
    """Where tiles begin and end, as numbers of groups, so that no group is cut.

    Args:
        starts: (S,) the first row of each group, ascending from 0.
        total: How many rows there are.
        tile: How many rows a tile should have. A border that would cut a group moves to its end, so
            that a tile may have fewer rows, or the rows of a group more.

    Returns:
        (T + 1,) from 0 to S.

    Example:
        >>> borders(np.array([0, 2, 3, 7]), 8, 4).tolist()
        [0, 3, 4]
    """
    num_tiles = -(-total // tile)
    ideal = np.arange(1, num_tiles) * total // num_tiles
    inner = np.searchsorted(starts, ideal)
    return np.unique(np.concatenate([[0], inner, [starts.size]])).astype(np.int64)


def scorer(rows: Floats32, is_repeated: Bools, similarity: str) -> Callable[[Floats32], Floats32]:
    """Scores of probes against the rows of a tile, (P, D) -> (P, T).

    Rows that stand elsewhere in the gallery too get their scores one by one, so that they tie
    exactly: the last digit of a matrix product may depend on where a row stands in it.
    """
    product, twins = make_scorer(rows, similarity), np.flatnonzero(is_repeated)

    def scores(probes: Floats32) -> Floats32:
        # A product with a single row rounds in another way than one with several.
        several = np.repeat(probes, 2, axis=0) if len(probes) == 1 else probes
        values = product(several)[: len(probes)]
        if twins.size:
            values[:, twins] = single(probes[:, None], rows[None, twins], similarity)
        return values

    return scores


def _labels(gallery_subjects: ArrayLike, probe_subjects: ArrayLike) -> tuple[Counts, Counts]:
    """Gallery subjects as numbers 0..S-1 (G,), and each probe's subject among them (Q,), -1 without
    a mate.
    """
    probes, gallery = same_kind(probe_subjects, gallery_subjects)
    subjects, enrolled = np.unique(gallery, return_inverse=True)
    place = np.minimum(np.searchsorted(subjects, probes), subjects.size - 1)
    return enrolled.astype(np.int64), np.where(subjects[place] == probes, place, -1)


def _search(
    order: Counts,
    each: Counts,
    mate: Counts,
    scores_of: Callable[[Counts], Callable[[slice], NDArray[Any]]],
    pairs_of: Callable[[Counts, Counts], NDArray[Any]],
    keep: int,
    itself: tuple[Counts, Counts] = _NO_PAIRS,
) -> Searched:
    """Searches all probes in a gallery, of which no more than a tile is needed at a time.

    The scores of mates come first, so that how many subjects stand above them can be counted tile
    by tile.

    Args:
        order: (G,) the templates by subject.
        each: (S,) how many templates each subject has.
        mate: (Q,) the subject of each probe, -1 without a mate.
        scores_of: Templates (T,) -> a slice of the probes -> their scores (rows, T), which are
            overwritten.
        pairs_of: Probes (K,) and templates (K,) -> the scores (K,) of these pairs.
        keep: How many of the largest non-mated scores are kept.
        itself: (K,) probes and (K,) places in `order` that are the same items.
    """
    starts = np.cumsum(each) - each
    by_probe = np.argsort(itself[0], kind="stable")
    probes, places = itself[0][by_probe], itself[1][by_probe]
    own_score = _own_scores(mate, order, each, pairs_of, probes * order.size + places)
    rival = np.full(mate.size, -np.inf)
    above, tied = np.zeros(mate.size, np.int64), np.zeros(mate.size, np.int64)
    highest: _Highest = np.empty(0), np.empty(0, np.int64), -np.inf
    cuts = borders(starts, order.size, TILE).tolist()
    step = max(1, CELLS // min(TILE, order.size))
    for begin, end in pairwise(cuts):
        first = starts[begin]
        templates = order[first : starts[end] if end < starts.size else order.size]
        score = scores_of(templates)
        for start in range(0, mate.size, step):
            rows = slice(start, min(start + step, mate.size))
            scores = score(rows)
            own = slice(*np.searchsorted(probes, (start, rows.stop)).tolist())
            at = places[own] - first
            here = (at >= 0) & (at < templates.size)
            scores[probes[own][here] - start, at[here]] = -np.inf
            if templates.size > end - begin:
                scores = np.maximum.reduceat(scores, starts[begin:end] - first, axis=1)
            mates = np.flatnonzero((mate[rows] >= begin) & (mate[rows] < end))
            scores[mates, mate[rows][mates] - begin] = -np.inf
            best = scores.max(axis=1)
            np.maximum(rival[rows], best, out=rival[rows])
            behind = np.flatnonzero((mate[rows] >= 0) & (best >= own_score[rows]))
            if behind.size:
                marks = own_score[rows][behind, None].astype(scores.dtype)
                above[rows][behind] += np.count_nonzero(scores[behind] > marks, axis=1)
                tied[rows][behind] += np.count_nonzero(scores[behind] == marks, axis=1)
            if keep and (best > highest[2]).any():
                highest = _with_higher(highest, scores, start, keep)
            done = first * mate.size + rows.stop * templates.size
            report("searching", done, order.size * mate.size)
    falling = np.argsort(-highest[0], kind="stable")
    of_highest = highest[0][falling], highest[1][falling]
    return Searched(own_score, rival, above, tied, *of_highest, starts.size)


_Highest = tuple[Floats, Counts, float]
"""The largest scores, their probes, and what a score must exceed to be one of them."""


def _with_higher(highest: _Highest, scores: NDArray[Any], start: int, keep: int) -> _Highest:
    """The `keep` largest scores, also of some more (rows, S) of the probes from `start` on."""
    values, probes, floor = highest
    if not values.size and scores.size > keep:  # a first floor, or the whole block would pass
        lowest = np.partition(scores, scores.size - keep, axis=None)[scores.size - keep]
        floor = float(np.nextafter(lowest, scores.dtype.type(-np.inf)))
    at = np.nonzero(scores > floor)
    values, probes = np.concatenate([values, scores[at]]), np.concatenate([probes, start + at[0]])
    if values.size > keep:
        kept = np.argpartition(-values, keep - 1)[:keep]
        values, probes = values[kept], probes[kept]
        floor = float(values.min())
    return values, probes, floor


def _own_scores(
    mate: Counts,
    order: Counts,
    each: Counts,
    pairs_of: Callable[[Counts, Counts], NDArray[Any]],
    itself: Counts,
) -> Floats:
    """(Q,) the best score of each probe with the templates of its own subject; -inf without one.

    itself: (K,) the pairs of the same item, as numbers probe * G + place in `order`.
    """
    own = np.full(mate.size, -np.inf)
    starts = np.cumsum(each) - each
    has = np.flatnonzero(mate >= 0)
    ends = np.cumsum(each[mate[has]])
    for part in np.split(has, np.flatnonzero(np.diff(ends // _OWN_ROWS)) + 1):
        if not part.size:
            continue
        counts = each[mate[part]]
        first = np.cumsum(counts) - counts
        inside = np.arange(int(counts.sum())) - np.repeat(first, counts)
        places = np.repeat(starts[mate[part]], counts) + inside
        probes = np.repeat(part, counts)
        values = pairs_of(probes, order[places])
        if itself.size:
            values[np.isin(probes * order.size + places, itself)] = -np.inf
        own[part] = np.maximum.reduceat(values, first)
    return own
