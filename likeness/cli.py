"""The `likeness` command: which commands there are, their help, and how they start and end.

The command NAME stands in likeness/commands/NAME.py, which is imported when it is typed. Whatever
is slow to import is imported there inside the functions that use it, so that `--help` is quick and
files are scored without torch.
"""

import importlib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from likeness.errors import one_sentence
from likeness.toolkit.console import help_columns, say, shown

GROUPS = {  # of commands, in the order of --help
    "Start": ("demo", "recipes", "prepare"),
    "Data": ("check", "lists", "align"),
    "Train": ("train", "compare", "reproduce"),
    "Measure": ("embed", "score", "fit", "evaluate", "bench", "identify", "retrieve"),
    "Use": ("verify", "gallery", "threshold", "export", "serve"),
}
COMMANDS = [name for names in GROUPS.values() for name in names]
_COMPLETE = "_LIKENESS_COMPLETE"  # by which a shell asks for the words that may follow


class _Context(click.Context):
    """What a command is called with; its help leaves room for texts on a narrow terminal."""

    def make_formatter(self) -> Any:
        formatter: Any = super().make_formatter()
        column = min(30, max(formatter.width // 3, 1))
        formatter.write_dl = partial(formatter.write_dl, col_max=column)
        return formatter


class _Group(click.Group):
    """Commands that are listed in the order in which they are defined."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]


class _Lazy(_Group):
    """The command line, which imports a command when it is typed, and lists all by their use."""

    context_class = _Context

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary_of(name)) for name in names])


def summary_of(name: str) -> str:
    """The first sentence of a command's docstring, which is read without importing it."""
    text = Path(__file__).with_name("commands").joinpath(f"{name}.py").read_text("utf-8")
    docstring = re.search(rf'^def {name}\(.*?"""(.+?)(?:\n\n|""")', text, re.DOTALL | re.MULTILINE)
    assert docstring is not None, name
    return _first_sentence(docstring[1])


def command_of(name: str) -> click.Command:
    """The command of a module; several are a group."""
    module = importlib.import_module(f"likeness.commands.{name}")
    from likeness.commands._signature import Command

    commands = [each for each in vars(module).values() if isinstance(each, Command)]
    command: click.Command = commands[0]
    if len(commands) > 1:
        text = inspect.cleandoc(getattr(module, name).__doc__)
        command = _Group(name, commands=commands, help=text, no_args_is_help=True)
    for each in {command, *commands}:
        # Without a text of its own, a command's help would be cut to the width of the terminal.
        each.short_help = _first_sentence(each.help or "")
        _lay_out(each)
    return command


def whole_command() -> click.Group:
    """The command line, with help that is laid out for people."""
    command = _Lazy(
        "likeness",
        commands=cast(dict[str, click.Command], dict.fromkeys(COMMANDS)),  # to be suggested
        help="Likeness learns and measures similarity: is this the same voice, the same face, the "
        "same thing? It trains networks, scores verification trials, and exports embeddings.",
        no_args_is_help=True,
        params=[
            _printing("--version", _version, is_flag=True, help="Show the version and exit."),
            _printing(
                "--show-completion",
                _completion,
                type=click.Choice(["bash", "fish", "zsh"]),
                metavar="SHELL",
                help="Show what makes bash, fish or zsh complete commands, and exit.",
            ),
        ],
    )
    _lay_out(command)
    return command


def _lay_out(command: click.Command) -> None:
    """Let help be laid out for people, and printed as all else is."""
    command.context_class = _Context
    command.context_settings = {"help_option_names": ["-h", "--help"]}
    option = command.get_help_option(_Context(command, **command.context_settings))
    assert option is not None
    option.callback = partial(_print, lambda context, _: context.get_help())


def _print(
    text_of: Callable[[click.Context, Any], str], context: click.Context, _: object, typed: Any
) -> None:
    """Print a text that an option asks for, and end.

    `say` prints it, which names a full disk and ends quietly where nobody reads on.
    """
    if typed and not context.resilient_parsing:
        say(text_of(context, typed))
        context.exit()


def _printing(
    name: str, text_of: Callable[[click.Context, Any], str], **details: Any
) -> click.Option:
    """An option that prints a text and ends."""
    details |= {"is_eager": True, "expose_value": False, "callback": partial(_print, text_of)}
    return click.Option([name], **details)


def _version(*_: object) -> str:
    from likeness.eval.errors import likeness_version

    return f"likeness {likeness_version()}"


def _completion(context: click.Context, shell: str) -> str:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, shell
    return completion(context.command, {}, "likeness", _COMPLETE).source()


def _first_sentence(text: str) -> str:
    return re.sub(r"(?<=[.?]) .*", "", " ".join(text.split("\n\n")[0].split()))


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
    if _COMPLETE in os.environ:
        command.main(arguments, "likeness")
    with one_sentence("likeness", for_good=is_process), shown():
        try:
            with command.make_context(
                "likeness", list(arguments), obj=line, terminal_width=help_columns()
            ) as context:
                command.invoke(context)
        except click.exceptions.Exit as ended:
            sys.exit(ended.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(2)
    sys.exit(0)
