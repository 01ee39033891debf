"""Both sides of a list of trials: as they are compared, pooled and with the mean subtracted; and
the measures of their quality, which help a calibration.

Each measure enters a calibration as the lower and the higher of the two sides of a trial.
Differences, and ratios of what stands under the logarithm, are linear in these: WeSpeaker's QMF.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.calibration import Calibration, by_side, log_measure
from eval.errors import LikenessError
from eval.scoring import normalization, templates
from eval.similarity import refuse_missing, warn_of_zeros
from eval.types import Embeddings, Floats, Floats32, Trials, name_first

Models = Mapping[str, Sequence[str]]
QUALITY = ("log_norm", "log_duration", "cohort_mean")
"""The measures of one side: the logarithm of the norm of the raw embedding (that of a model is the
norm of its pooled items), the logarithm of the seconds (that of a model is the sum of its items),
the mean score with the cohort."""


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of P trials.

    Attributes:
        enrol: Raw embeddings of the enrolment ids, in the order of the trials. Quality measures and
            warnings are of these.
        probe: Raw embeddings of the probe ids; the same object where one matrix serves both sides.
        left: (N, D) rows of the enrolment side after the mean was subtracted.
        right: (M, D) rows of the probe side; the same object where one matrix serves both sides, so
            that the cohort is scored once.
        i: (P,) the row of `left` of each trial.
        j: (P,) the row of `right` of each trial.
        cohort: (C, D) after the mean was subtracted, or None.
        models: The items of each enrolment id, or None where the ids are items.
    """

    enrol: Embeddings
    probe: Embeddings
    left: Floats32
    right: Floats32
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    cohort: Floats32 | None
    models: Models | None


def sides_of(
    trials: Trials,
    embeddings: Embeddings,
    *,
    probe: Embeddings | None = None,
    models: Models | None = None,
    pooling: templates.Method = "mean",
    subtract_mean: Embeddings | None = None,
    cohort: Embeddings | None = None,
    cohort_subjects: Mapping[str, str] | None = None,
) -> Sides:
    """Prepares both sides of the trials.

    Args:
        trials: P trials between enrolment ids and probe ids.
        embeddings, probe, models: As in `eval.scoring.score.score`.
        pooling, subtract_mean, cohort, cohort_subjects: As in `eval.scoring.score.Scoring`.

    Raises:
        LikenessError: Ids have no embedding or no model. All are counted, the first are named. The
            embeddings differ in D.

    Warns:
        UserWarning: The cohort has ids of the trials, or embeddings are zero vectors.
    """
    apart = embeddings if probe is None else probe
    models = None if models is None else _models_of(trials, models)
    items = trials.enrol_ids if models is None else _items(models)
    kind = "enrolment" if models is None else "enrolment item"
    refuse_missing(
        [(kind, items, embeddings), ("probe", trials.probe_ids, apart)], offers_to_strip=True
    )
    others = _cohort(cohort, cohort_subjects, {*items, *trials.probe_ids})

    def pooled(rows: Embeddings) -> Embeddings:
        return rows if models is None else templates.enrol(rows, models, method=pooling)

    if models is None and apart is embeddings:  # then one matrix serves both sides
        enrol = probe = _only(embeddings, tuple(dict.fromkeys(trials.enrol_ids + trials.probe_ids)))
        warn_of_zeros((enrol, np.arange(len(enrol.ids))))
        left = right = _centred(enrol, subtract_mean)
    else:
        enrol = _only(pooled(embeddings), trials.enrol_ids)
        probe = _only(apart, trials.probe_ids)
        warn_of_zeros(*((rows, np.arange(len(rows.ids))) for rows in (enrol, probe)))
        right = _centred(probe, subtract_mean)
        left = _centred(enrol, subtract_mean)
        if models is not None:  # the mean is subtracted from the items, before they are pooled
            left = _only(pooled(_centred(embeddings, subtract_mean)), trials.enrol_ids)
    return Sides(
        enrol,
        probe,
        left.matrix,
        right.matrix,
        enrol.rows(trials.enrol_ids)[trials.enrol],
        probe.rows(trials.probe_ids)[trials.probe],
        None if others is None else _centred(others, subtract_mean).matrix,
        models,
    )


def _centred(rows: Embeddings, mean_of: Embeddings | None) -> Embeddings:
    if mean_of is None:
        return rows
    return Embeddings(rows.ids, normalization.subtract_mean(rows.matrix, mean_of.matrix), rows.meta)


def _cohort(
    cohort: Embeddings | None, subject_of: Mapping[str, str] | None, ids: set[str]
) -> Embeddings | None:
    """The cohort, of one row per subject where the subjects are known. ids: of the trials."""
    if cohort is None:
        return None
    shared = [name for name in cohort.ids if name in ids]
    if shared:
        warnings.warn(
            f"{len(shared)} of {len(cohort.ids)} cohort ids are also in the trials "
            f"({name_first(shared)}); a cohort holds other subjects",
            stacklevel=4,
        )
    if subject_of is None:
        return cohort
    return templates.pool(cohort, [subject_of[name] for name in cohort.ids])


def _models_of(trials: Trials, models: Models) -> dict[str, tuple[str, ...]]:
    """The models of the trials, in their order, with their items."""
    known = {model: tuple(items) for model, items in models.items()}
    absent = [model for model in trials.enrol_ids if not known.get(model)]
    if absent:
        raise LikenessError(
            f"{len(absent)} of {len(trials.enrol_ids)} enrolment ids of the trials are no models "
            f"of the enrolment list, or models without items ({name_first(absent)}); add their "
            "items to it"
        )
    return {model: known[model] for model in trials.enrol_ids}


def _items(models: Models) -> tuple[str, ...]:
    """The distinct items of the models, in order."""
    return tuple(dict.fromkeys(item for items in models.values() for item in items))


def _only(embeddings: Embeddings, ids: tuple[str, ...]) -> Embeddings:
    """The embeddings of these ids in this order: rows then go by the numbers of the trials."""
    if ids == embeddings.ids:
        return embeddings
    return Embeddings(ids, embeddings.matrix[embeddings.rows(ids)], embeddings.meta)


def column_names(measures: Sequence[str]) -> tuple[str, ...]:
    """The names of the two columns of each measure.

    >>> column_names(["log_norm"])
    ('log_norm_low', 'log_norm_high')
    """
    return tuple(f"{measure}_{side}" for measure in measures for side in ("low", "high"))


def measures_of(calibration: Calibration) -> list[str]:
    """The measures that a calibration was fitted with.

    Raises:
        LikenessError: It was fitted with other measures than those of `QUALITY`.
    """
    return measures_of_names(calibration.names)


def measures_of_names(names: Sequence[str]) -> list[str]:
    """The measures whose columns have these names.

    Raises:
        LikenessError: These are no columns of measures of `QUALITY`.

    >>> measures_of_names(["log_norm_low", "log_norm_high"])
    ['log_norm']
    """
    measures = list(dict.fromkeys(name.rpartition("_")[0] for name in names))
    if column_names(measures) != tuple(names) or not set(measures) <= set(QUALITY):
        raise LikenessError(
            f"calibration: its quality measures are {', '.join(names)}; score can work "
            f"out {', '.join(QUALITY)}, low and high"
        )
    return measures


def quality_of(
    sides: Sides,
    measures: Sequence[str],
    *,
    similarity: str,
    top_n: int | None,
    durations: Mapping[str, float] | None,
) -> Floats:
    """The quality measures of the trials.

    Args:
        sides: Both sides of P trials.
        measures: K names of `QUALITY`.
        similarity: That of the scores, for the cohort.
        top_n: How many scores with the cohort are averaged; None takes all.
        durations: The seconds of each item.

    Returns:
        (P, 2 K): the lower and the higher value of each measure.

    Raises:
        LikenessError: The cohort or the durations that a measure needs are missing. Items have no
            duration. All are counted, the first are named.
    """
    columns = []
    for measure in measures:
        if measure == "log_norm":
            enrol = log_measure("the norm", sides.enrol.norms)
            probe = log_measure("the norm", sides.probe.norms)
        elif measure == "log_duration":
            enrol, probe = _log_durations(sides, durations)
        elif sides.cohort is None:
            raise LikenessError("the quality measure cohort_mean needs a cohort; give one")
        else:
            enrol, probe = (
                normalization.cohort_mean(rows, sides.cohort, top_n=top_n, similarity=similarity)
                for rows in (sides.left, sides.right)
            )
        columns.append(by_side(enrol, probe, sides.i, sides.j))
    return np.concatenate(columns, axis=1)


def _log_durations(sides: Sides, durations: Mapping[str, float] | None) -> tuple[Floats, Floats]:
    """(N,) and (M,) logarithms of the seconds of each side."""
    if durations is None:
        raise LikenessError(
            "the quality measure log_duration needs durations, the seconds of each item; give them"
        )
    items = [(name,) if sides.models is None else sides.models[name] for name in sides.enrol.ids]
    used = dict.fromkeys(name for group in items for name in group)
    missing = [name for name in {**used, **dict.fromkeys(sides.probe.ids)} if name not in durations]
    if missing:
        raise LikenessError(
            f"durations: {len(missing)} ids of the trials have no duration "
            f"({name_first(missing)}); add them"
        )
    enrol = [sum(durations[name] for name in group) for group in items]
    probe = [durations[name] for name in sides.probe.ids]
    return log_measure("the durations", enrol), log_measure("the durations", probe)
