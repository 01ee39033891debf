"""`likeness train`: train a variant of a recipe. The work is done by toolkit/training/train.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from likeness.commands import recipes
from likeness.commands.options import Columns, LabelPattern, Root
from likeness.commands.stopping import stoppable
from toolkit.printing import say

if TYPE_CHECKING:
    from toolkit.training.recipe import Recipe

app = typer.Typer()


@app.command(
    epilog="Example: likeness train speaker/an4:arcface optim.lr=0.05 --data data --out runs/an4"
)
def train(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="The name of a recipe, as `likeness recipes` lists them, or RECIPE.py. :VARIANT "
            "after it names one of its variants."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE", help="Changes of the recipe's fields, such as optim.lr=0.05."
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            help="The folder of the data set. Recipes that are called `folders` also take a list, "
            "a .csv, .tsv or .parquet file, a Kaldi folder or an .rttm file."
        ),
    ] = Path("data"),
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

    Several processes share the work when the command is started by torchrun:
    torchrun --nproc-per-node N -m likeness train ...
    """
    from likeness.data_settings import with_data_settings
    from likeness.models.initial import read_initial
    from likeness.training_page import write_training_page
    from toolkit.parallel import distributed
    from toolkit.training.recipe import load, override
    from toolkit.training.train import fit

    loaded, variant = load(recipes.located(recipe))
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
    if os.environ.get("RANK", "0") == "0":
        say(f"{variant}: trained model in {model}")
        if chosen.measures_items:
            _test(chosen, data, out, command=f"{context.obj} --resume")
        elif chosen.measure is not None:
            write_training_page(chosen, data, out, command=f"{context.obj} --resume")


def _test(recipe: Recipe, data: Path, out: Path, *, command: str) -> None:
    """Measure the trained model on the recipe's test items; print it, and write a page.

    Args:
        recipe: One that measures item by item.
        data: The folder of the data set.
        out: The folder of the run.
        command: Makes the page again.
    """
    from eval.formats.provenance import likeness_version
    from eval.reports import items
    from toolkit.training.log import read_log
    from toolkit.training.measure import metrics_of, run_test

    measured = run_test(recipe, out, data)
    metrics = metrics_of(recipe, measured)
    say("test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    page = out / "report" / "index.html"
    items.html(
        page,
        measured,
        recipe.metrics,
        command=command,
        version=likeness_version(),
        log=read_log(out),
    )
    say(f"report: {page}")
