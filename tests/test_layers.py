"""The import table of the architecture holds for every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VMF = [f"toolkit.{path.stem}" for path in sorted((ROOT / "toolkit").glob("vmf*.py"))]
SYNTHETIC = [f"modalities.{path.stem}" for path in sorted((ROOT / "modalities").glob("synthetic*.py"))]
EXTERNAL = {
    "eval": {
        "numpy",
        "scipy",
        "sklearn",
        "matplotlib",
        "kaldiio",
        "PIL",
        "soundfile",
        "pyarrow",
        "h5py",
        "lancedb",
    },  # from matplotlib on inside functions only: see test_eval_is_light
    "toolkit.losses": {"torch"},
    **{name: {"torch", "numpy"} for name in VMF},
    "toolkit.backbones": {"torch", "speechbrain", "safetensors"},
}
INTERNAL = {
    "eval": {"eval"},
    "toolkit.losses": {"toolkit.losses", *VMF, "eval.directional"},
    **{name: {*VMF, "eval.directional"} for name in VMF},
    "toolkit.backbones": {"toolkit.backbones", "toolkit.backbones.torchaudio_cpu"},
    "toolkit": {"toolkit", "eval"},
    **{f"modalities.{one}": {f"modalities.{one}", *SYNTHETIC, "toolkit", "eval"} for one in ("speaker", "face", "image")},
    **{one: {"toolkit", "eval"} for one in SYNTHETIC},
    "recipes": {"modalities", "toolkit", "eval"},
}
OURS = ("eval", "toolkit", "modalities", "recipes", "tests")
FILES = [path for top in OURS[:4] for path in sorted((ROOT / top).rglob("*.py"))]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return max((one for one in INTERNAL if f"{name}.".startswith(f"{one}.")), key=len, default=name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_table(path: Path) -> None:
    mine = layer(path)
    if path.name == "__init__.py":
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert len(tree.body) == 1, "an __init__.py holds a docstring only"
        return
    allowed = INTERNAL[mine]
    for name in imports(path):
        top = name.split(".")[0]
        if top in OURS:
            assert any(f"{name}.".startswith(f"{one}.") for one in allowed), f"{mine} must not import {name}"
        elif mine in EXTERNAL:
            import sys

            assert top in EXTERNAL[mine] or top in sys.stdlib_module_names, f"{mine} must not import {name}"


def test_nobody_imports_recipes_or_tests() -> None:
    for path in FILES:
        assert not any(name.split(".")[0] in ("recipes", "tests") for name in imports(path)), path


def test_the_table_is_not_vacuous() -> None:
    assert {layer(path) for path in FILES if path.name != "__init__.py"} >= {
        "eval",
        "toolkit",
        "toolkit.losses",
        "toolkit.backbones",
        "modalities.speaker",
        "modalities.image",
        "recipes",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_of_one_system_is_imported_with_a_module(path: Path) -> None:
    """Windows has no fcntl, no resource and no fork: a file that needs them imports them where it does."""
    of_one_system = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "winreg", "multiprocessing.context.ForkProcess"}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    found |= {f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not {name for name in found if name in of_one_system or name.partition(".")[0] in of_one_system}
