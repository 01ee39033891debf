"""`likeness reproduce`: a table or figure of a paper (likeness/training/papers.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands.options import Overrides, TrainingData, app, names_in, stoppable
from likeness.toolkit.console import say


@app.command(epilog="Example: likeness reproduce simple/8 --data data --out runs/papers")
def reproduce(
    table: Annotated[str, typer.Argument(help="The table or figure, such as simple/8.")] = "",
    overrides: Overrides = None,
    data: TrainingData = Path("data"),
    out: Annotated[
        Path,
        typer.Option(help="The folder for runs and tables. What is finished is not done again."),
    ] = Path("runs/papers"),
    rows: Annotated[
        str, typer.Option(help="The rows that are wanted, separated by commas (default: all).")
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=0, help="How many runs each row has; 0: as many as in the paper.")
    ] = 0,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the tables and figures, and what each needs.")
    ] = False,
) -> None:
    """Train and measure what a table of a paper needs, and print it beside the paper's numbers.

    The tables are also written as text, Markdown and LaTeX.
    """
    from likeness.training import papers as reproducing

    if list_them or not table:
        say(reproducing.listing())
        return
    with stoppable():
        text = reproducing.reproduce(
            table, data, out, settings=overrides or [], rows=names_in(rows), seeds=seeds
        )
    say(f"\n{text}")
