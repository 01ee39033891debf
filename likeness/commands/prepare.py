"""`likeness prepare`: fetch and check a data set. The work is in likeness/prepare/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands.options import app
from likeness.toolkit.console import say


@app.command(epilog="Example: likeness prepare fsdd --data data")
def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            help="The name of the data set. Without one, the data sets that there are get listed."
        ),
    ] = "",
    data: Annotated[
        Path, typer.Option(help="The folder for the data, which is made if it does not exist.")
    ] = Path("data"),
) -> None:
    """Fetch a data set, or say what to fetch where its licence does not let us.

    What is fetched is compared with its checksum, and what is there is counted.
    """
    from likeness.prepare import prepare as preparing

    if not dataset:
        say(preparing.table())
    else:
        preparing.prepare(preparing.named(dataset), data, say=say)
