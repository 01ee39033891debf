"""Parts of other projects: which package a class or function is of, and in which version.

A checkpoint stores this beside the part's name. Loading the checkpoint imports the package only if
the user names it (likeness/models/trust.py).
"""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import packages_distributions, version
from types import MappingProxyType
from typing import Any

from eval.errors import LikenessError
from toolkit.models import user_files

FIELDS = {"call", "args", "package", "version"}  # the keys of a description of such a part
SUM_DIGITS = 12  # of the SHA-256 that is the version of files that no distribution has


def origin(
    target: Callable[..., Any], name: str, arguments: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Return the package and the version of a class or function that is not of Likeness.

    Args:
        target: The class or function.
        name: What an error calls it: the field of the recipe, and what is inside it after a dot.
        arguments: What is given to it.

    Returns:
        {"package": the module's first name, "version": ...}. The version is that of the
        distribution, or the first 12 digits of a SHA-256; see version_of.

    Raises:
        LikenessError: A checkpoint could not be loaded with it: it does not stand at the top of a
            module that can be imported, or it is of another kind than the field takes.

    Example:
        >>> from torch import nn
        >>> origin(nn.Linear, "backbone")["package"]
        'torch'
    """
    module, qualname = getattr(target, "__module__", None) or "", _qualname(target)
    package = module.partition(".")[0]
    if reason := _reason(target, module, qualname, name, arguments):
        raise LikenessError(
            f"{name}: {module}.{qualname} cannot be stored in a checkpoint: {reason}"
        )
    return {"package": package, "version": version_of(module)}


def version_of(module: str) -> str:
    """Return the version of a module, which need not be imported.

    Args:
        module: Its name, such as "package.module".

    Returns:
        The version of the package's distribution. Where no distribution has it: the first digits
        of the SHA-256 of the module's file, or of all .py files of the package that it is in. ""
        for a module that does not exist.

    Raises:
        LikenessError: The folder of the package holds too much to be read.
    """
    package = module.partition(".")[0]
    names = [] if user_files.is_beside(package) else sorted(_distributions().get(package, []))
    return version(names[0]) if names else user_files.summed(module)[:SUM_DIGITS]


def is_network(target: Any) -> bool:
    """Say whether this is a class of nn.Module, or a function that is annotated to return one.

    Example:
        >>> from torch import nn
        >>> def make(width: int = 8) -> nn.Module:
        ...     return nn.Linear(width, width)
        >>> is_network(nn.Linear), is_network(make), is_network(len)
        (True, True, False)
    """
    from torch import nn  # readings are described and restored without torch

    if inspect.isfunction(target):
        try:
            target = typing.get_type_hints(target).get("return")
        except Exception:  # an annotation is code of its author, and may raise anything
            return False
    return inspect.isclass(target) and issubclass(target, nn.Module)


def is_reading(target: Any) -> bool:
    """Say whether this is a function whose first argument is called `item`, as of all readings.

    Example:
        >>> is_reading(lambda item, rate_hz=16_000: None), is_reading(lambda path: None)
        (True, False)
    """
    return inspect.isfunction(target) and next(iter(inspect.signature(target).parameters), "") == (
        "item"
    )


def files_in(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a foreign part that name a file, at any depth.

    A text names a file if a file or folder of this name is here, or if it is an absolute path, a
    path that leads upwards or home, or an address.

    Example:
        >>> files_in({"name": "resnet", "log": "/var/log/x", "parts": ({"file": "../x"},)})
        ['log', 'parts']
    """
    return [name for name, value in arguments.items() if any(map(_is_file, _texts(value)))]


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, at any depth; parts have been looked through by themselves."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            values += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            values += value


def _is_file(text: str) -> bool:
    """Say whether a text names a file, as `files_in` says."""
    if "\0" in text or not text:
        return False
    words = text.replace("\\", "/").split("/")
    return (
        os.path.lexists(text)
        or os.path.isabs(text)
        or text.startswith(("~", "\\"))
        or "://" in text
        or (len(words) > 1 and ".." in words)
    )


def without_weights(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a foreign part without the path of a file of weights.

    The part then takes its own default for `weights`. A word that is no path stays.

    Example:
        >>> def make(width: int, weights: str = "") -> object:
        ...     return object()
        >>> without_weights(make, {"width": 3, "weights": "runs/net.pt"})
        {'width': 3}
    """
    parameter = inspect.signature(target).parameters.get("weights")
    opens = parameter is not None and parameter.default is not parameter.empty
    return {
        name: value
        for name, value in arguments.items()
        if not (opens and name == "weights" and _is_path(value))
    }


def _is_path(value: Any) -> bool:
    """Say whether a value may name a file."""
    return isinstance(value, str) and any(mark in value for mark in "./\\") and "\0" not in value


def parts_in(description: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of foreign parts in JSON values, at any depth.

    Example:
        >>> part = {"call": "nets.Net", "args": {}, "package": "nets", "version": "1.0"}
        >>> [found["call"] for found in parts_in({"backbone": part})]
        ['nets.Net']
    """
    values = [description]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            if "call" in value and "package" in value:
                yield value
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value


def _reason(
    target: Any, module: str, qualname: str, name: str, arguments: Mapping[str, Any]
) -> str:
    """Return why a checkpoint cannot name this part, and what to do; "" where it can."""
    field = name.partition(".")[0]
    if not (inspect.isclass(target) or inspect.isroutine(target)):
        return (
            f"{type(target).__name__} is no number, text, list, class or function; give one of "
            "these"
        )
    if "<" in qualname:
        return (
            "lambdas and what is defined inside a function have no name; define it with def or "
            "class at the top of a module"
        )
    if module == "__main__":
        return "the program that was started cannot be imported; move it to a file beside it"
    if module.partition(".")[0] in sys.stdlib_module_names:
        return (
            "it is of Python itself; parts are classes and functions of toolkit, modalities and "
            "eval, of an installed package, or of a file in the recipe's folder"
        )
    loaded = sys.modules.get(module)
    if loaded is None:
        return f"its file cannot be imported by its name; {user_files.RENAME}"
    if "." in qualname or not hasattr(loaded, qualname):
        return f"{module} has no {qualname} at its top; define it there"
    if field in ("frontend", "backbone") and not is_network(target):
        return (
            "parts of a network are classes of torch.nn.Module, or functions that are annotated to "
            "return one (def make(...) -> nn.Module); annotate it, or make it a class"
        )
    if field == "read" and not is_reading(target):
        return "a reading is a function whose first argument is called item: def read(item)"
    if field in ("frontend", "backbone", "read") and (
        files := files_in(without_weights(target, arguments))
    ):
        return (
            f"{' and '.join(files)} names a file, and no model chooses a file to be opened; give "
            "weights by init=, and name other files inside the function or class"
        )
    return ""


def _qualname(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or repr(target)[:80])


def _distributions() -> Mapping[str, list[str]]:
    """Return the names of the distributions that have a top-level module, by the module."""
    return _read_distributions(tuple(sys.path))


@lru_cache(maxsize=1)
def _read_distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return packages_distributions()
