"""The page of a training that is measured by verification trials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.printing import say

if TYPE_CHECKING:
    from likeness.held_out import HeldOut
    from toolkit.data.items import Item

_NAME = "model"  # of the system on the page


def write_training_page(
    out: Path, held_out: HeldOut, metrics: Iterable[str], *, command: str
) -> None:
    """Write a page of a finished run and its held-out trials.

    It has the curves of the training, the metrics with intervals, the norms, and the hardest trials
    with their recordings or images. Where the trials cannot be evaluated, a sentence says why.

    Args:
        out: The folder of the run; the page is its report/index.html.
        held_out: The trials with their scores, and the embeddings of their items.
        metrics: What the run's log has been measured by, whose curves are drawn.
        command: Makes the page again.
    """
    from eval.protocols.side_by_side import evaluate_together
    from eval.protocols.verification import VerificationSettings
    from eval.reports.verification import write_page
    from likeness.media import media_of_items
    from toolkit.training.log import read_log

    trials, scores = held_out.scored.trials, held_out.scored.scores
    try:
        compared = evaluate_together(
            {_NAME: (trials, scores)},
            VerificationSettings(),
            subject_of=_subjects(held_out.items),
        )
    except ValueError as error:
        say(f"no report: {error}")
        return
    page = write_page(
        out / "report",
        compared,
        command=command,
        embeddings={_NAME: held_out.embeddings},
        media=media_of_items(held_out.items),
        log=read_log(out),
        logged=tuple(metrics),
    )
    say(f"report: {page}")


def _subjects(items: Sequence[Item]) -> dict[str, str] | None:
    """The labels of the items; None where some have none, or where the ids say the same."""
    subject_of = {item.id: item.label for item in items if item.label is not None}
    told_by_ids = all(id.partition("/")[0] == label for id, label in subject_of.items())
    return None if told_by_ids or len(subject_of) < len(items) else subject_of
