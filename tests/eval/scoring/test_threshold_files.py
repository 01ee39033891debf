"""Thresholds from `evaluate --save-to` to `verify --far`, many pairs, galleries and clusters: on a
small model and real files, with what a stranger may do wrong.
"""

import csv
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

import likeness as front_door
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import read_scores
from likeness.eval.intervals.guarantee import guaranteed_threshold
from likeness.eval.scoring.origin import read_origin, write_origin
from likeness.eval.scoring.threshold_files import Rule, find
from likeness.eval.scoring.thresholds import subjects_for_guarantee
from likeness.eval.types import Scores
from likeness.models._places import carry
from tests.scripts import printed, refused, run_command
from tests.sounds import chatter

FARS = ("--far", 0.5, "--far", 0.01, "--resamples", 0)


def table(path: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines(), delimiter=delimiter))


def another_checkpoint() -> Path:
    """A run with other weights, which is another model."""
    weights = shutil.copytree("runs/voices", "runs/other") / Path("last.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    return weights.parent


@pytest.fixture
def world(_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, voices of 4 speakers, embeddings, trials and scores."""
    shutil.copytree(_world / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "voices" / "thresholds.json").unlink(missing_ok=True)
    for name in ("voices", "trials.txt", "a.wav", "b.wav"):
        (tmp_path / name).symlink_to(_world / name)
    monkeypatch.chdir(tmp_path)
    front_door.load("runs/voices").embed("voices").save("v.npz")
    printed("score", "--trials", "trials.txt", "--embeddings", "v.npz", "--out", "s")
    return tmp_path


def test_a_stored_threshold_decides_and_says_where_it_comes_from(world, capsys):
    compare = ("verify", "a.wav", "b.wav", "--model", "runs/voices")
    assert "--save-to" in refused(*compare, "--far", 0.5)
    assert run_command("evaluate", "s", *FARS, "--save-to", "runs/voices") == 0
    assert "not stored: the threshold at FAR 1 %" in capsys.readouterr().err
    trials, values = read_scores("s")
    nontargets = np.sort(values[~trials.target])
    shown = printed(*compare, "--far", 0.5, "--json", "v.json")
    stored = json.loads(Path("v.json").read_text())
    # The strict rule: the lowest score that at most half of the nontarget scores reach.
    assert np.mean(nontargets >= stored["threshold"]) <= 0.5
    assert np.mean(nontargets >= values[values < stored["threshold"]].max()) > 0.5
    assert stored["accepted"] is (stored["score"] >= stored["threshold"])
    assert "FAR 50 %, measured on trials.txt: 4 subjects, 28 trials, 20" in shown
    assert "nontarget trials" in refused(*compare, "--far", 0.01)
    for wrong, word in (
        (("--far", 0.5, "--threshold", 0.3), "one of them"),
        (("--far", "1%"), "eer"),
        (("--far", 2), "between 0 and 1"),
        (("--thresholds", "runs/voices/thresholds.json"), "--far"),
    ):
        assert word in refused(*compare, *wrong)
    model = front_door.load("runs/voices")
    assert model.verify("a.wav", "b.wav", far=0.5).threshold == stored["threshold"]
    assert model.thresholds.at("eer").value == model.verify("a.wav", "b.wav", far="eer").threshold


def test_a_guaranteed_threshold_decides_and_too_few_subjects_are_refused(world: Path) -> None:
    evaluate = ("evaluate", "s", "--resamples", 0, "--guarantee", 0.95)
    compare = ("verify", "a.wav", "b.wav", "--model", "runs/voices", "--far")
    # Four speakers make two pairs, and .2 ** 2 < .05.
    shown = printed(*evaluate, "--far", 0.8, "--save-to", "runs/voices")
    assert "of 2 trials without a common subject 0 may pass" in shown
    stored = Path("runs/voices/thresholds.json").read_bytes()
    assert "FAR at most 80 % (95 % confidence over subjects)" in printed(*compare, 0.8)
    model = front_door.load("runs/voices")
    scores = front_door.evaluate("s", front_door.VerificationSettings(fars=[0.8], num_resamples=0))
    assert scores.save_thresholds(model, guarantee=0.95) == model.thresholds
    # What cannot be kept replaces nothing, and leaves no results behind.
    too_few = ("--far", 0.8, "--far", 0.7, "--save-to", "runs/voices", "--json", "r.json")
    assert "at least 6 subjects" in refused(*evaluate, *too_few)
    assert Path("runs/voices/thresholds.json").read_bytes() == stored
    assert not Path("r.json").exists()


def test_a_guarantee_needs_subjects_and_not_the_order_of_rows(world: Path) -> None:
    def threshold(lines: Iterable[str]) -> float:
        Path("again.txt").write_text("".join(lines))
        trials, values = read_scores("again.txt")
        ids = trials.enrol_ids + trials.probe_ids
        asked = subjects_for_guarantee(0.95, trials, {id: id.split("/")[0] for id in ids})
        assert trials.target is not None
        return guaranteed_threshold(Scores(values, trials.target), asked[1], 0.8)[0]

    lines = Path("s").read_text().splitlines(keepends=True)
    shuffled = [np.random.default_rng(seed).permutation(lines) for seed in range(5)]
    assert len({threshold(each) for each in (lines, *shuffled)}) == 1
    with pytest.raises(ValueError, match="not known"):
        subjects_for_guarantee(0.95, None, {})


def test_subjects_that_are_only_supposed_guarantee_nothing(world: Path) -> None:
    """Ids without folders: items that no target trial connects would count as subjects."""
    Path("flat").write_text(Path("s").read_text().replace("/", "-"))
    origin = read_origin("s")
    assert origin is not None
    write_origin("flat", origin)
    trials, _ = read_scores("flat")
    ids = dict.fromkeys(trials.enrol_ids + trials.probe_ids)
    Path("who").write_text("".join(f"{id} {id.partition('-')[0]}\n" for id in ids))
    evaluate = ("evaluate", "flat", "--resamples", 0, "--guarantee", 0.95, "--far", 0.8)
    assert "`id subject` list" in refused(*evaluate, "--save-to", "t.json")
    assert not Path("t.json").exists()
    assert run_command(*evaluate, "--save-to", "t.json", "--subjects", "who") == 0


def test_thresholds_of_other_scores_are_not_stored_and_not_used(world: Path) -> None:
    save = ("evaluate", "s", *FARS, "--save-to")
    for place, word in (("hub:a/b", ".json"), ("no.onnx", ".json"), ("no/t.json", "no")):
        assert word in refused(*save, place)
    other = another_checkpoint()
    assert "is no place for the thresholds" in refused(*save, other)
    assert run_command(*save, "t.json") == 0
    verify = ("verify", "a.wav", "b.wav", "--far", 0.5, "--thresholds", "t.json", "--model")
    assert run_command(*verify, "runs/voices") == 0
    assert "none of the stored thresholds holds here" in refused(*verify, other)
    # Normalised and calibrated scores are kept apart from plain ones.
    score = ("score", "--trials", "trials.txt", "--embeddings", "v.npz")
    rows = np.random.default_rng(0).normal(size=(9, 8))
    files.write_embeddings(Path("c.npz"), Embeddings(tuple("abcdefghi"), rows))
    assert run_command(*score, "--cohort", "c.npz", "--top-n", 5, "--out", "normed") == 0
    assert run_command("evaluate", "normed", *FARS, "--save-to", "n.json") == 0
    assert "as_norm" in refused(*verify[:5], "--thresholds", "n.json", "--model", "runs/voices")
    before = find("", "t.json")
    assert run_command("evaluate", "normed", *FARS, "--save-to", "t.json") == 0
    assert before[0] in find("", "t.json")
    assert len(find("", "t.json")) == 2
    # Those of other scores of one kind are replaced by --force alone; other rates are added.
    fewer = Path("trials.txt").read_text().splitlines(keepends=True)[1:]
    Path("fewer.txt").write_text("".join(fewer))
    printed("score", "--trials", "fewer.txt", *score[3:], "--out", "s2")
    stored = Path("t.json").read_bytes()
    again = ("evaluate", "s2", *FARS, "--save-to", "t.json")
    assert "--force" in refused(*again)
    assert Path("t.json").read_bytes() == stored
    assert run_command("evaluate", "s", "--resamples", 0, "--far", 0.6, "--save-to", "t.json") == 0
    assert {point.far for point in find("", "t.json")[0].points} >= {0.5, 0.6}
    assert run_command(*again, "--force") == 0
    assert find("", "t.json")[0].data == "fewer.txt"
    # A score file that was edited says nothing of its model.
    Path("s").write_text(Path("s").read_text().replace("0.9", "0.8"))
    assert "which model" in refused(*save, "t.json")


def test_an_export_has_the_thresholds_of_its_run(world: Path) -> None:
    assert run_command("evaluate", "s", *FARS, "--save-to", "runs/voices") == 0
    (entry,) = find("runs/voices")
    assert not carry("v.npz", entry.origin.meta, Path("m.onnx"))
    assert carry("runs/voices", entry.origin.meta, Path("m.onnx"))
    assert find("m.onnx") == (entry,)
    assert find("") == find("insightface:m.onnx") == ()
    assert Rule(far=0.5).decide("m.onnx", entry.origin.meta)[0] == entry.at(0.5).value


OTHER = "voices/spk002/utt00.flac"
PAIRS = [("a.wav", "b.wav", "1"), ("b.wav", "a.wav", ""), ("a.wav", OTHER, "0")]
PAIRS += [("a.wav", "nobody.wav", "0"), ("trials.txt", "b.wav", "1")]


def test_every_pair_has_a_row_whatever_its_files_are(world, capsys):
    with Path("pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("Path 1", "path_2", "same"), *PAIRS])
    command, model = ("verify", "--model", "runs/voices", "--pairs"), front_door.load("runs/voices")
    score = model.verify("a.wav", "b.wav").score
    least = min(score, model.verify("a.wav", OTHER).score) - 1e-4
    assert run_command(*command, "pairs.csv", "--threshold", least) == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert [(row["first"], row["second"]) for row in rows] == [pair[:2] for pair in PAIRS]
    assert [row["accepted"] for row in rows] == ["true", "true", "true", "", ""]
    assert float(rows[0]["score"]) == pytest.approx(score, abs=1e-6)
    assert rows[0]["score"] == rows[1]["score"]
    assert [bool(row["note"]) for row in rows] == [False, False, False, True, True]
    assert "nobody.wav" in rows[3]["note"]
    assert "1 false accept, 0 false rejects, balanced accuracy 50.00%" in shown.err
    # The error rates are those of `evaluate` on the pairs that have a score and a label.
    labelled = front_door.Scores([float(rows[k]["score"]) for k in (0, 2)], [True, False])
    expected = front_door.evaluate(labelled).results[0]
    line = next(line for line in shown.err.splitlines() if "EER" in line)
    assert f"{100 * expected.value:.2f}" in line
    assert "no verdict" in printed(*command, "pairs.csv", "--out", "p.tsv")
    stored = table("p.tsv", "\t")
    assert [row["accepted"] for row in stored] == [""] * 5
    assert stored[1]["label"] == ""
    with pytest.warns(UserWarning, match="no (score|label)"):  # the table is a score file
        trials, values = read_scores("p.tsv")
    assert trials.target is not None
    assert (trials.target.tolist(), len(values)) == ([True, False], 2)
    origin = read_origin("p.tsv")
    assert origin is not None
    assert (origin.model, origin.trials) == (model.meta["model"], "pairs.csv")
    in_python = model.verify_pairs([pair[:2] for pair in PAIRS]).rows
    assert [str(row.score or "") for row in in_python] == [row["score"] for row in stored]
    frame = pd.DataFrame(PAIRS[:2], columns=["first", "second", "label"])
    frame["label"] = [1.0, math.nan]  # as pandas reads a column with a gap
    of_frame = model.verify_pairs(frame).rows
    assert [row.label for row in of_frame] == [True, None]
    assert [row.score for row in of_frame] == [row.score for row in in_python[:2]]
    Path("list.txt").write_text("mine;theirs\na.wav;b.wav\n")
    printed(*command, "list.txt", "--columns=enrol=mine", "--columns=probe=theirs")
    Path("list.txt").write_text("first,second\na,b\n")
    assert "does not exist" in refused(*command, "list.txt")


def test_labelled_pairs_end_with_rates_and_with_thresholds_that_decide(world, capsys):
    pairs = ("verify", "--model", "runs/voices", "--pairs")
    labelled = (*pairs, "trials.txt", "--root", "voices", "--out", "v.csv", "--json", "r.json")
    assert run_command(*labelled, "--save-to", "mine.json") == 0
    assert "4 subjects, fewer than 20, say little of others" in capsys.readouterr().out
    printed("evaluate", "v.csv", "--save-to", "theirs.json", "--json", "theirs")
    assert find("", "mine.json")[0].data == "trials.txt"
    assert find("", "mine.json")[0].points == find("", "theirs.json")[0].points
    results = [json.loads(Path(name).read_text())["results"] for name in ("r.json", "theirs")]
    values = [[(of["metric"], of["value"], of["interval"]) for of in each] for each in results]
    assert values[0] == values[1]
    stored = ("--thresholds", "mine.json", "--far", "eer")
    shown = printed("verify", "a.wav", "b.wav", "--model", "runs/voices", *stored)
    assert "measured on trials.txt: 4 subjects" in shown
    assert "is no place" in refused(*pairs, "v.csv", "--root", "voices", "--save-to", "a.wav")
    # What cannot be done is said before the model is looked at.
    no_model = ("verify", "--model", "nowhere", "--pairs")
    Path("same.txt").write_text("a.wav b.wav 1\n")
    assert "some of two" in refused(*no_model, "same.txt", "--json", "x.json")
    assert "--root" in refused(*no_model, "trials.txt", "--root", "runs")
    assert "--save-to without --pairs" in refused("verify", "a.wav", "b.wav", "--save-to", "x.json")


def test_a_gallery_from_enrolment_to_removal(world, capsys):
    use = ("--gallery", "people", "--model", "runs/voices")
    speakers = sorted(path.name for path in Path("voices").iterdir())
    recording = next(Path("voices", speakers[1]).iterdir())
    for wrong in (("list", *use[:2]), ("search", "a.wav", *use)):
        assert "contains no gallery" in refused("gallery", *wrong)
    assert "--subject" in refused("gallery", "enrol", recording, *use)
    refused("gallery", "enrol", "trials.txt", *use)
    assert not Path("people").exists()
    shutil.copytree("voices", "mine")
    Path("mine", speakers[2], "noise.wav").write_text("no sound")
    assert run_command("gallery", "enrol", "mine", *use) == 0
    shown = capsys.readouterr()
    assert "8 files of 4 subjects" in shown.out
    assert "noise.wav" in shown.err
    # The same line once more, as after a kill: everything is there. Other contents are refused.
    assert "left as it was: 4 subjects" in printed("gallery", "enrol", "mine", *use)
    changed, other = (sorted(Path("mine", name).glob("*.flac"))[0] for name in speakers[:2])
    content = changed.read_bytes()
    changed.write_bytes(other.read_bytes())
    assert "enrolled already" in refused("gallery", "enrol", "mine", *use)
    changed.write_bytes(content)
    rows = [f"{path};{path.parent.name};x\n" for path in Path("mine").rglob("*.flac")]
    Path("two.csv").write_text("clip;person;speaker\n" + "".join(rows))
    again = ("gallery", "enrol", "two.csv", *use, "--columns", "path=clip,label=person")
    assert "left as it was: 4 subjects" in printed(*again, "--existing", "skip")
    # a row without a label is nobody, and no subject called like its folder
    with Path("two.csv").open("a") as file:
        file.write("voices/lone.flac;;x\n")
    assert "1 of 9 files have no subject" in refused(*again)
    printed("gallery", "enrol", recording, *use, "--subject", "ann")
    printed("gallery", "enrol", "mine", *use, "--existing", "replace")
    listed = [line.split()[:2] for line in printed("gallery", "list", *use[:2]).splitlines()[1:]]
    assert sorted(listed) == [["ann", "1"], *([name, "2"] for name in speakers)]
    asked = ("gallery", "search", recording, *use, "-k", 2, "--threshold", 0.9999)
    first, second = csv.DictReader(printed(*asked).splitlines())
    assert (first["subject"], first["accepted"]) == ("ann", "true")
    assert float(first["score"]) >= float(second["score"])
    assert "another model" in refused("gallery", "search", "a.wav", *use[:3], another_checkpoint())
    refused("gallery", "remove", "ann", "nobody", *use[:2])
    assert "subjects erased: 1; left: 4" in printed("gallery", "remove", "ann", *use[:2])
    printed("gallery", "remove", *speakers, *use[:2])
    assert run_command("gallery", "search", "a.wav", *use) == 0
    assert "subjects: 0" in capsys.readouterr().err


def test_clusters_of_files_and_of_embeddings_are_the_same(world: Path) -> None:
    command = ("gallery", "cluster", "voices", "--model", "runs/voices", "--out")
    printed(*command, "c.csv", "--num-clusters", 3, "--report", "page")
    rows = table("c.csv")
    assert {row["cluster"] for row in rows} == {"1", "2", "3"}
    text = Path("page/index.html").read_text(encoding="utf-8")
    assert text.count("data:audio/flac") >= len(rows)
    assert all(row["id"] in text for row in rows)
    shown = ("--report", "stored", "--media", "voices")
    printed("gallery", "cluster", "v.npz", "--num-clusters", 3, "--out", "d.tsv", *shown)
    assert "data:audio/flac" in Path("stored/index.html").read_text(encoding="utf-8")
    by_id = {row["id"]: row["cluster"] for row in table("d.tsv", "\t")}
    assert by_id == {row["id"]: row["cluster"] for row in rows}
    printed("evaluate", "s", *FARS, "--save-to", "runs/voices")
    assert "FAR 50 %" in printed(*command, "f.csv", "--far", 0.5)
    thresholds = front_door.load("runs/voices").thresholds
    found = front_door.cluster("v.npz", threshold=thresholds.at(0.5).value)
    assert [int(row["cluster"]) for row in table("f.csv")] == (found.numbers.tolist())
    for wrong, word in (
        ((), "--num-clusters"),
        (("--far", 0.5, "--num-clusters", 2), "give one of"),
        (("--method", "hdbscan", "--far", 0.5), "hdbscan"),
    ):
        assert word in refused(*command, "new.csv", *wrong)
    without_model = ("gallery", "cluster", "voices", "--num-clusters", 2, "--out", "new.csv")
    assert "--model is needed" in refused(*without_model)


def estimate_at(name: str, pitch: int) -> None:
    """Thresholds NAME.json of 52 recordings, which lie in the folder NAME."""
    Path(name).mkdir()
    for number in range(52):
        wave = chatter(0.75, seed=number) + 0.2 * np.sin(np.arange(12_000) / (pitch + number % 13))
        soundfile.write(f"{name}/{number}.wav", wave, 16_000)
    ask = ("threshold", "--model", "runs/voices", "--unlabelled", name, "--out", f"{name}.json")
    said = printed(*ask, "--far", 0.05)
    assert f"estimated from 52 unlabelled items of {name}" in said
    line = f"likeness verify A B --model runs/voices --far 0.05 --thresholds {name}.json\n"
    assert said.endswith(line)


def test_a_place_has_its_threshold_from_files_of_nobody_knows_whom(world: Path) -> None:
    estimate_at("lobby", 5)
    here = front_door.load("runs/voices", thresholds="lobby.json")
    before, after = front_door.load("runs/voices").embed("lobby"), here.embed("lobby")
    centre = before.unit().mean(axis=0)
    expected = before.unit() - centre
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(after.unit(), expected, atol=1e-4)
    np.testing.assert_allclose(after.norms, before.norms, rtol=1e-4)

    verdict = here.verify("lobby/0.wav", "lobby/1.wav", far=0.05)
    stored = here.thresholds.at(0.05)
    assert stored.frr is None
    assert verdict.threshold == stored.value
    assert verdict.score == pytest.approx(float(expected[0] @ expected[1]), abs=1e-3)
    files = ("lobby/0.wav", "lobby/1.wav", "--model", "runs/voices", "--thresholds", "lobby.json")
    assert "lobby" in printed("verify", *files, "--far", 0.05)
    assert "`likeness threshold --far RATE`" in refused("verify", *files, "--far", 0.01)

    with pytest.raises(front_door.LikenessError, match="another model"):
        front_door.load("likeness:voice", thresholds="lobby.json")


def test_a_gallery_of_a_place_subtracts_its_mean_and_decides_by_its_threshold(world, capsys):
    estimate_at("lobby", 5)
    estimate_at("hall", 40)
    model, here = ("--model", "runs/voices"), ("--gallery", "people")
    enrol, search = ("gallery", "enrol", "voices", *model), ("gallery", "search", "lobby", *model)
    for wrong in ("v.npz", "s.origin.json"):
        refused(*enrol, *here, "--thresholds", wrong)
    printed("evaluate", "s", *FARS, "--save-to", "labelled.json")
    assert "without a mean" in refused(*enrol, *here, "--thresholds", "labelled.json")
    assert not Path("people").exists()
    assert "mean of lobby" in printed(*enrol, *here, "--thresholds", "lobby.json")
    assert "left as it was" in printed(*enrol, *here)  # without the file: the gallery has the mean
    capsys.readouterr()

    there = front_door.load("runs/voices", thresholds="lobby.json")
    rows = list(csv.DictReader(printed(*search, *here, "--far", 0.05, "-k", 4).splitlines()))
    assert "unlabelled items of lobby" in capsys.readouterr().err
    template = there.embed(sorted(Path("voices", rows[0]["subject"]).iterdir())).matrix.mean(axis=0)
    probe = there.embed("lobby").unit()[0]
    score = float(template @ probe / np.linalg.norm(template))
    assert float(rows[0]["score"]) == pytest.approx(score, abs=1e-4)
    least = there.thresholds.at(0.05).value
    assert all((row["accepted"] == "true") == (float(row["score"]) >= least) for row in rows)
    again = printed(*search, *here, "--far", 0.05, "-k", 4, "--thresholds", "lobby.json")
    assert list(csv.DictReader(again.splitlines())) == rows
    checked = ("gallery", "check", *here, "--far", 0.05)
    assert "subtracting the mean of lobby" in printed(*checked)
    for other in ("hall.json", "labelled.json"):
        for words in ((*search, *here, "--far", 0.05), checked):
            refused(*words, "--thresholds", other)
    assert "mean" in refused(*enrol, *here, "--thresholds", "hall.json", "--existing", "add")

    plain = ("--gallery", "plain")
    printed(*enrol, *plain)
    far = ("--far", 0.05, "--thresholds", "lobby.json")
    assert "the mean of no place" in refused(*search, *plain, *far)
    assert "`enrol`" in refused("gallery", "check", *plain, *far)
