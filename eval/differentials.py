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

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.types import Bools, Floats, Ints, Scores

NUM_DEALT = 500  # random divisions into groups, at most
RARE = 0.05  # a share of random divisions by which chance is hardly the reason


@dataclass(frozen=True)
class Differential:
    """How far one rate of the groups is apart, at one threshold.

    Attributes:
        rate: "fmr" or "fnmr".
        at: The threshold of all trials: "eer" or a FAR.
        worst: The group with the highest rate.
        to_geometric_mean: Its rate over the geometric mean; None where a group makes no error.
        interval: Of that, over subjects; None where there is none.
        gini: The Gini coefficient; None where no group makes an error.
        gini_interval: Of the coefficient.
        by_chance: What 95 % of random divisions of these people into such groups stay below, of the
            ratio, or where that is None of the coefficient. None where it has no bound, and where
            people change their group.
        p: The share of random divisions that show at least as much.
    """

    rate: str
    at: str
    worst: str
    to_geometric_mean: float | None
    interval: tuple[float, float] | None
    gini: float | None
    gini_interval: tuple[float, float] | None
    by_chance: float | None
    p: float | None

    def sentence(self) -> str:
        """What the numbers show, for everybody."""
        name, verb = {
            "fmr": ("FMR", f"takes strangers of group {self.worst} for one person"),
            "fnmr": ("FNMR", f"refuses the right person of group {self.worst}"),
        }[self.rate]
        if self.gini is None:
            return f"{name} at {self.at}: no group shows an error, so nothing can be compared."
        if self.to_geometric_mean is None:
            text = f"a group shows no error; the Gini coefficient is {self.gini:.2f}"
        else:
            ends = "" if self.interval is None else " [{:.2f}, {:.2f}]".format(*self.interval)
            text = (
                f"the system {verb} {self.to_geometric_mean:.2f}{ends} times as often as it does "
                "in the geometric mean of the groups"
            )
        chance = "what chance alone would show is not known, as people change their group"
        if self.p is not None:
            verdict = "is hardly" if self.p < RARE else "may be"
            chance = (
                "the same people, dealt to such groups at random, show as much in "
                f"{100 * self.p:.2g} of 100 cases, so that chance alone {verdict} the reason"
            )
        return f"{name} at {self.at}: {text}; {chance}."


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
    draws: Mapping[str, Sequence[Floats | None]],
    settings: Any,
) -> tuple[Differential, ...]:
    """How far FMR and FNMR of the groups are apart at each threshold.

    Args:
        scores: P trials.
        subjects: (P, 2) numbers of the subjects of both sides.
        sides: (P, 2) numbers of their groups; trials of any other group are left out.
        names: Of the G groups.
        thresholds: "eer" or a FAR -> the threshold.
        draws: "fmr(AT)" and "fnmr(AT)" -> (R,) resampled rates of each group, None for too few.
        settings: The level of the intervals, and how many draws there are, with their seed.
    """
    size, limits = len(names), np.array([*thresholds.values()])
    people, flat = np.unique(subjects, return_inverse=True)
    numbers = flat.reshape(subjects.shape)
    group_of = np.full(people.size, -1)
    group_of[numbers] = sides
    stays = bool((group_of[numbers] == sides).all())
    rng, found, level = np.random.default_rng(settings.seed), [], settings.level
    num_dealt = min(settings.num_resamples, NUM_DEALT)
    of_kind: dict[str, Callable[[Ints], Floats]] = {
        "fmr": _rates(~scores.target, scores.values, numbers, limits, size, above=True),
        "fnmr": _rates(scores.target, scores.values, numbers, limits, size, above=False),
    }
    dealt = [rng.permutation(group_of) for _ in range(num_dealt)] if stays else []
    for rate, measure in of_kind.items():
        observed = measure(sides)  # (A, G)
        chance = np.array([measure(groups[numbers]) for groups in dealt])  # (D, A, G)
        for place, at in enumerate(thresholds):
            own = observed[place]
            resampled = draws.get(f"{rate}({at})", ())
            usable = [values for values in resampled if values is not None]
            table = np.stack(usable, axis=1) if len(usable) == size else np.empty((0, size))
            ratio, coefficient = (_or_none(of(own)) for of in (worst_to_geometric_mean, gini))
            limit = p = None
            if len(chance) and coefficient is not None:
                # a division in which a group shows no error is as far apart as can be
                measured, worst = (
                    (gini, 0.0) if ratio is None else (worst_to_geometric_mean, np.inf)
                )
                shown = np.nan_to_num(measured(chance[:, place]), nan=worst, posinf=np.inf)
                least = coefficient if ratio is None else ratio
                p = float((np.sum(shown >= least - 1e-12) + 1) / (len(shown) + 1))
                high = float(np.quantile(shown, 1 - RARE, method="nearest"))
                limit = high if np.isfinite(high) else None
            found.append(
                Differential(
                    *(rate, at, names[int(np.nanargmax(own))] if not np.isnan(own).all() else ""),
                    *(ratio, _ends(worst_to_geometric_mean(table), level)),
                    *(coefficient, _ends(gini(table), level), limit, p),
                )
            )
    return tuple(found)


def _rates(
    chosen: Bools, values: Floats, numbers: Ints, limits: Floats, size: int, *, above: bool
) -> Callable[[Ints], Floats]:
    """What gives the error rates (A, G) at A thresholds, from the groups (P, 2) of both sides."""
    rows = np.flatnonzero(chosen)
    wrong = [(values[rows] >= limit) == above for limit in limits]

    def measure(groups: Ints) -> Floats:
        sides = groups[rows]
        code = np.where(sides[:, 0] == sides[:, 1], sides[:, 0], -1)
        inside = code >= 0
        counts = np.bincount(code[inside], minlength=size)
        with np.errstate(invalid="ignore"):
            return np.array(
                [np.bincount(code[inside & of], minlength=size) / counts for of in wrong]
            )

    return measure


def _or_none(value: Floats) -> float | None:
    return None if np.isnan(value) else float(value)


def _ends(values: Floats, level: float) -> tuple[float, float] | None:
    """The middle of resampled values; None where there are none, or all are alike."""
    values = values[~np.isnan(values)]
    if not values.size:
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return (low, high) if low < high else None
