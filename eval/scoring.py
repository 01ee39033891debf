"""How a list of trials is scored: one value that says it, and the functions that do it.

`Scoring` holds everything that a score depends on beside the two embeddings: the similarity, how
the items of a model are pooled, the mean that is subtracted, the cohort that normalises the scores,
a PLDA, a calibration. `score` applies it and `calibrate` fits the calibration for it. All of them
take and give values; `likeness score` reads and writes the files.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from eval import normalization, templates
from eval.calibration import Calibration, by_side, cohort_mean, fit_calibration, log_measure
from eval.plda import Plda, ScoringLength
from eval.similarity import check_similarity, pairs, refuse_missing, warn_of_zeros
from eval.types import Embeddings, Floats, Floats32, Scores, Trials, name_first, nfc, nfc_mapping

Norm = Literal["as", "s", "z", "t"]
Pooling = Literal["mean", "norm_weighted"]
Models = Mapping[str, Sequence[str]]
QUALITY = ("log_norm", "log_duration", "cohort_mean")
"""Measures of one side. A trial has two values of each: the lower and the higher of its sides."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """How trials are scored. It is checked on construction, then frozen.

    Every field is an option of `likeness score` of the same name, where a file stands for the value
    that is read from it.

    Attributes:
        similarity: A name of `eval.similarity`. None stands for the similarity that the meta of the
            embeddings names, or for cosine where it names none.
        pooling: How the items of a model become one embedding, see `eval.templates`.
        subtract_mean: Embeddings whose mean is subtracted from all others before they are pooled.
        plda: Scores are its log-likelihood ratios, of the mean of a model as of one item. A PLDA is
            a similarity of its own, and its scores are not normalised.
        scoring_length: Another length at scoring than `plda` has, a name of
            `eval.plda.SCORING_LENGTHS`.
        cohort: Embeddings of subjects that are not in the trials. The scores are then normalised.
        cohort_subjects: The subject of each id of the cohort. The mean embeddings of the subjects
            are then the cohort.
        norm: `as` normalises by the top_n highest scores of each side with the cohort; `s`, `z` and
            `t` by the scores with the whole cohort. See `eval.normalization`.
        top_n: How many scores `as` takes.
        calibration: Turns the scores into log-likelihood ratios. Its quality measures are computed
            from the embeddings, the cohort and the durations.
        durations: The seconds of each item, for the quality measure `log_duration`.

    Raises:
        ValueError: A name is unknown, or two fields contradict each other, or a field would change
            nothing.
        KeyError: Ids of the cohort have no subject. All are counted, the first are named.

    >>> Scoring(similarity="cosine", norm="q")
    Traceback (most recent call last):
    ...
    ValueError: unknown norm 'q'; choose one of as, s, z, t
    """

    similarity: str | None = None
    pooling: Pooling = "mean"
    subtract_mean: Embeddings | None = None
    plda: Plda | None = None
    scoring_length: ScoringLength | None = None
    cohort: Embeddings | None = None
    cohort_subjects: Mapping[str, str] | None = None
    norm: Norm = "as"
    top_n: int = 300
    calibration: Calibration | None = None
    durations: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("norm", get_args(Norm)), ("pooling", get_args(Pooling))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"unknown {name} {getattr(self, name)!r}; choose one of {', '.join(allowed)}"
                )
        if self.similarity is not None:
            check_similarity(self.similarity)
        if self.plda is not None and (self.similarity or self.cohort is not None):
            raise ValueError(
                "plda is a similarity of its own, which is not normalised: leave out "
                f"{'similarity' if self.similarity else 'cohort'}"
            )
        if self.scoring_length and self.plda is None:
            raise ValueError(
                f"scoring_length {self.scoring_length!r} without a PLDA would change nothing; give "
                "plda too, or leave it out"
            )
        if self.plda is not None and self.scoring_length:
            replace(self.plda, scoring_length=self.scoring_length)  # refuses an unknown name
        self._check_subjects()
        if self.cohort is not None:
            subject_of = self.cohort_subjects
            names = self.cohort.ids
            size = len(names if subject_of is None else {subject_of[name] for name in names})
            normalization.check_cohort(size, self._num_cohort_scores)
        if self.durations is not None:
            seconds = {nfc(name): float(value) for name, value in self.durations.items()}
            object.__setattr__(self, "durations", MappingProxyType(seconds))
        if self.calibration is not None:
            _measures_of(self.calibration)

    def _check_subjects(self) -> None:
        if self.cohort_subjects is None:
            return
        if self.cohort is None:
            raise ValueError(
                "cohort_subjects without a cohort would change nothing; give cohort too, or leave "
                "it out"
            )
        subject_of = MappingProxyType(dict(nfc_mapping(self.cohort_subjects)))
        missing = [name for name in self.cohort.ids if name not in subject_of]
        if missing:
            raise KeyError(
                f"cohort_subjects: {len(missing)} of {len(self.cohort.ids)} cohort ids have no "
                f"subject ({name_first(missing)}); add them"
            )
        object.__setattr__(self, "cohort_subjects", subject_of)

    def similarity_of(self, meta: Mapping[str, str]) -> str:
        """The name of the similarity for embeddings with this meta; "plda" where a PLDA scores."""
        if self.plda is not None:
            return "plda"
        return self.similarity or meta.get("similarity") or "cosine"

    def system(self, meta: Mapping[str, str], *, of_models: bool = False) -> str:
        """What gives the scores, in words: two lists of scores with the same words compare.

        A calibration stores them, and serves scores of its own system only.

        Args:
            meta: Of the embeddings of the enrolment side.
            of_models: The enrolment ids are models that are pooled from several items.

        >>> Scoring(cohort=Embeddings(("c", "d"), np.eye(2)), top_n=2).system({"model": "ab12"})
        'cosine, as_norm over the top 2 of the cohort, model ab12'
        """
        parts = [self.similarity_of(meta)]
        if of_models:
            parts.append(f"{self.pooling} of the enrolment items")
        if self.subtract_mean is not None:
            parts.append("mean subtracted")
        if self.cohort is not None:
            over = f" over the top {self.top_n} of the cohort" if self.norm == "as" else ""
            parts.append(f"{self.norm}_norm{over}")
        if meta.get("model"):
            parts.append(f"model {meta['model'][:16]}")
        plda = self._plda_at_scoring
        if plda is not None and plda.scoring_length != "none":
            parts.append(f"scoring length {plda.scoring_length}")
        return ", ".join(parts)

    @property
    def _num_cohort_scores(self) -> int | None:
        """How many scores with the cohort are used of each side; None stands for all."""
        return self.top_n if self.norm == "as" else None

    @cached_property
    def _plda_at_scoring(self) -> Plda | None:
        if self.plda is None or not self.scoring_length:
            return self.plda
        return replace(self.plda, scoring_length=self.scoring_length)


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a list of trials, and what gave them.

    Attributes:
        trials: The list, with or without labels.
        values: (P,) float64. HIGHER = MORE SIMILAR; log-likelihood ratios after a calibration.
        system: What gave the scores before any calibration, in words, see `Scoring.system`.
    """

    trials: Trials
    values: Floats
    system: str

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def scores(self) -> Scores:
        """The scores with the labels of the list, as the metrics take them.

        Raises:
            ValueError: The list has no labels.
        """
        if self.trials.target is None:
            raise ValueError(
                f"the list of {len(self)} trials has no labels, which metrics need; give a list "
                "with labels"
            )
        return Scores(self.values, self.trials.target)


def score(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = Scoring(),
    *,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Scored:
    """Scores a list of trials.

    Args:
        trials: P trials between enrolment ids and probe ids.
        embeddings: Of both sides, or of the enrolment side if `probe` has the other.
        scoring: How the trials are scored.
        probe: Embeddings of the probe side, where they are apart.
        models: The items that enrol each model, as `templates.read_enrolment` gives them. The
            enrolment ids of the trials are then models.

    Returns:
        The scores (P,), with the trials and what gave them.

    Raises:
        KeyError: Ids have no embedding, no model or no duration. All are counted, the first named.
        ValueError: The embeddings, the cohort and the mean differ in D, the calibration is of
            another system, or the cohort or the durations that it needs are missing.

    Warns:
        UserWarning: Embeddings are zero vectors, or of another model than the rest; or the cohort
            has ids of the trials.

    >>> embeddings = Embeddings(("ann/1", "ann/2", "bob/1"), [[3, 4], [6, 8], [4, -3]])
    >>> trials = Trials(("ann/1",), ("ann/2", "bob/1"), [0, 0], [0, 1], [True, False])
    >>> score(trials, embeddings, Scoring(similarity="dot")).values.tolist()
    [50.0, 0.0]
    """
    calibration = scoring.calibration
    system = scoring.system(embeddings.meta, of_models=models is not None)
    if calibration is not None and calibration.system and calibration.system != system:
        raise ValueError(
            f"the calibration was fitted for [{calibration.system}], but these scores are "
            f"[{system}]; fit one for this system"
        )
    sides = _sides(trials, embeddings, scoring, probe, models)
    values = _values(sides, scoring)
    if calibration is not None:
        measures = _measures_of(calibration)
        values = calibration.apply(values, _quality(sides, measures, scoring) if measures else None)
    return Scored(trials, values, system)


def calibrate(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = Scoring(),
    *,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Calibration:
    """Fits a calibration of the scores that `score` gives with the same arguments.

    The scores become log-likelihood ratios with `dataclasses.replace(scoring, calibration=...)`.

    Args:
        trials: P trials with labels, of other subjects than those to be scored.
        embeddings: As in `score`; so are `scoring`, `probe` and `models`.
        quality: Measures of `QUALITY` that help the score: `log_norm` (the norm of the raw
            embedding; that of a model is the norm of its pooled items), `log_duration` (that of a
            model is the sum of its items), `cohort_mean`. Each enters as the lower and the higher
            of the two sides of the trial. Differences, and ratios of what stands under the
            logarithm, are linear in these: WeSpeaker's QMF.
        p_target: The prior of a target trial at which the calibration is to be good.

    Raises:
        ValueError: The trials have no labels, `scoring` has a calibration already, a measure is
            unknown or lacks its cohort or durations; and as `calibration.fit_calibration`.
        KeyError: As `score`.

    >>> subjects = np.repeat([[0.5], [-0.5]], 4, axis=0)
    >>> noise = np.random.default_rng(0).standard_normal((8, 3))
    >>> embeddings = Embeddings(tuple("abcdefgh"), subjects + noise)
    >>> i, j = np.triu_indices(8, k=1)
    >>> trials = Trials(embeddings.ids, embeddings.ids, i, j, (i < 4) == (j < 4))
    >>> fitted = calibrate(trials, embeddings, Scoring("dot"))
    >>> fitted.slope > 0, fitted.system
    (True, 'dot')
    """
    unknown = [name for name in quality if name not in QUALITY]
    if unknown:
        raise ValueError(
            f"unknown quality measures {name_first(unknown)}; choose from {', '.join(QUALITY)}"
        )
    if scoring.calibration is not None:
        raise ValueError(
            "the scoring has a calibration already, and a calibration is fitted on scores without; "
            "leave calibration out"
        )
    if trials.target is None:
        raise ValueError(
            f"the list of {len(trials)} trials has no labels; a calibration is fitted on a "
            "labelled list"
        )
    sides = _sides(trials, embeddings, scoring, probe, models)
    return fit_calibration(
        _values(sides, scoring),
        trials.target,
        quality=_quality(sides, quality, scoring) if quality else None,
        names=_column_names(quality),
        p_target=p_target,
        system=scoring.system(embeddings.meta, of_models=models is not None),
    )


@dataclass(frozen=True, eq=False)
class _Sides:
    """Both sides of the trials, as they are compared.

    Attributes:
        enrol: Raw embeddings of the enrolment ids, in the order of the trials. Quality measures and
            warnings are of these.
        probe: Raw embeddings of the probe ids; the same object where one matrix serves both sides.
        left: (N, D) rows of the enrolment side after the mean was subtracted.
        right: (M, D) rows of the probe side; the same object where one matrix serves both sides, so
            that the cohort is scored once.
        i: (P,) row of the enrolment side of each trial.
        j: (P,) row of the probe side of each trial.
        similarity: Its name, or "plda".
        cohort: (C, D) after the mean was subtracted, or None.
        models: The items of each enrolment id, or None where the ids are items.
    """

    enrol: Embeddings
    probe: Embeddings
    left: Floats32
    right: Floats32
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    similarity: str
    cohort: Floats32 | None
    models: Models | None


def _sides(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring,
    probe: Embeddings | None,
    models: Models | None,
) -> _Sides:
    apart = probe if probe is not None else embeddings
    _warn_of_other_models(embeddings, probe, scoring)
    models = None if models is None else _models_of(trials, models)
    items = tuple(trials.enrol_ids if models is None else _items(models))
    enrolment = "enrolment" if models is None else "enrolment item"
    refuse_missing([(enrolment, items, embeddings), ("probe", trials.probe_ids, apart)])
    cohort = _cohort(scoring, {*items, *trials.probe_ids})

    def pooled(rows: Embeddings) -> Embeddings:
        return rows if models is None else templates.enrol(rows, models, method=scoring.pooling)

    shared = models is None and apart is embeddings
    together = tuple(dict.fromkeys(trials.enrol_ids + trials.probe_ids))
    enrol = _only(pooled(embeddings), together if shared else trials.enrol_ids)
    probe = enrol if shared else _only(apart, trials.probe_ids)
    warn_of_zeros(
        *((rows, np.arange(len(rows.ids))) for rows in ([enrol] if shared else [enrol, probe]))
    )
    if models is None:
        left = _centred(enrol, scoring).matrix
    else:
        left = _only(pooled(_centred(embeddings, scoring)), trials.enrol_ids).matrix
    return _Sides(
        enrol,
        probe,
        left,
        left if shared else _centred(probe, scoring).matrix,
        enrol.rows(trials.enrol_ids)[trials.enrol],
        probe.rows(trials.probe_ids)[trials.probe],
        scoring.similarity_of(embeddings.meta),
        None if cohort is None else _centred(cohort, scoring).matrix,
        models,
    )


def _models_of(trials: Trials, models: Models) -> dict[str, tuple[str, ...]]:
    """The models of the trials, in their order, with their items."""
    known = {nfc(model): tuple(items) for model, items in models.items()}
    absent = [model for model in trials.enrol_ids if not known.get(model)]
    if absent:
        raise KeyError(
            f"{len(absent)} of {len(trials.enrol_ids)} enrolment ids of the trials are no models "
            f"of the enrolment list, or models without items ({name_first(absent)}); add their "
            "items to it"
        )
    return {model: known[model] for model in trials.enrol_ids}


def _items(models: Models) -> dict[str, None]:
    """The distinct items of the models, in order."""
    return dict.fromkeys(item for items in models.values() for item in items)


def _cohort(scoring: Scoring, ids: set[str]) -> Embeddings | None:
    """The cohort, of one row per subject where the subjects are known. ids: of the trials."""
    cohort = scoring.cohort
    if cohort is None:
        return None
    shared = [name for name in cohort.ids if name in ids]
    if shared:
        warnings.warn(
            f"{len(shared)} of {len(cohort.ids)} cohort ids are also in the trials "
            f"({name_first(shared)}); a cohort holds other subjects",
            stacklevel=4,
        )
    if scoring.cohort_subjects is None:
        return cohort
    return templates.pool(cohort, [scoring.cohort_subjects[name] for name in cohort.ids])


def _centred(embeddings: Embeddings, scoring: Scoring) -> Embeddings:
    if scoring.subtract_mean is None:
        return embeddings
    centred = normalization.subtract_mean(embeddings.matrix, scoring.subtract_mean.matrix)
    return Embeddings(embeddings.ids, centred, embeddings.meta)


def _only(embeddings: Embeddings, ids: tuple[str, ...]) -> Embeddings:
    """The embeddings of these ids in this order: rows then go by the numbers of the trials."""
    if ids == embeddings.ids:
        return embeddings
    return Embeddings(ids, embeddings.matrix[embeddings.rows(ids)], embeddings.meta)


def _values(sides: _Sides, scoring: Scoring) -> Floats:
    """(P,) scores, normalised where there is a cohort, before any calibration."""
    left, right, i, j = sides.left, sides.right, sides.i, sides.j
    if scoring._plda_at_scoring is not None:
        return scoring._plda_at_scoring.score(left, right, i, j)
    values = pairs(left, right, i, j, sides.similarity)
    if sides.cohort is None:
        return values
    if scoring.norm == "z":
        return normalization.z_norm(values, left, sides.cohort, i=i, similarity=sides.similarity)
    if scoring.norm == "t":
        return normalization.t_norm(values, right, sides.cohort, j=j, similarity=sides.similarity)
    return normalization.s_norm(
        values,
        left,
        right,
        sides.cohort,
        top_n=scoring._num_cohort_scores,
        i=i,
        j=j,
        similarity=sides.similarity,
    )


def _measures_of(calibration: Calibration) -> list[str]:
    """The quality measures that the calibration was fitted with."""
    measures = list(dict.fromkeys(name.rpartition("_")[0] for name in calibration.names))
    if _column_names(measures) != calibration.names or not set(measures) <= set(QUALITY):
        raise ValueError(
            f"calibration: its quality measures are {', '.join(calibration.names)}; score can work "
            f"out {', '.join(QUALITY)}, low and high"
        )
    return measures


def _column_names(measures: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{measure}_{side}" for measure in measures for side in ("low", "high"))


def _quality(sides: _Sides, measures: Sequence[str], scoring: Scoring) -> Floats:
    """(P, 2 K): the lower and the higher value of each of K measures."""
    columns = []
    for measure in measures:
        if measure == "log_norm":
            enrol = log_measure("the norm", sides.enrol.norms)
            probe = log_measure("the norm", sides.probe.norms)
        elif measure == "log_duration":
            enrol, probe = _log_durations(sides, scoring.durations)
        elif sides.cohort is None:
            raise ValueError("the quality measure cohort_mean needs a cohort; give one")
        else:
            enrol, probe = (
                cohort_mean(
                    rows,
                    sides.cohort,
                    top_n=scoring._num_cohort_scores,
                    similarity=sides.similarity,
                )
                for rows in (sides.left, sides.right)
            )
        columns.append(by_side(enrol, probe, sides.i, sides.j))
    return np.concatenate(columns, axis=1)


def _log_durations(sides: _Sides, durations: Mapping[str, float] | None) -> tuple[Floats, Floats]:
    """(N,) and (M,) logarithms of the seconds of each side; a model has the sum of its items."""
    if durations is None:
        raise ValueError(
            "the quality measure log_duration needs durations, the seconds of each item; give them"
        )
    items = [sides.models[name] if sides.models else (name,) for name in sides.enrol.ids]
    used = dict.fromkeys([nfc(name) for group in items for name in group])
    missing = [name for name in {**used, **dict.fromkeys(sides.probe.ids)} if name not in durations]
    if missing:
        raise KeyError(
            f"durations: {len(missing)} ids of the trials have no duration "
            f"({name_first(missing)}); add them"
        )
    enrol = [sum(durations[nfc(name)] for name in group) for group in items]
    probe = [durations[name] for name in sides.probe.ids]
    return log_measure("the durations", enrol), log_measure("the durations", probe)


def _warn_of_other_models(
    embeddings: Embeddings, probe: Embeddings | None, scoring: Scoring
) -> None:
    """Warns of what was made by another network than the embeddings of the enrolment side."""
    model = embeddings.meta.get("model")
    if not model:
        return
    for name, rows in (
        ("probe embeddings", probe),
        ("embeddings of the cohort", scoring.cohort),
        ("embeddings whose mean is subtracted", scoring.subtract_mean),
    ):
        other = rows.meta.get("model") if rows is not None else None
        if other and other != model:
            warnings.warn(
                f"the {name} say they are of another model ({other[:16]}) than the embeddings "
                f"({model[:16]}); they do not compare",
                stacklevel=4,
            )
    if scoring.plda is not None and scoring.plda.model and scoring.plda.model != model:
        warnings.warn(
            f"the PLDA was fitted on embeddings of another model ({scoring.plda.model[:16]}) than "
            f"these ({model[:16]})",
            stacklevel=4,
        )
