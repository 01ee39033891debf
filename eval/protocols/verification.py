"""1:1 verification: the metrics of a system with their thresholds, intervals and conventions.

`VerificationSettings` says what is measured and by which rule. `evaluate` measures one system.
`evaluate_together` in `likeness.eval.protocols.side_by_side` measures several, sets those on the
same trials against a reference, and splits the error rates by groups of subjects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.intervals import bootstrap
from likeness.eval.intervals.small_rates import with_exact_bounds
from likeness.eval.metrics import verification
from likeness.eval.metrics.evidence import dev_pav, elub
from likeness.eval.option import Option
from likeness.eval.results import Result, Terms, table, with_bounds, with_iso_terms
from likeness.eval.types import Floats, Scores, check_choice, freeze_numbers

Conventions = dict[str, str | float | int]
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


@dataclass(frozen=True)
class VerificationSettings:
    """What `evaluate` measures and by which rule. Every result names them.

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
    num_resamples: Annotated[int, Option("--resamples", least=0)] = 1000
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

    @property
    def costs(self) -> dict[str, float]:
        """The costs of the two errors, as keywords of the DCF."""
        return {"c_miss": self.c_miss, "c_fa": self.c_fa}


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What was measured of one system.

    Attributes:
        results: In the order of the table.
        resamples: The values behind the intervals; None where none were asked for.
        scores: What was measured.
        settings: By which rules and costs.
    """

    results: Sequence[Result]
    resamples: Mapping[str, Floats] | None
    scores: Scores
    settings: VerificationSettings = VerificationSettings()

    @cached_property
    def _by_metric(self) -> dict[str, Result]:
        return {result.metric: result for result in self.results}

    def result(self, metric: str) -> Result:
        """The result of a metric, by its name such as "eer" or "tar_at_far(0.01)".

        Raises:
            LikenessError: It was not measured.
        """
        if metric not in self._by_metric:
            raise LikenessError(
                f"{metric!r} was not measured; there is {', '.join(self._by_metric)}"
            )
        return self._by_metric[metric]

    @property
    def eer(self) -> float:
        """The equal error rate, a fraction. A lower EER is better."""
        return self.result("eer").value

    @property
    def interval(self) -> bootstrap.Ends | None:
        """The interval of the EER, None where there is none."""
        return self.result("eer").interval

    def threshold(self, *, far: float | None = None, p_target: float | None = None) -> float:
        """The threshold of an operating point: a trial is accepted if its score is at least this.

        Args:
            far: The largest share of the nontarget trials that may be accepted.
            p_target: A prior of a target trial, for the threshold of the minDCF at the costs of the
                settings. Without either, the threshold of the EER.

        Returns:
            The threshold; infinity where every trial has to be rejected.

        Raises:
            LikenessError: Both are given, or one is outside 0 to 1.
        """
        if far is not None and p_target is not None:
            raise LikenessError(
                f"far {far} and p_target {p_target} each set a threshold; give one of them"
            )
        target, nontarget = self.scores.targets, self.scores.nontargets
        if far is not None:
            return verification.tar_threshold(target, nontarget, far)
        if p_target is not None:
            return verification.min_dcf_threshold(
                target, nontarget, p_target=p_target, **self.settings.costs
            )
        return verification.threshold_at_eer(target, nontarget)

    def __repr__(self) -> str:
        return self.table().rstrip("\n")

    def table(self) -> str:
        """The results as an aligned table of text."""
        return table(self.results)


def evaluate(
    scores: Scores,
    settings: VerificationSettings = VerificationSettings(),
    *,
    subjects: ArrayLike | None = None,
    subjects_from: str = "",
    system: str = "scores",
    protocol: str = "verification 1:1",
) -> Evaluated:
    """EER, minDCF and TAR@FAR of one system, with thresholds and intervals; Cllr has none.

    Args:
        scores: P trials with labels.
        settings: What is measured and by which rule.
        subjects: (P, 2) integers, those of both sides. None resamples trials, which is optimistic.
        subjects_from: A phrase on where the subjects come from, or why there are none.
        system: Its name in tables; so is `protocol`.

    Raises:
        LikenessError: As in `likeness.eval.metrics.verification` and
        `likeness.eval.intervals.bootstrap`.

    >>> scores = Scores([3, 2, 1, 0, -1, -2], [True, True, False, True, False, False])
    >>> evaluated = evaluate(scores, VerificationSettings(num_resamples=0))
    >>> round(evaluated.eer, 3), evaluated.threshold(far=0.01)
    (0.333, 2.0)
    """
    target, nontarget = scores.targets, scores.nontargets
    measures = _measures(target, nontarget, settings)
    sizes = target.size, nontarget.size
    del target, nontarget  # millions of scores, which the intervals sort again
    intervals: dict[str, bootstrap.Bounds] = {}
    resamples = None
    if settings.num_resamples:
        resampled = {name: each.metric for name, each in measures.items() if each.metric}
        intervals, resamples = bootstrap.bounds_of(
            resampled, scores, subjects, **bootstrap.draws_of(settings)
        )
        values = {name: each.measured.value for name, each in measures.items()}
        intervals = with_exact_bounds(intervals, values, scores, subjects, settings)
        resamples.pop("balanced_accuracy")  # no further test: it is of the same ROC
    known = subjects is not None
    common: Conventions = {
        "ties": "one operating point per distinct score",
        "accept": "score >= threshold",
        "subjects_from": subjects_from or ("given" if known else "unknown: none were given"),
    }
    if resamples is not None:
        over = "subjects" if known else "trials: optimistic, trials share subjects"
        common |= {"interval": f"bootstrap over {over}", **bootstrap.draws_of(settings)}
    num_subjects = None if subjects is None else bootstrap.num_subjects(subjects)
    counts = {"targets": sizes[0], "nontargets": sizes[1], "subjects": num_subjects}
    results = []
    for name, (_, (value, limit), own) in measures.items():
        threshold = limit if np.isfinite(limit) else None
        result = Result(system, name, value, None, threshold, counts, own | common, protocol)
        results.append(with_bounds(result, intervals.get(name)))
    if settings.terms == "iso":
        results = with_iso_terms(results)
    return Evaluated(results, resamples, scores, settings)


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


def _measures(
    target: Floats, nontarget: Floats, settings: VerificationSettings
) -> dict[str, _Measure]:
    """Every metric by its name, in the order of the table. All come from one sort; a rule or costs
    other than the defaults cost one more.
    """
    measured = verification.verification_metrics(
        target,
        nontarget,
        p_targets=(*settings.p_targets, 0.5),
        fars=settings.fars,
        tar_rule=settings.tar_rule,
    )
    best = measured["min_dcf(0.5)"]
    metric: bootstrap.Metric = partial(verification.eer, method=settings.eer_method)
    if settings.eer_method != "interpolated":
        measured["eer"] = measured["eer"]._replace(value=metric(target, nontarget))
    measures = {
        "eer": _Measure(metric, measured["eer"], {"method": _EER_RULES[settings.eer_method]})
    }
    for p_target in settings.p_targets:
        name, costs = f"min_dcf({p_target:g})", {"p_target": p_target, **settings.costs}
        if (settings.c_miss, settings.c_fa) != (1.0, 1.0):
            threshold = verification.min_dcf_threshold(target, nontarget, **costs)
            measured[name] = verification.Measured(
                verification.min_dcf(target, nontarget, **costs), threshold
            )
        metric = partial(verification.min_dcf, **costs)
        normalised = {"normalised_by": "min(c_miss p_target, c_fa (1 - p_target))"}
        measures[name] = _Measure(metric, measured[name], costs | normalised)
    for far in settings.fars:
        name = f"tar_at_far({far:g})"
        conventions: Conventions = {"far": far, "rule": _TAR_RULES[settings.tar_rule]}
        if settings.tar_rule == "strict":
            conventions["nontargets_allowed"] = verification.num_allowed(far, nontarget.size)
        else:  # the other rules keep to no number of trials, and belong to no threshold
            measured[name] = measured[name]._replace(threshold=np.nan)
        metric = partial(verification.tar_at_far, far=far, rule=settings.tar_rule)
        measures[name] = _Measure(metric, measured[name], conventions)
    at_best = best._replace(value=1 - best.value / 2)
    measures["balanced_accuracy"] = _Measure(
        verification.balanced_accuracy, at_best, {"rule": _ACCURACY}
    )
    if settings.llr:
        measures |= _llr_measures(target, nontarget, settings)
    return measures


def _llr_measures(
    target: Floats, nontarget: Floats, settings: VerificationSettings
) -> dict[str, _Measure]:
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
        costs = {"p_target": p_target, **settings.costs}
        cost = verification.actual_dcf(target, nontarget, **costs)
        threshold = float(np.log(settings.c_fa * (1 - p_target) / (settings.c_miss * p_target)))
        rule = {"threshold_rule": "the Bayes threshold log(c_fa (1 - p) / (c_miss p))"}
        name = f"actual_dcf({p_target:g})"
        measures[name] = _Measure(None, verification.Measured(cost, threshold), costs | rule)
    return measures
