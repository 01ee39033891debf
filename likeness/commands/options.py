"""What the command line's modules share: kinds of options, and refuse_idle()."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

EXISTING: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
PACK: dict[str, Any] = {"exists": True, "file_okay": False}


def placed(text: str) -> Path:
    """Where embeddings are to be written: a file, or a LanceDB table by either of its names."""
    from eval.formats.embeddings import located

    return located(text)


def stored(text: str) -> Path:
    """Embeddings that are there."""
    path = placed(text)
    if not path.exists():
        raise typer.BadParameter(
            f"{text!r} does not exist"
        )  # typer puts "Value error" before the text of a ValueError
    return path


EMBEDDINGS: dict[str, Any] = {"parser": stored, "metavar": "FILE"}


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option was left out."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def refuse_idle(context: typer.Context, names: Sequence[str], other: str, given: object) -> None:
    """ValueError for options that were given, but would change nothing as the `other` was not."""
    idle = [f"--{name.replace('_', '-')}" for name in names if not is_default(context, name)]
    if idle and not given:
        raise ValueError(
            f"{' and '.join(idle)} without {other} would change nothing; give that too, or leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def refuse_input_as_output(context: typer.Context, output: str) -> None:
    """ValueError where the file that the option `output` names is one of the files that the command
    reads, which it would replace.
    """
    out = context.params.get(output)
    if not isinstance(out, Path) or not out.is_file():
        return
    for name, value in context.params.items():
        for read in value if isinstance(value, list | tuple) else [value]:
            if name != output and isinstance(read, Path) and read.is_file() and read.samefile(out):
                raise ValueError(
                    f"{out} is one of the inputs, and the output would replace it; name another "
                    "file for the output"
                )
