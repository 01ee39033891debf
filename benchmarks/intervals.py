"""Measures how often 95 % intervals over subjects hold the truth, and how often equal systems are
called different.

    python benchmarks/intervals.py [--tests 500] [--resamples 1000] [--worlds vectors,skewed]

Measures: the share of simulated tests whose interval holds the value of a very large population,
    and the share in which two systems of equal errors have p < .05 (the error of the first kind),
    for EER, TAR@FAR .01 and minDCF (p_target .05). A test has 20, 40 or 100 subjects with 30 target
    trials each on the average: all have as many, or their numbers are a geometric series whose
    largest is 30 times its smallest. Of the four times as many nontarget trials, a subject takes a
    share like that of its target trials.
Worlds: `vectors`: ten vectors a subject around its own mean, some subjects more spread than others,
    and scores are cosines. `skewed`: scores with effects of both subjects, where few subjects are
    far harder than all others. Half of the variance of both systems is common to them.
Takes: 200 tests of both worlds with 200 resamples 3 minutes of one core, 500 with 1,000 half an
    hour.
Gives: the table of docs/explanation/intervals.md, each share with its exact 95 % interval.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from performance import parser_of, row, table

from likeness import Scores
from likeness.eval.intervals.comparison import LEVEL, Outcome, summarise
from likeness.metrics import bounds_of, drawn_from, eer, min_dcf, tar_at_far, upper_bound

METRICS = {
    "EER": eer,
    "TAR@FAR .01": partial(tar_at_far, far=0.01),
    "minDCF": partial(min_dcf, p_target=0.05),
}
MEAN_TRIALS, LARGEST_TO_SMALLEST, NONTARGETS, ITEMS, DIM = 30, 30.0, 4, 10, 16
Rows = NDArray[Any]


def sizes_of(kind: str, n: int) -> Rows:
    """(n,) the numbers of target trials of the subjects."""
    if kind == "equal":
        return np.full(n, MEAN_TRIALS)
    sizes = LARGEST_TO_SMALLEST ** (-np.arange(n) / (n - 1))
    return np.maximum(1, np.round(sizes * MEAN_TRIALS * n / sizes.sum())).astype(int)


def subjects_of(rng: np.random.Generator, sizes: Rows) -> tuple[Rows, Rows, Rows]:
    """The subject of each target trial, and both subjects of each nontarget trial."""
    own = np.repeat(np.arange(sizes.size), sizes)
    share = sizes / sizes.sum()
    a, b = (rng.choice(sizes.size, NONTARGETS * own.size, p=share) for _ in range(2))
    while (same := a == b).any():
        b[same] = rng.choice(sizes.size, np.count_nonzero(same), p=share)
    return own, a, b


def normal(rng: np.random.Generator, *size: int) -> Rows:
    """(2, *size) normal numbers for two systems, half of whose variance is common."""
    common, own = rng.normal(size=(1, *size)), rng.normal(size=(2, *size))
    return (common + own) / np.sqrt(2)


def vectors(rng: np.random.Generator, n: int, items: int) -> Rows:
    """(2, n, items, DIM) vectors of unit length of two systems."""
    spread = 0.8 * np.exp(0.4 * rng.normal(size=(n, 1, 1)))
    rows = normal(rng, n, 1, DIM) + spread * normal(rng, n, items, DIM)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def effects(rng: np.random.Generator, n: int) -> tuple[Rows, Rows]:
    """(2, n) how much each subject changes the scores of its target, and its nontarget trials."""
    z = normal(rng, 3, n).swapaxes(0, 1)
    own = 0.27 * z[0] + 0.36 * z[1] - 0.35 * (rng.exponential(size=n) - 1)
    return own, 0.175 * z[0] + 0.305 * z[2]


def one_test(rng: np.random.Generator, world: str, sizes: Rows) -> tuple[list[Scores], Rows]:
    """The scores of two systems, and the subjects of both sides of their trials."""
    own, a, b = subjects_of(rng, sizes)
    if world == "vectors":
        x = vectors(rng, sizes.size, ITEMS)
        i, j = rng.integers(ITEMS, size=own.size), rng.integers(1, ITEMS, size=own.size)
        k, m = rng.integers(ITEMS, size=(2, a.size))
        target = (x[:, own, i] * x[:, own, (i + j) % ITEMS]).sum(axis=-1)
        nontarget = (x[:, a, k] * x[:, b, m]).sum(axis=-1)
    else:
        of_own, of_others = effects(rng, sizes.size)
        target = 3.2 + of_own[:, own] + 0.8 * normal(rng, own.size)
        nontarget = of_others[:, a] + of_others[:, b] + 0.85 * normal(rng, a.size)
    pairs = np.stack([np.append(own, a), np.append(own, b)], axis=1)
    is_target = np.arange(len(pairs)) < own.size
    values = np.concatenate([target, nontarget], axis=1)
    return [Scores(of_system, is_target) for of_system in values], pairs


def truth(world: str, blocks: int = 100, n: int = 50_000) -> dict[str, float]:
    """The metrics of ten million trials, of which two have the same subjects."""
    rng = np.random.default_rng(1)
    target, nontarget = [], []
    for _ in range(blocks):
        if world == "vectors":
            x, y = vectors(rng, n, 2), vectors(rng, n, 1)
            target.append((x[..., 0, :] * x[..., 1, :]).sum(axis=-1))
            nontarget.append((x[..., 0, :] * y[..., 0, :]).sum(axis=-1))
        else:
            target.append(3.2 + effects(rng, n)[0] + 0.8 * normal(rng, n))
            nontarget.append(effects(rng, n)[1] + effects(rng, n)[1] + 0.85 * normal(rng, n))
    scores = np.ravel(target), np.ravel(nontarget)
    return {name: float(metric(*scores)) for name, metric in METRICS.items()}


def counts_of(
    world: str, n: int, kind: str, true: dict[str, float], tests: int, num_resamples: int
) -> dict[str, list[int]]:
    """Metric -> in how many tests the interval holds the truth, and in how many p < .05."""
    counts = {name: [0, 0] for name in METRICS}
    for seed in range(tests):
        rng = np.random.default_rng([seed, n, len(kind), len(world)])
        systems, pairs = one_test(rng, world, sizes_of(kind, n))
        outcomes = {}
        for name, scores in zip("ab", systems, strict=True):
            how = {"num_resamples": num_resamples, "seed": seed}
            intervals, draws = bounds_of(METRICS, scores, pairs, **how)
            sides = scores.targets, scores.nontargets
            values = {each: float(of(*sides)) for each, of in METRICS.items()}
            outcomes[name] = {0: Outcome(values, draws, "", drawn_from(scores.target, pairs))}
            if name == "a":
                for metric, (ends, _) in intervals.items():
                    counts[metric][0] += ends is not None and ends[0] <= true[metric] <= ends[1]
        for cell in summarise(outcomes, [*METRICS], reference="a", over_seeds=False)[0]:
            if cell.difference is not None and cell.difference.p is not None:
                counts[cell.metric][1] += cell.difference.p < 1 - LEVEL
    return counts


def share_text(count: int, tests: int) -> str:
    """A share in percent, with its exact interval."""
    tail = (1 + LEVEL) / 2
    low, high = 1 - upper_bound(tests - count, tests, tail), upper_bound(count, tests, tail)
    return f"{100 * count / tests:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Print two rows for each cell: of the intervals and of the test."""
    tests, worlds = ("tests", 500, "simulated tests a cell"), ("worlds", "vectors,skewed")
    more = ("resamples", 1000), ("subjects", "20,40,100")
    arguments = parser_of(__doc__, tests, worlds, *more).parse_args()
    table("people", "subjects", "target trials", "%", *METRICS)
    for world in arguments.worlds.split(","):
        true = truth(world)
        for n in map(int, arguments.subjects.split(",")):
            for kind in ("equal", "geometric"):
                tests = arguments.tests
                counts = counts_of(world, n, kind, true, tests, arguments.resamples)
                for which, what in enumerate(("hold the truth", "p < .05")):
                    texts = (share_text(of[which], tests) for of in counts.values())
                    row(world, n, kind, what, *texts)


if __name__ == "__main__":
    main()
