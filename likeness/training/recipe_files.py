"""The recipes that come with likeness, by their names: where they lie, and how one is copied.

They lie in likeness/recipes/, and in a clone in recipes/ beside it, to which likeness/recipes is a
link where there are links. They are run, never imported.
"""

import ast
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError
from likeness.eval.writing import atomic_path, remove_abandoned
from likeness.toolkit.training.assign import suggest

SHARED = "_shared.py"  # what the recipes of one folder share


def folder() -> Path:
    """The folder that holds MODALITY/NAME.py, and the recipes of no modality."""
    package = Path(str(files("likeness")))
    inside = package / "recipes"
    return (inside if inside.is_dir() else package.parent / "recipes").resolve()


def names() -> list[str]:
    """Every recipe, as in `speaker/an4`, in alphabetical order."""
    paths = (path for path in folder().rglob("*.py") if path.name != SHARED)
    return sorted(path.relative_to(folder()).with_suffix("").as_posix() for path in paths)


def locate(recipe: str) -> str:
    """RECIPE[:VARIANT] with the file that RECIPE stands for.

    A file that exists is taken as it is. Otherwise MODALITY/NAME is a recipe that comes with
    likeness.

    Args:
        recipe: `mine.py`, `mine.py:arcface`, `speaker/an4` or `speaker/an4:arcface`.

    Returns:
        The same with a path in place of the name. A name that ends in .py and does not exist is
        returned as it is: whoever reads it says so.

    Raises:
        LikenessError: it is neither a file nor the name of a recipe.

    >>> locate("speaker/an4:simple").endswith("an4.py:simple")
    True
    """
    file, colon, variant = recipe.partition(":")
    if Path(file).is_file() or file.endswith(".py"):
        return recipe
    return f"{path_of(file)}{colon}{variant}"


def path_of(name: str) -> Path:
    """The file of a recipe.

    Raises:
        LikenessError: There is no recipe of this name.
    """
    known = names()
    if name not in known:
        raise LikenessError(
            f"recipe {name!r} is neither a file nor a recipe of likeness{suggest(name, known)}; "
            "give RECIPE.py, or a name that `likeness recipes` lists"
        )
    return folder() / f"{name}.py"


def head(path: Path) -> str:
    """A recipe's docstring, read without running the file."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def description(name: str) -> str:
    """A recipe's head, its variants, and which of them `compare` can tune.

    Without torch, which a recipe needs to be read, the head alone.
    """
    path = path_of(name)
    try:
        from likeness.toolkit.training import recipe
    except ModuleNotFoundError:
        return head(path)
    defined = recipe.read(str(path))
    lists = {
        "Variants, of which the first needs no name": defined["RECIPES"],
        "Variants that `compare` can tune, by RANGES": defined.get("RANGES", {}),
    }
    texts = [f"{title}: {', '.join(names)}" for title, names in lists.items() if names]
    ways: Any = {"width": 100, "break_on_hyphens": False, "subsequent_indent": "    "}
    return "\n\n".join([head(path), *(textwrap.fill(text, **ways) for text in texts)])


def table() -> str:
    """One line for each recipe: its name, and the first line of its head."""
    heads = {name: head(path_of(name)).partition("\n")[0] for name in names()}
    width = max(map(len, heads))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in heads.items())


def copy(name: str, path: Path) -> list[Path]:
    """Write a recipe to `path`, and beside it the _shared.py that it uses, if any.

    Returns:
        The files that were written.

    Raises:
        LikenessError: there is no such recipe, `path` is no new .py file, or its folder has another
            _shared.py. Nothing is written then.
    """
    source = path_of(name)
    remove_abandoned(path)  # what a copy that was killed has left
    if path.suffix != ".py" or path.exists() or path.name == SHARED:
        problem = "exists" if path.exists() else "is no name for a recipe"
        raise LikenessError(f"{path} {problem}; name a new file that ends in .py")
    texts = {path: source.read_bytes()}
    shared = source.with_name(SHARED)
    if b"from _shared import" in texts[path]:
        beside, text = path.with_name(SHARED), shared.read_bytes()
        if beside.exists() and beside.read_bytes() != text:
            raise LikenessError(f"{beside} is another one than {name} needs; take another folder")
        texts[beside] = text
    for target, text in reversed(texts.items()):
        with atomic_path(target) as partial:
            partial.write_bytes(text)
    return list(texts)
