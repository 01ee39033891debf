"""The import table of the architecture holds for every file, and a public name is the object of one
module.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

import likeness

ROOT = Path(__file__).parents[1]
SYNTHETIC = [f"modalities.{path.stem}" for path in sorted(ROOT.glob("modalities/synthetic*.py"))]
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
FORMULAS = {"eval.metrics.von_mises_fisher", "eval.errors"}
BELOW = {"modalities.folders", *SYNTHETIC, "toolkit", "eval"}
INTERNAL = {
    **{name: {"eval"} for name in ("eval", "eval.items", "eval.formats", "eval.reports")},
    "toolkit.losses": {"toolkit.losses", "toolkit.vmf", *FORMULAS},
    "toolkit.vmf": {"toolkit.vmf", *FORMULAS},
    "toolkit.backbones": {"toolkit.backbones", "eval.errors"},
    "toolkit": {"toolkit", "eval"},
    **{
        f"modalities.{name}": {f"modalities.{name}", *BELOW}
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
OURS = ("eval", "toolkit", "modalities", "likeness", "recipes", "tests")
FLOORS = OURS[:3]
# likeness/eval and its like are links to the folders at the top.
PATHS = [path for top in OURS[:5] for path in sorted((ROOT / top).rglob("*.py"))]
FILES = [path for path in PATHS if not any(parent.is_symlink() for parent in path.parents)]


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
    above = [value for value in INTERNAL if f"{name}.".startswith(f"{value}.")]
    return max(above, key=len, default=name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_table(path):
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


def test_only_checkpoints_import_by_name():
    """A module is imported by a name that is data where a checkpoint's parts are restored.

    Beside it, classes of an allowed list and optional packages are imported by names that stand in
    the code.
    """
    calling = [path for path in FILES if b"importlib.import_module(" in path.read_bytes()]
    by_name = {path.relative_to(ROOT).as_posix() for path in calling}
    command = "likeness/cli.py"  # when it is typed
    optional = {"likeness/models/_speechbrain.py", "toolkit/backbones/ecapa.py"}
    assert by_name == {"toolkit/models/parts.py", command, *optional}


PUBLIC = [name for name in likeness.__all__ if callable(getattr(likeness, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_object_of_its_module(name):
    public = getattr(likeness, name)
    assert public is getattr(sys.modules[public.__module__], name)
    assert public.__module__.partition(".")[0] == "likeness"


def test_evaluation_is_not_wrapped_a_second_time():
    for name in ("score", "calibrate", "evaluate", "identify", "retrieve", "cluster", "Embeddings"):
        assert getattr(likeness, name).__module__.startswith("likeness.eval."), name


def test_no_other_function_or_class_has_a_public_name():
    """The commands apart, which are called like the functions that they call."""
    own = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("eval", "likeness")]
    paths = [path for path in own if path.parent != ROOT / "likeness" / "commands"]
    nodes = [node for path in paths for node in ast.parse(path.read_text(encoding="utf-8")).body]
    kinds = ast.FunctionDef | ast.ClassDef
    defined = Counter(node.name for node in nodes if isinstance(node, kinds))
    assert [name for name in PUBLIC if defined[name] > 1] == []
