"""`likeness export`: a model becomes one ONNX file. toolkit/models/export.py does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import Trust
from likeness.missing import refuse_missing_folder, refuse_missing_model
from toolkit.printing import say

app = typer.Typer()


@app.command(epilog="Example: likeness export runs/an4 --onnx an4.onnx")
def export(
    model: Annotated[
        str,
        typer.Argument(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME]."
        ),
    ],
    onnx: Annotated[
        Path,
        typer.Option(
            help="The .onnx file to write. It is a model itself, and all that other systems need."
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            metavar="HEIGHTxWIDTH",
            help="The size of the images, such as 112x112, where the model does not say it.",
        ),
    ] = "",
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that a wespeaker: model was trained with."),
    ] = "wespeaker",
    trust: Trust = None,
) -> None:
    """Write front-end and network as one ONNX file.

    The file takes waves or images of any batch size and length, and gives raw embeddings. It is
    written only if it gives the same embeddings as torch.
    """
    refuse_missing_model(model)
    refuse_missing_folder(onnx)
    height_width = _height_width(size)

    # These are slow to import, so that what is wrong was refused before.
    from likeness.models import load
    from likeness.thresholds import carry
    from toolkit.models import export as exporting

    loaded = load.load(model, frontend=frontend, trust=trust or ())
    parity = exporting.export(loaded, onnx, size=height_width)
    carried = carry(model, loaded.meta, onnx)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {onnx}; on {parity.num_items} inputs "
        f"it agrees with torch to a cosine distance of {parity.distance:.1e} and norms to "
        f"{parity.norm_error:.1e}" + ("; its stored thresholds lie beside it" if carried else "")
    )


def _height_width(size: str) -> tuple[int, int] | None:
    """Height and width in pixels of a text such as 112x112; None of an empty text."""
    if not size:
        return None
    height, cross, width = size.lower().partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ValueError(f"--size {size!r}: write HEIGHTxWIDTH in pixels, e.g. 112x112")
    return int(height), int(width)
