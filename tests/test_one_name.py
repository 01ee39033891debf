"""One name, one function: a public name is the object of one module, and no other has its name."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import likeness

ROOT = Path(__file__).parents[1]
HOMES = {
    "bench": "benchmark",
    "calibrate": "eval.scoring.score",
    "check": "checking.check",
    "cluster": "eval.metrics.clustering",
    "Clusters": "eval.metrics.clustering",
    "Embeddings": "eval.formats.embeddings",
    "evaluate": "eval.protocols.verification",
    "Evaluation": "eval.protocols.verification",
    "Fusion": "eval.metrics.calibration",
    "IdentificationSettings": "eval.protocols.identification",
    "identify": "eval.protocols.identification",
    "Item": "eval.items.items",
    "items": "checking.lists",
    "join": "models.join",
    "LikenessError": "eval.errors",
    "load": "models.model",
    "load_fusion": "eval.metrics.calibration",
    "load_plda": "eval.scoring.plda",
    "Model": "models.model",
    "Network": "models.network",
    "open_gallery": "toolkit.gallery.gallery",
    "read_durations": "eval.formats.subjects",
    "read_embeddings": "eval.formats.embeddings",
    "read_mapping": "eval.formats.subjects",
    "read_trials": "eval.formats.trials",
    "RetrievalSettings": "eval.protocols.retrieval",
    "retrieve": "eval.protocols.retrieval",
    "score": "eval.scoring.score",
    "Scored": "eval.scoring.score",
    "Scores": "eval.types",
    "Scoring": "eval.scoring.settings",
    "train": "training.train",
    "Trials": "eval.types",
    "Verification": "models.verdicts",
    "VerificationSettings": "eval.metrics.system",
}
PUBLIC = [name for name in likeness.__all__ if callable(getattr(likeness, name))]


def test_every_public_function_and_class_has_a_home() -> None:
    assert sorted(PUBLIC) == sorted(HOMES)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_object_of_its_module(name: str) -> None:
    module = sys.modules[f"likeness.{HOMES[name]}"]
    assert getattr(likeness, name) is vars(module)[name]
    defined = {
        node.name
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert name in defined, "it is defined there, and not imported from elsewhere"


def test_no_other_function_or_class_has_a_public_name() -> None:
    """The commands apart, which are called like the functions that they call."""
    defined = Counter(
        node.name
        for top in ("eval", "likeness")
        for path in (ROOT / top).rglob("*.py")
        if path.parent != ROOT / "likeness" / "commands"
        and not any(parent.is_symlink() for parent in path.parents)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )
    assert [name for name in HOMES if defined[name] > 1] == []


def test_eval_is_imported_alone_and_without_torch() -> None:
    """Every module of it, in a process of its own."""
    modules = [
        ".".join(("likeness", *path.relative_to(ROOT).with_suffix("").parts))
        for path in (ROOT / "eval").rglob("*.py")
        if path.name != "__init__.py"
    ]
    code = f"import importlib, sys; [*map(importlib.import_module, {modules})]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert imported >= {*modules}
    others = {name for name in imported if name.startswith("likeness.")}
    assert {name for name in others if not f"{name}.".startswith("likeness.eval.")} == set()
    assert "torch" not in imported
