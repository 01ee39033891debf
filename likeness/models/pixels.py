"""The pixels that a face network takes, and how a user states them after the network's file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from eval.errors import LikenessError

MAX_SIDE = 4096  # pixels, as modalities.face.images.read allows


class Pixels(NamedTuple):
    """What a network over (B, 3, height, width) takes: (x - mean) / std of x from 0 to 255.

    Attributes:
        size: Height and width.
        mean: What is subtracted.
        std: What is divided by.
        bgr: Whether the colours come in the order blue, green, red.
    """

    size: tuple[int, int]
    mean: float
    std: float
    bgr: bool = False


class Stated(NamedTuple):
    """What stands after a file in MODEL, `FILE.onnx@size=112x96,mean=127.5,std=128,order=bgr`.

    Attributes:
        size: Height and width; None if it is not stated.
        mean: What is subtracted; None if it is not stated.
        std: What is divided by; None if it is not stated.
        bgr: Whether the colours come in the order blue, green, red.
    """

    size: tuple[int, int] | None = None
    mean: float | None = None
    std: float | None = None
    bgr: bool = False


def split(source: str) -> tuple[Path, Stated]:
    """Return the path of `PATH` or `PATH@KEY=VALUE,...`, and what is stated after it.

    A path that exists is taken whole, also with an @ in it.

    Args:
        source: What follows `insightface:`.

    Raises:
        LikenessError: A key is not known or occurs twice, or its value is out of range.

    Example:
        >>> split("own.onnx@size=112x96,std=128")[1]
        Stated(size=(112, 96), mean=None, std=128.0, bgr=False)
    """
    whole = Path(source).expanduser()
    name, at, text = source.rpartition("@")
    if not at or "=" not in text or whole.exists():
        return whole, Stated()
    pairs = [pair.partition("=") for pair in text.split(",")]
    values = {key: value for key, _, value in pairs}
    numbers = {key: _number(values[key]) for key in ("mean", "std") if key in values}
    height, _, width = values.get("size", "1x1").partition("x")
    sizes = [_whole(side) for side in (height, width)]
    if (
        not values.keys() <= {"size", "mean", "std", "order"}
        or len(values) < len(pairs)
        or not all(1 <= side <= MAX_SIDE for side in sizes)
        or not all(math.isfinite(number) for number in numbers.values())
        or numbers.get("std", 1.0) <= 0
        or values.get("order", "rgb") not in ("rgb", "bgr")
    ):
        raise LikenessError(
            f"insightface:{source}: {text!r} is not understood; after the file and @ stand, with "
            f"commas between them, size=HEIGHTxWIDTH (up to {MAX_SIDE}), mean=NUMBER, std=NUMBER "
            "above 0 and order=rgb or bgr, each at most once"
        )
    size = (sizes[0], sizes[1]) if "size" in values else None
    bgr = values.get("order") == "bgr"
    return Path(name).expanduser(), Stated(size, numbers.get("mean"), numbers.get("std"), bgr)


def _whole(text: str) -> int:
    """Return the number that up to four digits are, or 0."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0


def _number(text: str) -> float:
    """Return the number that a text is, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
