"""Retrieval metrics: R@K, P@1, R-precision, MAP@R, MAP@k, NMI, F1; self-retrieval or query and
gallery; presets that reproduce PML, OML and RDML.

A query's relevant items are those of its class, itself apart (removed by index, so exact copies of
it stay). Equal scores have no order: every metric is the expected value over all orders of the tied
items, in closed form, so that constant embeddings score chance.

What tools do instead is named in `compat`; ties are then by row, and `lone` is the tool's. "pml" is
pytorch-metric-learning 2.9: MAP@1000 divides by R even beyond 1000, and lone queries are left out.
"oml" is Open Metric Learning 4.0: MAPs divide by the hits found within k; lone queries count 0, but
precision@1 and r_precision are then NaN. OML leaves ties to torch.topk, which promises no order, so
its numbers on tied scores cannot be reproduced. "rdml" is Revisiting-DML: it drops what ranks first
instead of the query; "map@r" is its mAP_c, over R + 1 places and divided by R + 1; "map@1000" is
its mAP_1000, divided by R + 1, without what faiss's padding adds to it where there are up to 1,000
items; lone queries count.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.cores import keep_freed_memory
from likeness.eval.errors import LikenessError
from likeness.eval.metrics.ranks import (
    Counts,
    Ranks,
    check_rows,
    label_codes,
    prepare_rows,
    rank_blocks,
)
from likeness.eval.progress import step
from likeness.eval.types import Bools, Floats, check_choice, check_counts

Lone = Literal["exclude", "zero", "error"]
Compat = Literal["pml", "oml", "rdml"]

_MAP_DEPTH = 1000


def recall_at_k(ranks: Ranks, k: int) -> Floats:
    """(Q,) probability that a relevant item is among the first k; everything there is, where the
    gallery is smaller. 0 for lone queries.

    Of a tie of m items, c relevant, t within the first k, none is a hit with probability C(m-c, t)
    / C(m, t).
    """
    first = np.flatnonzero(ranks.before == 0)
    taken = np.clip(k - ranks.above[first], 0, ranks.size[first])
    size, hits = ranks.size[first], ranks.hits[first]
    missed = np.ones(first.size)
    # the product of the smaller of the two equal forms
    few, many = np.minimum(taken, hits), np.maximum(taken, hits)
    for i in range(int(few.max(initial=0))):
        factor = np.maximum(size - many - i, 0) / np.maximum(size - i, 1)
        missed *= np.where(i < few, factor, 1)
    return _sums(ranks.query[first], 1 - missed, ranks)


def r_precision(ranks: Ranks) -> Floats:
    """(Q,) share of relevant items among the first R, R the number of relevant items (Musgrave et
    al. 2020, Sec. 2.3). NaN for lone queries.
    """
    return _ratio(_hits_within(ranks, ranks.relevant), ranks.relevant)


def map_at_r(ranks: Ranks) -> Floats:
    """(Q,) MAP@R = (1/R) sum_{i<=R} precision(i) rel(i) (Musgrave et al. 2020, Eqs. 3-4).

    NaN for lone queries.
    """
    return _ratio(_precision_sum(ranks, ranks.relevant), ranks.relevant)


def map_at_k(ranks: Ranks, k: int) -> Floats:
    """(Q,) MAP@k = (1/min(R, k)) sum_{i<=k} precision(i) rel(i): a perfect ranking scores 1 at any
    k. NaN for lone queries.
    """
    places = np.full_like(ranks.relevant, k)
    return _ratio(_precision_sum(ranks, places), np.minimum(ranks.relevant, k))


def _ratio(value: Floats, by: Counts) -> Floats:
    ratio: Floats = np.divide(value, by, out=np.full(by.size, np.nan), where=by > 0)
    return ratio


def _sums(query: Counts, values: Floats, ranks: Ranks) -> Floats:
    num_queries = ranks.relevant.size
    # numpy.bincount gives integers where there is nothing to add
    return np.bincount(query, weights=values, minlength=num_queries).astype(np.float64)


def _hits_within(ranks: Ranks, depth: Counts) -> Floats:
    """(Q,) expected number of relevant items among the first depth[q]."""
    taken = np.clip(depth[ranks.query] - ranks.above, 0, ranks.size)
    return _sums(ranks.query, ranks.hits * (taken / ranks.size), ranks)


def _precision_sum(ranks: Ranks, depth: Counts) -> Floats:
    """(Q,) expected sum_{i<=depth[q]} precision(i) rel(i).

    Place a + t of a tie of m items, c relevant, with a items and h hits above: relevant with
    probability c/m, then (t-1)(c-1)/(m-1) hits are expected among the t - 1 before it. Summed over
    t = 1..T with s = (c-1)/(m-1) and H the harmonic numbers: c/m (s T + (h + 1 - s (a+1)) (H(a+T) -
    H(a))).
    """
    taken = np.clip(depth[ranks.query] - ranks.above, 0, ranks.size)
    a, h = ranks.above, ranks.before
    sums = np.where(taken > 0, (h + 1) / (a + 1), 0.0)
    tied = np.flatnonzero((ranks.size > 1) & (taken > 0))
    if tied.size:
        from scipy.special import digamma  # identification, which imports this, needs no scipy

        a, h, m, c, t = a[tied], h[tied], ranks.size[tied], ranks.hits[tied], taken[tied]
        slope = (c - 1) / (m - 1)
        gained = digamma(a + t + 1.0) - digamma(a + 1.0)
        sums[tied] = c / m * (slope * t + (h + 1 - slope * (a + 1)) * gained)
    return _sums(ranks.query, sums, ranks)


def _values(ranks: Ranks, ks: Sequence[int], compat: Compat | None) -> dict[str, Floats]:
    """Per-query values (Q,) under the tool's normalisations."""
    deep = np.full_like(ranks.relevant, _MAP_DEPTH)
    values = {f"recall@{k}": recall_at_k(ranks, k) for k in ks} | {
        "precision@1": recall_at_k(ranks, 1),
        "r_precision": r_precision(ranks),
    }
    if compat is None or compat == "pml":
        at_depth = map_at_k(ranks, _MAP_DEPTH)
        if compat == "pml":
            at_depth = _ratio(_precision_sum(ranks, deep), ranks.relevant)
        values |= {"map@r": map_at_r(ranks), "map@1000": at_depth}
        has_any = ranks.relevant > 0
        return {name: np.where(has_any, each, np.nan) for name, each in values.items()}
    if compat == "oml":  # divides by the hits found
        for name, depth in (("map@r", ranks.relevant), ("map@1000", deep)):
            values[name] = np.nan_to_num(
                _ratio(_precision_sum(ranks, depth), _hits_within(ranks, depth).astype(np.int64))
            )
        values["precision@1"] = np.where(ranks.relevant > 0, values["precision@1"], np.nan)
        return values
    size = ranks.relevant + 1  # rdml: of the class, the query included
    values |= {
        "map@r": _precision_sum(ranks, size) / size,
        "map@1000": _precision_sum(ranks, deep) / size,
    }
    return values | {"r_precision": np.nan_to_num(values["r_precision"])}


def query_metrics(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    similarity: str = "cosine",
    compat: Compat | None = None,
    itself: tuple[Counts, Counts] | None = None,
) -> dict[str, Floats]:
    """The metrics of `retrieval_metrics` for each query: name -> (Q,), and "relevant", the number R
    of relevant items.

    Lone queries (R = 0) are NaN; under compat "oml" and "rdml" they have that tool's value.
    Arguments and errors: those of `retrieval_metrics`; itself: as in
    `likeness.eval.metrics.ranks.rank_blocks`.
    """
    check_choice("compat", compat or "pml", get_args(Compat))
    check_counts("ks", ks)
    if compat == "rdml" and gallery is not None:
        raise LikenessError("compat='rdml' has no separate gallery; leave the gallery out")
    keep_freed_memory()
    codes, gallery_codes = label_codes(labels, gallery_labels)
    rows = check_rows("embeddings", embeddings, codes)
    gallery_rows = None if gallery is None else check_rows("gallery", gallery, gallery_codes)
    if gallery_rows is not None and gallery_rows.shape[1] != rows.shape[1]:
        dims = f"{rows.shape[1]} and {gallery_rows.shape[1]} dims"
        raise LikenessError(f"embeddings and gallery have {dims}; embed both by one model")
    depth = max([_MAP_DEPTH, *map(int, ks), int(np.bincount(gallery_codes).max())])
    blocks = rank_blocks(
        rows,
        codes,
        gallery_rows,
        gallery_codes,
        similarity=similarity,
        depth=depth,
        by_position=compat is not None,
        drop_first=compat == "rdml",
        itself=itself,
    )
    values = [
        _values(ranks, ks, compat) | {"relevant": ranks.relevant.astype(np.float64)}
        for _, ranks in blocks
    ]
    return {name: np.concatenate([of_block[name] for of_block in values]) for name in values[0]}


def retrieval_metrics(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    similarity: str = "cosine",
    lone: Lone = "exclude",
    compat: Compat | None = None,
) -> dict[str, float]:
    """Return the metrics of retrieval, as means over the queries.

    Scores are float32, and rows that are equal bit for bit tie exactly. With R the number of
    relevant items of a query, map@1000 = (1/min(R, 1000)) sum_{i<=1000} precision(i) rel(i).

    Args:
        embeddings: The queries (Q, D), raw.
        labels: Their classes (Q,), integers or strings of any size.
        gallery: What is searched (G, D). None searches among the embeddings, each without itself.
        gallery_labels: The classes of the gallery (G,).
        ks: The K of recall@K. Where K is beyond the gallery, all of it is taken.
        similarity: As in likeness.eval.metrics.similarity.
        lone: Queries without a relevant item are left out, count 0, or are refused.
        compat: Another tool's conventions under the same keys, see the module.

    Returns:
        "recall@K" for each of ks, "precision@1", "r_precision", "map@r" and "map@1000"; and the
        counts "num_queries", of the queries averaged, and "num_lone".

    Raises:
        LikenessError: Values, shapes or labels that do not fit; no query with a relevant item.

    >>> embeddings = [[1, 0], [1, 0.1], [0, 1], [0.1, 1]]
    >>> result = retrieval_metrics(embeddings, ["a", "a", "b", "a"], ks=(1,))
    >>> round(result["map@r"], 4), result["num_queries"], result["num_lone"]
    (0.75, 3, 1)
    """
    check_choice("lone", lone, get_args(Lone))
    if compat is not None and lone != "exclude":
        raise LikenessError(f"lone = {lone!r} with compat={compat!r}, which fixes it; leave it out")
    searched: dict[str, Any] = {"gallery": gallery, "gallery_labels": gallery_labels, "ks": ks}
    values = query_metrics(embeddings, labels, similarity=similarity, compat=compat, **searched)
    alone: Bools = values.pop("relevant") == 0
    excluded = lone != "zero" and compat in (None, "pml")
    if (lone == "error" and alone.any()) or (excluded and alone.all()):
        who = f"{np.count_nonzero(alone)} of {alone.size} queries have no relevant item"
        first = f"first: row {int(np.argmax(alone))}"
        raise LikenessError(f"{who} ({first}); remove them, or add items of their classes")
    used = ~alone if excluded else np.ones_like(alone)
    means = {
        name: float((np.nan_to_num(each) if lone == "zero" else each)[used].mean())
        for name, each in values.items()
    }
    return means | {"num_queries": int(used.sum()), "num_lone": int(np.count_nonzero(alone))}


@step("clustering")
def clusters(embeddings: ArrayLike, num_clusters: int, *, seed: int = 0) -> Counts:
    """(N,) cluster numbers by k-means on the embeddings scaled to length 1: 20 iterations at most,
    as PML and Revisiting-DML, one k-means++ start (a random one above 1,000 clusters, where
    k-means++ would cost more than the iterations). Rows are first brought into an order of their
    own, so the result depends on `seed` but not on the order of rows. LikenessError: as for
    `check_rows`.
    """
    from sklearn.cluster import KMeans

    unit = prepare_rows(check_rows("embeddings", embeddings), "cosine")
    as_bytes = unit.view(np.dtype((np.void, unit.itemsize * unit.shape[1]))).ravel()
    order = np.argsort(as_bytes, kind="stable")
    start = "k-means++" if num_clusters <= 1000 else "random"
    with warnings.catch_warnings():
        # fewer distinct rows than clusters, 20 iterations not enough: both are as documented
        warnings.simplefilter("ignore")
        k_means = KMeans(num_clusters, init=start, n_init=1, max_iter=20, random_state=seed)
        clustered = k_means.fit_predict(unit[order])
    numbers: Counts = clustered[np.argsort(order)].astype(np.int64)
    return numbers


def nmi(
    embeddings: ArrayLike, labels: ArrayLike, *, num_clusters: int | None = None, seed: int = 0
) -> float:
    """Normalised mutual information 2 I(labels; clusters) / (H(labels) + H(clusters)) of k-means
    `clusters`, by default as many as classes.

    0 where nothing is shared or there is a single class. It rises with the number of clusters and
    says little above 100 classes (Musgrave et al. 2020, Sec. 2.3): report it beside MAP@R.
    LikenessError: as for `clusters` and `label_codes`.
    """
    return nmi_of(*_clustered(embeddings, labels, num_clusters, seed))


def nmi_of(labels: Counts, clustered: Counts) -> float:
    """Normalised mutual information 2 I / (H(labels) + H(clustered)) of two assignments (N,) of
    integers; 0 where both are constant.

    >>> nmi_of(np.array([0, 0, 1, 1]), np.array([5, 5, 3, 3]))
    1.0
    """
    from sklearn.metrics import normalized_mutual_info_score

    if np.ptp(labels) == np.ptp(clustered) == 0:
        return 0.0
    return float(normalized_mutual_info_score(labels, clustered))


def f1(
    embeddings: ArrayLike, labels: ArrayLike, *, num_clusters: int | None = None, seed: int = 0
) -> float:
    """F1 over pairs of items (of one class? in one cluster?) of k-means `clusters`: 2 both / (of
    one class + in one cluster); 0 if there are no such pairs.

    As Revisiting-DML's f1, whose precision and recall are swapped (their harmonic mean is not).
    LikenessError: as for `nmi`.
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    codes, clustered = _clustered(embeddings, labels, num_clusters, seed)
    (_, in_cluster), (of_class, both) = pair_confusion_matrix(codes, clustered).tolist()
    return 2 * both / (2 * both + in_cluster + of_class) if both + in_cluster + of_class else 0.0


def _clustered(
    embeddings: ArrayLike, labels: ArrayLike, num_clusters: int | None, seed: int
) -> tuple[Counts, Counts]:
    """(N,) class and cluster of each item."""
    codes, _ = label_codes(labels)
    rows = check_rows("embeddings", embeddings, codes)
    if num_clusters is None:
        num_clusters = int(codes.max()) + 1
    return codes, clusters(rows, num_clusters, seed=seed)
