"""Quality measures of trials, which help a calibration: norms, durations, and how close both sides
are to a cohort.

Each enters as the lower and the higher of the two sides of a trial. Differences, and ratios of what
stands under the logarithm, are linear in these: WeSpeaker's QMF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eval.calibration import Calibration, by_side, cohort_mean, log_measure
from eval.sides import Sides
from eval.types import Floats, name_first, nfc

QUALITY = ("log_norm", "log_duration", "cohort_mean")
"""The measures of one side: the logarithm of the norm of the raw embedding (that of a model is the
norm of its pooled items), the logarithm of the seconds (that of a model is the sum of its items),
the mean score with the cohort."""


def column_names(measures: Sequence[str]) -> tuple[str, ...]:
    """The names of the two columns of each measure.

    >>> column_names(["log_norm"])
    ('log_norm_low', 'log_norm_high')
    """
    return tuple(f"{measure}_{side}" for measure in measures for side in ("low", "high"))


def measures_of(calibration: Calibration) -> list[str]:
    """The measures that a calibration was fitted with.

    Raises:
        ValueError: It was fitted with other measures than those of `QUALITY`.
    """
    measures = list(dict.fromkeys(name.rpartition("_")[0] for name in calibration.names))
    if column_names(measures) != calibration.names or not set(measures) <= set(QUALITY):
        raise ValueError(
            f"calibration: its quality measures are {', '.join(calibration.names)}; score can work "
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
        ValueError: The cohort or the durations that a measure needs are missing.
        KeyError: Items have no duration. All are counted, the first are named.
    """
    columns = []
    for measure in measures:
        if measure == "log_norm":
            enrol = log_measure("the norm", sides.enrol.norms)
            probe = log_measure("the norm", sides.probe.norms)
        elif measure == "log_duration":
            enrol, probe = _log_durations(sides, durations)
        elif sides.cohort is None:
            raise ValueError("the quality measure cohort_mean needs a cohort; give one")
        else:
            enrol, probe = (
                cohort_mean(rows, sides.cohort, top_n=top_n, similarity=similarity)
                for rows in (sides.left, sides.right)
            )
        columns.append(by_side(enrol, probe, sides.i, sides.j))
    return np.concatenate(columns, axis=1)


def _log_durations(sides: Sides, durations: Mapping[str, float] | None) -> tuple[Floats, Floats]:
    """(N,) and (M,) logarithms of the seconds of each side."""
    if durations is None:
        raise ValueError(
            "the quality measure log_duration needs durations, the seconds of each item; give them"
        )
    items = [(name,) if sides.models is None else sides.models[name] for name in sides.enrol.ids]
    used = dict.fromkeys(nfc(name) for group in items for name in group)
    missing = [name for name in {**used, **dict.fromkeys(sides.probe.ids)} if name not in durations]
    if missing:
        raise KeyError(
            f"durations: {len(missing)} ids of the trials have no duration "
            f"({name_first(missing)}); add them"
        )
    enrol = [sum(durations[nfc(name)] for name in group) for group in items]
    probe = [durations[name] for name in sides.probe.ids]
    return log_measure("the durations", enrol), log_measure("the durations", probe)
