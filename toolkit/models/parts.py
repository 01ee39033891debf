"""Parts, the classes and functions that a recipe is made of, as JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

Part = Callable[
    ..., Any
]  # a class or function of toolkit, modalities or eval, usually in functools.partial
HOMES = ("toolkit", "modalities", "eval")  # the packages that a description may name
# Modules that version 0.1 named otherwise. What it wrote is read by these names.
RENAMED = {
    "eval.lfw": "eval.protocols.lfw",
    "eval.trials": "eval.formats.trials",
    "toolkit.batch": "toolkit.data.batch",
    "toolkit.measure": "toolkit.training.measure",
    "toolkit.memory": "toolkit.training.memory",
    "toolkit.pairs": "toolkit.data.pairs",
    "toolkit.pixels": "toolkit.data.pixels",
    "toolkit.sampling": "toolkit.data.sampling",
    "toolkit.schedules": "toolkit.training.schedules",
    "toolkit.shards": "toolkit.data.shards",
    "toolkit.tune": "toolkit.training.tune",
}


class Parts(Protocol):
    """What a checkpoint keeps of a recipe by itself: enough to embed."""

    @property
    def modality(self) -> str: ...
    @property
    def frontend(self) -> Part: ...
    @property
    def backbone(self) -> Part: ...
    @property
    def read(self) -> Part: ...


def describe(value: Any, name: str = "recipe") -> Any:
    """A recipe or a part as JSON values.

    Parts become {"call": "toolkit.module.Name", "args": {...}}; lambdas and recipe-local functions
    are refused.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: describe(getattr(value, one.name), one.name)
            for one in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): describe(one, f"{name}.{key}") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(one, name) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    func, keywords = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
    if isinstance(value, partial) and value.args:
        raise ValueError(
            f"{name}: {func.__qualname__} is given positional arguments; name them, so that they "
            "can be described"
        )
    module, qualname = getattr(func, "__module__", ""), getattr(func, "__qualname__", repr(func))
    if module.partition(".")[0] not in HOMES or "<" in qualname:
        raise ValueError(
            f"{name}: {module}.{qualname} cannot be stored in a checkpoint; only classes and "
            "functions of toolkit, modalities and eval can "
            "(no lambdas, nothing defined in the recipe file): move it there and name it"
        )
    return {
        "call": f"{module}.{qualname}",
        "args": {key: describe(one, f"{name}.{key}") for key, one in keywords.items()},
    }


def renamed(description: Any) -> Any:
    """A description with the module names of this version in place of those of version 0.1."""
    if isinstance(description, list):
        return [renamed(value) for value in description]
    if not isinstance(description, dict):
        return description
    values = {key: renamed(value) for key, value in description.items()}
    if isinstance(values.get("call"), str):
        module, dot, name = values["call"].rpartition(".")
        values["call"] = f"{RENAMED.get(module, module)}{dot}{name}"
    return values
