"""Every option of every command reaches the function that it is made from, with the value that was
typed, or is refused. What only the command knows changes what it writes or says. Messages name only
options that the command has.

Commands, functions and options are those that likeness.commands._signature found, so that a new one
is covered without a change here.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import io
import re
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import MagicMock

import pytest

from likeness import cli
from likeness.commands import _signature
from likeness.commands._signature import Call, Command, Source, sources_of
from likeness.eval import option as option_texts
from tests.scripts import ROOT, refused, run_command


def commands() -> Iterator[tuple[str, Command]]:
    """What is typed for each command, and the command."""
    for name in cli.COMMANDS:
        for key, each in vars(importlib.import_module(f"likeness.commands.{name}")).items():
            if isinstance(each, Command):
                yield name if key == name else f"{name} {key.removesuffix('_')}", each


COMMANDS = dict(commands())
FUNCTIONS = [(name, of) for name, command in COMMANDS.items() for of in command.functions]


class Sample(NamedTuple):
    """What is typed for an option, and what the function gets for it."""

    words: tuple[str, ...]
    value: Any


class Result(MagicMock):
    """Stands for what a public function gives."""

    def __format__(self, how: str) -> str:
        return "result"


class Arrived(Exception):
    """The function was called that a test waits for."""


def sample_of(source: Source, folder: Path) -> Sample:
    """Another value than the default, of the kind of the option."""
    option, kind, default = source.option, source.kind, source.default
    value: Any = "text"
    if typing.get_origin(kind) is Literal:
        value = next(word for word in typing.get_args(kind) if word != default)
    elif kind is bool:
        return Sample((source.name,), True)
    elif kind is int:
        number = default if isinstance(default, int) else 0
        value = max(number, int(option.least or 1)) + 1
    elif kind is float:
        value = 0.03125
    elif kind is abc.Mapping:
        value = "label=spk"
    elif kind is tuple:
        return Sample((source.name, "96x64"), (96, 64))
    elif kind is Path:
        name = f"new{(*option.endings, '')[0]}" if option.path.startswith("output") else "file"
        value = folder / ("folder" if option.path == "folder" else name)
    elif option.separator:
        return Sample((source.name, f"a{option.separator}b"), ["a", "b"])
    words = (str(value),) if source.name[0] != "-" else (source.name, str(value))
    return Sample(words, (value,) if source.is_many and kind is not abc.Mapping else value)


def own_words(name: str, source: Source, folder: Path) -> list[str]:
    """What may be typed for an option that only the command has."""
    if name == "copy":
        return ["--copy", "speaker/an4", str(folder / "copy.py")]
    if name == "plan":
        return ["--plan", "far=0.01,width=0.5"]
    words = list(sample_of(source, folder).words)
    return words * 2 if name == "files" else words


class Run(NamedTuple):
    """What a command did: whether it reached a function, what each got, and what was said."""

    arrived: bool
    calls: Mapping[Callable[..., Any], Mapping[str, Any]]
    said: str
    results: Sequence[MagicMock]


def run(name: str, words: Sequence[str], until: object = None) -> Run:
    """Run a command with spies in place of its public functions.

    Args:
        name: The command.
        words: What is typed for it.
        until: The function at which it is stopped.
    """
    calls: dict[Callable[..., Any], Mapping[str, Any]] = {}
    results: list[MagicMock] = []

    def note(function: Callable[..., Any], *first: Any, **values: Any) -> Any:
        calls[function] = inspect.signature(function).bind(*first, **values).arguments
        if function is until:
            raise Arrived
        result = Result()
        results.append(result)
        returned = str(inspect.signature(function).return_annotation)
        parts = 3 if returned.startswith("tuple") and "Bad" in returned else 2
        return (result,) * parts if returned.startswith("tuple") else result

    def spied(function: Callable[..., Any], typed: Mapping[str, Any]) -> Call[Any]:
        return Call(functools.wraps(function)(functools.partial(note, function)), typed)

    def unchecked(hint: Any, settings_of: Callable[[Any], Any] = _signature._settings) -> Any:
        settings = settings_of(hint)
        return settings and functools.wraps(settings, updated=())(lambda **fields: fields)

    output = io.StringIO()
    out, err = contextlib.redirect_stdout(output), contextlib.redirect_stderr(output)
    with pytest.MonkeyPatch.context() as patch, out, err:
        patch.setattr(_signature, "Call", spied)
        patch.setattr(_signature, "_settings", unchecked)
        arrived = False
        try:
            run_command(*name.split(), *words)
        except Arrived:
            arrived = True
    return Run(arrived, calls, output.getvalue(), results)


def value_at(call: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What a function got for an option."""
    value: Any = call
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what options name: a file, which is also a list of pairs, and a folder."""
    places = [tmp_path / name for name in ("file", "folder")]
    places[1].mkdir()
    places[0].write_text("enrol,probe,spk\n{0},{0},1\n{0},{1},0\n".format(*places))
    return tmp_path


def required(command: Command, functions: Sequence[Callable[..., Any]]) -> list[Source]:
    """The options that functions need."""
    sources = [source for function in functions for source in sources_of(function)]
    needed = {source.name for source in sources if source.default is inspect.Parameter.empty}
    return [source for name, source in command.sources.items() if name in needed]


def base_lines(name: str, function: Callable[..., Any], folder: Path) -> Iterator[list[str]]:
    """Lines that may lead a command to a function, the shortest first."""
    command = COMMANDS[name]
    always, optional = list[str](), list[list[str]]()
    for key, each in command.own.items():
        words = own_words(key, each, folder)
        if each.default is inspect.Parameter.empty:
            always += words
        else:
            optional.append(words)
    pairs = ([function, each] for each in command.functions)
    for functions in ([function], *pairs, command.functions):
        needed = required(command, functions)
        words = [word for source in needed for word in sample_of(source, folder).words]
        yield [*words, *always]
        for more in optional:
            yield [*words, *always, *more]
        for source in command.sources.values():
            if source not in needed:
                yield [*words, *always, *sample_of(source, folder).words]


def started(name: str, function: Callable[..., Any], folder: Path) -> tuple[list[str], Run]:
    """The shortest line that leads a command to a function, and what it did."""
    said = ""
    for words in base_lines(name, function, folder):
        done = run(name, words, function)
        if done.arrived:
            return words, done
        said = said or done.said
    raise AssertionError(f"no line of {name} leads to {function.__name__}: {said}")


def lines_with(name: str, function: Any, source: Source, folder: Path) -> Iterator[list[str]]:
    """Lines that may lead to a function and have an option, with what it says that it needs."""
    typed = list(sample_of(source, folder).words)
    sources = COMMANDS[name].sources
    for words in base_lines(name, function, folder):
        line = words if source.name in words or typed[0] in words else [*words, *typed]
        yield line
        done = run(name, line, function)
        for other in re.findall(r"--[a-z-]+", done.said):
            if other in sources and other not in line:
                yield [*line, *sample_of(sources[other], folder).words]


@pytest.mark.parametrize(
    ("name", "function"), FUNCTIONS, ids=[f"{name}-{of.__qualname__}" for name, of in FUNCTIONS]
)
def test_every_option_arrives(name, function, folder):
    sources = COMMANDS[name].sources
    base_words, base = started(name, function, folder)
    for source in sources_of(function):
        if source.name not in sources:  # the command itself hands it on
            continue
        assert source.help, f"{source.name} of {function.__qualname__} has no help"
        sample = sample_of(source, folder)
        before = value_at(base.calls[function], source.path)
        for words in lines_with(name, function, source, folder):
            done = run(name, words, function)
            if done.arrived and value_at(done.calls[function], source.path) == sample.value:
                break
        else:
            refusal = run(name, [*base_words, *sample.words], function).said
            assert "would change nothing" in refusal, f"{source.name} does not arrive: {refusal}"
            continue
        assert sample.value != source.default
        assert before != sample.value or sample.words[-1] in base_words


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_dropped(name, folder):
    """On the way to a function, an option of another one is refused, or has gone to that one."""
    command = COMMANDS[name]
    ways = {function: started(name, function, folder) for function in command.functions}
    for function, (words, _) in ways.items():
        own = {source.name for source in sources_of(function)}
        later = {  # what is typed for functions that are called after this one
            source.name
            for other, (_, done) in ways.items()
            if function in done.calls
            for source in sources_of(other)
        }
        for option in command.sources.keys() - own - later:
            sample = sample_of(command.sources[option], folder)
            done = run(name, [*words, *sample.words], function)
            sources = [(of, each) for of in done.calls for each in sources_of(of)]
            paths = [(of, each.path) for of, each in sources if each.name == option]
            gone = any(value_at(done.calls[of], path) == sample.value for of, path in paths)
            assert gone or not done.arrived, f"{option} is dropped on the way to {function}"


ELSEWHERE = {  # commands whose further options are tested on real data
    "check": "tests/likeness/checking/test_check.py",
    "demo": "tests/likeness/training/test_demo.py",
    "lists": "tests/likeness/checking/test_lists.py",
    "gallery cluster": "tests/eval/scoring/test_threshold_files.py",
    "train": "tests/likeness/training/test_held_out.py",
}
OWN = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.own]


@pytest.mark.parametrize(("name", "parameter"), OWN, ids=["-".join(pair) for pair in OWN])
def test_what_only_the_command_has_changes_what_it_does(name, parameter, folder, monkeypatch):
    monkeypatch.chdir(folder)
    command = COMMANDS[name]
    words = own_words(parameter, command.own[parameter], folder)
    if name in ELSEWHERE:
        assert f'"{words[0]}"' in (ROOT / ELSEWHERE[name]).read_text("utf-8")
        return
    functions = command.functions or [None]
    for function in functions:
        for base in base_lines(name, function, folder) if function else [[]]:
            without = run(name, [word for word in base if word not in words])
            done = run(name, base if words[-1] in base else [*base, *words])
            effects = [
                (one.said, [str(each.mock_calls) for each in one.results], one.calls)
                for one in (without, done)
            ]
            if "Usage" not in done.said and effects[0] != effects[1]:
                return
    raise AssertionError(f"{words} changes nothing: {done.said}")


def test_every_command_says_what_it_is_for():
    for name in cli.COMMANDS:
        summary = cli.summary_of(name)
        assert summary.endswith((".", "?"))
        assert summary == cli.command_of(name).short_help


_PYTHON = re.compile(  # words that help texts do without
    r"\b(None|True|False|tuple|mapping|dict|sequence|dataclass|parameter|keyword|Path|str|int|float|"
    r"callable|pandas|polars|likeness\.\w+)\b"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_for_users_and_has_every_default(name):
    for source in COMMANDS[name].sources.values():
        text = source.help + source.default_and_range(is_required=False)
        assert not _PYTHON.search(text), f"{source.name}: {text}"
        if type(source.default) in (int, float):
            assert f"(default: {source.default:g})" in text, source.name
        elif isinstance(source.default, str) and source.default:
            assert f"(default: {source.default})" in text, source.name


OPTIONS = {
    name: {*command.sources, *(option for each in command.params for option in each.opts)}
    for name, command in COMMANDS.items()
}
_LOADING = "embed verify threshold serve gallery+enrol gallery+search gallery+cluster"
# The commands that reach a message of a file; of files that are not here, those whose function
# stands in the file. What only some of them reach goes through `if_option`.
REACHED = {
    "eval/items/levels.py": "check lists train compare gallery+enrol",
    "eval/protocols/ijb/protocol.py": "evaluate identify",
    "eval/protocols/side_by_side.py": "evaluate bench",
    "eval/reports/comparison.py": "compare",
    "eval/scoring/threshold_files.py": "verify serve gallery+check gallery+search gallery+cluster",
    "eval/scoring/thresholds.py": "verify serve bench evaluate gallery+check gallery+search",
    "eval/writing.py": "",  # of a command that has --force, alone
    "likeness/checking/report.py": "check",
    "likeness/embedding/_ray.py": "embed",
    "likeness/models/_sherpa.py": "export",
    "likeness/models/bundled.py": "verify embed gallery+enrol",
    "likeness/models/load.py": _LOADING,
    "likeness/models/reading.py": "embed",
    "likeness/models/trust.py": f"{_LOADING} export",
    "likeness/models/verdicts.py": "verify",
    "likeness/prepare/wheels.py": "",  # of pip
    "likeness/service/_guard.py": "serve",
    "likeness/service/_inputs.py": "serve",
    "likeness/service/_work.py": "serve",
    "modalities/folders.py": "lists train compare",
    "modalities/speaker/cnceleb.py": "",  # whole lines of commands
    "modalities/image/small_sets.py": "train compare reproduce",
    "likeness/cli.py": "",
    "likeness/models/_hub.py": "",  # of hf
    "likeness/training/demo.py": "",
    "likeness/training/papers.py": "",
    "likeness/training/prepare.py": "",
    "toolkit/parallel/distributed.py": "",  # of torchrun
    "toolkit/data/splits.py": "lists train compare",
    "toolkit/data/readers.py": "embed verify threshold gallery+enrol gallery+cluster",
    "toolkit/gallery/gallery.py": "gallery+search",
    "toolkit/models/export.py": "export",
    "toolkit/models/parts.py": "embed",
    "toolkit/training/_keeper.py": "train",
    "toolkit/training/compare.py": "compare",
    "toolkit/training/run.py": "train",
    "toolkit/training/search.py": "compare",
}
ANY_OF = {"likeness/embedding/galleries.py", "likeness/training/train.py"}  # of several commands
OF_OTHERS = {("likeness/models/load.py", "--out")}  # a line of `likeness export`


def named() -> Iterator[tuple[str, str]]:
    """Each file, and an option that a text of it names outside a quoted command."""
    for room in ("eval", "toolkit", "modalities", "likeness"):
        for file in sorted((ROOT / room).rglob("*.py")):
            below = file.relative_to(ROOT)
            is_linked = any(parent.is_symlink() for parent in file.parents)
            if is_linked or below.parts[:2] == ("likeness", "commands"):
                continue
            nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
            passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if getattr(getattr(node, "func", None), "id", "") in ("if_option", "Option"):
                    passed |= set(map(id, ast.walk(node)))
            for node in nodes:
                if isinstance(getattr(node, "value", None), str) and id(node) not in passed:
                    text = re.sub(r"`[^`]*`|likeness \w+ .*", "", node.value)
                    yield from ((below.as_posix(), o) for o in re.findall(r"--[a-z][a-z-]+", text))


@pytest.mark.parametrize(("file", "name"), sorted(set(named())))
def test_a_message_names_an_option_of_the_command(file, name):
    module = f"likeness.{file.removeprefix('likeness/').removesuffix('.py').replace('/', '.')}"
    modules = {name: [of.__module__ for of in each.functions] for name, each in COMMANDS.items()}
    own = [each for each in COMMANDS if module in modules[each]]
    assert own or file in REACHED, f"which commands reach {file}, where {name} is named?"
    reached = [each.replace("+", " ") for each in REACHED[file].split()] if file in REACHED else own
    lacking = [each for each in reached if name not in OPTIONS[each]]
    if file in ANY_OF:
        assert len(lacking) < len(own)
    elif (file, name) not in OF_OTHERS:
        assert not lacking, f"{lacking} have no {name}, which {file} names: use if_option"


def test_a_part_of_a_message_is_left_out_where_the_option_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(option_texts, "_options", frozenset({"--root"}))
    assert option_texts.if_option(", or by --columns") == ""
    assert option_texts.if_option(", or by --root") == ", or by --root"
    (tmp_path / "trials.txt").write_text("a b maybe\n")
    trials = tmp_path / "trials.txt"
    said = refused("fit", "fusion", trials, trials, "--out", tmp_path / "fusion.json")
    assert "--columns" not in said
    said = refused("evaluate", trials)
    assert "--columns" in said
