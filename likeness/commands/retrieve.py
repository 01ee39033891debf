"""Embedding and label files to retrieval results: all of `likeness retrieve` as one function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.bootstrap import Bounds, Drawn, Ends, bounds
from eval.formats import embeddings as embedding_files
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping
from eval.ranks import Counts
from eval.results import (
    Result,
    interval_notes,
    interval_text,
    percent_text,
    with_bounds,
    write_json,
)
from eval.retrieval import Lone, query_metrics
from eval.types import Embeddings, Floats, name_first

_DRAWS = 1 << 22  # drawn classes held at once


def retrieve_files(
    embeddings: Path,
    labels: Path | None = None,
    *,
    gallery: Path | None = None,
    gallery_labels: Path | None = None,
    similarity: str | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    lone: Lone = "exclude",
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    json_file: Path | None = None,
) -> str:
    """Retrieval metrics of an embedding file with bootstrap intervals over classes; returns the
    table as text.

    labels: lines `id label`; None: the first path component of the ids. gallery: search this file
    instead of the embeddings themselves; its labels from gallery_labels, else from `labels`.
    similarity: else the embeddings' own (meta), else cosine. lone: as in
    eval.retrieval.retrieval_metrics. num_resamples=0 leaves the intervals out. json_file: results
    in schema "likeness.results/1". ValueError: ids without a label (all counted, the first named),
    files of two models, no query with a relevant item, and the errors of reading.
    """
    if gallery is None and gallery_labels is not None:
        raise ValueError(
            f"gallery labels {gallery_labels} without a gallery; give its embeddings too"
        )
    queries = embedding_files.read(embeddings)
    items = queries if gallery is None else embedding_files.read(gallery)
    classes = _labels(queries, embeddings, labels)
    item_classes = (
        classes
        if gallery is None
        else _labels(items, gallery or embeddings, gallery_labels or labels)
    )
    models = [one.meta.get("model", "") for one in (queries, items)]
    if all(models) and models[0] != models[1]:
        raise ValueError(
            f"{embeddings} and {gallery} were made by different models ({models[0][:12]} and "
            f"{models[1][:12]}); embed both with one model"
        )
    similarity = similarity or queries.meta.get("similarity") or "cosine"
    values = query_metrics(
        queries.matrix,
        classes,
        gallery=None if gallery is None else items.matrix,
        gallery_labels=None if gallery is None else item_classes,
        ks=ks,
        similarity=similarity,
    )
    alone = values.pop("relevant") == 0
    num_lone = int(np.count_nonzero(alone))
    if lone == "error" and num_lone:
        first = name_first(queries.ids[i] for i in np.flatnonzero(alone)[:6])
        raise ValueError(
            f"{num_lone} of {alone.size} queries have no relevant item ({first}); remove them or "
            "leave lone queries out"
        )
    used = np.ones_like(alone) if lone == "zero" else ~alone
    if not used.any():
        raise ValueError(
            f"none of the {alone.size} queries has a relevant item; classes need at least two "
            "items, or a gallery that holds them"
        )
    per_query = {name: np.nan_to_num(one)[used] for name, one in values.items()}
    codes = np.unique(np.asarray(classes)[used], return_inverse=True)[1].astype(np.int64)
    intervals = _class_bounds(per_query, codes, num_resamples, level, seed) if num_resamples else {}
    num_classes = int(codes.max()) + 1
    counts: dict[str, int | None] = {
        "queries": codes.size,
        "lone": num_lone,
        "gallery": len(items.ids),
        "classes": num_classes,
        "subjects": num_classes,
    }
    common: dict[str, str | float | int] = {
        "similarity": similarity,
        "self": "removed by index" if gallery is None else "separate gallery, nothing removed",
        "ties": "expected value over the orders of tied items",
        "lone": {"zero": "count 0"}.get(lone, "excluded"),
        "labels_from": "first path component of the ids" if labels is None else labels.name,
    }
    if num_resamples:
        over = "percentile bootstrap over classes of queries, gallery as it is"
        common |= {"interval": over, "level": level, "num_resamples": num_resamples, "seed": seed}
    protocol = "retrieval among the items" if gallery is None else "retrieval from a gallery"
    rules = {
        "map@r": "(1/R) sum over the first R places of precision(i) rel(i)",
        "map@1000": "the same over 1,000 places, divided by min(R, 1000)",
    }
    results = [
        with_bounds(
            Result(
                embeddings.stem,
                name,
                float(one.mean()),
                None,
                None,
                counts,
                ({"rule": rules[name]} if name in rules else {}) | common,
                protocol,
            ),
            intervals.get(name),
        )
        for name, one in per_query.items()
    ]
    if json_file:
        read = [one for one in (embeddings, labels, gallery, gallery_labels) if one]
        write_json(json_file, results, {str(path): sha256(path) for path in read})
    return _table(results)


def class_intervals(
    per_query: dict[str, Floats],
    codes: Counts,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Ends | None]:
    """Percentile intervals of the means of per-query values (Q,), all on the same draws: C of the C
    classes with replacement, every query of a class as often as its class was drawn. The ranks stay
    those of the whole gallery. codes: (Q,) class numbers 0..C-1, each in use. None: see
    eval.bootstrap.bounds.
    """
    return {
        name: one.ends
        for name, one in _class_bounds(per_query, codes, num_resamples, level, seed).items()
    }


def _class_bounds(
    per_query: dict[str, Floats], codes: Counts, num_resamples: int, level: float, seed: int
) -> dict[str, Bounds]:
    sizes = np.bincount(codes)
    totals = np.stack(
        [sizes, *(np.bincount(codes, weights=one) for one in per_query.values())], axis=1
    ).astype(np.float64)
    rng = np.random.default_rng(seed)
    step = max(1, _DRAWS // sizes.size)
    sums = []
    for start in range(0, num_resamples, step):
        height = min(step, num_resamples - start)
        drawn = (
            rng.integers(sizes.size, size=(height, sizes.size))
            + np.arange(height)[:, None] * sizes.size
        )
        sums.append(
            np.bincount(drawn.ravel(), minlength=height * sizes.size).reshape(height, -1) @ totals
        )
    drawn_sums = np.concatenate(sums)
    means = drawn_sums[:, 1:] / drawn_sums[:, :1]
    return {
        name: bounds(means[:, i], level, Drawn(sizes.size, "classes"))
        for i, name in enumerate(per_query)
    }


def _labels(rows: Embeddings, path: Path, file: Path | None) -> list[str]:
    """The label of each id."""
    if file is None:
        bare = [one for one in rows.ids if "/" not in one]
        if bare:
            raise ValueError(
                f"{path}: {len(bare)} of {len(rows.ids)} ids do not name a class as `class/item` "
                f"does ({name_first(bare)}); give --labels FILE"
            )
        return [one.split("/", 1)[0] for one in rows.ids]
    label_of = read_mapping(file)
    missing = [one for one in rows.ids if one not in label_of]
    if missing:
        raise ValueError(
            f"{file}: {len(missing)} of {len(rows.ids)} ids of {path} have no label "
            f"({name_first(missing)}); add lines `id label`"
        )
    return [label_of[one] for one in rows.ids]


def _table(results: Sequence[Result]) -> str:
    """A row per metric in percent, then the counts and what the brackets are."""
    lines = [f"{'':16}{results[0].system} (%)"]
    for one in results:
        lines.append(
            f"{_label(one.metric):16}{100 * one.value:6.2f}  "
            f"{interval_text(one, show=percent_text)}".rstrip()
        )
    counts, c = results[0].counts, results[0].conventions
    lines += [f"{kind:16}{counts[kind]:>6,}" for kind in ("queries", "lone", "gallery", "classes")]
    note = "No intervals were computed."
    if "level" in c:
        note = (
            f"Intervals: {100 * float(c['level']):g} % bootstrap over {counts['classes']:,} "
            f"classes ({c['labels_from']}), {c['num_resamples']:,} resamples."
        )
    return (
        "\n".join(
            [
                *lines,
                "",
                f"Similarity {c['similarity']}; lone queries {c['lone']}. {note}",
                *interval_notes(results, label=_label),
            ]
        )
        + "\n"
    )


def _label(metric: str) -> str:
    names = {"r_precision": "R-precision", "map@r": "MAP@R", "map@1000": "MAP@1000"}
    return names.get(metric, metric.replace("recall@", "R@").replace("precision@", "P@"))
