"""`likeness train`: train a variant of a recipe. The work is done by toolkit/training/train.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from likeness import recipe_files
from likeness.commands.options import (
    Columns,
    LabelPattern,
    Overrides,
    Recipe,
    Root,
    TrainingData,
    stoppable,
)
from toolkit.console import say, warn

if TYPE_CHECKING:
    from eval.per_item import PerItem
    from likeness.held_out import HeldOut
    from toolkit.training import recipe as training

app = typer.Typer()


@app.command(
    epilog="Example: likeness train speaker/an4:arcface optim.lr=0.05 --data data --out runs/an4"
)
def train(
    context: typer.Context,
    recipe: Recipe,
    overrides: Overrides = None,
    data: TrainingData = Path("data"),
    columns: Columns = None,
    label: LabelPattern = "",
    root: Root = None,
    out: Annotated[Path, typer.Option(help="The folder for checkpoints and log.")] = ...,  # type: ignore[assignment]
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Write to tensorboard or wandb as well as log.jsonl. It may be given once for "
            "each."
        ),
    ] = None,
) -> None:
    """Train a variant of a recipe.

    A recipe that holds subjects out leaves trials of them in OUT/held-out, with embeddings and
    scores, which `likeness evaluate OUT` measures. The next commands are printed at the end.

    Several processes share the work when the command is started by torchrun:
    torchrun --nproc-per-node N -m likeness train ...
    """
    from likeness.data_settings import with_data_settings
    from likeness.models.initial import read_initial
    from likeness.next_steps import next_commands
    from toolkit.parallel import distributed
    from toolkit.training.recipe import load, override
    from toolkit.training.train import fit

    loaded, variant = load(recipe_files.located(recipe))
    chosen = with_data_settings(
        override(loaded, overrides or []), columns=",".join(columns or ()), label=label, root=root
    )
    try:
        with stoppable():
            model = fit(
                chosen,
                data=data,
                out=out,
                resume=resume,
                loggers=log or [],
                read_initial=read_initial,
            )
    finally:
        distributed.end()
    if os.environ.get("RANK", "0") != "0":
        return
    say(f"{variant}: trained model in {model}")
    measured, command = None, f"{context.obj} --resume"
    if chosen.measures_items:
        measured = _test(chosen, data, out, command=command)
    held_out = _keep_held_out(chosen, data, out, measured)
    if held_out is not None and not chosen.measures_items:
        _report_trials(chosen, out, held_out, command=command)
    if commands := next_commands(chosen, data, out, held_out):
        say("\n".join(["next:", *(f"  {line}" for line in commands)]))


def _keep_held_out(
    recipe: training.Recipe, data: Path, out: Path, measured: PerItem | None
) -> HeldOut | None:
    """Leave embeddings, trials and scores of the held-out items in the folder of the run.

    Returns:
        What was written; None where the recipe holds nothing out, or where it cannot be written.
    """
    from likeness.held_out import HeldOutFiles, measure_held_out, write_held_out

    folder = HeldOutFiles(out).folder
    try:
        held_out = measure_held_out(recipe, out, data, measured=measured)
        if held_out is not None:
            write_held_out(out, held_out)
    except ValueError as error:  # such as ids that no list can hold; the model is whole
        warn(f"{folder} is incomplete: {error}")
        return None
    if held_out is not None:
        say(
            f"held out: {len(held_out.items)} items with {len(held_out.scored)} trials, their "
            f"embeddings and scores in {folder}"
        )
    return held_out


def _test(recipe: training.Recipe, data: Path, out: Path, *, command: str) -> PerItem:
    """Measure the trained model on the recipe's test items; print it, and write a page.

    Args:
        recipe: One that measures item by item.
        data: The folder of the data set.
        out: The folder of the run.
        command: Makes the page again.

    Returns:
        What was measured of each item.
    """
    from likeness.training_page import write_items_page
    from toolkit.training.measure import metrics_of, run_test

    measured = run_test(recipe, out, data)
    metrics = metrics_of(recipe, measured)
    say("test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    say(f"report: {write_items_page(out, measured, recipe.metrics, command=command)}")
    return measured


def _report_trials(recipe: training.Recipe, out: Path, held_out: HeldOut, *, command: str) -> None:
    """Write a page of the held-out trials, or say why there is none."""
    from likeness.training_page import write_trials_page

    try:
        say(f"report: {write_trials_page(out, held_out, recipe.metrics, command=command)}")
    except ValueError as error:
        say(f"no report: {error}")
