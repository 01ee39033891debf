"""Parts, the classes and functions that a recipe is made of, as JSON values, and back.

A part of another package, or of a Python file of the user, is described with its package and
version. It is imported again only if the user names it (likeness/models/trust.py).
"""

import dataclasses
import importlib
import inspect
import json
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache, partial
from importlib.metadata import packages_distributions
from importlib.metadata import version as version_of_distribution
from typing import Any, Literal, cast

from likeness.eval.errors import LikenessError, first_line
from likeness.toolkit.models import user_files

# A class or function, usually in functools.partial.
Part = Callable[..., Any]
# The parts of Likeness need no version. Models name them without "likeness.".
HOMES = ("toolkit", "modalities", "eval")


def describe(value: Any, name: str = "recipe") -> Any:
    """Return a recipe or a part as JSON values.

    A part becomes {"call": "toolkit.module.Name", "args": {...}}. For a part of another package, or
    of a file in the recipe's folder, "package" and "version" say which.

    Args:
        value: A recipe, a part, or a value in one.
        name: What an error calls the value.

    Raises:
        LikenessError: The value contains a lambda, a function that is defined in another one, a
            part with positional arguments, or a part that a checkpoint could not be loaded with.

    Example:
        >>> from likeness.toolkit.data.pixels import PixelScale
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
    module = getattr(func, "__module__", None) or ""
    qualname = str(getattr(func, "__qualname__", None) or repr(func)[:80])
    call = f"{module.removeprefix('likeness.')}.{qualname}"
    package = module.partition(".")[0]
    is_ours = is_of_likeness(module) and "<" not in qualname and callable(func)
    reason = "" if is_ours else _reason(func, module, qualname, name)
    if isinstance(value, partial) and value.args:
        reason = "it is given positional arguments; name them"
    if reason:
        raise LikenessError(f"{name}: {call} cannot be stored in a checkpoint: {reason}")
    arguments = {key: describe(inner, f"{name}.{key}") for key, inner in keywords.items()}
    described = {"call": call, "args": arguments}
    if not is_ours:
        described |= {"package": package, "version": version_of(package)}
    return described


def describe_parts(frontend: Part, backbone: Part, read: Part) -> dict[str, Any]:
    """Return the descriptions of the parts from which a model can be built again."""
    parts = {"frontend": frontend, "backbone": backbone, "read": read}
    return {name: describe(part, name) for name, part in parts.items()}


def check_rates(frontend: Any, **parts: Part | None) -> None:
    """Refuse parts that state different sampling rates: read resamples to its own, and the others
    cannot see which it was.

    Args:
        frontend: The front-end, made.
        parts: What reads, or changes, what the front-end takes, by the names for an error.

    Raises:
        LikenessError: Two rates differ.
    """
    # MFCC holds the front-end that states it
    inside = (module.rate_hz for module in frontend.modules() if hasattr(module, "rate_hz"))
    rates: dict[str, Any] = {"frontend": next(inside, None)}
    for name, part in parts.items():
        stated = None if part is None else inspect.signature(part).parameters.get("rate_hz")
        rates[name] = None if stated is None else stated.default
    shown = [f"{name}.rate_hz={rate}" for name, rate in rates.items() if rate is not None]
    if len({*rates.values()} - {None}) > 1:
        raise LikenessError(f"sampling rates differ: {', '.join(shown)}; set them to one value")


def drop_revisions(description: Any) -> Any:
    """Leave out of a description from which commits of the hub its networks came.

    A commit is what parts of Likeness call `revision`. A network is told by its configuration,
    which is beside the commit: a run goes on, and a result stays what it is, after a later commit
    that changes neither.

    Example:
        >>> args = {"config": "{}", "revision": "0123"}
        >>> drop_revisions({"call": "toolkit.backbones.hub_networks.HubImage", "args": args})
        {'call': 'toolkit.backbones.hub_networks.HubImage', 'args': {'config': '{}'}}
    """
    if isinstance(description, list):
        return [drop_revisions(value) for value in description]
    if not isinstance(description, dict):
        return description
    values = {key: drop_revisions(value) for key, value in description.items()}
    is_ours = "call" in values and "package" not in values
    if is_ours and isinstance(values.get("args"), dict):
        values["args"].pop("revision", None)
    return values


def restore(
    description: Any,
    name: str,
    *,
    kind: Literal["module", "read"],
    trusted: Collection[str] = (),
) -> Part:
    """Return a part from its description: a network module, or a function that reads items.

    Descriptions come with checkpoints from anywhere. Only modules of toolkit and modalities, and of
    the packages that the user trusts, are imported. Of these only what they define themselves is
    used: networks, and readings.

    Args:
        description: {"call": "package.module.Name", "args": {...}}, and for a part of another
            package "package" and "version".
        name: What an error calls the part.
        kind: "module" for a class of nn.Module, or of another package for a function that is
            annotated to return one. "read" for a modality's function of that name, or for any
            function of another package whose first argument is called item.
        trusted: The packages of others that may be imported (`check_trusted`).

    Returns:
        The part. It opens no file of weights: those are in the checkpoint.

    Raises:
        LikenessError: The description is of another form or names anything else.
    """
    is_named = isinstance(description, dict) and isinstance(description.get("call"), str)
    if not is_named or not isinstance(description.get("args"), dict):
        raise LikenessError(
            f"{name}: a part is {{'call': ..., 'args': ...}}, not {json.dumps(description)[:80]}"
        )
    target = _target(description["call"], name, kind, trusted)

    def restored(value: Any, key: str) -> Any:
        if isinstance(value, dict) and "call" in value:
            return restore(value, key, kind="module", trusted=trusted)
        if isinstance(value, list):
            return tuple(restored(element, key) for element in value)
        return value

    arguments = {
        key: restored(value, f"{name}.{key}") for key, value in description["args"].items()
    }
    if files := sorted({"detector", "landmarks"} & arguments.keys()):
        raise LikenessError(
            f"{name}: it names {' and '.join(files)} files; give them by --detector or --ijb"
        )
    parameters = inspect.signature(target).parameters
    takes_any = any(value.kind is value.VAR_KEYWORD for value in parameters.values())
    if (unknown := set(arguments) - set(parameters)) and not takes_any:
        raise LikenessError(
            f"{name}: {target.__name__} does not accept {sorted(unknown)} in this version of "
            f"{description.get('package', 'Likeness')}"
        )
    return drop_weights(partial(target, **arguments))


def _target(
    call: str, name: str, kind: Literal["module", "read"], trusted: Collection[str]
) -> Callable[..., Any]:
    """Import the class or function that a description names; refuse anything else."""
    module_name, _, attribute = call.rpartition(".")
    package = module_name.partition(".")[0]
    shown, is_ours = repr(call[:80]), package in HOMES
    if not is_ours and package not in trusted:
        raise LikenessError(
            f"{name}: {shown} is neither of Likeness nor of a package that is trusted"
        )
    try:
        module = f"likeness.{module_name}" if is_ours else module_name
        target = vars(importlib.import_module(module))[attribute]
    except Exception as error:  # a package runs as it is imported, and may raise anything
        raise LikenessError(
            f"{name}: {shown} cannot be imported ({first_line(error)}); take the package's version"
        ) from None
    # A module also has the names of what it imports: os.system is no part because a module of ours
    # imports it, and trust in a package is no trust in what it imports.
    home = str(getattr(target, "__module__", ""))
    is_own = is_of_likeness(home) if is_ours else home.partition(".")[0] in trusted
    if kind == "module":
        fits = is_network(target) and (inspect.isclass(target) or not is_ours)
        needed = "network module and no function that is annotated to return one"
    else:
        fits = is_reading(target) and (attribute == "read" or not is_ours)
        needed = "function that reads an item"
    if not fits or not is_own:
        raise LikenessError(f"{name}: {shown} is no {needed} that {package} itself defines")
    return cast("Callable[..., Any]", target)


def drop_weights(part: Part) -> Part:
    """Return a part that opens no file of weights when it is called.

    Of ours, `weights` is the file that training started from, and "" opens none. A part of another
    package takes its own default, unless `weights` is a word that is no path.

    Example:
        >>> from likeness.toolkit.backbones.vit import ViT
        >>> drop_weights(partial(ViT, weights="dino.pth")).keywords
        {'weights': ''}
        >>> def make(width: int, weights: str = "") -> object:
        ...     return object()
        >>> make.__module__ = "petnets"
        >>> drop_weights(partial(make, width=3, weights="runs/net.pt")).keywords
        {'width': 3}
    """
    if not isinstance(part, partial) or not isinstance(part.keywords.get("weights"), str):
        return part
    if is_of_likeness(part.func.__module__):
        return partial(part, weights="")
    parameter = inspect.signature(part.func).parameters.get("weights")
    has_default = parameter is not None and parameter.default is not parameter.empty
    if not has_default or not any(mark in part.keywords["weights"] for mark in "./\\"):
        return part
    return partial(
        part.func, **{key: value for key, value in part.keywords.items() if key != "weights"}
    )


def is_of_likeness(module: str) -> bool:
    """Say whether a module is one of Likeness, whose parts a model may name.

    Example:
        >>> is_of_likeness("likeness.toolkit.losses.margin"), is_of_likeness("toolkit.mine")
        (True, False)
    """
    return module.startswith(tuple(f"likeness.{home}." for home in HOMES))


def version_of(package: str) -> str:
    """Return the version of a top-level module, which need not be imported.

    It is that of its distribution. Where no distribution has it, it is the first 12 digits of the
    SHA-256 of its file or files. "" stands for a module that does not exist.
    """
    names = [] if user_files.folder_of(package) else _distributions(tuple(sys.path)).get(package)
    return version_of_distribution(min(names)) if names else user_files.module_digest(package)[:12]


@lru_cache(maxsize=1)
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the names of the distributions that have a top-level module, by the module."""
    return packages_distributions()


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


def _reason(target: Any, module: str, qualname: str, name: str) -> str:
    """Return why a checkpoint cannot name this part, and what to do; "" where it can."""
    field = name.partition(".")[0]
    if (package := module.partition(".")[0]) in HOMES:
        return f"{package} is the name of a package of Likeness; rename yours"
    if not (inspect.isclass(target) or inspect.isroutine(target)):
        return (
            f"{type(target).__name__} is no number, text, list, class or function; give one of "
            "these"
        )
    if module == "__main__" or not hasattr(sys.modules.get(module), qualname):
        return (
            "it has no name that can be imported; define it with def or class at the top of a "
            f"file, and not as a lambda or inside a function or class; {user_files.RENAME}"
        )
    if field in ("frontend", "backbone") and not is_network(target):
        return (
            "parts of a network are classes of torch.nn.Module, or functions that are annotated to "
            "return one (def make(...) -> nn.Module); annotate it, or make it a class"
        )
    if field == "read" and not is_reading(target):
        return "a reading is a function whose first argument is called item: def read(item)"
    return ""


def parts_in(description: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of foreign parts in JSON values, at any depth.

    Example:
        >>> part = {"call": "nets.Net", "args": {}, "package": "nets", "version": "1.0"}
        >>> [found["call"] for found in parts_in({"backbone": part})]
        ['nets.Net']
    """
    for value in values_in(description):
        if isinstance(value, Mapping) and "call" in value and "package" in value:
            yield value


def values_in(description: Any) -> Iterator[Any]:
    """Yield JSON values and all that they hold, at any depth.

    Example:
        >>> sorted(value for value in values_in({"a": [1, {"b": 2}]}) if isinstance(value, int))
        [1, 2]
    """
    values = [description]
    while values:
        value = values.pop()
        yield value
        if isinstance(value, Mapping):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
