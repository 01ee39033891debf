"""What `likeness train` leaves of the held-out items, and `likeness evaluate RUN` on it."""

import itertools
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import likeness as front_door
from likeness import Item, Trials, __main__, read_embeddings, read_mapping
from likeness.data import audio, read_scores, read_trials, synthetic, synthetic_glyphs, validation
from likeness.eval.formats.runs import HeldOutFiles
from likeness.eval.items.item_lists import read_items
from likeness.eval.items.items import Items
from likeness.eval.metrics.verification import eer
from likeness.toolkit.training.recipe import load, override
from likeness.training import held_out
from likeness.training.held_out import held_out_trials
from likeness.training.prepare import prepare_recipe
from likeness.training.recipe_files import locate
from likeness.training.train import RecipeOnData, run
from tests import tiny
from tests.scripts import printed, refused, run_command, touch
from tests.tiny import QUICK
from tests.toolkit.training.tiny_runs import torchrun


def cosines(files: HeldOutFiles) -> np.ndarray:
    """The scores of the trials, computed one by one."""
    embeddings, trials = read_embeddings(files.embeddings), read_trials(files.trials)
    rows = dict(zip(embeddings.ids, embeddings.matrix.astype(np.float64), strict=True))
    sides = [(rows[a], rows[b]) for a, b in pairs(trials)]
    return np.array([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in sides])


def pairs(trials: Trials) -> list[tuple[str, str]]:
    sides = zip(trials.enrol, trials.probe, strict=True)
    return [(trials.enrol_ids[enrol], trials.probe_ids[probe]) for enrol, probe in sides]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with voices whose names have a comma and blanks, and a run on them."""
    folder = tmp_path_factory.mktemp("held-out")
    synthetic.write_voices(folder / "voices", num_speakers=10, num_utterances=3, seconds=(0.6, 0.7))
    for path in (folder / "voices").rglob("utt00.flac"):
        path.rename(path.with_name("first take.flac"))
    for path in sorted((folder / "voices").iterdir()):
        path.rename(path.with_name(f"Smith, {path.name}"))
    data = ("--data", folder / "voices", "--out", folder / "run")
    assert run_command("train", "speaker/folders", *QUICK, *data) == 0
    return folder


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_damaged_file_is_found_before_the_first_step(command, trained, tmp_path):
    shutil.copytree(trained / "voices", tmp_path / "voices")
    held_out = read_trials(HeldOutFiles(trained / "run").trials)
    damaged = tmp_path / "voices" / held_out.enrol_ids[0]
    assert damaged.is_file()
    damaged.write_bytes(b"no sound")
    data = ("--data", tmp_path / "voices", "--out", tmp_path / "run")
    more = ["--variants", "statistics"] if command == "compare" else []
    text = refused(command, "speaker/folders", *QUICK, *more, *data)
    assert "1 of 6 held-out items cannot be read" in text
    assert not (tmp_path / "run").exists()


def test_files_of_the_held_out_trials_agree_with_each_other(trained):
    files = HeldOutFiles(trained / "run")
    trials, values = read_scores(files.scores)
    np.testing.assert_allclose(values, cosines(files), rtol=0, atol=1e-6)
    labels = read_mapping(files.labels)
    assert trials.target.tolist() == [labels[a] == labels[b] for a, b in pairs(trials)]
    items = read_items(files.items)
    assert {item.id for item in items} == set(read_embeddings(files.embeddings).ids) == {*labels}
    assert len(set(labels.values())) == 2
    kept, embedded = read_embeddings(files.embeddings), front_door.load(files.run).embed([*items])
    assert kept.ids == embedded.ids
    np.testing.assert_allclose(kept.matrix, embedded.matrix, rtol=0, atol=1e-5)
    assert dict(kept.meta) == dict(embedded.meta)
    assert any(" " in item.id for item in items)


def test_the_folder_of_a_run_stands_for_its_scores(trained, tmp_path):
    files, model = HeldOutFiles(trained / "run"), trained / "run"
    by_name = ("evaluate", files.scores, "--subjects", files.labels, "--far", 0.5)
    assert run_command(*by_name, "--json", tmp_path / "name.json") == 0
    by_run = ("evaluate", model, "--far", 0.5, "--save-to", model, "--report", tmp_path / "page")
    assert run_command(*by_run, "--json", tmp_path / "run.json") == 0
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("name", "run")]
    assert results[0]["results"] == results[1]["results"]
    page = (tmp_path / "page" / "index.html").read_text()
    assert "<audio" in page
    voices = sorted((trained / "voices").rglob("*.flac"))
    verdict = front_door.load(model).verify(voices[0], voices[1], far="eer")
    assert verdict.accepted is (verdict.score >= verdict.threshold)


def test_held_out_items_of_a_bucket_keep_their_urls(trained, tmp_path, monkeypatch):
    data, copied = trained / "voices", shutil.copytree(trained / "run", tmp_path / "run")
    recipe = override(load(locate("speaker/folders"))[0], [*QUICK])
    items, trials = held_out_trials(recipe.measure, data)
    urls = Items.of(item._replace(path=Path(f"s3:/bucket{item.path}")) for item in items)
    monkeypatch.setattr(held_out, "held_out_trials", lambda *_: (urls, trials))

    def read(item: Item) -> np.ndarray:
        return recipe.read(item._replace(path=Path(str(item.path).removeprefix("s3:/bucket"))))

    held_out.report_run(replace(recipe, read=read), copied, data, {}, command="")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    listed = read_items(HeldOutFiles(copied).items)
    assert [item.name for item in listed] == [item.name for item in urls]


READ = Counter[str]()
WORSE = itertools.count()


def read_counted(item: Item) -> np.ndarray:
    READ[item.id] += 1
    return audio.read(item)


def worse(_targets: np.ndarray, _nontargets: np.ndarray) -> float:
    """Grow from one evaluation to the next, so that the first model stays the best."""
    return float(next(WORSE))


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("schedule.watch=worse", "schedule.eval_every=4"),
        ("tuning.average_last=2", "schedule.save_every=2"),
    ],
    ids=["last", "best", "average"],
)
def test_held_out_files_are_read_once_an_evaluation(changes, trained, tmp_path):
    measure = replace(tiny.BASE.measure, metrics={"eer": eer, "worse": worse})
    recipe = override(replace(tiny.BASE, read=read_counted, measure=measure), [*changes])
    prepared = RecipeOnData(recipe, "counted", trained / "voices")
    files = HeldOutFiles(tmp_path / "run")
    READ.clear()
    run(prepared, files.run)
    held_out, evaluations = read_embeddings(files.embeddings), 3 if "eval" in str(changes) else 1
    assert {READ[id] for id in held_out.ids} == {evaluations}
    scores = files.scores.read_bytes()
    run(prepared, files.run, resume=True)
    assert {READ[id] for id in held_out.ids} == {evaluations + 1}
    again = read_embeddings(files.embeddings)
    np.testing.assert_array_equal(again.matrix, held_out.matrix)
    before = held_out.ids, held_out.meta, scores
    assert (again.ids, again.meta, files.scores.read_bytes()) == before


def test_what_leaves_or_has_no_scores(trained):
    recipe = override(load("recipes/speaker/folders.py")[0], ["measure=none"])
    assert held_out_trials(recipe.measure, trained / "voices") is None
    assert "held-out" in refused("evaluate", trained / "voices")
    assert "alone" in refused("evaluate", trained / "run", HeldOutFiles(trained / "run").scores)


def test_scores_of_an_earlier_model_are_not_those_of_the_run(trained, tmp_path):
    copied = shutil.copytree(trained / "run", tmp_path / "run")
    for weights in copied.glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    assert "earlier model" in refused("evaluate", copied, "--resamples", 0)
    assert run_command("evaluate", HeldOutFiles(copied).scores, "--resamples", 0) == 0


SIX: dict[str, Any] = {"num_speakers": 6, "num_utterances": 2, "seconds": (0.6, 0.7)}


def test_ids_that_no_list_can_hold_cost_the_files_and_not_the_run(tmp_path, capsys):
    synthetic.write_voices(tmp_path / "voices", **SIX)
    for path in (tmp_path / "voices").rglob("utt00.flac"):
        path.rename(path.with_name("line\nend.flac"))
    data = ("--data", tmp_path / "voices", "--out", tmp_path / "run")
    assert run_command("train", "speaker/folders", *QUICK, *data) == 0
    assert "is incomplete" in capsys.readouterr().err
    assert front_door.load(tmp_path / "run").modality == "speaker"


GLYPHS = {"num_alphabets": 2, "num_characters": 5, "num_drawers": 3, "size": 64}


def test_retrieval_leaves_drawn_trials_of_its_test_items(tmp_path):
    synthetic_glyphs.write_glyphs(tmp_path / "glyphs", **GLYPHS)
    data = ("--data", tmp_path / "glyphs", "--out", tmp_path / "run")
    assert run_command("train", "image/folders", *QUICK, *data) == 0
    files = HeldOutFiles(tmp_path / "run")
    trials, values = read_scores(files.scores)
    np.testing.assert_allclose(values, cosines(files), rtol=0, atol=1e-6)
    assert (len(trials), trials.target.sum()) == (15, 6)  # all pairs of 2 classes of 3 images


def test_scores_of_a_run_that_flips_images_are_those_that_verify_compares(tmp_path, capsys):
    synthetic_glyphs.write_glyphs(tmp_path / "glyphs", **GLYPHS)
    trials = partial(tiny.BASE.measure.trials, modality="image")
    measure = replace(tiny.BASE.measure, trials=trials, flip="mean")
    recipe = override(load(locate("image/folders"))[0], [*QUICK, "items.test_share=0.25"])
    recipe = replace(recipe, measure=measure)
    run(RecipeOnData(recipe, "flips", tmp_path / "glyphs"), tmp_path / "run")
    files, model = HeldOutFiles(tmp_path / "run"), front_door.load(tmp_path / "run")
    front_door.evaluate(files.run).save_thresholds(files.run)
    listed, values = read_scores(files.scores)
    first, second = (tmp_path / "glyphs" / id for id in pairs(listed)[0])
    assert model.verify(first, second, far="eer").score == pytest.approx(values[0], abs=1e-5)
    note = "measure.flip=mean. The held-out scores are of images alone"
    page = files.run / "report" / "index.html"
    assert note in " ".join(capsys.readouterr().out.split())
    assert note in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_a_model_takes_narrow_recordings_where_it_is_trained_on_them(rate_hz, tmp_path, capsys):
    synthetic.write_voices(tmp_path / "voices", **SIX, rate_hz=rate_hz)
    recipe, _ = load(locate("speaker/folders"))
    prepared, _ = prepare_recipe(recipe, tmp_path / "voices")
    is_kept = prepared.read is recipe.read
    assert is_kept == (rate_hz == 16_000)
    assert ("above 4.5 kHz" in capsys.readouterr().err) == (rate_hz == 8_000)


def test_noise_in_the_data_is_taken_where_none_is_named(tmp_path):
    touch(tmp_path, "musan/noise/a.wav", "RIRS_NOISES/simulated_rirs/a.wav")
    recipe, _ = load(locate("speaker/voxceleb:wespeaker_resnet34"))
    named = override(recipe, ["augment.corrupt.musan=mine"])
    rooms = str(tmp_path / "RIRS_NOISES" / "simulated_rirs")
    for one, musan in ((recipe, str(tmp_path / "musan")), (named, "mine")):
        prepared, _ = prepare_recipe(one, tmp_path)
        corrupt = prepared.augment.keywords["corrupt"]
        assert corrupt.keywords == {"prob": 0.6, "musan": musan, "rirs": rooms}
    with pytest.raises(ValueError, match=r"augment\.corrupt\.musan=mine"):
        corrupt(np.zeros(9, np.float32), np.random.default_rng(0))


@pytest.mark.parametrize("memory", [r"\d+\.\d GiB", "not measured on this system"])
def test_it_says_what_training_takes_and_keeps_nothing(memory, voices, tmp_path, monkeypatch):
    if memory.startswith("not"):
        monkeypatch.setattr("likeness.training.prepare.sys", SimpleNamespace(platform="win32"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = tmp_path / "mine.py"
    recipe.write_text("from tests.tiny import RECIPES as RECIPES\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    schedule = ("steps=7200", "eval_every=5", "watch=eer", "stop_after=2")
    settings = [f"schedule.{stated}" for stated in schedule]
    command = ["train", f"{recipe}:arcface", *settings, "--data", voices, "--check"]
    text = printed(*command)
    planned = tiny.BASE.items(voices)
    assert f"{len(planned)} items of" in text
    assert re.search(f"memory: {memory}\n", text)
    batch, rate = tiny.BASE.sampling.batch_size, tiny.BASE.optim.lr
    assert "in steps: an evaluation every 5, a checkpoint every 3\n" in text
    assert f"a batch: {batch} items, in each process (of 1) {batch}; rate {rate:g}" in text
    seconds = re.search(r"a step: ([\d.]+) s", text)
    total = re.search(r"all 7,200 steps: ([\d.]+) (hours|minutes)", text)
    hours = float(total[1]) / (1 if total[2] == "hours" else 60)
    assert hours == pytest.approx(2 * float(seconds[1]), rel=0.1)
    assert [path for path in sorted(tmp_path.iterdir()) if path.suffix != ""] == before


def test_it_speaks_for_the_processes_that_it_is_started_in(voices, tmp_path):
    words = ("train", f"{tiny.__file__}:arcface", "schedule.epochs=2", "--data", voices, "--check")
    ended = torchrun(Path(__main__.__file__), *words)
    assert ended.returncode == 0, ended.stderr
    size, num_items = tiny.BASE.sampling.batch_size, len(tiny.BASE.items(voices))
    assert f"in each process (of 2) {size // 2};" in ended.stdout
    assert f"all {2 * (num_items // size)} steps: " in ended.stdout
    assert ended.stdout.count("memory: ") == 1


def test_it_takes_data_whose_first_item_is_empty(voices, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(voices, data)
    files = [item.path for item in tiny.BASE.items(data)]
    command = ["train", f"{tiny.__file__}:arcface", "max_bad_share=0.2", "--data", data, "--check"]
    files[0].write_bytes(b"")
    assert "a step: " in printed(*command, "measure=none")
    for file in files:
        file.write_bytes(b"")
    assert "empty" in refused(*command, "measure=none")


def test_a_training_needs_a_place(voices):
    assert "--out" in refused("train", "speaker/folders", "--data", voices)


def test_sets_of_another_size_are_odd():
    ids = tuple(f"{name}/{k}" for name in ("lfw", "mine") for k in range(4))
    trials = Trials(ids, ids, *np.array([[0, 2, 4], [1, 3, 5]]), np.array([True, False, True]))
    assert validation.odd_sizes(trials) == ["lfw has 2 pairs here, and 6,000 as it was published"]
