"""`likeness compare`: train variants of a recipe with several seeds. The work is done by
toolkit/training/compare.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.toolkit.console import say
from likeness.training import recipe_files


def comparing(
    seeds: Annotated[
        int, typer.Option(min=1, help="How many runs each variant gets, with the seeds 0 to N - 1.")
    ] = 3,
    reference: Annotated[
        str,
        typer.Option(
            help="The variant to which differences are taken (default: the one with the best mean "
            "of the first metric)."
        ),
    ] = "",
    tune: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many settings of the file's RANGES are tried for each variant on validation "
            "classes first. A grid of choices ends when every point was tried.",
        ),
    ] = 0,
    allow_different: Annotated[
        str,
        typer.Option(
            help="The fields besides the method in which the variants may differ, separated by "
            "commas."
        ),
    ] = "",
) -> None:
    """How often each variant is trained, and how they are compared."""


@options.app.command(
    epilog="Example: likeness compare speaker/an4 --variants arcface,simple --seeds 3 --data data "
    "--out runs/an4-compare"
)
@options.with_options(options.labelling, comparing)
def compare(
    context: typer.Context,
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    variants: Annotated[
        str,
        typer.Option(
            help="The names of the variants, separated by commas (default: all of the file)."
        ),
    ] = "",
    data: options.TrainingData = Path("data"),
    out: Annotated[
        Path,
        typer.Option(
            help="The folder for runs, tables and report. What is finished there is not done again."
        ),
    ] = ...,  # type: ignore[assignment]
) -> None:
    """Train several variants with several seeds, and compare them.

    All see the same data in the same order. The table has standard errors, intervals over subjects
    and paired differences.
    """
    from likeness.eval.reports.comparison import table
    from likeness.models.load import read_initial
    from likeness.toolkit.training import compare as comparing
    from likeness.training.prepare import prepare_recipe

    chosen, ranges = comparing.load_variants(
        recipe_files.located(recipe), options.names_in(variants), overrides or []
    )
    asked = context.params
    given = options.arguments_of(context, prepare_recipe)
    chosen = {key: prepare_recipe(**given | {"recipe": value})[0] for key, value in chosen.items()}
    with options.stoppable():
        result = comparing.compare(
            chosen,
            num_seeds=asked["seeds"],
            data=data,
            out=out,
            terms=comparing.Terms(
                asked["reference"],
                options.names_in(asked["allow_different"]),
                ranges,
                asked["tune"],
                str(context.obj),
            ),
            read_initial=read_initial,
        )
    say(f"\n{table(result)}\nReport: {out / 'report' / 'index.html'}")
    if result.failed:
        raise typer.Exit(1)
