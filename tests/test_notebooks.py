"""The notebooks of docs/ run from top to bottom, and their pictures are drawn."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    stated = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in stated["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow  # one of them trains
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: (shown.append(len(plt.get_fignums())), plt.close()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        for number, cell in enumerate(cells(path, "code")):
            exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
    assert shown
    assert all(shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_and_its_links_lead_somewhere(path: Path) -> None:
    stated = json.loads(path.read_text(encoding="utf-8"))
    counts = [cell["execution_count"] for cell in stated["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    for target in re.findall(r"\]\(([^)]+)\)", "\n".join(cells(path, "markdown"))):
        assert (path.parent / target).is_file(), target
    assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root|Users)/", path.read_text("utf-8"))
