"""The command line from end to end on synthetic voices, and what it says of wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats import embeddings
from likeness.eval.formats.trials import read_scores, read_trials, write_trials
from likeness.modalities import folders
from likeness.toolkit.training.train import fit
from tests.scripts import refused, run_command, touch

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "tiny.py"


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
    run = tmp_path / "run"
    settings = ("schedule.steps=2", "--data", voices, "--out", run)
    assert run_command("train", f"{TINY}:simple", *settings) == 0
    trained_page = (run / "report" / "index.html").read_text()
    assert "Loss by step" in trained_page
    assert "Lowest target scores" in trained_page
    assert "<audio controls" in trained_page
    listed_items = ("--items", trained / "items.txt", "--root", voices)
    for suffix in ("npz", "ark"):
        out, scores = tmp_path / f"e.{suffix}", tmp_path / f"{suffix}.txt"
        assert run_command("embed", "--model", run, *listed_items, "--out", out) == 0
        compared = ("--trials", trained / "trials.txt", "--embeddings", out)
        assert run_command("score", *compared, "--out", scores) == 0
    listed, values = read_scores(tmp_path / "npz.txt")
    assert np.array_equal(values, read_scores(tmp_path / "ark.txt")[1])
    assert len(listed) == len(read_trials(trained / "trials.txt"))
    # The similarity of the loss travels with the embeddings.
    stored = embeddings.read_embeddings(tmp_path / "e.npz")
    assert stored.meta["similarity"] == "simple:0.3"
    ids = (listed.enrol_ids[listed.enrol[5]], listed.probe_ids[listed.probe[5]])
    a, b = stored.matrix[stored.rows(ids)].astype(np.float64)
    expected = a @ b - 0.3 * np.linalg.norm(a) * np.linalg.norm(b)
    assert values[5] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    capsys.readouterr()
    points = ("--p-target", "0.1", "--far", "0.5")
    made = ("--json", tmp_path / "r.json", "--report", tmp_path / "report")
    assert run_command("evaluate", tmp_path / "npz.txt", *points, *made) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema"] == "likeness.results/1"
    assert {result["metric"] for result in document["results"]} == {
        "eer",
        "min_dcf(0.1)",
        "tar_at_far(0.5)",
        "balanced_accuracy",
    }
    assert f"{100 * document['results'][0]['value']:.2f}" in shown
    page = (tmp_path / "report" / "index.html").read_text()
    assert "likeness evaluate" in page
    assert "default-src 'none'" in page  # so that nothing in its scripts can ask the network
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train {tiny}:nothing --data {tmp} --out {tmp}/o", "nothing"),
        ("train {tiny} optm.lr=1 --data {tmp} --out {tmp}/o", "optim"),
        ("train {tiny} --data {tmp}/none --out {tmp}/o", "none"),
        ("embed --model {run}/run --items {run}/items.txt --out {tmp}/o.xyz", ".npz, .ark"),
        ("embed --model {run}/run --items {run}/items.txt --root {tmp} --out {tmp}/o.npz", "exist"),
        ("score --trials {tmp}/missing.txt --embeddings {tmp}/one.npz --out {tmp}/o", "2 of"),
        ("evaluate {tmp}/nan.txt", "NaN"),
        ("evaluate {tmp}/oneclass.txt", "target"),
        ("demo --only smell --out {tmp}/o", "smell"),
    ],
)
def test_wrong_input_gets_one_sentence_exit_2_and_writes_nothing(
    command: str, word: str, trained: Path, tmp_path: Path
) -> None:
    embeddings.write_embeddings(tmp_path / "one.npz", embeddings.Embeddings(("a",), [[1.0, 1.0]]))
    (tmp_path / "missing.txt").write_text("a b 1\na c 0\n")
    (tmp_path / "nan.txt").write_text("a b nan 1\nc d .1 0\n")
    (tmp_path / "oneclass.txt").write_text("a b .2 1\nc d .1 1\n")
    before = sorted(tmp_path.rglob("*"))
    assert word in refused(*command.format(tiny=TINY, tmp=tmp_path, run=trained).split())
    assert sorted(tmp_path.rglob("*")) == before


def test_reasons_are_grouped_and_formats_that_are_not_read_are_counted(
    voices: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine" / "ann"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.wav").write_bytes(b"RIFF" + bytes(number))
        (folder / f"{number}.amr").touch()
    sound = next(path for path in sorted(voices.rglob("*")) if path.is_file())
    (folder / f"a{sound.suffix}").write_bytes(sound.read_bytes())
    listed = ("--items", tmp_path / "mine", "--out", tmp_path / "e.npz")
    assert run_command("embed", "--model", trained / "run", *listed) == 0
    said = capsys.readouterr().err
    assert said.count("skipped") == 1
    assert "skipped ann/0.wav and 4 more items: " in said
    assert said.count("(.amr 5)") == 1
    refuse = ("--model", trained / "run", *listed, "--bad-items", "refuse", "--force")
    assert "5 of 6 items cannot be read" in refused("embed", *refuse)


def test_a_finished_demo_stays(tmp_path: Path) -> None:
    touch(tmp_path, "report/index.html", "speaker/results.json")
    assert "already holds a demo" in refused("demo", "--out", tmp_path)
    words = ("demo", "--only", "speaker", "--out", tmp_path / "speaker")
    assert "already holds a demo" in refused(*words)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_voxsrc23_validation_gives_the_published_numbers(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "protocols" / "voxsrc23_val"
    files = (folder / "scores.txt.gz", "--trials", folder / "trials.txt.gz")
    priors = ("--p-target", "0.05", "--p-target", "0.01", "--p-target", "0.001")
    written = ("--json", tmp_path / "r.json", "--resamples", "0", "--force")
    assert run_command("evaluate", *files, *priors, *written) == 0
    values = {
        result["metric"]: result["value"]
        for result in json.loads((tmp_path / "r.json").read_text())["results"]
    }
    expected = {
        "eer": 0.040948,
        "balanced_accuracy": 0.960204,
        "min_dcf(0.05)": 0.214243,
        "min_dcf(0.01)": 0.323345,
        "min_dcf(0.001)": 0.484323,
        "tar_at_far(0.1)": 0.979528,
        "tar_at_far(0.01)": 0.906726,
        "tar_at_far(0.001)": 0.774264,
    }
    assert values == pytest.approx(expected, abs=5e-7)
