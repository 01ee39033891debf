"""The import table of the architecture holds for every file."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
SYNTHETIC = [
    f"modalities.{path.stem}" for path in sorted((ROOT / "modalities").glob("synthetic*.py"))
]
METRICS = {"numpy", "scipy", "sklearn"}
EXTERNAL = {
    "eval": METRICS | {"pyarrow"},
    "eval.items": METRICS | {"pyarrow", "fsspec"},
    # What reads foreign formats is imported inside functions only: see test_eval_is_light.
    "eval.formats": METRICS | {"kaldiio", "soundfile", "pyarrow"},
    "eval.reports": METRICS | {"jinja2", "markupsafe", "bokeh", "PIL", "soundfile"},
    "toolkit.losses": {"torch"},
    "toolkit.vmf": {"torch", "numpy"},
    "toolkit.backbones": {"torch", "speechbrain", "safetensors", "transformers"},
}
INTERNAL = {
    "eval": {"eval"},
    "eval.items": {"eval"},
    "eval.formats": {"eval"},
    "eval.reports": {"eval"},
    "toolkit.losses": {
        "toolkit.losses",
        "toolkit.vmf",
        "eval.metrics.von_mises_fisher",
        "eval.errors",
    },
    "toolkit.vmf": {"toolkit.vmf", "eval.metrics.von_mises_fisher", "eval.errors"},
    "toolkit.backbones": {"toolkit.backbones", "eval.errors"},
    "toolkit": {"toolkit", "eval"},
    **{
        f"modalities.{name}": {
            f"modalities.{name}",
            "modalities.folders",
            *SYNTHETIC,
            "toolkit",
            "eval",
        }
        for name in ("speaker", "face", "image", "embedding")
    },
    **{name: {"toolkit", "eval"} for name in SYNTHETIC},
    "modalities.folders": {"modalities", "toolkit", "eval"},
    "likeness": {"likeness", "modalities", "toolkit", "eval"},
    # Recipes are written with what is public, as those of users are.
    "recipes": {
        *(f"likeness.{name}" for name in ("backbones", "data", "frontends", "losses", "metrics")),
        *("likeness.recipe", "likeness.training.demo"),
        *(f"likeness.{name}" for name in ("Embeddings", "LikenessError", "Scores")),
    },
}
SYSTEMS = ("linux", "darwin", "win32")
OURS = ("eval", "toolkit", "modalities", "likeness", "recipes", "tests")
FLOORS = OURS[:3]
# likeness/eval and its like are links to the folders at the top.
FILES = [
    path
    for top in OURS[:5]
    for path in sorted((ROOT / top).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
]


def short(name: str) -> str:
    """The name of a module without the package, for a module of one of the floors."""
    rest = name.removeprefix("likeness.")
    return rest if rest.partition(".")[0] in FLOORS else name


def imports(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Every module that a file imports: with the file itself, and within functions."""
    at_once, later = set[str](), set[str]()
    for node in ast.walk(tree):
        names = later if node not in tree.body else at_once
        if isinstance(node, ast.Import):
            names |= {short(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {short(f"{node.module}.{alias.name}") for alias in node.names}
    return at_once, later


def layer(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return max(
        (value for value in INTERNAL if f"{name}.".startswith(f"{value}.")), key=len, default=name
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_table(path: Path) -> None:
    mine, tree = layer(path), ast.parse(path.read_text(encoding="utf-8"))
    at_once, later = imports(tree)
    if path.name == "__init__.py" and path.parent.name != "likeness":
        assert len(tree.body) == 1, "an __init__.py holds a docstring only"
        return
    allowed = INTERNAL[mine]
    for name in at_once | later:
        top = name.split(".")[0]
        if top in OURS:
            is_allowed = any(f"{name}.".startswith(f"{value}.") for value in allowed)
            assert is_allowed or name == "likeness", f"{mine} must not import {name}"
        elif mine in EXTERNAL:
            known = top in EXTERNAL[mine] or top in sys.stdlib_module_names
            assert known, f"{mine} must not import {name}"


@cache
def names_on(system: str, module: str) -> set[str]:
    """The names of a module of the standard library on a system, as typeshed states them; none
    where the system lacks the module.
    """
    stubs = Path(pytest.importorskip("mypy").__file__).parent / "typeshed" / "stdlib"
    path = stubs / module.replace(".", "/")
    path = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    if not path.is_file():
        return set()
    values = {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)}
    names = set[str]()
    left = list(ast.parse(path.read_text(encoding="utf-8")).body)
    for node in left:  # which grows
        if isinstance(node, ast.If):
            holds = eval(ast.unparse(node.test), {**values, "TYPE_CHECKING": False})
            left += node.body if holds else node.orelse
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names - {"__all__"}


def of_one_system(tree: ast.Module) -> list[str]:
    """What a file imports or uses that only some systems have, and no branch for the others.

    Such a branch is an `if` that asks for the name (hasattr) or the system, or the `except` of an
    import.
    """

    def is_of_some(module: str, name: str = "") -> bool:
        on = [names_on(system, module) for system in SYSTEMS]
        return len({name in names if name else bool(names) for names in on}) == 2

    def asks(node: ast.AST) -> bool:
        text = ast.unparse(node)
        return any(word in text for word in ("hasattr(", "os.name", "sys.platform", *answers))

    answers = [
        ast.unparse(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign) and "hasattr(" in ast.unparse(node.value)
    ]
    modules = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If | ast.IfExp) and asks(node.test):
            return
        if isinstance(node, ast.Try) and any(
            handler.type is None or "ImportError" in ast.unparse(handler.type)
            for handler in node.handlers
        ):
            for other in (*node.handlers, *node.orelse, *node.finalbody):
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names if is_of_some(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [alias.name for alias in node.names if is_of_some(node.module, alias.name)]
            found.extend(f"{node.module}.{name}" for name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            # What is used of a module that only some systems have was imported beside a branch.
            if module and not is_of_some(module) and is_of_some(module, node.attr):
                found.append(f"{module}.{node.attr}")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_one_system_lacks_has_a_branch_for_it(path: Path) -> None:
    """Windows has no fcntl, no SIGKILL and no fork; macOS has no sched_getaffinity."""
    assert of_one_system(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import fcntl", ["fcntl"]),
        ("from resource import getrusage", ["resource.getrusage"]),
        ("import os, signal\nos.kill(1, signal.SIGKILL)", ["signal.SIGKILL"]),
        ("import os as system\nsystem.posix_fadvise(0, 0, 0, 0)", ["os.posix_fadvise"]),
        ("from os import fork, getpid", ["os.fork"]),
        (
            "from multiprocessing.context import ForkProcess",
            ["multiprocessing.context.ForkProcess"],
        ),
        ("import os\ntry:\n    os.getuid()\nexcept OSError:\n    pass", ["os.getuid"]),
        ("try:\n    import pwd\nexcept ImportError:\n    pwd = None", []),
        ("import os\nif hasattr(os, 'sync'):\n    os.sync()", []),
        ("import os\nHAS = hasattr(os, 'nice')\nn = os.nice(0) if HAS else 0", []),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", []),
    ],
)
def test_the_check_of_systems_finds_uses_without_a_branch(text: str, expected: list[str]) -> None:
    assert of_one_system(ast.parse(text)) == expected


def test_only_checkpoints_import_by_name() -> None:
    """A module is imported by a name that is data where a checkpoint's parts are restored.

    Beside it, classes of an allowed list and optional packages are imported by names that stand in
    the code.
    """
    by_name = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if "importlib.import_module(" in path.read_text(encoding="utf-8")
    }
    optional = {
        "likeness/cli.py",  # a command, when it is typed
        "likeness/models/_speechbrain.py",
        "toolkit/backbones/ecapa.py",
    }
    assert by_name == {"toolkit/models/parts.py", *optional}
