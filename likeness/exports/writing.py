"""What `likeness export` writes, and what it says of it.

toolkit/models/export.py writes the .onnx file; cost.py and sherpa.py are what goes beyond it.
"""

from pathlib import Path
from typing import Any, Literal

from likeness.eval.formats.trials import read_trials
from likeness.eval.protocols.side_by_side import Compared
from likeness.exports import cost, sherpa
from likeness.modalities.folders import suffixes_of
from likeness.thresholds import carry
from likeness.toolkit.console import say
from likeness.toolkit.data.items import Item
from likeness.toolkit.data.listing import list_items
from likeness.toolkit.models import export as exporting
from likeness.toolkit.models.loaded import Loaded

NUM_CALIBRATED = 100  # items for int8; more change the ranges little, and take longer
FAR_APART = 0.1  # cosine distance on synthetic inputs from which on an export is warned of


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


def smaller(
    loaded: Loaded,
    path: Path,
    size: tuple[int, int] | None,
    precision: Literal["float16", "int8"],
    calibration: list[Item],
    about: cost.OnTrials | None,
) -> None:
    """Write a file with smaller weights, where it costs no more on the trials than it may.

    Args:
        loaded: The model.
        path: The file, which ends in .onnx.
        size: Height and width of images, where the model does not say them.
        precision: How weights are stored.
        calibration: Items whose ranges are measured, for int8.
        about: The trials on which the cost is measured; None to measure nothing.
    """
    measured: list[Compared] = []

    def measure(file: Path) -> dict[str, Any]:
        assert about is not None
        measured.append(cost.measure(loaded, file, about))
        return cost.to_json(measured[0], about)

    chosen = exporting.Smaller(precision, calibration, None if about is None else measure)
    parity = exporting.export(loaded, path, size=size, smaller=chosen)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {precision}, "
        f"{path.stat().st_size / 1e6:.1f} MB, in {path}; on {parity.num_items} synthetic inputs "
        f"its embeddings differ from float32 by a cosine distance of at most {parity.distance:.1e}"
    )
    if measured:
        say(measured[0].table().rstrip("\n"))
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


def on_trials(
    loaded: Loaded, trials: Path, items: Path, root: Path | None, far: float, max_loss: float
) -> cost.OnTrials:
    """The trials on which a smaller model is measured, of their files."""
    listed = _items(loaded, items, root)
    return cost.OnTrials(read_trials(trials), listed, trials.name, far, max_loss)


def calibrating(loaded: Loaded, source: Path, root: Path | None) -> list[Item]:
    """At most NUM_CALIBRATED of the items, evenly spaced."""
    listed = _items(loaded, source, root)
    step = max(1, len(listed) // NUM_CALIBRATED)
    return listed[::step][:NUM_CALIBRATED]


def _items(loaded: Loaded, source: Path, root: Path | None) -> list[Item]:
    return list(list_items(source, suffixes=suffixes_of(loaded.modality), root=root))
