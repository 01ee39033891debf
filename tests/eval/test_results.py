"""Reports: the JSON schema, the aligned table, the page (one file, escaped, no network)."""

import json
import re
from dataclasses import replace
from html import escape, unescape

import numpy as np
import pytest

from likeness.eval.intervals.bootstrap import interval
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.metrics.verification import actual_dcf, cllr, eer, min_cllr, min_dcf, tar_at_far
from likeness.eval.protocols.side_by_side import Compared
from likeness.eval.reports.verification import write_page
from likeness.eval.results import footnotes, table, write_results
from likeness.eval.types import Scores, Trials
from tests.eval.all_pairs import all_pairs

SUBJECTS = np.stack(np.triu_indices(16, 1), axis=1) // 2  # two items of each of eight
IDS = tuple(f"s{i // 2}/<b>{i}&.wav" for i in range(16))
TRIALS = Trials(IDS, IDS, *np.triu_indices(16, 1), SUBJECTS[:, 0] == SUBJECTS[:, 1])


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    return {
        name: Scores(gap * TRIALS.target + rng.standard_normal(len(TRIALS)), TRIALS.target)
        for name, gap in (("one", 2.0), ("<two>", 1.0))
    }


@pytest.fixture(scope="module")
def results(scores):
    given = {"subjects": SUBJECTS, "subjects_from": "the first folder of each id"}
    few = VerificationSettings(num_resamples=50)
    return [
        r for name, of in scores.items() for r in measure_system(of, few, system=name, **given)[0]
    ]


def test_results_hold_the_metrics_their_intervals_thresholds_and_counts(results, scores):
    names = ["eer", "min_dcf(0.01)", "min_dcf(0.05)"]
    names += [f"tar_at_far({far})" for far in (0.1, 0.01, 0.001)]
    assert [result.metric for result in results[:6]] == names
    first = scores["one"]
    classes = first.targets, first.nontargets
    values = [eer(*classes), *(min_dcf(*classes, p_target=p) for p in (0.01, 0.05))]
    values += [tar_at_far(*classes, far) for far in (0.1, 0.01, 0.001)]
    assert [result.value for result in results[:6]] == values
    assert results[0].interval == interval(eer, first, SUBJECTS, num_resamples=50)
    assert results[0].counts == {"targets": 8, "nontargets": 112, "subjects": 8}
    assert np.mean(first.targets >= results[3].threshold) == results[3].value
    assert [r.conventions["nontargets_allowed"] for r in results[3:6]] == [11, 1, 0]


def test_notes_name_the_system_that_they_are_of():
    """Of two systems on lists of different sizes, as `evaluate` sets side by side."""
    settings, results = VerificationSettings(num_resamples=9), []
    for system, num_subjects in (("few", 7), ("many", 30)):
        _, scores, subjects = all_pairs(num_subjects, gap=1.0)
        results += measure_system(scores, settings, subjects=subjects, system=system)[0]
    text = table(results)
    assert [line[:7] for line in text.splitlines() if line.startswith("* ")] == ["* few: "]


def test_a_far_that_no_trial_may_reach_says_why(scores):
    settings = VerificationSettings(fars=(0.001, 0.0), num_resamples=0)
    notes = footnotes(measure_system(scores["one"], settings, subjects=SUBJECTS)[0])
    few = "too few nontarget trials to resolve this FAR; none may be accepted"
    assert f"TAR (%) at FAR 0.001: {few}." in notes
    assert "TAR (%) at FAR 0: no nontarget trial may be accepted." in notes


def test_json_is_strict_where_no_threshold_exists(tmp_path):
    worst = Scores(np.array([0.0, 1.0]), np.array([True, False]))  # rejecting every trial is best
    results = measure_system(worst, VerificationSettings(num_resamples=0), system="x")[0]
    write_results(tmp_path / "r.json", results, {})
    text = (tmp_path / "r.json").read_text()
    assert "Infinity" not in text
    second = json.loads(text)["results"][1]
    assert (second["metric"], second["value"]) == ("min_dcf(0.01)", 1.0)
    assert (second["interval"], second["threshold"]) == (None, None)
    assert second["counts"] == {"targets": 1, "nontargets": 1, "subjects": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_results(tmp_path / "r.json", [replace(results[0], value=float("nan"))], {})


def test_table_lines_up_and_speaks_percent(results):
    lines = table(results).splitlines()
    assert lines[0].split() == ["one", "threshold", "<two>", "threshold"]
    place = lines[0].index("threshold")
    assert lines[1][place:].split()[0] == f"{results[0].threshold:.4g}"
    value = f"{100 * results[0].value:.2f}"
    assert re.match(rf"EER \(%\) +{value}  \[ *[\d.]+, +[\d.]+\] ", lines[1])
    starts = {line.index("[") for line in lines[1:8]} | {line.rindex("[") for line in lines[1:8]}
    assert len(starts) == 2  # one column of intervals per system
    assert lines[7].startswith("best balanced accuracy (%)")
    assert lines[8].split() == ["targets", "8", "8"]
    assert "TAR (%) at FAR 0.001: too few" in "\n".join(lines)


class Page:
    """The tags, link targets and the text of a page."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"(<script.*?>).*?(</script>)", r"\1\2", text, flags=re.DOTALL)
        self.tags = re.findall(r"<([a-z]\w*)", text)
        self.links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
        self.text = unescape(re.sub(r"<[^>]*>", "", text))
        for tag in {*self.tags} - {"meta", "br", "img", "input"}:
            assert self.tags.count(tag) == text.count(f"</{tag}>"), tag


def write(folder, results, scores, *, trials=None, labels=None, **more):
    compared = Compared(results, scores, trials or {}, subject_of=labels or {})
    command = "likeness evaluate a.txt && echo <done>"
    return write_page(folder, compared, command=command, **more).read_text()


def test_page_is_one_escaped_file_without_network(tmp_path, results, scores):
    more = {"trials": dict.fromkeys(scores, TRIALS), "inputs": {"a.txt": "cd" * 32}}
    text = write(tmp_path, results, scores, **more)
    page = Page(text)
    # ids and names are text, not tags
    assert not {"b", "two", "done", "link", "iframe"} & set(page.tags)
    assert "img" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    # the browser refuses every request; our own part names no host
    ours = re.sub(r"<script>/\* BEGIN bokeh.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:https?:)//[a-z][^\s\"<]*", ours)
    assert "@import" not in text
    assert text.count('class="plot"') == 2  # DET and the histogram of the first system
    assert page.tags.count("details") == 2  # the hardest trials of each system
    assert "default-src 'none'" in text
    assert "&& echo <done>" in page.text
    assert "cd" * 32 in page.text
    assert "prefers-color-scheme" in page.text
    assert "8 target and 112 nontarget trials of 8 subjects" in page.text
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]
    assert text == write(tmp_path / "again.html", results, scores, **more)


def test_hardest_trials_are_the_lowest_targets_and_highest_nontargets(tmp_path, results, scores):
    first = scores["one"]
    text = write(tmp_path / "r.html", results[:6], {"one": first}, trials={"one": TRIALS})
    row = r'<td class="n">(\S+?)</td><td data-csv="[^"]*"><div class="pair">(.*?)</div></td>'
    shown, pairs = zip(*re.findall(row, text), strict=True)
    expected = [*np.sort(first.targets), *np.sort(first.nontargets)[::-1][:10]]
    assert [value.replace("\u2212", "-") for value in shown] == [f"{x:.4f}" for x in expected]
    lowest = int(np.argmin(np.where(first.target, first.values, np.inf)))
    ids = [escape(IDS[side[lowest]]) for side in (TRIALS.enrol, TRIALS.probe)]
    assert re.findall(r'class="id">(.*?)</span>', pairs[0]) == ids
    numbered = write(tmp_path / "n.html", results[:6], {"one": first})
    assert f"trial {lowest + 1}<" in numbered


@pytest.mark.parametrize(("gap", "shown"), [(1.0, "(no overlap, no curve)"), (0.0, "EER 50.00 %")])
def test_systems_without_a_curve_still_make_a_page(tmp_path, gap, shown):
    scores = {"x": Scores(gap * TRIALS.target, TRIALS.target)}
    settings = VerificationSettings(num_resamples=10)
    results = measure_system(scores["x"], settings, subjects=SUBJECTS, system="x")[0]
    # without an error there is the exact bound: 8 subjects with targets, 4 pairs of subjects
    bound = None if not gap else (0.0, 1 - 0.025 ** (1 / 4))
    assert results[0].interval == (bound and pytest.approx(bound))
    assert "interval_note" in results[0].conventions
    assert shown in write(tmp_path / "r.html", results, scores)


def test_every_rule_is_named_and_gives_its_own_number():
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.normal(2, 1, 60), rng.normal(0, 1, 400)])
    scores = Scores(np.round(values, 1), np.arange(460) < 60)
    switches = VerificationSettings(
        [0.02], 10.0, fars=[0.003], eer_method="convex_hull", tar_rule="nearest", llr=True
    )
    results = {result.metric: result for result in measure_system(scores, switches, system="x")[0]}
    classes = scores.targets, scores.nontargets
    assert "convex hull" in str(results["eer"].conventions["method"])
    for metric, expected in {
        "eer": eer(*classes, method="convex_hull"),
        "min_dcf(0.02)": min_dcf(*classes, p_target=0.02, c_miss=10.0),
        "tar_at_far(0.003)": tar_at_far(*classes, 0.003, rule="nearest"),
        "cllr": cllr(*classes),
        "min_cllr": min_cllr(*classes),
        "actual_dcf(0.02)": actual_dcf(*classes, p_target=0.02, c_miss=10.0),
    }.items():
        assert results[metric].value == expected
    assert results["tar_at_far(0.003)"].threshold is None
    assert results["actual_dcf(0.02)"].threshold == pytest.approx(np.log(0.98 / 0.2))
    assert results["cllr"].interval is None
    assert results["eer"].interval is not None
    assert "Cllr (bits)" in table(list(results.values()))
