"""The end of a training: what the model is worth on held-out items, as files and as a page."""

from collections.abc import Sequence
from pathlib import Path

from likeness.eval.protocols.side_by_side import evaluate_together
from likeness.eval.protocols.verification import VerificationSettings
from likeness.eval.reports import items as item_page
from likeness.eval.reports.figures import training_curves
from likeness.eval.reports.verification import write_page
from likeness.files import media_of_items
from likeness.held_out import HeldOut, HeldOutFiles, measure_held_out, write_held_out
from likeness.toolkit.console import say, warn
from likeness.toolkit.data.items import Item
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.measure import metrics_of, run_test
from likeness.toolkit.training.recipe import Recipe

_NAME = "model"  # of the system on the page


def report_run(recipe: Recipe, out: Path, data: Path, *, command: str) -> HeldOut | None:
    """Measure a finished run on what it held out; print it, and leave files and a page.

    Args:
        recipe: What was trained. One that measures item by item is tested on its test items.
        out: The folder of the run; the page is its report/index.html.
        data: The data set.
        command: Makes the page again.

    Returns:
        What was held out; None where the recipe holds nothing out, or where it cannot be written.
    """
    measured = None
    if recipe.measures_items:
        measured = run_test(recipe, out, data)
        metrics = metrics_of(recipe, measured)
        say("test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        page = out / "report" / "index.html"
        item_page.html(page, measured, recipe.metrics, command=command, log=read_log(out))
        say(f"report: {page}")
    folder = HeldOutFiles(out).folder
    try:
        held_out = measure_held_out(recipe, out, data, measured=measured)
        if held_out is None:
            return None
        write_held_out(out, held_out)
        say(
            f"held out: {len(held_out.items)} items with {len(held_out.scored)} trials, their "
            f"embeddings and scores in {folder}"
        )
        if measured is None:
            say(f"report: {_write_trials_page(recipe, out, held_out, command)}")
    except ValueError as error:  # such as ids that no list can hold; the model is whole
        warn(f"{folder}, or the report of it, is incomplete: {error}")
        return None
    return held_out


def _write_trials_page(recipe: Recipe, out: Path, held_out: HeldOut, command: str) -> Path:
    """Write a page of the held-out trials.

    It has the curves of the training, the metrics with intervals, the norms, and the hardest trials
    with their recordings or images.
    """
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
        training=training_curves(read_log(out), tuple(recipe.metrics)),
    )


def _subjects(items: Sequence[Item]) -> dict[str, str] | None:
    """The labels of the items; None where some have none, or where the ids say the same."""
    subject_of = {item.id: item.label for item in items if item.label is not None}
    same_as_ids = all(id.partition("/")[0] == label for id, label in subject_of.items())
    return None if same_as_ids or len(subject_of) < len(items) else subject_of
