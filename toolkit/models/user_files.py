"""Python files of the user: recipes, model files, and the modules that lie beside them.

The folder of such a file goes to the end of sys.path. So the file can import what lies beside it,
and no file there hides an installed module. The file itself becomes the module of its own name, so
that processes that read data find its functions by their names, spawned processes too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import keyword
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from eval.errors import LikenessError
from eval.temporary import folder_of_process

RENAME = (
    "rename the file to letters, digits and underscores that are the name of no installed module"
)
_offered: dict[str, Path] = {}  # the files that `offer` was given, by the names of their modules
_folders: list[str] = []  # the folders that `enter` put on sys.path, the newest first
# The SHA-256 of a top-level module's files as they were when the module was imported. They may be
# edited while the process goes on with what it imported.
_sums: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
# Of the folder of a package that are looked at: folders and files, .py files, and their bytes.
_MOST_ENTRIES, _MOST_FILES, _MOST_BYTES = 200_000, 10_000, 2**28


def run(path: Path, *, anew: bool = True) -> ModuleType:
    """Run a Python file of the user, and return its module.

    It can be imported by its name afterwards, unless another module has this name.

    Args:
        path: The file.
        anew: Whether it is run again if it was imported already and has not changed.

    Raises:
        Exception: Whatever the file raises.
    """
    path = Path(os.path.abspath(path))
    importable = enter(path)
    name = path.stem if importable else f"recipe_{path.stem}"
    known = sys.modules.get(name) if importable and not anew else None
    # Of a module that somebody else imported, nobody knows whether its file has changed since.
    if known is not None and known in _sums:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if importable:
        sys.modules[name] = module
    try:
        with _shared_by(path):
            spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        raise
    for beside in _modules_in(str(path.parent)):
        summed(beside)
    return module


def enter(path: Path) -> bool:
    """Put the folder of a file at the end of sys.path, before the folders of earlier calls.

    Modules of the folder that have changed since they were imported are forgotten, and so are
    modules of earlier folders whose names it has too.

    Args:
        path: A Python file.

    Returns:
        Whether `import NAME` now finds this very file.
    """
    path = Path(os.path.abspath(path))
    folder = str(path.parent)
    importlib.invalidate_caches()
    _forget(folder)
    if folder in _folders:
        _folders.remove(folder)
        if folder in sys.path:
            sys.path.remove(folder)
    if folder not in sys.path:
        earlier = [sys.path.index(other) for other in _folders if other in sys.path]
        sys.path.insert(min(earlier, default=len(sys.path)), folder)
        _folders.insert(0, folder)
    return _is_found(path)


def offer(path: Path) -> bool:
    """Let `import NAME` find one Python file by its name, and nothing else of its folder.

    Args:
        path: The file.

    Returns:
        Whether `import NAME` now finds this very file. It does not where the name is no name of a
        module, or is that of another one.
    """
    path = Path(os.path.abspath(path))
    name = path.stem
    if not _is_name(name):
        return False
    importlib.invalidate_caches()
    known = sys.modules.get(name)
    if known is not None:
        file = _file_of(known)
        is_same = _is_same(file, path)
        if not is_same and name not in _offered and _folder_of(file) not in _folders:
            return False
        if not is_same or _sums.get(known) not in (None, _sum_now(known)):
            del sys.modules[name]
    elif name not in _offered:
        file = _find(name)
        if file and not _is_same(file, path) and _folder_of(file) not in _folders:
            return False
    _offered[name] = path
    _link(name, path)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return True


def _link(name: str, path: Path | None) -> None:
    """Put a link to an offered file where spawned processes find it; None takes the link away.

    They get sys.path, and not the finder. The folder holds nothing but such links.
    """
    folder = str(folder_of_process("links"))
    if folder not in sys.path:
        sys.path.append(folder)
    link = Path(folder, f"{name}.py")
    link.unlink(missing_ok=True)
    if path is not None:
        try:
            link.symlink_to(path)
        except OSError:  # systems on which not everybody may make links
            shutil.copyfile(path, link)


class _Finder(MetaPathFinder):
    """Finds the files that were offered, by their names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an offered file; None for every other name."""
        file = _offered.get(name)
        if file is None or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, file)


def summed(name: str) -> str:
    """Return the SHA-256 of a module's file, or of all .py files of the package that it is in.

    Of what is imported it is the sum as it was when first asked.

    Args:
        name: The name of the module, which need not be imported.

    Returns:
        64 hex digits, or "" for a module without a file.

    Raises:
        LikenessError: The folder of the package holds too much to be read.
    """
    if name not in sys.modules and not _find(name):
        return ""
    package = name.partition(".")[0]
    module = sys.modules.get(package)
    if module is None:
        spec = _spec(package)
        folders = spec.submodule_search_locations if spec is not None else None
        return _sum_of_folders(list(folders)) if folders else _sha256(_find(package))
    if module not in _sums:
        _sums[module] = _sum_now(module)
    return _sums[module]


def exists(package: str) -> bool:
    """Say whether a top-level module is imported already, or can be. Nothing is imported."""
    return package in sys.modules or _spec(package) is not None


def is_beside(package: str) -> bool:
    """Say whether a top-level module is a file of the user: one of `enter`'s or of `offer`'s."""
    if package in _offered:
        return True
    module = sys.modules.get(package)
    file = _find(package) if module is None else _file_of(module)
    return _folder_of(file) in _folders


def _spec(package: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except ValueError:  # of a module in sys.modules that states no spec
        return None


def _find(name: str) -> str:
    """Return the file of a module that is not imported, without importing it; "" without one."""
    package, *inner = name.split(".")
    spec = _spec(package)
    if spec is None:
        return ""
    if not inner:
        return spec.origin or ""
    places = [
        Path(place, *inner[:-1], ending)
        for place in spec.submodule_search_locations or ()
        for ending in (f"{inner[-1]}.py", f"{inner[-1]}/__init__.py")
    ]
    return next((str(place) for place in places if place.is_file()), "")


def _is_found(path: Path) -> bool:
    """Say whether the import system finds this file, and no other, by its name."""
    name = path.stem
    if not _is_name(name):
        return False
    known = sys.modules.get(name)
    if known is not None:
        return _is_same(_file_of(known), path)
    return _is_same(_find(name), path)


def _is_name(name: str) -> bool:
    """Say whether a module of the user may have this name."""
    return (
        name.isidentifier() and not keyword.iskeyword(name) and name not in sys.stdlib_module_names
    )


def _has_module(folder: str, name: str) -> bool:
    """Say whether a folder has a file or a package for a module of this name."""
    return Path(folder, f"{name}.py").is_file() or Path(folder, name).is_dir()


def _is_same(file: str, path: Path) -> bool:
    return os.path.isfile(file) and path.is_file() and os.path.samefile(file, path)


def _forget(folder: str) -> None:
    """Remove modules from sys.modules that `enter` says are forgotten."""
    inside = _modules_in(folder)
    changed = any(
        module in _sums and _sums[module] != _sum_now(module) for module in inside.values()
    )
    names = set(inside) if changed else set()
    for other in _folders:
        if other != folder:
            names |= {name for name in _modules_in(other) if _has_module(folder, name)}
    for name in list(_offered):
        if _has_module(folder, name):
            names.add(name)
            del _offered[name]
            _link(name, None)
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]


def _modules_in(folder: str) -> dict[str, ModuleType]:
    """Return the top-level modules that were imported from a folder, by their names."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if "." not in name and name != "__main__" and _folder_of(_file_of(module)) == folder
    }


def _folder_of(file: str) -> str:
    """Return the folder that a top-level module was found in; "" where it has no file."""
    place, name = os.path.split(file)
    return os.path.dirname(place) if name == "__init__.py" else place


def _file_of(module: ModuleType) -> str:
    # Not getattr: modules that are imported when they are first used would be imported here.
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else ""


def _sha256(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if os.path.isfile(file) else ""


def _sum_now(module: ModuleType) -> str:
    """Return the SHA-256 of the files of an imported top-level module as they are now."""
    folders = module.__dict__.get("__path__")
    return _sum_of_folders(list(folders)) if folders else _sha256(_file_of(module))


def _sum_of_folders(folders: Sequence[str]) -> str:
    """Return the SHA-256 of the names and contents of all .py files of a package.

    Links to folders are not followed.

    Args:
        folders: Its folder; a package without __init__.py may have several.

    Raises:
        LikenessError: There are too many files, or they are too large.
    """
    files: dict[str, str] = {}
    num_entries = num_bytes = 0
    for folder in folders:
        for place, inner, names in os.walk(folder):
            # A folder whose name is no identifier cannot be imported from.
            inner[:] = [name for name in inner if name.isidentifier() and name != "__pycache__"]
            paths = [os.path.join(place, name) for name in names if name.endswith(".py")]
            found = [path for path in paths if os.path.isfile(path)]
            files |= {os.path.relpath(path, folder).replace(os.sep, "/"): path for path in found}
            num_entries += len(inner) + len(names)
            num_bytes += sum(map(os.path.getsize, found))
            if num_entries > _MOST_ENTRIES or len(files) > _MOST_FILES or num_bytes > _MOST_BYTES:
                raise LikenessError(
                    f"{folder} is a package that was not installed, so its version is the sum of "
                    f"its .py files; at most {_MOST_ENTRIES} files and folders are looked at, and "
                    f"{_MOST_FILES} .py files of {_MOST_BYTES} bytes are read: install it with "
                    "pip, which gives it a version, or move what is no code elsewhere"
                )
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        whole.update(os.fsencode(name) + b"\0" + _sha256(path).encode() + b"\n")
    return whole.hexdigest()


@contextmanager
def _shared_by(path: Path) -> Iterator[None]:
    """Within the block `from _shared import ...` means the _shared.py beside `path`.

    Each folder of recipes may have one, and a process may read recipes of several folders.
    """
    shared = path.with_name("_shared.py")
    if "from _shared import" not in path.read_text(encoding="utf-8") or not shared.is_file():
        yield
        return
    spec = importlib.util.spec_from_file_location("_shared", shared)
    assert spec is not None
    assert spec.loader is not None
    before = sys.modules.get("_shared")
    module = sys.modules["_shared"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield
    finally:
        del sys.modules["_shared"]
        if before is not None:
            sys.modules["_shared"] = before
