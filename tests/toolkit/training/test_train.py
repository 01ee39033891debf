"""Training: it repeats exactly, resumes bit for bit after any stop, and refuses what is wrong."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from likeness.cli import main
from likeness.data import audio, folders
from likeness.eval.formats.runs import BEST, find_model
from likeness.eval.progress import Report, reported_to
from likeness.losses import ArcFace
from likeness.models.run import load_model
from likeness.recipe import Compute, Recipe, Sampling, Schedule, constant, fit, multistep
from likeness.toolkit.backbones.statistics import OrderStatistics
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.run import Plateau, Run
from likeness.toolkit.training.train import drawing_from
from tests.toolkit.training.tiny_runs import TINY, recipe, same, short, state_of, step_of, watching


@pytest.fixture(scope="module")
def uninterrupted(voices, tmp_path_factory):
    """Folders of whole runs, one per variant."""

    @cache
    def make(variant: str) -> Path:
        out = tmp_path_factory.mktemp(variant) / "run"
        fit(recipe(variant), data=voices, out=out)
        return out

    return make


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_says_which_items_it_holds(workers, voices, tmp_path, train):
    items = list(folders.items(voices, split="train", test_share=0.25))
    damaged = tmp_path / "damaged.wav"
    damaged.write_bytes(b"no sound")
    items[5] = items[5]._replace(path=damaged)
    numbers = {name: number for number, name in enumerate(sorted({str(i.label) for i in items}))}
    seen: list[int] = []

    def check(run: Run, batch: Batch) -> None:
        rows = zip(batch.places.tolist(), batch.inputs, batch.labels.tolist(), strict=True)
        for place, wave, label in rows:
            assert label == numbers[str(items[place].label)]
            expected = audio.read(items[place])
            np.testing.assert_array_equal(wave[: len(expected)].numpy(), expected)
            assert not wave[len(expected) :].any()
            seen.append(place)

    made = recipe(
        augment=None,
        measure=None,
        sampling=Sampling(8),
        max_bad_share=0.5,
        compute=Compute(threads=1, workers=workers),
        schedule=Schedule(steps=6, save_every=2),
    )
    train(made, items=items, step=watching(check))
    # three batches are an epoch of the 24 items, of which one cannot be read
    epoch = [place for place in range(24) if place != 5]
    assert sorted(seen[:23]) == sorted(seen[23:]) == epoch


@pytest.mark.parametrize("variant", ["arcface", "simple"])
def test_training_is_deterministic_and_lowers_the_loss(variant, uninterrupted, train):
    assert same(uninterrupted(variant), train(recipe(variant)))
    log = read_log(uninterrupted(variant))
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 12
    # SimPLE's twelve steps see few positives: test_losses trains it
    assert variant == "simple" or np.mean(losses[-4:]) < np.mean(losses[:4])
    assert 0 <= log[-1]["eer"] <= 1


SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in (("arcface", 0), ("simple", 1))]


@pytest.mark.parametrize(("variant", "workers"), [("arcface", 1), ("simple", 0), *SLOW])
def test_a_run_that_raised_resumes_bit_for_bit(variant, workers, uninterrupted, train):
    out = train(recipe(variant, compute=Compute(threads=1, workers=workers)), cut_at=7)
    assert same(uninterrupted(variant), out)
    steps = [entry["step"] for entry in read_log(out)]
    assert steps == [*range(1, 13), 12]  # every step once, then the final evaluation


@pytest.mark.parametrize(("each", "batch_size"), [(0, 24), (2, 12)])
def test_small_data_have_smaller_batches_and_resume(each, batch_size, train, tmp_path, capsys):
    """Of the 8 speakers x 4 recordings, 6 x 4 are trained on."""

    def sized(size: int) -> Recipe:
        return recipe(sampling=Sampling(size, items_per_class=each), schedule=Schedule(steps=6))

    stated = train(sized(batch_size), "stated")
    assert f"6 steps of {batch_size} items" in capsys.readouterr().err
    few = replace(sized(64), schedule=Schedule(steps=6, save_every=2))
    out = train(few, cut_at=4)
    assert same(stated, out)
    assert f"6 steps of {batch_size} items" in capsys.readouterr().err
    described = json.loads((out / "recipe.json").read_text())
    assert described["sampling"]["batch_size"] == batch_size
    with pytest.raises(ValueError, match="needs"):
        train(replace(few, compute=Compute(accumulate=20, threads=1)), "pieces")
    assert not (tmp_path / "pieces").exists()


def test_every_step_and_every_evaluation_is_reported(train):
    reports: list[Report] = []
    with reported_to(reports.append):
        train(recipe(schedule=Schedule(steps=4, eval_every=2)))
    training = [report for report in reports if report.what == "training" and not report.is_end]
    assert [report.done for report in training] == [0, 1, 2, 3]
    assert all(report.note.startswith("loss ") for report in training[1:])
    begun = {report.what for report in reports if report.done == 0 and not report.is_end}
    assert {"listing the data", "building the network", "training", "embedding"} < begun
    assert {report.what for report in reports if report.is_end} == begun


def test_ctrl_c_saves_the_step(uninterrupted, voices, tmp_path, ctrl_c_in_step, capsys):
    """The command itself, to which Ctrl-C comes in its fifth step."""
    out = tmp_path / "run"
    with ctrl_c_in_step(5), pytest.raises(SystemExit) as stopped:
        main(["train", f"{TINY}:arcface", "--data", str(voices), "--out", str(out)])
    assert stopped.value.code == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    load_model(out)
    assert step_of(out) == 5
    fit(recipe(), data=voices, out=out)
    assert same(uninterrupted("arcface"), out)
    with pytest.raises(ValueError, match="already holds a run"):
        fit(recipe(), data=voices, out=out)


@pytest.mark.parametrize("renamed", [False, True])
def test_data_that_changed_are_refused(renamed, data, train):
    """Another class, and another name of an item."""
    short = recipe(schedule=Schedule(steps=1), measure=None)
    train(short, data=data)
    if renamed:
        first = folders.items(data, split="train", test_share=0.25)[0].path
        first.rename(first.with_stem("renamed"))
    else:
        shutil.copytree(data / "spk000", data / "zzz")
    with pytest.raises(ValueError, match="trained on other items"):
        train(short, data=data, resume=True)


def test_unreadable_items_are_named_counted_and_skipped_up_to_a_share(data, train, capsys):
    broken = folders.items(data, split="train", test_share=0.25)[0].path
    broken.write_bytes(b"no audio")
    with pytest.raises(ValueError, match=r"more than max_bad_share=0\.0"):
        train(recipe(max_bad_share=0.0), "strict", data=data)
    train(recipe(max_bad_share=0.2), data=data)
    output = "".join(capsys.readouterr().err.split())
    assert f"skipped{broken.parent.name}/{broken.name}" in output
    assert "1unreadableitems" in output


def test_constants_of_data_that_cannot_be_read_are_refused(data, train):
    for item in folders.items(data, split="train", test_share=0.25):
        item.path.write_bytes(b"no audio")
    whitened = recipe(backbone=partial(OrderStatistics, dim=4), max_bad_share=1.0)
    with pytest.raises(ValueError, match="no item could be read"):
        train(whitened, data=data)


def test_plateau_halves_and_counts():
    plateau = Plateau()
    values = [0.5, 0.4, 0.45, 0.44, 0.3, 0.3, 0.3, 0.3]
    best = [plateau.update(value, higher_is_better=False, halve_after=2) for value in values]
    assert best == [True, True, False, False, True, False, False, False]
    assert (plateau.halvings, plateau.since_best) == (2, 3)
    upward = Plateau(best=0.5)
    values = [0.4, 0.6, math.nan, 0.7]
    assert [upward.update(value, True, 0) for value in values] == [False, True, False, True]


def test_watching_a_metric_keeps_the_best_and_stops_early(train):
    watch = {"watch": "eer", "stop_after": 3, "eval_every": 1}
    frozen = Schedule(steps=50, save_every=50, decay=constant, **watch)
    watched = recipe("arcface", "optim.lr=0", "augment.noise_prob=0", schedule=frozen)
    out = train(watched)
    assert find_model(out).name == BEST
    last = read_log(out)[-1]
    assert last["step"] < 50
    assert read_log(train(watched, resume=True))[-1] == last


def test_the_rate_follows_warm_up_and_decay(train):
    schedule = Schedule(steps=10, warmup_steps=4, decay=partial(multistep, at=(0.5, 0.8)))
    log = read_log(train(recipe(schedule=schedule)))
    expected = [0.05 * f for f in (0.25, 0.5, 0.75, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01)]
    assert [entry["lr"] for entry in log if "lr" in entry] == pytest.approx(expected)


def test_passes_of_whole_batches_at_the_rate_of_their_size(voices, train):
    passes = recipe("arcface", "schedule.epochs=3", "optim.reference_batch=4")
    rates = [entry["lr"] for entry in read_log(train(passes)) if "lr" in entry]
    size, num_items = passes.sampling.batch_size, len(passes.items(voices))
    assert len(rates) == 3 * (num_items // size)
    assert rates[0] == pytest.approx(passes.optim.lr * size / 4)


def test_class_vectors_have_length_1_before_every_step(train):
    """As OpenSphere writes them back before it uses them, so that the length of their start and
    what a step adds to it never matter.
    """
    ends = {}
    lengths: list[torch.Tensor] = []

    def look(run: Run, batch: Batch) -> None:
        lengths.append(run.loss.proxies.norm(dim=1))

    for name, unit_proxies in (("unit", True), ("free", False)):
        for start in (0.02, 0.2):
            lengths.clear()
            optim = replace(recipe().optim, unit_proxies=unit_proxies)
            loss = partial(ArcFace, margin=0.2, scale=16.0, start=start)
            out = train(short(optim=optim, loss=loss), f"{name}-{start}", step=watching(look))
            assert len(lengths) == 6
            ends[name, start] = state_of(out), torch.stack(lengths).detach()
    for start in (0.02, 0.2):
        torch.testing.assert_close(ends["unit", start][1], torch.ones_like(ends["unit", start][1]))
    for name, equal in (("unit", True), ("free", False)):
        a, b = (ends[name, start][0] for start in (0.02, 0.2))
        close = [torch.allclose(a[key].float(), b[key].float(), atol=2e-3) for key in a]
        assert all(close) == equal


def test_a_moving_margin_is_told_the_step(train):
    moving = recipe("arcface", "loss.margin=0.4", "loss.warmup_steps=6")
    runs = train(moving, "moving"), train(recipe("arcface", "loss.margin=0"), "none")
    warm, plain = ([line["loss"] for line in read_log(out) if "loss" in line] for out in runs)
    assert warm[:6] == plain[:6]  # no margin yet
    assert warm[6] > plain[6]


def test_what_a_loss_draws_follows_from_the_seed_and_leaves_the_rest_as_it_was():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(4)
        torch.manual_seed(1)
        torch.rand(2)
        after = torch.rand(3)
        torch.manual_seed(1)
        torch.rand(2)
        with drawing_from(7, torch.device("cpu")):
            assert torch.rand(4).equal(expected)
        assert torch.rand(3).equal(after)
