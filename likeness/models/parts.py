"""Restore the parts of a checkpoint from the names that it stores.

This is the only place that imports what a file names. Parts of other packages are imported only if
the user trusts these packages (likeness/models/trust.py).
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Collection
from functools import partial
from typing import Any, Literal

from eval.errors import LikenessError
from eval.types import first_line
from likeness.models.trust import OURS
from toolkit.models import foreign
from toolkit.models.described import check_arguments
from toolkit.models.parts import HOMES, Part


def restore(
    description: Any,
    name: str,
    *,
    kind: Literal["module", "read"],
    untrusted: bool = False,
    trusted: Collection[str] = (),
) -> Part:
    """Return a part from its description: a network module, or a function that reads items.

    Descriptions come with checkpoints from anywhere. Only names inside toolkit and modalities, and
    inside the packages that the user trusts, are imported, and only these two kinds are returned.

    Args:
        description: {"call": "package.module.Name", "args": {...}}, and for a part of another
            package "package" and "version".
        name: What an error calls the part.
        kind: "module" for a class of nn.Module, or of another package for a function that is
            annotated to return one. "read" for a modality's function of that name, or for any
            function of another package.
        untrusted: Whether the description comes from a file. Such a description may not choose
            another file to be opened, and its arguments are checked (toolkit/models/described.py).
            The arguments of parts of other packages have any type, and these packages check them.
        trusted: The packages of others that may be imported (`check_trusted`).

    Raises:
        LikenessError: The description is of another form or names anything else.
    """
    if (
        not isinstance(description, dict)
        or set(description) not in ({"call", "args"}, foreign.FIELDS)
        or not isinstance(description["args"], dict)
    ):
        raise LikenessError(
            f"{name}: a part must be described as {{'call': ..., 'args': ...}}, but is "
            f"{json.dumps(description)[:80]}"
        )
    is_foreign = "package" in description
    target = (
        _foreign_target(description, name, kind, trusted)
        if is_foreign
        else _target(description["call"], name, kind)
    )

    def restored(value: Any, key: str) -> Any:
        if isinstance(value, dict) and "call" in value:
            return restore(value, key, kind="module", untrusted=untrusted, trusted=trusted)
        if isinstance(value, list):
            return tuple(restored(element, key) for element in value)
        return value

    arguments: dict[str, Any] = {
        key: restored(value, f"{name}.{key}") for key, value in description["args"].items()
    }
    files = sorted({"detector", "landmarks"} & arguments.keys())
    if untrusted and files:
        raise LikenessError(
            f"{name}: it names {' and '.join(files)} files, and no model chooses a file to be "
            "opened; give them by --detector or --ijb instead"
        )
    if untrusted and is_foreign:
        arguments = foreign.without_weights(target, arguments)
        if files := foreign.files_in(arguments):
            raise LikenessError(
                f"{name}: {' and '.join(files)} names a file, and no model chooses a file to be "
                "opened"
            )
    elif untrusted and isinstance(arguments.get("weights"), str):
        arguments["weights"] = ""  # the file that training started from
    part = partial(target, **arguments)
    parameters = inspect.signature(target).parameters
    takes_any = any(value.kind is value.VAR_KEYWORD for value in parameters.values())
    unknown = set(arguments) - set(parameters)
    if unknown and not takes_any:
        attribute = str(description["call"]).rpartition(".")[2]
        version = f"{description['package']}" if is_foreign else "Likeness"
        raise LikenessError(
            f"{name}: {attribute} does not accept {sorted(unknown)} in this version of {version}"
        )
    if untrusted and not is_foreign:
        check_arguments(target, arguments, name)
    return part


def _target(call: Any, name: str, kind: Literal["module", "read"]) -> Any:
    """Import the class or function that a description names; refuse any of another kind."""
    module_name, _, attribute = str(call).rpartition(".")
    if module_name.partition(".")[0] not in HOMES[:2] or not all(
        word.isidentifier() and not word.startswith("_") for word in module_name.split(".")
    ):
        raise LikenessError(f"{name}: {call!r} is not in toolkit or modalities")
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError):
        raise LikenessError(
            f"{name}: {call!r} does not exist in this version of Likeness"
        ) from None
    if kind == "module" and not (inspect.isclass(target) and foreign.is_network(target)):
        raise LikenessError(f"{name}: {call!r} is no network module")
    if kind == "read" and not (
        inspect.isfunction(target) and attribute == "read" and module_name.startswith("modalities.")
    ):
        raise LikenessError(f"{name}: {call!r} is no modality's read function")
    return target


def _foreign_target(
    description: dict[str, Any],
    name: str,
    kind: Literal["module", "read"],
    trusted: Collection[str],
) -> Any:
    """Import the class or function of a trusted package; refuse any of another package or kind."""
    call, package, version = (str(description[key]) for key in ("call", "package", "version"))
    module_name, _, attribute = call.rpartition(".")
    if package not in trusted or package in OURS or module_name.partition(".")[0] != package:
        raise LikenessError(
            f"{name}: {call[:80]!r} is of a package that is not trusted; add --trust {package[:80]}"
        )
    words = call.split(".")
    if not all(word.isidentifier() and not word.startswith("__") for word in words):
        raise LikenessError(f"{name}: {call[:80]!r} is no name of a class or function")
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the package runs as it is imported, and may raise anything
        raise LikenessError(
            f"{name}: {call[:80]!r} cannot be imported ({first_line(error)}); the model was "
            f"made with {package} {version}, and "
            f"{foreign.version_of(module_name) or 'no such module'} is "
            "here"
        ) from None
    # A module also has the names of what it imports, and trust in it is no trust in these.
    home = str(getattr(target, "__module__", "")).partition(".")[0]
    if home not in trusted:
        raise LikenessError(
            f"{name}: {call!r} was not defined in the package {package}, but in {home or 'none'}; "
            "only what a trusted package defines itself is used"
        )
    if kind == "module" and not foreign.is_network(target):
        raise LikenessError(
            f"{name}: {call!r} is neither a network module nor a function that is annotated to "
            "return one"
        )
    if kind == "read" and not foreign.is_reading(target):
        raise LikenessError(f"{name}: {call!r} is no function whose first argument is called item")
    return target
