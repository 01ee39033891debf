"""The `likeness` command: which commands there are, and how they start and end.

The command NAME stands in likeness/commands/NAME.py, which holds its options and its work. Whatever
is slow to import is imported there inside the functions that use it, so that `--help` is quick and
files are scored without torch.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from likeness.commands import (
    align,
    check,
    compare,
    demo,
    embed,
    evaluate,
    export,
    gallery,
    identify,
    join,
    lists,
    plda,
    prepare,
    recipes,
    retrieve,
    score,
    serve,
    train,
    verify,
)
from likeness.errors import one_sentence
from likeness.eval.errors import LikenessError
from likeness.eval.temporary import remove_abandoned_folders
from likeness.toolkit.console import help_columns, say, shown

COMMANDS = (  # in the order of --help
    *(demo, check, align, train, compare, lists, prepare, recipes),  # train
    *(embed, verify, gallery, join, export, serve),  # use a trained model
    *(score, evaluate, identify, retrieve, plda),  # measure, on files and without torch
)
# ClickException: of click, or of the copy of it that newer versions of typer hold
_USAGE = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    name="likeness",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for module in COMMANDS:
    app.add_typer(module.app)


def _print_version(asked: bool) -> None:
    if asked:
        from likeness.eval.formats.provenance import likeness_version

        say(f"likeness {likeness_version()}")
        raise typer.Exit


@app.callback()
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


def _whole_command() -> typer.core.TyperGroup:
    """The command line, whose list of commands shows the first sentence of each one whole.

    Without a text of its own, a command's help would be cut to the width of the terminal.
    """
    group = cast(typer.core.TyperGroup, typer.main.get_command(app))
    _complete(group)
    return group


def _complete(group: typer.core.TyperGroup) -> None:
    for command in group.commands.values():
        first = " ".join((command.help or "").split("\n\n")[0].split())
        command.short_help = re.sub(r"(?<=[.?]) .*", "", first)
        if isinstance(command, typer.core.TyperGroup):
            _complete(command)
        else:
            command.callback = partial(_checked, cast(Callable[..., None], command.callback))


def _checked(run: Callable[..., None], **options: Any) -> None:
    """Run a command, unless an output would replace one of the files that it reads."""
    outputs = {name: options.get(name) for name in ("out", "json_file")}
    for name, out in outputs.items():
        if not isinstance(out, Path) or not out.is_file():
            continue
        inputs = [
            read
            for other, value in options.items()
            for read in (value if isinstance(value, list | tuple) else [value])
            if other != name and isinstance(read, Path | str) and os.path.isfile(read)
        ]
        if any(out.samefile(read) for read in inputs):
            raise LikenessError(
                f"{out} is one of the inputs, and the output would replace it; name another file "
                "for the output"
            )
    run(**options)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong input ends with exit code 2 and one sentence, Ctrl-C with 130.

    Work that takes long is shown on stderr (likeness.toolkit.console). LIKENESS_TRACEBACK=1 shows
    the traceback as well.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command, line = _whole_command(), shlex.join(["likeness", *arguments])
    remove_abandoned_folders()
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
