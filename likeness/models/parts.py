"""Parts of a checkpoint by the names it stores: the only place that imports what a file names."""

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
    """A part from its description: a class of nn.Module ("module") or a modality's function `read`
    ("read"), nothing else.

    Descriptions come with checkpoints from anywhere: only names inside toolkit and modalities are
    imported, and only these two kinds are returned.
    untrusted: the description is a file's, which may not choose another file to be opened, and
    whose arguments are checked (toolkit/models/described.py).
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
    module_name, _, attribute = str(description["call"]).rpartition(".")
    if module_name.partition(".")[0] not in HOMES[:2] or not all(
        one.isidentifier() and not one.startswith("_") for one in module_name.split(".")
    ):
        raise ValueError(f"{name}: {description['call']!r} is not in toolkit or modalities")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError):
        raise ValueError(
            f"{name}: {description['call']!r} does not exist in this version of Likeness"
        ) from None
    if kind == "module" and not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ValueError(f"{name}: {description['call']!r} is no network module")
    if kind == "read" and not (
        inspect.isfunction(found) and attribute == "read" and module_name.startswith("modalities.")
    ):
        raise ValueError(f"{name}: {description['call']!r} is no modality's read function")
    arguments: dict[str, Any] = {
        key: restore(one, f"{name}.{key}", kind="module", untrusted=untrusted)
        if isinstance(one, dict) and "call" in one
        else _tuples(one)
        for key, one in description["args"].items()
    }
    files = sorted({"detector", "landmarks"} & arguments.keys())
    if untrusted and files:
        raise ValueError(
            f"{name}: it names {' and '.join(files)} files, and no model chooses a file to be "
            "opened; give them by --detector or --ijb instead"
        )
    part = partial(found, **arguments)
    unknown = set(arguments) - set(inspect.signature(found).parameters)
    if unknown:
        raise ValueError(
            f"{name}: {attribute} does not accept {sorted(unknown)} in this version of Likeness"
        )
    if untrusted:
        check_arguments(found, arguments, name)
    return part


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
