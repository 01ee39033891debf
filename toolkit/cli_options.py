"""What the command line's modules share: kinds of options, and say()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

EXISTING: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
PACK: dict[str, Any] = {"exists": True, "file_okay": False}


def placed(text: str) -> Path:
    """Where embeddings are to be written: a file, or a LanceDB table by either of its names."""
    from eval.embeddings import located

    return located(text)


def stored(text: str) -> Path:
    """Embeddings that are there."""
    path = placed(text)
    if not path.exists():
        raise ValueError(f"{text!r} does not exist")
    return path


EMBEDDINGS: dict[str, Any] = {"parser": stored, "metavar": "FILE"}


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option was left out."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def say(text: str, *, error: bool = False) -> None:
    typer.echo(text, err=error)
