"""Measures how often 95 % intervals over subjects hold the truth, where the truth is known.

    python benchmarks/intervals.py [--tests 500] [--first 0] [--worlds vectors,skewed]

Measures: the share of simulated tests whose interval holds the value of a very large population,
    for EER, TAR@FAR .01 and minDCF (p_target .05), with 1,000 resamples each. A test has 20, 40 or
    100 subjects with 30 target trials each on the average: all have as many, or their numbers are
    a geometric series whose largest is 30 times its smallest. Of the four times as many nontarget
    trials, a subject takes a share like that of its target trials.
Worlds: `vectors`: ten vectors a subject around its own mean, some subjects more spread than others,
    and scores are cosines. `skewed`: scores with effects of both subjects, where few subjects are
    far harder than all others.
Beside it: what the middle 95 % of the same resamples span.
Takes: 500 tests of both worlds 15 minutes of one core; the standard error of a share is 1 %.
Gives: the table of docs/explanation/intervals.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from performance import parser_of, row, table

from likeness.eval.bootstrap import bounds_of
from likeness.eval.types import Scores
from likeness.eval.verification import eer, min_dcf, tar_at_far

METRICS = {
    "EER": eer,
    "TAR": partial(tar_at_far, far=0.01),
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


def vectors(rng: np.random.Generator, n: int, items: int) -> Rows:
    """(n, items, DIM) vectors of unit length."""
    spread = 0.8 * np.exp(0.4 * rng.normal(size=(n, 1, 1)))
    rows = rng.normal(size=(n, 1, DIM)) + spread * rng.normal(size=(n, items, DIM))
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def effects(rng: np.random.Generator, n: int) -> tuple[Rows, Rows]:
    """How much each subject changes the scores of its target, and of its nontarget trials."""
    z = rng.standard_normal((3, n))
    own = 0.27 * z[0] + 0.36 * z[1] - 0.35 * (rng.exponential(size=n) - 1)
    return own, 0.175 * z[0] + 0.305 * z[2]


def one_test(rng: np.random.Generator, world: str, sizes: Rows) -> tuple[Scores, Rows]:
    """Scores, and the subjects of both sides of their trials."""
    own, a, b = subjects_of(rng, sizes)
    if world == "vectors":
        x = vectors(rng, sizes.size, ITEMS)
        i, j = rng.integers(ITEMS, size=own.size), rng.integers(1, ITEMS, size=own.size)
        k, m = rng.integers(ITEMS, size=(2, a.size))
        target = (x[own, i] * x[own, (i + j) % ITEMS]).sum(axis=1)
        nontarget = (x[a, k] * x[b, m]).sum(axis=1)
    else:
        of_own, of_others = effects(rng, sizes.size)
        target = 3.2 + of_own[own] + 0.8 * rng.standard_normal(own.size)
        nontarget = of_others[a] + of_others[b] + 0.85 * rng.standard_normal(a.size)
    pairs = np.stack([np.append(own, a), np.append(own, b)], axis=1)
    return Scores(np.append(target, nontarget), np.arange(len(pairs)) < own.size), pairs


def truth(world: str, blocks: int = 100, n: int = 100_000) -> dict[str, float]:
    """The metrics of ten million trials, each of subjects of its own."""
    rng = np.random.default_rng(1)
    target, nontarget = [], []
    for _ in range(blocks):
        if world == "vectors":
            x, y = vectors(rng, n, 2), vectors(rng, n, 1)
            target.append((x[:, 0] * x[:, 1]).sum(axis=1))
            nontarget.append((x[:, 0] * y[:, 0]).sum(axis=1))
        else:
            noise = rng.standard_normal((2, n))
            target.append(3.2 + effects(rng, n)[0] + 0.8 * noise[0])
            nontarget.append(effects(rng, n)[1] + effects(rng, n)[1] + 0.85 * noise[1])
    scores = np.concatenate(target), np.concatenate(nontarget)
    return {name: float(metric(*scores)) for name, metric in METRICS.items()}


def main() -> None:
    """Print a row for each cell."""
    parser = parser_of(__doc__)
    parser.add_argument("--tests", type=int, default=500, help="simulated tests a cell")
    parser.add_argument("--first", type=int, default=0, help="seed of the first test")
    parser.add_argument("--worlds", default="vectors,skewed")
    arguments = parser.parse_args()
    table("world", "subjects", "trials", *METRICS, *(f"middle, {name}" for name in METRICS))
    for world in arguments.worlds.split(","):
        true = truth(world)
        for n in (20, 40, 100):
            for kind in ("equal", "geometric"):
                held = {way: dict.fromkeys(METRICS, 0) for way in ("t", "middle")}
                for seed in range(arguments.first, arguments.first + arguments.tests):
                    rng = np.random.default_rng([seed, n, len(kind), len(world)])
                    scores, pairs = one_test(rng, world, sizes_of(kind, n))
                    found, made = bounds_of(METRICS, scores, pairs, seed=seed)
                    for name, value in true.items():
                        low, high = np.nanquantile(made[name], [0.025, 0.975])
                        held["middle"][name] += bool(low <= value <= high)
                        ends = found[name].ends
                        held["t"][name] += ends is not None and ends[0] <= value <= ends[1]
                shares = (
                    f"{100 * count / arguments.tests:.1f}"
                    for way in held.values()
                    for count in way.values()
                )
                row(world, n, kind, *shares)


if __name__ == "__main__":
    main()
