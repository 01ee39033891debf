"""The faces of a photograph on the page: where they are, which of them is taken, and the crop of
each that the network gets.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from eval.errors import LikenessError
from modalities.face import align
from toolkit.data.images import BadImage, Pixels, encode, open_encoded
from toolkit.data.items import Item
from toolkit.models.loaded import Loaded

MAX_FACES = 30  # of one photograph that are given back, those of the highest scores


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
    bound = _with_detector(model)
    if bound is None:
        height, width = open_encoded(item.path.read_bytes(), item.name).size
        seen = np.asarray(model.read(item))
        return {
            "width": width,
            "height": height,
            "detector": False,
            "faces": [],
            "found": 0,
            "chosen": None,
            "crop": _as_address(_pixels(seen)),
        }
    pixels, faces = align.find(item, detector=bound["detector"])
    height, width = pixels.shape[:2]
    chosen = None
    if len(faces.boxes):
        chosen = align.choose_face(faces, height, width, bound.get("choose", "largest"))
    numbers = list(range(min(len(faces.boxes), MAX_FACES)))
    if chosen is not None and chosen not in numbers:
        numbers[-1] = chosen
    return {
        "width": width,
        "height": height,
        "detector": True,
        "faces": [_one(pixels, faces, number, bound) for number in numbers],
        "found": len(faces.boxes),
        "chosen": chosen,
        "crop": None,
    }


def crop_of(model: Loaded, item: Item, face: int | None) -> Pixels | None:
    """The crop that the network sees of a photograph; None for a model without a detector.

    Args:
        model: Any model.
        item: The photograph.
        face: The number of the face that somebody chose, or None for the rule.

    Raises:
        LikenessError: There is no face.
    """
    if _with_detector(model) is None:
        return None
    whole: Any = model.read
    return _pixels(np.asarray(whole(item, face=face)))


def choosing(model: Loaded, chosen: Mapping[str, int]) -> Loaded:
    """The model reading of each photograph the face that somebody chose.

    Args:
        model: A face model with a detector.
        chosen: Item id -> number of its face, as `find_faces` counts; the others follow the rule.

    Raises:
        LikenessError: There is a choice, and the model has no detector.
    """
    if not chosen:
        return model
    if _with_detector(model) is None:
        raise LikenessError(
            "this server finds no faces, so that none can be chosen; leave the number of the face "
            "out, or start the server with --detector FILE.onnx"
        )
    whole: Any = model.read

    def read(item: Item) -> Any:
        return whole(item, face=chosen[item.id]) if item.id in chosen else whole(item)

    return replace(model, read=read)


def _with_detector(model: Loaded) -> dict[str, Any] | None:
    """The arguments of a reading that finds faces; None for any other reading."""
    read = model.read
    if isinstance(read, partial) and read.func is align.read:
        return dict(read.keywords)
    return None


def _one(
    pixels: Pixels, faces: align.Faces, number: int, bound: Mapping[str, Any]
) -> dict[str, Any]:
    crop, reason = None, ""
    try:
        size = bound.get("size", 112)
        crop = _as_address(
            align.cut(pixels, faces.landmarks[number], size, width=bound.get("width"))
        )
    except ValueError as error:
        reason = str(error)
    return {
        "number": number,
        "box": [round(float(edge), 1) for edge in faces.boxes[number]],
        "score": float(faces.scores[number]),
        "crop": crop,
        "reason": reason,
    }


def _pixels(values: np.ndarray[Any, Any]) -> Pixels:
    """The picture (H, W, 3) in a network's input (C, H, W) of levels from 0 to 255."""
    if values.ndim != 3 or values.shape[0] not in (1, 3):
        raise BadImage(f"the model's input has the shape {values.shape}, which is no picture")
    levels = np.clip(np.rint(values), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(np.broadcast_to(levels, (*levels.shape[:2], 3)))


def _as_address(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode()
