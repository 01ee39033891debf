"""The pages of `likeness retrieve` and `likeness identify`: results, curves, queries with their
nearest items as pictures or sounds, right and wrong. The page of a clustering: every cluster with
its pictures or sounds, and the doubtful items.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from likeness.eval.formats.embeddings import Labelled
from likeness.eval.intervals.uncertainty import Answers, risk_coverage
from likeness.eval.metrics.cleaning import Fit
from likeness.eval.metrics.identification import Protocol, Searched, rank_hits, tpir
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.similarity import make_scorer
from likeness.eval.progress import step
from likeness.eval.reports._map import embedding_map
from likeness.eval.reports.figures import coverage_figure, drawn, line, norms_by_correct, plot
from likeness.eval.reports.media import SECONDS, Media
from likeness.eval.reports.page import (
    EMPTY,
    block,
    conventions_table,
    folded,
    headed,
    metric_table,
    number,
    prose,
    recompute,
    write,
)
from likeness.eval.results import footnotes
from likeness.eval.types import Floats, counted, same_items

_NUM_SEARCHED = 2000  # queries of which the neighbours are looked at
_NUM_NEAREST = 5
_NUM_EXAMPLES = 12  # of wrong and of right answers each
_CELLS = 1 << 24  # scores in memory at once
_NUM_RANKS = 50
_NUM_RATES = 60
_COUNTED = {"lone": "of them without any of their class", "gallery": "items in the gallery"}


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest items of some queries.

    Attributes:
        queries: (Q,) rows of the queries.
        items: (Q, K) rows of the gallery, the nearest first.
        scores: (Q, K) their similarities.
        right: (Q, K) whether they have the label of the query.
        mated: (Q,) whether the gallery has an item of that label.
    """

    queries: NDArray[np.int64]
    items: NDArray[np.int64]
    scores: Floats
    right: NDArray[np.bool_]
    mated: NDArray[np.bool_]


def nearest(
    queries: Labelled,
    gallery: Labelled,
    similarity: str,
    num: int = _NUM_NEAREST,
    *,
    num_queries: int = _NUM_SEARCHED,
) -> Nearest:
    """Search some queries, evenly chosen, in the gallery; an item never finds itself.

    Args:
        queries: what is searched for.
        gallery: what is searched in; the queries where they search each other.
        similarity: a name of likeness.eval.metrics.similarity.
        num: items of each query, at most as many as there are.
        num_queries: at most.

    >>> from likeness.eval.formats.embeddings import Embeddings
    >>> rows = Embeddings(("a/1", "a/2", "b/1"), [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> items = Labelled(rows, ["a", "a", "b"])
    >>> answers = nearest(items, items, "cosine", 1)
    >>> answers.items.tolist(), answers.mated.tolist()
    ([[1], [0], [1]], [True, True, False])
    """
    searched, size = gallery.embeddings, len(queries.embeddings)
    rows = np.unique(np.linspace(0, size - 1, min(size, num_queries)).astype(np.int64))
    own, of_gallery = np.asarray(queries.labels)[rows], np.asarray(gallery.labels)
    # An item of the gallery with the query's id is the query.
    asked, own_rows = same_items([queries.embeddings.ids[i] for i in rows.tolist()], searched.ids)
    num = min(num, len(searched) - int(np.bincount(asked, minlength=1).max()))
    score = make_scorer(searched.matrix, similarity)
    step = max(1, _CELLS // len(searched))
    items, scores = np.empty((rows.size, num), np.int64), np.empty((rows.size, num))
    for begin in range(0, rows.size, step):
        part = slice(begin, begin + step)
        values = np.array(score(queries.embeddings.matrix[rows[part]]))
        of_part = slice(*np.searchsorted(asked, (begin, begin + step)))
        values[asked[of_part] - begin, own_rows[of_part]] = -np.inf
        best = np.argpartition(-values, num - 1, axis=1)[:, :num]
        order = np.argsort(-np.take_along_axis(values, best, axis=1), axis=1, kind="stable")
        items[part] = np.take_along_axis(best, order, axis=1)
        scores[part] = np.take_along_axis(values, items[part], axis=1)
    counts = Counter(of_gallery.tolist())
    themselves = np.bincount(asked[of_gallery[own_rows] == own[asked]], minlength=rows.size)
    mated = np.array([counts[name] for name in own.tolist()]) > themselves
    return Nearest(rows, items, scores, of_gallery[items] == own[:, None], np.asarray(mated))


@step("drawing the page")
def write_page(path: str | Path, evaluation: Any, *, media: Media, command: str) -> None:
    """Write the page of a retrieval or an identification.

    Args:
        path: of the page; its folder is made.
        evaluation: a `likeness.eval.protocols.searching.SearchEvaluation`, which imports this
            module. Of several galleries, the first one's items are shown.
        media: shows items by their ids.
        command: makes the page again.
    """
    results, queries, searched = evaluation.results, evaluation.queries, evaluation.searched
    gallery = evaluation.galleries[0] if evaluation.galleries else queries
    answers = evaluation.answers
    neighbours = nearest(queries, gallery, str(results[0].conventions["similarity"]))
    counts = ", ".join(
        f"{count:,} {_COUNTED.get(name, name.replace('_', ' '))}"
        for name, count in results[0].counts.items()
        if count and name != "subjects"
    )
    title, name = ("Identification", "Probes") if searched else ("Retrieval", "Queries")
    labels = dict(zip(queries.embeddings.ids, queries.labels, strict=True))
    sections = {
        "Results": metric_table(results)
        + block("lines", texts=[*footnotes(results), *evaluation.notes]),
        "Curves": _curves(searched, evaluation.protocol) if searched else EMPTY,
        f"{name} and their nearest items": _examples(queries, gallery, neighbours, media),
        "Quality": EMPTY if answers is None else _quality(answers),
        "Embedding map": EMPTY if searched else embedding_map(queries.embeddings, labels),
        "Images and sound": prose(media.note()),
        "Conventions": conventions_table(results),
        "Recompute": recompute(command, evaluation.inputs),
    }
    write(Path(path), f"{title} report", counts, sections)


def _quality(rated: Answers) -> Markup:
    """What the quality of the queries is worth: the risk of those that are kept, and right and
    wrong answers by quality.
    """
    text = (
        f"The {rated.name} of a query as a sign of a wrong answer: the lowest are left out first. "
        "The share of wrong ones among the rest falls if it is one, or stays at the dotted line."
    )
    curve = {rated.name: risk_coverage(rated.quality, rated.risk)}
    shown = drawn(coverage_figure, curve, alt="Risk and coverage")
    if rated.name == "norm":
        shown += norms_by_correct(rated.quality, rated.risk < 0.5)
    return prose(text) + shown


def _curves(searched: Sequence[Searched], protocol: Protocol) -> Markup:
    """CMC over the probes with a mate, and in an open set TPIR against FPIR."""
    ranks = np.arange(1, 1 + min(_NUM_RANKS, *(search.num_subjects for search in searched)))
    # Of galleries apart a probe has its mate in one.
    mated = [search for search in searched if search.mated.any()]
    hits = np.array([[rank_hits(search, int(k)).sum() for k in ranks] for search in mated])
    cmc = hits.sum(axis=0) / sum(int(search.mated.sum()) for search in mated)
    text = "The CMC curve: how many probes with a mate have it among the first subjects, by rank."
    alt = f"CMC curve. Rank 1: {100 * cmc[0]:.2f} %."
    label = "Found at this rank or before (%)"
    figures = [drawn(_curve_figure, ranks, 100 * cmc, "Rank", label, alt=alt)]
    without = min(int(np.count_nonzero(~search.mated)) for search in searched)
    if without and protocol != "closed":
        text += " The other curve: how many are found (TPIR) where this share of the probes without"
        text += " a mate raises a false alarm (FPIR)."
        fpir = np.geomspace(1 / without, 0.5, _NUM_RATES)
        rates = [
            [tpir(search, float(rate), protocol=protocol).value for search in mated]
            for rate in fpir
        ]
        values = 100 * np.mean(rates, axis=1)
        alt = "TPIR against FPIR"
        figures.append(drawn(_curve_figure, 100 * fpir, values, "FPIR (%)", "TPIR (%)", alt=alt))
    return prose(text) + block("two", parts=figures)


def _curve_figure(x: Floats, y: Floats, x_label: str, y_label: str) -> Any:
    tips = {x_label: "@x{0.[000]}", y_label: "@y{0.00}"}
    scale = "log" if x_label.startswith("FPIR") else "linear"
    figure = plot(x_label, y_label, height=320, tips=tips, x_axis_type=scale)
    line(figure, 0, y_label, dots=4, steps=True, x=x, y=y)
    return figure


def _examples(queries: Labelled, gallery: Labelled, answers: Nearest, media: Media) -> Markup:
    """The surest wrong answers, and the right answers that were nearest to being wrong."""
    first = answers.right[:, 0]
    margin = answers.scores[:, 0] - np.where(answers.right, -np.inf, answers.scores).max(axis=1)
    correct, missed = answers.mated & first, answers.mated & ~first
    text = (
        f"Of {answers.queries.size:,} of {len(queries.embeddings):,} queries, each with its "
        f"{answers.items.shape[1]} nearest items: {np.count_nonzero(correct):,} find "
        f"their own {'' if gallery is queries else 'in the gallery '}first, "
        f"and {np.count_nonzero(missed):,} do not."
    )
    if not answers.mated.all():
        text += f" {np.count_nonzero(~answers.mated):,} have nothing to find."
    parts = [prose(text)]
    for heading, chosen, sure in (
        ("Wrong, the surest first", missed, -answers.scores[:, 0]),
        ("Right, the closest calls first", correct, margin),
    ):
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(sure[rows], kind="stable")][:_NUM_EXAMPLES]
        if rows.size:
            shown = [_example(queries, gallery, answers, media, row) for row in rows.tolist()]
            parts.append(block("neighbours", caption=heading, rows=shown))
    return EMPTY.join(parts)


def _example(
    queries: Labelled, gallery: Labelled, answers: Nearest, media: Media, q: int
) -> dict[str, Any]:
    """A query with its nearest items, as the table shows them."""
    ids, labels, row = gallery.embeddings.ids, gallery.labels, int(answers.queries[q])
    columns = (each[q].tolist() for each in (answers.items, answers.scores, answers.right))
    items = [
        (media.show(ids[item]), ids[item], labels[item], number(score), right)
        for item, score, right in zip(*columns, strict=True)
    ]
    query = queries.embeddings.ids[row]
    shown = media.show(query)
    return {"shown": shown, "id": query, "label": queries.labels[row], "items": items}


_NUM_CLUSTERS = 100  # shown with their items; the others are counted
_NUM_ITEMS = 24  # of a cluster
_NUM_DOUBTFUL = 20


@step("drawing the page")
def clustering(
    folder: str | Path,
    ids: Sequence[str],
    clusters: Counts,
    fit: Fit,
    *,
    how: str,
    command: str,
    media: Media | None = None,
) -> Path:
    """Write the page, `index.html`, into a folder.

    Args:
        folder: Where it is written; it is made if it does not exist.
        ids: N items.
        clusters: Of each item (N,), from 1 by size; 0 stands for none.
        fit: How well each item that is in a cluster fits it.
        how: How the clusters were found, as a sentence.
        command: Makes the page again.
        media: Shows an item by its id.

    Returns:
        The path of the page.
    """
    shown = media or Media(lambda _: None)
    count = int(clusters.max(initial=0))
    sizes = np.bincount(clusters, minlength=count + 1)
    left_out = f", {sizes[0]:,} items belong to none" if sizes[0] else ""
    alone = int((sizes[1:] == 1).sum())
    inside = np.flatnonzero(clusters)
    own = np.full(len(ids), np.nan)
    own[inside] = fit.own
    named = [ids[i] for i in inside.tolist()]
    sections = {
        "Clusters": prose(
            f"{len(ids):,} items in {count:,} clusters, of which {alone:,} "
            f"{'has' if alone == 1 else 'have'} a single item{left_out}. {how}"
        ),
        "Doubtful items": _doubtful(named, fit, shown),
        "Items by cluster": _items(ids, clusters, own, sizes, shown),
        "Images and sound": prose(shown.note()),
        "Recompute": block("command", text=command),
    }
    about = f"{counted(len(ids), 'item')} in {counted(count, 'cluster')}"
    return write(Path(folder) / "index.html", "Clusters", about, sections)


def _doubtful(ids: Sequence[str], fit: Fit, media: Media) -> Markup:
    """The items that are nearly as similar to another cluster as to their own."""
    margin = fit.own - fit.other
    known = np.flatnonzero(np.isfinite(margin))
    near = fit.looks_like + 1
    if not known.size:
        return EMPTY
    rows = [
        {
            "score": number(margin[i], 3),
            "sides": [(media.show(ids[i]), f"{ids[i]}: in {fit.numbers[i] + 1}, near {near[i]}")],
        }
        for i in known[np.argsort(margin[known], kind="stable")][:_NUM_DOUBTFUL].tolist()
    ]
    text = prose(
        "Look and listen here first. The score is the cosine to the mean of the other items of its "
        "cluster minus that to the nearest other mean: near 0 the item may belong to either."
    )
    head = "Item, its cluster, and the other one"
    return text + block("trials", caption="Least certain", head=head, rows=rows)


def _items(
    ids: Sequence[str], clusters: Counts, own: Floats, sizes: Counts, media: Media
) -> Markup:
    """The items of each cluster, the most typical first, each with its cosine to the mean of the
    others.
    """
    parts = {}
    for cluster in [*range(1, min(len(sizes) - 1, _NUM_CLUSTERS) + 1), *([0] if sizes[0] else [])]:
        inside = np.flatnonzero(clusters == cluster)
        order = inside[np.argsort(-own[inside], kind="stable")]  # NaN of an item alone is last
        items = [
            {"id": ids[i], "shown": media.show(ids[i]), "score": number(own[i], 3)}
            for i in order[:_NUM_ITEMS].tolist()
        ]
        name = f"Cluster {cluster}" if cluster else "In no cluster"
        heading = f"{name}: {counted(len(inside), 'item')}"
        if len(inside) > len(items):
            heading += f", {len(inside) - len(items):,} not shown"
        are_images = all('class="shown image"' in item["shown"] for item in items)
        parts[heading] = block("tiles", items=items, rows=not are_images)
    if len(sizes) - 1 > _NUM_CLUSTERS:
        heading = f"{len(sizes) - 1 - _NUM_CLUSTERS:,} smaller clusters"
        parts[heading] = prose("They are in the CSV file only.")
    text = (
        "Below each item stands its mean score with the others of its cluster, highest first; of "
        f"recordings the first {SECONDS:g} seconds can be heard."
    )
    if "<audio" in EMPTY.join(parts.values()):  # players take a line each
        return prose(text, soft=True) + folded(parts)
    return prose(text, soft=True) + EMPTY.join(headed(*part) for part in parts.items())
