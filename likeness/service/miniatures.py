"""The small picture or sound that is kept of an enrolment, if the server is told to keep any."""

from __future__ import annotations

import io

import cv2
import numpy as np
import soundfile

from likeness.service.faces import crop_of
from modalities.face.images import decode
from modalities.speaker import audio
from toolkit.data.images import encode
from toolkit.data.items import Item
from toolkit.models.loaded import Loaded

MAX_EDGE = 192  # pixels
MAX_SECONDS = 8.0
_RATE_HZ = 16_000


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
        wave = np.asarray(audio.read(item, rate_hz=_RATE_HZ))[: round(MAX_SECONDS * _RATE_HZ)]
        sound = io.BytesIO()
        peak = max(1.0, float(np.abs(wave).max()))  # floats may be louder than full scale
        soundfile.write(sound, wave / peak, _RATE_HZ, format="FLAC", subtype="PCM_16")
        return sound.getvalue(), ".flac"
    pixels = crop_of(model, item, face)
    if pixels is None:
        pixels = decode(item)
    height, width = pixels.shape[:2]
    factor = min(1.0, MAX_EDGE / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    small = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    return encode(small, ".jpg", quality=85), ".jpg"
