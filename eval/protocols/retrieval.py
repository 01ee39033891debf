"""Retrieval: every query searches all other items, or a gallery; recall@K, R-precision and MAP@R
with intervals over classes, as results and as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings, Labelled, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.intervals import bootstrap, uncertainty
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.retrieval import query_metrics
from likeness.eval.metrics.self_matches import name_self_matches, self_matches
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.metrics.system import NumResamples
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.protocols.arguments import files_read, quality_by_id
from likeness.eval.protocols.searching import SearchEvaluation
from likeness.eval.results import Conventions, Result, add_bounds
from likeness.eval.types import Bools, Floats, Pairs, check_choice, check_counts, freeze_numbers

Quality = Literal["norm"] | Mapping[str, float]
Row = tuple[str, float, Conventions, bootstrap.Bounds | None]
"""A metric, its value, its conventions and its interval."""

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
    ks: Annotated[Sequence[int], Option("--k", least=1, most=1_000_000)] = (1, 2, 4, 8)
    level: float = 0.95
    num_resamples: NumResamples = 1000
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


def retrieve(
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    labels: Annotated[Names | None, Option(path="file")] = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: Annotated[File | Embeddings | None, Option(path="file")] = None,
    gallery_labels: Annotated[Names | None, Option(path="file")] = None,
    quality: Annotated[
        Literal["norm"] | File | Mapping[str, float] | None, Option(metavar="norm|FILE")
    ] = None,
    columns: ColumnNames = "",
) -> SearchEvaluation:
    """Search every item among all others: recall@K, R-precision and MAP@R.

    Args:
        embeddings: the embeddings of the queries, each of which searches all others, or the
            gallery.
        labels: lines `id label` (default: the first folder of the ids). They may be a mapping.
        settings: what is measured and by which rule.
        gallery: the embeddings to search in, instead of the queries themselves. A query that is in
            it, by its id, does not find itself.
        gallery_labels: the same of the gallery (default: those of the queries).
        quality: as in `likeness.eval.protocols.verification.evaluate`.
        columns: as in `likeness.eval.formats.embeddings.read_embeddings`.

    Returns:
        The results; print them to see the table. `.report(folder)` writes a page.

    Raises:
        LikenessError: a file does not exist. Ids have no class, the gallery is of another model, or
            no query has a relevant item.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.retrieve(embeddings).results[0].metric
        'recall@1'
    """
    if gallery is None and gallery_labels is not None:
        raise LikenessError("gallery labels without a gallery; give its embeddings too")
    files = files_read(embeddings, labels, gallery, gallery_labels, quality)
    rows, class_of = embeddings_of(embeddings, columns), names_of(labels)
    queries = Labelled(rows, labels_of("queries", rows.ids, class_of, "label"))
    searched = None
    if gallery is not None:
        apart = embeddings_of(gallery, columns)
        searched = _gallery(rows, apart, names_of(gallery_labels) or class_of)
    settings = settings or RetrievalSettings()
    if quality is not None:
        settings = replace(settings, quality=quality_by_id(quality))
    labels_from = "first path component of the ids"
    if labels is not None:
        labels_from = "given mapping" if isinstance(labels, Mapping) else Path(labels).name
    evaluation = _measured(
        queries,
        searched,
        settings,
        system="queries" if isinstance(embeddings, Embeddings) else Path(embeddings).stem,
        labels_from=labels_from,
    )
    return replace(evaluation, files=files)


@step("measuring")
def _measured(
    queries: Labelled,
    gallery: Labelled | None,
    settings: RetrievalSettings,
    *,
    system: str,
    labels_from: str,
) -> SearchEvaluation:
    """`retrieve` of embeddings whose classes are known.

    Args:
        queries: What is searched for.
        gallery: What is searched in; None where the queries search each other.
        settings: How queries search and what is measured.
        system: The name of the queries in tables.
        labels_from: A phrase on where the classes come from.
    """
    similarity = settings.similarity or queries.embeddings.meta.get("similarity") or "cosine"
    searched = gallery or queries
    itself = self_matches(queries, searched)
    num_themselves = 0 if gallery is None else np.unique(itself[0]).size
    among = gallery is None
    name_self_matches(queries.embeddings, searched.embeddings, itself, among=among)
    per_query, used = _of_queries(queries, searched, itself, settings.ks, similarity)
    codes = np.unique(np.asarray(queries.labels)[used], return_inverse=True)[1].astype(np.int64)
    num_classes, size = int(codes.max()) + 1, len(searched.embeddings)
    counts: dict[str, int | None] = {"queries": codes.size, "lone": int(np.count_nonzero(~used))}
    counts |= {"gallery": size, "classes": num_classes, "subjects": num_classes}
    common: Conventions = {"similarity": similarity, **_conventions(settings, gallery is None)}
    common["labels_from"] = labels_from
    if num_themselves:
        common["self_matches"] = num_themselves
    intervals = class_bounds(per_query, codes, settings) if settings.num_resamples else {}
    rows: list[Row] = [
        (name, float(of_queries.mean()), _RULES.get(name, {}), intervals.get(name))
        for name, of_queries in per_query.items()
    ]
    answers = None
    if (quality := _quality(queries.embeddings, settings)) is not None:
        answers, rated = _rated(quality[used], per_query, codes, settings)
        rows += rated
    protocol = "retrieval among the items" if gallery is None else "retrieval from a gallery"
    results = [
        add_bounds(Result(system, name, value, None, None, counts, own | common, protocol), ends)
        for name, value, own, ends in rows
    ]
    note = f"Similarity {similarity}; lone queries {common['lone']}."
    galleries = () if gallery is None else (gallery,)
    return SearchEvaluation(results, [note], queries, galleries, answers=answers)


def _of_queries(
    queries: Labelled, searched: Labelled, itself: Pairs, ks: Sequence[int], similarity: str
) -> tuple[dict[str, Floats], Bools]:
    """The metrics (Q,) of the queries with a relevant item, and (N,) which these are."""
    rows = queries.embeddings
    values = query_metrics(
        rows.matrix,
        queries.labels,
        gallery=None if searched is queries else searched.embeddings.matrix,
        gallery_labels=None if searched is queries else searched.labels,
        itself=itself,
        ks=ks,
        similarity=similarity,
    )
    used: Bools = values.pop("relevant") > 0
    if not used.any():
        first = f"first: {rows.ids[0]!r}"
        raise LikenessError(f"none of {used.size} queries has a relevant item ({first}); add some")
    return {name: np.nan_to_num(of_queries)[used] for name, of_queries in values.items()}, used


def _conventions(settings: RetrievalSettings, among: bool) -> Conventions:
    """What the record says of every metric. among: whether the queries search each other."""
    conventions: Conventions = {
        "self": "removed by index" if among else "removed by id",
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
        return uncertainty.numbers_of(settings.quality, queries.ids)
    return None if settings.quality is None else queries.norms.astype(np.float64)


def _rated(
    quality: Floats, per_query: Mapping[str, Floats], codes: Counts, settings: RetrievalSettings
) -> tuple[uncertainty.Answers, list[Row]]:
    """How well a quality (Q,) says which queries are answered wrongly: its R-AUROC.

    It is left out where all queries are right, or all are wrong.

    Raises:
        LikenessError: recall@1 was not measured.
    """
    recall = per_query.get("precision@1", per_query.get("recall@1"))
    if recall is None:
        raise LikenessError("quality needs recall@1, which is not measured; add 1 to ks")
    is_norm = settings.quality == "norm"
    name, risk = "norm" if is_norm else "quality", np.clip(1 - recall, 0, 1)
    answers = uncertainty.Answers(quality, risk, name)
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


def _gallery(
    queries: Embeddings, gallery: Embeddings, class_of: Mapping[str, str] | None
) -> Labelled:
    """The gallery with the class of each item, which the model of the queries embedded."""
    models = [rows.meta.get("model", "") for rows in (queries, gallery)]
    if all(models) and models[0] != models[1]:
        both = f"{models[0][:12]} and {models[1][:12]}"
        raise LikenessError(f"queries and gallery are of two models ({both}); embed both by one")
    return Labelled(gallery, labels_of("gallery", gallery.ids, class_of, "label"))


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
