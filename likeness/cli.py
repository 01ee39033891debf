"""The `likeness` command: which commands there are, their help, and how they start and end.

The command NAME stands in likeness/commands/NAME.py, which holds its options and its work. Whatever
is slow to import is imported there inside the functions that use it, so that `--help` is quick and
files are scored without torch.
"""

import os
import re
import shlex
import sys
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import typer

from likeness.commands import (
    align,
    bench,
    check,
    compare,
    demo,
    embed,
    evaluate,
    export,
    fit,
    gallery,
    identify,
    lists,
    prepare,
    recipes,
    reproduce,
    retrieve,
    score,
    serve,
    threshold,
    train,
    verify,
)
from likeness.commands.options import app
from likeness.errors import one_sentence
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import help_columns, say, shown

GROUPS = {  # of commands, in the order of --help
    "Start": (demo, recipes, prepare),
    "Data": (check, lists, align),
    "Train": (train, compare, reproduce),
    "Measure": (embed, score, fit, evaluate, bench, identify, retrieve),
    "Use": (verify, gallery, threshold, export, serve),
}
_OUTPUTS = {"out", "json_file", "report", "page"}  # options of what is written
# commands that go on with what is there
_RESUME = ("train", "compare", "reproduce", "demo", "align")
# What stands for a value in help, by its type.
_METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
# ClickException: of click, or of the copy of it that newer versions of typer hold
_USAGE = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])


class _Groups(typer.core.TyperGroup):
    """The command line, whose help lists the commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, modules in GROUPS.items():
            names = [name_of(module) for module in modules]
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].short_help) for name in names])


def name_of(module: ModuleType) -> str:
    """The name of the command of a module of likeness/commands."""
    return module.__name__.rpartition(".")[2]


app.add_typer(fit.app)
app.add_typer(gallery.app)
_common = typer.Typer(add_completion=False)


@_common.command()
def _of_outputs(
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """The option that every command has which writes files and does not resume."""


_FORCE = typer.main.get_command(_common).params


def _print_version(asked: bool) -> None:
    if asked:
        from likeness.eval.formats.provenance import likeness_version

        say(f"likeness {likeness_version()}")
        raise typer.Exit


@app.callback(cls=_Groups)
def likeness(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Likeness learns and measures similarity: is this the same voice, the same face, the same
    thing? It trains networks, scores verification trials, and exports embeddings.
    """


def whole_command() -> typer.core.TyperGroup:
    """The command line, with help that is laid out for people."""
    group = cast(typer.core.TyperGroup, typer.main.get_command(app))
    _complete(group)
    return group


def _complete(command: Any) -> None:
    """Complete what typer makes of a command, and of those below it."""
    # Without a text of its own, a command's help would be cut to the width of the terminal.
    first = " ".join((command.help or "").split("\n\n")[0].split())
    command.short_help = re.sub(r"(?<=[.?]) .*", "", first)
    for parameter in command.params:
        parameter.metavar = parameter.metavar or _metavar(parameter)
        if parameter.param_type_name == "argument":
            _show_plainly(parameter)
    for below in getattr(command, "commands", {}).values():
        _complete(below)
        if below.callback and not hasattr(below, "commands"):
            if below.name not in _RESUME and _OUTPUTS & {each.name for each in below.params}:
                below.params += _FORCE
            below.callback = partial(_checked, below.callback)


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


def _checked(run: Callable[..., None], force: bool = True, **options: Any) -> None:
    """Run a command, unless an output would replace one of the files that it reads, or any file
    without --force.
    """
    for name in sorted(_OUTPUTS & options.keys()):
        out = options[name]
        if not isinstance(out, Path):
            continue
        written = [place for place in _written(out) if place.is_file()]
        inputs = [
            read
            for other, value in options.items()
            for read in (value if isinstance(value, list | tuple) else [value])
            if other != name and isinstance(read, Path | str) and os.path.isfile(read)
        ]
        for place in written:
            if any(place.samefile(read) for read in inputs):
                raise LikenessError(
                    f"{place} is one of the inputs, and the output would replace it; name another "
                    "file for the output"
                )
            if not force:
                raise LikenessError(f"{place} exists; --force replaces it, or name another place")
    run(**options)


def _written(out: Path) -> list[Path]:
    """The files that an output may replace: itself, what is written beside it, or in its folder."""
    beside = [f"{out.stem}.left-out{out.suffix}", f"{out.name}.origin.json"]
    beside.append(f"{out.name}.skipped.txt")
    if out.suffix == ".ark":
        beside += [f"{out.stem}.scp", f"{out.stem}.meta.json"]
    within = ("index.html", "report.json", "items.txt", "trials.txt", "labels.txt")
    return [out, *map(out.with_name, beside), *(out / name for name in within)]


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong input ends with exit code 2 and one sentence, Ctrl-C with 130.

    Work that takes long is shown on stderr (likeness.toolkit.console). LIKENESS_TRACEBACK=1 shows
    the traceback as well.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command, line = whole_command(), shlex.join(["likeness", *arguments])
    if "_LIKENESS_COMPLETE" in os.environ:  # a shell asks for the words that may follow
        command.main(arguments, "likeness")
    with one_sentence("likeness"), shown():
        try:
            with command.make_context(
                "likeness", list(arguments), obj=line, terminal_width=help_columns()
            ) as context:
                command.invoke(context)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        except _USAGE as error:
            error.show()
            sys.exit(2)
    sys.exit(0)
