"""`likeness join`: a model and a head become one model. likeness/joining.py does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands.options import Frontend, Trust
from toolkit.console import say

app = typer.Typer()


@app.command(epilog="Example: likeness join runs/an4 runs/head --out runs/adapted")
def join(
    model: Annotated[
        str,
        typer.Argument(
            help="The model that made the embeddings: the folder of a run, a .safetensors "
            "checkpoint, wespeaker:FILE.pt, hub:FOLDER_OR_ID or a Python file of yours."
        ),
    ],
    head: Annotated[
        Path,
        typer.Argument(
            help="The head: a run of `likeness train head --data EMBEDDINGS`, on embeddings that "
            "this model made."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new folder of the joined model.")],
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
) -> None:
    """Join a model and a head that was trained on its embeddings.

    The result is one model, which embeds, exports, serves and is fine-tuned as others are.
    """
    from likeness import joining

    joined = joining.join(model, head, out, frontend=frontend, trust=trust or ())
    say(f"joined model of {joined.dim} dimensions, scored by {joined.similarity}, in {out}")
