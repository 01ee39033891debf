"""Outputs stay unless they are forced, and inputs beside or within them always."""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.writing import only_command
from likeness.toolkit.data import shards
from likeness.toolkit.sources import source_of
from tests.scripts import refused, run_command, touch
from tests.toolkit.data.test_shards import tar

SCORES = "ann/1 ann/2 0.9 1\nann/1 bob/1 0.2 0\nbob/1 bob/2 0.8 1\nbob/2 ann/2 0.1 0\n"


@pytest.fixture
def scores(tmp_path):
    (tmp_path / "scores.txt").write_text(SCORES)
    return tmp_path / "scores.txt"


@pytest.mark.parametrize(
    ("option", "out", "written"),
    [("--json", "results.json", "results.json"), ("--report", "report", "report/index.html")],
)
def test_outputs_stay_unless_they_are_forced(scores, tmp_path, option, out, written):
    words = ("evaluate", scores, "--resamples", 0, option, tmp_path / out)
    assert run_command(*words) == 0
    (tmp_path / written).write_text("mine")
    assert "--force" in refused(*words)
    assert (tmp_path / written).read_text() == "mine"
    assert run_command(*words, "--force") == 0
    assert (tmp_path / written).read_text() != "mine"
    assert run_command("evaluate", scores, "--json", scores, "--force") == 2
    assert scores.read_text() == SCORES


def test_lists_stay_and_a_device_is_written_to(scores, tmp_path):
    touch(tmp_path / "voices", "ann/1.wav", "ann/2.wav", "bob/1.wav", "bob/2.wav")
    words = ("lists", tmp_path / "voices", "--split", "all", "--out", tmp_path / "lists")
    assert run_command(*words) == 0
    assert run_command(*words) == 2
    (tmp_path / "lists" / "items.txt").unlink()
    assert run_command(*words) == 2  # the trials are there
    touch(tmp_path, "mine/durations.txt")
    assert run_command(*words[:-1], tmp_path / "mine") == 2
    assert run_command(*words, "--force") == 0
    assert run_command("evaluate", scores, "--resamples", 0, "--json", "/dev/null") == 0


def test_a_folder_of_pieces_with_another_file_is_refused(tmp_path):
    touch(tmp_path, "voices/ann/1.wav", "e.npz.pieces/thesis.tex")
    words = ("embed", "--model", "likeness:voice", "--items", tmp_path / "voices")
    assert run_command(*words, "--out", tmp_path / "e.npz") == 2
    assert (tmp_path / "e.npz.pieces" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("source", "out"),
    [("items.left-out.csv", "items.csv"), ("lists/items.txt", "lists"), ("x.scp", "x.ark")],
)
def test_an_input_beside_or_within_the_output_is_kept(tmp_path, source, out):
    touch(tmp_path, "ann/1.wav", "ann/2.wav")
    given = tmp_path / source
    given.parent.mkdir(exist_ok=True)
    given.write_text("path,label\nann/1.wav,ann\nann/2.wav,ann\n")
    before = given.read_bytes()
    command = {"items.csv": "check", "lists": "lists", "x.ark": "embed"}[out]
    first = ("--model", "likeness:voice", "--items", given) if command == "embed" else (given,)
    assert "is one of the inputs" in refused(command, *first, "--out", tmp_path / out, "--force")
    assert given.read_bytes() == before


def test_one_of_several_inputs_is_kept(tmp_path):
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text(SCORES)
    assert "is one of the inputs" in refused("evaluate", *files, "--json", files[1], "--force")
    assert files[1].read_text() == SCORES


def test_the_files_of_a_model_are_kept(tmp_path):
    run, scores = tmp_path / "run", tmp_path / "scores.txt"
    touch(run, "last.safetensors", "recipe.json", "thresholds.json")
    scores.write_text(SCORES)
    touch(tmp_path, "m.onnx", "m.onnx.calibration.json", "face/model.onnx")
    for model, name in (
        ("run", "run/last.safetensors"),
        ("run", "run/recipe.json"),
        ("run", "run/thresholds.json"),
        ("m.onnx", "m.onnx.calibration.json"),
        ("face", "face/model.onnx"),
    ):
        words = ("--save-to", tmp_path / model, "--json", tmp_path / name, "--force")
        assert "is one of the inputs" in refused("evaluate", scores, *words)
        assert not (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate {s} --json {d}", "is a folder"),
        ("score --trials {s} --embeddings {s} --out {d}", "is a folder"),
        ("evaluate {s} --report {s}", "is a file"),
        ("lists {d} --out {s} --force", "is a file"),
        ("evaluate {s} --seed 1 --seed 2", "was given 2 times"),
        ("verify {s} {s} --threshold 1 --threshold 2", "was given 2 times"),
        ("evaluate {s} --save-to=", "--save-to is empty"),
        ("gallery list --gallery=", "--gallery is empty"),
        ("prepare --data {d}", "without DATASET"),
        ("prepare face --data {d}", "beside face"),
        ("recipes speaker/an4 --copy speaker/an4 mine.py", "beside --copy"),
        ("reproduce --list --seeds 3", "beside --list"),
    ],
)
def test_what_would_be_dropped_or_fail_late_is_refused(words, said, tmp_path):
    scores, folder = tmp_path / "scores.txt", tmp_path / "folder"
    scores.write_text(SCORES)
    folder.mkdir()
    assert said in refused(*(word.format(s=scores, d=folder) for word in words.split()))
    assert scores.read_text() == SCORES


@pytest.mark.skipif(os.name == "nt", reason="this system has no locks of folders")
def test_of_what_is_there_a_killed_command_s_own_files_are_replaced(scores, tmp_path):
    out = tmp_path / "r.json"
    words = ("evaluate", scores, "--resamples", 0, "--json", out)
    left = tmp_path / ".r.json.0123456789ab.part" / "new"
    left.mkdir(parents=True)  # by a command that was killed before it made the file
    out.write_text("mine")
    assert run_command(*words) == 2
    assert out.read_text() == "mine"
    left.mkdir(parents=True, exist_ok=True)
    (left / str(out.stat().st_ino)).touch()  # and of one that made it
    assert run_command(*words) == 0
    assert out.read_text() != "mine"
    assert not left.exists()


def test_a_folder_of_the_user_with_the_name_of_a_hidden_one_stays(scores, tmp_path):
    page = tmp_path / "report"
    touch(tmp_path, ".report.0123456789ab.part/thesis.tex", ".report.0123456789ab.part/report")
    touch(page, ".index.html.0123456789ab.part/thesis.tex", ".a.0123456789ab.part/a")
    words = ("evaluate", scores, "--resamples", 0, "--report", page)
    assert run_command(*words, "--force") == 0
    assert (tmp_path / ".report.0123456789ab.part" / "thesis.tex").is_file()
    hidden = [path for path in page.glob(".*.part/*") if path.is_file()]
    assert hidden == [page / ".index.html.0123456789ab.part" / "thesis.tex"]


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid(), reason="needs two users")
def test_a_hidden_folder_that_cannot_be_opened_is_named_with_a_remedy():
    with TemporaryDirectory(dir="/tmp") as name:  # other users may enter no other folder
        out = Path(name, "r.json")
        Path(name).chmod(0o777)
        left = Path(name, ".r.json.0123456789ab.part")
        left.mkdir(mode=0o700)
        os.seteuid(65534)
        try:
            command = only_command(out, [out], replaces=True)
            with pytest.raises(LikenessError, match="remove that folder"), command:
                pass
        finally:
            os.seteuid(0)
        assert [path.name for path in Path(name).iterdir()] == [left.name]


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.geteuid(), reason="needs two users")
def test_a_file_that_may_not_be_read_is_one_sentence(scores):
    assert run_command("evaluate", scores, "--resamples", 0) == 0  # which imports what it needs
    with TemporaryDirectory(dir="/tmp") as name:  # other users may enter no other folder
        Path(name).chmod(0o755)
        locked = shutil.copy(scores, name)
        Path(locked).chmod(0o600)
        os.setresuid(65534, 65534, 0)
        try:
            assert "ermission denied" in refused("evaluate", locked, "--resamples", 0)
        finally:
            os.setresuid(0, 0, 0)


def test_what_a_run_keeps_and_another_output_are_not_replaced(scores, tmp_path):
    run = tmp_path / "run"
    touch(run, "last.safetensors", "held-out/embeddings.npz")
    shutil.copy(scores, run / "held-out")
    for name in ("held-out/scores.txt", "last.safetensors"):
        before = (run / name).read_bytes()
        assert run_command("evaluate", run, "--json", run / name, "--force") == 2
        assert (run / name).read_bytes() == before
    words = ("evaluate", scores, "--json", tmp_path / "t.json", "--save-to", tmp_path / "t.json")
    assert "two outputs" in refused(*words)


@pytest.mark.parametrize(
    "row", ['["a", null, ".wav", "x", 1]', '["a", null, ".wav", 9, -5]', '[1, {}, ".wav", 0, 1]']
)
def test_a_damaged_index_of_a_shard_is_made_anew(tmp_path, row):
    tar(tmp_path / "a.tar", [("ann/1.wav", b"sound"), ("ann/1.cls", b"ann")])
    whole = shards.items(tmp_path)
    source = json.dumps(source_of(tmp_path / "a.tar"))
    (tmp_path / "a.tar.index").write_text(f'{{"source": {source}, "items": [{row}]}}')
    assert list(shards.items(tmp_path)) == list(whole)
