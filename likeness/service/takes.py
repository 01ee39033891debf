"""What a model takes, said before anything is uploaded: crops or photographs, lengths, formats."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from likeness.service.limits import Limits
from modalities.face import align, images
from toolkit.models.loaded import Loaded

Kind = Literal["recordings", "photographs", "crops", "faces", "images"]
_SOUNDS = ("WAV", "FLAC", "OGG (Vorbis, Opus)", "MP3", "AIFF", "SPHERE")
_IMAGES = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "PPM")


class Takes(NamedTuple):
    """What a model takes.

    Attributes:
        kind: "recordings"; "photographs", in which a detector finds faces; "crops", which are
            aligned faces of one size; "faces", which are cut out and resized; or "images".
        height: Of the crops in pixels; None where there are none.
        width: Of the crops in pixels; None where there are none.
        formats: The formats of files that are read.
        text: All of it in plain English.
    """

    kind: Kind
    height: int | None
    width: int | None
    formats: tuple[str, ...]
    text: str


def takes(model: Loaded, limits: Limits) -> Takes:
    """What a model takes within the limits of a server.

    Example:
        >>> import likeness
        >>> from likeness.models.load import load_to_embed
        >>> print(takes(load_to_embed("runs/voices"), Limits()).text)
        Recordings of 0.1 to 60 s, at any sampling rate and with any number of channels.
    """
    function, bound = _reading(model)
    if model.modality == "speaker":
        least, most = float(bound.get("min_seconds", 0.1)), limits.max_seconds
        formats = _SOUNDS + (("M4A",) if find_spec("av") else ())
        text = (
            f"Recordings of {least:g} to {most:g} s, at any sampling rate and with any number of "
            "channels."
        )
        if needed := bound.get("needs_hz"):
            text += (
                f" Those with nothing above {needed / 1000:g} kHz, such as telephone calls, "
                "are refused."
            )
        return Takes("recordings", None, None, formats, text)
    most_pixels = f"up to {limits.max_pixels / 1e6:.0f} megapixels"
    if function is align.read:
        height = int(bound.get("size", 112))
        width = int(bound.get("width") or height)
        text = (
            f"Photographs of {most_pixels}. A detector finds the faces; the chosen one is aligned "
            f"to {height} x {width} pixels."
        )
        return Takes("photographs", height, width, _IMAGES, text)
    if function is images.read:
        height, width = map(int, bound.get("size", (112, 112)))
        if bound.get("fit", "exact") == "exact":
            text = (
                f"Aligned crops of faces of {height} x {width} pixels (height x width), and no "
                "photographs: this server has no detector. Start it with --detector FILE.onnx to "
                "send photographs."
            )
            return Takes("crops", height, width, _IMAGES, text)
        text = (
            f"Pictures of {most_pixels} that show one face and little else. The whole picture is "
            f"resized to {height} x {width} pixels (height x width); no face is looked for in it."
        )
        return Takes("faces", height, width, _IMAGES, text)
    return Takes("images", None, None, _IMAGES, f"Images of {most_pixels}.")


def _reading(model: Loaded) -> tuple[Any, dict[str, Any]]:
    """The function by which a model reads, and the arguments that it always gets."""
    read: Any = model.read
    bound: dict[str, Any] = {}
    while isinstance(read, partial):
        bound = {**read.keywords, **bound}
        read = read.func
    return read, bound
