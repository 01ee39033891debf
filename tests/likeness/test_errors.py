"""What is wrong for the user ends in one sentence and exit code 2; a defect shows its traceback."""

import json
import os
import pickle
import sys
import warnings
from pathlib import Path
from subprocess import PIPE, Popen, run

import numpy as np
import pytest
import torch

from likeness import load_fusion, load_plda
from likeness.cli import main
from likeness.errors import explain, one_sentence
from likeness.eval.errors import LikenessError, Unreachable, install_line, likeness_version
from likeness.eval.formats import embeddings
from tests.scripts import ROOT, refused, run_script


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize(
    "error",
    [
        LikenessError("the rate is 0;\ngive one in Hz"),
        Unreachable("the store does not answer"),
        FileNotFoundError(2, "No such file or directory", "a.wav"),
        OSError(28, "No space left on device"),
        MemoryError("512 GiB"),
        ModuleNotFoundError("No module named 'optuna'", name="optuna.storages"),
    ],
)
def test_what_is_wrong_for_the_user_is_one_sentence(error, monkeypatch, capsys):
    monkeypatch.delenv("LIKENESS_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as ended, one_sentence("likeness"):
        raise error
    assert ended.value.code == 2
    assert one_line(capsys).startswith("likeness: ")
    monkeypatch.setenv("LIKENESS_TRACEBACK", "1")
    with pytest.raises(SystemExit), one_sentence("likeness"):
        raise error
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_named_and_a_reader_that_has_gone_ends_the_command(tmp_path):
    line = [sys.executable, "-m", "likeness", "recipes"]
    for words in ("recipes", "--help", "gallery --help", "gallery list -h"):
        with open("/dev/full", "w") as full:
            ended = run([*line[:3], *words.split()], stdout=full, stderr=PIPE, text=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith("likeness: <stdout>: ")
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    ids = tuple(map(str, range(200)))
    embeddings.write_embeddings(tmp_path / "e.npz", embeddings.Embeddings(ids, rows))
    pairs = [f"{a} {b} {a % 2}\n" for a in range(200) for b in range(a)]
    (tmp_path / "trials.txt").write_text("".join(pairs))
    line[3:] = ["score", "--trials", "trials.txt", "--embeddings", "e.npz", "--out", "/dev/stdout"]
    with Popen(line, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout.readline().startswith("enrol probe score label")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_sentences_name_the_file_and_what_to_install():
    assert explain(FileNotFoundError(2, "No such file", "a.wav")) == "a.wav: No such file"
    missing = ModuleNotFoundError("No module named 'optuna'", name="optuna.storages")
    assert f"`{install_line('tune')}`" in explain(missing)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("RECIPES = int('one')", ValueError),
        ("import not_installed", ModuleNotFoundError),
        ("def f(:", SyntaxError),
    ],
)
def test_an_error_in_a_file_of_the_user_shows_its_traceback(text, error, tmp_path):
    (tmp_path / "recipe.py").write_text(f"import likeness\n\n{text}\n")
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(error) as caught:
        main(["train", str(tmp_path / "recipe.py"), *words])
    lines = [str(entry.path) for entry in caught.traceback]
    where = caught.value.filename if isinstance(caught.value, SyntaxError) else lines[-1]
    assert str(where) == str(tmp_path / "recipe.py")
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_with_130(capsys):
    with pytest.raises(SystemExit) as ended, one_sentence("likeness"):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert "Ctrl-C" in one_line(capsys)


def test_a_broken_pipe_that_is_not_our_output_is_an_error(capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(SystemExit) as ended, one_sentence("likeness"):
        os.write(writer, b"a")
    os.close(writer)
    assert ended.value.code == 2
    assert "pipe" in one_line(capsys)


def test_warnings_for_the_user_are_one_line(capsys, recwarn):
    with one_sentence("likeness"), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a\nb", stacklevel=1)
        assert capsys.readouterr().err == "warning: a\\nb\n"
        warnings.warn("of others", FutureWarning, stacklevel=1)
    assert [entry.category for entry in recwarn.list] == [FutureWarning]


@pytest.mark.parametrize("arguments", [["nothing"], ["evaluate"], ["evaluate", "--far"]])
def test_usage_errors_end_with_2(arguments):
    assert "Traceback" not in refused(*arguments)


def test_a_description_of_any_depth_is_refused(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for read in (load_fusion, load_plda):
        with pytest.raises(LikenessError):
            read(tmp_path / "deep.json")


class _Refusing(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: int) -> int:
        raise LikenessError("no noise is there; fetch MUSAN")


@pytest.mark.slow  # torch takes five seconds to end the process
def test_a_reading_process_hands_on_its_sentence():
    with pytest.raises(LikenessError) as caught:
        next(iter(torch.utils.data.DataLoader(_Refusing(), num_workers=1)))
    assert explain(caught.value) == "no noise is there; fetch MUSAN"
    assert str(pickle.loads(pickle.dumps(LikenessError("a sentence")))) == "a sentence"


RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.py"))
SCRIPTS = [name for name in RECIPES if "__main__" in (ROOT / name).read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_refuses_bad_input_as_the_command_does(script, tmp_path, capsys):
    inputs: list[object] = [tmp_path / "none", tmp_path / "out"]
    if "argument_parser" in (ROOT / script).read_text():
        inputs = ["--data", tmp_path / "none", "--out", tmp_path / "out"]
    inputs += ["vox1_o"] if "voxceleb" in script else []
    with pytest.raises(SystemExit) as ended:
        run_script(ROOT / script, *inputs)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("is_editable", [True, False])
def test_what_is_missing_is_installed_from_where_the_rest_was(is_editable, tmp_path, monkeypatch):
    """From a folder while it is there (PEP 610), else by the name on the package index."""
    by_name = 'pip install "likeness-toolkit[serve]"'
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # a source tree without metadata
    assert (install_line("serve"), likeness_version()) == (by_name, "unknown")
    metadata = tmp_path / "likeness_toolkit-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: likeness-toolkit\nVersion: 1.2")
    assert (install_line("serve"), likeness_version()) == (by_name, "1.2")
    clone = tmp_path / "a clone, 100 %"
    clone.mkdir()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True} if is_editable else {}}
    (metadata / "direct_url.json").write_text(json.dumps(origin))
    assert install_line("serve") == f'pip install "{clone}[serve]"'
    clone.rmdir()
    assert install_line("serve") == by_name
    wheel = {"url": (tmp_path / "likeness_toolkit-1.2-py3-none-any.whl").as_uri()}
    (metadata / "direct_url.json").write_text(json.dumps({**wheel, "archive_info": {}}))
    assert install_line("serve") == by_name
