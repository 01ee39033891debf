"""Verification under attack: three classes of trials, of which spoofs imitate the target.

A trial is a target, a nontarget or a spoof trial. The verifier gives a score; a countermeasure may
give another one, which is higher for bona fide trials, those of targets and nontargets. SASV-EER
pools nontargets and spoofs. The a-DCF (Shim et al. 2024) weighs the three errors of one score:

    c_miss p_target P_miss + c_fa p_nontarget P_fa + c_fa_spoof p_spoof P_fa_spoof

divided by the cost of the better system without scores. The t-DCF (Kinnunen et al. 2020) is of a
tandem that accepts what both accept, with the verifier at its EER threshold, and the t-EER
(Kinnunen et al. 2023) is the rate at which the three errors of a tandem are the same. APCER and
BPCER (ISO/IEC 30107-3) are the errors of the countermeasure alone: the share of attacks, of the
kind for which it is highest, that pass, and the share of bona fide trials that do not.

Ties form one operating point. The costs are those of ASVspoof 5.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.intervals.bootstrap import draws_of
from likeness.eval.intervals.uncertainty import bounds_over_rows
from likeness.eval.metrics import verification
from likeness.eval.results import Result, metric_beside
from likeness.eval.types import Floats, Trials, respell

_ROUNDING = 1e-12  # of rates that are equal
NUM_RESAMPLES = 200  # at most: each draw is measured anew


@dataclass(frozen=True)
class SpoofCosts:
    """Priors of the three classes, and the costs of their errors; see the module."""

    p_target: float = 0.9
    p_nontarget: float = 0.05
    p_spoof: float = 0.05
    c_miss: float = 1.0
    c_fa: float = 10.0
    c_fa_spoof: float = 20.0

    @property
    def weights(self) -> tuple[float, float, float]:
        """What each class costs if all of it is decided wrongly: targets, nontargets, spoofs."""
        miss, fa = self.c_miss * self.p_target, self.c_fa * self.p_nontarget
        return miss, fa, self.c_fa_spoof * self.p_spoof

    def a_dcf(self, miss: Any, fa: Any, fa_spoof: Any) -> Any:
        """The normalised a-DCF of three rates of errors."""
        a, b, c = self.weights
        return (a * miss + b * fa + c * fa_spoof) / min(a, b + c)


TANDEM = SpoofCosts(0.95 * 0.99, 0.95 * 0.01, 0.05, 1.0, 10.0, 10.0)
"""The costs of the t-DCF in ASVspoof 5."""


def sasv_eer(target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike) -> float:
    """The EER of targets against nontargets and spoofs together.

    >>> sasv_eer([2.0, 3.0], [0.0], [1.0, 2.5, 0.5])
    0.25
    """
    return verification.eer(target, np.concatenate([nontarget, spoof]))


def min_a_dcf(
    target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike, costs: SpoofCosts = SpoofCosts()
) -> verification.Measured:
    """The least normalised a-DCF over all thresholds, and the lowest target score that reaches it.

    >>> round(min_a_dcf([2.0, 3.0], [0.0], [1.0, 2.5]).value, 4)
    0.5
    """
    thresholds, misses, accepts = verification.sort_scores(target, nontarget).corners
    spoofs = verification.sort_scores(target, spoof).corners[2]
    cost = costs.a_dcf(misses / misses[-1], accepts / np.size(nontarget), spoofs / np.size(spoof))
    best = int(np.argmin(cost))
    return verification.Measured(float(cost[best]), float(np.append(thresholds, np.inf)[best]))


def actual_a_dcf(
    target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike, costs: SpoofCosts = SpoofCosts()
) -> float:
    """The normalised a-DCF of log-likelihood ratios at the Bayes threshold.

    The ratio is that of a target to a nontarget or spoof in the proportion of their weights, and
    the threshold log(sum of these weights / weight of a target).

    >>> actual_a_dcf([2.0, 3.0], [0.0], [1.0, -2.5])
    0.5555555555555556
    """
    miss, fa, fa_spoof = costs.weights
    limit = np.log((fa + fa_spoof) / miss)
    accepted = (np.mean(np.asarray(of) >= limit) for of in (nontarget, spoof))
    return float(costs.a_dcf(np.mean(np.asarray(target) < limit), *accepted))


def min_t_dcf(
    asv: Sequence[ArrayLike], cm: Sequence[ArrayLike], costs: SpoofCosts = TANDEM
) -> float:
    """The least normalised t-DCF over the thresholds of the countermeasure.

    What the verifier costs by itself is left out, as in ASVspoof 2019 and 5. It is NaN where the
    verifier alone lets no spoof pass, so that a countermeasure cannot help.

    Args:
        asv: The verifier's scores of targets, nontargets and spoofs.
        cm: The countermeasure's scores of the same.
        costs: Priors and costs.

    >>> min_t_dcf(([2.0, 3.0], [0.0], [2.5]), ([1.0, 2.0], [3.0], [0.0]))
    0.0
    """
    target, nontarget, spoof = map(np.asarray, asv)
    limit = verification.measured_eer(verification.sort_scores(target, nontarget)).threshold
    miss, fa, fa_spoof = costs.weights
    own = miss * np.mean(target < limit) + fa * np.mean(nontarget >= limit)
    second = fa_spoof * np.mean(spoof >= limit)
    _, accepted, missed = verification.roc(np.concatenate(cm[:2]), cm[2])
    cost = (miss - own) * missed + second * accepted
    least = min(miss - own, second)
    return float(cost.min() / least) if least > 0 else float("nan")


def t_eer(asv: Sequence[ArrayLike], cm: Sequence[ArrayLike]) -> float:
    """The concurrent t-EER: where miss, false accept and spoof accept rates of a tandem are equal.

    For each threshold of the verifier, the countermeasure's is taken at which the misses of the
    tandem are nearest to its false accepts, the lowest of several. Of these pairs that one counts
    whose spoof accepts are nearest to both, by the rule of the ASVspoof 5 package.

    Args:
        asv: The verifier's scores of targets, nontargets and spoofs.
        cm: The countermeasure's scores of the same.

    >>> t_eer(([2.0, 3.0], [0.0], [2.5]), ([1.0, 2.0], [3.0], [0.0]))
    0.0
    """
    classes = [np.sort(np.asarray(of, np.float64)) for of in asv]
    limits = np.append(np.unique(np.concatenate(classes)), np.inf)
    _, fa, fa_spoof = ((of.size - np.searchsorted(of, limits)) / of.size for of in classes)
    miss = np.searchsorted(classes[0], limits) / classes[0].size
    _, passed, blocked = verification.roc(np.concatenate(cm[:2]), cm[2])
    usable = (miss < fa) & (fa_spoof > 0)
    miss, fa, fa_spoof = miss[usable], fa[usable], fa_spoof[usable]
    crossing = (fa - miss) / (1 + fa - miss)  # the misses of the countermeasure that balance these
    after = np.clip(np.searchsorted(blocked, crossing), 1, blocked.size - 1)
    middle = (blocked[after - 1] + blocked[after]) / 2
    nearer = np.where(crossing <= middle + _ROUNDING, after - 1, after)
    at = np.searchsorted(blocked, blocked[nearer])
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(fa / fa_spoof - passed[at] / (1 - blocked[at]))
    best = int(np.argmax(apart <= np.nanmin(apart) + _ROUNDING))
    return float(fa_spoof[best] * passed[at[best]])


def apcer(spoof: ArrayLike, threshold: float, kinds: ArrayLike | None = None) -> float:
    """The APCER: the share of attacks that pass, of the kind for which it is highest.

    Args:
        spoof: (S,) scores of the countermeasure.
        threshold: From which on a score passes.
        kinds: (S,) the kind of each attack; None for one kind.

    >>> apcer([0.0, 1.0, 1.0], 0.5, ["replay", "replay", "synthesis"])
    1.0
    """
    passed = np.asarray(spoof) >= threshold
    codes = np.unique(np.zeros(passed.size) if kinds is None else kinds, return_inverse=True)[1]
    return float((np.bincount(codes, passed) / np.bincount(codes)).max())


def bpcer_at_apcer(bona_fide: ArrayLike, spoof: ArrayLike, rate: float) -> float:
    """The BPCER, the share of bona fide trials refused, where the APCER is at most `rate`.

    At 10, 5 and 1 % it is the BPCER10, BPCER20 and BPCER100 of the standard.

    >>> bpcer_at_apcer([2.0, 3.0], [0.0, 2.5], 0.0)
    0.5
    """
    return 1 - verification.tar_at_far(bona_fide, spoof, rate)


def spoof_results(
    trials: Trials,
    values: Floats,
    countermeasure: Floats | None,
    subject_of: Mapping[str, str],
    settings: Any,
    of: Result,
) -> list[Result]:
    """What spoofs do to a verifier, alone or in a tandem, with intervals over subjects.

    Args:
        trials: P trials, of which some are spoofs of the enrolled subject.
        values: (P,) the verifier's scores.
        countermeasure: (P,) its scores, or None.
        subject_of: Id -> subject; where enrolments have none, intervals are over trials.
        settings: The draws, and whether scores are log-likelihood ratios.
        of: A result of the same system on targets and nontargets.
    """
    assert trials.target is not None
    assert trials.spoof is not None
    classes = np.where(trials.target, 0, np.where(trials.spoof, 2, 1))
    subject_of = respell(subject_of, trials.enrol_ids + trials.probe_ids)
    enrolled = [subject_of.get(id) for id in trials.enrol_ids]
    subjects = None
    if None not in enrolled:
        probes = [subject_of.get(id) or id for id in trials.probe_ids]
        codes = np.unique(np.array([*enrolled, *probes]), return_inverse=True)[1]
        enrol, probe = codes[trials.enrol], codes[len(enrolled) :][trials.probe]
        # who imitates a subject counts as another one, drawn by itself
        subjects = np.stack([enrol, np.where(trials.spoof, codes.max() + 1 + enrol, probe)], axis=1)
    scores = [values] if countermeasure is None else [values, countermeasure]

    def measure(metric: Callable[..., float], *rows: NDArray[Any]) -> float:
        """A metric of the trials whose numbers are these."""
        drawn = np.concatenate(rows).astype(np.int64)
        of = [drawn[classes[drawn] == kind] for kind in range(3)]
        if not all(kind.size for kind in of):  # of a draw
            return float("nan")
        return float(metric(*([each[kind] for kind in of] for each in scores)))

    chosen = _ALONE | ({"actual_a_dcf": lambda asv, *_: actual_a_dcf(*asv)} if settings.llr else {})
    chosen |= _TANDEM if len(scores) > 1 else {}
    metrics = {name: partial(measure, metric) for name, metric in chosen.items()}
    draws = draws_of(settings) | {"num_resamples": min(settings.num_resamples, NUM_RESAMPLES)}
    intervals = {}
    if settings.num_resamples:
        intervals = bounds_over_rows(metrics, trials.target, subjects, **draws)
    results = []
    for name, metric in metrics.items():
        costs = asdict(TANDEM if "t_dcf" in name else SpoofCosts()) if "dcf" in name else {}
        if not np.isnan(value := metric(np.arange(len(trials)))):
            results.append(metric_beside(of, name, value, intervals.get(name), **draws, **costs))
    return results


# Of the scores of targets, nontargets and spoofs, and of those of a countermeasure.
_ALONE: dict[str, Callable[..., float]] = {
    "eer_spoof": lambda asv, *_: verification.eer(asv[0], asv[2]),
    "sasv_eer": lambda asv, *_: sasv_eer(*asv),
    "min_a_dcf": lambda asv, *_: min_a_dcf(*asv).value,
}
_TANDEM: dict[str, Callable[..., float]] = {
    "min_t_dcf": min_t_dcf,
    "t_eer": t_eer,
    "cm_eer": lambda _, cm: verification.eer(np.concatenate(cm[:2]), cm[2]),
    "bpcer_at_apcer(0.1)": lambda _, cm: bpcer_at_apcer(np.concatenate(cm[:2]), cm[2], 0.1),
    "bpcer_at_apcer(0.01)": lambda _, cm: bpcer_at_apcer(np.concatenate(cm[:2]), cm[2], 0.01),
}
