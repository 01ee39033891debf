"""The page of a training that is measured by verification trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.printing import say

if TYPE_CHECKING:
    from toolkit.data.items import Item
    from toolkit.training.recipe import Recipe

_NAME = "model"  # of the system on the page


def write_training_page(recipe: Recipe, data: Path, out: Path, *, command: str) -> None:
    """Score the held-out trials by the trained model, and write a page of them.

    It has the curves of the training, the metrics with intervals, the norms, and the hardest trials
    with their recordings or images. Where the trials cannot be evaluated, a sentence says why.

    Args:
        recipe: One that is measured by trials.
        data: The folder of the data set.
        out: The folder of the run; the page is its report/index.html.
        command: Makes the page again.
    """
    from eval.protocols.side_by_side import evaluate_together
    from eval.protocols.verification import VerificationSettings
    from eval.reports.verification import write_page
    from eval.types import Scores
    from likeness.media import media_of_items
    from toolkit.training.compared_run import score_trials_of
    from toolkit.training.log import read_log
    from toolkit.training.of_data import of_data
    from toolkit.training.recipe import Verification

    measure = recipe.measure
    assert isinstance(measure, Verification)
    items, trials = measure.trials(data)
    embeddings, values = score_trials_of(out, of_data(recipe, data), items, trials)
    try:
        compared = evaluate_together(
            {_NAME: (trials, Scores(values, trials.target))},
            VerificationSettings(),
            subject_of=_subjects(items),
        )
    except ValueError as error:
        say(f"no report: {error}")
        return
    page = write_page(
        out / "report",
        compared,
        command=command,
        embeddings={_NAME: embeddings},
        media=media_of_items(items),
        log=read_log(out),
        logged=tuple(recipe.metrics),
    )
    say(f"report: {page}")


def _subjects(items: Sequence[Item]) -> dict[str, str] | None:
    """The labels of the items; None where some have none, or where the ids say the same."""
    subject_of = {item.id: item.label for item in items if item.label is not None}
    told_by_ids = all(id.partition("/")[0] == label for id, label in subject_of.items())
    return None if told_by_ids or len(subject_of) < len(items) else subject_of
