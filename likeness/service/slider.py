"""What each place of the page's threshold slider means: error rates that were measured."""

from __future__ import annotations

from typing import Any

from eval.thresholds import LEAST_ERRORS, Thresholds


def slider(thresholds: Thresholds | None, reason: str) -> dict[str, Any]:
    """What a browser needs to say of any threshold how many errors it makes.

    Args:
        thresholds: Those that hold for the model; None where there are none.
        reason: Why there are none.

    Returns:
        A JSON object: `reason`, which is "" where there are thresholds; `data`, `subjects`,
        `targets`, `nontargets` and `date` of the measurement; `marks`, the thresholds that were
        asked for, with their names; `places`, all thresholds by rising value as [threshold, FAR,
        FRR], no rate below ten trials' share; and these shares, `least_far` and `least_frr`.

    Example:
        >>> slider(None, "no threshold is stored")["places"]
        []
    """
    if thresholds is None:
        return {"reason": reason, "marks": [], "places": []}
    least_far, least_frr = (
        min(1.0, LEAST_ERRORS / count) for count in (thresholds.nontargets, thresholds.targets)
    )
    rows = {place.value: (place.far, place.frr) for place in thresholds.curve}
    for point in thresholds.points:
        # A guaranteed rate is a bound; beside the curve stands what was measured.
        far = point.far if point.guarantee is None else point.guarantee.measured_far
        rows.setdefault(point.value, (max(far, least_far), max(point.frr, least_frr)))
    return {
        "reason": "",
        "data": thresholds.data,
        "subjects": thresholds.subjects,
        "targets": thresholds.targets,
        "nontargets": thresholds.nontargets,
        "date": thresholds.date,
        "marks": [{"name": point.name, "threshold": point.value} for point in thresholds.points],
        "places": [[value, *rows[value]] for value in sorted(rows)],
        "least_far": least_far,
        "least_frr": least_frr,
    }
