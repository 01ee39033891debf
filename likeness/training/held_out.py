"""What a training run leaves of its held-out items: embeddings, trials, scores and labels.

They are files that the other commands take, so that a threshold and a report follow from a run
without another list.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from likeness.checking.lists import write_labels
from likeness.eval.formats.runs import HeldOutFiles
from likeness.eval.formats.trials import write_trials
from likeness.eval.items.item_lists import write_items
from likeness.eval.items.items import Items, label_numbers
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.protocols.verification import evaluate
from likeness.eval.reports import items as item_page
from likeness.eval.reports.figures import training_curves
from likeness.eval.reports.page import prose
from likeness.eval.scoring.score import Scored, score
from likeness.eval.types import Trials, counted
from likeness.eval.writing import remove
from likeness.toolkit.console import say, warn
from likeness.toolkit.training import measure
from likeness.toolkit.training.listed import Data, list_by, trials_by
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.recipe import Measure, Recipe, Retrieval, Verification, fit_to_data

NUM_TRIALS = 20_000  # at most, where the recipe has none


def held_out_trials(by: Measure | None, data: Data) -> tuple[Items, Trials] | None:
    """List the items that a run was measured on, and trials among them.

    Args:
        by: What the recipe of the run is measured by.
        data: The data set that it was trained on.

    Returns:
        The items and the trials. The trials are the recipe's own, or for retrieval a draw of at
        most 20,000 among its test items. None for a recipe that is measured otherwise, and where no
        such draw has target and nontarget trials.
    """
    if isinstance(by, Verification):
        listed, trials = trials_by(by.trials, data)
        return Items.of(listed), trials
    if not isinstance(by, Retrieval):
        return None
    items = Items.of(list_by(by.items, data))
    num_labels = len(label_numbers(items)[0])
    if num_labels < 2 or num_labels == len(items):  # there are no trials of one kind
        return None
    return items, draw_pairs(items, NUM_TRIALS, np.random.default_rng(0))


def report_run(
    recipe: Recipe, out: Path, data: Data, embedded: measure.Embedded, *, command: str
) -> Scored | None:
    """Measure a finished run on what it held out; print it, and leave files and a page.

    They stand in place of those of an earlier model.

    Args:
        recipe: What was trained. One that measures item by item is tested on its test items.
        out: The folder of the run; the page is its report/index.html.
        data: The data set.
        embedded: What the run's model has embedded (toolkit.training.measure.Model).
        command: Makes the page again.

    Returns:
        The scores of the trials that were held out; None where the recipe holds nothing out, or
        where they cannot be written.
    """
    if measure.settings_of(recipe.measure):
        measured = measure.run_test(recipe, out, data, embedded)
        metrics = measure.metrics_of(recipe.metrics, measured)
        say("test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        page = out / "report" / "index.html"
        item_page.html(page, measured, recipe.metrics, command=command, log=read_log(out))
        say(f"report: {page}")
    files = HeldOutFiles(out)
    try:
        listed = held_out_trials(recipe.measure, data)
        if listed is None:
            return None
        items, trials = listed
        model = measure.load_model(out, fit_to_data(recipe, data), embedded)
        embeddings = replace(model.embeddings(items), meta=model.meta)
        scored = score(trials, embeddings).of_list(f"held-out trials of {data}")
        files.folder.mkdir(parents=True, exist_ok=True)
        embeddings.save(files.embeddings)
        write_trials(files.trials, scored.trials)
        if all(label is not None for label in items.labels):
            write_labels(files.labels, items)
        else:
            remove(files.labels)
        if all(item.span is None for item in items):
            write_items(files.items, items, files.folder)
        else:
            remove(files.items)
        scored.save(files.scores)
        counts = f"{counted(len(items), 'item')} with {counted(len(scored), 'trial')}"
        say(f"held out: {counts}, their embeddings and scores in {files.folder}")
        if isinstance(recipe.measure, Verification):
            curves = training_curves(read_log(out), tuple(recipe.metrics))
            if (flip := recipe.measure.flip) != "none":  # thresholds are for images alone
                note = (
                    f"Training was measured with measure.flip={flip}. The held-out scores are of "
                    "images alone, as `likeness verify` compares them."
                )
                say(note)
                curves += prose(note)
            page = evaluate(out).report(out / "report", command=command, training=curves)
            say(f"report: {page}")
    except ValueError as error:  # such as ids that no list can hold; the model is whole
        warn(f"{files.folder}, or the report of it, is incomplete: {error}")
        return None
    return scored
