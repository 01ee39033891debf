"""Writes docs/losses.md, the table of losses, from the classes themselves.

python docs/make_losses.py
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

from torch import nn

import toolkit.losses
from toolkit.losses.contract import Spreadable

PAGE = Path(__file__).parent / "losses.md"
CONSTANTS = ("PAPER", "GEOMETRY", "PROXY", "COMPARES", "NORMALISED", "VERIFIED", "NOTES")
HEAD = """# Losses

Written by `python docs/make_losses.py` from the classes of `toolkit/losses`; their docstrings hold
the formulas. Every loss is a module `Loss(dim, num_classes, ...)` on raw embeddings `(B, dim)`;
angular margins are in radians.

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
    """Every loss class of toolkit.losses, by file and place in it.

    ValueError for one without its constants.
    """
    found: list[Any] = []
    for one in pkgutil.iter_modules(toolkit.losses.__path__):
        module = importlib.import_module(f"toolkit.losses.{one.name}")
        classes = [
            cls
            for cls in vars(module).values()
            if inspect.isclass(cls)
            and issubclass(cls, nn.Module)
            and cls.__module__ == module.__name__
        ]
        found += [cls for cls in classes if not cls.__name__.startswith("_")]
    lacking = [
        f"{cls.__module__}.{cls.__name__} "
        f"({', '.join(name for name in CONSTANTS if not hasattr(cls, name))})"
        for cls in found
    ]
    lacking = [one for one in lacking if not one.endswith("()")]
    if lacking:
        raise ValueError(
            f"{len(lacking)} of {len(found)} losses lack constants for docs/losses.md: "
            f"{'; '.join(lacking)}"
        )
    return found


def defaults(cls: Any) -> str:
    """The constructor's keyword arguments, as `name=value`."""
    parameters = inspect.signature(cls).parameters.values()
    return ", ".join(
        f"`{one.name}={_short(one.default)}`"
        for one in parameters
        if one.kind is inspect.Parameter.KEYWORD_ONLY
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
    return "" if not cls.PROXY else "yes" if isinstance(cls, Spreadable) else "no"


def page() -> str:
    """The text of docs/losses.md."""
    rows = []
    for cls in find():
        file = cls.__module__.rpartition(".")[2]
        cells = [
            f"**{cls.__name__}**",
            f"`{file}.py`",
            cls.PAPER,
            cls.GEOMETRY,
            "yes" if cls.PROXY else "free",
            _shards(cls),
            cls.COMPARES,
            defaults(cls),
        ]
        rows.append([*cells, cls.NORMALISED, cls.VERIFIED, cls.NOTES])
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
