"""What `likeness export` writes, and what it says of it.

toolkit/models/export.py writes the .onnx file, and sherpa.py that of sherpa-onnx.
"""

from pathlib import Path
from typing import Literal

from likeness.eval.items.items import Item
from likeness.eval.items.listing import list_items, suffixes_of
from likeness.models import _sherpa
from likeness.models._places import carry
from likeness.toolkit.console import say
from likeness.toolkit.models import export as exporting
from likeness.toolkit.models.loaded import Loaded

NUM_CALIBRATED = 100  # items for int8; more change the ranges little, and take longer


def plain(model: str, loaded: Loaded, path: Path, size: tuple[int, int] | None) -> None:
    """Write the .onnx file of a model, and its stored thresholds beside it."""
    parity = exporting.export(loaded, path, size=size)
    carried = carry(model, loaded.meta, path)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {path}; on {parity.num_items} inputs "
        f"it agrees with torch to a cosine distance of {parity.distance:.1e} and norms to "
        f"{parity.norm_error:.1e}" + ("; its stored thresholds lie beside it" if carried else "")
    )


def for_sherpa(loaded: Loaded, path: Path) -> None:
    """Write the file of a speaker model for sherpa-onnx."""
    distance, num = _sherpa.write(loaded, path)
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


def smaller(
    loaded: Loaded,
    path: Path,
    size: tuple[int, int] | None,
    precision: Literal["float16", "int8"],
    calibration: list[Item],
) -> None:
    """Write a file with smaller weights.

    Args:
        loaded: The model.
        path: The file, which ends in .onnx.
        size: Height and width of images, where the model does not say them.
        precision: How weights are stored.
        calibration: Items whose ranges are measured, for int8.
    """
    chosen = exporting.Smaller(precision, calibration)
    parity = exporting.export(loaded, path, size=size, smaller=chosen)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {precision}, "
        f"{path.stat().st_size / 1e6:.1f} MB, in {path}; on {parity.num_items} synthetic inputs "
        f"its embeddings differ from float32 by a cosine distance of at most {parity.distance:.1e}."
        " It is a model of its own: embed with it, measure it by `likeness evaluate` beside the "
        "model in float32, and do not mix the embeddings of both."
    )


def calibrating(loaded: Loaded, source: Path, root: Path | None) -> list[Item]:
    """At most NUM_CALIBRATED of the items, evenly spaced."""
    listed = list_items(source, suffixes=suffixes_of(loaded.modality), root=root)
    step = max(1, len(listed) // NUM_CALIBRATED)
    return list(listed[::step][:NUM_CALIBRATED])
