"""Embeddings and a trial list to scores or calibrated LLRs: the whole of `likeness score` as one
function, and of fitting its calibration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from eval import normalization, templates
from eval.calibration import by_side, cohort_mean, fit_calibration, load_calibration, log_measure
from eval.formats import embeddings as files
from eval.formats.subjects import read_mapping
from eval.formats.trials import read_trials, write_scores
from eval.plda import Plda, ScoringLength, load_plda
from eval.similarity import pairs, refuse_missing, warn_of_zeros
from eval.types import Embeddings, Floats, Floats32, Trials, name_first

Norm = Literal["as", "s", "z", "t"]
QUALITY = (
    "log_norm",
    "log_duration",
    "cohort_mean",
)  # measures of one side; a trial has the lower and the higher of its two


def score_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    probe_embeddings: Path | None = None,
    enrolment: Path | None = None,
    pooling: templates.Method = "mean",
    similarity: str | None = None,
    cohort: Path | None = None,
    cohort_subjects: Path | None = None,
    top_n: int = 300,
    norm: Norm = "as",
    subtract_mean: Path | None = None,
    plda: Path | None = None,
    scoring_length: ScoringLength | None = None,
    calibration: Path | None = None,
    durations: Path | None = None,
) -> str:
    """Score a trial list and write `enrol probe score [label]`; returns what was done, and
    warnings, as text.

    embeddings: of both sides, or of the enrolment side if probe_embeddings has the other.
    similarity: a name, else what the embeddings' meta says, else cosine.
    enrolment: `model item item ...` list (templates.read_enrolment): the trials' enrolment ids are
    models, pooled from their items by `pooling`.
    subtract_mean: embeddings whose mean is subtracted from all others, before pooling. cohort:
    embeddings of other subjects; the scores are then normalised: norm as (over each side's top_n
    cohort scores), or s, z, t (over the whole cohort). cohort_subjects: `id subject` list; its
    means become the cohort.
    plda: file of plda.fit_files: scores are its log-likelihood ratios, of a model's mean as of one
    item; without cohort. scoring_length: another length at scoring than the file's, a name of
    plda.SCORING_LENGTHS.
    calibration: file of `calibrate_files`: the scores become LLRs; its quality measures are worked
    out here, log_duration from `durations`, lines `id seconds`. Errors are those of reading,
    KeyError for ids without embedding (of all sides at once, all counted), and ValueError if the
    calibration is of another system.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = load_calibration(calibration) if calibration else None
        scored = _score(
            trials,
            embeddings,
            probe_embeddings,
            enrolment,
            pooling,
            similarity,
            cohort,
            cohort_subjects,
            top_n,
            norm,
            subtract_mean,
            plda,
            scoring_length,
        )
        values, done = scored.values, scored.system
        if fitted:
            if fitted.system and fitted.system != scored.system:
                raise ValueError(
                    f"{calibration}: fitted for [{fitted.system}], but these scores are "
                    f"[{scored.system}]; fit one for this system"
                )
            measures = list(dict.fromkeys(name.rpartition("_")[0] for name in fitted.names))
            if _names(measures) != fitted.names:
                raise ValueError(
                    f"{calibration}: its quality measures are {', '.join(fitted.names)}; score can "
                    f"work out {', '.join(QUALITY)}, low and high"
                )
            values = fitted.apply(
                values, _quality(scored, measures, durations) if measures else None
            )
            done += f", calibrated at p_target {fitted.p_target:g}"
        write_scores(out, scored.trials, values)
    return "\n".join([*_texts(caught), f"{len(scored.trials)} trials scored by {done} in {out}"])


def calibrate_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    probe_embeddings: Path | None = None,
    enrolment: Path | None = None,
    pooling: templates.Method = "mean",
    similarity: str | None = None,
    cohort: Path | None = None,
    cohort_subjects: Path | None = None,
    top_n: int = 300,
    norm: Norm = "as",
    subtract_mean: Path | None = None,
    plda: Path | None = None,
    scoring_length: ScoringLength | None = None,
    quality: Sequence[str] = (),
    durations: Path | None = None,
    p_target: float = 0.5,
) -> str:
    """Fit a calibration on a labelled trial list and write it as JSON for `score_files`; returns
    what was done, and warnings, as text.

    quality: of log_norm (raw embedding norm; a model's is that of its pooled items), log_duration
    (a model's is the sum of its items'), cohort_mean; each enters as the lower and the higher of
    the trial's two sides (differences, and ratios of what stands under the logarithm, are linear in
    these: WeSpeaker's QMF). The rest is as in `score_files`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        unknown = [one for one in quality if one not in QUALITY]
        if unknown:
            raise ValueError(
                f"unknown quality measures {name_first(unknown)}; choose from {', '.join(QUALITY)}"
            )
        scored = _score(
            trials,
            embeddings,
            probe_embeddings,
            enrolment,
            pooling,
            similarity,
            cohort,
            cohort_subjects,
            top_n,
            norm,
            subtract_mean,
            plda,
            scoring_length,
        )
        if scored.trials.target is None:
            raise ValueError(f"{trials} has no labels; a calibration is fitted on a labelled list")
        measures = _quality(scored, quality, durations) if quality else None
        fitted = fit_calibration(
            scored.values,
            scored.trials.target,
            quality=measures,
            names=_names(quality),
            p_target=p_target,
            system=scored.system,
        )
        fitted.save(out)
    return "\n".join(
        [
            *_texts(caught),
            f"calibration of {scored.system} fitted on {len(scored.trials)} trials at p_target "
            f"{p_target:g} in {out}",
        ]
    )


class _Scored(NamedTuple):
    """Trials, scores (P,), what gave them, and what quality comes from: each side's embeddings
    before mean subtraction, and i, j (P,) into them.
    """

    trials: Trials
    values: Floats
    system: str
    enrol: Embeddings
    probe: Embeddings
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    models: Mapping[str, Sequence[str]] | None
    cohort_mean_of: Callable[[], tuple[Floats, Floats]] | None


def _score(
    trials: Path,
    embeddings: Path,
    probe_embeddings: Path | None,
    enrolment: Path | None,
    pooling: templates.Method,
    similarity: str | None,
    cohort: Path | None,
    cohort_subjects: Path | None,
    top_n: int,
    norm: Norm,
    subtract_mean: Path | None,
    plda: Path | None,
    scoring_length: ScoringLength | None,
) -> _Scored:
    if norm not in get_args(Norm):
        raise ValueError(f"unknown norm {norm!r}; choose one of {', '.join(get_args(Norm))}")
    if plda and (similarity or cohort):
        raise ValueError(
            "--plda is a similarity of its own, which is not normalised: leave out "
            f"{'--similarity' if similarity else '--cohort'}"
        )
    if scoring_length and not plda:
        raise ValueError(
            f"scoring length {scoring_length!r} without a PLDA; give its file with --plda"
        )
    listed = read_trials(trials)
    models = templates.read_enrolment(enrolment) if enrolment else None
    held = files.read(embeddings)
    probe = files.read(probe_embeddings) if probe_embeddings else held
    others = files.read(cohort) if cohort else None
    mean = files.read(subtract_mean) if subtract_mean else None
    _warn_of_strangers(
        [
            (path, one)
            for path, one in (
                (embeddings, held),
                (probe_embeddings, probe),
                (cohort, others),
                (subtract_mean, mean),
            )
            if one and path
        ]
    )
    used = (
        tuple(dict.fromkeys(item for model in listed.enrol_ids for item in models.get(model, ())))
        if models
        else listed.enrol_ids
    )
    if models is not None:
        models = {model: models[model] for model in listed.enrol_ids if model in models}
        absent = [model for model in listed.enrol_ids if model not in models]
        if absent:
            raise KeyError(
                f"{enrolment}: {len(absent)} of {len(listed.enrol_ids)} enrolment ids of the "
                f"trials are no models of this list ({name_first(absent)})"
            )
    refuse_missing(
        [
            ("enrolment item" if models is not None else "enrolment", used, held),
            ("probe", listed.probe_ids, probe),
        ]
    )
    if others is not None:
        others = _cohort(others, cohort_subjects, {*used, *listed.probe_ids})

    def centred(one: Embeddings) -> Embeddings:
        return (
            one
            if mean is None
            else Embeddings(one.ids, normalization.subtract_mean(one.matrix, mean.matrix), one.meta)
        )

    def enrolled(one: Embeddings) -> Embeddings:
        return one if models is None else templates.enrol(one, models, method=pooling)

    one_side = (
        models is None and probe is held
    )  # then one matrix serves both sides, and the cohort is scored once
    together = tuple(dict.fromkeys(listed.enrol_ids + listed.probe_ids))
    raw_enrol = _only(enrolled(held), together if one_side else listed.enrol_ids)
    raw_probe = raw_enrol if one_side else _only(probe, listed.probe_ids)
    warn_of_zeros(
        *(
            (one, np.arange(len(one.ids)))
            for one in ([raw_enrol] if one_side else [raw_enrol, raw_probe])
        )
    )
    left = (
        centred(raw_enrol).matrix
        if models is None
        else _only(enrolled(centred(held)), listed.enrol_ids).matrix
    )
    right = left if one_side else centred(raw_probe).matrix
    i, j = (
        raw_enrol.rows(listed.enrol_ids)[listed.enrol],
        raw_probe.rows(listed.probe_ids)[listed.probe],
    )
    name = "plda" if plda else similarity or held.meta.get("similarity") or "cosine"
    fitted = _fitted(plda, scoring_length, held.meta.get("model", "")) if plda else None
    values = fitted.score(left, right, i, j) if fitted else pairs(left, right, i, j, name)
    system = (
        name
        + (f", {pooling} of the enrolment items" if models is not None else "")
        + (", mean subtracted" if mean is not None else "")
    )
    cohort_mean_of = None
    if others is not None:
        against = centred(others).matrix
        values = _normalised(values, left, right, against, i, j, norm, top_n, name)
        system += f", {norm}_norm" + (
            f" over the top {top_n} of the cohort" if norm == "as" else ""
        )
        kept = top_n if norm == "as" else None

        def cohort_mean_of() -> tuple[Floats, Floats]:
            return cohort_mean(left, against, top_n=kept, similarity=name), cohort_mean(
                right, against, top_n=kept, similarity=name
            )

    system += f", model {held.meta['model'][:16]}" if held.meta.get("model") else ""
    system += (
        f", scoring length {fitted.scoring_length}"
        if fitted and fitted.scoring_length != "none"
        else ""
    )
    return _Scored(listed, values, system, raw_enrol, raw_probe, i, j, models, cohort_mean_of)


def _fitted(path: Path, scoring_length: ScoringLength | None, model: str) -> Plda:
    fitted = load_plda(path)
    if model and fitted.model and model != fitted.model:
        warnings.warn(
            f"{path} was fitted on embeddings of another model ({fitted.model[:16]}) than these "
            f"({model[:16]})",
            stacklevel=2,
        )
    return replace(fitted, scoring_length=scoring_length) if scoring_length else fitted


def _normalised(
    values: Floats,
    left: Floats32,
    right: Floats32,
    cohort: Floats32,
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    norm: Norm,
    top_n: int,
    similarity: str,
) -> Floats:
    if norm == "z":
        return normalization.z_norm(values, left, cohort, i=i, similarity=similarity)
    if norm == "t":
        return normalization.t_norm(values, right, cohort, j=j, similarity=similarity)
    return normalization.s_norm(
        values,
        left,
        right,
        cohort,
        top_n=top_n if norm == "as" else None,
        i=i,
        j=j,
        similarity=similarity,
    )


def _cohort(cohort: Embeddings, subjects: Path | None, trial_ids: set[str]) -> Embeddings:
    shared = [one for one in cohort.ids if one in trial_ids]
    if shared:
        warnings.warn(
            f"{len(shared)} of {len(cohort.ids)} cohort ids are also in the trials "
            f"({name_first(shared)}); a cohort holds other subjects",
            stacklevel=2,
        )
    if subjects is None:
        return cohort
    subject_of = read_mapping(subjects)
    missing = [one for one in cohort.ids if one not in subject_of]
    if missing:
        raise KeyError(
            f"{subjects}: {len(missing)} of {len(cohort.ids)} cohort ids have no subject "
            f"({name_first(missing)})"
        )
    return templates.pool(cohort, [subject_of[one] for one in cohort.ids])


def _only(embeddings: Embeddings, ids: tuple[str, ...]) -> Embeddings:
    """The embeddings of these ids in this order: rows then go by the trials' own numbers."""
    return (
        embeddings
        if ids == embeddings.ids
        else Embeddings(ids, embeddings.matrix[embeddings.rows(ids)], embeddings.meta)
    )


def _names(measures: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{one}_{side}" for one in measures for side in ("low", "high"))


def _quality(scored: _Scored, measures: Sequence[str], durations: Path | None) -> Floats:
    """(P, 2 K) of the K measures."""
    columns = []
    for one in measures:
        if one == "log_norm":
            sides = (
                log_measure("the norm", scored.enrol.norms),
                log_measure("the norm", scored.probe.norms),
            )
        elif one == "log_duration":
            sides = _log_durations(scored, durations)
        elif scored.cohort_mean_of is None:
            raise ValueError("the quality measure cohort_mean needs a cohort")
        else:
            sides = scored.cohort_mean_of()
        columns.append(by_side(*sides, scored.i, scored.j))
    return np.concatenate(columns, axis=1)


def _log_durations(scored: _Scored, durations: Path | None) -> tuple[Floats, Floats]:
    if durations is None:
        raise ValueError(
            "the quality measure log_duration needs a durations file with lines `id seconds`"
        )
    seconds = read_mapping(durations)
    items = [
        scored.models[one] if scored.models is not None else (one,) for one in scored.enrol.ids
    ]
    missing = [
        one
        for one in dict.fromkeys(
            [item for group in items for item in group] + list(scored.probe.ids)
        )
        if one not in seconds
    ]
    if missing:
        raise KeyError(
            f"{durations}: {len(missing)} ids of the trials have no duration "
            f"({name_first(missing)})"
        )
    try:
        enrol = [sum(float(seconds[item]) for item in group) for group in items]
        probe = [float(seconds[one]) for one in scored.probe.ids]
    except ValueError as error:
        raise ValueError(f"{durations}: {error}; expected lines `id seconds`") from None
    return log_measure(f"{durations}", enrol), log_measure(f"{durations}", probe)


def _warn_of_strangers(given: Sequence[tuple[Path, Embeddings]]) -> None:
    for path, one in given[1:]:
        mine, first = one.meta.get("model"), given[0][1].meta.get("model")
        if mine and first and mine != first:
            warnings.warn(
                f"{path} says it is of another model ({mine[:16]}) than {given[0][0]} "
                f"({first[:16]}); their embeddings do not compare",
                stacklevel=2,
            )


def _texts(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    return list(dict.fromkeys(f"warning: {one.message}" for one in caught))
