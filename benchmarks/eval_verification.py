"""Measures what verification and identification cost on synthetic scores of the field's sizes.

    OMP_NUM_THREADS=1 python benchmarks/eval_verification.py [--repeats 5]
        [--only bootstrap,process]

Measures: EER, minDCF and TAR of 15.7 million scores in three proportions of targets; a bootstrap
    over subjects; a whole process of `likeness evaluate`; identification from embeddings. Every
    cell runs in a process of its own: the least CPU seconds of the repeats, and the peak of memory
    above its inputs; for `process` the least wall-clock seconds and the memory of the whole
    process.
Peers: scikit-learn's roc_curve with everything read from that curve, as insightface, OpenSphere and
    SpeechBrain do; for identification insightface's ijb_1n.py (argsort of all scores).
Limits: one np.sort of all scores; 1,000 draws of weights with their cumulative sums;
    `python -c "import numpy"`; the blockwise matrix product.
Needs: scikit-learn, which comes with Likeness. No data.
Takes: a minute of one core and 2 GB of memory.
Gives: section eval_verification of docs/reference/performance.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from performance import cost, forked, parser_of, row, table

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SIZES = {
    "ijb": (19_557, 15_638_932),
    "balanced": (7_829_244, 7_829_245),
    "lopsided": (15_000_000, 658_489),
}
TITLES = {
    name: f"eer + min_dcf(2) + tar_at_far(6), {t:,} target + {n:,} nontarget scores"
    for name, (t, n) in SIZES.items()
} | {
    "bootstrap": "bootstrap, 1,000 resamples over 40 subjects of 37,611 trials, eer + min_dcf",
    "process": "`likeness evaluate` process on 40,000 trials, 1,000 resamples (wall)",
    "identify": "rank-1 and closed TPIR(2) from embeddings, 19,593 x 3,531 x 512",
}
Work = Callable[[], object]


def drawn_scores(num_targets: int, num_nontargets: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores of both classes, float32, the targets' three higher."""
    rng = np.random.default_rng(0)
    target, nontarget = (
        rng.standard_normal(n, dtype=np.float32) for n in (num_targets, num_nontargets)
    )
    target += 3
    return target, nontarget


def from_curve(
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    fars: tuple[float, ...] = FARS,
) -> list[float]:
    """EER, minDCF and the TAR at each FAR, all read from scikit-learn's ROC curve."""
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(labels, scores, sample_weight=weights)
    i = int(np.argmin(np.abs(far - (1 - tar))))
    return [
        (far[i] + 1 - tar[i]) / 2,
        *(np.min((1 - tar) + (1 - p) / p * far) for p in (0.01, 0.05)),
        *(tar[np.argmin(np.abs(far - x))] for x in fars),
    ]


def metrics(name: str, who: str) -> Work:
    """The work of a cell of the first three rows."""
    from likeness.eval.verification import verification_metrics

    target, nontarget = drawn_scores(*SIZES[name])
    if who == "ours":
        return partial(verification_metrics, target, nontarget, fars=FARS)
    scores, labels = (
        np.concatenate([target, nontarget]),
        np.arange(target.size + nontarget.size) < target.size,
    )
    return partial(np.sort, scores) if who == "limit" else partial(from_curve, scores, labels)


def bootstrap(name: str, who: str) -> Work:
    """The work of a cell of the row of the bootstrap."""
    from likeness.eval.bootstrap import bounds_of
    from likeness.eval.types import Scores
    from likeness.eval.verification import eer, min_dcf

    rng = np.random.default_rng(0)
    target = np.arange(37_611) % 2 == 0
    a = rng.integers(40, size=target.size)
    pairs = np.stack(
        [a, np.where(target, a, (a + rng.integers(1, 40, size=target.size)) % 40)], axis=1
    )
    values = rng.standard_normal(target.size) + 3.5 * target
    if who == "ours":
        return partial(
            bounds_of,
            {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)},
            Scores(values, target),
            pairs,
        )
    order = np.argsort(values)

    def draws(count: int, use: Callable[[np.ndarray], object]) -> None:
        """Draw 40 subjects with replacement; use gets how often each subject was drawn."""
        for _ in range(count):
            use(np.bincount(rng.integers(40, size=40), minlength=40))

    if who == "limit":
        a, b = pairs[order].T
        return partial(draws, 1000, lambda c: np.cumsum(np.where(target, c[a], c[a] * c[b])))
    a, b = pairs.T
    return partial(
        draws, 1000, lambda c: from_curve(values, target, np.where(target, c[a], c[a] * c[b]), ())
    )


def identify(name: str, who: str) -> Work:
    """The work of a cell of the row of identification."""
    from likeness.eval.identification import rank_rate, search_embeddings, tpir

    rng = np.random.default_rng(0)
    gallery, probes = (rng.standard_normal((n, 512), dtype=np.float32) for n in (3531, 19_593))
    own = rng.integers(3531, size=len(probes))
    probes += 0.2 * gallery[own]

    def ours() -> list[float]:
        search = search_embeddings(probes, gallery, np.arange(3531), own, keep=1960)
        return [
            rank_rate(search, 1),
            *(tpir(search, fpir, protocol="closed").value for fpir in (0.01, 0.1)),
        ]

    def limit() -> None:
        for start in range(0, len(probes), 2048):
            probes[start : start + 2048] @ gallery.T

    def peer() -> list[float]:
        x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (probes, gallery))
        scores = x @ y.T
        top = np.mean(np.argsort(-scores)[:, 0] == own)
        every = np.arange(len(scores))
        mate = scores[every, own].copy()
        scores[every, own] = -2
        others = np.sort(scores.ravel())
        return [
            float(top),
            *(float(np.mean(mate > others[-int(np.ceil(fpir * len(x)))])) for fpir in (0.01, 0.1)),
        ]

    return {"ours": ours, "limit": limit, "peer": peer}[who]


def write_scores(file: Path) -> None:
    """A list of 40,000 scored trials of 40 subjects."""
    rng = np.random.default_rng(0)
    target = np.arange(40_000) % 2 == 0
    a, b = rng.integers(40, size=target.size), rng.integers(1, 40, size=target.size)
    scores = rng.standard_normal(target.size) + 3 * target
    subjects = zip(a, np.where(target, a, (a + b) % 40), strict=True)
    numbers = rng.integers(0, 1_000_000, (target.size, 2))
    lines = zip(subjects, numbers, scores.tolist(), target, strict=True)
    file.write_text(
        "".join(f"s{x}/{i} s{y}/{j} {s!r} {int(t)}\n" for (x, y), (i, j), s, t in lines)
    )


def process(who: str, repeats: int) -> tuple[float, float]:
    """The least wall-clock seconds and the peak in MB of a whole process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scores.txt"
        write_scores(file)
        code = {
            "ours": "import sys; from likeness.cli import main\ntry: main(['evaluate', "
            f"{str(file)!r}])\nfinally: assert 'torch' not in sys.modules",
            "limit": "import numpy",
            "peer": "import sys; sys.path.insert(0, 'benchmarks'); import numpy as np; from "
            "eval_verification import from_curve\n"
            f"t = np.loadtxt({str(file)!r}, usecols=(2, 3)); from_curve(t[:, 0], t[:, 1])",
        }[who]
        costs = [cost([sys.executable, "-c", code]) for _ in range(repeats)]
    return min(run.wall_seconds for run in costs), max(run.megabytes for run in costs)


def cell(name: str, who: str, repeats: int) -> tuple[float, float]:
    """Seconds and MB of one cell."""
    if name == "process":
        return process(who, repeats)
    make = {"bootstrap": bootstrap, "identify": identify}.get(name, metrics)
    return forked(make(name, who), repeats)


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(TITLES), help="rows, separated by commas")
    parser.add_argument("--repeats", type=int, default=5, help="a peer runs once, but for process")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    headings = ("ours (s)", "peer (s)", "limit (s)", "ours/limit", "ours/peer")
    table("work", *headings, "peak MB, ours; peer")
    for name in names:
        spent = {}
        for who in ("limit", "ours", "peer"):
            repeats = arguments.repeats if who != "peer" or name == "process" else 1
            spent[who] = cell(name, who, repeats)
        (limit, _), (ours, own_mb), (peer, peer_mb) = spent.values()
        times = (f"{ours:.3f}", f"{peer:.2f}", f"{limit:.3f}")
        ratios = (f"{ours / limit:.2f}", f"{ours / peer:.3f}")
        row(TITLES[name], *times, *ratios, f"{own_mb:.0f}; {peer_mb:.0f}")


if __name__ == "__main__":
    main()
