"""Puts one public score file through the scorers that pip installs: the numbers differ.

    python benchmarks/scorers.py --data ../shared/data --out runs/scorers
        measures with what is installed beside Likeness
    python benchmarks/scorers.py --data ../shared/data --out runs/scorers
        --python ENV/bin/python --python BOB/bin/python
        looks for scorers in these virtual environments, too

Measures: EER and minDCF(.05 and .01) of the 49,987 trials of VoxSRC 2023's validation set. The file
    has three decimals. It is scored as it is, rounded to two and to one, and without ties: each
    score plus a number from -.0005 to .0005 (uniform, seed 0), as the scores may have been before
    they were rounded. Each of them is scored in three orders of the rows: as the file has them,
    all targets first, and all nontargets first. A stable sort keeps the order of the file within a
    tie, so that the last two are the extremes of a tool that counts row by row, and the first is
    what such a tool publishes. Then come six score sets of a few trials, whose exact answers can be
    counted by hand, and what a change of the trials or of the cost does by our rules.
Peers: those of scorers_peers.py. Each runs in a process of its own, under the first Python that can
    import it. What pip does not find, or what has neither metric, has no row.
Limit: none; this is about numbers.
Needs: protocols/voxsrc23_val/ in the folder of --data. The scorers are no dependencies of Likeness.
    Those that do not come with it go into environments of their own. bob.measure needs numpy 1:
        python -m venv ENV
        ENV/bin/pip install torch torchmetrics pyeer eer a-dcf editdistance "setuptools<80"
        ENV/bin/pip install --no-deps espnet s3prl
        python -m venv BOB
        BOB/bin/pip install bob.measure
    A scorer that is not installed is a row that says so.
Takes: five minutes of one core.
Gives: the tables of docs/explanation/comparing.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from performance import environment_of_one_thread, parser_of, row, table
from scorers_peers import SCORERS, TINY, Rows

from eval.bootstrap import intervals
from eval.formats.trials import read_scores, read_trials
from eval.types import Scores
from eval.verification import eer, min_dcf, min_dcf_threshold

PEERS = Path(__file__).with_name("scorers_peers.py")
METRICS = {"eer": "EER %", "min_dcf(0.05)": "minDCF(.05)", "min_dcf(0.01)": "minDCF(.01)"}
ROUNDINGS = {"untied": "no ties", "as_is": "as it is", "2": "2 decimals", "1": "1 decimal"}
Metric = Callable[[Rows, Rows], float]  # target scores, nontarget scores -> a number
Answers = dict[str, dict[str, Any]]  # a scorer -> each of ROUNDINGS and "tiny" -> its answer
OURS: dict[str, Metric] = {
    "eer": eer,
    "min_dcf(0.05)": partial(min_dcf, p_target=0.05),
    "min_dcf(0.01)": partial(min_dcf, p_target=0.01),
}


# ---------------------------------------------------------------- the scores


def read(data: Path) -> tuple[Rows, Rows]:
    """The scores and the labels of the public file, in its order."""
    folder = data / "protocols" / "voxsrc23_val"
    trials, scores = read_scores(folder / "scores.txt.gz", read_trials(folder / "trials.txt.gz"))
    assert trials.target is not None
    return scores, trials.target.astype(np.int64)


def variant(scores: Rows, rounding: str) -> Rows:
    """The scores as one of ROUNDINGS has them."""
    if rounding == "as_is":
        return scores
    if rounding == "untied":
        return scores + np.random.default_rng(0).uniform(-0.0005, 0.0005, scores.size)
    return np.round(scores, int(rounding))


def orders(labels: Rows) -> Rows:
    """The three orders of the rows: as they are, targets first, nontargets first."""
    return np.stack(
        [
            np.arange(labels.size),
            np.argsort(-labels, kind="stable"),
            np.argsort(labels, kind="stable"),
        ]
    )


# ---------------------------------------------------------------- processes


def answer_of(python: str, *arguments: str) -> Any:
    """The JSON that scorers_peers.py prints last, or a text that says how its process ended."""
    try:
        process = subprocess.run(
            [python, str(PEERS), *arguments],
            capture_output=True,
            text=True,
            env=environment_of_one_thread(),
        )
    except OSError as error:
        return f"no process: {error.strerror}"
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"code {process.returncode}"])[-1]
        return f"process ended: {last[:200]}"
    return json.loads(process.stdout.splitlines()[-1])


def find(pythons: list[str]) -> dict[str, str]:
    """Where each scorer can be imported: its name -> the Python."""
    found: dict[str, str] = {}
    for python in pythons:
        answer = answer_of(python, "--installed")
        if isinstance(answer, str):
            raise SystemExit(f"{python} cannot run {PEERS.name}: {answer}")
        for name in answer:
            found.setdefault(name, python)
    return found


# ---------------------------------------------------------------- tables


def number(value: Any, metric: str, digits: str = "") -> str:
    """A value as the tables have it; a failure is the name of its exception."""
    if isinstance(value, str):
        return f"fails ({value.partition(':')[0]})"
    if digits:
        return f"{value:{digits}}"
    return f"{100 * value:.4f}" if metric == "eer" else f"{value:.6f}"


def cell(answers: Any, metric: str, digits: str) -> str:
    """The value in the first order of the rows, and in the others where they differ from it."""
    if isinstance(answers, str):
        return answers
    texts = [number(values[metric], metric, digits) for values in answers]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ({', '.join(texts[1:])})"


def values_in(answers: Answers, name: str, key: str) -> Any:
    """A scorer's values, or a text that says why there are none."""
    if not answers[name]:
        return "not installed"
    answer = answers[name][key]
    return answer if isinstance(answer, str) else answer["values"]


def having(metric: str, answers: Answers) -> list[str]:
    """The scorers that have a metric."""
    return [
        name
        for name in answers
        if (SCORERS[name].eer if metric == "eer" else SCORERS[name].min_dcf) is not None
    ]


def rounding_table(metric: str, answers: Answers) -> None:
    """Print the metric of every scorer for every rounding."""
    names = having(metric, answers)
    if not names:
        return
    table(METRICS[metric], *ROUNDINGS.values())
    for name in names:
        row(name, *(cell(values_in(answers, name, key), metric, "") for key in ROUNDINGS))
    print()


def tiny_table(metric: str, answers: Answers) -> None:
    """Print the metric of every scorer for the tiny sets, as a fraction."""
    names = having(metric, answers)
    if not names:
        return
    table(f"{METRICS[metric].removesuffix(' %')} of tiny sets", *TINY)
    for name in names:
        found = values_in(answers, name, "tiny")
        row(
            name,
            *(
                cell(found if isinstance(found, str) else found[title], metric, ".3f")
                for title in TINY
            ),
        )
    print()


# ---------------------------------------------------------------- what else moves a number


def halves(metric: str, target: Rows, nontarget: Rows) -> float:
    """The cost in one half of the trials at the other half's best threshold, mean of both ways."""
    p = {"min_dcf(0.05)": 0.05, "min_dcf(0.01)": 0.01}[metric]
    rng = np.random.default_rng(0)
    parts = [np.array_split(rng.permutation(side), 2) for side in (target, nontarget)]
    costs = []
    for own, other in ((0, 1), (1, 0)):
        threshold = min_dcf_threshold(parts[0][own], parts[1][own], p_target=p)
        frr = np.mean(parts[0][other] < threshold)
        far = np.mean(parts[1][other] >= threshold)
        costs.append((p * frr + (1 - p) * far) / min(p, 1 - p))
    return float(np.mean(costs))


def fold_cells(scores: Rows, labels: Rows, folds: int) -> list[str]:
    """The mean of each metric over folds of consecutive rows."""
    parts = list(zip(np.array_split(scores, folds), np.array_split(labels, folds), strict=True))
    return [
        number(np.mean([metric(side[own == 1], side[own == 0]) for side, own in parts]), name)
        for name, metric in OURS.items()
    ]


def changes(scores: Rows, labels: Rows) -> None:
    """Print what our rules give for the file when something else than the scorer changes."""
    target, nontarget = scores[labels == 1], scores[labels == 0]
    drawn = np.random.default_rng(0).choice(nontarget, nontarget.size // 10, replace=False)
    first = slice(5_000)
    twice_t, twice_n = (
        np.concatenate([side, scores[first][labels[first] == label]])
        for side, label in ((target, 1), (nontarget, 0))
    )
    trials: dict[str, tuple[Rows, Rows]] = {
        "nothing": (target, nontarget),
        "distances 1 - s in place of similarities s": (1 - target, 1 - nontarget),
        "every row twice": (np.repeat(target, 2), np.repeat(nontarget, 2)),
        "every target row twice": (np.repeat(target, 2), nontarget),
        "the first 5,000 rows twice": (twice_t, twice_n),
        "a tenth of the nontarget trials (seed 0)": (target, drawn),
        "only the higher half of the nontarget scores": (
            target,
            np.sort(nontarget)[nontarget.size // 2 :],
        ),
    }
    table("what is changed", *METRICS.values())
    for title, pair in trials.items():
        row(title, *(number(metric(*pair), name) for name, metric in OURS.items()))
    random = np.random.default_rng(0).permutation(labels.size)
    for folds in (10, 100):
        row(
            f"mean over {folds} folds of random rows (seed 0)",
            *fold_cells(scores[random], labels[random], folds),
        )
    row("mean over 10 folds of consecutive rows", *fold_cells(scores, labels, 10))
    costs = ("min_dcf(0.05)", "min_dcf(0.01)")
    row(
        "threshold of the other half of the trials (seed 0)",
        "",
        *(number(halves(name, target, nontarget), name) for name in costs),
    )
    row(
        "cost not divided by min(p, 1 - p)",
        "",
        *(
            number(OURS[name](target, nontarget) * p, name)
            for name, p in zip(costs, (0.05, 0.01), strict=True)
        ),
    )
    row(
        "c_miss = 10",
        "",
        *(number(min_dcf(target, nontarget, p_target=p, c_miss=10.0), "") for p in (0.05, 0.01)),
    )
    for title, repeats in (("interval over trials", 1), ("the same, every row twice", 2)):
        ends = intervals(
            OURS, Scores(np.repeat(scores, repeats), np.repeat(labels == 1, repeats)), None
        )
        texts = [
            "to".join(f" {number(end, name)} " for end in ends[name] or ()).strip() for name in OURS
        ]
        row(f"{title} (95 %, 1,000 resamples, seed 0)", *texts)
    print()


def ask(
    names: list[str],
    found: dict[str, str],
    scores: Rows,
    labels: Rows,
    out: Path,
    limit_gb: float,
) -> Answers:
    """What every scorer says: its name -> each of ROUNDINGS and "tiny" -> its answer.

    An answer is what scorers_peers.py prints, or a text that says how its process ended. Scorers
    that are not in `found` have none.
    """
    answers: Answers = {name: {} for name in names}
    for rounding in ROUNDINGS:
        rows = out / f"rows-{rounding}.npz"
        np.savez(rows, scores=variant(scores, rounding), labels=labels, orders=orders(labels))
        for name in filter(found.__contains__, names):
            options = (f"--rows={rows}", f"--limit-gb={limit_gb}")
            answers[name][rounding] = answer_of(found[name], name, *options)
    for name in filter(found.__contains__, names):
        answers[name]["tiny"] = answer_of(found[name], name)
    return answers


def main() -> None:
    """Ask every scorer, and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds protocols/")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the rows that are scored"
    )
    parser.add_argument(
        "--python", action="append", default=[], help="a Python with more scorers; may be repeated"
    )
    parser.add_argument(
        "--limit-gb", type=float, default=4.0, help="memory of a scorer (default: 4; 0: no limit)"
    )
    parser.add_argument(
        "--only", action="append", choices=list(SCORERS), help="a scorer; may be repeated"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    scores, labels = read(arguments.data)
    same = [str(k) for k in range(1, 7) if np.array_equal(np.round(scores, k), scores)]
    print(
        f"{labels.size:,} trials, {labels.sum():,} targets, {np.unique(scores).size:,} distinct "
        f"scores; rounding to {same[0] if same else 'any number of'} decimals changes nothing\n"
    )
    found = find([sys.executable, *arguments.python])
    names = arguments.only or list(SCORERS)
    answers = ask(names, found, scores, labels, arguments.out, arguments.limit_gb)
    for metric in METRICS:
        rounding_table(metric, answers)
    for metric in ("eer", "min_dcf(0.05)"):
        tiny_table(metric, answers)
    changes(scores, labels)


if __name__ == "__main__":
    main()
