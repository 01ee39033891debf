"""The command line from end to end on synthetic voices, and what it says of wrong input."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from likeness.cli import main
from likeness.eval.formats import embeddings
from likeness.eval.formats.trials import read_scores, read_trials, write_trials
from likeness.modalities import folders
from likeness.toolkit.training.train import fit

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "tiny.py"


def likeness(*arguments: object) -> int:
    """Run the command in this process; returns its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.fixture(scope="module")
def trained(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run/, items.txt and trials.txt of the held-out speakers."""
    from likeness.toolkit.training import recipe

    folder = tmp_path_factory.mktemp("trained")
    fit(recipe.load(str(TINY))[0], data=voices, out=folder / "run")
    items, trials = folders.trials(voices, split="test", test_share=0.25)
    (folder / "items.txt").write_text(
        "".join(f"{item.id} {item.path.relative_to(voices)}\n" for item in items)
    )
    write_trials(folder / "trials.txt", trials)
    return folder


def test_train_embed_score_evaluate(
    voices: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("schedule.steps=2", "--data", voices, "--out", tmp_path / "run")
    assert likeness("train", f"{TINY}:simple", *settings) == 0
    trained_page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "Loss by step" in trained_page
    assert "Lowest target scores" in trained_page
    assert "<audio controls" in trained_page
    listed_items = ("--items", trained / "items.txt", "--root", voices)
    for suffix in ("npz", "ark"):
        out, scores = tmp_path / f"e.{suffix}", tmp_path / f"{suffix}.txt"
        assert likeness("embed", "--model", trained / "run", *listed_items, "--out", out) == 0
        compared = ("--trials", trained / "trials.txt", "--embeddings", out)
        assert likeness("score", *compared, "--out", scores) == 0
    listed, values = read_scores(tmp_path / "npz.txt")
    assert np.array_equal(values, read_scores(tmp_path / "ark.txt")[1])
    assert len(listed) == len(read_trials(trained / "trials.txt"))
    stored = embeddings.read(tmp_path / "e.npz")
    unit = stored.unit()
    i, j = (
        stored.rows([listed.enrol_ids[listed.enrol[0]]])[0],
        stored.rows([listed.probe_ids[listed.probe[0]]])[0],
    )
    assert values[0] == pytest.approx(float(unit[i] @ unit[j]), abs=1e-6)
    capsys.readouterr()
    points = ("--p-target", "0.1", "--far", "0.5")
    made = ("--json", tmp_path / "r.json", "--report", tmp_path / "report")
    assert likeness("evaluate", tmp_path / "npz.txt", *points, *made) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema"] == "likeness.results/1"
    assert {result["metric"] for result in document["results"]} == {
        "eer",
        "min_dcf(0.1)",
        "tar_at_far(0.5)",
    }
    assert f"{100 * document['results'][0]['value']:.2f}" in shown
    page = (tmp_path / "report" / "index.html").read_text()
    assert "likeness evaluate" in page
    assert "default-src 'none'" in page  # so that nothing in its scripts can ask the network
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_the_similarity_travels_with_the_embeddings(
    voices: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, made = tmp_path / "run", tmp_path / "e.npz"
    settings = ("schedule.steps=2", "--data", voices, "--out", run)
    assert likeness("train", f"{TINY}:simple", *settings) == 0
    listed_items = ("--items", trained / "items.txt", "--root", voices)
    assert likeness("embed", "--model", run, *listed_items, "--out", made) == 0
    assert embeddings.read(tmp_path / "e.npz").meta["similarity"] == "simple:0.3"
    capsys.readouterr()
    compared = ("--trials", trained / "trials.txt", "--embeddings", made)
    assert likeness("score", *compared, "--out", tmp_path / "s.txt") == 0
    assert "simple:0.3" in capsys.readouterr().out
    stored = embeddings.read(tmp_path / "e.npz").matrix.astype(np.float64)
    listed, values = read_scores(tmp_path / "s.txt")
    rows = embeddings.read(tmp_path / "e.npz").rows(
        [listed.enrol_ids[listed.enrol[5]], listed.probe_ids[listed.probe[5]]]
    )
    a, b = stored[rows]
    assert values[5] == pytest.approx(
        a @ b - 0.3 * np.linalg.norm(a) * np.linalg.norm(b), rel=1e-4, abs=1e-5
    )


def test_several_score_files_side_by_side(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = read_trials(trained / "trials.txt")
    rng = np.random.default_rng(0)
    assert trials.target is not None
    for name, separation in (("good", 3.0), ("bad", 0.5)):
        lines = [
            f"{trials.enrol_ids[e]} {trials.probe_ids[p]} {float(rng.normal() + separation * t)}\n"
            for e, p, t in zip(trials.enrol, trials.probe, trials.target, strict=True)
        ]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    settings = ("--trials", trained / "trials.txt", "--resamples", "50")
    assert likeness("evaluate", tmp_path / "good.txt", tmp_path / "bad.txt", *settings) == 0
    header = capsys.readouterr().out.splitlines()[0].split()
    assert header == ["good", "threshold", "bad", "threshold"]
    assert likeness("evaluate", tmp_path / "good.txt") == 2
    assert "has no labels" in capsys.readouterr().err


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder with embeddings of 6 subjects x 4 items, a cohort of others, and all pairs of the 6
    as trials.
    """
    rng = np.random.default_rng(0)
    for name, first in (("embeddings", 0), ("cohort", 6)):
        centres = rng.normal(size=(6, 8))
        rows = np.repeat(centres, 4, axis=0) + 0.7 * rng.normal(size=(24, 8))
        ids = tuple(f"s{first + i // 4}/{i % 4}" for i in range(24))
        embeddings.write(
            tmp_path / f"{name}.npz", embeddings.Embeddings(ids, rows.astype(np.float32))
        )
    pairs = [
        (f"s{a // 4}/{a % 4}", f"s{b // 4}/{b % 4}", int(a // 4 == b // 4))
        for a in range(24)
        for b in range(a + 1, 24)
    ]
    (tmp_path / "trials.txt").write_text("".join(f"{a} {b} {same}\n" for a, b, same in pairs))
    return tmp_path


def test_normalised_and_calibrated_scores(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ("--trials", stored / "trials.txt", "--embeddings", stored / "embeddings.npz")
    options = (*sides, "--cohort", stored / "cohort.npz", "--top-n", "10")
    base = ("score", *options)
    assert likeness(*base, "--out", stored / "as.txt") == 0
    fitted, llr = stored / "calibration.json", stored / "llr.txt"
    fitting = ("fit", "calibration", *options, "--quality", "log_norm")
    assert likeness(*fitting, "--out", fitted) == 0
    assert likeness(*base, "--calibration", fitted, "--out", llr) == 0
    capsys.readouterr()
    drawn = ("--resamples", "20", "--json", stored / "r.json")
    assert likeness("evaluate", llr, "--llr", *drawn) == 0
    values = {
        result["metric"]: result["value"]
        for result in json.loads((stored / "r.json").read_text())["results"]
    }
    assert values["min_cllr"] <= values["cllr"] < 1
    assert likeness(*base[:-1], "999", "--out", stored / "x.txt") == 0
    assert "warning: the cohort has" in capsys.readouterr().err


def test_identify_and_retrieve(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--gallery", stored / "embeddings.npz", "--probes", stored / "embeddings.npz")
    settings = ("--resamples", "20", "--json", stored / "r.json", "--force")
    assert likeness("identify", *both, "--rank", "1", "--fpir", "0.5", *settings) == 0
    assert "rank-1" in capsys.readouterr().out
    assert len(json.loads((stored / "r.json").read_text())["results"]) == 1  # no strangers
    single = ("--embeddings", stored / "embeddings.npz", "--k", "3")
    assert likeness("retrieve", *single, *settings) == 0
    assert "MAP" in capsys.readouterr().out.upper()
    results = json.loads((stored / "r.json").read_text())["results"]
    assert "recall@3" in {result["metric"] for result in results}


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train {tiny}:nothing --out {tmp}/o", "nothing"),
        ("train nowhere.py --out {tmp}/o", "nowhere.py"),
        ("train {tiny} optm.lr=1 --out {tmp}/o", "optim"),
        ("train {tiny} optim.lr=fast --out {tmp}/o", "number"),
        ("train {tiny} --data {tmp}/none --out {tmp}/o", "none"),
        ("embed --model {tmp}/none --items {run}/items.txt --out {tmp}/o.npz", "none"),
        ("embed --model {run}/run --items {run}/items.txt --out {tmp}/o.xyz", ".npz, .ark"),
        ("embed --model {run}/run --items {run}/items.txt --root {tmp} --out {tmp}/o.npz", "exist"),
        ("score --trials {tmp}/missing.txt --embeddings {tmp}/one.npz --out {tmp}/o", "2 of"),
        (
            "score --trials {tmp}/self.txt --embeddings {tmp}/one.npz --similarity cosin "
            "--out {tmp}/o",
            "cosine",
        ),
        ("evaluate {tmp}/nan.txt", "NaN"),
        ("evaluate {tmp}/oneclass.txt", "target"),
        ("evaluate {tmp}/contradiction.txt", "both"),
        ("evaluate {tmp}/empty.txt", "empty"),
        ("demo --only smell --out {tmp}/o", "smell"),
    ],
)
def test_wrong_input_gets_one_sentence_exit_2_and_writes_nothing(
    command: str,
    word: str,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    embeddings.write(
        tmp_path / "one.npz", embeddings.Embeddings(("a",), np.ones((1, 2), dtype=np.float32))
    )
    files = {
        "missing": "a b 1\na c 0\n",
        "self": "a a 1\n",
        "nan": "a b nan 1\nc d .1 0\n",
        "oneclass": "a b .2 1\nc d .1 1\n",
        "contradiction": "a b .2 1\na b .2 0\n",
        "empty": "",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    arguments = command.format(tiny=TINY, tmp=tmp_path, run=trained).split()
    assert likeness(*arguments) == 2
    error = capsys.readouterr().err
    assert word in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_usage_errors_exit_2_and_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert likeness("train") == likeness("score", "--nothing") == 2
    for command in ("demo", "train", "compare", "embed", "score", "evaluate", "identify"):
        capsys.readouterr()
        assert likeness(command, "--help") == 0
        assert f"likeness {command}" in " ".join(capsys.readouterr().out.split())


def test_unreadable_items_are_skipped_or_refused(
    voices: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "silent.wav").write_bytes(b"RIFF")
    first = (trained / "items.txt").read_text().splitlines()[0].split()
    (tmp_path / "list.txt").write_text(
        f"{first[0]} {voices / first[1]}\nbroken {tmp_path / 'silent.wav'}\n"
    )
    listed = ("--items", tmp_path / "list.txt", "--out", tmp_path / "e.npz")
    command = ("embed", "--model", trained / "run", *listed)
    assert likeness(*command, "--bad-items", "refuse") == 2
    output = capsys.readouterr().err
    assert "1 of 2 items" in output
    assert not (tmp_path / "e.npz").exists()
    assert likeness(*command) == 0
    out, output = capsys.readouterr()
    assert "skipped broken" in output
    assert "1 unreadable items left out" in out
    assert embeddings.read(tmp_path / "e.npz").ids == (first[0],)


@pytest.mark.slow  # a process that trains; test_writes.py has all writers on a full disk
def test_a_full_disk_leaves_the_last_checkpoint(
    voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file size limit stands in for the full disk: the write fails half-way with an operating
    system error.
    """
    command = [sys.executable, "-m", "likeness", "train", f"{TINY}:arcface"]
    command += ["--data", str(voices), "--out", str(tmp_path / "run")]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert not [
        path.name
        for path in (tmp_path / "run").iterdir()
        if path.suffix == ".safetensors" or path.name.startswith(".")
    ]
    assert likeness(*command[3:], "--resume") == 0
    assert "holds no run to go on with" in " ".join(capsys.readouterr().err.split())


def test_without_only_no_demo_starts_where_one_is_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "speaker" / "run").mkdir(parents=True)
    assert likeness("demo", "--out", tmp_path) == 2
    assert "already holds a demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["speaker"]


def test_scoring_starts_without_torch(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("a/1 a/2 .9 1\na/1 b/1 .1 0\nb/1 b/2 .8 1\nb/2 a/2 .2 0\n")
    embeddings.write(
        tmp_path / "e.npz",
        embeddings.Embeddings(
            ("a/1", "a/2", "b/1", "b/2"),
            np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
        ),
    )
    trials = tmp_path / "trials.txt"
    trials.write_text("a/1 a/2 1\na/1 b/1 0\n")
    code = (
        "import json, sys; from likeness.cli import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    try: main(command)\n    except SystemExit as stopped: assert not stopped.code\n"
        "print([name for name in sys.modules if name in ('torch', 'speechbrain', 'bokeh')])"
    )
    commands = [
        ["evaluate", tmp_path / "s.txt"],
        ["score", "--trials", trials, "--embeddings", tmp_path / "e.npz", "--out", tmp_path / "o"],
        ["identify", "--gallery", tmp_path / "e.npz", "--probes", tmp_path / "e.npz"],
        ["retrieve", "--embeddings", tmp_path / "e.npz"],
    ]
    texts = json.dumps([[str(word) for word in command] for command in commands])
    ended = subprocess.run(
        [sys.executable, "-c", code, texts], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"


def test_voxsrc23_validation_gives_the_published_numbers(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "protocols" / "voxsrc23_val"
    files = (folder / "scores.txt.gz", "--trials", folder / "trials.txt.gz")
    priors = ("--p-target", "0.05", "--p-target", "0.01", "--p-target", "0.001")
    written = ("--json", tmp_path / "r.json", "--resamples", "0")
    assert likeness("evaluate", *files, *priors, *written) == 0
    values = {
        result["metric"]: result["value"]
        for result in json.loads((tmp_path / "r.json").read_text())["results"]
    }
    expected = {
        "eer": 0.040948,
        "min_dcf(0.05)": 0.214243,
        "min_dcf(0.01)": 0.323345,
        "min_dcf(0.001)": 0.484323,
        "tar_at_far(0.1)": 0.979528,
        "tar_at_far(0.01)": 0.906726,
        "tar_at_far(0.001)": 0.774264,
    }
    assert values == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    "given",
    [
        "evaluate a.txt s.txt --json s.txt",
        "evaluate a.txt --trials s.txt --json link.txt",
        "score --trials s.txt --embeddings e.npz --out s.txt",
        "score --trials a.txt --embeddings e.npz --out e.npz",
        "retrieve --embeddings e.npz --labels s.txt --json s.txt",
        "identify --gallery e.npz --probes e.npz --json e.npz",
        "fit plda e.npz --labels s.txt --out s.txt",
        "verify s.txt a.txt --model likeness:voice --json s.txt",
    ],
)
def test_no_output_replaces_an_input(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "s.txt", "e.npz"):
        Path(name).write_text(name)
    Path("link.txt").hardlink_to("s.txt")
    assert likeness(*given.split()) == 2
    assert "name another file" in capsys.readouterr().err
    assert all(Path(name).read_text() == name for name in ("a.txt", "s.txt", "e.npz"))
