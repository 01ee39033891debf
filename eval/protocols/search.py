"""Probes searched in galleries: rank-k and TPIR@FPIR with their intervals, as a table and as
results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eval import results as report
from eval.bootstrap import Drawn, bounds
from eval.identification import (
    RULES,
    Counts,
    Protocol,
    Searched,
    rank_hits,
    search_embeddings,
    tpir,
)
from eval.results import Result, interval_text, percent_text, with_bounds
from eval.types import Bools, Embeddings, Floats, name_first

_Measure = Callable[
    ..., tuple[float, float | None]
]  # (weights of the probes, exact: all count once) -> value and threshold
_ROUNDS = 100  # how often a draw without mated or non-mated probes is drawn again


class Identified(NamedTuple):
    """results: in table order. notes: what was left out and why, one sentence each."""

    results: list[Result]
    notes: list[str]


def identified(
    system: str,
    galleries: Sequence[Embeddings],
    gallery_subjects: Sequence[ArrayLike],
    probes: Embeddings,
    probe_subjects: ArrayLike,
    similarity: str,
    fpirs: Sequence[float],
    ranks: Sequence[int],
    protocol: Protocol,
    conventions: Mapping[str, str | float | int],
    num_resamples: int = 1000,
) -> Identified:
    """Rank-k and TPIR@FPIR of probes searched in one gallery, or in galleries apart (the closed
    protocol merges these first).

    gallery_subjects: one (G,) per gallery. probe_subjects: (Q,). conventions: further switches for
    the record. Errors: see `identify_files`.
    """
    rows, names = [one.matrix for one in galleries], [np.asarray(one) for one in gallery_subjects]
    if protocol == "closed":
        rows, names = [np.concatenate(rows)], [np.concatenate(names)]
    keep = (
        4 * int(np.ceil(max(fpirs, default=0) * len(probes.ids))) + 100
        if protocol == "closed"
        else 0
    )  # more than needed: draws reweight probes
    found = [
        search_embeddings(probes.matrix, x, y, probe_subjects, similarity=similarity, keep=keep)
        for x, y in zip(rows, names, strict=True)
    ]
    mated = np.sum([one.mated for one in found], axis=0)
    if not mated.any():
        raise ValueError(
            f"identification: none of {mated.size} probes has a mate in the gallery; check that "
            "both name their subjects alike"
        )
    num_subjects = min(one.num_subjects for one in found)
    notes = [
        f"rank-{k} left out: the gallery has {num_subjects} subjects."
        for k in ranks
        if k > num_subjects
    ]
    usable = [k for k in ranks if k <= num_subjects]
    if (
        protocol != "closed"
        and fpirs
        and any(one.mated.all() or not one.mated.any() for one in found)
    ):
        notes.append(
            "TPIR left out: an open set needs mated and non-mated probes for each gallery; add "
            "probes of subjects not enrolled, or ask for the closed protocol."
        )
        fpirs = []
    if lone := int(np.count_nonzero(mated == 0)):
        notes.append(
            f"rank-k is over the {mated.size - lone:,} probes with a mate; {lone:,} have none."
        )
    if conventions.get("probes_enrolled_themselves"):
        notes.append(
            f"{conventions['probes_enrolled_themselves']} probes are in the gallery themselves "
            "(same id) and find themselves: their hits mean nothing."
        )
    counts = {
        "probes": mated.size,
        "mated_probes": mated.size - lone,
        "gallery_templates": sum(len(one) for one in names),
        "gallery_subjects": len(set().union(*(one.tolist() for one in names))),
        "subjects": int(np.unique(np.asarray(probe_subjects)).size),
    }
    measures: dict[str, _Measure] = {
        f"rank_k({k})": partial(_rank, np.sum([rank_hits(one, k) for one in found], axis=0), mated)
        for k in usable
    }
    measures |= {f"tpir_at_fpir({fpir:g})": partial(_tpir, found, fpir, protocol) for fpir in fpirs}
    subject = np.unique(np.asarray(probe_subjects), return_inverse=True)[1]
    with_mate, without = (np.unique(subject[one]).size for one in (mated > 0, mated == 0))
    mated_subjects = Drawn(
        with_mate, "subjects" if with_mate == counts["subjects"] else "subjects with mated probes"
    )
    behind = dict.fromkeys(measures, mated_subjects)
    if protocol != "closed" and without < with_mate:
        behind |= {
            metric: Drawn(without, "subjects with non-mated probes")
            for metric in measures
            if metric.startswith("tpir")
        }
    drawn, redrawn = _resample(
        measures,
        subject,
        [one.mated for one in found],
        bool(fpirs) and protocol != "closed",
        num_resamples,
    )
    common: dict[str, str | float | int] = {
        "galleries": len(galleries),
        "templates": "best score over the templates of a subject",
    }
    common.update(conventions)
    if num_resamples:
        common |= {
            "interval": "percentile bootstrap over subjects of the probes",
            "level": 0.95,
            "num_resamples": num_resamples,
            "seed": 0,
            "num_redrawn": redrawn,
        }
    over = f"identification 1:N, {'closed set' if protocol == 'closed' else 'open set'}" + (
        ", galleries apart" if len(found) > 1 else ""
    )
    switches: dict[str, dict[str, str | float | int]] = {}
    for k in usable:
        switches[f"rank_k({k})"] = {
            "k": k,
            "ties": "expected value over the orders of tied subjects",
            "over": "mated probes",
        }
    for fpir in fpirs:
        ties = "score > threshold" if protocol == "closed" else "a tie for first place is a miss"
        switches[f"tpir_at_fpir({fpir:g})"] = {"fpir": fpir, "rule": RULES[protocol], "ties": ties}
    results = []
    for metric, measure in measures.items():
        value, threshold = measure(np.ones(mated.size, dtype=np.int64), exact=True)
        found_bounds = bounds(drawn[metric], 0.95, behind[metric]) if num_resamples else None
        results.append(
            with_bounds(
                Result(
                    system, metric, value, None, threshold, counts, switches[metric] | common, over
                ),
                found_bounds,
            )
        )
    return Identified(results, notes)


def _rank(hits: Floats, mated: Counts, weights: Counts, exact: bool = False) -> tuple[float, None]:
    """Pooled over galleries: hits, mated: (Q,) sums over them."""
    return float(np.sum(weights * hits) / np.sum(weights * mated)), None


def _tpir(
    found: Sequence[Searched], fpir: float, protocol: Protocol, weights: Counts, exact: bool = False
) -> tuple[float, float | None]:
    """Mean over galleries; the threshold if there is one for all of them."""
    each = [tpir(one, fpir, protocol=protocol, weights=None if exact else weights) for one in found]
    threshold = each[0].threshold if len(each) == 1 and np.isfinite(each[0].threshold) else None
    return float(np.mean([one.value for one in each])), threshold


def _resample(
    measures: Mapping[str, _Measure],
    subject: Counts,
    mated: Sequence[Bools],
    need_both: bool,
    num_resamples: int,
) -> tuple[dict[str, Floats], int]:
    """Each metric's values on draws of as many probe subjects as there are, with replacement; draws
    without a probe of a needed kind are drawn again.
    """
    values = {metric: np.empty(num_resamples) for metric in measures}
    rng, num_subjects, redrawn = np.random.default_rng(0), int(subject.max()) + 1, 0
    for i in range(num_resamples):
        for _ in range(_ROUNDS):
            weights = np.bincount(
                rng.integers(num_subjects, size=num_subjects), minlength=num_subjects
            )[subject]
            found = [int(weights[one].sum()) for one in mated]
            if sum(found) and (not need_both or all(0 < one < weights.sum() for one in found)):
                break
            redrawn += 1
        else:
            raise ValueError(
                f"bootstrap: {_ROUNDS} draws in a row of {num_subjects} probe subjects lack mated "
                "or non-mated probes; too few for an interval"
            )
        for metric, measure in measures.items():
            values[metric][i] = measure(weights)[0]
    return values, redrawn


def subjects_of(side: str, ids: Sequence[str], mapping: Mapping[str, str] | None) -> list[str]:
    if mapping is None:
        bare = [one for one in ids if "/" not in one]
        if bare:
            raise ValueError(
                f"{side}: {len(bare)} of {len(ids)} ids name no subject as first path component "
                f"({name_first(bare)}); give an `id subject` list"
            )
        return [one.split("/", 1)[0] for one in ids]
    missing = [one for one in ids if one not in mapping]
    if missing:
        raise ValueError(
            f"{side}: {len(missing)} of {len(ids)} ids have no subject ({name_first(missing)}); "
            "add them to the `id subject` list"
        )
    return [mapping[one] for one in ids]


def label(metric: str) -> str:
    """A metric's name for people: rank-1 (%), TPIR (%) at FPIR 0.01."""
    kind, _, number = metric.rstrip(")").partition("(")
    return f"rank-{number} (%)" if kind == "rank_k" else f"TPIR (%) at FPIR {float(number):g}"


def table(found: Identified) -> str:
    """Aligned text: a row per metric with its interval, the counts, the notes."""
    rows = [("", "")]
    for one in found.results:
        rows.append(
            (
                label(one.metric),
                f"{100 * one.value:6.2f}  {interval_text(one, show=percent_text)}".rstrip(),
            )
        )
    if found.results:
        rows += [
            (name.replace("_", " "), f"{count:6,}")
            for name, count in found.results[0].counts.items()
            if count is not None and name != "subjects"
        ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}   {text}" for name, text in rows[1:]]
    rules = dict.fromkeys(
        str(one.conventions["rule"]) for one in found.results if "rule" in one.conventions
    )
    return (
        "\n".join(
            [
                *lines,
                "",
                *(f"TPIR: {rule}." for rule in rules),
                *report.footnotes(found.results, label=label),
                *found.notes,
            ]
        )
        + "\n"
    )
