"""Lists of target trials alone, such as of prompts and their clones, and conditions on results."""

import json
from functools import partial

import numpy as np
import pytest
from scipy import stats

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.protocols.gates import parse_condition
from likeness.eval.types import Scores, Trials
from tests.scripts import printed, refused, run_command

FAST = VerificationSettings(num_resamples=100)
SPEAKERS, MOST = 12, 4


def clones(system: str, order: np.ndarray, speakers: np.ndarray) -> Trials:
    """The trials of one system in some order: a prompt of each speaker beside its clone."""
    prompts = tuple(f"who{speaker}/prompt{row}" for row, speaker in enumerate(speakers))
    others = tuple(f"who{speaker}/{system}{row}" for row, speaker in enumerate(speakers))
    return Trials(prompts, others, order, order)


@pytest.fixture
def data():
    """The speakers of the prompts, and the scores of two systems, which share their speakers."""
    rng = np.random.default_rng(3)
    speakers = np.repeat(np.arange(SPEAKERS), rng.integers(1, MOST + 1, SPEAKERS))
    ease = rng.normal(0.7, 0.1, SPEAKERS)[speakers]
    first, second = (ease + rng.normal(mean, 0.03, speakers.size) for mean in (0.0, -0.02))
    return speakers, first, second


@pytest.fixture
def folder(tmp_path, data):
    """a.txt, b.txt: score files without labels of two systems, in two orders. c: one less."""
    speakers, first, second = data
    rows = np.arange(speakers.size)
    order = np.random.default_rng(0).permutation(rows)
    write_scores(tmp_path / "a.txt", clones("a", rows, speakers), first)
    write_scores(tmp_path / "b.txt", clones("b", order, speakers), second[order])
    write_scores(tmp_path / "c.txt", clones("c", rows[1:], speakers), second[1:])
    return tmp_path


def drawn(speakers: np.ndarray) -> list[np.ndarray]:
    """The rows of each resample: all of a speaker as often as it is drawn."""
    rng = np.random.default_rng(FAST.seed)
    draws = [rng.integers(SPEAKERS, size=SPEAKERS) for _ in range(FAST.num_resamples)]
    return [np.concatenate([np.flatnonzero(speakers == who) for who in draw]) for draw in draws]


MEASURES = {
    "mean_score": np.mean,
    "median_score": np.median,
    "share_accepted": lambda values: np.mean(values >= 0.7),
}


@pytest.mark.parametrize("metric", MEASURES)
def test_measures_and_paired_differences_are_those_of_brute_force(folder, data, metric):
    speakers, first, second = data
    files = [folder / "a.txt", folder / "b.txt"]
    result = likeness.evaluate(files, FAST, all_targets=True, threshold=0.7, pair_by="enrol")
    measure = MEASURES[metric]
    for system, values in (("a", first), ("b", second)):
        assert result[system].result(metric).value == pytest.approx(measure(values), abs=1e-12)
    value = measure(second) - measure(first)
    draws = [measure(second[rows]) - measure(first[rows]) for rows in drawn(speakers)]
    sizes = np.bincount(speakers)
    k = sizes.sum() ** 2 / (sizes**2).sum()
    half = stats.t.ppf(0.975, k - 1) * np.std(draws) * np.sqrt(k / (k - 1))
    difference = result.compared.paired.differences["b", metric]
    assert difference.value == pytest.approx(value, abs=1e-12)
    assert difference.interval == pytest.approx((value - half, value + half), abs=1e-9)
    assert result["a"].results[0].counts == {"targets": speakers.size, "subjects": SPEAKERS}


def test_the_interval_is_over_subjects(folder, data):
    speakers, first, _ = data
    of = likeness.evaluate(folder / "a.txt", FAST, all_targets=True).result("mean_score")
    logit = [np.mean(first[rows]) for rows in drawn(speakers)]
    assert of.interval[0] < of.value < of.interval[1]
    assert of.interval[1] - of.interval[0] == pytest.approx(4.2 * np.std(logit), rel=0.3)
    assert of.conventions["interval"] == "bootstrap over subjects"
    in_memory = {"a": likeness.Scored(*read_scores(folder / "a.txt"), "a")}
    again = likeness.evaluate(in_memory, FAST, all_targets=True).result("mean_score")
    assert (again.value, again.interval) == (of.value, of.interval)
    assert of.conventions["subjects_from"].startswith("first path component")


def test_systems_on_other_prompts_get_no_difference_and_no_verdict(folder):
    names = ("a", "c", "b")
    files = [folder / f"{name}.txt" for name in names]
    result = likeness.evaluate(files, FAST, all_targets=True, pair_by="enrol")
    assert result.compared.paired.unpaired == {"c": 1}
    assert {system for system, _ in result.compared.paired.differences} == {"b"}
    alone = likeness.evaluate([files[0], files[2]], FAST, all_targets=True, pair_by="enrol")
    pair = "b", "mean_score"
    intervals = {of.compared.paired.differences[pair].interval for of in (result, alone)}
    assert len(intervals) == 1
    with pytest.raises(LikenessError, match="leave out of all files the enrol ids"):
        result.met("mean_score < 0.1")
    by_both_sides = likeness.evaluate([files[0], files[2]], FAST, all_targets=True)
    with pytest.raises(LikenessError, match="score the same ones"):
        by_both_sides.met("mean_score < 0.1")
    assert set(by_both_sides.compared.paired.unpaired) == {"b"}


def test_one_side_of_each_trial_names_its_subject(tmp_path):
    sides = (tuple(f"{side}{i}" for i in range(12)) for side in "pc")
    trials = Trials(*sides, np.arange(12), np.arange(12))
    write_scores(tmp_path / "s.txt", trials, np.linspace(0, 1, 12))
    evaluate = partial(likeness.evaluate, tmp_path / "s.txt", FAST, all_targets=True)
    subjects = {f"p{i}": f"who{i // 2}" for i in range(12)}
    assert evaluate(subjects=subjects).results[0].counts["subjects"] == 6
    with pytest.warns(UserWarning, match="counts as a subject"):
        assert evaluate().results[0].counts["subjects"] == 12
    with pytest.raises(LikenessError, match="contradicts"):
        evaluate(subjects=subjects | {"c0": "who5"})


def test_stored_thresholds_of_the_model_count_what_they_accept(tmp_path):
    rng = np.random.default_rng(0)
    ids = tuple(f"who{i // 4}/{i}" for i in range(48))
    vectors = rng.standard_normal((12, 8))[np.arange(48) // 4] + rng.standard_normal((48, 8))
    enrol, probe = np.triu_indices(48, 1)
    whole = Trials(ids, ids, enrol, probe, enrol // 4 == probe // 4)
    scored = [
        likeness.score(trials, likeness.Embeddings(ids, vectors, meta={"model": model}))
        for trials, model in ((whole, "m"), (whole.rows(whole.target), "m"), (whole, "other"))
    ]
    of_all = VerificationSettings(fars=(0.05,), num_resamples=0)
    settings = VerificationSettings(num_resamples=0)
    stored = likeness.evaluate(scored[0], of_all).save_thresholds(tmp_path / "t.json")
    for given in (tmp_path / "t.json", stored):
        result = likeness.evaluate(scored[1], settings, thresholds=given)
        for name, point in zip(("eer", "0.05"), stored.points, strict=True):
            of = result.result(f"share_accepted({name})")
            assert of.value == np.mean(scored[1].values >= point.value)
            assert of.threshold == point.value
            assert "trials" in of.conventions["threshold_from"]
    likeness.evaluate(scored[2], of_all).save_thresholds(tmp_path / "other.json")
    with pytest.raises(LikenessError, match="of these scores"):
        likeness.evaluate(scored[1], settings, thresholds=tmp_path / "other.json")
    with pytest.raises(LikenessError, match="a finite number"):
        likeness.evaluate(scored[1], settings, threshold=np.nan)
    with pytest.raises(LikenessError, match="target trials alone"):
        likeness.evaluate(scored[0], of_all, thresholds=stored)


def test_what_needs_nontarget_trials_is_refused(folder):
    file = folder / "a.txt"
    for more in ({"groups": {}}, {"countermeasure": file}, {"quality": {}}):
        with pytest.raises(LikenessError, match="nontarget trials"):
            likeness.evaluate(file, FAST, all_targets=True, **more)
    with pytest.raises(LikenessError, match="fars"):
        likeness.evaluate(file, VerificationSettings(fars=(0.5,)), all_targets=True)
    result = likeness.evaluate(file, FAST, all_targets=True)
    for ask in (
        lambda: result.threshold(far=0.1),
        lambda: result.plan(0.01, 0.5),
        lambda: result.save_thresholds(folder / "t.json"),
        lambda: result.report(folder / "report"),
    ):
        with pytest.raises(LikenessError, match="are target trials"):
            ask()


def test_labels_decide_what_all_targets_may_say(tmp_path):
    trials = Trials(("a/1", "b/1"), ("a/2",), [0, 1], [0, 0])
    write_scores(tmp_path / "s.txt", trials, [0.5, 0.1])
    assert "--all-targets" in refused("evaluate", tmp_path / "s.txt")
    (tmp_path / "t.txt").write_text("a/1 a/2 1\nb/1 a/2 0\n")
    words = ("evaluate", tmp_path / "s.txt", "--trials", tmp_path / "t.txt")
    assert "not all trials" in refused(*words, "--all-targets")
    assert "target trials alone" in refused(*words, "--threshold", 0.3)
    with pytest.raises(LikenessError, match="no ids"):
        likeness.evaluate(Scores([1.0, 0.0], [True, False]), FAST, threshold=0.5)


def test_a_command_ends_with_1_where_a_condition_is_met(folder, capsys):
    words = ["evaluate", folder / "a.txt", folder / "b.txt", "--all-targets", "--pair-by", "enrol"]
    words += ["--resamples", 100, "--json", folder / "r.json", "--force"]
    assert "mean score" in printed(*words, "--fail-if", "mean_score < 0.1")
    capsys.readouterr()
    gates = ("--fail-if", "mean_score<.1", "--fail-if", "difference mean_score high < 0")
    assert run_command(*words, *gates) == 1
    said = capsys.readouterr()
    assert "mean score" in said.out
    assert said.err.count("which meets") == 1
    assert "difference mean_score high < 0" in said.err
    document = json.loads((folder / "r.json").read_text())
    assert {of["metric"] for of in document["differences"]} == {"mean_score", "median_score"}
    assert {of["conventions"]["pair_by"] for of in document["results"]} == {"enrol"}
    assert "there is mean_score" in refused(*words, "--fail-if", "eer > 0.1")
    assert "write [difference]" in refused(*words, "--fail-if", "__import__('os') < 1")


def test_conditions_hold_for_error_rates_and_ends_of_intervals():
    scores = Scores([3, 1, 2, 0], [True, True, False, False])
    result = likeness.evaluate(scores, VerificationSettings(num_resamples=0))
    assert len(result.met("eer > .4", "eer >= .5", "eer <= .5", "eer < 0.6", "eer<5e-1")) == 4
    assert result.met("tar_at_far(0.1) > 0.9", "min_dcf(0.01) < 0.1", "eer > 0.5") == []
    with pytest.raises(LikenessError, match="no interval"):
        result.met("eer low > 0")
    with pytest.raises(LikenessError, match="no difference"):
        result.met("difference eer > 0")


def test_a_condition_on_what_one_system_lacks_cannot_be_tested():
    """devPAV has no value where the likelihood ratios of the two kinds of trials lie apart."""
    values = {"mixed": [3, 1, 2, 0], "apart": [3, 2, 1, 0]}
    systems = {name: Scores(of, [True, True, False, False]) for name, of in values.items()}
    result = likeness.evaluate(systems, VerificationSettings(llr=True, num_resamples=0))
    assert len(result.met("cllr < 9")) == 2
    with pytest.raises(LikenessError, match="for apart"):
        result.met("dev_pav < 9")


@pytest.mark.parametrize(
    "text", ["", "eer", "eer = 1", "eer < x", "eer < 1 or 1", "< 1", "a b < 1"]
)
def test_other_texts_are_no_condition(text):
    with pytest.raises(LikenessError, match="METRIC"):
        parse_condition(text)
