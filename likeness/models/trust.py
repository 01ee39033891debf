"""Which packages and files of others a model may import: those that the user names, and no others.

A checkpoint or an exported model may name parts of any package or file. Importing them runs their
code, so they are imported only where `--trust` or `trust=[...]` names them: an installed package, a
Python file, or a folder of Python files.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from toolkit.models import user_files
from toolkit.models.parts import parts_in, version_of

OURS = frozenset({"eval", "likeness", "modalities", "recipes", "toolkit"})


def check_trusted(descriptions: Any, trust: Sequence[str], where: str) -> frozenset[str]:
    """Check that the user trusts every package that a model's parts are of. Nothing is imported.

    Args:
        descriptions: What a file says of its parts, as JSON values.
        trust: Names of packages, and paths of Python files and folders, which become importable.
        where: What an error begins with: the model.

    Returns:
        The names of the packages that may be imported, which are all that `trust` names.

    Raises:
        LikenessError: A package is not trusted, or is not installed; or `trust` names what is no
            package, file or folder.
    """
    trusted = frozenset(name for entry in trust for name in _names(entry))
    stated = {str(part["package"]): str(part.get("version")) for part in parts_in(descriptions)}
    if others := sorted(stated.keys() - trusted):
        named = ", ".join(f"{name[:80]} {stated[name][:40]}" for name in others[:3])
        entries = [
            f"{name[:80]}.py" if re.fullmatch("[0-9a-f]{12}", stated[name]) else name[:80]
            for name in others[:3]
        ]
        options = " ".join(f"--trust {entry}" for entry in entries)
        listed = ", ".join(f'"{entry}"' for entry in [*trust, *entries])
        raise LikenessError(
            f"{where}: it has parts of others ({named}), which are imported only if you trust "
            f"them; if you do, add {options}, in Python trust=[{listed}]; of your own files, give "
            "the path, or that of the folder in which they lie"
        )
    for package, version in stated.items():
        now = version_of(package)
        if user_files.find(package) is None:
            raise LikenessError(
                f"{where}: its parts are of {package} {version}, which is not installed; install "
                "it, or give the path of its file or folder by --trust"
            )
        if now != version:
            warnings.warn(
                f"{where} was made with {package} {version}, and {package} {now or 'unknown'} is "
                "here; its weights are compared, but embeddings may differ: take the version that "
                "it was made with if they must not",
                stacklevel=2,
            )
    return trusted


def packages_of(*descriptions: Any) -> list[str]:
    """Return the packages that described parts are of, for a model that was trained just now.

    Example:
        >>> part = {"call": "nets.Net", "args": {}, "package": "nets", "version": "1.0"}
        >>> packages_of({"network": part}, part)
        ['nets']
    """
    return sorted({str(part["package"]) for part in parts_in(descriptions)})


def entries_of(trust: str | Path | Sequence[str | Path]) -> list[str]:
    """Return what a user trusts as a list of texts: one package or file, or several of them.

    Example:
        >>> entries_of("nets"), entries_of([Path("nets.py"), "other"])
        (['nets'], ['nets.py', 'other'])
    """
    return [str(entry) for entry in ([trust] if isinstance(trust, str | Path) else trust)]


def _names(entry: str) -> list[str]:
    """Return the modules that an entry of `trust` means; make a file or a folder importable."""
    path = Path(os.path.abspath(entry)) if "\0" not in entry else Path("\0")
    is_others = entry not in OURS and entry not in sys.stdlib_module_names
    if entry.isidentifier() and is_others and not entry.startswith("__"):
        # A folder of the user is found as a module, too, but as one without a file.
        spec = user_files.find(entry)
        if not os.path.isdir(path) or (spec is not None and spec.origin is not None):
            return [entry]
    if is_others and entry and os.path.isdir(path):
        if (path / "__init__.py").is_file():
            user_files.enter(path.parent)
            inside = [path]
        else:
            user_files.enter(path)
            inside = [file for file in sorted(path.iterdir()) if file.suffix in (".py", "")]
        names = [file.stem for file in inside if user_files.is_importable(file)]
    elif entry.endswith(".py") and os.path.isfile(path):
        user_files.enter(path.parent)
        names = [path.stem] if user_files.is_importable(path) else []
    else:
        raise LikenessError(
            f"trust {entry[:100]!r} is neither a package of others nor a Python file nor a folder; "
            "give the name that is imported, such as mypackage, or a path that exists"
        )
    if not names:
        raise LikenessError(
            f"trust {entry[:100]!r}: no file there can be imported by its name; {user_files.RENAME}"
        )
    return names
