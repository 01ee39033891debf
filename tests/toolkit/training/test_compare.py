"""likeness compare: runs that go on, numbers that follow from the score files, equal data for all
variants, and what is refused.
"""

import json
import os
import re
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from likeness.data import Item, folders
from likeness.eval.intervals import comparison
from likeness.eval.intervals.bootstrap import Drawn, bounds_of, effective_number, t_interval
from likeness.eval.intervals.comparison import Outcome, summarise
from likeness.eval.items.pairs import all_pairs
from likeness.eval.metrics.verification import eer, min_dcf
from likeness.eval.reports.comparison import html, latex, markdown, table, to_json
from likeness.eval.types import Scores
from likeness.recipe import Choice, Recipe
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training import compare, train
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.compare import load_variants
from tests import tiny
from tests.scripts import refused, run_command

ROOT = Path(__file__).parents[3]
METRICS: dict[str, Any] = {"eer": eer, "min_dcf(.1)": partial(min_dcf, p_target=0.1)}
STEPS = 6
SHORT = [f"schedule.steps={STEPS}", "schedule.save_every=2", "schedule.eval_every=3"]
RECIPE = """
from dataclasses import replace
from functools import partial
from likeness.eval.metrics.verification import eer, min_dcf
from likeness.recipe import Choice, Optim, Range, Sampling
from tests import tiny
metrics = {"eer": eer, "min_dcf(.1)": partial(min_dcf, p_target=0.1)}
measure = replace(tiny.BASE.measure, metrics=metrics)
BASE = replace(tiny.BASE, measure=measure)
RECIPES = {
    "arcface": BASE,
    "simple": replace(tiny.RECIPES["simple"], measure=measure),
    "explodes": replace(BASE, optim=Optim(lr=1e38)),
    "shuffled": replace(BASE, sampling=Sampling(batch_size=8, items_per_class=0)),
}
ARCFACE = {
    "loss.margin": Range(0.0, 0.5),
    "optim.lr": Range(0.001, 0.1, log=True),
    "optim.nesterov": Choice((True, False)),
}
RANGES = {"arcface": ARCFACE}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny_compare.py"
    path.write_text(RECIPE)
    return path


def variants(file: Path, *names: str, overrides: list[str] = SHORT) -> dict[str, Recipe]:
    return load_variants(str(file), names, overrides)[0]


def command(file: Path, data: Path, out: Path, options: str) -> list[object]:
    return ["compare", file, *SHORT, *options.split(), "--data", data, "--out", out]


@pytest.fixture(scope="module")
def whole(file, voices, tmp_path_factory):
    """An uninterrupted comparison of two variants with two seeds."""
    out = tmp_path_factory.mktemp("compare") / "out"
    terms = compare.Terms("arcface", command="likeness compare ...")
    chosen = variants(file, "arcface", "simple")
    compare.compare(chosen, num_seeds=2, data=voices, out=out, terms=terms)
    return out


def change(file: Path) -> None:
    """Change a file, but not its size."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def timeless(out: Path) -> dict[str, Any]:
    """The result without what a clock or a command line put there."""
    document: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    del document["command"]
    for run in document["runs"]:
        assert run.pop("seconds") > 0
        assert run.pop("items_per_second") > 0
    return document


def test_interrupted_equals_uninterrupted(
    whole, file, voices, data, tmp_path, ctrl_c_in_step, capsys
):
    out = tmp_path / "out"
    options = "--variants arcface,simple --seeds 2 --reference arcface"
    arguments = command(file, voices, out, options)
    with ctrl_c_in_step(STEPS + 1):  # the first of the second run
        assert run_command(*arguments) == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    assert (out / "simple" / "seed-0").exists()
    assert not (out / "comparison.json").exists()
    # A run that is half done is not continued by another recipe or on other data, and no seed is
    # trained with them.
    (out / "arcface" / "seed-0").rename(tmp_path / "finished")
    change(next(data.rglob("*.flac")))
    for others, says in (
        ([*arguments[:2], "optim.lr=0.01", *arguments[2:]], "of another recipe"),
        (command(file, data, out, options), "on other data"),
    ):
        assert run_command(*others) == 2
        assert f"holds a run {says}" in " ".join(capsys.readouterr().err.split())
        assert not (out / "arcface" / "seed-0").exists()
    (tmp_path / "finished").rename(out / "arcface" / "seed-0")
    assert run_command(*arguments) == 0
    assert timeless(out) == timeless(whole)
    scores = sorted(path.relative_to(whole) for path in whole.rglob("scores.txt"))
    assert len(scores) == 4
    assert all((out / score).read_bytes() == (whole / score).read_bytes() for score in scores)


def test_finished_runs_are_not_done_again_and_other_recipes_refused(whole, file, data, capsys):
    for recording in data.rglob("*.flac"):  # a copy that did not keep them
        os.utime(recording, (1, 1))
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    again = partial(compare.compare, num_seeds=2, data=data, out=whole)
    again(variants(file, "arcface", "simple"), terms=compare.Terms("arcface"))
    assert capsys.readouterr().out.count("finished before") == 4
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before
    for setting in ("optim.lr=0.01", "items.test_share=0.5"):
        with pytest.raises(ValueError, match="holds a run of another recipe"):
            again(variants(file, "arcface", overrides=[*SHORT, setting]))
    change(recording)
    with pytest.raises(ValueError, match="holds a run on other data"):
        again(variants(file, "arcface", "simple"), terms=compare.Terms("arcface"))


@pytest.mark.parametrize("place", ["init", "weights"])
def test_a_network_that_was_trained_anew_is_another_one(place, voices, tmp_path):
    base = tiny.untrained(tmp_path / "base")
    model = base / "last.safetensors"
    weights = partial(tiny.BASE.backbone, weights=str(model))  # never built
    named = {"init": {"init": str(base)}, "weights": {"backbone": weights}}[place]
    recipe = replace(tiny.BASE, **named)
    before = compare.listed(recipe, voices).digest
    os.utime(model, (1, 1))
    assert compare.listed(recipe, voices).digest == before
    change(model)
    assert compare.listed(recipe, voices).digest != before


def verify(cells: list[comparison.Cell], sides: Any, target: Any, runs: Any, outcomes: Any) -> None:
    """Every number of the cells, worked out anew from the scores and the draws of each seed, which
    tests/eval/intervals/test_bootstrap.py derives; the reference is "a".

    METRICS by name; SciPy's paired t.
    """
    drawn = {
        (variant, name): np.mean([each.replicates[name] for each in of.values()], axis=0)
        for variant, of in outcomes.items()
        for name in METRICS
    }
    counts = [np.bincount(np.concatenate([side[k] for side in sides])) for k in (target, ~target)]
    number = min(effective_number(count.tolist()) for count in counts)
    values: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        key, metric = (cell.variant, cell.metric), METRICS[cell.metric]
        values[key] = [metric(v[target], v[~target]) for v in runs[cell.variant]]
        assert list(cell.values.values()) == pytest.approx(values[key])
        assert cell.mean == pytest.approx(np.mean(values[key]))
        assert cell.standard_error == pytest.approx(scipy.stats.sem(values[key]))
        assert cell.interval == pytest.approx(t_interval(drawn[key], cell.mean, 0.95, number))
    ps = []
    for cell in cells:
        result = cell.difference
        if cell.variant == "a":
            assert result is None
            continue
        ours, theirs = (cell.variant, cell.metric), ("a", cell.metric)
        if np.ptp(np.subtract(values[ours], values[theirs])) > 1e-9:
            paired = scipy.stats.ttest_rel(values[ours], values[theirs])
            ends = np.clip(paired.confidence_interval(0.95), -1, 1)
            assert result.seed_interval == pytest.approx(tuple(ends))
            assert result.seed_p == pytest.approx(paired.pvalue)
        gap = drawn[ours] - drawn[theirs]
        mean = np.mean(np.subtract(values[ours], values[theirs]))
        error = gap.std() * np.sqrt(number / (number - 1))
        t = scipy.stats.t(number - 1, loc=mean, scale=error)
        assert result.interval == pytest.approx(np.clip(t.interval(0.95), -1, 1))
        assert result.p == pytest.approx(2 * min(t.cdf(0), t.sf(0)))
        assert result.distinguishable == (max(result.p, result.seed_p) < 0.05)
        ps.append((max(result.p, result.seed_p), result.p_holm))
    assert [entry[1] for entry in ps] == pytest.approx(comparison.holm([entry[0] for entry in ps]))


def scores_in(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The target and the nontarget scores of a file."""
    rows = [line.split() for line in file.read_text().splitlines()]
    target, nontarget = ([float(row[2]) for row in rows if row[3] == kind] for kind in "10")
    return np.array(target), np.array(nontarget)


def test_the_numbers_follow_from_the_score_files(whole):
    document = json.loads((whole / "comparison.json").read_text())
    if find_spec("jsonschema"):
        import jsonschema

        schema = ROOT / "docs" / "reference" / "schemas" / "comparison.json"
        jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(document)
    call = {"call": "eval.metrics.verification.min_dcf", "args": {"p_target": 0.1}}
    assert document["definitions"]["min_dcf(.1)"] == call
    assert document["num_comparisons"] == 0  # two subjects bear no statistics
    assert len(document["cells"]) == 4
    for cell in document["cells"]:
        files = [whole / cell["variant"] / f"seed-{seed}" / "scores.txt" for seed in (0, 1)]
        values = [METRICS[cell["metric"]](*scores_in(file)) for file in files]
        assert list(cell["values"].values()) == pytest.approx(values)
        assert cell["interval"] is None
        names = ("interval", "p", "p_holm", "distinguishable")
        difference = cell["difference"] or dict.fromkeys(names)
        assert [difference[name] for name in names[:3]] == [None] * 3
        assert not difference["distinguishable"]
    text = (whole / "table.txt").read_text()
    first = document["cells"][0]
    assert f"{100 * first['mean']:.2f} ± {100 * first['standard_error']:.2f} no interval" in text
    assert "The variants differ in loss, memory." in text


def test_differences_are_paired_subject_by_subject():
    """Two systems that err on the same subjects: unpaired draws would hide the difference that
    paired ones show.
    """
    rng = np.random.default_rng(0)
    items = [Item(f"s{c}/{i}", Path(), f"s{c}") for c in range(8) for i in range(4)]
    trials = all_pairs(items)
    target, sides = trials.target, [trials.enrol // 4, trials.probe // 4]
    hard = rng.normal(size=8)[sides[0]]
    shared = 1.5 * target + hard * target + rng.normal(size=len(trials))
    subjects = comparison.subjects_behind(trials, {item.id: item.label for item in items})
    runs = {
        name: [shared - worse * target + 0.1 * rng.normal(size=len(trials)) for _ in range(3)]
        for name, worse in (("a", 0.0), ("b", 0.5))
    }
    outcomes = {
        name: {
            seed: comparison.measure(Scores(v, target), METRICS, subjects, num_resamples=200)
            for seed, v in enumerate(values)
        }
        for name, values in runs.items()
    }
    cells, reference = summarise(outcomes, list(METRICS))
    assert reference == "a"
    verify(cells, sides, target, runs, outcomes)
    of_a = Scores(runs["a"][0], target), np.stack(sides, axis=1)
    _, drawn = bounds_of(METRICS, *of_a, num_resamples=200)
    assert outcomes["a"][0].replicates["eer"].tolist() == drawn["eer"].tolist()
    gap = cells[2].difference
    assert gap.distinguishable
    assert cells[2].interval[0] < cells[0].interval[1]  # although their own intervals overlap


def test_every_variant_sees_the_same_views_in_the_same_order(file, voices, tmp_path, monkeypatch):
    seen: dict[tuple[str, int], list[tuple[torch.Tensor, torch.Tensor]]] = {}
    real = train.step

    def noting(run: Any, batch: Batch, recipe: Recipe) -> torch.Tensor:
        kind = type(run.loss).__name__
        seen.setdefault((kind, recipe.seed), []).append((batch.inputs, batch.labels))
        return real(run, batch, recipe)

    monkeypatch.setattr(compare, "fit", partial(train.fit, step=noting))
    short = ["schedule.steps=3", "schedule.save_every=3", "schedule.eval_every=0"]
    chosen = variants(file, "arcface", "simple", overrides=short)
    compare.compare(chosen, num_seeds=2, data=voices, out=tmp_path / "out")
    assert {len(steps) for steps in seen.values()} == {3}
    for seed in (0, 1):
        for ours, theirs in zip(seen["ArcFace", seed], seen["SimPLE", seed], strict=True):
            assert all(map(torch.equal, ours, theirs))
    # another seed
    assert not torch.equal(seen["ArcFace", 0][0][0], seen["ArcFace", 1][0][0])


def test_variants_that_differ_in_data_or_budget_are_refused_unless_allowed(file, voices, tmp_path):
    chosen = variants(file, "arcface", "shuffled")
    changes = ["schedule.steps=5", "augment.noise_prob=0"]
    chosen["shuffled"] = recipes.override(chosen["shuffled"], changes)
    again = partial(compare.compare, num_seeds=1, data=voices, out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"augment, sampling, schedule\.steps"):
        again(chosen)
    with pytest.raises(ValueError, match="differ in augment, so that"):
        again(chosen, terms=compare.Terms(allow_different=["sampling", "schedule"]))
    ranges = {"arcface": {"sampling.batch_size": Choice((4, 8))}}
    with pytest.raises(ValueError, match="change sampling"):
        again({"arcface": chosen["arcface"]}, terms=compare.Terms(ranges=ranges, num_trials=2))
    assert not (tmp_path / "out").exists()
    differing = ["augment", "sampling", "schedule.steps"]
    result = again(chosen, terms=compare.Terms(allow_different=differing))
    assert "they differ in augment, sampling, schedule.steps too" in table(result)
    assert result.cells[0].standard_error is None


def test_a_run_that_fails_is_reported_and_the_others_go_on(file, voices, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = command(file, voices, out, "--variants explodes,arcface --seeds 1")
    assert run_command(*arguments) == 1
    shown = capsys.readouterr().out
    assert re.search(r"explodes +0 of 1 +failed +failed", shown)
    assert re.search(r"arcface +1 of 1 +\d", shown)
    assert re.search(r"Failed: explodes seed 0: .*(nan|NaN|infin)", shown)
    document = json.loads((out / "comparison.json").read_text())
    assert [bool(run["failed"]) for run in document["runs"]] == [True, False]
    assert document["reference"] == "arcface"
    assert run_command(*arguments) == 1  # tried again, and still no result
    assert "run 2 of 2: arcface seed 0: finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--variants arcfaced", "did you mean 'arcface'"),
        ("--reference magface --variants arcface", "is none of the variants compared: arcface"),
        ("--tune 3 --variants simple", "states no RANGES"),
        ("--variants arcface measure=none", "metrics"),
    ],
)
def test_wrong_input_gets_one_sentence_and_writes_nothing(options, says, file, voices, tmp_path):
    assert says in refused(*command(file, voices, tmp_path / "out", options))
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- statistics and tables, without
# training


@given(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.3, 0.5, 1.0]), max_size=8))
def test_holm_is_the_step_down_procedure(p):
    """Rejected at level a are the hypotheses before the first k with p_(k) > a / (m - k): the
    adjusted value is the least a that rejects.
    """
    for i, adjusted in enumerate(comparison.holm(p)):
        order = sorted(range(len(p)), key=lambda j: (p[j], j))
        rank = order.index(i)
        least = max((len(p) - k) * p[order[k]] for k in range(rank + 1))
        assert adjusted == pytest.approx(min(1.0, least))


def outcome(value: float, replicates: list[float], trial_list: str = "t") -> Outcome:
    return Outcome({"eer": value}, {"eer": np.array(replicates)}, trial_list, Drawn(20, "subjects"))


def test_pairs_are_equal_seeds_and_equal_trial_lists():
    ours = {0: outcome(0.1, [0.1, 0.2] * 10), 2: outcome(0.3, [0.3] * 20)}
    theirs = {0: outcome(0.2, [0.15, 0.2] * 10), 1: outcome(0.9, [0.9] * 20)}
    elsewhere = {0: outcome(0.5, [0.5, 0.5], "other")}
    cells, reference = summarise({"a": ours, "b": theirs, "c": {}, "d": elsewhere}, ["eer"])
    assert reference == "a"
    assert [cell.variant for cell in cells] == ["a", "b", "d"]
    assert cells[1].difference.num_seeds == 1
    assert cells[1].difference.value == pytest.approx(0.1)
    # one seed says nothing about others
    assert (cells[1].difference.distinguishable, cells[1].difference.p_holm) == (None, None)
    assert cells[2].difference is None  # measured on other trials: nothing pairs them
    assert summarise({"a": ours, "b": theirs}, ["eer"], higher_is_better=True)[1] == "b"
    assert summarise({"a": {}, "b": {}}, ["eer"]) == ([], "")


@pytest.mark.parametrize("higher", [False, True])
def test_a_mean_without_a_value_is_not_the_best(higher):
    runs = {
        "lost": {0: outcome(np.nan, [np.nan, 0.2, 0.3])},
        "low": {0: outcome(0.1, [0.1, 0.2, 0.3])},
        "high": {0: outcome(0.4, [0.4, 0.5, 0.6])},
    }
    assert summarise(runs, ["eer"], higher_is_better=higher)[1] == ("high" if higher else "low")
    assert summarise({"lost": runs["lost"]}, ["eer"], higher_is_better=higher)[1] == ""


def test_the_watched_metric_picks_the_reference(file, tmp_path, monkeypatch):
    settings = [*SHORT, "schedule.watch=min_dcf(.1)", "schedule.higher_is_better=true"]
    values = {"arcface": (0.3, 0.4), "simple": (0.1, 0.9)}
    chosen = variants(file, *values, overrides=settings)

    def measured(_: compare.Listed, folder: Path) -> tuple[Outcome, dict[str, Any]]:
        of_run = dict(zip(METRICS, values[folder.parent.name], strict=True))
        draws = {name: np.linspace(0.9, 1, 40) * value for name, value in of_run.items()}
        return Outcome(of_run, draws, "t", Drawn(20, "subjects")), {}

    monkeypatch.setattr(compare, "_outcome", measured)
    runs = [comparison.Run(name, 0, f"{name}/seed-0") for name in values]
    listed = {name: compare.Listed(recipe, {}, "") for name, recipe in chosen.items()}
    assert compare._summary(listed, runs, tmp_path, "", {}).reference == "simple"
    assert {recipe.main_metric for recipe in chosen.values()} == {"min_dcf(.1)"}
    assert {recipe.main_metric for recipe in variants(file, *values).values()} == {"eer"}


def test_resamples_without_a_value_count_neither_in_p_nor_in_the_interval():
    """Of 1000 differences 600 are NaN: what is left is what the 400 others alone give."""
    drawn = [0.09, 0.11] * 200
    found = []
    for replicates in ([float("nan")] * 600 + drawn, drawn, [float("nan")] * 1000):
        ours, theirs = [0.2] * len(replicates), [0.2 + replicate for replicate in replicates]
        runs = {"a": {0: outcome(0.2, ours)}, "b": {0: outcome(0.3, theirs)}}
        cells, _ = summarise(runs, ["eer"], reference="a", over_seeds=False)
        found.append(cells[1].difference)
    assert found[0] == found[1]
    assert found[0].distinguishable
    assert (found[2].interval, found[2].p, found[2].distinguishable) == (None, None, None)


def awkward() -> comparison.Comparison:
    """Names that every format has to escape, a failure, and a variant without a finished run."""
    named = {
        "a_b|c": {0: outcome(0.1, [0.1, 0.2]), 1: outcome(0.12, [0.1, 0.2])},
        "50%&$#": {0: outcome(0.4, [0.5, 0.4])},
        "<gone>": {},
    }
    cells, reference = summarise(named, ["eer"])
    runs = [
        comparison.Run(name, seed, f"{name}/seed-{seed}", values={"eer": 0.1}, scores="0" * 64)
        for name, some in named.items()
        for seed in some
    ]
    failed = "step 5: the loss is nan | at <lr>\nand more"
    runs.append(comparison.Run("<gone>", 0, "gone/seed-0", failed=failed))
    counts = {"targets": 10, "nontargets": 1000, "subjects": None}
    what = (list(named), ["eer"], [0, 1], runs, cells, reference, True, counts, "unknown", 1000)
    return comparison.Comparison(*what, ["loss"], ["sampling"], watched="eer")


def test_what_is_written_of_awkward_names_is_escaped(whole):
    tables = [block.splitlines() for block in markdown(awkward()).split("\n\n") if block[:1] == "|"]
    assert len(tables) == 2
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    rows = [line for line in latex(awkward()).splitlines() if line.endswith(r" \\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in rows}) == 2  # of two tables
    assert not any(re.search(r"(?<!\\)[%#_]|[^\x00-\x7f]", line) for line in rows)
    logs = {("a_b|c", 0): [{"step": 1, "loss": 2.0}]}
    page = html(awkward(), logs, command="likeness compare x && y")
    assert "&lt;gone&gt;" in page
    assert "<gone>" not in page
    assert "they differ in sampling too" in page
    assert "over trials, hence optimistic" in table(awkward())
    assert table(awkward()).startswith("No variant was tuned")
    assert page.index("No variant was tuned") < page.index("<table")
    cell = json.loads(to_json(awkward(), command=""))["cells"][0]
    assert cell["standard_error"] == pytest.approx(0.01)
    # the curve of each metric, the loss of each variant
    assert (whole / "report" / "index.html").read_text().count('class="plot"') == 2 + 2


def test_subjects_come_from_the_labels(voices):
    items, trials = folders.trials(voices, split="test", test_share=0.25)
    labels = {f"x{i}": item.label for i, item in enumerate(items)}
    renamed = replace(trials, enrol_ids=tuple(labels), probe_ids=tuple(labels))
    subjects = comparison.subjects_behind(renamed, labels)
    assert (subjects.num_subjects, subjects.source) == (2, "labels of the items")
    unlabelled = comparison.subjects_behind(renamed, dict.fromkeys(labels))
    assert unlabelled.source == "groups connected by target trials"
    of_others = comparison.subjects_behind(trials, {item.id: item.label for item in items})
    assert subjects.trial_list != of_others.trial_list


def test_what_the_command_line_sets_is_not_searched(file):
    _, ranges = load_variants(str(file), ["arcface"], ["optim.lr=0.1"])
    assert {*ranges["arcface"]} == {"loss.margin", "optim.nesterov"}


def test_a_group_of_variants_is_compared_by_their_own_names(file, tmp_path):
    grouped = tmp_path / "grouped.py"
    more = "RECIPES = {f'{data}.{name}': one for data in 'ab' for name, one in RECIPES.items()}"
    more += "\nRANGES = {'a.arcface': {}, 'b.simple': {}}\n"
    grouped.write_text(f"{file.read_text()}\n{more}")
    of_one, ranges = load_variants(f"{grouped}:a")
    assert {*of_one} == {*variants(file, overrides=[])}
    assert {*ranges} == {"arcface"}
    assert {*load_variants(f"{grouped}:b", ["simple"])[0]} == {"simple"}
    assert {*load_variants(str(grouped), ["a.simple", "b.simple"])[0]} == {"a.simple", "b.simple"}
    with pytest.raises(ValueError, match="no variant 'none'"):
        load_variants(f"{grouped}:a", ["none"])
