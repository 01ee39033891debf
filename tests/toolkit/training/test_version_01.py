"""A search and a comparison that version 0.1 began go on.

tests/golden/likeness-0.1-compare is what version 0.1 left of

    likeness compare recipes/image/digits.py --variants open --seeds 1 --tune 1 schedule.steps=2
        sampling.batch_size=8 sampling.items_per_class=4

with RANGES = {"open": {"loss.margin": Range(0.1, 0.3)}} and without the runs' weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from toolkit.training.compare import Search, compare
from toolkit.training.recipe import Recipe, current, descriptions
from toolkit.training.tune import Range
from toolkit.training.variants import load_variants

ROOT = Path(__file__).parents[3]
LEFT = ROOT / "tests" / "golden" / "likeness-0.1-compare"
SEARCH = Search({"open": {"loss.margin": Range(0.1, 0.3)}}, num_trials=1)


def variants(*overrides: str) -> dict[str, Recipe]:
    overrides = ("sampling.batch_size=8", "sampling.items_per_class=4", *overrides)
    return load_variants(str(ROOT / "recipes/image/digits.py"), ["open"], overrides)[0]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LEFT, tmp_path / "comparison"))


def test_a_search_and_a_comparison_go_on(out: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    lines: list[str] = []
    result = compare(
        variants("schedule.steps=2"),
        num_seeds=1,
        data=tmp_path,
        out=out,
        search=SEARCH,
        say=lines.append,
    )
    kept = json.loads((LEFT / "open" / "seed-0" / "result.json").read_text())
    assert [line for line in lines if "finished before" in line] == lines
    assert len(lines) == 1  # the search has nothing left to try, and says nothing
    assert result.runs[0].values == kept["values"]
    assert result.tuned is not None
    assert result.tuned["open"].chosen == {"loss.margin": pytest.approx(0.209762700785)}
    assert not list(out.rglob("*.safetensors"))


def test_another_recipe_is_still_refused(out: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    changed = variants("schedule.steps=3")
    with pytest.raises(ValueError, match="another recipe"):
        compare(changed, num_seeds=1, data=tmp_path, out=out, search=SEARCH, say=print)
    with pytest.raises(ValueError, match="steps"):
        compare(changed, num_seeds=1, data=tmp_path, out=out, say=print)


@pytest.mark.parametrize("name", ["speaker/an4", "image/digits", "image/omniglot", "face/orl"])
def test_descriptions_of_version_0_1_come_back(name: str) -> None:
    for recipe in load_variants(str(ROOT / f"recipes/{name}.py"))[0].values():
        now, *_, before = descriptions(recipe)
        assert "compute" not in before
        assert current(before) == now
