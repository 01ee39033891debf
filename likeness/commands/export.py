"""`likeness export`: a model becomes one file for other systems.

toolkit/models/export.py writes the .onnx file, likeness/exports/ what goes beyond it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import options
from likeness.eval.errors import LikenessError
from likeness.eval.formats.writing import check_written
from likeness.models.included import resolved
from likeness.toolkit.console import say


def running(
    size: Annotated[
        str,
        typer.Option(metavar="HEIGHTxWIDTH", help="Of images, where the model does not say it."),
    ] = "",
    runtime: Annotated[
        Literal["likeness", "sherpa-onnx"],
        typer.Option("--for", help="What loads the file: every ONNX Runtime, or sherpa-onnx."),
    ] = "likeness",
    precision: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(help="float16 stores weights in half of the bytes, int8 in a quarter."),
    ] = "float32",
    calibrate: Annotated[
        Path | None,
        typer.Option(exists=True, help="For int8: items like those that the model will see."),
    ] = None,
    root: options.Root = None,
) -> None:
    """What the file is for, and how small it is."""


@options.app.command(
    epilog="Examples: likeness export runs/an4 --out an4.onnx; likeness export runs/an4 --out "
    "small.onnx --precision int8 --calibrate recordings"
)
@options.with_options(running)
def export(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME].",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The .onnx file to write; with --head a new folder for the model.")
    ],
    head: Annotated[
        Path | None,
        typer.Option(
            help="Join the model and this run of `likeness train head --data EMBEDDINGS`, which "
            "was trained on its embeddings, to one model. It embeds, exports, serves and is "
            "fine-tuned as others are."
        ),
    ] = None,
    frontend: options.Frontend = "wespeaker",
    trust: options.Trust = None,
) -> None:
    """Write a model as one file for other systems, or a model and a head as one model.

    The file takes waves or images of any batch size and length, and gives raw embeddings. It is
    written only if it gives the same embeddings as torch. With a smaller --precision they differ,
    and the command says by how much.
    """
    if head is not None:
        import likeness

        joined = likeness.join(model, head, out, frontend=frontend, trust=trust or ())
        say(f"joined model of {joined.dim} dimensions, scored by {joined.similarity}, in {out}")
        return
    check_written(out, (".onnx",))
    asked = context.params
    runtime, precision, calibrate = asked["runtime"], asked["precision"], asked["calibrate"]
    if precision != "float32" and runtime != "likeness":
        raise LikenessError(
            f"--precision {precision} is for ONNX Runtime, and not for {runtime}; leave one out"
        )
    options.refuse_idle(context, ("calibrate",), "--precision int8", precision == "int8")
    if precision == "int8" and calibrate is None:
        raise LikenessError(
            "--precision int8 takes its ranges from items like those that the model will see; give "
            "them by --calibrate"
        )
    height_width = options.size_of(asked["size"]) if asked["size"] else None

    # These are slow to import, so that what is wrong was refused before.
    from likeness.models import exporting as writing
    from likeness.models import load

    loaded = load.load_named(resolved(model), frontend=frontend, trust=trust or ())
    if runtime == "sherpa-onnx":
        writing.for_sherpa(loaded, out)
    elif precision == "float32":
        writing.plain(model, loaded, out, height_width)
    else:
        items = [] if calibrate is None else writing.calibrating(loaded, calibrate, asked["root"])
        writing.smaller(loaded, out, height_width, precision, items)
