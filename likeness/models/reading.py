"""How a model reads items for `likeness embed`: faces, mirror images, crops and chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.option import Option
from likeness.eval.types import check_choice
from likeness.modalities.speaker import long
from likeness.models import load as loading
from likeness.toolkit.models.loaded import Flip, Loaded, flipped

# What a reading in parts takes over from the model's own.
_OF_EVERY_READING = ("rate_hz", "min_seconds", "needs_hz", "level_dbfs")


@dataclass(frozen=True)
class Reading:
    """How a model is loaded, and reads an item.

    Attributes:
        frontend: As in `likeness.models.model.load`.
        detector: As in `likeness.models.model.load`.
        min_score: As in `likeness.models.model.load`.
        faces: Of photographs: the largest face near the centre, or all of them, with ids such as
            photo.jpg#2.
        flip: For images: how the embedding is joined with that of the mirror image.
        crops: For speech: the mean of so many crops of 4 s; 0 takes the whole.
        chunk_seconds: For speech: the mean of chunks of so many seconds; 0 takes the whole.
        only_speech: For speech: leave out pauses, by their energy.
        ijb: Embed the faces of IJB-B or IJB-C in this folder.
        trust: As in `likeness.models.model.load`.
    """

    frontend: Literal["wespeaker", "3dspeaker"] = "wespeaker"
    detector: Annotated[Path | None, Option(path="file")] = None
    min_score: float | None = None
    faces: Literal["central", "all"] = "central"
    flip: Flip = "none"
    crops: Annotated[int, Option(least=0)] = 0
    chunk_seconds: Annotated[float, Option(least=0)] = 0.0
    only_speech: bool = False
    ijb: Annotated[Path | None, Option(path="folder")] = None
    trust: Annotated[Sequence[str], Option(metavar="PACKAGE|FILE|FOLDER")] = ()


def load_reading(model: str, reading: Reading) -> tuple[Loaded, Sequence[Item]]:
    """Load a model that reads items as `reading` says.

    Returns:
        The model; and the faces of the IJB pack, where `reading` names one.

    Raises:
        LikenessError: The model cannot be loaded, or it cannot read items in this way.
    """
    # The faces of IJB are aligned by its landmarks, not by a detector.
    detector: Path | Literal[False] | None = reading.detector if reading.ijb is None else False
    loaded = loading.load_named(
        model,
        detector=detector,
        min_score=reading.min_score,
        frontend=reading.frontend,
        trust=reading.trust,
    )
    loading.refuse_head(loaded, model)
    items: Sequence[Item] = ()
    if reading.ijb is not None:
        loaded, items = ijb_pack(loaded, reading.ijb)
    return read_as(loaded, reading), items


def read_as(model: Loaded, reading: Reading) -> Loaded:
    """Return the model reading in crops or chunks, or joining embeddings of mirror images.

    How crops and chunks are read is in modalities/speaker/long.py. The model's `settings` state all
    of it in the metadata of its embeddings.

    Raises:
        LikenessError: The model cannot read so, the settings exclude each other or are too small,
            or there is no such way of joining.
    """
    check_choice("flip", reading.flip, get_args(Flip))
    if reading.crops or reading.chunk_seconds or reading.only_speech:
        model = _in_parts(model, reading)
    if reading.flip == "none":
        return model
    if model.modality == "speaker":
        raise LikenessError(f"flip {reading.flip!r} is for images, and this model takes recordings")
    settings = {**model.settings, "flip": reading.flip}
    return replace(model, embedder=flipped(model.embedder, reading.flip), settings=settings)


def _in_parts(model: Loaded, reading: Reading) -> Loaded:
    """The model reading in crops, in chunks, or without pauses."""
    if model.modality != "speaker":
        raise LikenessError(
            f"crops, chunks and only_speech are for speech, not {model.modality!r}: leave them out"
        )
    loading.refuse_other_reading(model, "crops, chunks and only_speech")
    crops, chunk_seconds = reading.crops, reading.chunk_seconds
    long.check(crops, chunk_seconds)
    bound = loading.reading_of(model)[1]
    own = {key: value for key, value in bound.items() if key in _OF_EVERY_READING}
    read = partial(
        long.read,
        crops=crops,
        chunk_seconds=chunk_seconds,
        only_speech=reading.only_speech,
        **own,
    )
    settings = {
        "crops": f"{crops} x {long.CROP_SECONDS:g} s, mean" if crops else "",
        "chunks": f"at most {chunk_seconds:g} s, mean by length" if chunk_seconds else "",
        "pauses": "left out by energy" if reading.only_speech else "",
    }
    stated = {name: text for name, text in settings.items() if text}
    return replace(model, read=read, settings={**model.settings, **stated})


def ijb_pack(model: Loaded, root: Path) -> tuple[Loaded, Sequence[Item]]:
    """Return the model reading the faces of an IJB pack, and these faces.

    They are aligned by the pack's landmarks to the size and the frame that the model takes
    (modalities/face/ijb.py).

    Raises:
        LikenessError: The model is of something else than faces, or of faces that cannot be aligned
            to its size; and as `likeness.modalities.face.ijb.pack`.
    """
    from likeness.modalities.face import ijb

    if model.modality != "face":
        raise LikenessError(
            f"--ijb is for models of faces; this is one of modality {model.modality!r}"
        )
    loading.refuse_other_reading(model, "--ijb")
    size, frame = loading.aligned_as(model)
    items, landmarks = ijb.pack(root)
    read = partial(ijb.read, landmarks=str(landmarks), size=size, frame=frame)
    faces = f"aligned to {size[0]} x {size[1]} by the pack's 5 landmarks"
    return replace(model, read=read, settings={**model.settings, "faces": faces}), items
