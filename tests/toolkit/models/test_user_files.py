"""The user's files are importable by their names, and hide nothing that is installed."""

import importlib
import sys
import sysconfig
from pathlib import Path

import pytest

from likeness.toolkit.models import user_files
from likeness.toolkit.models.parts import describe


@pytest.fixture(autouse=True)
def _restored():
    path, names = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - names:
        if name.startswith("uf_"):
            del sys.modules[name]


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_file_and_what_lies_beside_it_are_modules(tmp_path):
    main = "import uf_nets\nvalue = uf_nets.value"
    folder = write(tmp_path / "a", uf_main=main, uf_nets="value = 1")
    module = user_files.run(folder / "uf_main.py")
    assert module.value == 1
    assert sys.modules["uf_main"] is module
    assert sys.path.index(str(folder)) > sys.path.index(sysconfig.get_path("purelib"))
    assert user_files.folder_of("uf_nets") == str(folder)
    assert user_files.folder_of("json") == user_files.folder_of("uf_absent") == ""


def test_the_folder_of_a_file_hides_no_installed_module(tmp_path):
    folder = write(tmp_path / "a", uf_main="import json, safetensors", json="", safetensors="")
    sys.modules.pop("safetensors", None)
    user_files.run(folder / "uf_main.py")
    assert not str(sys.modules["safetensors"].__file__).startswith(str(folder))


@pytest.mark.parametrize("name", ["json", "numpy", "class", "my-recipe", "pytest", "statistics"])
def test_a_file_with_the_name_of_another_module_is_run_but_gives_no_parts(name, tmp_path):
    folder = write(tmp_path / "a", **{name: "def mine(data):\n    return []\n"})
    before = sys.modules.get(name)
    module = user_files.run(folder / f"{name}.py")
    assert sys.modules.get(name) is before
    with pytest.raises(ValueError, match="rename"):
        describe(module.mine, "items")


def test_files_of_the_same_name_in_two_folders(tmp_path):
    text = "import uf_nets\nvalue = uf_nets.value"
    folders = [write(tmp_path / str(i), uf_main=text, uf_nets=f"value = {i}") for i in range(2)]
    for i in (0, 1, 0):
        assert user_files.run(folders[i] / "uf_main.py").value == i
        assert Path(str(sys.modules["uf_nets"].__file__)).parent == folders[i]
    assert sum(path in map(str, folders) for path in sys.path) == 2


def test_a_file_that_changed_is_imported_again_and_others_are_not(tmp_path):
    folder = write(tmp_path / "a", uf_main="import uf_nets", uf_nets="value = 1")
    module = user_files.run(folder / "uf_main.py")
    first, summed = sys.modules["uf_nets"], user_files.module_digest("uf_nets")
    assert user_files.run(folder / "uf_main.py") is module
    assert sys.modules["uf_nets"] is first
    write(folder, uf_nets="value = 1000")
    assert user_files.module_digest("uf_nets") == summed  # of what was imported
    user_files.run(folder / "uf_main.py")
    assert sys.modules["uf_nets"].value == 1000
    assert user_files.module_digest("uf_nets") != summed


def test_a_file_that_fails_leaves_no_module(tmp_path):
    folder = write(tmp_path / "a", uf_main="raise KeyError('x')")
    with pytest.raises(KeyError):
        user_files.run(folder / "uf_main.py")
    assert "uf_main" not in sys.modules


def test_a_package_in_the_folder_has_one_sum(tmp_path):
    folder = write(tmp_path / "a", uf_main="from uf_pack import inner")
    write(folder / "uf_pack", __init__="", inner="def mine(data):\n    return []\n")
    module = user_files.run(folder / "uf_main.py")
    stated = describe(module.inner.mine, "items")
    assert stated["call"] == "uf_pack.inner.mine"
    assert stated["package"] == "uf_pack"
    assert len(stated["version"]) == 12
    for name in ("uf_pack.inner", "uf_pack"):
        del sys.modules[name]
    assert user_files.module_digest("uf_pack").startswith(stated["version"])  # without an import
    assert "uf_pack" not in sys.modules
    assert user_files.module_digest("uf_absent") == ""


@pytest.mark.parametrize("init", [True, False])
def test_the_sum_of_a_package_is_of_all_its_python_files(init, tmp_path, monkeypatch):
    """What is no code of it changes nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    pack = write(tmp_path / "uf_pack", net="value = 1", **({"__init__": ""} if init else {}))
    write(pack / "deep", layers="value = 2")

    def asked() -> str:
        importlib.invalidate_caches()
        return user_files.module_digest("uf_pack")

    sums = [asked()]
    for change in (
        lambda: write(pack / "deep", layers="value = 3"),
        lambda: write(pack, other=""),
        lambda: (pack / "other.py").rename(pack / "another.py"),
    ):
        change()
        sums.append(asked())
    assert len(set(sums)) == len(sums)
    (pack / "weights.pt").write_bytes(b"x")
    (pack / "gone.py").symlink_to(pack / "nowhere.py")
    write(pack / "__pycache__", cached="")
    assert asked() == sums[-1]
