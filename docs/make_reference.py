"""Writes the parts of docs/reference/{losses,backbones,recipes}.md that follow from the code.

    python docs/make_reference.py

The function NAME of PARTS writes the lines between `<!-- made: NAME -->` and `<!-- end -->`;
everything else in the pages is written by hand. tests/test_reference.py fails if a page is out of
date. losses.toml and backbones.toml hold what the classes do not state.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import likeness.toolkit.losses
from likeness import backbones
from likeness.toolkit.data.sampling import Sampling
from likeness.toolkit.losses.contract import Spreadable, has_proxies
from likeness.toolkit.training.assign import as_text, kind
from likeness.toolkit.training.fine_tuning import LoRA, Tuning
from likeness.toolkit.training.memory import Memory
from likeness.toolkit.training.recipe import (
    Classification,
    Compute,
    Optim,
    Parallel,
    Recipe,
    Retrieval,
    Schedule,
    Verification,
    read,
)
from likeness.training.recipe_files import folder, names

DOCS = Path(__file__).parent
PAGES = ("losses", "backbones", "recipes")
WIDTH = 100  # columns of the pages' prose


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def wrapped(text: str, indent: str = "") -> str:
    """Break a paragraph into lines of the pages' width."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def catalogue(name: str) -> Any:
    """Read a file of this folder."""
    return tomllib.loads((DOCS / f"{name}.toml").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- losses


def loss_classes() -> list[Any]:
    """Find every loss class of likeness.toolkit.losses, by file and by place in it."""
    losses: list[Any] = []
    for file in pkgutil.iter_modules(likeness.toolkit.losses.__path__):
        module = importlib.import_module(f"likeness.toolkit.losses.{file.name}")
        losses += [
            cls
            for name, cls in vars(module).items()
            if inspect.isclass(cls)
            and issubclass(cls, nn.Module)
            and cls.__module__ == module.__name__
            and not name.startswith("_")
        ]
    return losses


def losses_list(*, proxies: bool) -> str:
    """List the losses that have class vectors, or those that have none, by what they compare."""
    entries = catalogue("losses")
    groups: dict[str, list[str]] = {}
    for cls in loss_classes():
        name = cls.__name__
        if has_proxies(cls) == proxies:
            group = f"**{entries[name]['geometry']}, {entries[name]['compares']}**"
            groups.setdefault(group, []).append(f"[{name}](#{name.lower()})")
    return "\n".join(
        wrapped(f"- {group}: {', '.join(names)}", "  ") for group, names in groups.items()
    )


def not_spread() -> str:
    """State the losses whose classes cannot be spread."""
    losses = [cls for cls in loss_classes() if has_proxies(cls)]
    found = [cls.__name__ for cls in losses if not isinstance(cls, Spreadable)]
    can = "You can [spread](../how-to/many_machines.md) classes over processes, and sample them,"
    return wrapped(f"{can} with every loss except {' and '.join(sorted(found))}.")


def losses_details() -> str:
    """Name the paper of each loss, what it is checked against, and where it differs."""
    entries, sections = catalogue("losses"), []
    for cls in sorted(loss_classes(), key=lambda cls: cls.__name__.lower()):
        entry = entries[cls.__name__]
        checked = f" Checked: {entry['checked']}." if "checked" in entry else ""
        text = f"{entry['paper']}.{checked} {entry.get('notes', '')}"
        sections.append(f"### {cls.__name__}\n{wrapped(text)}")
    return "\n\n".join(sections)


# ---------------------------------------------------------------- backbones


def arguments(settings: str) -> dict[str, Any]:
    """Read settings such as "depth=18, dim=192"."""
    call = typing.cast(ast.Call, ast.parse(f"f({settings})", mode="eval").body)
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


def millions(cls: Any, settings: dict[str, Any]) -> float:
    """Count the parameters without making them.

    The input has 3 channels (SmallCNN: 1), 80 mel bands, or what ReDimNet was published for.
    """
    inputs = {"ReDimNet": 60 if settings.get("size") == "b0" else 72, "ReDimNet2": 72}
    inputs["SmallCNN"] = 1
    usual = 3 if getattr(cls, "takes", "") == "images" else 80
    with torch.device("meta"):
        made = cls(inputs.get(cls.__name__, usual), **settings)
    return sum(parameter.numel() for parameter in made.parameters()) / 1e6


@cache
def networks_of_recipes() -> list[tuple[str, Any, dict[str, Any]]]:
    """The recipe, the class and the settings of every network that a recipe trains."""
    found = []
    for name in names():
        for recipe in read(str(folder() / f"{name}.py"))["RECIPES"].values():
            part: Any = recipe.backbone
            stated = part.keywords if isinstance(part, partial) else {}
            found.append((name, part.func if isinstance(part, partial) else part, stated))
    return found


def trained_by(cls: Any, fits: Callable[[dict[str, Any]], bool]) -> str:
    """Name the recipes that train a network of a class whose settings fit."""
    values = {name: x.default for name, x in inspect.signature(cls).parameters.items()}
    every = networks_of_recipes()
    found = [name for name, own, stated in every if own is cls and fits(values | stated)]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(found))


def has_any(rows: Sequence[dict[str, Any]], values: dict[str, Any]) -> bool:
    """Whether a network has the settings of a row, whatever its `dim`."""
    return any(
        all(values[name] == value for name, value in row.items() if name != "dim") for row in rows
    )


def backbones_table(kind: str) -> str:
    """Make the table of the families of networks for "speech" or "images"."""
    rows = []
    for family in catalogue("backbones")[kind]:
        cls, sizes = getattr(backbones, family["class"]), []
        for text, *stated in family["settings"]:
            settings = arguments(text)
            count = millions(cls, settings)
            others = [number for number in stated if abs(number - count) >= 0.1]
            differs = f" ({', '.join(f'{number:g}' for number in others)})" if others else ""
            sizes.append(f"{f'`{text}`' if text else 'default'}: {count:.2f}{differs}")
        recipes = trained_by(
            cls, partial(has_any, [arguments(text) for text, *_ in family["settings"]])
        )
        known = [family["weights"], recipes, family.get("published", ""), family.get("paper", "")]
        rows.append([f"`{family['class']}`", "; ".join(sizes), *known])
    return table(("network", "parameters, M", "weights of", "recipes", "published", "paper"), rows)


# ---------------------------------------------------------------- recipes

# What a recipe is made of: where its fields stand on a command line -> the dataclass.
GROUPS: tuple[tuple[str, Any], ...] = (
    ("", Recipe),
    ("sampling.", Sampling),
    ("memory.", Memory),
    ("optim.", Optim),
    ("schedule.", Schedule),
    ("tuning.", Tuning),
    ("tuning.lora.", LoRA),
    ("compute.", Compute),
    ("parallel.", Parallel),
    ("measure.", Verification),
    ("measure.", Classification),
    ("measure.", Retrieval),
)


def recipes_list() -> str:
    """Name the recipes."""
    return wrapped(", ".join(f"`{name}`" for name in names()))


def meanings(cls: Any) -> dict[str, str]:
    """The paragraphs below "Attributes:" in a docstring, by the name of the attribute."""
    doc = inspect.getdoc(cls) or ""
    block = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", doc, re.MULTILINE)
    text = textwrap.dedent(block[1]) if block else ""
    pairs = re.findall(r"^(\w+): ((?:.*\n?)(?:    .*\n?)*)", text, re.MULTILINE)
    return {name: " ".join(paragraph.split()) for name, paragraph in pairs}


def written(field: dataclasses.Field[Any]) -> str | None:
    """The default of a field as `likeness train` reads it; None where it reads none."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return as_text(value)


def fields_of(prefix: str, cls: Any) -> str:
    """The fields of one dataclass, without groups, which have sections of their own.

    Raises:
        KeyError: A field has no meaning in the docstring.
    """
    hints, meaning_of = typing.get_type_hints(cls), meanings(cls)
    entries = []
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        default, type_text = written(field), kind(hints[field.name])
        shown = default is not None and type_text != "parts by name"
        numbers = ("true or false", "a whole number", "a number")
        plain = type_text.startswith(("a part", "parts")) or (
            shown and default != "" and type_text in numbers
        )
        name = f"`{prefix}{field.name}{f'={default}' if shown else ''}`"
        label = f"{name} ({type_text})" if type_text and not plain else name
        entries.append(wrapped(f"- {label}: {meaning_of[field.name]}", "  "))
    title = f"## {cls.__name__}" + (f", `{prefix.rstrip('.')}`" if prefix else "")
    return "\n".join([title, *entries])


# ---------------------------------------------------------------- pages

PARTS: dict[str, Callable[[], str]] = {
    "losses with class vectors": lambda: losses_list(proxies=True),
    "losses without class vectors": lambda: losses_list(proxies=False),
    "losses that are not spread": not_spread,
    "details of losses": losses_details,
    "speech": lambda: backbones_table("speech"),
    "images": lambda: backbones_table("images"),
    "recipes": recipes_list,
    "fields": lambda: "\n\n".join(fields_of(prefix, cls) for prefix, cls in GROUPS),
}


def made(text: str) -> str:
    """Return a page with what is made anew."""
    return re.sub(
        r"(<!-- made: (.+?) -->\n).*?(?=\n<!-- end -->)",
        lambda match: f"{match[1]}{PARTS[match[2]]()}\n",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        page = DOCS / "reference" / f"{name}.md"
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
