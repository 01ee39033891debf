"""Restore the parts of a checkpoint from the names that it stores.

This is the only place that imports what a file names.
"""

from __future__ import annotations

import importlib
import inspect
import json
from functools import partial
from typing import Any, Literal

from torch import nn

from toolkit.models.described import check_arguments
from toolkit.models.parts import HOMES, Part, renamed


def restore(
    description: Any, name: str, *, kind: Literal["module", "read"], untrusted: bool = False
) -> Part:
    """Return a part from its description: a network module, or a modality's function `read`.

    Descriptions come with checkpoints from anywhere. Only names inside toolkit and modalities are
    imported, and only these two kinds are returned.

    Args:
        description: {"call": "package.module.Name", "args": {...}}.
        name: What an error calls the part.
        kind: "module" for a class of nn.Module, "read" for a modality's function of that name.
        untrusted: Whether the description comes from a file. Such a description may not choose
            another file to be opened, and its arguments are checked (toolkit/models/described.py).

    Raises:
        ValueError: The description is of another form or names anything else.
    """
    description = renamed(description)
    if (
        not isinstance(description, dict)
        or set(description) != {"call", "args"}
        or not isinstance(description["args"], dict)
    ):
        raise ValueError(
            f"{name}: a part must be described as {{'call': ..., 'args': ...}}, but is "
            f"{json.dumps(description)[:80]}"
        )
    target = _target(description["call"], name, kind)
    arguments: dict[str, Any] = {
        key: restore(value, f"{name}.{key}", kind="module", untrusted=untrusted)
        if isinstance(value, dict) and "call" in value
        else _tuples(value)
        for key, value in description["args"].items()
    }
    files = sorted({"detector", "landmarks"} & arguments.keys())
    if untrusted and files:
        raise ValueError(
            f"{name}: it names {' and '.join(files)} files, and no model chooses a file to be "
            "opened; give them by --detector or --ijb instead"
        )
    part = partial(target, **arguments)
    unknown = set(arguments) - set(inspect.signature(target).parameters)
    if unknown:
        attribute = str(description["call"]).rpartition(".")[2]
        raise ValueError(
            f"{name}: {attribute} does not accept {sorted(unknown)} in this version of Likeness"
        )
    if untrusted:
        check_arguments(target, arguments, name)
    return part


def _target(call: Any, name: str, kind: Literal["module", "read"]) -> Any:
    """Import the class or function that a description names; refuse any of another kind."""
    module_name, _, attribute = str(call).rpartition(".")
    if module_name.partition(".")[0] not in HOMES[:2] or not all(
        word.isidentifier() and not word.startswith("_") for word in module_name.split(".")
    ):
        raise ValueError(f"{name}: {call!r} is not in toolkit or modalities")
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError):
        raise ValueError(f"{name}: {call!r} does not exist in this version of Likeness") from None
    if kind == "module" and not (inspect.isclass(target) and issubclass(target, nn.Module)):
        raise ValueError(f"{name}: {call!r} is no network module")
    if kind == "read" and not (
        inspect.isfunction(target) and attribute == "read" and module_name.startswith("modalities.")
    ):
        raise ValueError(f"{name}: {call!r} is no modality's read function")
    return target


def _tuples(value: Any) -> Any:
    """Return lists of JSON as the tuples that they were, at any depth."""
    return tuple(_tuples(element) for element in value) if isinstance(value, list) else value
