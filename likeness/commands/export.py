"""`likeness export`: a model becomes one file for other systems.

toolkit/models/export.py writes the .onnx file, likeness/exports/ what goes beyond it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import EXISTING, Root, Trust, refuse_idle
from likeness.defaults import MAX_LOSS
from likeness.missing import refuse_missing_folder, refuse_missing_model
from toolkit.console import say

if TYPE_CHECKING:
    from likeness.exports.cost import OnTrials
    from toolkit.data.items import Item
    from toolkit.models.loaded import Loaded

app = typer.Typer()
FAR_APART = 0.1  # cosine distance on synthetic inputs from which on an export is warned of
_NUM_CALIBRATED = 100  # items; more change the ranges little, and take longer


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
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME]."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The file to write, FILE.onnx.")],
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
            f"which {_NUM_CALIBRATED} are used. Convolutions are then computed in int8 too, which "
            "is faster.",
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        typer.Option(
            help="A trial list with labels, on which the cost of a smaller precision is measured.",
            **EXISTING,
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
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that a wespeaker: model was trained with."),
    ] = "wespeaker",
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
    refuse_idle(context, ("size",), "--for likeness", runtime != "sherpa-onnx")
    refuse_idle(context, ("calibrate",), "--precision int8", precision == "int8")
    refuse_idle(
        context, ("trials",), "--precision float16 or --precision int8", precision != "float32"
    )
    refuse_idle(context, ("items", "far", "max_loss"), "--trials", trials)
    refuse_idle(context, ("root",), "--trials or --calibrate", trials or calibrate)
    if trials is not None and items is None:
        raise LikenessError("--trials needs the items that the trials name; give --items LIST")
    refuse_missing_model(model)
    refuse_missing_folder(out)
    height_width = _height_width(size)

    # These are slow to import, so that what is wrong was refused before.
    from likeness.models import load

    loaded = load.load(model, frontend=frontend, trust=trust or ())
    if runtime == "sherpa-onnx":
        _for_sherpa(loaded, out)
    elif precision == "float32":
        _plain(model, loaded, out, height_width)
    else:
        about = None
        if trials is not None and items is not None:
            about = _on_trials(loaded, trials, items, root, far, max_loss)
        calibration = None if calibrate is None else _for_calibration(loaded, calibrate, root)
        _smaller(loaded, out, height_width, precision, calibration, about)


def _plain(model: str, loaded: Loaded, path: Path, size: tuple[int, int] | None) -> None:
    from likeness.thresholds import carry
    from toolkit.models import export as exporting

    parity = exporting.export(loaded, path, size=size)
    carried = carry(model, loaded.meta, path)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {path}; on {parity.num_items} inputs "
        f"it agrees with torch to a cosine distance of {parity.distance:.1e} and norms to "
        f"{parity.norm_error:.1e}" + ("; its stored thresholds lie beside it" if carried else "")
    )


def _for_sherpa(loaded: Loaded, path: Path) -> None:
    from likeness.exports import sherpa

    distance, num = sherpa.write(loaded, path)
    other = (
        ""
        if loaded.similarity == "cosine"
        else (f"; sherpa-onnx compares by the cosine, and this model by {loaded.similarity}")
    )
    say(
        f"sherpa-onnx model of {loaded.embedder.dim} dimensions in {path}; by its filterbanks, "
        f"which are not quite ours, {num} embeddings differ from ours by a cosine distance of at "
        f"most {distance:.1e}{other}"
    )


def _smaller(
    loaded: Loaded,
    path: Path,
    size: tuple[int, int] | None,
    precision: Literal["float16", "int8"],
    calibration: list[Item] | None,
    about: OnTrials | None,
) -> None:
    from likeness.exports import cost
    from toolkit.models import export as exporting

    measured: list[cost.Cost] = []

    def measure(file: Path) -> dict[str, Any]:
        assert about is not None
        measured.append(cost.measure(loaded, file, about))
        return measured[0].to_json()

    smaller = exporting.Smaller(precision, calibration, None if about is None else measure)
    parity = exporting.export(loaded, path, size=size, smaller=smaller)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {precision}, "
        f"{path.stat().st_size / 1e6:.1f} MB, in {path}; on {parity.num_items} synthetic inputs "
        f"its embeddings differ from float32 by a cosine distance of at most {parity.distance:.1e}"
    )
    if measured:
        say(measured[0].table())
    else:
        say(
            "What it costs was not measured: --trials TRIALS --items ITEMS gives EER and TAR "
            "before and after."
        )
        if parity.distance > FAR_APART:
            say(
                "These embeddings are far from those of float32, so measure before you use the "
                "file; networks of order statistics often lose most of what they know in int8.",
                error=True,
            )
    say(
        "It is a model of its own: embed, store thresholds and fill galleries with it, and do not "
        "mix its embeddings with those of the model in float32."
    )


def _on_trials(
    loaded: Loaded, trials: Path, items: Path, root: Path | None, far: float, max_loss: float
) -> OnTrials:
    from eval.formats.trials import read_trials
    from likeness.exports.cost import OnTrials

    listed = _items(loaded, items, root)
    return OnTrials(read_trials(trials), listed, trials.name, far, max_loss)


def _for_calibration(loaded: Loaded, source: Path, root: Path | None) -> list[Item]:
    """At most _NUM_CALIBRATED of the items, evenly spaced."""
    listed = _items(loaded, source, root)
    step = max(1, len(listed) // _NUM_CALIBRATED)
    return listed[::step][:_NUM_CALIBRATED]


def _items(loaded: Loaded, source: Path, root: Path | None) -> list[Item]:
    from modalities.folders import suffixes_of
    from toolkit.data.listing import list_items

    return list(list_items(source, suffixes=suffixes_of(loaded.modality), root=root))


def _height_width(size: str) -> tuple[int, int] | None:
    """Height and width in pixels of a text such as 112x112; None of an empty text."""
    if not size:
        return None
    height, cross, width = size.lower().partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise LikenessError(f"--size {size!r}: write HEIGHTxWIDTH in pixels, e.g. 112x112")
    return int(height), int(width)
