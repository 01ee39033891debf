"""Writes docs/losses.md, the table of losses, from their classes and from losses.toml beside it.

python docs/make_losses.py
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path
from typing import Any

from torch import nn

import toolkit.losses
from toolkit.losses.contract import Spreadable, has_proxies

PAGE = Path(__file__).parent / "losses.md"
CATALOGUE = Path(__file__).parent / "losses.toml"
KEYS = ("paper", "geometry", "compares", "normalised", "verified")  # notes may be left out
HEAD = """# Losses

Written by `python docs/make_losses.py` from the classes of `toolkit/losses`, whose docstrings hold
the formulas, and from `docs/losses.toml`. Every loss is a module `Loss(dim, num_classes, ...)` on
raw embeddings `(B, dim)`; angular margins are in radians.

Compares, after Table 1 of the SimPLE paper: *triplet* losses compare scores with each other, *pair*
losses each score with one threshold for all. Shards: whether its classes can be spread over
processes and sampled (`toolkit/parallel/spread.py`). Names with `__` under "verified" are files of
`tests/golden`, values and gradients of the implementation after the `__`.
"""
COLUMNS = (
    "loss",
    "file",
    "paper",
    "geometry",
    "proxies",
    "shards",
    "compares",
    "defaults",
    "normalised",
    "verified against",
    "notes",
)


def find() -> list[Any]:
    """Find every loss class of toolkit.losses, by file and by place in it."""
    losses: list[Any] = []
    for file in pkgutil.iter_modules(toolkit.losses.__path__):
        module = importlib.import_module(f"toolkit.losses.{file.name}")
        losses += [
            cls
            for name, cls in vars(module).items()
            if inspect.isclass(cls)
            and issubclass(cls, nn.Module)
            and cls.__module__ == module.__name__
            and not name.startswith("_")
        ]
    return losses


def catalogue(losses: list[Any]) -> dict[str, dict[str, str]]:
    """Read losses.toml, whose entries must be those of the given losses.

    Raises:
        ValueError: A loss has no entry, an entry has no loss, or an entry lacks a key or has one
            too many.
    """
    entries: dict[str, dict[str, str]] = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    names = {cls.__name__ for cls in losses}
    wrong = [f"{name} has no entry" for name in sorted(names - set(entries))]
    wrong += [f"{name} is no loss" for name in sorted(set(entries) - names)]
    wrong += [
        f"{name} must have the keys {', '.join(KEYS)} and may have notes, but has "
        f"{', '.join(entry)}"
        for name, entry in entries.items()
        if set(entry) - {"notes"} != set(KEYS)
    ]
    if wrong:
        raise ValueError(f"{CATALOGUE.name}: {'; '.join(wrong)}; repair the file")
    return entries


def defaults(cls: Any) -> str:
    """The constructor's keyword arguments, as `name=value`."""
    parameters = inspect.signature(cls).parameters.values()
    return ", ".join(
        f"`{parameter.name}={_short(parameter.default)}`"
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def _short(value: Any) -> str:
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else value.__name__
        if callable(value)
        else repr(value)
    )


def _shards(cls: Any) -> str:
    return "" if not has_proxies(cls) else "yes" if isinstance(cls, Spreadable) else "no"


def page() -> str:
    """Make the text of docs/losses.md."""
    rows, losses = [], find()
    entries = catalogue(losses)
    for cls in losses:
        entry, file = entries[cls.__name__], cls.__module__.rpartition(".")[2]
        cells = [
            f"**{cls.__name__}**",
            f"`{file}.py`",
            entry["paper"],
            entry["geometry"],
            "yes" if has_proxies(cls) else "free",
            _shards(cls),
            entry["compares"],
            defaults(cls),
        ]
        rows.append([*cells, entry["normalised"], entry["verified"], entry.get("notes", "")])
    table = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return (
        HEAD
        + "\n"
        + "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table
        )
        + "\n"
    )


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
