"""How well a quality says which answers of a retrieval or a verification are wrong, as results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.bootstrap import Bounds, draws_of
from likeness.eval.errors import LikenessError
from likeness.eval.results import Result, with_bounds
from likeness.eval.types import Bools, Embeddings, Floats, Ints, Scores, Trials
from likeness.eval.uncertainty import (
    METRICS,
    Ranking,
    bounds_over_groups,
    bounds_over_subjects,
    errors_at,
    numbers_of,
    trial_quality,
)
from likeness.eval.verification import threshold_at_eer

if TYPE_CHECKING:
    from likeness.eval.protocols.verification import VerificationSettings

Quality = Literal["norm"] | Mapping[str, float]
Conventions = dict[str, str | float | int]
Row = tuple[str, float, Conventions, Bounds | None]  # metric, value, conventions, interval

_TIES = "the expected value over their orders"
_RULES = {
    "auroc": "of the right above the wrong answers, ties half",
    "aurc": "the mean over k of the mean risk of the k answers of highest quality",
    "e_aurc": "the AURC less that of the best possible order",
}


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


def quality_of_queries(queries: Embeddings, quality: Quality) -> Floats:
    """(N,) the quality of each query, which is known before the search.

    Args:
        queries: N embeddings.
        quality: "norm", or a number for each id.

    Raises:
        LikenessError: Queries have no quality, or one that is no finite number.

    Example:
        >>> queries = Embeddings(("a", "b"), [[3, 4], [0, 1]])
        >>> quality_of_queries(queries, "norm"), quality_of_queries(queries, {"b": 1, "a": 2})
        (array([5., 1.]), array([2., 1.]))
    """
    if not isinstance(quality, Mapping):
        return queries.norms.astype(np.float64)
    return numbers_of([(id, quality.get(id)) for id in queries.ids])


def rate_queries(
    quality: Floats,
    used: Bools,
    per_query: Mapping[str, Floats],
    codes: ArrayLike,
    *,
    is_norm: bool,
    draws: Mapping[str, Any] | None,
) -> tuple[Answers, list[Row]]:
    """How well a quality says which queries are answered wrongly.

    Args:
        quality: (N,), as `quality_of_queries` gives it.
        used: (N,) the Q queries that count.
        per_query: Metric -> (Q,) values; "recall@1" or "precision@1" is among them.
        codes: (Q,) class numbers.
        is_norm: Whether the quality is the norm.
        draws: The intervals that are asked for; None leaves them out.

    Returns:
        The answers, and R-AUROC, AURC and E-AURC. The R-AUROC is left out where all queries are
        right, or all are wrong.

    Raises:
        LikenessError: recall@1 was not measured.
    """
    recall = per_query.get("precision@1", per_query.get("recall@1"))
    if recall is None:
        raise LikenessError(
            "quality: recall@1 says which queries are right, and it is not measured; add 1 to ks"
        )
    risk = np.clip(1 - recall, 0, 1)
    answers = Answers(quality[used], risk, "norm" if is_norm else "quality")
    ranking = Ranking(answers.quality, answers.risk)
    intervals = {} if draws is None else bounds_over_groups(ranking, codes, **draws)
    stated: Conventions = {"quality": "norm" if is_norm else "given", "risk": "1 - recall@1"}
    return answers, _rows(ranking, "r_auroc", stated, intervals)


def rate_decisions(
    of: Result,
    trials: Trials,
    scores: Scores,
    quality: Mapping[str, float],
    settings: VerificationSettings,
    subjects: Ints | None,
) -> list[Result]:
    """How well a quality says which trials are decided wrongly at the threshold of the EER.

    Args:
        of: A result of the same system, whose counts and conventions hold here, too.
        trials: P trials.
        scores: Their scores.
        quality: Id -> its quality. That of a trial is the lower one of its two sides.
        settings: The intervals that are asked for.
        subjects: (P, 2) the subjects of both sides, None where they are unknown.

    Raises:
        LikenessError: Ids have no quality. It is not finite.
    """
    values, meaning = trial_quality(trials, quality, "quality")
    threshold = threshold_at_eer(scores.targets, scores.nontargets)
    ranking = Ranking(values, errors_at(scores, threshold))
    intervals: dict[str, Bounds] = {}
    if settings.num_resamples:
        draws = draws_of(settings)
        intervals = bounds_over_subjects(ranking, scores.target, subjects, **draws)
    own_of_it = ("method", "interval_note")
    common = {key: value for key, value in of.conventions.items() if key not in own_of_it}
    stated: Conventions = {
        "quality": meaning,
        "risk": "share of wrong decisions at the threshold of the EER, which stays fixed",
    }
    limit = threshold if np.isfinite(threshold) else None
    return [
        with_bounds(
            Result(of.system, name, value, None, limit, of.counts, own | common, of.protocol), ends
        )
        for name, value, own, ends in _rows(ranking, "quality_auroc", stated, intervals)
    ]


def _rows(
    ranking: Ranking, auroc: str, stated: Conventions, intervals: Mapping[str, Bounds]
) -> list[Row]:
    """The metrics that have a value; `auroc` is the name of the AUROC."""
    rows = []
    for name in METRICS:
        value = ranking.metric(name)
        if not np.isnan(value):
            own = stated | {"rule": _RULES[name], "equal_quality": _TIES}
            rows.append((auroc if name == "auroc" else name, value, own, intervals.get(name)))
    return rows
