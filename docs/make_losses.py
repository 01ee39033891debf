"""Writes docs/reference/losses.md, the page of losses, from their classes and from losses.toml
beside it.

python docs/make_losses.py
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from torch import nn

import toolkit.losses
from toolkit.losses.contract import Spreadable, has_proxies

PAGE = Path(__file__).parent / "reference" / "losses.md"
CATALOGUE = Path(__file__).parent / "losses.toml"
KEYS = ("paper", "geometry", "compares", "normalised", "verified")  # notes may be left out
WIDTH = 100  # columns of the page's prose
HEAD = """# Losses

Every loss of Likeness: its paper, its file, and what it was checked against. This page is made by
`python docs/make_losses.py` from the classes in `toolkit/losses` and from `docs/losses.toml`.

## How a loss is used
Every loss is a module `Loss(dim, num_classes, ...)`. It takes raw embeddings `(B, dim)` and class
labels `(B,)`, and gives a scalar. A loss that needs embeddings of length 1 divides by their norms
itself. Angular margins are in radians.

```python
import torch

from likeness.losses import ArcFace

loss = ArcFace(128, 10, margin=0.2, scale=30.0)  # 128 dimensions, 10 classes
z = torch.randn(4, 128, requires_grad=True)  # raw embeddings of a batch
loss(z, torch.tensor([0, 3, 3, 9])).backward()
```

`help(likeness.losses.ArcFace)` shows the formula of a loss, its settings and their defaults. Class
vectors start at random; the recipe's field `start_at_means=true` turns them to the mean directions
of their classes before the first step. [Twenty losses](results.md#twenty-losses) were
measured beside each other.

## What the columns mean
- **paper**: who described the loss, and when.
- **file**: where the class stands, in `toolkit/losses`.
- **geometry**: the space in which embeddings are compared. vMF is the von Mises-Fisher
  distribution, whose direction is that of the embedding and whose concentration is its norm.
- **compares**: a *triplet* loss compares scores with each other. A *pair* loss compares each score
  with one threshold for all. The terms are those of Table 1 of the SimPLE paper.
- **normalised**: the vectors that the loss divides by their norms. *Proxies* are the class vectors,
  and *keys* are the embeddings with which a batch is compared.
- **spread**: whether the classes can be spread over processes and sampled
  (`toolkit/parallel/spread.py`).

[Each loss](#each-loss) has an entry below the tables, which says what it is verified against, and
where it differs from its paper or from other code. A golden file stands in `tests/golden`, whose
README says which version of which implementation gave its values and gradients. *Loops* are a
second implementation in the tests, which follows the paper term by term.
"""
WITH_PROXIES = """
## Losses with a vector for every class
These losses learn a proxy, which is a vector, for each class, and compare the embeddings of a batch
with the proxies.
"""
WITHOUT_PROXIES = """
## Losses without class vectors
These losses compare the embeddings of a batch with each other, or with the embeddings in a memory
bank.
"""
DETAILS = """
## Each loss
A release is the code that the authors of the paper published.
"""
COLUMNS = ("loss", "paper", "file", "geometry", "compares", "normalised")


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


def _file(cls: Any) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.py"


def table(losses: list[Any], entries: dict[str, dict[str, str]]) -> str:
    """Make the table of losses that all have proxies, or that all have none."""
    proxies = has_proxies(losses[0])
    columns = [*COLUMNS, "spread"] if proxies else list(COLUMNS)
    rows = [columns, ["---"] * len(columns)]
    for cls in losses:
        name, entry = cls.__name__, entries[cls.__name__]
        rows.append([f"[{name}](#{name.lower()})", entry["paper"], f"`{_file(cls)}`"])
        rows[-1] += [entry["geometry"], entry["compares"], entry["normalised"]]
        rows[-1] += ["yes" if isinstance(cls, Spreadable) else "no"] if proxies else []
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def details(cls: Any, entry: dict[str, str]) -> str:
    """Say of one loss what it is verified against, and where it differs."""
    said = f"Verified against {entry['verified']}. {entry.get('notes', '')}"
    lines = textwrap.wrap(said, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"\n### {cls.__name__}", *lines]) + "\n"


def page() -> str:
    """Make the text of docs/reference/losses.md."""
    losses = find()
    entries = catalogue(losses)
    with_proxies = [cls for cls in losses if has_proxies(cls)]
    without = [cls for cls in losses if not has_proxies(cls)]
    by_name = sorted(losses, key=lambda cls: cls.__name__.lower())
    return (
        HEAD
        + f"{WITH_PROXIES}\n{table(with_proxies, entries)}"
        + f"{WITHOUT_PROXIES}\n{table(without, entries)}"
        + DETAILS
        + "".join(details(cls, entries[cls.__name__]) for cls in by_name)
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
