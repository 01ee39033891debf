"""Check what a file from elsewhere says of a part's arguments: their types, and bounds.

Descriptions come with checkpoints and exported models. Python does not check annotations, and some
numbers mean memory or time: resampling to a rate of 1e-300 would never end, and a rate of 1e9 takes
eleven gigabytes.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from eval.errors import LikenessError

# These two hold for arguments that _BOUNDS does not name. Networks are also compared with their
# weights.
_ANY_WHOLE = (-1, 65_536)
_ANY_NUMBER = (-1e6, 1e6)
_MAX_TEXT, _MAX_VALUES = 256, 256
# Longer texts, by argument: the configuration of a network of transformers, which
# toolkit/backbones/hub.py checks.
_TEXTS = {"config": 65_536}
_PIXELS, _LAYERS = (0, 4096), (0, 1000)
_BOUNDS: dict[str, tuple[float, float]] = {
    "rate_hz": (1000, 192_000),
    "min_seconds": (0, 3600),
    "max_seconds": (0, 86_400),
    "chunk_seconds": (0, 86_400),
    "max_values": (0, 2**34),
    "crop_seconds": (0.1, 60),
    "crops": (0, 100),
    "num_mels": (1, 1024),
    "num_ceps": (1, 1024),
    "fft_size": (16, 65_536),
    "frame_ms": (1, 1000),
    "hop_ms": (1, 1000),
    "cmn_window": (0, 1_000_000),
    "size": _PIXELS,
    "edge": _PIXELS,
    "short_edge": _PIXELS,
    "crop": _PIXELS,
    "image_size": _PIXELS,
    "depth": _LAYERS,
    "blocks": _LAYERS,
    "layers": _LAYERS,
    "heads": _LAYERS,
    "registers": _LAYERS,
    "time_masks": _LAYERS,
    "freq_masks": _LAYERS,
    "res2net_scale": (1, 64),
    "cells": (1, 64),
    "bins": (1, 256),
    "num_bins": (1, 1024),
}


def check_arguments(part: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> None:
    """Check that every argument has the type in the part's signature and lies within its bounds.

    Args:
        part: A class or function.
        arguments: What a file gives to it. Lists are tuples already, and nested parts are
            functools.partial.
        name: What the error calls the part.

    Raises:
        LikenessError: The first argument that is wrong, its value, and what is needed.
    """
    target = inspect.unwrap(part.__init__ if inspect.isclass(part) else part)
    hints = typing.get_type_hints(target)
    for key, value in arguments.items():
        if wrong := _wrong(value, hints.get(key, Any), key):
            raise LikenessError(
                f"{name}.{key} is {str(value)[:60]!r}, but {wrong}; the description is damaged or "
                "hostile: copy it again"
            )


def _wrong(value: Any, hint: Any, key: str) -> str:
    """Return what is needed in place of the value, or "" if nothing is wrong with it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        faults = [_wrong(value, kind, key) for kind in inner]
        return "" if "" in faults else " or ".join(faults)
    if hint is types.NoneType:
        return "" if value is None else "None is needed"
    if origin is Literal:
        if any(type(value) is type(allowed) and value == allowed for allowed in inner):
            return ""
        return f"one of {', '.join(map(str, inner))} is needed"
    if origin is tuple or origin is collections.abc.Sequence:
        return _wrong_sequence(value, inner, key, free=origin is not tuple or Ellipsis in inner)
    if hint is bool:
        return "" if isinstance(value, bool) else "true or false is needed"
    if hint is int or hint is float:
        low, high = _BOUNDS.get(key, _ANY_WHOLE if hint is int else _ANY_NUMBER)
        is_float = hint is float and type(value) is float and math.isfinite(value)
        if (type(value) is int or is_float) and low <= value <= high:
            return ""
        return f"a {'whole ' if hint is int else ''}number from {low:g} to {high:g} is needed"
    if hint is str:
        longest = _TEXTS.get(key, _MAX_TEXT)
        fits = isinstance(value, str) and len(value) <= longest
        return "" if fits else f"a text of at most {longest} characters is needed"
    if origin is collections.abc.Callable or inspect.isclass(hint):
        return "" if isinstance(value, partial) else "a part is needed"
    return "it cannot be given by a file"


def _wrong_sequence(value: Any, inner: tuple[Any, ...], key: str, *, free: bool) -> str:
    """Return what is needed in place of a tuple; `free` if it may have any number of values."""
    kinds = [kind for kind in inner if kind is not Ellipsis]
    right_length = isinstance(value, tuple) and (free or len(value) == len(kinds))
    if not right_length or len(value) > _MAX_VALUES:
        return f"{'a list' if free else len(kinds)} of values is needed"
    for i, element in enumerate(value):
        if fault := _wrong(element, kinds[0 if free else i], key):
            return fault
    return ""
