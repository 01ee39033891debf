"""`likeness recipes` lists, shows and copies what comes with likeness; a name stands for its file,
and a file that exists for itself.
"""

import json
import re
from pathlib import Path

import pytest

from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe
from likeness.toolkit.training.search import check_ranges
from likeness.training import recipe_files
from tests.scripts import ROOT, printed, refused, touch


def test_every_recipe_is_listed_with_a_sentence():
    lines = [line.split(maxsplit=1) for line in printed("recipes").splitlines()]
    files = {path for path in (ROOT / "recipes").rglob("*.py") if path.name[0] != "_"}
    assert len(files) >= 17
    assert {ROOT / "recipes" / f"{name}.py" for name, _ in lines} == files
    assert all(text.endswith(".") for _, text in lines)
    assert all(len(" ".join(line)) <= 100 for line in lines)


@pytest.mark.parametrize("name", recipe_files.names())
def test_it_lists_variants_and_ranges_that_fit_them(name):
    defined = recipe.read(str(recipe_files.path_of(name)))
    variants, ranges = defined["RECIPES"], defined.get("RANGES", {})
    words = re.split(r"[\s,:]+", recipe_files.description(name).partition("\n\nVariants, of")[2])
    assert {*variants, *ranges} <= {*words}
    for variant, searched in ranges.items():
        check_ranges(variants[variant], searched)
    assert {*ranges} == {*variants} or not name.endswith("/folders")


def test_a_file_that_exists_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speaker" / "folders").mkdir(parents=True)
    assert Path(recipe_files.locate("speaker/folders")).is_absolute()  # a folder is no recipe
    (tmp_path / "speaker" / "folders").rmdir()
    for name in ("speaker/folders", "speaker/mine.py"):
        (tmp_path / name).touch()
        assert recipe_files.locate(f"{name}:ecapa") == f"{name}:ecapa"
    absent = "absent.py:ecapa"  # train says that it is absent
    assert recipe_files.locate(absent) == absent


def test_an_unknown_name_is_refused(tmp_path):
    for command in ("train", "compare"):
        assert "'speaker/an4'" in refused(command, "speaker/an5", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", recipe_files.names())
def test_a_copy_trains_the_same(name, tmp_path):
    written = recipe_files.copy(name, tmp_path / "mine.py")
    assert sorted(tmp_path.iterdir()) == sorted(written)
    files = ROOT / "recipes" / f"{name}.py", tmp_path / "mine.py"
    made = [recipe.read(str(file))["RECIPES"].items() for file in files]
    ours, theirs = ({key: json.dumps(describe(of)) for key, of in items} for items in made)
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *(("speaker/an4", path) for path in ("there.py", "mine.txt", "_shared.py")),
        *(("speaker/none", "mine.py"), ("image/vmf", "other/mine.py")),
    ],
)
def test_what_cannot_be_copied_is_left_alone(name, path, tmp_path):
    touch(tmp_path, "other/_shared.py")
    (tmp_path / "there.py").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert refused("recipes", "--copy", name, tmp_path / path).count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.py").read_text() == "mine"
