"""What a model takes, and what the page shows of it: the faces of a photograph, the crop of each
that the network gets, and a small picture or sound of an enrolment.
"""

from __future__ import annotations

import base64
import inspect
import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.reports.media import MAX_JPEG_PIXELS, MAX_PIXELS
from likeness.modalities.face import align
from likeness.modalities.face import images as face_images
from likeness.modalities.speaker import audio
from likeness.models.load import reading_of
from likeness.toolkit.data.images import Pixels, encode, to_pixels
from likeness.toolkit.models.loaded import Loaded

MAX_SECONDS = 60.0  # of one recording
MAX_VALUES = 2**26  # samples x channels of one: a minute of 23 channels at 48 kHz
MAX_FACES = 30  # of one photograph that are given back, those of the highest scores
_KEPT_PIXELS = 192  # the longest edge of a picture that is kept
_KEPT_SECONDS = 8.0
_KEPT_HZ = 16_000


def bounded(model: Loaded) -> Loaded:
    """The model refusing longer and larger recordings, where its reading has such bounds."""
    known = inspect.signature(model.read).parameters
    most = {"max_seconds": MAX_SECONDS, "max_values": MAX_VALUES}
    bounds: Any = {name: value for name, value in most.items() if name in known}
    return replace(model, read=partial(model.read, **bounds)) if bounds else model


def describe_input(model: Loaded) -> dict[str, Any]:
    """What a model takes, said before anything is uploaded.

    Returns:
        A JSON object: `kind` is "recordings"; "photographs", in which a detector finds faces;
        "crops", which are aligned faces of one size; "faces", which are cut out and resized; or
        "images". `height` and `width` of the crops in pixels, else None; and `text`, all of it in
        plain English.

    Example:
        >>> from likeness.models.load import load_named
        >>> print(describe_input(load_named("runs/voices"))["text"])
        Recordings of 0.1 to 60 s, of any rate and number of channels.
    """
    read, settings = reading_of(model)
    most = f"up to {MAX_PIXELS / 1e6:.0f} megapixels (JPEG {MAX_JPEG_PIXELS / 1e6:.0f})"
    kind, size, text = "images", (None, None), f"Images of {most}."
    if model.modality == "speaker":
        kind = "recordings"
        least = settings.get("min_seconds", 0.1)
        text = f"Recordings of {least:g} to {MAX_SECONDS:g} s, of any rate and number of channels."
        if needed := settings.get("needs_hz"):
            text += f" Those with nothing above {needed / 1000:g} kHz are refused."
    elif read is align.read:
        kind, size = "photographs", settings.get("size", (112, 112))
        text = f"Photographs of {most}, in which a detector finds the faces."
    elif read is face_images.read:
        size = settings.get("size", (112, 112))
        kind = "crops" if settings.get("fit", "exact") == "exact" else "faces"
        text = (
            f"Aligned crops of faces of {size[0]} x {size[1]} pixels (height x width). Photographs "
            "need a detector: start the server with --detector FILE.onnx."
            if kind == "crops"
            else f"Pictures of {most} that show one face and little else."
        )
    return {"kind": kind, "height": size[0], "width": size[1], "text": text}


def find_faces(model: Loaded, item: Item) -> dict[str, Any]:
    """Find the faces of a photograph.

    Args:
        model: A face model with a detector.
        item: The picture.

    Returns:
        A JSON object: `width` and `height` of the upright picture in pixels; `faces` by falling
        score, each with its `box` (x1, y1, x2, y2), `score`, and `crop`, a PNG as a data address,
        or None and the `reason`; `found`, how many there are; and `chosen`, the number of the face
        that is taken where nobody chooses another one.

    Raises:
        LikenessError: The picture cannot be read, or the model has no detector.
    """
    settings = _detecting(model)
    least = settings.get("min_score")
    pixels, faces = align.find(item, detector=settings["detector"], min_score=least)
    height, width = pixels.shape[:2]
    num_faces, chosen = len(faces.boxes), None
    if num_faces:
        chosen = align.choose_face(faces, height, width, settings.get("choose", "largest"))
    shown = [_one(pixels, faces, i, settings) for i in range(min(num_faces, MAX_FACES))]
    counts = {"found": num_faces, "chosen": chosen}
    return {"width": width, "height": height, "faces": shown, **counts}


def _detecting(model: Loaded) -> Mapping[str, Any]:
    """How a model finds faces. Raises LikenessError where it has no detector."""
    read, settings = reading_of(model)
    if read is not align.read:
        raise LikenessError("this server finds no faces; start it with --detector FILE.onnx")
    return settings


def choosing(model: Loaded, chosen: Mapping[str, int | None]) -> Loaded:
    """The model reading of each photograph the face that somebody chose.

    Args:
        model: A face model with a detector.
        chosen: Item id -> number of its face, as `find_faces` counts; None follows the rule.

    Raises:
        LikenessError: There is a choice, and the model has no detector.
    """
    if all(face is None for face in chosen.values()):
        return model
    _detecting(model)
    whole: Any = model.read
    return replace(model, read=lambda item: whole(item, face=chosen[item.id]))


def miniature(model: Loaded, item: Item, face: int | None = None) -> tuple[bytes, str]:
    """Make a small JPEG or FLAC file, without what else a file says, such as where it was taken.

    Args:
        model: What embeds the file. Of a photograph in which a detector finds faces the crop that
            the network saw is taken, and nothing of its surroundings.
        item: A recording or an image that the model can read.
        face: The number of the face that somebody chose, or None.

    Returns:
        The file, and its ending: an image of at most 192 pixels, or the first 8 s of sound.

    Raises:
        LikenessError: The file cannot be read.
    """
    if model.modality == "speaker":
        wave = np.asarray(audio.read(item, rate_hz=_KEPT_HZ))[: round(_KEPT_SECONDS * _KEPT_HZ)]
        sound = io.BytesIO()
        peak = max(1.0, float(np.abs(wave).max()))  # floats may be louder than full scale
        soundfile.write(sound, wave / peak, _KEPT_HZ, format="FLAC", subtype="PCM_16")
        return sound.getvalue(), ".flac"
    if reading_of(model)[0] is align.read:
        crop = np.asarray(choosing(model, {item.id: face}).read(item))
        pixels = to_pixels(crop.astype(np.uint8))
    else:
        pixels = face_images.decode(item)
    small = Image.fromarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    small.thumbnail((_KEPT_PIXELS, _KEPT_PIXELS))
    return encode(np.asarray(small), ".jpg", quality=85), ".jpg"


def _one(
    pixels: Pixels, faces: align.Faces, number: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    crop, reason = None, ""
    try:
        shape: Any = {name: settings[name] for name in ("size", "frame") if name in settings}
        cut = align.cut(pixels, faces.landmarks[number], **shape)
        coloured = encode(np.broadcast_to(cut, (*cut.shape[:2], 3)))
        crop = "data:image/png;base64," + base64.b64encode(coloured).decode()
    except ValueError as error:
        reason = str(error)
    box = [round(float(edge), 1) for edge in faces.boxes[number]]
    score = float(faces.scores[number])
    return {"number": number, "box": box, "score": score, "crop": crop, "reason": reason}
