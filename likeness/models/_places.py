"""Models as they embed at a place, and the thresholds that go with them."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date as Date
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.provenance import digest
from likeness.eval.metrics.calibration import load_fusion
from likeness.eval.metrics.self_matches import without_copies
from likeness.eval.metrics.unlabelled import centre_of, estimated_thresholds
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.settings import Scoring
from likeness.eval.scoring.threshold_files import find, thresholds_path, write_thresholds
from likeness.eval.scoring.thresholds import Threshold, Thresholds
from likeness.eval.writing import atomic_path, remove
from likeness.models.bundled import resolve_model
from likeness.models.load import load_exported
from likeness.models.verdicts import calibration_path
from likeness.toolkit.models.loaded import Loaded, drop_centre


def at_place(model: Loaded, entries: Sequence[Thresholds]) -> Loaded:
    """The model as it embeds where its thresholds were estimated from unlabelled items.

    It compares by the cosine there.

    Raises:
        LikenessError: The thresholds are of another model.
    """
    centre = entries[0].centre if entries else ()
    if not centre:
        return model
    if (entries[0].origin.model, len(centre)) != (model.digest, model.embedder.dim):
        raise LikenessError(
            f"the thresholds are of another model ({entries[0].origin.system}); estimate them anew"
        )
    return _without(model, centre, entries[0].data)


def _without(model: Loaded, centre: tuple[float, ...], data: str) -> Loaded:
    """The model without the mean direction of a place, whose items are called `data`."""
    embedder = drop_centre(model.embedder, centre)
    settings = {**model.settings, "mean": f"{data} {digest([repr(centre)])[:16]}"}
    return replace(model, embedder=embedder, similarity="cosine", settings=settings)


def estimate(
    model: Loaded, embeddings: Embeddings, fars: Sequence[float], *, data: str
) -> Thresholds:
    """Estimate thresholds for a place from the embeddings of its unlabelled items.

    Args:
        model: What embedded them.
        embeddings: The items, of whom nobody is named.
        fars: The false-accept rates.
        data: What the items are called.

    Raises:
        LikenessError: There are too few items, or a rate is out of range.
    """
    embeddings = without_copies(embeddings)
    unit = embeddings.unit()
    values, centre = estimated_thresholds(unit, fars), tuple(centre_of(unit).tolist())
    meta = _without(model, centre, data).meta
    return Thresholds(
        Origin(Scoring().system(meta), meta),
        data,
        subjects=None,
        targets=0,
        nontargets=0,
        date=Date.today().isoformat(),
        points=tuple(
            Threshold("far", far, None, value) for far, value in zip(fars, values, strict=True)
        ),
        unlabelled=len(embeddings.ids),
        centre=centre,
    )


def drop_other_calibration(exported: Path) -> None:
    """Remove the calibration beside an .onnx file, unless it says that it is of this model."""
    path, is_own = calibration_path(str(exported)), False
    if path is None or not path.is_file():
        return
    with suppress(LikenessError):
        model = load_exported(exported)
        is_own = model is not None and load_fusion(path).systems == (Scoring().system(model.meta),)
    if not is_own:
        remove(path)


def carry(model: str, meta: Mapping[str, str], exported: Path) -> bool:
    """Take the thresholds and the calibration of a model along to its export, which gives the same
    embeddings.

    Args:
        model: A MODEL, as `likeness.load` takes it.
        meta: Of the model's embeddings.
        exported: The .onnx file.

    Returns:
        Whether there were any thresholds.
    """
    before, after = calibration_path(model), calibration_path(str(exported))
    if before and after and before.is_file() and before != after:
        with atomic_path(after) as temporary:
            shutil.copyfile(before, temporary)
    elif before != after:
        drop_other_calibration(exported)
    entries = [entry for entry in find(resolve_model(model)) if entry.origin.model == meta["model"]]
    place = thresholds_path(str(exported))
    if place is None:
        return False
    for entry in reversed(entries):
        write_thresholds(place, entry)
    return bool(entries)
