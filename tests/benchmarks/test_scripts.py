"""The benchmarks: what those over folds share against its definitions; scorers.py, whose rules are
derived once more in exact fractions, and whose answers on small sets are counted by hand, as
docs/explanation/comparing.md says; gpu.py on a CPU; the bars of performance.toml; the lists of
scale.py; the ways of values.
"""

import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from likeness import Embeddings, Trials
from likeness.eval.formats.trials import write_scores
from likeness.eval.metrics.verification import eer
from tests.scripts import loaded, program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
folds = loaded(BENCHMARKS / "folds.py")


def trials_of(speakers: str, rng: np.random.Generator) -> tuple[Trials, np.ndarray]:
    """All pairs of three recordings of each speaker, with random scores."""
    names = tuple(f"{speaker}/{number}" for speaker in speakers for number in range(3))
    enrol, probe = np.triu_indices(len(names), 1)
    target = np.array([names[i][0] == names[j][0] for i, j in zip(enrol, probe, strict=True)])
    scores = rng.standard_normal(len(enrol)) + 2 * target
    return Trials(names, names, enrol.astype(np.int32), probe.astype(np.int32), target), scores


def test_pooled_folds_have_all_trials_and_none_across(tmp_path):
    rng = np.random.default_rng(0)
    written = [trials_of(speakers, rng) for speakers in ("abc", "de")]
    files = [tmp_path / f"fold{number}.txt" for number in range(2)]
    for file, (trials, scores) in zip(files, written, strict=True):
        write_scores(file, trials, scores)
    trials, scores = folds.pooled(files)
    expected = np.concatenate([scores for _, scores in written])
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(trials.enrol_ids) == 15
    pairs = zip(trials.enrol, trials.probe, strict=True)
    sides = {(trials.enrol_ids[i], trials.probe_ids[j]) for i, j in pairs}
    assert len(sides) == 9 * 8 // 2 + 6 * 5 // 2
    assert not any((a[0] in "abc") != (b[0] in "abc") for a, b in sides)

    errors = folds.errors_of(trials, scores)
    value = errors.values["eer"]
    assert value == pytest.approx(eer(expected[trials.target], expected[~trials.target]))
    assert folds.with_interval(errors, "eer").startswith(f"{100 * value:.2f} [")
    assert folds.difference(errors, errors, "eer") == "no interval"


def test_as_norm_is_the_definition_written_as_loops():
    rng = np.random.default_rng(1)
    trials, _ = trials_of("ab", rng)
    tested = Embeddings(trials.enrol_ids, rng.standard_normal((6, 4)))
    labels = np.array(["k", "k", "l", "m", "m", "m"])
    known = Embeddings(tuple(f"t{row}" for row in range(6)), rng.standard_normal((6, 4)))
    ours = folds.normalised(trials, tested, known, labels)

    def unit(row: np.ndarray) -> np.ndarray:
        return np.asarray(row / np.linalg.norm(row))

    centre = np.mean(known.matrix, axis=0)
    rows = np.array([unit(row - centre) for row in known.matrix])
    speakers = [np.mean(rows[labels == label], axis=0) for label in ("k", "l", "m")]
    for place, (i, j) in enumerate(zip(trials.enrol, trials.probe, strict=True)):
        sides = [unit(tested.matrix[row] - centre) for row in (i, j)]
        halves = []
        for side in sides:
            cohort = [float(side @ unit(speaker)) for speaker in speakers]
            halves.append((float(sides[0] @ sides[1]) - np.mean(cohort)) / np.std(cohort))
        assert ours[place] == pytest.approx(np.mean(halves), abs=1e-4)


scorers = loaded(BENCHMARKS / "scorers.py")


rows = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=14)
rows = rows.filter(lambda trials: len({target for _, target in trials}) == 2)


def arrays(trials: list[tuple[int, bool]], step: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = zip(*trials, strict=True)
    return np.array(scores) * step, np.array(labels, dtype=np.int64)


def shares(rejected: list[bool], labels: np.ndarray) -> tuple[Fraction, Fraction]:
    """FRR and FAR of a decision, counted trial by trial."""
    misses = sum(no and label == 1 for no, label in zip(rejected, labels, strict=True))
    accepts = sum(not no and label == 0 for no, label in zip(rejected, labels, strict=True))
    return Fraction(misses, int(sum(labels == 1))), Fraction(accepts, int(sum(labels == 0)))


def cost(frr: Fraction, far: Fraction, p: Fraction) -> Fraction:
    return (p * frr + (1 - p) * far) / min(p, 1 - p)


# ---------------------------------------------------------------- rules


@given(rows)
def test_one_point_per_row_rejects_each_row_with_the_lower_scores_and_the_earlier_equals(trials):
    scores, labels = arrays(trials)
    places = [(score, place) for place, score in enumerate(scores)]  # no sort
    points = [shares([other <= row for other in places], labels) for row in places]
    frr, far = scorers.rates_by_row(scores, labels)
    expected = np.array(sorted(points), dtype=np.float64)
    assert np.array(sorted(zip(frr, far, strict=True))) == pytest.approx(expected)
    for p in (Fraction(1, 20), Fraction(1, 100)):
        least = min(cost(*point, p) for point in points)
        assert scorers.min_dcf_by_row(scores, labels, float(p)) == pytest.approx(float(least))
    gap = min(abs(a - b) for a, b in points)
    means = {float(a + b) / 2 for a, b in points if abs(a - b) == gap}
    # of several points at the least distance rounding picks one
    assert min(abs(scorers.eer_by_row(scores, labels) - mean) for mean in means) < 1e-12


@given(rows)
def test_kaldis_eer_is_the_first_share_of_targets_that_the_far_there_does_not_exceed(trials):
    scores, labels = arrays(trials)
    target, nontarget = np.sort(scores[labels == 1]), scores[labels == 0]
    num = len(target)
    far = [Fraction(int(sum(nontarget >= score)), len(nontarget)) for score in target]
    fitting = [Fraction(k, num) for k in range(num) if far[k] <= Fraction(k, num)]
    expected = min([*fitting, Fraction(num - 1, num)])
    assert scorers.eer_kaldi(scores, labels) == pytest.approx(float(expected))


# ---------------------------------------------------------------- scores with exact answers

# of the sets of scorers.TINY in their order, counted by hand
EXACT = {
    ("Likeness", "EERS"): ["0", "1", "1/2", "1/4", "1/2", "3/4"],
    ("Likeness", "MIN_DCFS"): ["0", "1", "2/3", "1/2", "1", "1"],
    ("Likeness, convex_hull", "EERS"): ["0", "1/2", "2/7", "1/4", "1/2", "3/7"],
    ("Likeness, nearest", "EERS"): ["0", "1", "5/12", "1/4", "1/2", "3/4"],
    ("one point per row", "MIN_DCFS"): ["0", "1", "2/3", "1/2", "1", "1"],
    ("scikit-learn, argmin", "EERS"): ["0", "1", "1/2", "0", "0", "3/4"],
    ("Kaldi's compute-eer", "EERS"): ["0", "1/2", "2/3", "1/2", "3/4", "3/4"],
}


@pytest.mark.parametrize(("name", "metric"), EXACT)
def test_tiny_sets_have_the_answers_that_were_counted_by_hand(name, metric):
    scorer = getattr(scorers, metric)[name]
    values = [scorer(*scorers.tiny(title)) for title in scorers.TINY]
    assert values == pytest.approx([float(Fraction(text)) for text in EXACT[name, metric]])


# ---------------------------------------------------------------- the command


def test_a_difference_is_seen():
    """Otherwise the comparison of a CPU with itself would prove nothing."""

    class Wrong(torch.nn.Module):
        """A loss that gives one percent more from its second call on, as a device might."""

        def __init__(self, called: list[int]) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.called = called

        def __deepcopy__(self, memo: object) -> "Wrong":
            self.called.append(1)
            return Wrong(self.called)

        def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((z @ self.weight) ** 2).mean() * (1.01 if len(self.called) > 2 else 1.0)

    torch.manual_seed(0)
    z, y = torch.randn(16, 8), torch.arange(16)
    *cells, half, remark = loaded(BENCHMARKS / "gpu.py").loss_cells(Wrong([]), z, y, z.device)
    assert cells == pytest.approx([0.01] * 3, rel=1e-3)
    assert half == pytest.approx(0.01, rel=0.5)
    assert remark == ""


@pytest.mark.slow  # all sections, with processes of their own
def test_all_sections_run_on_a_cpu(tmp_path):
    pytest.importorskip("cv2")
    done = program(BENCHMARKS / "gpu.py", "--small", cwd=tmp_path)
    tables = [section.split("\n| ")[1:] for section in done.stdout.split("\n### ")[1:]]
    assert len(tables) == 5
    assert all(len(rows) > 1 for rows in tables)  # columns and rows
    assert "failed: " not in done.stdout
    values = [row.split(" | ")[1] for row in tables[0][1:]]
    assert set(values) == {"0"}  # the CPU beside itself


# ---------------------------------------------------------------- numbers and their bars

performance = loaded(BENCHMARKS / "performance.py")
BARS = """
usual_machine = "AMD"

[[table]]
title = "Sorting"
date = "2026-01-01"
machine = "AMD"
command = '''
python benchmarks/sorting.py'''
columns = ["work", "ours, s", "ours/limit", "MB"]
rows = [
    ["sort", "1,000", "1.00", "7"],
    ["sort é", "2.0", "1.20", "7"],
    ["by hand", "3.0", "-", "7"],
]
"""
OUTPUT = """
| work | ours, s | limit, s | ours/limit |
|---|---|---|---|
| sort | 4,000 | 3,000 | 1.30 |
| sort é | 4.0 | 2.0 | 1.40 |

| work | MB |
|---|---|
| sort | 8 |
"""


def test_what_moved_by_more_than_a_quarter_is_named_and_written_where_it_stands():
    (table,) = tomllib.loads(BARS)["table"]
    rows = performance.cells_of(f"a line\n{OUTPUT}\n| no table |\n")
    first = {"ours, s": "4,000", "limit, s": "3,000", "ours/limit": "1.30"}
    assert rows["sort"] == first | {"MB": "8"}
    moved = "sort, ours/limit: 1.00 before, 1.30 now"
    assert performance.findings(table, rows) == [moved, "by hand: not measured"]
    written = performance.rewritten(BARS, table, rows, "ARM")
    (changed,) = tomllib.loads(written)["table"]
    now = [["sort", "4,000", "1.30", "8"], ["sort é", "4.0", "1.40", "7"]]
    assert changed["rows"] == [*now, table["rows"][2]]
    assert changed["machine"] == "ARM"
    assert changed["date"] > table["date"]
    assert changed["command"] == table["command"]


def test_every_table_has_a_command_whose_script_is_there_and_rows_that_can_be_written():
    text = performance.BARS.read_text(encoding="utf-8")
    _, *sections = text.split("[[table]]")
    scripts = "".join(path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("*.py"))
    for table, section in zip(tomllib.loads(text)["table"], sections, strict=True):
        for command in table["command"].strip().splitlines():
            assert (BENCHMARKS.parent / command.split()[1]).is_file(), command
        assert performance.rewritten(section, table, {}, table["machine"]).count("date") == 1
        assert len({row[0] for row in table["rows"]}) == len(table["rows"])
        assert all(f'"{column}"' in scripts for column in table["columns"][1:])


# ---------------------------------------------------------------- lists of items

scale = loaded(BENCHMARKS / "scale.py")


@pytest.mark.parametrize("name", ["csv", "tree", "shards"])
def test_what_is_written_for_a_list_of_items_is_listed_whole(name, tmp_path):
    make, items_of = scale.WORKS[name]
    make(tmp_path, 20_000)
    assert len(items_of(tmp_path)) == 20_000


# ---------------------------------------------------------------- ways of values

# From the command and from Python: at most so many functions, in so many files.
BOUNDS = {
    "a wav path of `verify`": ((17, 8), (12, 5)),
    "a trial list of `score`": ((21, 11), (14, 6)),
    "`--far` of `evaluate`": ((26, 11), (16, 7)),
    "a batch to its loss": ((52, 21), (52, 21)),
    "an override of `train`": ((43, 23), (32, 16)),
}


ways = loaded(BENCHMARKS / "ways.py")


def test_ways_are_no_longer_than_they_were(tmp_path):
    measured = ways.measure(tmp_path)
    sizes = {value: tuple(map(ways.size_of, both)) for value, both in measured.items()}
    assert sizes.keys() == BOUNDS.keys() == ways.WANTED.keys()
    for value, bounds in BOUNDS.items():
        for (functions, files), (most, most_files) in zip(sizes[value], bounds, strict=True):
            assert 0 < functions <= most, value
            assert files <= most_files, value
