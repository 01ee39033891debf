"""The `likeness` command: which commands there are, their help, and how they start and end.

The command NAME stands in likeness/commands/NAME.py, which is imported when it is typed. Whatever
is slow to import is imported there inside the functions that use it, so that `--help` is quick and
files are scored without torch.
"""

import importlib
import os
import re
import shlex
import sys
import typing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from likeness.errors import one_sentence
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import help_columns, say, shown

GROUPS = {  # of commands, in the order of --help
    "Start": ("demo", "recipes", "prepare"),
    "Data": ("check", "lists", "align"),
    "Train": ("train", "compare", "reproduce"),
    "Measure": ("embed", "score", "fit", "evaluate", "bench", "identify", "retrieve"),
    "Use": ("verify", "gallery", "threshold", "export", "serve"),
}
COMMANDS = [name for names in GROUPS.values() for name in names]
# What stands for a value in help, by its type.
_METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_KINDS = {"dir": "folder", "path": "file or folder"}  # of paths
# ClickException: of click, or of the copy of it that newer versions of typer hold
_USAGE = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])
_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class _Context(typer.Context):
    """What a command is called with; its help leaves room for texts on a narrow terminal."""

    def make_formatter(self) -> Any:
        formatter: Any = super().make_formatter()
        column = min(30, max(formatter.width // 3, 1))
        formatter.write_dl = partial(formatter.write_dl, col_max=column)
        return formatter


class _Lazy(typer.core.TyperGroup):
    """The command line, which imports a command when it is typed, and lists all by their use."""

    context_class = _Context

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # whose names may be suggested

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary_of(name)) for name in names])


def summary_of(name: str) -> str:
    """The first sentence of a command's docstring, which is read without importing it."""
    text = Path(__file__).with_name("commands").joinpath(f"{name}.py").read_text("utf-8")
    docstring = re.search(rf'^def {name}\(.*?"""(.+?)(?:\n\n|""")', text, re.DOTALL | re.MULTILINE)
    assert docstring is not None, name
    return _first_sentence(docstring[1])


def command_of(name: str) -> Any:
    """A command, as typer makes it of what its module defines; several are a group."""
    module = importlib.import_module(f"likeness.commands.{name}")
    from likeness.commands._signature import Command

    defined = {key: each for key, each in vars(module).items() if isinstance(each, Command)}
    app = typer.Typer(
        name=name, add_completion=False, no_args_is_help=len(defined) > 1, **_SETTINGS
    )
    if len(defined) > 1:
        app.callback()(getattr(module, name))
    for key, each in defined.items():
        app.command(key.removesuffix("_"), **each.details)(each.run)
    command = typer.main.get_command(app)
    _complete(command)
    return command


def _say_help(command: Any) -> None:
    """Let help be printed as all else is: a full output is named, and a reader may have gone."""

    def print_help(context: Any, _: object, is_asked: bool) -> None:
        if is_asked and not context.resilient_parsing:
            say(context.get_help())
            context.exit()

    context = _Context(command, **_SETTINGS["context_settings"])
    command.get_help_option(context).callback = print_help


def _print_version(asked: bool) -> None:
    if asked:
        from likeness.eval.errors import likeness_version

        say(f"likeness {likeness_version()}")
        raise typer.Exit


def whole_command() -> Any:
    """The command line, with help that is laid out for people."""
    app = typer.Typer(name="likeness", cls=_Lazy, no_args_is_help=True, **_SETTINGS)
    app.callback()(likeness)
    command = typer.main.get_command(app)
    _say_help(command)
    return command


def likeness(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Likeness learns and measures similarity: is this the same voice, the same face, the same
    thing? It trains networks, scores verification trials, and exports embeddings.
    """


def _first_sentence(text: str) -> str:
    return re.sub(r"(?<=[.?]) .*", "", " ".join(text.split("\n\n")[0].split()))


def _complete(command: Any) -> None:
    """Complete what typer makes of a command, and of those below it."""
    # Without a text of its own, a command's help would be cut to the width of the terminal.
    command.short_help = _first_sentence(command.help or "")
    command.context_class = _Context
    _say_help(command)
    for parameter in command.params:
        parameter.metavar = parameter.metavar or _metavar(parameter)
        if parameter.param_type_name == "argument":
            _show_plainly(parameter)
    for below in getattr(command, "commands", {}).values():
        _complete(below)


def _metavar(parameter: Any) -> str | None:
    """What stands for a value in help: a word of its type, or the words that may be chosen."""
    described = parameter.type_descriptor
    if parameter.param_type_name == "argument":
        return f"{parameter.name.upper()}{'...' * described.is_list}"
    if getattr(parameter, "is_flag", False) or described.is_tuple:
        return None
    if described.is_choice:
        return "|".join(map(str, described.choices))
    kind = described.annotation
    kind = typing.get_args(kind)[0] if described.is_list else kind
    return _METAVARS.get(kind)


def _show_plainly(argument: Any) -> None:
    """Let help show an argument by its word alone, without Python's type and without braces."""
    word = argument.metavar if argument.required else f"[{argument.metavar}]"
    argument.display_type_rich = lambda ctx: ""
    argument.get_usage_pieces = lambda ctx: [word]


def _in_our_words(error: Any) -> str:
    """The sentence on a value that an option does not take, or on an option that is missing."""
    if (parameter := error.param) is None:
        return str(error.message)
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.metavar or parameter.name
    if not error.message:
        return f"{name} is missing: {parameter.help}"
    if not hasattr(error.__cause__, "errors"):  # a path
        text = str(error.message).rstrip(".").replace("directory", "folder")
        return (
            f"{name}: {re.sub('^(dir|path)(?= )', lambda word: _KINDS[word[0]], text)}; correct it"
        )
    typed, described = error.__cause__.errors()[0]["input"], parameter.type_descriptor
    if described.is_choice:
        return f"{name} {typed!r}: give one of {', '.join(map(str, described.choices))}"
    is_whole = int in (described.annotation, *typing.get_args(described.annotation))
    limits = (("at least", parameter.min), ("at most", parameter.max))
    bounds = " and ".join(f"{word} {bound:,}" for word, bound in limits if bound is not None)
    number = "a whole number" if is_whole else "a number"
    return f"{name} {typed!r}: give {number}{' of ' * bool(bounds)}{bounds}"


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong input ends with exit code 2 and one sentence, a signal with
    130.

    Work that takes long is shown on stderr (likeness.toolkit.console). LIKENESS_TRACEBACK=1 shows
    the traceback as well.
    """
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # its warnings are none of the user's
    is_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    command, line = whole_command(), shlex.join(["likeness", *arguments])
    if "_LIKENESS_COMPLETE" in os.environ:  # a shell asks for the words that may follow
        command.main(arguments, "likeness")
    with one_sentence("likeness", for_good=is_process), shown():
        try:
            with command.make_context(
                "likeness", list(arguments), obj=line, terminal_width=help_columns()
            ) as context:
                command.invoke(context)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        except typer.BadParameter as error:
            raise LikenessError(_in_our_words(error)) from None
        except _USAGE as error:
            error.show()
            sys.exit(2)
    sys.exit(0)
