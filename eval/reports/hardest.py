"""The hardest trials of a report: what they compare, as images or sounds, and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from markupsafe import Markup

from eval.reports.media import Media
from eval.reports.page import MINUS, block, folded, prose
from eval.types import Scores, Trials
from eval.verification import threshold_at_eer


def hardest_trials(
    scores: Mapping[str, Scores], trials: Mapping[str, Trials], count: int, media: Media
) -> Markup:
    """The hardest target and nontarget trials of each system.

    Args:
        scores: system -> its scores.
        trials: system -> its trials, where they are known; else trials are numbered.
        count: trials of each kind.
        media: shows their items.

    Returns:
        HTML. The threshold slider changes the verdicts.
    """
    text = "Look and listen here first: wrong labels and broken files collect at both ends."
    parts = {
        name: _hardest(name, of, trials.get(name), count, media) for name, of in scores.items()
    }
    return prose(text) + folded(parts)


def _hardest(
    system: str, scores: Scores, trials: Trials | None, count: int, media: Media
) -> Markup:
    """Two tables: the target trials with the lowest and the nontarget trials with the highest
    scores (file order among ties).
    """
    threshold = threshold_at_eer(scores.targets, scores.nontargets)
    tables = []
    for caption, chosen, sign in (
        ("Lowest target scores", scores.target, 1),
        ("Highest nontarget scores", ~scores.target, -1),
    ):
        index, ease = np.flatnonzero(chosen), sign * scores.values[chosen]
        last = min(count, ease.size) - 1
        near = np.flatnonzero(ease <= np.partition(ease, last)[last])
        rows = []
        for i in index[near[np.argsort(ease[near], kind="stable")[:count]]].tolist():
            ids = (
                ()
                if trials is None
                else (trials.enrol_ids[trials.enrol[i]], trials.probe_ids[trials.probe[i]])
            )
            rows.append(
                {
                    "system": system,
                    "value": repr(float(scores.values[i])),
                    "target": int(scores.target[i]),
                    "verdict": _verdict(scores.values[i] >= threshold, scores.target[i]),
                    "score": f"{scores.values[i]:.4f}".replace("-", MINUS),
                    "sides": [(media.show(id), id) for id in ids],
                    "number": f"{i + 1:,}",
                }
            )
        head = "Trial" if trials is None else "Enrol, probe"
        tables.append(block("trials", caption=caption, head=head, rows=rows))
    return block("two", parts=tables)


def _verdict(accepted: bool, target: bool) -> str:
    """What a trial is at a threshold, as threshold.js writes it."""
    return ("✓ " if accepted == target else "✗ false ") + ("accept" if accepted else "reject")
