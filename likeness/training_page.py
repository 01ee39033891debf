"""The page of a finished training, with what it measured on held-out trials or items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval.per_item import Metric, PerItem
    from likeness.held_out import HeldOut
    from toolkit.data.items import Item

_NAME = "model"  # of the system on the page


def write_trials_page(
    out: Path, held_out: HeldOut, metrics: Iterable[str], *, command: str
) -> Path:
    """Write a page of a finished run and its held-out trials.

    It has the curves of the training, the metrics with intervals, the norms, and the hardest trials
    with their recordings or images.

    Args:
        out: The folder of the run; the page is its report/index.html.
        held_out: The trials with their scores, and the embeddings of their items.
        metrics: What the run's log has been measured by, whose curves are drawn.
        command: Makes the page again.

    Returns:
        The path of the page.

    Raises:
        LikenessError: The trials cannot be evaluated.
    """
    from eval.protocols.side_by_side import evaluate_together
    from eval.protocols.verification import VerificationSettings
    from eval.reports.verification import write_page
    from likeness.media import media_of_items
    from toolkit.training.log import read_log

    trials, scores = held_out.scored.trials, held_out.scored.scores
    compared = evaluate_together(
        {_NAME: (trials, scores)},
        VerificationSettings(),
        subject_of=_subjects(held_out.items),
    )
    return write_page(
        out / "report",
        compared,
        command=command,
        embeddings={_NAME: held_out.embeddings},
        media=media_of_items(held_out.items),
        log=read_log(out),
        logged=tuple(metrics),
    )


def write_items_page(
    out: Path, measured: PerItem, metrics: Mapping[str, Metric], *, command: str
) -> Path:
    """Write a page of a finished run and its test items.

    Args:
        out: The folder of the run; the page is its report/index.html.
        measured: What was measured of each item.
        metrics: Name -> metric, of what the recipe is measured by.
        command: Makes the page again.

    Returns:
        The path of the page.
    """
    from eval.reports import items
    from toolkit.training.log import read_log

    page = out / "report" / "index.html"
    items.html(page, measured, metrics, command=command, log=read_log(out))
    return page


def _subjects(items: Sequence[Item]) -> dict[str, str] | None:
    """The labels of the items; None where some have none, or where the ids say the same."""
    subject_of = {item.id: item.label for item in items if item.label is not None}
    same_as_ids = all(id.partition("/")[0] == label for id, label in subject_of.items())
    return None if same_as_ids or len(subject_of) < len(items) else subject_of
