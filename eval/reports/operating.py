"""The threshold slider of a report: what each threshold accepts, as exact counts at a few thousand
real scores, never the scores of all trials.

templates/threshold.js moves the slider: the table of this block, the dots on the DET and ROC
curves, the lines in the histograms and the verdicts on the hardest trials follow it. Without
scripts, and on paper before it was moved, all of them stand at the threshold of the equal error
rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.special import ndtri

from eval.reports.page import MINUS, block
from eval.results import Result, metric_label
from eval.types import Floats, Ints, Scores
from eval.verification import sort_scores, threshold_at_eer

_NUM_EACH = 500  # thresholds of each of four kinds, see `positions`


@dataclass(frozen=True, eq=False)
class Positions:
    """What is accepted at some thresholds: a trial is, if its score is at least the threshold.

    Attributes:
        thresholds: (K,) rising; the last accepts nothing.
        false_accepts: (K,) nontarget trials that are accepted.
        false_rejects: (K,) target trials that are rejected.
        num_targets: of all trials.
        num_nontargets: of all trials.
        all_distinct: whether every distinct score is among the thresholds.
    """

    thresholds: Floats
    false_accepts: Ints
    false_rejects: Ints
    num_targets: int
    num_nontargets: int
    all_distinct: bool

    @property
    def far(self) -> Floats:
        """(K,) false accept rates."""
        return np.asarray(self.false_accepts / self.num_nontargets)

    @property
    def frr(self) -> Floats:
        """(K,) false reject rates."""
        return np.asarray(self.false_rejects / self.num_targets)

    def nearest(self, threshold: float) -> int:
        """The number of the position whose threshold is nearest."""
        return int(np.argmin(np.abs(self.thresholds - threshold)))


def positions(scores: Scores, wanted: Iterable[float] = ()) -> Positions:
    """Thresholds at real scores, close together where errors are counted: evenly over the targets
    and over the nontargets, and evenly over the powers of ten at the low ends of FAR and FRR.

    Args:
        scores: of one system.
        wanted: thresholds that have to be among them, such as that of the equal error rate.

    Returns:
        At most about 2,000 positions, with exact counts.

    >>> made = positions(Scores([0.9, 0.2, 0.4, 0.1], [True, True, False, False]))
    >>> made.thresholds.round(2).tolist(), made.false_accepts.tolist(), made.false_rejects.tolist()
    ([0.1, 0.2, 0.4, 0.9, 0.9], [2, 1, 1, 0, 0], [0, 0, 1, 1, 2])
    """
    s = sort_scores(scores.targets, scores.nontargets)
    some = [
        s.target[_spread(s.target.size)],
        s.nontarget[s.nontarget.size - 1 - _ends(s.nontarget.size)],
    ]
    some += [s.nontarget[_spread(s.nontarget.size)], s.target[_ends(s.target.size)]]
    top = max(s.target[-1], s.nontarget[-1])
    rejecting_all = np.nextafter(top, np.inf)
    chosen = np.unique(
        np.concatenate([*some, [rejecting_all], np.array([*wanted], dtype=top.dtype)])
    )
    chosen = chosen[np.isfinite(chosen) & (chosen <= rejecting_all)]
    return Positions(
        chosen.astype(np.float64),
        (s.nontarget.size - np.searchsorted(s.nontarget, chosen)).astype(np.int32),
        np.searchsorted(s.target, chosen).astype(np.int32),
        s.target.size,
        s.nontarget.size,
        s.target.size <= _NUM_EACH and s.nontarget.size <= _NUM_EACH,
    )


def _spread(size: int) -> Ints:
    """At most _NUM_EACH places of an array of `size`, evenly."""
    return np.unique(np.linspace(0, size - 1, min(size, _NUM_EACH)).astype(np.int32))


def _ends(size: int) -> Ints:
    """At most _NUM_EACH places of an array of `size`, the closer the nearer to its beginning."""
    return np.unique(np.geomspace(1, size, min(size, _NUM_EACH)).astype(np.int32)) - 1


def slider(
    results: Sequence[Result], scores: Mapping[str, Scores], made: Mapping[str, Positions]
) -> Markup:
    """The sliders of the systems, and the table that they move.

    Args:
        results: of the systems; their thresholds become buttons.
        scores: system -> its scores.
        made: system -> the positions of its slider.
    """
    systems = []
    for name, each in made.items():
        start = each.nearest(threshold_at_eer(scores[name].targets, scores[name].nontargets))
        points = {
            metric_label(result.metric).replace(" (%)", ""): each.nearest(result.threshold)
            for result in results
            if result.system == name and result.threshold is not None
        }
        systems.append(
            {
                "name": name,
                "data": _data(name, each, start),
                "last": each.thresholds.size - 1,
                "start": start,
                "points": points,
                "row": _row(each, start),
            }
        )
    partly = [each for each in made.values() if not each.all_distinct]
    note = "Every number is counted over all trials at the threshold that is shown."
    if partly:
        note += (
            f" The slider stops at {max(each.thresholds.size for each in partly):,} of the scores; "
            "what lies between two stops is not shown."
        )
    return block("operating", systems=systems, note=note)


def _data(system: str, each: Positions, start: int) -> dict[str, Any]:
    """What threshold.js needs of a system."""
    with np.errstate(divide="ignore"):
        x, y = ndtri(each.far), ndtri(each.frr)
    return {
        "system": system,
        "start": start,
        "targets": each.num_targets,
        "nontargets": each.num_nontargets,
        "thresholds": each.thresholds.tolist(),
        "false_accepts": each.false_accepts.tolist(),
        "false_rejects": each.false_rejects.tolist(),
        # On the axes of the DET curve; beyond its edges where a rate is 0 or 1.
        "x": np.clip(x, -9, 9).round(3).tolist(),
        "y": np.clip(y, -9, 9).round(3).tolist(),
    }


def _row(each: Positions, i: int) -> dict[str, str]:
    """The cells of the table at position i, as threshold.js writes them."""
    return {
        "threshold": f"{each.thresholds[i]:.4f}".replace("-", MINUS),
        "far": f"{100 * each.far[i]:.3f}",
        "frr": f"{100 * each.frr[i]:.3f}",
        "false_accepts": f"{each.false_accepts[i]:,} of {each.num_nontargets:,}",
        "false_rejects": f"{each.false_rejects[i]:,} of {each.num_targets:,}",
    }
