"""What reading an item gives: an array, or the reason why there is none.

Nothing here imports torch, so that a model in ONNX form is used without it. What becomes of inputs
in training is in toolkit/data/batch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from toolkit.backbones.part_outputs import described, is_tensor
from toolkit.data.items import Item

Floats = NDArray[np.float32]
Levels = NDArray[np.uint8]  # of images, (C, H, W), 0 to 255

NOT_FINITE = "NaN or infinity among its numbers"

Array = Floats | Levels
Read = Callable[[Item], Array]
# What is read and augmented is an array, or an opened file of which the augmentation decodes a part
# (toolkit.data.images.EncodedImage, modalities.speaker.audio.Recording).
Augment = Callable[[Any, np.random.Generator, np.random.Generator], Array]
_NUMBERS = "fiub"  # the kinds of numpy's types that are numbers: floats, integers and booleans


class Bad(NamedTuple):
    """An item that could not be read, and why."""

    id: str
    reason: str


class Unreadable(LikenessError):
    """An item cannot be used, as its reading finds, or the augmentation that decodes a part."""


def name_of(part: Any) -> str:
    """Return the name of a class, a function or an instance, with its module.

    Example:
        >>> name_of(partial(Bad, "a")), name_of(Bad("a", "no such file"))
        ('toolkit.data.reading.Bad', 'toolkit.data.reading.Bad')
    """
    while isinstance(part, partial):
        part = part.func
    if not hasattr(part, "__qualname__"):
        part = type(part)
    return f"{part.__module__}.{part.__qualname__}"


def as_input(value: Any, part: Any, item: str) -> NDArray[Any]:
    """Return what a reading or an augmentation gives as an array of numbers.

    Args:
        value: What it gives; a tensor becomes an array.
        part: The reading or augmentation.
        item: The id of the item.

    Raises:
        TypeError: It is no array of numbers. This is a mistake in the part, and not in the item.
    """
    array = value.numpy(force=True) if is_tensor(value) else value
    if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in _NUMBERS:
        what = described(value)
        if isinstance(array, np.ndarray):
            what = f"an array {array.shape} of {array.dtype}"
        raise TypeError(
            f"{name_of(part)} gives {what} for item {item}; it must return an array of numbers: "
            "waves (samples,), or images (channels, height, width)"
        )
    return array


def is_finite(value: Array) -> bool:
    """Returns whether an input contains neither NaN nor infinity.

    Example:
        >>> is_finite(np.array([1.0, 2.0], np.float32)), is_finite(np.array([np.nan], np.float32))
        (True, False)
    """
    if value.dtype == np.uint8:
        return True
    # NaN and infinity remain in the sum of squares, which takes one pass at the memory's speed.
    # The squares may overflow where the numbers do not, so the slow way has the last word.
    if np.isfinite(np.vdot(value, value)):
        return True
    return bool(np.isfinite(value).all())


def padded(inputs: Sequence[Array]) -> tuple[Array, NDArray[np.float64] | None]:
    """Return inputs as one array; shorter ones are padded with zeros on the last axis.

    Args:
        inputs: B arrays of shape (..., S_i), equal but for the last axis.

    Returns:
        (B, ..., S) of uint8 where all are, else of float32; and the relative lengths (B,) from 0
        to 1, or None where nothing is padded.

    Example:
        >>> whole, lengths = padded([np.ones(4, np.float32), np.ones(2, np.float32)])
        >>> whole.tolist(), lengths.tolist()
        ([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], [1.0, 0.5])
    """
    sizes = np.array([value.shape[-1] for value in inputs])
    longest = int(sizes.max())
    dtype = np.uint8 if all(value.dtype == np.uint8 for value in inputs) else np.float32
    stacked = np.zeros((len(inputs), *inputs[0].shape[:-1], longest), dtype=dtype)
    for row, value in zip(stacked, inputs, strict=True):
        row[..., : value.shape[-1]] = value
    return stacked, (None if (sizes == longest).all() else sizes / longest)
