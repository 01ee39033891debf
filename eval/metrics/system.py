"""The metrics of one verification system, with their thresholds, intervals and conventions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.intervals import bootstrap
from likeness.eval.intervals.small_rates import add_exact_bounds, note_few_errors
from likeness.eval.metrics import verification
from likeness.eval.metrics.evidence import dev_pav, elub
from likeness.eval.option import Option
from likeness.eval.results import Conventions, Result, Terms, add_iso_terms
from likeness.eval.types import Floats, Scores, check_choice, freeze_numbers

_EER_RULES = {
    "interpolated": "interpolated between the two ROC points around FAR = FRR",
    "convex_hull": "on the convex hull of the ROC (ROCCH)",
    "nearest": "mean of FAR and FRR at the ROC point where they are nearest",
}
_TAR_RULES = {
    "strict": "strict: score > the (floor(far N) + 1)-th largest nontarget score",
    "nearest": "nearest: the ROC point of the nearest FAR, which may exceed it",
    "interpolated": "interpolated: linear between adjacent ROC points",
}
_ACCURACY = "the mean of TAR and 1 - FAR at the best threshold of these trials: optimistic"

NumResamples = Annotated[int, Option("--resamples", least=0, most=bootstrap.MOST_RESAMPLES)]


@dataclass(frozen=True)
class VerificationSettings:
    """What `likeness.evaluate` measures and by which rule. Every result names them.

    Attributes:
        p_targets: A prior of a target trial for minDCF; there may be several.
        c_miss: The cost of a miss in the DCF.
        c_fa: The cost of a false accept in the DCF.
        fars: A false-accept rate of TAR@FAR; there may be several.
        eer_method: How the EER is read off the ROC. See `likeness.eval.metrics.verification.eer`.
        tar_rule: Which threshold belongs to a FAR. See
            `likeness.eval.metrics.verification.tar_at_far`.
        llr: The scores are log-likelihood ratios: Cllr, minCllr and the actual DCF are added.
        terms: With iso, the FNMR stands beside each TAR, as in ISO/IEC 19795-1.
        level: The share of the resamples that an interval spans.
        num_resamples: Draws of the bootstrap; 0 leaves the intervals out.
        seed: The seed of the draws.

    Raises:
        LikenessError: A rule is unknown, or a number is outside its range.

    >>> VerificationSettings(tar_rule="loose")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown tar_rule 'loose'; choose one of strict, nearest, interpolated
    """

    p_targets: Annotated[Sequence[float], Option("--p-target")] = (0.01, 0.05)
    c_miss: float = 1.0
    c_fa: float = 1.0
    fars: Annotated[Sequence[float], Option("--far")] = (1e-1, 1e-2, 1e-3)
    eer_method: verification.EerMethod = "interpolated"
    tar_rule: verification.TarRule = "strict"
    llr: bool = False
    terms: Terms = "likeness"
    level: float = 0.95
    num_resamples: NumResamples = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        freeze_numbers(self, "p_targets", "fars")
        check_choice("eer_method", self.eer_method, get_args(verification.EerMethod))
        check_choice("tar_rule", self.tar_rule, get_args(verification.TarRule))
        check_choice("terms", self.terms, get_args(Terms))
        for p_target in self.p_targets or (0.5,):
            verification.check_costs(p_target, self.c_miss, self.c_fa)
        for far in self.fars:
            verification.check_rate("far", far)
        bootstrap.check_draws(self.level, self.num_resamples, self.seed)


Resamples = Mapping[str, Floats]
"""Metric -> its values (R,) on the draws behind its interval."""


def measure_system(
    scores: Scores,
    settings: VerificationSettings = VerificationSettings(),
    *,
    subjects: ArrayLike | None = None,
    subjects_from: str = "",
    system: str = "scores",
    protocol: str = "verification 1:1",
) -> tuple[list[Result], Resamples | None]:
    """EER, minDCF and TAR@FAR of one system, with thresholds and intervals; Cllr has none.

    Args:
        scores: P trials with labels.
        settings: What is measured and by which rule.
        subjects: (P, 2) integers, those of both sides. None resamples trials, which is optimistic.
        subjects_from: A phrase on where the subjects come from, or why there are none.
        system: Its name in tables; so is `protocol`.

    Returns:
        The results in the order of the table, and the resamples behind their intervals; None where
        none were asked for.

    Raises:
        LikenessError: As in `likeness.eval.metrics.verification` and
            `likeness.eval.intervals.bootstrap`.

    Example:
        >>> scores = Scores([3, 2, 1, 0, -1, -2], [True, True, False, True, False, False])
        >>> results, _ = measure_system(scores, VerificationSettings(num_resamples=0))
        >>> results[0].metric, round(results[0].value, 3)
        ('eer', 0.333)
    """
    target, nontarget = scores.targets, scores.nontargets
    measures = _measures(target, nontarget, settings)
    sizes = target.size, nontarget.size
    del target, nontarget  # millions of scores, which the intervals sort again
    intervals: dict[str, bootstrap.Bounds] = {}
    resamples = None
    level, num_resamples, seed = settings.level, settings.num_resamples, settings.seed
    draws: dict[str, Any] = {"level": level, "num_resamples": num_resamples, "seed": seed}
    if num_resamples:
        resampled = {name: each.metric for name, each in measures.items() if each.metric}
        values = {name: each.measured.value for name, each in measures.items()}
        intervals, resamples = bootstrap.bounds_of(resampled, scores, subjects, values, **draws)
        costs = {"c_miss": settings.c_miss, "c_fa": settings.c_fa}
        intervals = add_exact_bounds(intervals, values, scores, subjects, level, **costs)
        best = measures["balanced_accuracy"].measured.threshold
        intervals = note_few_errors(intervals, scores, subjects, best)
        resamples.pop("balanced_accuracy")  # no further test: it is of the same ROC
    known = subjects is not None
    common: Conventions = {
        "ties": "one operating point per distinct score",
        "accept": "score >= threshold",
        "subjects_from": subjects_from or ("given" if known else "unknown: none were given"),
    }
    if resamples is not None:
        over = "subjects" if known else "trials: optimistic, trials share subjects"
        common |= {"interval": f"bootstrap over {over}", **draws}
    num_subjects = None if subjects is None else bootstrap.num_subjects(subjects)
    counts = {"targets": sizes[0], "nontargets": sizes[1], "subjects": num_subjects}
    results = []
    for name, (_, (value, limit), own) in measures.items():
        threshold = limit if np.isfinite(limit) else None
        ends, note = intervals.get(name, bootstrap.Bounds(None))
        stated = own | common | ({"interval_note": note} if note else {})
        results.append(Result(system, name, value, ends, threshold, counts, stated, protocol))
    if settings.terms == "iso":
        results = add_iso_terms(results)
    return results, resamples


class _Measure(NamedTuple):
    """One metric of a system.

    Attributes:
        metric: The function to resample; None where the metric has no interval.
        measured: The value and its threshold, NaN where there is none.
        conventions: Those of this metric alone.
    """

    metric: bootstrap.Metric | None
    measured: verification.Measured
    conventions: Conventions


_Measures = dict[str, _Measure]  # by their names


def _measures(target: Floats, nontarget: Floats, settings: VerificationSettings) -> _Measures:
    """Every metric by its name, in the order of the table, on one sort."""
    ordered = verification.sort_scores(target, nontarget)
    metric: bootstrap.Metric = partial(verification.eer, method=settings.eer_method)
    measured = verification.measured_eer(ordered, settings.eer_method)
    measures = {"eer": _Measure(metric, measured, {"method": _EER_RULES[settings.eer_method]})}
    normalised = {"normalised_by": "min(c_miss p_target, c_fa (1 - p_target))"}
    for p_target in settings.p_targets:
        costs = {"p_target": p_target, "c_miss": settings.c_miss, "c_fa": settings.c_fa}
        metric = partial(verification.min_dcf, **costs)
        measured = verification.measured_min_dcf(ordered, **costs)
        measures[f"min_dcf({p_target:g})"] = _Measure(metric, measured, costs | normalised)
    for far in settings.fars:
        conventions: Conventions = {"far": far, "rule": _TAR_RULES[settings.tar_rule]}
        measured = verification.measured_tar(ordered, far, settings.tar_rule)
        if settings.tar_rule == "strict":
            conventions["nontargets_allowed"] = verification.num_allowed(far, nontarget.size)
        else:  # the other rules keep to no number of trials, and belong to no threshold
            measured = measured._replace(threshold=np.nan)
        metric = partial(verification.tar_at_far, far=far, rule=settings.tar_rule)
        measures[f"tar_at_far({far:g})"] = _Measure(metric, measured, conventions)
    best = verification.measured_min_dcf(ordered, 0.5)
    measures["balanced_accuracy"] = _Measure(
        verification.balanced_accuracy, best._replace(value=1 - best.value / 2), {"rule": _ACCURACY}
    )
    if settings.llr:
        measures |= _llr_measures(target, nontarget, settings)
    return measures


def _llr_measures(target: Floats, nontarget: Floats, settings: VerificationSettings) -> _Measures:
    """What log-likelihood ratios are measured by in addition."""
    bits, least = verification.cllr(target, nontarget), verification.min_cllr(target, nontarget)
    of_bits: Conventions = {"unit": "bits", "scores": "log-likelihood ratios"}
    of_least: Conventions = {"unit": "bits", "pooling": "adjacent violators over tied groups"}
    measures = {
        "cllr": _Measure(None, verification.Measured(bits, np.nan), of_bits),
        "min_cllr": _Measure(None, verification.Measured(least, np.nan), of_least),
    }
    tens: Conventions = {"unit": "powers of ten", "scores": "log-likelihood ratios"}
    evidence = dev_pav(target, nontarget), *elub(target, nontarget)
    for name, value in zip(("dev_pav", "elub_lower", "elub_upper"), evidence, strict=True):
        if np.isfinite(value):
            measures[name] = _Measure(None, verification.Measured(value, np.nan), tens)
    for p_target in settings.p_targets:
        costs = {"p_target": p_target, "c_miss": settings.c_miss, "c_fa": settings.c_fa}
        cost = verification.actual_dcf(target, nontarget, **costs)
        threshold = float(np.log(settings.c_fa * (1 - p_target) / (settings.c_miss * p_target)))
        rule = {"threshold_rule": "the Bayes threshold log(c_fa (1 - p) / (c_miss p))"}
        name = f"actual_dcf({p_target:g})"
        measures[name] = _Measure(None, verification.Measured(cost, threshold), costs | rule)
    return measures
