"""The command line from end to end on synthetic voices, and what it says of wrong input; which
libraries common commands import, and that a command walks a folder once.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings
from likeness.eval.formats.trials import read_scores
from likeness.eval.items import listing
from likeness.modalities.synthetic import write_voices
from tests.scripts import ROOT, printed, program, refused, run_command, touch

TINY = ROOT / "tests" / "tiny.py"


def test_train_embed_score_evaluate(example, voices, tmp_path):
    run, trials, scores = tmp_path / "run", example / "trials.txt", tmp_path / "s.txt"
    settings = ("schedule.steps=2", "--data", voices, "--out", run)
    assert run_command("train", f"{TINY}:simple", *settings) == 0
    trained_page = (run / "report" / "index.html").read_text()
    for shown in ("Loss by step", "Lowest target scores", "<audio controls"):
        assert shown in trained_page
    out = ("--out", tmp_path / "e.npz")
    assert run_command("embed", "--model", run, "--items", example / "voices", *out) == 0
    assert run_command("score", "--trials", trials, "--embeddings", out[1], "--out", scores) == 0
    listed, values = read_scores(scores)
    # The similarity of the loss travels with the embeddings.
    stored = embeddings.read_embeddings(out[1])
    assert stored.meta["similarity"] == "simple:0.3"
    ids = (listed.enrol_ids[listed.enrol[5]], listed.probe_ids[listed.probe[5]])
    a, b = stored.matrix[stored.rows(ids)].astype(np.float64)
    expected = a @ b - 0.3 * np.linalg.norm(a) * np.linalg.norm(b)
    assert values[5] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    points = ("--p-target", "0.1", "--far", "0.5", "--json", tmp_path / "r.json")
    shown = printed("evaluate", scores, *points)
    document = json.loads((tmp_path / "r.json").read_text())
    metrics = {"eer", "min_dcf(0.1)", "tar_at_far(0.5)", "balanced_accuracy"}
    assert {result["metric"] for result in document["results"]} == metrics
    assert f"{100 * document['results'][0]['value']:.2f}" in shown


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train {tiny}:nothing --data {tmp} --out {tmp}/o", "nothing"),
        ("train {tiny} optm.lr=1 --data {tmp} --out {tmp}/o", "optim"),
        ("train {tiny} --data {tmp}/none --out {tmp}/o", "none"),
        ("embed --model {run} --items {tmp}/items.txt --out {tmp}/o.xyz", ".npz, .ark"),
        ("embed --model {run} --items {tmp}/items.txt --out {tmp}/o.npz", "exist"),
        ("score --trials {tmp}/missing.txt --embeddings {tmp}/one.npz --out {tmp}/o", "2 of"),
        ("evaluate {tmp}/nan.txt", "finite"),
        ("evaluate {tmp}/oneclass.txt", "target"),
        ("demo --only smell --out {tmp}/o", "smell"),
    ],
)
def test_wrong_input_gets_one_sentence_exit_2_and_writes_nothing(command, word, run, tmp_path):
    (tmp_path / "items.txt").write_text("gone.wav\n")
    embeddings.write_embeddings(tmp_path / "one.npz", embeddings.Embeddings(("a",), [[1.0, 1.0]]))
    (tmp_path / "missing.txt").write_text("a b 1\na c 0\n")
    (tmp_path / "nan.txt").write_text("a b nan 1\nc d .1 0\n")
    (tmp_path / "oneclass.txt").write_text("a b .2 0\nc d .1 0\n")
    before = sorted(tmp_path.rglob("*"))
    words = (each.format(tiny=TINY, tmp=tmp_path, run=run) for each in command.split())
    assert word in refused(*words)
    assert sorted(tmp_path.rglob("*")) == before


def test_reasons_are_grouped_and_unread_formats_counted(example, run, tmp_path, capsys):
    folder = tmp_path / "mine" / "ann"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.wav").write_bytes(b"RIFF" + bytes(number))
        (folder / f"{number}.amr").touch()
    (folder / "a.wav").write_bytes((example / "a.wav").read_bytes())
    listed = ("--items", tmp_path / "mine", "--out", tmp_path / "e.npz")
    assert run_command("embed", "--model", run, *listed) == 0
    said = capsys.readouterr().err
    assert said.count("skipped") == 1
    assert "skipped ann/0.wav and 4 more items: " in said
    assert said.count("(.amr 5)") == 1
    refuse = ("--model", run, *listed, "--bad-items", "refuse", "--force")
    assert "5 of 6 items cannot be read" in refused("embed", *refuse)


def test_a_finished_demo_stays(tmp_path):
    touch(tmp_path, "report/index.html", "speaker/results.json")
    assert "already holds a demo" in refused("demo", "--out", tmp_path)
    words = ("demo", "--only", "speaker", "--out", tmp_path / "speaker")
    assert "already holds a demo" in refused(*words)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate s.txt --far eer", "--far 'eer': give a number"),
        ("evaluate s.txt --terms ISO", "--terms 'ISO': give one of likeness, iso"),
        ("lists d --out x --seed -3", "--seed '-3': give a whole number of at least 0"),
        ("lists d --out x --test-share 2", "--test-share '2': give a number of at least 0 and"),
        ("retrieve --embeddings . --k 1", "--embeddings: file '.' is a folder"),
        ("align nowhere --out x", "PHOTOGRAPHS: folder 'nowhere' does not exist"),
        ("evaluate s.txt --resamples 1000001", "at most 1,000,000"),
        ("evaluate {file} --embeddings {file}", "without --report or --quality norm"),
        ("retrieve --embeddings {file} --media .", "without --report"),
        ("evaluate {file} --force", "--force without an output"),
        ("lists . --out x --split all --test-share 0.2", "--test-share beside --split all"),
        ("score --trials {file} --embeddings {file} --out x --pooling mean", "--pooling without"),
        ("train", "RECIPE is missing"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_one_sentence(words, said):
    message = refused(*words.format(file=__file__).split())
    assert message.startswith("likeness: ")
    assert message.count("\n") == 1
    assert said in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("e", {"embed", "evaluate", "export"}),
        ("gallery e", {"enrol"}),
        ("evaluate --ter", {"--terms"}),
        ("evaluate s.txt --terms ", {"likeness", "iso"}),
    ],
)
def test_a_shell_completes_commands_options_and_choices(line, words, tmp_path):
    typed = {"COMP_WORDS": f"likeness {line}", "COMP_CWORD": str(len(line.split(" ")))}
    asked = {"_LIKENESS_COMPLETE": "bash_complete", **typed}
    completed = program("-m", "likeness", cwd=tmp_path, **asked).stdout.split()
    assert {word.removeprefix("plain,") for word in completed} == words


def test_what_a_shell_needs_to_complete_is_printed():
    assert "_LIKENESS_COMPLETE=zsh_complete" in printed("--show-completion", "zsh")


CONSOLE = {"lazy_loader", "click"}
VALUES = {"numpy", "pyarrow", "scipy", "charset_normalizer"}
VOICES = {"numpy", "onnxruntime", "soundfile", "soxr"}
LIBRARIES = """
import sys
from importlib.metadata import packages_distributions

from likeness.cli import main

try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code
parts = {".".join(name.split(".")[:2]) for name in sys.modules}
names = {name.partition(".")[0] for name in parts} & set(packages_distributions())
slow = {"pyarrow.compute", "scipy.signal", "scipy.stats"}
print(*names, *(parts & slow), file=sys.stderr)
"""
# What comes with those, or stands in every process of an environment.
BESIDE = {"likeness", "typing_extensions", "_soundfile", "_soundfile_data", "_cffi_backend"}
BESIDE |= {"_distutils_hack", "cloudpickle"}


@pytest.fixture(scope="module")
def folder(module_path: Path) -> Path:
    """Trials with scores, two recordings and an .onnx model."""
    write_voices(module_path / "voices", num_speakers=1, num_utterances=2, seconds=(2.0, 2.5))
    for number, path in enumerate(sorted((module_path / "voices").rglob("*.flac"))):
        path.rename(module_path / f"{number}.flac")
    rows = (f"a{i % 7}/1 a{i % 7 + i % 2}/{i} {1 - i % 2} {0.1 * (i % 17)}\n" for i in range(210))
    (module_path / "scores.txt").write_text("".join(rows))
    voice = Path(likeness.__file__).with_name("voice") / "model.onnx"
    (module_path / "voice.onnx").write_bytes(voice.read_bytes())
    return module_path


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--help"], CONSOLE),
        (["--version"], CONSOLE),
        (["verify", "--help"], CONSOLE | {"numpy"}),
        (["evaluate", "scores.txt"], CONSOLE | VALUES),
        (["verify", "0.flac", "1.flac"], CONSOLE | VOICES),
        (["verify", "0.flac", "1.flac", "--model", "voice.onnx"], CONSOLE | VOICES),
    ],
)
def test_only_what_is_needed_is_imported(folder, words, needed):
    ran = program("-c", LIBRARIES, *words, cwd=folder)
    assert set(ran.stderr.split("\n")[-2].split()) - BESIDE <= needed


# A command that is wrong, and what is said of it.
MISTAKES = {
    "train speaker/folders voices --out r": "override 'voices' has no '='",
    "train speaker/folders --data none --out r": "none: there is no such folder or file",
    "train speaker/folders --data voices --test none --out r": "none: there is no such folder",
    "train speaker/folders --data voices --root none --out r": "root 'none' is no folder",
    "train speaker/folders --data voices --root . --out r": "the folder 'voices' need none",
    "train speaker/folders --data voices --columns a=b --out r": "columns: 'a' is no ROLE=COLUMN",
    "compare speaker/folders --data voices --label a --out r": "the pattern 'a' needs {label}",
    "compare speaker/folders lr --data voices --out r": "override 'lr' has no '='",
    "embed --model run --items voices --root none --out e.npz": "root 'none' is no folder",
    "embed --model run --items voices --columns a=b --out e.npz": "columns: 'a' is no ROLE=COLUMN",
    "embed --model run --items voices --part 3 --out e.npz": "part '3': write I/N",
    "embed --model wespeaker:none.pt --items voices --out e.npz": "there is no file none.pt",
    "embed --model voice.onnx --items voices --frontend 3dspeaker --out e.npz": "its front-end",
    "embed --model likeness:voice --items voices --min-score 1 --out e.npz": "is of a detector",
    "check voices --root .": "the folder 'voices' need none",
    "gallery enrol voices --gallery g --model likeness:voice --root .": "the folder 'voices' need",
}
REFUSED = """
import sys

from likeness.cli import main

sys.modules["torch"] = None
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit as ended:
        assert ended.code == 2
"""


def test_a_mistake_is_found_before_torch_is_imported(folder):
    (folder / "run").mkdir()
    (folder / "run" / "last.safetensors").touch()
    ran = program("-c", REFUSED, cwd=folder, text="\n".join(MISTAKES))
    for line, message in zip(MISTAKES, ran.stderr.splitlines(), strict=True):
        assert MISTAKES[line] in message, line


FEW = ["schedule.steps=1", "schedule.warmup_steps=0", "sampling.batch_size=4", "compute.threads=1"]


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were walked, in order."""
    folders: list[Path] = []
    walk = listing._walk

    def noted(root: Path, *others: Any) -> Any:
        folders.append(root)
        return walk(root, *others)

    monkeypatch.setattr(listing, "_walk", noted)
    return folders


@pytest.mark.parametrize("recipe", ["speaker/folders", "speaker/folders:resnet34"])
def test_train_walks_once(recipe, example, walked, tmp_path):
    few = [*FEW, "compute.workers=0", "schedule.watch=", "schedule.eval_every=1"]
    data = ("--data", example / "voices", "--out", tmp_path / "run")
    assert run_command("train", recipe, *few, *data) == 0
    assert walked == [example / "voices"]


def test_check_and_embed_walk_once_and_evaluate_never(example, walked, tmp_path):
    voices, trials, scores, sex = example / "voices", *(tmp_path / name for name in "tsx")
    run_command("check", voices)
    assert walked == [voices]
    out = ("--out", tmp_path / "e.npz")
    assert run_command("embed", "--items", voices, "--model", "likeness:voice", *out) == 0
    assert walked == [voices] * 2
    # Groups are read from a list, so that no folder is walked.
    ids = sorted(path.relative_to(voices).as_posix() for path in voices.rglob("*.flac"))
    speakers = sorted({id.split("/")[0] for id in ids})
    pairs = itertools.combinations(ids, 2)
    trials.write_text("".join(f"{a} {b} {int(a[:6] == b[:6])}\n" for a, b in pairs))
    likeness.score(trials, tmp_path / "e.npz").save(scores)
    sex.write_text("".join(f"{name} {'fm'[k % 2]}\n" for k, name in enumerate(speakers)))
    assert run_command("evaluate", scores, "--groups", sex, "--resamples", "20") == 0
    assert walked == [voices] * 2
