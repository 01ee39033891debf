"""No command counts an item that is compared with itself; all name it in the same words.

Commands are found by their signatures: what takes trials, scores or pairs, what searches a gallery,
and what draws trials. A new one has to say here how it is called, or why it compares nothing.
"""

import importlib
import inspect
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import likeness
from likeness import Trials, cli, read_embeddings
from likeness.commands._signature import Command
from likeness.toolkit.training.listed import trials_by
from tests.scripts import run_command
from tests.sounds import chatter

TAKES = {"trials", "scores", "pairs", "gallery", "probes", "unlabelled"}
NOTHING_IS_COMPARED = {
    "evaluate evaluate_files": "the protocol of IJB, which is measured as it was published",
    "identify identify_files": "the protocol of IJB, which is measured as it was published",
    "gallery enrol": "adds to a gallery",
    "gallery enrol_embeddings": "adds to a gallery",
    "gallery check_gallery": "compares what is enrolled with each other, not with itself",
    "gallery list_subjects": "lists a gallery",
    "gallery remove": "removes from a gallery",
    "serve Setup": "searches what is uploaded, which has no id",
}
ITSELF, LABELS = "an item with itself", "labelled both"
MODEL = ("--model", "runs/voices")
# What is typed for a command that takes a list of trials, or with an ending files of their scores.
OF_TRIALS = {
    "score score": "score --trials {list} --embeddings e.npz --out new",
    "score fuse": "score {list}.1 {list}.2 --fusion fusion.json --out new",
    "fit calibrate": "fit calibration --trials {list} --embeddings e.npz --out new.json",
    "fit fit": "fit fusion {list}.1 {list}.2 --out new.json",
    "evaluate evaluate": "evaluate {list}.1 --resamples 0 --json new.json",
    "bench bench": "bench --model runs/voices --trials {list} --root voices --resamples 0",
    "verify verify_pairs": "verify --model runs/voices --pairs {list} --root voices",
}
OF_SEARCHES = {
    "identify identify": "identify --resamples 0 --json new.json --gallery e.npz --probes",
    "retrieve retrieve": "retrieve --resamples 0 --json new.json --gallery e.npz --embeddings",
}
IDS = [f"spk{k:03}/utt{n:02}.flac" for k in range(4) for n in range(2)]
OTHERS = {
    "gallery search": "test_what_is_enrolled_is_named",
    "gallery search_embeddings": "test_what_is_enrolled_is_named",
    "lists draw_lists": "test_lists_hold_no_file_against_itself",
    "threshold estimate_thresholds": "test_a_threshold_is_of_distinct_items",
}


def of_trials(name: str, trials: str) -> list[str]:
    return OF_TRIALS[name].format(list=trials).split()


def members() -> Iterator[str]:
    """The commands and functions that compare items."""
    for name in cli.COMMANDS:
        for command in vars(importlib.import_module(f"likeness.commands.{name}")).values():
            for function in command.functions if isinstance(command, Command) else ():
                signature = inspect.signature(function)
                draws = "Trials]" in str(signature.return_annotation)
                if draws or TAKES & signature.parameters.keys():
                    yield f"{name} {function.__name__}"


def test_every_command_that_compares_is_known():
    known = [*OF_TRIALS, *OF_SEARCHES, *OTHERS, *NOTHING_IS_COMPARED]
    assert sorted(members()) == sorted(known)
    assert all(test in globals() for test in OTHERS.values())


@pytest.fixture
def world(_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/voices, eight voices, their embeddings, and lists in which something is odd.

    Lists of trials are called plain, itself, spelled (with ./), repeat, contradiction and crossed
    (with the labels in both orders); score files the same with an ending.
    """
    shutil.copytree(_world / "runs", tmp_path / "runs")
    (tmp_path / "voices").symlink_to(_world / "voices")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    people = np.repeat(rng.standard_normal((4, 16)), 2, axis=0)
    rows = people + 2 * rng.standard_normal((8, 16))
    likeness.Embeddings(tuple(IDS), rows).save("e.npz")
    pairs = [(a, b, int(a[:6] == b[:6])) for a, b in itertools.combinations(IDS, 2)]
    first, second, label = pairs[0]
    more: dict[str, list[tuple[str, str, int]]] = {
        "plain": [],
        "itself": [(first, first, 1)],
        "spelled": [(f"./{first}", first, 1)],
        "repeat": [(second, first, label), pairs[-1]],
        "contradiction": [(first, second, 1 - label)],
        "crossed": [(second, first, 1 - label)],
    }
    for name, odd in more.items():
        listed = [*pairs, *odd]
        Path(name).write_text("".join(f"{a} {b} {c}\n" for a, b, c in listed))
        for system in "12":
            noise = np.random.default_rng(int(system)).standard_normal(len(listed))
            values = noise + [0.7 * c for *_, c in listed]
            values[len(pairs) + 1 :] = values[len(pairs) - 1]  # a pair that is repeated
            lines = (f"{a} {b} {v} {c}\n" for (a, b, c), v in zip(listed, values, strict=True))
            Path(f"{name}.{system}").write_text("".join(lines))
    assert run_command("fit", "fusion", "plain.1", "plain.2", "--out", "fusion.json") == 0
    likeness.Embeddings(tuple(f"./{id}" for id in IDS), rows).save("spelled.npz")
    return tmp_path


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which ends with a code, and gives what it says on stderr."""

    def run(*words: Any, code: int = 0) -> str:
        capfd.readouterr()
        for path in Path().glob("new*"):
            path.unlink()
        assert run_command(*words) == code
        return capfd.readouterr().err

    return run


def results() -> list[dict[str, Any]]:
    return list(json.loads(Path("new.json").read_text())["results"])


@pytest.mark.parametrize("name", OF_TRIALS)
def test_trials(name, world, said):
    def run(kind: str, code: int = 0) -> str:
        return said(*of_trials(name, kind), code=code)

    what = "pairs" if name.startswith("verify") else "trials"
    assert ITSELF not in run("plain")
    assert "repeat" not in run("plain")
    plain = Path("new").read_text() if Path("new").exists() else ""
    for kind in ("itself", "spelled"):
        assert f"1 of 29 {what} compares {ITSELF}" in run(kind)
        if name == "score score":
            assert Path("new").read_text() == plain
        if name == "evaluate evaluate":
            assert {of["conventions"]["self_matches"] for of in results()} == {1}
            assert {of["counts"]["targets"] for of in results()} == {4}
    shown = run("repeat")
    assert f"2 of 30 {what} repeat a pair" in shown
    assert shown.count("repeat a pair") == 1
    # The scores of the pair in the other order are drawn anew.
    assert ("1 pair scored twice" in shown) == ("{list}.1" in OF_TRIALS[name])
    for kind in ("contradiction", "crossed"):
        assert LABELS in run(kind, code=2)


def test_a_verdict_on_one_item_is_not_counted(world, said):
    words = [*of_trials("verify verify_pairs", "itself"), "--threshold", -1]
    assert "28 of 29 pairs compared (cosine): 28 the same subject, 0 different" in said(*words)


def test_scores_of_self_trials_fit_a_list_without_them(world, said):
    for trials in ("plain", "itself"):
        said("evaluate", "itself.1", "--trials", trials, "--resamples", 0, "--json", "new.json")
        assert {of["counts"]["targets"] for of in results()} == {4}


def test_what_a_list_and_its_scores_repeat_is_named_once(world, said):
    lines = Path("repeat").read_text() + f"{IDS[0]} {IDS[0]} 1\n"
    Path("list").write_text(lines)
    words = ("evaluate", "repeat.1", "--trials", "list", "--resamples", 0, "--json", "new.json")
    assert said(*words).count("repeat a pair") == 1


def test_a_blind_list_is_scored_whole(world, said):
    lines = [line.rpartition(" ")[0] for line in Path("itself").read_text().splitlines()]
    Path("blind").write_text("\n".join(lines))
    assert f"1 of 29 trials compares {ITSELF}" in said(*of_trials("score score", "blind"))
    assert len(Path("new").read_text().splitlines()) == 29


def test_a_model_is_not_compared_with_what_enrols_it(world, said):
    first, second, other = IDS[0], IDS[1], IDS[2]
    Path("models").write_text(f"m {first}\n")
    Path("list").write_text(f"m {first} 1\nm {second} 1\nm {other} 0\n")
    shown = said(*of_trials("score score", "list"), "--enrolment", "models")
    assert f"1 of 3 trials compares {ITSELF}" in shown
    Path("list").write_text(f"{first[:-5]} {first} 1\n{first} {second} 1\n{first} {other} 0\n")
    shown = said(*of_trials("score score", "list"), "--strip-extension")
    assert f"1 of 3 trials compares {ITSELF}" in shown


def test_a_copy_is_named_and_counts(world, said):
    rows = read_embeddings("e.npz")
    copy = likeness.Embeddings(("spk000/copy",), rows.matrix[:1])
    likeness.Embeddings((*rows.ids, *copy.ids), [*rows.matrix, *copy.matrix]).save("more.npz")
    copy.save("copy.npz")
    Path("list").write_text(f"{rows.ids[0]} spk000/copy 1\n{rows.ids[0]} {rows.ids[2]} 0\n")
    scored = ["score", "--trials", "list", "--embeddings", "more.npz", "--out", "new"]
    assert "1 of 2 trials compares two copies of one item" in said(*scored)
    for line in OF_SEARCHES.values():
        assert "1 of 1 searches compares two copies" in said(*line.split(), "copy.npz")


@pytest.mark.parametrize("name", OF_SEARCHES)
def test_searches(name, world, said):
    words = OF_SEARCHES[name].split()
    for probes in ("e.npz", "spelled.npz"):
        shown = said(*words, probes)
        assert f"8 of 8 searches compare {ITSELF}" in shown
        assert {of["conventions"]["self_matches"] for of in results()} == {8}
    values = {of["metric"]: of["value"] for of in results()}
    expected = likeness.retrieve("e.npz").results[0].value
    assert values.get("recall@1", values.get("rank_k(1)")) == pytest.approx(expected)
    Path("labels").write_text("".join(f"{id} someone{k % 3}\n" for k, id in enumerate(IDS)))
    option = "--probe-subjects" if name.startswith("identify") else "--gallery-labels"
    assert LABELS in said(*words, "e.npz", option, "labels", code=2)


def test_probes_that_only_they_enrol_are_no_strangers(world, said):
    rows = read_embeddings("e.npz")
    likeness.Embeddings(rows.ids[::2], rows.matrix[::2]).save("half.npz")
    words = OF_SEARCHES["identify identify"].replace("e.npz", "half.npz").split()
    said(*words, "e.npz")
    assert {(of["counts"]["probes"], of["counts"]["mated_probes"]) for of in results()} == {(4, 4)}
    assert "does not find itself" in said(*words, "half.npz", code=2)


@pytest.mark.parametrize("protocol", ["open", "closed"])
def test_galleries_apart_do_not_give_a_probe_back(protocol, world):
    """The numbers are those of each probe searched alone among the others."""
    rows = probes = read_embeddings("e.npz")
    if protocol == "open":
        strangers = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
        ids = (*rows.ids, *(f"new{k}/1" for k in range(6)))
        probes = likeness.Embeddings(ids, [*rows.matrix, *strangers])
    galleries = [likeness.Embeddings(rows.ids[k::2], rows.matrix[k::2]) for k in (0, 1)]
    settings = likeness.IdentificationSettings(ranks=(1, 2), num_resamples=0, protocol=protocol)
    found = likeness.identify(galleries, probes, settings)
    if protocol == "closed":
        best = (rows.unit() @ rows.unit().T - 9 * np.eye(8)).argmax(axis=1)
        hits = np.mean([IDS[row][:6] == id[:6] for row, id in zip(best, IDS, strict=True)])
        assert found.results[0].value == pytest.approx(hits)
    assert found.results[0].conventions["self_matches"] == 8


@pytest.mark.parametrize("what", [("voices", *MODEL), ("--embeddings", "e.npz")])
def test_what_is_enrolled_is_named(what, world, said):
    assert run_command("gallery", "enrol", "--gallery", "people", *what) == 0
    shown = said("gallery", "search", "--gallery", "people", *what)
    assert f"8 of 8 searches compare {ITSELF}" in shown


def test_a_copy_that_is_enrolled_is_named(world, said):
    copy = Path("more", IDS[0])
    copy.parent.mkdir(parents=True)
    shutil.copy(Path("voices", IDS[0]), copy)
    place = ("--gallery", "people", *MODEL)
    assert "same as another" not in said("gallery", "enrol", "voices", *place)
    words = ("gallery", "enrol", "more", *place, "--existing", "add")
    assert "1 of 1 file holds the same as another" in said(*words)


def test_lists_hold_no_file_against_itself(world, said):
    rows = [f"{id},{id},{id[:6]}\n" for id in IDS]
    Path("items.csv").write_text("".join(["id,path,label\n", *rows, f"again,{IDS[0]},spk000\n"]))
    shown = said("lists", "items.csv", "--root", "voices", "--split", "all", "--out", "lists")
    assert f"1 of 36 trials compares {ITSELF}" in shown
    assert f"{IDS[0]} again" not in Path("lists/trials.txt").read_text()


def test_a_threshold_is_of_distinct_items(world, said):
    Path("lobby").mkdir()
    for number in range(52):
        wave = chatter(0.75, seed=number) + 0.2 * np.sin(np.arange(12_000) / (5 + number % 13))
        soundfile.write(f"lobby/{number}.wav", wave, 16_000)
    shutil.copy("lobby/0.wav", "lobby/copy.wav")
    shown = said("threshold", *MODEL, "--unlabelled", "lobby", "--out", "lobby.json")
    assert "left out: 1 of 53" in shown


def test_a_file_verified_against_itself_is_named(world, said):
    first, second = (f"voices/{id}" for id in IDS[:2])
    assert ITSELF in said("verify", first, f"./{first}", *MODEL)
    assert ITSELF not in said("verify", first, second, *MODEL)


def test_what_a_training_measures_is_without_them():
    """`train`, `compare` and `reproduce` list the trials of a recipe by one function."""
    trials = Trials(("a", "b"), ("a", "b"), [0, 0], [0, 1], [True, False])
    with pytest.warns(UserWarning, match=ITSELF):
        _, listed = trials_by(lambda data: ([], trials), Path("data"))
    assert (len(listed), listed.self_matches) == (1, 1)
