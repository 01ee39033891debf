"""A command is a signature: its options are made from the public functions that it calls."""

from __future__ import annotations

import builtins
import inspect
import keyword
import pkgutil
import re
import sys
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, is_dataclass
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Concatenate, Generic, Literal, TypeVar, overload

import typer

from likeness.commands._outputs import OUTPUTS, Force, checked_outputs, writes
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option, only_options

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
_FORCE = inspect.Parameter("force", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Force)
_EMPTY = inspect.Parameter.empty
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)  # of Args and Attributes
_SENTENCE = re.compile(r".+?[.?](?=\s+[A-Z`\"]|$)")
_AS_IN = re.compile(r"[Aa]s (?:in|for) `([\w.]+)`[.;]?")
_SIZE = re.compile(r"([1-9]\d{0,4})[xX]([1-9]\d{0,4})")
_METAVARS = {abc.Mapping: "ROLE=COLUMN", tuple: "HEIGHTxWIDTH"}


@dataclass(frozen=True)
class Source:
    """An option of a command, as a public function declares it.

    Attributes:
        path: The parameter; of a field of settings, the parameter and the field.
        kind: What is typed, once or several times: bool, int, float, str, Path, a Literal, Mapping
            for ROLE=COLUMN, or tuple for a height and a width.
        is_many: Whether it may be typed several times.
        default: What the function takes without it; empty if it needs one.
        help: A sentence.
        option: What else its annotation says.
    """

    path: tuple[str, ...]
    kind: Any
    is_many: bool
    default: Any
    help: str
    option: Option

    @property
    def name(self) -> str:
        """As it is known to users, such as "--far" or "SCORES"."""
        return re.split("[/ ]", self.option.name)[0] or f"--{self.path[-1].replace('_', '-')}"

    def _shown(self) -> str:
        """The default, for help; one that stands for nothing is not shown."""
        if self.default is False or self.default in (None, (), "", _EMPTY):
            return ""
        values = self.default if isinstance(self.default, list | tuple) else [self.default]
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        text = ("x" if self.kind is tuple else ", ").join(texts)
        return f" (default: {text})"

    def parameter(self, is_required: bool) -> inspect.Parameter:
        """The option as typer takes it."""
        option, is_argument = self.option, not self.name.startswith("-")
        metavar = option.metavar or _METAVARS.get(self.kind)
        kind: Any = str if metavar and self.kind is not int else self.kind
        details: dict[str, Any] = {"help": self.help + self._shown(), "metavar": metavar}
        if kind is Path and option.path == "output":
            details["callback"] = writes(*option.endings) if option.endings else None
        elif kind is Path and option.path:
            details |= {"exists": True, "dir_okay": option.path != "file"}
            details["file_okay"] = option.path != "folder"
        elif kind in (int, float):
            details |= {"min": option.least, "max": option.most}
        if is_argument:
            details["metavar"] = self.name + "..." * (self.is_many and " " not in self.name)
        names = [] if is_argument else (option.name or self.name).split()
        many: Any = list
        annotation = many[kind] if self.is_many else kind
        return inspect.Parameter(
            variable_of(self.name),
            inspect.Parameter.KEYWORD_ONLY,
            default=_EMPTY if is_required else None,
            annotation=Annotated[
                annotation if is_required else annotation | None,
                (typer.Argument if is_argument else typer.Option)(*names, **details),
            ],
        )


def variable_of(name: str) -> str:
    """The variable for an option."""
    variable = re.sub(r"\W+", "_", name.strip("-")).lower()
    return f"{variable}_" if keyword.iskeyword(variable) else variable


def refuse_idle(where: str, options: Mapping[str, object]) -> None:
    """Refuse options that change nothing.

    Args:
        where: Such as "without --cohort" or "beside --ijb".
        options: The options with what was typed for them, None or False for nothing.
    """
    if idle := [
        name for name, value in options.items() if value is not None and value is not False
    ]:
        remedy = "give that too, or leave it" if "without" in where else "leave one of them"
        raise LikenessError(f"{' and '.join(idle)} {where} would change nothing; {remedy} out")


class Call(Generic[A]):
    """A public function, and what was typed for it."""

    def __init__(self, function: Callable[..., A], typed: Mapping[str, Any]) -> None:
        self._function, self._typed = function, typed
        self._sources = {source.name: source for source in sources_of(function)}

    def __getitem__(self, name: str) -> Any:
        """What the function gets for what was typed for an option; None for nothing.

        Raises:
            LikenessError: A size is none.
        """
        if name not in self:
            return None
        source, typed = self._sources[name], self._typed[name]
        if source.option.separator:
            return [part.strip() for part in typed.split(source.option.separator) if part.strip()]
        if source.kind is abc.Mapping:
            return ",".join(typed)
        if source.kind is float and isinstance(typed, str):  # a rate or a word
            with suppress(ValueError):
                return float(typed)
        if source.kind is tuple:
            if not (size := _SIZE.fullmatch(typed)):
                raise LikenessError(f"{name[2:]} {typed!r}: give height x width, such as 112x96")
            return int(size[1]), int(size[2])
        return tuple(typed) if source.is_many else typed

    def __contains__(self, name: str) -> bool:
        """Whether an option was typed."""
        assert name in self._sources, f"{name} is no option of {self._function.__name__}"
        return name in self._typed

    def refuse_idle(self, where: str, *names: str) -> None:
        """Refuse options of the function that change nothing, as the function of the same name."""
        refuse_idle(where, {name: self[name] for name in names})

    def refuse_all(self, where: str) -> None:
        """Refuse all that was typed."""
        refuse_idle(where, self._typed)

    def refuse_others(self, *beside: Call[Any], idle: Sequence[str] = ()) -> None:
        """Refuse what was typed for functions that are not called.

        Args:
            beside: What is called as well.
            idle: Options of these functions that they do not obey here.
        """
        obeyed = {name for call in (self, *beside) for name in call._sources}.difference(idle)
        if idle := [name for name in self._typed if name not in obeyed]:
            raise LikenessError(f"{' and '.join(idle)} would change nothing here; leave it out")

    def refuse_missing(self, *supplied: str) -> None:
        """Refuse that an option is missing.

        Args:
            supplied: Parameters that the command supplies.
        """
        for name, source in self._sources.items():
            if source.default is _EMPTY and name not in self and source.path[-1] not in supplied:
                raise LikenessError(f"{name} is missing: {source.help}")

    def __call__(self, *first: Any, **more: Any) -> A:
        """Call the function, which keeps its own defaults for what was not typed.

        Args:
            first: Its first arguments.
            more: Arguments that the command knows, in place of what was typed.

        Raises:
            LikenessError: An option is missing.
        """
        self.refuse_missing(*more)
        values: dict[str, Any] = {}
        settings: dict[str, dict[str, Any]] = {}
        for name, source in self._sources.items():
            parameter, *field = source.path
            if name in self:
                into = settings.setdefault(parameter, {}) if field else values
                into[source.path[-1]] = self[name]
        hints = _hints(self._function)
        for parameter, fields in settings.items():
            values[parameter] = _settings(hints[parameter])(**fields)
        return self._function(*first, **values | more)


def sources_of(function: Callable[..., Any], *above: str) -> Iterator[Source]:
    """The options of a function or a settings dataclass: its parameters or fields that can be
    typed.
    """
    hints = _hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        metadata = getattr(hint, "__metadata__", ())
        option = next((each for each in metadata if isinstance(each, Option)), Option())
        if not option.is_typed or parameter.kind is parameter.VAR_KEYWORD:
            continue
        settings = None if option.path or parameter.default is _EMPTY else _settings(hint)
        if settings:
            yield from sources_of(settings, *above, name)
        elif kind := _narrowed(hint, option):
            text = _help(function, name)
            yield Source((*above, name), *kind, parameter.default, text, option)
        else:
            assert option == Option(), f"{name} of {function.__name__} cannot be typed: {hint}"


class _Names(dict[str, Any]):
    """The names of a module; what it imports for type checkers alone is any object."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, object)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    names = _Names(vars(sys.modules[function.__module__]))
    return typing.get_type_hints(function, None, names, include_extras=True)


def _members(hint: Any) -> list[Any]:
    """The types of a union; of any other type itself."""
    if typing.get_origin(hint) is Annotated:
        return _members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return [each for part in typing.get_args(hint) for each in _members(part)]
    is_nothing = hint is NoneType or hint == Literal[False]
    return [] if is_nothing else [hint]


def _settings(hint: Any) -> Any:
    """The dataclass of a parameter that takes one and nothing else."""
    members = _members(hint)
    return members[0] if len(members) == 1 and is_dataclass(members[0]) else None


def _narrowed(hint: Any, option: Option) -> tuple[Any, bool] | None:
    """What of a type can be typed, and whether it may be typed several times."""
    by_origin = {typing.get_origin(each) or each: each for each in _members(hint)}
    is_path = bool(option.path or by_origin.keys() & {Path, PathLike})
    for many in by_origin.keys() & {abc.Sequence, list}:
        if below := _narrowed(typing.get_args(by_origin[many])[0], option):
            return below[0], not option.separator
    if is_path and Literal not in by_origin:
        return (str if option.metavar else Path), False
    if Literal in by_origin and len(by_origin) > 1:
        return (float if float in by_origin else str), False
    if str in by_origin and abc.Mapping in by_origin:
        return abc.Mapping, True
    for origin in (Literal, tuple, bool, int, float, str):
        if origin in by_origin:
            return (by_origin[origin] if origin is Literal else origin), False
    return None


def _help(function: Callable[..., Any], name: str) -> str:
    """The first sentence that a docstring says of a parameter or a field."""
    text = dict(_ENTRY.findall(inspect.cleandoc(function.__doc__ or ""))).get(name, "")
    text = " ".join(text.split())
    if other := _AS_IN.match(text):
        dotted = other[1] if "likeness." in other[1] else f"{function.__module__}:{other[1]}"
        return _help(pkgutil.resolve_name(dotted), name)
    first = _SENTENCE.match(text)
    return text[:1].upper() + (first[0] if first else text)[1:]


@dataclass(frozen=True)
class Command:
    """A command, as typer takes it.

    Attributes:
        run: What typer calls.
        functions: The public functions that it may call.
        sources: The options that are made from these, by their names.
        own: The further parameters of the command, by their names.
        details: What typer gets besides, such as the epilog.
    """

    run: Callable[..., None]
    functions: Sequence[Callable[..., Any]]
    sources: Mapping[str, Source]
    own: Mapping[str, inspect.Parameter]
    details: Mapping[str, Any]


@overload
def command(**details: Any) -> Callable[[Callable[..., None]], Command]: ...
@overload
def command(
    first: Callable[..., A], /, **details: Any
) -> Callable[[Callable[Concatenate[Call[A], ...], None]], Command]: ...
@overload
def command(
    first: Callable[..., A], second: Callable[..., B], /, **details: Any
) -> Callable[[Callable[Concatenate[Call[A], Call[B], ...], None]], Command]: ...
@overload
def command(
    first: Callable[..., A], second: Callable[..., B], third: Callable[..., C], /, **details: Any
) -> Callable[[Callable[Concatenate[Call[A], Call[B], Call[C], ...], None]], Command]: ...
def command(
    *functions: Callable[..., Any],
    calls_all: bool = False,
    optional: Sequence[str] = (),
    without: Sequence[str] = (),
    resumes: bool = False,
    **details: Any,
) -> Any:
    """Make a command of a function, which gets a `Call` of each public function that it may call.

    Args:
        functions: The public functions.
        calls_all: Whether the command calls all of them, and not one of them.
        optional: Options that a function needs, and the command does not.
        without: Options that the command does not have.
        resumes: Whether the command goes on with what is there, and needs no --force.
        details: What typer gets besides, such as the epilog.
    """

    def decorate(run: Callable[..., None]) -> Command:
        hints = _hints(run)
        own = {
            name: each.replace(annotation=hints[name])
            for name, each in inspect.signature(run).parameters.items()
            if each.kind is each.KEYWORD_ONLY
        }
        sources = _joined(functions, own)
        for name in without:
            del sources[name]
        required = [
            {each.name for each in sources_of(of) if each.default is _EMPTY} for of in functions
        ]
        join = set.union if calls_all else set.intersection
        needed = join(*required).difference(optional) if required else set()
        assert sources.keys() >= {*optional}, optional
        options = {name: source.parameter(name in needed) for name, source in sources.items()}
        parameters = [*options.values(), *own.values()]
        if not resumes and "force" not in own and OUTPUTS & {each.name for each in parameters}:
            parameters.append(_FORCE)

        names = {*options, *(name for each in own.values() for name in _names_of(each)), "--force"}

        def parsed(**values: Any) -> None:
            force = values.get("force")
            present = {name: value for name, value in values.items() if value not in (None, [])}
            typed = {name: present[x.name] for name, x in options.items() if x.name in present}
            calls = (Call(function, typed) for function in functions)
            writes_any = OUTPUTS & present.keys()
            outputs = checked_outputs(present, force) if writes_any else nullcontext()
            with only_options(names), outputs:
                run(*calls, **{name: values[name] for name in own})

        setattr(parsed, "__signature__", inspect.Signature(parameters))  # noqa: B010
        parsed.__doc__ = run.__doc__
        return Command(parsed, functions, sources, own, details)

    return decorate


def _names_of(parameter: inspect.Parameter) -> Iterator[str]:
    """How a parameter that only the command has may be typed."""
    yield f"--{parameter.name.rstrip('_').replace('_', '-')}"
    for details in getattr(parameter.annotation, "__metadata__", ()):
        for words in (details.default, *(details.param_decls or ())):
            yield from re.findall(r"--[a-z-]+", str(words))


def _joined(functions: Sequence[Callable[..., Any]], own: Mapping[str, Any]) -> dict[str, Source]:
    """The options of several functions. What two of them call alike has to be alike."""
    sources: dict[str, Source] = {}
    for function in functions:
        for source in sources_of(function):
            if variable_of(source.name) in own:  # the command hands it on
                continue
            before = sources.setdefault(source.name, source)
            now = (source.kind, source.is_many, source.help)
            assert (before.kind, before.is_many, before.help) == now, (before, source)
    return sources
