"""Python files of the user: recipes, model files, and the modules that lie beside them.

The folder of such a file goes to the end of sys.path. So the file can import what lies beside it,
and no file there hides an installed module. The file itself becomes the module of its own name, so
that processes that read data find its functions by their names, spawned processes too.
"""

import hashlib
import importlib.util
import keyword
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from likeness.eval.formats.files import file_digest

RENAME = (
    "rename the file to letters, digits and underscores that are the name of no installed module"
)
_folders: list[str] = []  # the folders that `enter` put on sys.path, the newest first
# The SHA-256 of a top-level module's files as they were when the module was imported. They may be
# edited while the process goes on with what it imported.
_sums: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def run(path: Path) -> ModuleType:
    """Run a Python file of the user, and return its module.

    It can be imported by its name afterwards, unless another module has this name. It is not run
    again if it was imported by its name already, and neither it nor what lies beside it has
    changed.

    Args:
        path: The file.

    Raises:
        Exception: Whatever the file raises.
    """
    path = Path(os.path.abspath(path))
    enter(path.parent)
    importable = is_importable(path)
    name = path.stem if importable else f"recipe_{path.stem}"
    known = sys.modules.get(name) if importable else None
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
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        raise
    for beside in _modules_in(str(path.parent)):
        module_digest(beside)
    return module


def enter(folder: Path) -> None:
    """Put a folder at the end of sys.path, before the folders of earlier calls.

    If a module of the folder has changed since it was imported, all of its modules are forgotten,
    and so are modules of earlier folders whose names it has too.
    """
    place = os.path.abspath(folder)
    importlib.invalidate_caches()
    inside = _modules_in(place)
    changed = any(m in _sums and _sums[m] != _sum(m.__spec__) for m in inside.values())
    forgotten = set(inside) if changed else set()
    for other in _folders:
        if other != place:
            forgotten |= {
                name
                for name in _modules_in(other)
                if Path(place, f"{name}.py").is_file() or Path(place, name).is_dir()
            }
    for name in list(sys.modules):
        if name.partition(".")[0] in forgotten:
            del sys.modules[name]
    if place in _folders:
        _folders.remove(place)
        if place in sys.path:
            sys.path.remove(place)
    if place not in sys.path:
        earlier = [sys.path.index(other) for other in _folders if other in sys.path]
        sys.path.insert(min(earlier, default=len(sys.path)), place)
        _folders.insert(0, place)


def is_importable(path: Path) -> bool:
    """Say whether `import NAME` finds this very file, or the package in this very folder."""
    name = path.stem
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        return False
    spec = find(name)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
    return any(place and os.path.exists(place) and path.samefile(place) for place in places)


def find(package: str) -> ModuleSpec | None:
    """Return the spec of a top-level module that is imported, or can be. Nothing is imported."""
    try:
        return importlib.util.find_spec(package)
    except ValueError:  # of a module in sys.modules that states no spec
        return None


def folder_of(package: str) -> str:
    """Return the folder in which a top-level module of the user lies; "" for all others."""
    folder = _folder_of(find(package))
    return folder if folder in _folders else ""


def module_digest(package: str) -> str:
    """Return the SHA-256 of a top-level module's file, or of all .py files of a package.

    Of what is imported it is the sum as it was when first asked. "" stands for a module that does
    not exist, or has no file.
    """
    module = sys.modules.get(package)
    if module is None:
        return _sum(find(package))
    if module not in _sums:
        _sums[module] = _sum(find(package))
    return _sums[module]


def _sum(spec: ModuleSpec | None) -> str:
    """Return the SHA-256 of the files that a spec stands for, as they are now.

    Of a package they are the names and contents of all its .py files.
    """
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        origin = Path(spec.origin or "")
        return file_digest(origin) if origin.is_file() else ""
    whole = hashlib.sha256()
    for file in sorted(folders[0].rglob("*.py")):
        if file.is_file() and "__pycache__" not in file.parts:
            name = file.relative_to(folders[0]).as_posix()
            whole.update(f"{name}\0{file_digest(file)}\n".encode())
    return whole.hexdigest()


def _modules_in(folder: str) -> dict[str, ModuleType]:
    """Return the top-level modules that were imported from a folder, by their names."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if "." not in name
        and name != "__main__"
        # Not getattr: modules that are imported when they are first used would be imported here.
        and _folder_of(getattr(module, "__dict__", {}).get("__spec__")) == folder
    }


def _folder_of(spec: ModuleSpec | None) -> str:
    """Return the folder that a top-level module was found in; "" where it has none."""
    if spec is None:
        return ""
    if spec.submodule_search_locations:
        return os.path.dirname(next(iter(spec.submodule_search_locations), ""))
    return os.path.dirname(spec.origin or "")
