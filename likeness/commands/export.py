"""`likeness export`: a model becomes one file for other systems.

toolkit/models/export.py writes the .onnx file, likeness/exports/ what goes beyond it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    Frontend,
    Root,
    Trust,
    input_file,
    known_model,
    refuse_idle,
    size_of,
    writes,
)
from likeness.defaults import MAX_LOSS, NUM_CALIBRATED

app = typer.Typer()


@app.command(
    epilog="Examples: likeness export runs/an4 an4.onnx; likeness export runs/an4 small.onnx "
    "--precision int8 --calibrate recordings --trials trials.txt --items items.txt"
)
def export(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME].",
            callback=known_model,
        ),
    ],
    out: Annotated[
        Path, typer.Argument(help="The file to write, FILE.onnx.", callback=writes(".onnx"))
    ],
    size: Annotated[
        str,
        typer.Option(
            metavar="HEIGHTxWIDTH",
            help="The size of the images, such as 112x112, where the model does not say it.",
        ),
    ] = "",
    runtime: Annotated[
        Literal["likeness", "sherpa-onnx"],
        typer.Option(
            "--for",
            help="What loads the file: likeness and every ONNX Runtime, or sherpa-onnx's speaker "
            "identification.",
        ),
    ] = "likeness",
    precision: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(help="float16 stores weights in half of the bytes, int8 in a quarter."),
    ] = "float32",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="With int8: a folder or list of items like those that the model will see, of "
            f"which {NUM_CALIBRATED} are used. Convolutions are then computed in int8 too, which "
            "is faster.",
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        input_file(
            "A trial list with labels, on which the cost of a smaller precision is measured."
        ),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(exists=True, help="With --trials: the folder or list of their items."),
    ] = None,
    root: Root = None,
    far: Annotated[
        float, typer.Option(help="With --trials: the false-accept rate of the TAR.")
    ] = 0.01,
    max_loss: Annotated[
        float,
        typer.Option(
            help="With --trials: by how many percentage points the EER may rise. Nothing is "
            "written if it rises more."
        ),
    ] = MAX_LOSS,
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
) -> None:
    """Write front-end and network as one file.

    The file takes waves or images of any batch size and length, and gives raw embeddings. It is
    written only if it gives the same embeddings as torch; with a smaller --precision, only if it
    costs no more than --max-loss on your --trials.
    """
    if precision != "float32" and runtime != "likeness":
        raise LikenessError(
            f"--precision {precision} makes .onnx files for ONNX Runtime, and not for {runtime}; "
            "leave one of the two out"
        )
    refuse_idle(context, ("calibrate",), "--precision int8", precision == "int8")
    refuse_idle(
        context, ("trials",), "--precision float16 or --precision int8", precision != "float32"
    )
    if trials is not None and items is None:
        raise LikenessError("--trials needs the items that the trials name; give --items LIST")
    height_width = size_of(size) if size else None

    # These are slow to import, so that what is wrong was refused before.
    from likeness.exports import writing
    from likeness.models import load

    loaded = load.load(model, frontend=frontend, trust=trust or ())
    if runtime == "sherpa-onnx":
        writing.for_sherpa(loaded, out)
    elif precision == "float32":
        writing.plain(model, loaded, out, height_width)
    else:
        about = None
        if trials is not None and items is not None:
            about = writing.on_trials(loaded, trials, items, root, far, max_loss)
        calibration = None if calibrate is None else writing.calibrating(loaded, calibrate, root)
        writing.smaller(loaded, out, height_width, precision, calibration, about)
