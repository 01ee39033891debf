"""How much error rates differ between groups, by the measures of ISO/IEC 19795-10.

At the one threshold of all trials each group has an FMR, the share of its nontarget trials that are
accepted, and an FNMR, the share of its target trials that are rejected. Two numbers say how far
these are apart: the rate of the worst group over the geometric mean of all groups, and the Gini
coefficient, which is 0 for equal rates and 1 where one group has all errors. With G rates x it is

    G / (G - 1) * sum_i sum_j |x_i - x_j| / (2 G sum_i x_i)

Both are above 1 and 0 by chance alone, the more the fewer people a group has. So they are computed
again with the groups dealt to the same people at random, which keeps the sizes of the groups and
everything that people share. A difference that random groups show as often is no finding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.types import Bools, Floats, Ints, Scores

MEASURES = {"worst_to_geometric_mean": "worst to geometric mean", "gini": "Gini coefficient"}
NUM_DEALT = 200  # random divisions into groups, at most
RARE = 0.05  # a share of random divisions by which chance is hardly the reason


@dataclass(frozen=True)
class Differential:
    """How far one rate of the groups is apart, by one measure at one threshold.

    Attributes:
        rate: "fmr" or "fnmr".
        at: The threshold of all trials: "eer" or a FAR.
        measure: "worst_to_geometric_mean" or "gini".
        worst: The group with the highest rate.
        value: Of the measure; None where it has none, as where a group shows no error.
        interval: Of that, over subjects; None where there is none.
        by_chance: What 95 % of random divisions of these people into such groups stay below; None
            where that has no bound, where people change their group, and where fewer than 19
            divisions were drawn.
    """

    rate: str
    at: str
    measure: str
    worst: str
    value: float | None
    interval: tuple[float, float] | None
    by_chance: float | None

    def sentence(self) -> str:
        """What the number shows, for everybody."""
        name = f"{self.rate.upper()} at {self.at}"
        if self.value is None:
            why = "a group has no such trials, or none shows an error"
            return f"{name}: {why}, so that nothing can be compared."
        verb = "accepts strangers" if self.rate == "fmr" else "refuses the right person"
        text = f"a group shows no error; the Gini coefficient is {self.value:.2f}"
        if self.measure != "gini":
            text = f"in group {self.worst} the system {verb} {self.value:.2f} times as often as in "
            text += "the geometric mean of the groups"
        chance = "what chance alone would show has no bound here"
        if self.by_chance is not None:
            verdict = "is hardly" if self.value > self.by_chance else "may be"
            chance = (
                f"the same people, dealt to such groups at random, show up to {self.by_chance:.2f} "
                f"in 95 of 100 cases, so that chance alone {verdict} the reason"
            )
        return f"{name}: {text}; {chance}."


def worst_to_geometric_mean(rates: ArrayLike) -> Floats:
    """The highest rate over the geometric mean of all.

    Args:
        rates: (..., G) of G groups.

    Returns:
        (...) ratios, NaN where a rate is 0 or NaN.

    >>> worst_to_geometric_mean([0.01, 0.04]).round(6).tolist()
    2.0
    """
    values = np.asarray(rates, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Floats = values.max(axis=-1) / np.exp(np.log(values).mean(axis=-1))
    return np.where(np.isfinite(ratios), ratios, np.nan)


def gini(rates: ArrayLike) -> Floats:
    """The Gini coefficient of the rates of groups.

    Args:
        rates: (..., G) of G groups.

    Returns:
        (...) coefficients from 0 to 1, NaN where all rates are 0 or one is NaN.

    >>> gini([0.01, 0.01]).tolist(), gini([0.0, 0.0, 0.02]).round(6).tolist()
    (0.0, 1.0)
    """
    values = np.asarray(rates, dtype=np.float64)
    size = values.shape[-1]
    apart = np.abs(values[..., :, None] - values[..., None, :]).sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(apart / (2 * (size - 1) * values.sum(axis=-1)))


def differentials(
    scores: Scores,
    subjects: Ints,
    sides: Ints,
    names: Sequence[str],
    thresholds: Mapping[str, float],
    draws: Sequence[Mapping[str, Floats]],
    settings: Any,
) -> tuple[Differential, ...]:
    """How far FMR and FNMR of the groups are apart at each threshold.

    Args:
        scores: P trials.
        subjects: (P, 2) numbers of the subjects of both sides.
        sides: (P, 2) numbers of their groups; trials of any other group are left out.
        names: Of the G groups.
        thresholds: "eer" or a FAR -> the threshold.
        draws: Of each group "global_far(AT)" and "global_tar(AT)" -> (R,) resampled rates.
        settings: The level of the intervals, and how many draws there are, with their seed.
    """
    size, limits = len(names), [*thresholds.values()]
    people, flat = np.unique(subjects, return_inverse=True)
    numbers = flat.reshape(subjects.shape)
    group_of = np.full(people.size, -1)
    group_of[numbers] = sides
    rng, measured = np.random.default_rng(settings.seed), []
    dealt: list[Ints] = []
    num_dealt = min(settings.num_resamples, NUM_DEALT)
    # nobody changes the group, and there are enough divisions to tell what is rare
    if (group_of[numbers] == sides).all() and RARE * (num_dealt + 1) >= 1:
        dealt = [rng.permutation(group_of) for _ in range(num_dealt)]
    for rate in ("fmr", "fnmr"):
        rows = np.flatnonzero(scores.target == (rate == "fnmr"))
        wrong = [(scores.values[rows] >= limit) == (rate == "fmr") for limit in limits]
        own = _rates(sides[rows], wrong, size)  # (A, G), as is each of chance
        chance = np.array([_rates(of[numbers[rows]], wrong, size) for of in dealt])
        for place, at in enumerate(thresholds):
            name = f"global_{'tar' if rate == 'fnmr' else 'far'}({at})"
            resampled = [of[name] for of in draws if name in of]
            known = own[place]
            worst = "" if np.isnan(known).all() else names[int(np.nanargmax(known))]
            for measure in (worst_to_geometric_mean, gini):
                value, limit, ends = _number(measure(known)), None, None
                if dealt:
                    # where random groups have no ratio, one of them shows no error
                    none = np.inf if measure is worst_to_geometric_mean else 0.0
                    shown = np.nan_to_num(measure(chance[:, place]), nan=none, posinf=none)
                    # Above it, (k + 1) / (R + 1) is at most RARE, for k of R that are as high.
                    limit = _number(np.sort(shown)[-int(RARE * (len(dealt) + 1))])
                if len(resampled) == size:
                    table = np.abs((rate == "fnmr") - np.stack(resampled, axis=1))
                    values = measure(table)[~np.isnan(measure(table))]
                    shares = [(1 - settings.level) / 2, (1 + settings.level) / 2]
                    ends = tuple(np.quantile(values, shares).tolist()) if values.size else None
                measured.append(Differential(rate, at, measure.__name__, worst, value, ends, limit))
    return tuple(measured)


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rates(groups: Ints, wrong: Sequence[Bools], size: int) -> Floats:
    """The error rates (A, G) of the groups (P, 2) of both sides, from (P,) which trials are errors
    at each of A thresholds.
    """
    inside = (groups[:, 0] == groups[:, 1]) & (groups[:, 0] >= 0)
    counts = np.bincount(groups[inside, 0], minlength=size)
    errors = [np.bincount(groups[inside & of, 0], minlength=size) for of in wrong]
    with np.errstate(invalid="ignore"):
        return np.array(errors) / counts
