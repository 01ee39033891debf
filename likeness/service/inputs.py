"""What a model takes, and what the page shows of it: the faces of a photograph, the crop of each
that the network gets, and a small picture or sound of an enrolment.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.eval.reports.media import MAX_JPEG_PIXELS, MAX_PIXELS
from likeness.modalities.face import align
from likeness.modalities.face import images as face_images
from likeness.modalities.speaker import audio
from likeness.models.load import reading_of
from likeness.service.guard import Limits
from likeness.toolkit.data.images import Pixels, encode, to_pixels, upright_size
from likeness.toolkit.data.items import Item
from likeness.toolkit.models.loaded import Loaded

MAX_FACES = 30  # of one photograph that are given back, those of the highest scores
_SOUNDS = ("WAV", "FLAC", "OGG (Vorbis, Opus)", "MP3", "AIFF", "SPHERE")
_IMAGES = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "PPM")
_KEPT_PIXELS = 192  # the longest edge of a picture that is kept
_KEPT_SECONDS = 8.0
_KEPT_HZ = 16_000


def takes(model: Loaded, limits: Limits) -> dict[str, Any]:
    """What a model takes, said before anything is uploaded.

    Returns:
        A JSON object: `kind` is "recordings"; "photographs", in which a detector finds faces;
        "crops", which are aligned faces of one size; "faces", which are cut out and resized; or
        "images". `height` and `width` of the crops in pixels, else None; `formats`, the formats of
        files that are read; and `text`, all of it in plain English.

    Example:
        >>> from likeness.models.load import load_to_embed
        >>> print(takes(load_to_embed("runs/voices"), Limits())["text"])
        Recordings of 0.1 to 60 s, at any sampling rate and with any number of channels.
    """
    read, settings = reading_of(model)
    kind, size, formats = "images", (None, None), list(_IMAGES)
    most = f"up to {MAX_PIXELS / 1e6:.0f} megapixels (JPEG {MAX_JPEG_PIXELS / 1e6:.0f})"
    text = f"Images of {most}."
    if model.modality == "speaker":
        kind, formats = "recordings", [*_SOUNDS, *(["M4A"] if find_spec("av") else [])]
        text = (
            f"Recordings of {settings.get('min_seconds', 0.1):g} to {limits.max_seconds:g} s, at "
            "any sampling rate and with any number of channels."
        )
        if needed := settings.get("needs_hz"):
            text += (
                f" Those with nothing above {needed / 1000:g} kHz, such as telephone calls, "
                "are refused."
            )
    elif read is align.read:
        height = settings.get("size", 112)
        kind, size = "photographs", (height, settings.get("width") or height)
        text = (
            f"Photographs of {most}. A detector finds the faces; the chosen one is aligned "
            f"to {size[0]} x {size[1]} pixels."
        )
    elif read is face_images.read:
        size = settings.get("size", (112, 112))
        shape = f"{size[0]} x {size[1]} pixels (height x width)"
        kind = "faces"
        text = (
            f"Pictures of {most} that show one face and little else. The whole picture is resized "
            f"to {shape}; no face is looked for in it."
        )
        if settings.get("fit", "exact") == "exact":
            kind = "crops"
            text = (
                f"Aligned crops of faces of {shape}, and no photographs: this server has no "
                "detector. Start it with --detector FILE.onnx to send photographs."
            )
    return {"kind": kind, "height": size[0], "width": size[1], "formats": formats, "text": text}


def find_faces(model: Loaded, item: Item) -> dict[str, Any]:
    """Find the faces of a photograph.

    Args:
        model: A face model. One without a detector looks for no face; it says what becomes of the
            whole picture.
        item: The picture.

    Returns:
        A JSON object: `width` and `height` of the upright picture in pixels; `detector`, whether
        there is one; `faces` by falling score, each with its `box` (x1, y1, x2, y2), `score`, and
        `crop`, a PNG as a data address, or None and the `reason`; `found`, how many there are;
        `chosen`, the number of the face that is taken where nobody chooses another one; and
        `crop`, what becomes of the whole picture where there is no detector.

    Raises:
        LikenessError: The picture cannot be read.
    """
    read, settings = reading_of(model)
    if read is not align.read:
        height, width = upright_size(item.path.read_bytes(), item.name)
        whole = _as_address(to_pixels(np.asarray(model.read(item))))
        answer = {"faces": [], "found": 0, "chosen": None, "crop": whole}
        return {"width": width, "height": height, "detector": False, **answer}
    pixels, faces = align.find(
        item, detector=settings["detector"], min_score=settings.get("min_score")
    )
    height, width = pixels.shape[:2]
    found, chosen = len(faces.boxes), None
    numbers = list(range(min(found, MAX_FACES)))
    if found:
        chosen = align.choose_face(faces, height, width, settings.get("choose", "largest"))
        if chosen not in numbers:
            numbers[-1] = chosen
    return {
        "width": width,
        "height": height,
        "detector": True,
        "faces": [_one(pixels, faces, number, settings) for number in numbers],
        "found": found,
        "chosen": chosen,
        "crop": None,
    }


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
    if reading_of(model)[0] is not align.read:
        raise LikenessError(
            "this server finds no faces, so that none can be chosen; leave the number of the face "
            "out, or start the server with --detector FILE.onnx"
        )
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
        pixels = to_pixels(np.asarray(choosing(model, {item.id: face}).read(item)))
    else:
        pixels = face_images.decode(item)
    height, width = pixels.shape[:2]
    factor = min(1.0, _KEPT_PIXELS / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    small = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    return encode(small, ".jpg", quality=85), ".jpg"


def _one(
    pixels: Pixels, faces: align.Faces, number: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    crop, reason = None, ""
    try:
        size, width = settings.get("size", 112), settings.get("width")
        crop = _as_address(align.cut(pixels, faces.landmarks[number], size, width=width))
    except ValueError as error:
        reason = str(error)
    return {
        "number": number,
        "box": [round(float(edge), 1) for edge in faces.boxes[number]],
        "score": float(faces.scores[number]),
        "crop": crop,
        "reason": reason,
    }


def _as_address(pixels: Pixels) -> str:
    coloured = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return "data:image/png;base64," + base64.b64encode(encode(coloured)).decode()
