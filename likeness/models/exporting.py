"""What `likeness export` writes, and what it says of it.

toolkit/models/export.py writes the .onnx file, and _sherpa.py that of sherpa-onnx.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import suffixes_of
from likeness.eval.option import Option
from likeness.eval.types import counted
from likeness.eval.writing import check_written
from likeness.models.bundled import run_of
from likeness.toolkit.console import say
from likeness.toolkit.data import shards
from likeness.toolkit.models.loaded import Loaded

NUM_CALIBRATED = 100  # items for int8; more change the ranges little, and take longer


def export(
    model: Annotated[str, Option("MODEL")],
    out: Annotated[Path, Option(path="output")],
    *,
    size: tuple[int, int] | None = None,
    runtime: Annotated[Literal["likeness", "sherpa-onnx"], Option("--for")] = "likeness",
    precision: Literal["float32", "float16", "int8"] = "float32",
    calibrate: Annotated[Path | None, Option(path="any")] = None,
    root: Path | None = None,
    frontend: Literal["wespeaker", "3dspeaker"] = "wespeaker",
    trust: Annotated[Sequence[str], Option(metavar="PACKAGE|FILE|FOLDER")] = (),
) -> None:
    """Write a model as one file for other systems, and say how far it agrees with torch.

    Args:
        model: As in `likeness.models.join.join`.
        out: As in `likeness.models.join.join`.
        size: The height and the width of images, where the model does not say them.
        runtime: What loads the file: every ONNX Runtime, or sherpa-onnx.
        precision: float16 stores weights in half of the bytes, int8 in a quarter.
        calibrate: For int8: items like those that the model will see.
        root: As in `likeness.checking.lists.items`.
        frontend: As in `likeness.models.model.load`.
        trust: As in `likeness.models.model.load`.

    Raises:
        LikenessError: Settings contradict each other, or the file would give other embeddings.
    """
    check_written(out, (".onnx",))
    if precision != "float32" and runtime != "likeness":
        raise LikenessError(f"--precision {precision} is not for {runtime}; leave one out")
    if (precision == "int8") != (calibrate is not None):
        raise LikenessError("--precision int8 needs --calibrate ITEMS; give both, or neither")
    from likeness.models import load
    from likeness.models._places import carry, drop_other_calibration

    loaded = load.load_named(run_of(model), frontend=frontend, trust=trust)
    if size and loaded.modality == "speaker":
        raise LikenessError("--size is of images, and the model takes recordings; leave it out")
    if runtime == "sherpa-onnx":
        _for_sherpa(loaded, out)
        drop_other_calibration(out)
        return
    from likeness.toolkit.models.export import export as write

    items: Sequence[Item] = ()
    if calibrate is not None:  # evenly spaced
        listed = shards.or_files(calibrate, suffixes=suffixes_of(loaded.modality), root=root)
        items = listed[:: max(1, len(listed) // NUM_CALIBRATED)][:NUM_CALIBRATED]
    parity = write(loaded, out, size=size, precision=precision, calibration=items)
    what = f"ONNX model of {loaded.embedder.dim} dimensions in"
    if precision != "float32":
        drop_other_calibration(out)
        say(
            f"{what} {precision}, {out.stat().st_size / 1e6:.1f} MB, in {out}; on "
            f"{parity.num_items} synthetic inputs its embeddings differ from float32 by a cosine "
            f"distance of at most {parity.distance:.1e}. It is a model of its own: embed with it, "
            "measure it beside the model in float32, and do not mix the embeddings of both."
        )
        return
    agrees = "it is the model's own file"
    if parity.num_items:
        agrees = (
            f"on {counted(parity.num_items, 'input')} it agrees with torch to a cosine distance of "
            f"{parity.distance:.1e} and norms to {parity.norm_error:.1e}"
        )
    beside = "; its stored thresholds lie beside it" * carry(model, loaded.meta, out)
    say(f"{what} {out}; {agrees}{beside}")


def _for_sherpa(loaded: Loaded, path: Path) -> None:
    """Write the file of a speaker model for sherpa-onnx."""
    from likeness.models import _sherpa

    distance, num = _sherpa.write(loaded, path)
    other = ""
    if loaded.similarity != "cosine":
        other = f"; sherpa-onnx compares by the cosine, and this model by {loaded.similarity}"
    say(
        f"sherpa-onnx model of {loaded.embedder.dim} dimensions in {path}; by its filterbanks, "
        f"which are not quite ours, {num} embeddings differ from ours by a cosine distance of at "
        f"most {distance:.1e}{other}"
    )
