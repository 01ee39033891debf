"""Which packages of others a model may import: those that the user names, and no others.

A checkpoint or an exported model may name parts of any package or file. Importing a package runs
its code, so it is imported only where `--trust PACKAGE_OR_FILE` or `trust=[...]` names it.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from toolkit.models import foreign, user_files

OURS = frozenset({"eval", "likeness", "modalities", "recipes", "toolkit"})
_FILE_VERSION = re.compile(rf"[0-9a-f]{{{foreign.SUM_DIGITS}}}")
_VERSION = re.compile(r"[\w.+!-]*", re.ASCII)
_MAX_TEXT = 100  # characters of a package's name and of a version
_MOST_NAMED = 3  # packages in one sentence


def check_trusted(descriptions: Any, trust: Sequence[str], where: str) -> frozenset[str]:
    """Check that the user trusts every package that a model's parts are of. Nothing is imported.

    Args:
        descriptions: What a file says of its parts, as JSON values.
        trust: Names of packages, and paths of Python files. Of the folder of such a file nothing
            else can be imported.
        where: What an error begins with: the model.

    Returns:
        The names of the packages that may be imported, which are all that `trust` names.

    Raises:
        LikenessError: A package is not trusted, or is not installed; or `trust` names what is
            neither a package nor a file.
    """
    trusted = frozenset(_name(entry) for entry in trust)
    parts = list(foreign.parts_in(descriptions))
    packages = {_package(part, where): str(part["version"]) for part in parts}
    # A module without a distribution is a file, unless its parts are in modules below it.
    files = {
        str(part["package"])
        for part in parts
        if _FILE_VERSION.fullmatch(str(part["version"])) and str(part["call"]).count(".") == 1
    }
    if others := sorted(packages.keys() - trusted):
        _refuse(others, packages, files, trust, where)
    for package, version in packages.items():
        if not user_files.exists(package):
            install = (
                f"give the path of its file, --trust FOLDER/{package}.py"
                if package in files
                else "put the folder that holds it on PYTHONPATH"
                if _FILE_VERSION.fullmatch(version)
                else f"install it in version {version}"
            )
            raise LikenessError(
                f"{where}: its parts are of the package {package}, which is not installed; "
                f"{install}"
            )
    modules = {str(part["call"]).rpartition(".")[0]: part for part in parts}
    for part in modules.values():
        _warn_of_version(part, where)
    return trusted


def packages_of(*descriptions: Any) -> list[str]:
    """Return the packages that described parts are of, for a model that was trained just now.

    Example:
        >>> part = {"call": "nets.Net", "args": {}, "package": "nets", "version": "1.0"}
        >>> packages_of({"network": part}, part)
        ['nets']
    """
    return sorted({str(part["package"]) for part in foreign.parts_in(descriptions)})


def entries_of(trust: str | Path | Sequence[str | Path]) -> list[str]:
    """Return what a user trusts as a list of texts: one package or file, or several of them.

    Example:
        >>> entries_of("nets"), entries_of([Path("nets.py"), "other"])
        (['nets'], ['nets.py', 'other'])
    """
    return [str(entry) for entry in ([trust] if isinstance(trust, str | Path) else trust)]


def _name(entry: str) -> str:
    """Return the name of the module that an entry of `trust` means; make a file importable."""
    if entry.endswith(".py"):
        path = Path(entry)
        if not os.path.isfile(path):  # also false of a name that is too long for any file
            raise LikenessError(f"trust {_short(entry)}: there is no such file; correct the path")
        if not user_files.offer(path):
            raise LikenessError(
                f"trust {entry!r}: the file cannot be imported by its name; {user_files.RENAME}"
            )
        return path.stem
    if (
        not entry.isidentifier()
        or keyword.iskeyword(entry)
        or entry.startswith("__")
        or len(entry) > _MAX_TEXT
        or entry in OURS
        or entry in sys.stdlib_module_names
    ):
        raise LikenessError(
            f"trust {_short(entry)} is neither the name of a package of others nor a Python file; "
            "give the name that is imported, such as mypackage, or a path that ends in .py"
        )
    return entry


def _short(entry: str) -> str:
    """Return an entry as an error quotes it."""
    return repr(entry if len(entry) <= _MAX_TEXT else f"{entry[:_MAX_TEXT]}...")


def _package(part: Mapping[str, Any], where: str) -> str:
    """Return the package of a description, after checking that it says what such parts say."""
    call, package, version = (part.get(key) for key in ("call", "package", "version"))
    words = call.split(".") if isinstance(call, str) else []
    if (
        set(part) != foreign.FIELDS
        or not isinstance(package, str)
        or not isinstance(version, str)
        or max(len(package), len(version)) > _MAX_TEXT
        or not _VERSION.fullmatch(version)
        or len(words) < 2
        or max(map(len, words)) > _MAX_TEXT
        or not all(word.isidentifier() and not word.startswith("__") for word in words)
        or words[0] != package
        or package in OURS
        or package in sys.stdlib_module_names
    ):
        raise LikenessError(
            f"{where}: a part of it is described as {str(call)[:80]!r} of the package "
            f"{str(package)[:80]!r}, which is no part of another package; it is damaged or "
            "hostile: copy it again"
        )
    return package


def _refuse(
    others: Sequence[str],
    packages: Mapping[str, str],
    files: Collection[str],
    trust: Sequence[str],
    where: str,
) -> None:
    """Raise the ValueError that names the packages which are not trusted."""
    named = ", ".join(f"{name} {packages[name]}".rstrip() for name in others[:_MOST_NAMED])
    named += ", ..." if len(others) > _MOST_NAMED else ""
    entries = [f"{name}.py" if name in files else name for name in others[:_MOST_NAMED]]
    options = " ".join(f"--trust {name}" for name in entries)
    listed = ", ".join(f'"{name}"' for name in [*trust, *entries])
    several = len(others) > 1
    raise LikenessError(
        f"{where}: it has parts of {len(others)} package{'s' if several else ''} of others "
        f"({named}), which {'are' if several else 'is'} imported only if you trust "
        f"{'them' if several else 'it'}; if you do, add {options}, in Python trust=[{listed}]"
        + (", with the path of the file" if any(name.endswith(".py") for name in entries) else "")
    )


def _warn_of_version(part: Mapping[str, Any], where: str) -> None:
    """Warn if a trusted package has another version than the model was made with."""
    module, package, before = part["call"].rpartition(".")[0], part["package"], part["version"]
    now = foreign.version_of(module)
    if now != before:
        warnings.warn(
            f"{where} was made with {package} {before}, and {package} {now or 'unknown'} is here; "
            "its weights are compared, but embeddings may differ: take the version that it was "
            "made with if they must not",
            stacklevel=3,
        )
