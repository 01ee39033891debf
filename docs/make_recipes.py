"""Makes docs/reference/recipes.md: every field of a recipe, and the recipes that come along.

    python docs/make_recipes.py

The fields, their types and defaults are those of the dataclasses that a recipe is made of, and what
a field means stands in their docstrings. tests/test_reference.py says when the page is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

from likeness.recipe_files import folder, head, names
from toolkit.data.sampling import Sampling
from toolkit.training.assign import kind
from toolkit.training.memory import Memory
from toolkit.training.recipe import (
    Classification,
    Compute,
    Optim,
    Parallel,
    Recipe,
    Retrieval,
    Schedule,
    Verification,
)
from toolkit.training.tuning import LoRA, Tuning

PAGE = Path(__file__).parent / "reference" / "recipes.md"
WIDTH = 100
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
HEAD = """# Recipes

This page is made by `python docs/make_recipes.py` from the classes themselves. Change their
docstrings, and not this page.

A recipe is one training run as a value of Python, of the class `toolkit.training.recipe.Recipe`. A
recipe file ends with `RECIPES = {"name": Recipe(...), ...}`, whose entries are its variants. This
page is for looking up what a field means.

A field is set on the command line as it stands here, with another value behind the `=`:
```
likeness train speaker/folders optim.lr=0.05 schedule.steps=2000 --data voices --out runs/mine
likeness train speaker/folders:resnet34 loss.margin=0.3 --data voices --out runs/resnet
```
- Behind `RECIPE:` stands a variant. Without one it is the first of the file.
- A field without `=` on this page has no default, or it is no number or text. It is set in the
  recipe file; `likeness recipes --copy NAME mine.py` copies one to change.
- An empty text or list is written as `init=`, and a field that may be none as `memory=none`.
- A **part** is a class or function, with its settings in `functools.partial`. Its settings are
  fields too: `loss.margin=0.3`, `backbone.channels=64`, `items.fold=2`. Those of losses are on
  [their page](losses.md), and those of networks on [theirs](backbones.md).
- A name or a value that does not exist is refused before anything is read, and the message lists
  what there is.
- `recipe.json` in the folder of a run has all fields, as they were used.

## The recipes that come along
`likeness recipes` prints this table, and `likeness recipes NAME` says more about one.

"""


def meanings(cls: Any) -> dict[str, str]:
    """The paragraphs below "Attributes:" in a docstring, by the name of the attribute."""
    doc = inspect.getdoc(cls) or ""
    block = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", doc, re.MULTILINE)
    text = textwrap.dedent(block[1]) if block else ""
    pairs = re.findall(r"^(\w+): ((?:.*\n?)(?:    .*\n?)*)", text, re.MULTILINE)
    return {name: " ".join(paragraph.split()) for name, paragraph in pairs}


def introduction(cls: Any) -> str:
    """What a docstring says before its attributes."""
    return (inspect.getdoc(cls) or "").partition("\nAttributes:")[0].strip()


def written(field: dataclasses.Field[Any]) -> str | None:
    """The default of a field as `likeness train` reads it; None where it reads none."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value == {} else None


def entry(prefix: str, field: dataclasses.Field[Any], hint: Any, meaning: str) -> str:
    """One field: its name with its default, its type and what it means."""
    default, type_text = written(field), kind(hint)
    set_by_text = default is not None and type_text != "parts by name"
    name = f"{prefix}{field.name}{f'={default}' if set_by_text else ''}"
    text = f"- `{name}`{f' ({type_text})' if type_text else ''}: {meaning}"
    return textwrap.fill(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def section(prefix: str, cls: Any) -> str:
    """The fields of one dataclass.

    Raises:
        ValueError: A field has no meaning in the docstring.
    """
    hints, meaning_of = typing.get_type_hints(cls), meanings(cls)
    fields = dataclasses.fields(cls)
    if missing := [field.name for field in fields if field.name not in meaning_of]:
        raise ValueError(
            f"{cls.__name__}: {', '.join(missing)} not in its docstring; add them below Attributes"
        )
    title = f"{cls.__name__}" + (f", `{prefix.rstrip('.')}`" if prefix else "")
    entries = [entry(prefix, field, hints[field.name], meaning_of[field.name]) for field in fields]
    return "\n".join([f"\n## {title}", introduction(cls), "", *entries]) + "\n"


def table() -> str:
    """The recipes, with the first line of each."""
    rows = []
    for name in names():
        line = head(folder() / f"{name}.py").partition("\n")[0].replace("*", "\\*")
        rows.append(f"| `{name}` | {line} |")
    return "\n".join(["| recipe | what it is |", "|---|---|", *rows]) + "\n"


def page() -> str:
    """Make the text of docs/reference/recipes.md."""
    return HEAD + table() + "".join(section(prefix, cls) for prefix, cls in GROUPS)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
