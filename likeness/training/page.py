"""The end of a training: what the model is worth on held-out items, as files and as a page."""

from pathlib import Path

from likeness.eval.protocols.evaluation import evaluate
from likeness.eval.reports import items as item_page
from likeness.eval.reports.figures import training_curves
from likeness.toolkit.console import say, warn
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.measure import metrics_of, run_test
from likeness.toolkit.training.recipe import Recipe
from likeness.training.held_out import HeldOut, HeldOutFiles, measure_held_out, write_held_out


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
            curves = training_curves(read_log(out), tuple(recipe.metrics))
            page = evaluate(out).report(out / "report", command=command, training=curves)
            say(f"report: {page}")
    except ValueError as error:  # such as ids that no list can hold; the model is whole
        warn(f"{folder}, or the report of it, is incomplete: {error}")
        return None
    return held_out
