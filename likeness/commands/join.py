"""`likeness join`: a model and a head become one model. likeness/joining.py does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.toolkit.console import say

app = typer.Typer()


@app.command(epilog="Example: likeness join runs/an4 runs/head --out runs/adapted")
def join(
    model: options.ModelArgument,
    head: Annotated[
        Path, typer.Argument(help="A run of `likeness train head --data EMBEDDINGS` on its own.")
    ],
    out: Annotated[Path, typer.Option(help="The new folder of the joined model.")],
    frontend: options.Frontend = "wespeaker",
    trust: options.Trust = None,
) -> None:
    """Join a model and a head that was trained on its embeddings.

    The result is one model, which embeds, exports, serves and is fine-tuned as others are.
    """
    import likeness

    joined = likeness.join(model, head, out, frontend=frontend, trust=trust or ())
    say(f"joined model of {joined.dim} dimensions, scored by {joined.similarity}, in {out}")
