"""Measures what verification and identification cost on synthetic scores of the field's sizes.

    OMP_NUM_THREADS=1 python benchmarks/eval_verification.py [--repeats 5]
        [--only bootstrap]

Measures: EER, minDCF and TAR of 15.7 million scores; a bootstrap over subjects; a whole process of
    `likeness evaluate`; identification from embeddings. Every cell runs in a process of its own:
    the least CPU seconds of the repeats, and the peak of memory above its inputs; for `process` the
    least wall-clock seconds and the memory of the whole process.
Peers: scikit-learn's roc_curve with everything read from that curve, as insightface, OpenSphere and
    SpeechBrain do; for identification insightface's ijb_1n.py (argsort of all scores).
Limits: one np.sort of all scores; 1,000 draws of weights with their cumulative sums;
    `python -c "import numpy"`; the blockwise matrix product.
Needs: scikit-learn, which comes with Likeness. No data.
Takes: a minute of one core and 2 GB of memory.
Gives: the table "Scoring and metrics" of docs/reference/performance.md.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from performance import COMPARED, Works, compared_row, cost, parser_of, table

Rows = np.ndarray
FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def from_curve(
    scores: Rows, labels: Rows, weights: Rows | None = None, fars: tuple[float, ...] = FARS
) -> list[float]:
    """EER, minDCF and the TAR at each FAR, all read from scikit-learn's ROC curve."""
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(labels, scores, sample_weight=weights)
    i = int(np.argmin(np.abs(far - (1 - tar))))
    costs = [np.min((1 - tar) + (1 - p) / p * far) for p in (0.01, 0.05)]
    return [(far[i] + 1 - tar[i]) / 2, *costs, *(tar[np.argmin(np.abs(far - x))] for x in fars)]


def metrics(num_targets: int, num_nontargets: int) -> Works:
    """Metrics of normal scores, the targets' three higher."""
    from likeness.eval.metrics.verification import verification_metrics

    rng = np.random.default_rng(0)
    labels = np.arange(num_targets + num_nontargets) < num_targets
    scores = rng.standard_normal(labels.size, dtype=np.float32)
    scores[:num_targets] += 3
    sides = scores[:num_targets], scores[num_targets:]
    ours = partial(verification_metrics, *sides, fars=FARS)
    return ours, partial(from_curve, scores, labels), partial(np.sort, scores)


def bootstrap() -> Works:
    """1,000 draws of 40 subjects with replacement."""
    from likeness.eval.intervals.bootstrap import bounds_of
    from likeness.eval.metrics.verification import eer, min_dcf
    from likeness.eval.types import Scores

    rng = np.random.default_rng(0)
    target = np.arange(37_611) % 2 == 0
    a = rng.integers(40, size=target.size)
    b = np.where(target, a, (a + rng.integers(1, 40, size=target.size)) % 40)
    values = rng.standard_normal(target.size) + 3.5 * target
    of_metrics = {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)}
    by_score = np.argsort(values)
    sorted_a, sorted_b = a[by_score], b[by_score]

    def draws(use: Callable[[Rows], object]) -> None:
        """Use gets how often each subject was drawn."""
        for _ in range(1000):
            use(np.bincount(rng.integers(40, size=40), minlength=40))

    def peer(counts: Rows) -> None:
        weights = np.where(target, counts[a], counts[a] * counts[b])
        from_curve(values, target, weights, ())

    def limit(counts: Rows) -> None:
        np.cumsum(np.where(target, counts[sorted_a], counts[sorted_a] * counts[sorted_b]))

    pairs = np.stack([a, b], axis=1)
    ours = partial(bounds_of, of_metrics, Scores(values, target), pairs)
    return ours, partial(draws, peer), partial(draws, limit)


def identify() -> Works:
    """Search of 19,593 probes among 3,531 templates."""
    from likeness.eval.metrics.identification import rank_rate, search_embeddings, tpir

    rng = np.random.default_rng(0)
    gallery, probes = (rng.standard_normal((n, 512), dtype=np.float32) for n in (3531, 19_593))
    own = rng.integers(3531, size=len(probes))
    probes += 0.2 * gallery[own]

    def ours() -> None:
        search = search_embeddings(probes, gallery, np.arange(3531), own, keep=1960)
        rank_rate(search, 1)
        for fpir in (0.01, 0.1):
            tpir(search, fpir, protocol="closed")

    def limit() -> None:
        for start in range(0, len(probes), 2048):
            probes[start : start + 2048] @ gallery.T

    def peer() -> None:
        x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (probes, gallery))
        scores = x @ y.T
        np.mean(np.argsort(-scores)[:, 0] == own)
        every = np.arange(len(scores))
        mate = scores[every, own].copy()
        scores[every, own] = -2
        others = np.sort(scores.ravel())
        for fpir in (0.01, 0.1):
            np.mean(mate > others[-int(np.ceil(fpir * len(x)))])

    return ours, peer, limit


def write_scores(file: Path) -> None:
    """A list of 40,000 scored trials of 40 subjects."""
    rng = np.random.default_rng(0)
    target = np.arange(40_000) % 2 == 0
    a, b = rng.integers(40, size=target.size), rng.integers(1, 40, size=target.size)
    scores = rng.standard_normal(target.size) + 3 * target
    subjects = zip(a, np.where(target, a, (a + b) % 40), strict=True)
    numbers = rng.integers(0, 1_000_000, (target.size, 2))
    lines = zip(subjects, numbers, scores.tolist(), target, strict=True)
    texts = (f"s{x}/{i} s{y}/{j} {s!r} {int(t)}\n" for (x, y), (i, j), s, t in lines)
    file.write_text("".join(texts))


def process(folder: Path) -> Works:
    """The code of a whole process that evaluates the list."""
    file = folder / "scores.txt"
    write_scores(file)
    ours = f"from likeness.cli import main; main(['evaluate', {str(file)!r}])"
    peer = (
        "import sys; sys.path.insert(0, 'benchmarks'); import numpy as np; "
        "from eval_verification import from_curve\n"
        f"t = np.loadtxt({str(file)!r}, usecols=(2, 3)); from_curve(t[:, 0], t[:, 1])"
    )
    return ours, peer, "import numpy"


def cost_of(code: str, repeats: int) -> tuple[float, float]:
    """The least wall-clock seconds and the peak in MB of a process that runs code."""
    costs = [cost([sys.executable, "-c", code]) for _ in range(repeats)]
    return min(run.wall_seconds for run in costs), max(run.megabytes for run in costs)


MAKERS: dict[str, Callable[[], Works]] = {
    "EER, two minDCF, six TAR of 15,658,489 trials": partial(metrics, 19_557, 15_638_932),
    "1,000 resamples over 40 subjects, 37,611 trials": bootstrap,
    "rank-1 and TPIR, 19,593 x 3,531 x 512": identify,
}
PROCESS = "`likeness evaluate`, 40,000 trials, 1,000 resamples (wall)"


def main() -> None:
    """Print the table."""
    only = ("only", "", "rows that begin with this")
    arguments = parser_of(__doc__, only, ("repeats", 5, "a peer runs once")).parse_args()
    table(*COMPARED)
    for title, make in MAKERS.items():
        if title.startswith(arguments.only):
            compared_row(title, make(), arguments.repeats)
    if PROCESS.startswith(arguments.only):
        with tempfile.TemporaryDirectory() as folder:
            compared_row(PROCESS, process(Path(folder)), arguments.repeats, measure=cost_of)


if __name__ == "__main__":
    main()
