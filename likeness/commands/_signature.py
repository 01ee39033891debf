"""A command is a signature: its options are made from the public functions that it calls."""

from __future__ import annotations

import builtins
import inspect
import keyword
import os
import pkgutil
import re
import sys
import typing
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, is_dataclass
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Concatenate, Generic, Literal, TypeVar, overload

import click

from likeness.commands._outputs import FORCE, OUTPUTS, checked_outputs
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option, only_options
from likeness.eval.writing import check_written

if typing.TYPE_CHECKING:
    from click.shell_completion import CompletionItem

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
_EMPTY = inspect.Parameter.empty
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)  # of Args and Attributes
_SENTENCE = re.compile(r".+?[.?](?=\s+[A-Z`\"]|$)")
_AS_IN = re.compile(r"[Aa]s (?:in|for) `([\w.]+)`[.;]?")
_SIZE = re.compile(r"([1-9]\d{0,4})[xX]([1-9]\d{0,4})")
# What stands for a value in help, and what a path may be.
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH", tuple[str, Path]: "NAME PATH"}
_METAVARS |= {abc.Mapping: "ROLE=COLUMN", tuple: "HEIGHTxWIDTH"}
_PATHS = {"file": "file", "folder": "folder", "any": "file or folder"}
_WRONG_PATHS = (
    ("folder", "file", os.path.isdir),
    ("file", "folder", lambda path: os.path.exists(path) and not os.path.isdir(path)),
)


@dataclass(frozen=True)
class Source:
    """An option of a command, as a function declares it.

    Attributes:
        path: The parameter; of a field of settings, the parameter and the field.
        kind: What is typed, once or several times: bool, int, float, str, Path, a Literal, Mapping
            for ROLE=COLUMN, tuple for a height and a width, or tuple[str, Path] for NAME PATH.
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
        name = self.option.name or f"--{self.path[-1].replace('_', '-')}"
        return re.split("[/ ]", name)[0] if name.startswith("-") else name

    @property
    def variable(self) -> str:
        """The name of the value in Python, by which click hands it on."""
        variable = re.sub(r"\W+", "_", self.name.strip("-")).lower()
        return f"{variable}_" if keyword.iskeyword(variable) else variable

    @property
    def is_argument(self) -> bool:
        """Whether it is typed without a name."""
        return not self.name.startswith("-")

    @property
    def word(self) -> str | None:
        """What stands for its value in help."""
        if self.is_argument:
            return self.name + "..." * (self.is_many and " " not in self.name)
        choices = "|".join(map(str, self.choices))
        return self.option.metavar or choices or _METAVARS.get(self.kind)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words of which it takes one; none where it takes others."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def default_and_range(self, is_required: bool) -> str:
        """The default and the range, for help; a default that stands for nothing is not shown."""
        texts = ["(required)"] * is_required
        if self.default is not False and self.default not in (None, (), "", _EMPTY):
            values = self.default if isinstance(self.default, list | tuple) else [self.default]
            words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
            texts.append(f"(default: {('x' if self.kind is tuple else ', ').join(words)})")
        if self.option.least or self.option.most:
            texts.append(f"[{self.bounds}]")
        return "".join(f" {text}" for text in texts)

    @property
    def bounds(self) -> str:
        """The smallest and the largest number, in words; "" where all are taken."""
        both = (("at least", self.option.least), ("at most", self.option.most))
        return " and ".join(f"{word} {bound:,}" for word, bound in both if bound is not None)

    def parameter(self, is_required: bool) -> click.Parameter:
        """The option as click takes it. Its value is None where nothing was typed."""
        settings: dict[str, Any] = {"type": _Type(self), "default": None, "metavar": self.word}
        if self.is_argument:
            settings["metavar"] = self.word if is_required else f"[{self.word}]"
            settings |= {"nargs": -1 if self.is_many else 1, "required": False}
            return click.Argument([self.variable], **settings)
        if self.kind is bool:
            settings |= {"is_flag": True, "type": None}
        elif self.kind == tuple[str, Path]:
            settings |= {"nargs": 2, "type": (str, click.Path(readable=False, path_type=Path))}
        if self.option.envvar:
            settings |= {"envvar": self.option.envvar, "show_envvar": True}
        else:
            settings["multiple"] = self.kind is not bool  # twice is refused, not dropped
        settings["help"] = self.help + self.default_and_range(is_required)
        return click.Option([*(self.option.name or self.name).split(), self.variable], **settings)


class _Type(click.ParamType):  # type: ignore[type-arg]  # it takes some since click 8.5
    """What the function gets for the text of an option."""

    name = "text"

    def __init__(self, source: Source) -> None:
        self.source = source

    def convert(self, value: str, *_: object) -> Any:
        """Give the path, number, size, choice or names that a text is, or the text.

        Raises:
            LikenessError: It is empty, of another kind or out of its range, or it is a path that is
                not what it should be.
        """
        source, kind, option = self.source, self.source.kind, self.source.option
        if not value:
            raise LikenessError(f"{source.name} is empty: {source.help}")
        expected = ""
        if kind is Path:
            path, which = Path(value), "output file" if option.endings else option.path
            if which == "output file":
                check_written(path, option.endings)
            elif which in _PATHS and not os.path.exists(path):
                what = f"{_PATHS[which]} {str(path)!r}"
                raise LikenessError(f"{source.name}: {what} does not exist; correct it")
            for wrong, other, is_wrong in _WRONG_PATHS:
                if which.endswith(other) and is_wrong(path):
                    what = f"{other} {str(path)!r} is a {wrong}"
                    raise LikenessError(f"{source.name}: {what}; correct it")
            return path
        if kind in (int, float):
            with suppress(ValueError):
                number = kind(value)
                least, most = option.least, option.most
                if (least is None or number >= least) and (most is None or number <= most):
                    return number
            if not option.metavar:  # a rate, or a word
                expected = "a whole number" if kind is int else "a number"
                expected += f" of {source.bounds}" * bool(source.bounds)
        elif kind is tuple:
            if size := _SIZE.fullmatch(value):
                return int(size[1]), int(size[2])
            expected = "height x width, such as 112x96"
        elif choices := {str(choice): choice for choice in source.choices}:
            if value in choices:
                return choices[value]
            expected = f"one of {', '.join(choices)}"
        if expected:
            raise LikenessError(f"{source.name} {value!r}: give {expected}")
        if option.separator:
            return [part.strip() for part in value.split(option.separator) if part.strip()]
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices that begin so; of a path, the shell knows them."""
        from click.shell_completion import CompletionItem

        if self.source.kind is Path:
            return click.Path().shell_complete(ctx, param, incomplete)
        words = map(str, self.source.choices)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


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
        """What the function gets for what was typed for an option; None for nothing."""
        return self._typed[name] if name in self else None

    def __contains__(self, name: str) -> bool:
        """Whether an option was typed."""
        assert name in self._sources, f"{name} is no option of {self._function.__name__}"
        return name in self._typed

    def words(self) -> list[str]:
        """What was typed for the function, as the words of a command line."""
        typed = ((name, self[name]) for name in self._typed if name in self._sources)
        each = ((name, value if isinstance(value, tuple) else (value,)) for name, value in typed)
        return [word for name, values in each for value in values for word in (name, str(value))]

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
            text = option.help or _help(function, name)
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
    if tuple[str, Path] in by_origin.values():
        return tuple[str, Path], False
    for many in by_origin.keys() & {abc.Sequence, list}:
        if below := _narrowed(typing.get_args(by_origin[many])[0], option):
            return below[0], not option.separator
    if is_path and Literal not in by_origin:
        return (str if option.metavar and not option.path else Path), False
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


class Command(click.Command):
    """A command, whose options come from the public functions that it may call, and from its own.

    Attributes:
        run: The function that it is made of.
        functions: The public functions.
        sources: The options that are made from these, by their names.
        own: The further options, by the parameters of the command.
        every: All options, by their variables.
        needed: The names of those that have to be typed.
    """

    def __init__(
        self,
        run: Callable[..., None],
        functions: Sequence[Callable[..., Any]],
        sources: Mapping[str, Source],
        own: Mapping[str, Source],
        needed: Collection[str],
        *,
        resumes: bool,
        **details: Any,
    ) -> None:
        self.run, self.functions, self.needed = run, functions, needed
        self.sources, self.own = sources, own
        self.every = {each.variable: each for each in (*sources.values(), *own.values())}
        if not resumes and "force" not in own and OUTPUTS & self.every.keys():
            self.every["force"] = Source(("force",), bool, False, False, FORCE.help, FORCE)
        details["help"] = inspect.cleandoc(run.__doc__ or "")
        details["params"] = [each.parameter(each.name in needed) for each in self.every.values()]
        super().__init__(run.__name__.rstrip("_"), callback=self.start, **details)

    def start(self, **values: Any) -> None:
        """Run the command with what was typed.

        Args:
            values: What it is for each option, by the variables; None or () where nothing was.

        Raises:
            LikenessError: An option is missing, or was typed too often.
        """
        typed = dict[str, Any]()
        for key, source in self.every.items():
            several = values[key] if isinstance(values[key], tuple) else (values[key],)
            if several in ((), (None,)):
                if source.name in self.needed:
                    raise LikenessError(f"{source.name} is missing: {source.help}")
                continue
            if len(several) > 1 and not source.is_many:
                times = len(several)
                raise LikenessError(f"{source.name} was given {times} times; give it once")
            typed[key] = several if source.is_many else several[0]
            if source.kind is abc.Mapping:
                typed[key] = ",".join(several)
        names = {name: x.variable for name, x in self.sources.items() if x.variable in typed}
        of_functions = {name: typed[key] for name, key in names.items()}
        calls = (Call(function, of_functions) for function in self.functions)
        force = bool(typed.get("force")) if "force" in self.every else None
        if not {*OUTPUTS, "save_to"} & typed.keys():
            refuse_idle("without an output", {"--force": force})
        outputs = checked_outputs(typed, force) if OUTPUTS & typed.keys() else nullcontext()
        with only_options(source.name for source in self.every.values()), outputs:
            own = {name: typed.get(x.variable, x.default) for name, x in self.own.items()}
            self.run(*calls, **own)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what is typed without a name, then the options."""
        every = self.every.values()
        if rows := [(str(each.word), each.help) for each in every if each.is_argument]:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


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
    cls: type[Command] = Command,
    **details: Any,
) -> Any:
    """Make a command of a function, which gets a `Call` of each public function that it may call.

    Args:
        functions: The public functions.
        calls_all: Whether the command calls all of them, and not one of them.
        optional: Options that a function needs, and the command does not.
        without: Options that the command does not have.
        resumes: Whether the command goes on with what is there, and needs no --force.
        cls: The class of the command.
        details: What click gets besides, such as the epilog.
    """

    def decorate(run: Callable[..., None]) -> Command:
        own = {source.path[0]: source for source in sources_of(run)}
        sources = _joined(functions, [each.variable for each in own.values()])
        for name in without:
            del sources[name]
        required = [
            {each.name for each in sources_of(of) if each.default is _EMPTY} for of in functions
        ]
        join = set.union if calls_all else set.intersection
        needed = join(*required).difference(optional) if required else set()
        needed |= {each.name for each in own.values() if each.default is _EMPTY}
        assert sources.keys() >= {*optional}, optional
        return cls(run, functions, sources, own, needed, resumes=resumes, **details)

    return decorate


def _joined(functions: Sequence[Callable[..., Any]], own: Sequence[str]) -> dict[str, Source]:
    """The options of several functions. What two of them call alike has to be alike."""
    sources: dict[str, Source] = {}
    for function in functions:
        for source in sources_of(function):
            if source.variable in own:  # the command hands it on
                continue
            before = sources.setdefault(source.name, source)
            now = (source.kind, source.is_many, source.help)
            assert (before.kind, before.is_many, before.help) == now, (before, source)
    return sources
