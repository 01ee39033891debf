"""Whatever goes wrong ends in one sentence on stderr and exit code 2; only LIKENESS_TRACEBACK=1
shows a traceback.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tomllib
import warnings
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from eval.formats import embeddings
from likeness.cli import main
from likeness.failures import explain, one_sentence, place_of
from toolkit.backbones.external import External

ROOT = Path(__file__).parents[2]


def likeness(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1, err
    return err


# What the standard library, numpy and native code raise; each is run for real.
RAISED = {
    "TypeError": "1 + 'a'",
    "AttributeError": "None.shape",
    "IndexError": "[][1]",
    "KeyError": "{}['absent']",
    "OverflowError": "2.0 ** 100_000",
    "ZeroDivisionError": "1 / 0",
    "RecursionError": "(lambda again: again(again))(lambda again: again(again))",
    "ValueError": "int('one')",
    "UnicodeDecodeError": "b'\\xff'.decode()",
    "JSONDecodeError": "__import__('json').loads('{')",
    "error": "__import__('zlib').decompress(b'none')",
    "BadZipFile": "__import__('zipfile').ZipFile(__import__('io').BytesIO(b'none'))",
    "OperationalError": "__import__('sqlite3').connect('/nowhere/at/all')",
    "RuntimeError": "__import__('torch').zeros(2).reshape(3)",
    "SafetensorError": "__import__('safetensors').deserialize(b'none')",
    "StopIteration": "next(iter([]))",
    "AssertionError": "(_ for _ in ()).throw(AssertionError())",
}


@pytest.mark.parametrize("kind", RAISED)
def test_any_exception_in_a_file_of_the_user_names_its_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LIKENESS_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(f"import likeness\n\nRECIPES = {RAISED[kind]}\n")
    assert likeness("train", "recipe.py", "--out", "out") == 2
    output = one_line(capsys)
    assert output.startswith(f"likeness: recipe.py, line 3: {kind}")
    assert "damaged" not in output
    assert "LIKENESS_TRACEBACK=1" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", RAISED)
def test_any_other_exception_is_named_with_a_doubt(kind: str) -> None:
    """As a damaged input, or a defect, makes code of Likeness raise it."""
    text = explain(raised_by(compile(RAISED[kind], str(ROOT / "toolkit" / "any.py"), "eval")))
    assert kind in text
    assert "damaged" in text
    assert "LIKENESS_TRACEBACK=1" in text


def test_a_folder_in_place_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "e.npz").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["retrieve", "--embeddings", str(folder)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"likeness: {folder} is a folder; name a file\n"


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    code = compile("__import__('absent.part')", str(ROOT / "toolkit" / "any.py"), "eval")
    said = "this needs absent, which is not installed; run `pip install absent`"
    assert explain(raised_by(code)) == said


BROKEN_FILES = {
    "def f(:\n": "own.py, line 1: SyntaxError: ",
    "\nimport beside\n": "beside.py, line 2: SyntaxError: ",
    "import not_installed\n": "own.py, line 1: No module named 'not_installed'; install it",
    "open('gone.txt')\n": "own.py, line 1: [Errno 2] No such file or directory: 'gone.txt'; ",
    "\nraise NotImplementedError\n": "own.py, line 2: NotImplementedError; ",
    "raise RuntimeError('set WEIGHTS')\n": "own.py, line 1: set WEIGHTS\n",
    "def f():\n    import json\n    json.loads('{')\n\n\nf()\n": "own.py, line 3: JSONDecodeError",
    "import likeness\n\nlikeness.Netwrk\n": "likeness has no 'Netwrk'; it has ",
}


@pytest.mark.parametrize("text", BROKEN_FILES)
def test_a_broken_file_of_the_user_is_named_with_its_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("\n1 +\n")
    (tmp_path / "own.py").write_text(text)
    assert likeness("train", "own.py", "--out", "out") == 2
    assert one_line(capsys).startswith(f"likeness: {BROKEN_FILES[text]}")


def test_the_line_of_the_user_is_found_behind_a_sentence_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours says what is wrong, and its cause where."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def net():\n    return undefined\n")
    made: dict[str, Any] = {}
    exec(compile((tmp_path / "net.py").read_text(), str(tmp_path / "net.py"), "exec"), made)
    with pytest.raises(ValueError, match="cannot be made") as caught:
        External(1, network=made["net"], dim=3)
    assert place_of(caught.value) == "net.py, line 2"
    assert explain(caught.value).endswith("correct its class or function (net.py, line 2)")


def test_only_warnings_for_the_user_are_shown_without_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "own.py").write_text("")
    installed = tmp_path / "site-packages" / "net.py"
    with one_sentence("likeness"), warnings.catch_warnings():
        warnings.simplefilter("always")
        for file in (ROOT / "toolkit" / "any.py", tmp_path / "own.py"):
            warnings.warn_explicit("a\nb", UserWarning, str(file), 7)
        assert capsys.readouterr().err == "warning: a\\nb\n" * 2
        assert not recwarn.list
        warnings.warn_explicit("of others", UserWarning, str(installed), 7)
        warnings.warn_explicit("of others", FutureWarning, str(tmp_path / "own.py"), 7)
    assert [(entry.category, entry.lineno) for entry in recwarn.list] == [
        (UserWarning, 7),
        (FutureWarning, 7),
    ]
    assert capsys.readouterr().err == ""


def raised_by(code: CodeType) -> BaseException:
    """What a piece of code raises, with a traceback that begins there."""
    try:
        eval(code)
    except BaseException as error:
        trace = error.__traceback__
        return error.with_traceback(trace and trace.tb_next)
    raise AssertionError("nothing was raised")


def test_too_little_memory_is_not_called_a_defect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (
        "__import__('numpy').zeros(2**55)",
        "__import__('torch').empty(2**59)",
        "bytearray(2**62)",
    ):
        (tmp_path / "recipe.py").write_text(f"RECIPES = {asked}\n")
        assert likeness("train", tmp_path / "recipe.py", "--out", tmp_path / "out") == 2
        output = one_line(capsys)
        assert "not enough memory" in output
        assert "defect" not in output


def test_the_traceback_is_shown_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIKENESS_TRACEBACK", "1")
    (tmp_path / "recipe.py").write_text("RECIPES = 1 + 'a'\n")
    assert likeness("train", tmp_path / "recipe.py", "--out", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith(f"likeness: {tmp_path / 'recipe.py'}, line 1: TypeError")


def test_a_sentence_of_a_recipe_needs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.py").write_text("raise TypeError('set NUM_SUBJECTS first')\n")
    assert likeness("train", tmp_path / "recipe.py", "--out", tmp_path / "out") == 2
    file = tmp_path / "recipe.py"
    assert one_line(capsys) == f"likeness: {file}, line 1: set NUM_SUBJECTS first\n"


def test_usage_errors_of_every_kind_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret.txt").write_text("a b 1\n")
    for arguments in (
        ["nothing"],
        ["evaluate"],
        ["evaluate", tmp_path],
        ["evaluate", "--far"],
        ["evaluate", tmp_path / "secret.txt", "--far", "x"],
    ):
        assert likeness(*arguments) == 2
        assert "Traceback" not in capsys.readouterr().err


DAMAGED = {
    "e.npz": (b"PK\x03\x04", b"\x93NUMPY\x01\x00\xff\xff{", b"", b"\x00" * 100),
    "e.ark": (b"a \x00BFM \x04\xff\xff\xff\x7f\x04\xff\xff\xff\x7f", b"a \x00B", b"\xff" * 50),
    "e.h5": (b"\x89HDF\r\n\x1a\n" + b"\xff" * 90, b""),
    "e.parquet": (b"PAR1" + b"\xff" * 60 + b"\x10\x00\x00\x00PAR1", b"PAR1"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_embeddings_end_in_one_sentence(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for content in DAMAGED[name]:
        (tmp_path / name).write_bytes(content)
        assert likeness("retrieve", "--embeddings", tmp_path / name) == 2
        one_line(capfd)


def test_damaged_models_galleries_and_descriptions_end_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "scores.txt").write_text("a b .1 1\n")
    embeddings.write(
        tmp_path / "e.npz", embeddings.Embeddings(("a", "b"), np.ones((2, 2), dtype=np.float32))
    )
    (tmp_path / "t.txt").write_text("a b 1\n")
    for name in ("m.safetensors", "m.onnx", "m.pt"):
        (tmp_path / name).write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{" + b"\xff" * 40)
    items = ["--items", tmp_path / "t.txt", "--out", tmp_path / "o.npz"]
    score = [
        "score",
        "--trials",
        tmp_path / "t.txt",
        "--embeddings",
        tmp_path / "e.npz",
        "--out",
        tmp_path / "o.txt",
    ]
    for command in (
        ["embed", "--model", tmp_path / "m.safetensors", *items],
        ["embed", "--model", tmp_path / "m.onnx", *items],
        ["embed", "--model", f"wespeaker:{tmp_path / 'm.pt'}", *items],
        [*score, "--calibration", tmp_path / "deep.json"],
        [*score, "--plda", tmp_path / "deep.json"],
    ):
        assert likeness(*command) == 2
        one_line(capfd)


def test_ctrl_c_ends_with_130(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.py").write_text(
        "import signal\nRECIPES = signal.raise_signal(signal.SIGINT)\n"
    )
    assert likeness("train", tmp_path / "recipe.py", "--out", tmp_path / "out") == 130
    assert "Ctrl-C" in one_line(capsys)


def test_the_process_that_failed_speaks_for_torchs_checkpoint_exception() -> None:
    full = OSError(28, "No space left on device")
    text = explain(CheckpointException("save", {0: (full, None)}))  # type: ignore[dict-item]
    assert text == str(full)


def test_a_broken_pipe_that_is_not_our_output_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(SystemExit) as ended, one_sentence("likeness"):
        os.write(writer, b"a")
    os.close(writer)
    assert ended.value.code == 2
    assert "pipe" in one_line(capsys)


class _Refusing(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> int:
        if place:
            return int("one")
        raise ValueError("item 0 is no recording")


@pytest.mark.slow  # torch takes five seconds to end the process
@pytest.mark.parametrize(
    ("place", "said"),
    [(0, "item 0 is no recording"), (1, "ValueError: invalid literal")],
)
def test_a_reading_process_hands_on_its_sentence_not_its_traceback(place: int, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        next(iter(torch.utils.data.DataLoader(_Refusing(), sampler=[place], num_workers=1)))
    message = explain(caught.value)
    assert "Traceback" not in message
    assert "test_failures.py, line " in message
    assert f": {said}" in message
    assert "damaged" not in message


SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "recipes").rglob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_refuses_bad_input_as_the_command_does(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = (
        ["--data", tmp_path / "none", "--out", tmp_path / "out"]
        if "argument_parser" in (ROOT / script).read_text()
        else [tmp_path / "none", tmp_path / "out"]
    )
    inputs += (
        ["--weights", tmp_path / "none.pth"]
        if "cub200" in script
        else ["vox1_o"]
        if "voxceleb" in script
        else []
    )
    for arguments in (inputs, ["one", "two", "three", "four", "five"]):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        # Python puts the folder of a script first, where it finds what its recipes share.
        monkeypatch.syspath_prepend(str((ROOT / script).parent))
        monkeypatch.delitem(sys.modules, "_shared", raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        monkeypatch.delitem(sys.modules, "_shared", raising=False)
        assert ended.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


def test_errors_of_the_json_module_are_named_with_their_type() -> None:
    """The texts of others are named with their kind, however harmless they look."""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert ": JSONDecodeError: " in explain(caught.value)


def test_errors_of_our_packages_are_shown_without_their_type() -> None:
    """Installed from a wheel, our files lie where those of others do; their names tell them."""
    from likeness import failures

    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in patterns} <= set(failures._PACKAGES)
