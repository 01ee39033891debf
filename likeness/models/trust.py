"""Which packages and files of others a model may import: those that the user names, and no others.

A checkpoint or an exported model may name parts of any package or file. Importing them runs their
code, so they are imported only where `--trust` or `trust=[...]` names them: an installed package, a
Python file, or a folder of Python files.
"""

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError
from likeness.toolkit.models import user_files
from likeness.toolkit.models.parts import parts_in, version_of


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
        raise LikenessError(
            f"{where}: it has parts of others ({named}), which are imported only if you trust "
            f"them: add {options} (in Python, trust={[*trust, *entries]}), your own files by path"
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
                "here: embeddings may differ; take the version that it was made with",
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


def options_of(*descriptions: Any) -> list[str]:
    """Return the --trust options that a model needs whose parts can be imported in this process.

    A package has its name. Of the user's own files it is the path of the file, or that of the
    folder where parts are of several files in it.
    """
    entries: dict[str, str] = {}
    for package in packages_of(*descriptions):
        folder = user_files.folder_of(package)
        file = Path(folder, f"{package}.py")
        alone = bool(folder) and folder not in entries and file.is_file()
        entries[folder or package] = (
            os.path.relpath(file if alone else folder) if folder else package
        )
    return [word for entry in entries.values() for word in ("--trust", entry)]


def entries_of(trust: str | Path | Sequence[str | Path]) -> list[str]:
    """Return what a user trusts as a list of texts: one package or file, or several of them.

    Example:
        >>> entries_of("nets"), entries_of([Path("nets.py"), "other"])
        (['nets'], ['nets.py', 'other'])
    """
    return [str(entry) for entry in ([trust] if isinstance(trust, str | Path) else trust)]


def _names(entry: str) -> list[str]:
    """Return the modules that an entry of `trust` means; make a file or a folder importable."""
    path = Path(os.path.abspath(entry))
    spec = user_files.find(entry) if entry.isidentifier() else None
    # A folder of the user is found as a module, too, but as one without a file.
    if entry.isidentifier() and not (path.is_dir() and (spec is None or spec.origin is None)):
        return [entry]
    inside = []
    if (path.suffix == ".py" and path.is_file()) or (path / "__init__.py").is_file():
        user_files.enter(path.parent)
        inside = [path]
    elif entry and path.is_dir():
        user_files.enter(path)
        inside = [file for file in sorted(path.iterdir()) if file.suffix in (".py", "")]
    names = [file.stem for file in inside if user_files.is_importable(file)]
    if not names:
        raise LikenessError(
            f"trust {entry[:100]!r} is no package and no path with files that can be imported by "
            f"name; give the name that is imported, or a path; {user_files.RENAME}"
        )
    return names
