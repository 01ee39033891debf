"""`likeness export`: a model becomes one file for other systems.

toolkit/models/export.py writes the .onnx file, likeness/exports/ what goes beyond it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import app, options
from likeness.commands.options import input_file
from likeness.eval.errors import LikenessError
from likeness.included import resolved
from likeness.presence import check_written
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
    root: options.Root = None,
) -> None:
    """What the file is for, and where items lie."""


def shrinking(
    precision: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(help="float16 stores weights in half of the bytes, int8 in a quarter."),
    ] = "float32",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="With int8: items like those that the model will see, for speed."
        ),
    ] = None,
    trials: Annotated[
        Path | None, input_file("With a smaller precision: labelled trials to measure its cost.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(exists=True, help="The folder or list of the trials' items.")
    ] = None,
    far: Annotated[float, typer.Option(help="With --trials: the rate of the TAR.")] = 0.01,
    max_loss: Annotated[
        float, typer.Option(help="By how many percentage points the EER may rise.")
    ] = 0.2,
) -> None:
    """How small the file becomes, and what that may cost."""


@app.command(
    epilog="Examples: likeness export runs/an4 --out an4.onnx; likeness export runs/an4 --out "
    "small.onnx --precision int8 --calibrate recordings --trials trials.txt --items items.txt"
)
@options.with_options(running, shrinking)
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
    written only if it gives the same embeddings as torch; with a smaller --precision, only if it
    costs no more than --max-loss on your --trials.
    """
    if head is not None:
        import likeness

        joined = likeness.join(model, head, out, frontend=frontend, trust=trust or ())
        say(f"joined model of {joined.dim} dimensions, scored by {joined.similarity}, in {out}")
        return
    check_written(out, (".onnx",))
    _write(context, model, out)


def _write(context: typer.Context, model: str, out: Path) -> None:
    """Write a model as an .onnx file, by the options that were given."""
    asked = context.params
    runtime, size, root = asked["runtime"], asked["size"], asked["root"]
    precision, trials, items = asked["precision"], asked["trials"], asked["items"]
    if precision != "float32" and runtime != "likeness":
        raise LikenessError(
            f"--precision {precision} is for ONNX Runtime, and not for {runtime}; leave one out"
        )
    if (trials is None) != (items is None):
        raise LikenessError("--trials and --items go together; give both, or none")
    options.refuse_idle(context, ("calibrate",), "--precision int8", precision == "int8")
    options.refuse_idle(
        context, ("trials",), "--precision float16 or --precision int8", precision != "float32"
    )
    height_width = options.size_of(size) if size else None

    # These are slow to import, so that what is wrong was refused before.
    from likeness.exports.writing import calibrating, for_sherpa, on_trials, plain, smaller
    from likeness.models import load

    loaded = load.load(resolved(model), frontend=asked["frontend"], trust=asked["trust"] or ())
    if runtime == "sherpa-onnx":
        for_sherpa(loaded, out)
    elif precision == "float32":
        plain(model, loaded, out, height_width)
    else:
        about = calibration = None
        if trials is not None:
            cost = asked["far"], asked["max_loss"]
            about = on_trials(loaded, trials, items, root, *cost)
        if asked["calibrate"] is not None:
            calibration = calibrating(loaded, asked["calibrate"], root)
        smaller(loaded, out, height_width, precision, calibration, about)
