"""Tuning on validation classes: the split, its trials, and a search that goes on where it was
stopped.
"""

import json
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.data import Item, folders
from likeness.eval.intervals import per_item
from likeness.eval.metrics.verification import balanced_accuracy, eer
from likeness.modalities.speaker.audio import speed_copies
from likeness.recipe import Choice, Classification, Range, Recipe, Retrieval, Search, Verification
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.models.parts import describe
from likeness.toolkit.signals import Interrupted
from likeness.toolkit.training import search
from tests.toolkit.training.tiny_runs import recipe

RANGES: dict[str, Range | Choice] = {
    "loss.margin": Range(0.0, 0.5),
    "optim.lr": Range(1e-3, 1e-1, log=True),
    "loss.scale": Range(4, 32),
    "optim.nesterov": Choice((True, False)),
}


def made(num_classes: int, num_each: int = 2, speeds: tuple[float, ...] = ()) -> list[Item]:
    numbers = product(range(num_classes), range(num_each))
    items = [Item(f"s{c}/{i}", Path(f"s{c}/{i}.flac"), f"s{c}") for c, i in numbers]
    return speed_copies(items, speeds) if speeds else items


def listed(data: Path, *, num_classes: int, num_each: int) -> list[Item]:
    return made(num_classes, num_each)


@settings(max_examples=50)
@given(st.integers(6, 40), st.sampled_from([(), (0.9,), (0.9, 1.1)]), st.randoms())
def test_the_split_is_disjoint_whole_and_of_classes(num_classes, speeds, random):
    items = made(num_classes, 2, speeds)
    kept, held_out = search.divide(items)
    ours, theirs = ({str(item.label).split("#")[0] for item in some} for some in (kept, held_out))
    assert not ours & theirs
    assert len(ours | theirs) == num_classes
    assert len(theirs) == max(4, round(num_classes / 4))
    # a speaker's copies stay with the speaker
    assert len(kept) == 2 * len(ours) * (1 + len(speeds))
    # and are no test of verification
    assert sorted(held_out) == sorted(item for item in items if item.label in theirs)
    shuffled = random.sample(items, len(items))
    assert [sorted(some) for some in search.divide(shuffled)] == [sorted(kept), sorted(held_out)]


def test_the_split_needs_six_classes():
    with pytest.raises(ValueError, match=r"5 classes .* 4 .* at least 6"):
        search.divide(made(5))
    # labels that are no copies although they begin with '#'
    kept, held_out = search.divide([Item(f"{k}", Path(), f"#{k % 8}") for k in range(16)])
    assert {item.label for item in kept}.isdisjoint(item.label for item in held_out)
    assert len({item.label for item in held_out}) == 4


def test_validation_trials_are_all_pairs():
    part = partial(listed, num_classes=12, num_each=3)
    items, trials = search.validation_trials(Path(), items=part)
    assert sorted(items) == sorted(search.divide(made(12, 3))[1])
    label = {item.id: item.label for item in items}
    sides = zip(trials.enrol, trials.probe, strict=True)
    pairs = [(trials.enrol_ids[enrol], trials.probe_ids[probe]) for enrol, probe in sides]
    assert len(pairs) == 12 * 11 // 2
    assert set(map(frozenset, pairs)) == set(map(frozenset, combinations(label, 2)))
    assert trials.target.tolist() == [label[enrol] == label[probe] for enrol, probe in pairs]


def test_of_many_pairs_some_are_drawn():
    """tests/eval/items/test_items.py says how."""
    part = partial(listed, num_classes=12, num_each=3)
    with patch.object(search, "MOST_PAIRS", 20):
        (_, trials), (_, again) = (search.validation_trials(Path(), items=part) for _ in range(2))
    assert (len(trials), trials.target.sum()) == (20, 10)
    assert np.array_equal(again.enrol, trials.enrol)
    with pytest.raises(ValueError, match="target trial"):
        search.validation_trials(Path(), items=partial(listed, num_classes=12, num_each=1))


def test_the_inner_recipe_describes_itself_and_has_no_test_trials(voices):
    inner = search.divide_for_validation(recipe())
    stated = json.dumps(describe(inner))
    assert "toolkit.training.search.part_items" in stated
    assert "likeness.modalities.folders.trials" not in stated
    assert isinstance(inner.measure, Verification)
    items, _ = inner.measure.trials(voices)
    tested = {item.label for item in folders.items(voices, split="test", test_share=0.25)}
    used = {item.label for item in [*items, *inner.items(voices)]}
    assert used == {item.label for item in folders.items(voices, split="train", test_share=0.25)}
    assert not used & tested
    part = search.part_items(voices, items=recipe().items, held_out=False)
    assert {item.label for item in items}.isdisjoint(item.label for item in part)


def test_retrieval_of_unseen_classes_is_tuned_on_held_out_ones():
    """The test's own items do not occur, what is fitted and what is retrieved have no class in
    common, and the rest of the test stays.
    """
    train = partial(listed, num_classes=12, num_each=2)
    test = partial(listed, num_classes=20, num_each=3)
    metrics = {"nmi": per_item.mutual_information}
    outer = recipe(items=train, measure=Retrieval(test, ks=(1, 3), clusters=True, metrics=metrics))
    inner = search.divide_for_validation(outer)
    assert isinstance(inner.measure, Retrieval)
    assert replace(inner.measure, items=test) == outer.measure
    fitted, retrieved = inner.items(Path()), inner.measure.items(Path())
    assert sorted([*fitted, *retrieved]) == sorted(made(12))
    assert {item.label for item in fitted}.isdisjoint(item.label for item in retrieved)
    assert retrieved == search.part_items(Path(), items=train, held_out=True)
    assert replace(inner, items=outer.items, measure=outer.measure) == outer
    validation = Retrieval(items=train)
    watched = replace(outer, measure=replace(outer.measure, validation=validation))
    # its own validation, where there is one
    own = replace(validation, metrics=outer.metrics, validation=validation)
    assert search.divide_for_validation(watched) == replace(watched, measure=own)
    for other in (Classification(items=test), None):
        with pytest.raises(ValueError, match="no validation"):
            search.divide_for_validation(replace(outer, measure=other))


def bowl(made: Recipe, folder: Path) -> float:
    """Least at margin .2 and rate .01: a score that needs no training."""
    keywords = made.loss.keywords  # type: ignore[attr-defined]
    apart = abs(keywords["margin"] - 0.2) + abs(np.log10(made.optim.lr) + 2)
    return float(apart + 0.1 * made.optim.nesterov)


def stopping(*calls: int) -> Mock:
    """`bowl`, which Ctrl-C ends in the calls of these numbers."""

    def score(made: Recipe, folder: Path) -> float:
        if mock.call_count in calls:
            raise Interrupted
        return bowl(made, folder)

    mock = Mock(side_effect=score)
    return mock


def test_an_interrupted_search_equals_an_uninterrupted_one(tmp_path):
    pytest.importorskip("optuna")
    # past the ten random trials with which TPE begins
    tune = partial(search.tune, recipe(), RANGES, variant="arcface", num_trials=14)
    chosen, whole = tune(out=tmp_path / "whole", score=bowl)
    stops = stopping(4, 13)
    for _ in range(2):
        with pytest.raises(Interrupted):
            tune(out=tmp_path / "cut", score=stops)
    resumed, cut = tune(out=tmp_path / "cut", score=stops)
    assert stops.call_count == 16
    assert cut == whole
    assert describe(resumed) == describe(chosen)
    assert whole.score == min(record["score"] for record in whole.trials)  # type: ignore[type-var]
    assert bowl(chosen, tmp_path) == pytest.approx(whole.score)
    assert len(whole.trials) == 14
    settings = [record["settings"] for record in whole.trials]
    assert all(0 <= each["loss.margin"] <= 0.5 for each in settings)
    assert all(1e-3 <= each["optim.lr"] <= 1e-1 for each in settings)
    longer, more = tune(num_trials=16, out=tmp_path / "cut", score=bowl)
    assert list(more.trials[:14]) == list(whole.trials)
    assert bowl(longer, tmp_path) <= bowl(chosen, tmp_path)


MARGINS, RATES = (0.1, 0.2, 0.3), (0.001, 0.01, 0.1)
GRID = {"loss.margin": Choice(MARGINS), "optim.lr": Choice(RATES)}


@pytest.mark.parametrize("num_trials", [9, 20])
def test_every_point_of_a_grid_is_tried_once_when_the_trials_suffice(tmp_path, num_trials):
    pytest.importorskip("optuna")
    stops = stopping(4)
    tune = partial(search.tune, recipe(), GRID, variant="arcface", out=tmp_path, score=stops)
    with pytest.raises(Interrupted):
        tune(num_trials=num_trials)
    chosen, tuned = tune(num_trials=num_trials)
    assert stops.call_count == 10
    points = {tuple(record["settings"].values()) for record in tuned.trials}
    assert points == {*product(MARGINS, RATES)}
    assert len(tuned.trials) == 9
    assert tuned.chosen == {"loss.margin": 0.2, "optim.lr": 0.01}
    assert chosen.optim.lr == 0.01


def test_the_score_of_supp_i_is_the_median_over_seeds_of_the_best_look(tmp_path):
    """Supp. I of the nivMF paper: three seeds, the median of the highest R@1 in validation."""
    pytest.importorskip("optuna")
    tried: list[Recipe] = []

    def of_seed(made: Recipe, folder: Path) -> float:
        tried.append(made)
        assert folder.name == f"seed-{made.seed}"
        return bowl(made, folder) + (0.0, 100.0, 1.0)[made.seed]

    outer = recipe(schedule=replace(recipe().schedule, steps=60, eval_every=0))
    tune = partial(search.tune, outer, variant="arcface", num_trials=9, out=tmp_path, score=of_seed)
    chosen, tuned = tune(Search(GRID, seeds=3, looks=5))
    assert len(tried) == 27
    assert {entry.schedule.eval_every for entry in tried} == {12}
    assert {entry.schedule.watch for entry in tried} == {next(iter(outer.metrics))}
    best = tuned.trials[[record["settings"] for record in tuned.trials].index(tuned.chosen)]
    assert tuned.score == pytest.approx(1.0)
    assert best["seeds"] == pytest.approx([0.0, 100.0, 1.0])
    assert chosen.schedule == outer.schedule  # what is then trained is the recipe's own
    with pytest.raises(ValueError, match="of another recipe"):
        tune(Search(GRID, seeds=1, looks=5))


def test_higher_is_better_and_failed_trials(tmp_path):
    pytest.importorskip("optuna")
    schedule = replace(recipe().schedule, watch="accuracy", higher_is_better=True)
    two = replace(recipe().measure, metrics={"eer": eer, "accuracy": balanced_accuracy})
    upward = recipe(schedule=schedule, measure=two)

    fails = {"trial-1": Diverged("the loss is nan"), "trial-2": RuntimeError("out of memory")}
    tried = []

    def sometimes(made: Recipe, folder: Path) -> float:
        tried.append(folder.name)
        if folder.name in fails:
            raise fails[folder.name]
        return bowl(made, folder)

    tune = partial(search.tune, upward, RANGES, variant="arcface", num_trials=4, score=sometimes)
    _, tuned = tune(out=tmp_path / "up")
    scores = [trial["score"] for trial in tuned.trials]
    assert tuned.score == max(score for score in scores if score is not None)
    assert tuned.metric == "accuracy"  # whose direction the schedule states, not that of the first
    assert scores[1:3] == [None, None]
    assert [trial["failed"] for trial in tuned.trials[1:3]] == ["the loss is nan", "out of memory"]
    tried.clear()
    del fails["trial-2"]  # by its own settings; those of the other diverge again
    _, again = tune(out=tmp_path / "up")
    assert tried == ["trial-2"]
    assert again.trials[2]["settings"] == tuned.trials[2]["settings"]
    assert again.trials[2]["score"] is not None
    with pytest.raises(ValueError, match="on other data"):
        tune(out=tmp_path / "up", data="another digest")
    one = partial(tune, num_trials=1, out=tmp_path / "none")
    with pytest.raises(Interrupted):
        one(score=Mock(side_effect=Interrupted))
    with pytest.raises(ValueError, match="on other data"):
        one(data="another digest")  # although no trial was finished
    with pytest.raises(ValueError, match=r"all 1 trials failed, .* lost"):
        one(score=Mock(side_effect=ValueError("lost")))
    assert one()[1].score is not None


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        ("loss.marginn", Range(0.0, 1.0), "did you mean 'margin'"),
        ("optim.name", Choice(("sgd", "lion")), "`sgd`, `adam` or `adamw`"),
        ("optim.lr", Range(5, 1), "low"),
        ("optim.lr", Range(0, 1, log=True), "low"),
    ],
)
def test_ranges_are_checked_before_training(field, values, says):
    search.check_ranges(recipe(), RANGES)
    with pytest.raises(ValueError, match=says):
        search.check_ranges(recipe(), {field: values})
