"""Retrieval: every query searches all other items, or a gallery; recall@K, R-precision and MAP@R
with intervals over classes, as results and as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import labels_of
from likeness.eval.intervals import bootstrap, uncertainty
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.retrieval import query_metrics
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.results import Result, table, with_bounds
from likeness.eval.types import Bools, Floats, check_choice, check_counts, freeze_numbers

Quality = Literal["norm"] | Mapping[str, float]
Conventions = dict[str, str | float | int]
Row = tuple[
    str, float, Conventions, bootstrap.Bounds | None
]  # metric, value, conventions, interval
_RULES: dict[str, Conventions] = {
    "map@r": {"rule": "(1/R) sum over the first R places of precision(i) rel(i)"},
    "map@1000": {"rule": "the same over 1,000 places, divided by min(R, 1000)"},
}


@dataclass(frozen=True)
class RetrievalSettings:
    """How queries search and what is measured.

    Attributes:
        similarity: As in `likeness.eval.scoring.settings.Scoring`.
        ks: A K of recall@K; there may be several.
        level: The share of the resamples that an interval spans.
        num_resamples: Draws of the bootstrap over the classes of the queries; 0 leaves the
            intervals out.
        seed: The seed of the draws.
        quality: "norm", or a number for the id of each query, higher for queries to be trusted
            more. The R-AUROC then measures how well it says which queries are answered wrongly, see
            `likeness.eval.intervals.uncertainty`. None leaves it out.

    Raises:
        LikenessError: A name is unknown, or a number is outside its range.

    >>> RetrievalSettings(quality="size")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown quality 'size'; choose one of norm
    """

    similarity: str | None = None
    ks: Annotated[Sequence[int], Option("--k")] = (1, 2, 4, 8)
    level: float = 0.95
    num_resamples: Annotated[int, Option("--resamples", least=0)] = 1000
    seed: int = 0
    quality: Annotated[Quality | None, Option(is_typed=False)] = None

    def __post_init__(self) -> None:
        freeze_numbers(self, "ks")
        check_counts("ks", self.ks)
        if self.similarity is not None:
            check_similarity(self.similarity)
        bootstrap.check_draws(self.level, self.num_resamples, self.seed)
        if self.quality is not None and not isinstance(self.quality, Mapping):
            check_choice("quality", self.quality, ("norm",))


class Answers(NamedTuple):
    """Answers with what a page shows of their quality.

    Attributes:
        quality: (N,) higher for answers to be trusted more.
        risk: (N,) 0 for right, 1 for wrong.
        name: What the quality is.
    """

    quality: Floats
    risk: Floats
    name: str


class Retrieved(NamedTuple):
    """What was measured of a retrieval.

    Attributes:
        results: In the order of the table.
        answers: The quality and the risk of each query; None where no quality was asked for.
    """

    results: list[Result]
    answers: Answers | None = None

    def __repr__(self) -> str:
        return self.table().rstrip("\n")

    def table(self) -> str:
        """A row per metric, then the counts and what the brackets are."""
        how = self.results[0].conventions
        note = f"Similarity {how['similarity']}; lone queries {how['lone']}."
        return table(self.results, [note])


@step("measuring")
def retrieve(
    queries: Embeddings,
    labels: Mapping[str, str] | None = None,
    settings: RetrievalSettings = RetrievalSettings(),
    *,
    gallery: Embeddings | None = None,
    gallery_labels: Mapping[str, str] | None = None,
    system: str = "queries",
    labels_from: str = "given mapping",
) -> Retrieved:
    """Retrieval metrics with bootstrap intervals over classes.

    Args:
        queries: Each searches all others, or the gallery.
        labels: Id -> class, else the first path component of the ids.
        settings: How queries search and what is measured.
        gallery: What is searched instead of the queries themselves.
        gallery_labels: Id -> class of the gallery, by default `labels`.
        system: Its name, as shown in tables.
        labels_from: A phrase on where `labels` come from.

    Raises:
        LikenessError: Ids have no class, the gallery is of another model, no query has a relevant
            item; and as in `likeness.eval.metrics.retrieval`.

    >>> items = Embeddings(("a/1", "a/2", "b/1", "b/2"), [[1, 0], [2, 1], [0, 1], [1, 3]])
    >>> retrieved = retrieve(items, settings=RetrievalSettings(ks=(1,), num_resamples=0))
    >>> {result.metric: result.value for result in retrieved.results}["recall@1"]
    1.0
    """
    classes = labels_of("queries", queries.ids, labels, "label")
    similarity = settings.similarity or queries.meta.get("similarity") or "cosine"
    of_gallery = _gallery_classes(queries, gallery, gallery_labels, labels)
    per_query, used = _of_queries(queries, classes, gallery, of_gallery, settings.ks, similarity)
    codes = np.unique(np.asarray(classes)[used], return_inverse=True)[1].astype(np.int64)
    among, num_classes = gallery is None, int(codes.max()) + 1
    counts: dict[str, int | None] = {"queries": codes.size, "lone": int(np.count_nonzero(~used))}
    counts |= {"gallery": len(gallery or queries), "classes": num_classes, "subjects": num_classes}
    common: Conventions = {"similarity": similarity, **_conventions(settings, among)}
    common["labels_from"] = "first path component of the ids" if labels is None else labels_from
    intervals = class_bounds(per_query, codes, settings) if settings.num_resamples else {}
    rows: list[Row] = [
        (name, float(of_queries.mean()), _RULES.get(name, {}), intervals.get(name))
        for name, of_queries in per_query.items()
    ]
    answers = None
    if (quality := _quality(queries, settings)) is not None:
        answers, rated = _rated(quality[used], per_query, codes, settings)
        rows += rated
    protocol = "retrieval among the items" if among else "retrieval from a gallery"
    results = [
        with_bounds(Result(system, name, value, None, None, counts, own | common, protocol), ends)
        for name, value, own, ends in rows
    ]
    return Retrieved(results, answers)


def _of_queries(
    queries: Embeddings,
    classes: Sequence[str],
    gallery: Embeddings | None,
    gallery_classes: Sequence[str] | None,
    ks: Sequence[int],
    similarity: str,
) -> tuple[dict[str, Floats], Bools]:
    """The metrics (Q,) of the queries with a relevant item, and (N,) which these are."""
    values = query_metrics(
        queries.matrix,
        classes,
        gallery=None if gallery is None else gallery.matrix,
        gallery_labels=gallery_classes,
        ks=ks,
        similarity=similarity,
    )
    used: Bools = values.pop("relevant") > 0
    if not used.any():
        raise LikenessError(
            f"none of {used.size} queries has a relevant item (first: {queries.ids[0]!r}); classes "
            "need two items, or a gallery that holds them"
        )
    return {name: np.nan_to_num(of_queries)[used] for name, of_queries in values.items()}, used


def _conventions(settings: RetrievalSettings, among: bool) -> Conventions:
    """What the record says of every metric. among: whether the queries search each other."""
    conventions: Conventions = {
        "self": "removed by index" if among else "separate gallery, nothing removed",
        "ties": "expected value over the orders of tied items",
        "lone": "excluded",
    }
    if settings.num_resamples:
        conventions["interval"] = "bootstrap over classes of queries, gallery as it is"
        conventions |= bootstrap.draws_of(settings)
    return conventions


def _quality(queries: Embeddings, settings: RetrievalSettings) -> Floats | None:
    """(N,) the quality of each query, None where none is asked for."""
    if isinstance(settings.quality, Mapping):
        return uncertainty.numbers_of([(id, settings.quality.get(id)) for id in queries.ids])
    return None if settings.quality is None else queries.norms.astype(np.float64)


def _rated(
    quality: Floats, per_query: Mapping[str, Floats], codes: Counts, settings: RetrievalSettings
) -> tuple[Answers, list[Row]]:
    """How well a quality (Q,) says which queries are answered wrongly: its R-AUROC.

    It is left out where all queries are right, or all are wrong.

    Raises:
        LikenessError: recall@1 was not measured.
    """
    recall = per_query.get("precision@1", per_query.get("recall@1"))
    if recall is None:
        raise LikenessError(
            "quality: recall@1 says which queries are right, and it is not measured; add 1 to ks"
        )
    is_norm = settings.quality == "norm"
    answers = Answers(quality, np.clip(1 - recall, 0, 1), "norm" if is_norm else "quality")
    auroc = uncertainty.drawn_auroc(answers.quality, answers.risk)
    value = auroc(np.ones(quality.size))
    if np.isnan(value):
        return answers, []
    ends = None
    if settings.num_resamples:
        drawn = bootstrap.drawn_groups(codes, "classes")
        (ends,) = bootstrap.bounds_over_groups(
            lambda times: [auroc(times)], [value], codes, drawn, settings
        )
    stated: Conventions = {
        "quality": "norm" if is_norm else "given",
        "risk": "1 - recall@1",
        "rule": uncertainty.AUROC_RULE,
    }
    return answers, [("r_auroc", value, stated, ends)]


def _gallery_classes(
    queries: Embeddings,
    gallery: Embeddings | None,
    gallery_labels: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
) -> list[str] | None:
    """The class of each item of the gallery, None where there is no gallery."""
    if gallery is None:
        return None
    models = [rows.meta.get("model", "") for rows in (queries, gallery)]
    if all(models) and models[0] != models[1]:
        raise LikenessError(
            f"the queries and the gallery were made by different models ({models[0][:12]} and "
            f"{models[1][:12]}); embed both with one model"
        )
    return labels_of("gallery", gallery.ids, gallery_labels or labels, "label")


def class_bounds(
    per_query: dict[str, Floats], codes: Counts, settings: RetrievalSettings
) -> dict[str, bootstrap.Bounds]:
    """Intervals of the means of per-query values (Q,), all on the same draws.

    The classes are drawn, see `likeness.eval.intervals.bootstrap.times_drawn`. The ranks stay those
    of the whole gallery.

    Args:
        per_query: Metric -> (Q,) values.
        codes: (Q,) class numbers 0 to C - 1, each in use.
        settings: The level, the number of draws and their seed.
    """
    sizes = np.bincount(codes)
    totals = np.stack([np.bincount(codes, weights=values) for values in per_query.values()], axis=1)
    made = bootstrap.bounds_over_groups(
        lambda times: times @ totals / (times @ sizes),
        [float(values.mean()) for values in per_query.values()],
        range(sizes.size),
        bootstrap.drawn_groups(codes, "classes"),
        settings,
    )
    return dict(zip(per_query, made, strict=True))
