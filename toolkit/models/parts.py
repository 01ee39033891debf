"""Parts, the classes and functions that a recipe is made of, as JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from eval.errors import LikenessError
from toolkit.models import foreign

# A class or function, usually in functools.partial.
Part = Callable[..., Any]
HOMES = ("toolkit", "modalities", "eval")  # the packages whose parts need no version


class Parts(Protocol):
    """What a checkpoint keeps of a recipe by itself; it is enough to embed."""

    @property
    def modality(self) -> str: ...
    @property
    def frontend(self) -> Part: ...
    @property
    def backbone(self) -> Part: ...
    @property
    def read(self) -> Part: ...


def describe(value: Any, name: str = "recipe") -> Any:
    """Return a recipe or a part as JSON values.

    A part becomes {"call": "toolkit.module.Name", "args": {...}}. For a part of another package, or
    of a file in the recipe's folder, "package" and "version" say which (toolkit/models/foreign.py).

    Args:
        value: A recipe, a part, or a value in one.
        name: What an error calls the value.

    Raises:
        LikenessError: The value contains a lambda, a function that is defined in another one, a
            part with positional arguments, or a part that a checkpoint could not be loaded with.

    Example:
        >>> from toolkit.data.pixels import PixelScale
        >>> describe(partial(PixelScale, scale=1.0))
        {'call': 'toolkit.data.pixels.PixelScale', 'args': {'scale': 1.0}}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: describe(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): describe(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(inner, name) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    func, keywords = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    if isinstance(value, partial) and value.args:
        raise LikenessError(
            f"{name}: {func.__qualname__} is given positional arguments; name them, so that they "
            "can be described"
        )
    module = getattr(func, "__module__", None) or ""
    qualname = getattr(func, "__qualname__", "<")
    arguments = {key: describe(inner, f"{name}.{key}") for key, inner in keywords.items()}
    if module.partition(".")[0] in HOMES and "<" not in qualname:
        return {"call": f"{module}.{qualname}", "args": arguments}
    stated = foreign.origin(func, name, keywords)
    return {"call": f"{module}.{qualname}", "args": arguments, **stated}


def without_revisions(description: Any) -> Any:
    """Leave out of a description from which commits of the hub its networks came.

    A network is told by its configuration, which is beside the commit: a run goes on, and a result
    stays what it is, after a later commit that changes neither.

    Example:
        >>> args = {"config": "{}", "revision": "0123"}
        >>> without_revisions({"call": "toolkit.backbones.hub.HubImage", "args": args})
        {'call': 'toolkit.backbones.hub.HubImage', 'args': {'config': '{}'}}
    """
    if isinstance(description, list):
        return [without_revisions(value) for value in description]
    if not isinstance(description, dict):
        return description
    values = {key: without_revisions(value) for key, value in description.items()}
    is_hub = str(values.get("call")).startswith("toolkit.backbones.hub.")
    if is_hub and isinstance(values.get("args"), dict):
        values["args"].pop("revision", None)
    return values
