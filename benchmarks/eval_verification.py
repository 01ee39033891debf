"""What verification and identification cost: ours, a peer, and the bare limit of the machine, on
made-up scores of the field's sizes.

    python benchmarks/eval_verification.py [--only ijb,balanced,lopsided,bootstrap,process,identify]
    [--repeats 5]

Prints one Markdown row per claim. Every cell runs in a process of its own: the least CPU seconds of
the repeats, and the peak of memory above its inputs; for `process` the least wall-clock seconds and
the memory of the whole process. Peers: scikit-learn's roc_curve with everything read from that
curve, as insightface, OpenSphere and SpeechBrain do; for identification insightface's ijb_1n.py
(argsort of all scores). Limits: one np.sort of all scores; 1,000 draws of weights with their
cumulative sums; `python -c "import numpy"`; the blockwise matrix product.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
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


def made_scores(num_targets: int, num_nontargets: int) -> tuple[np.ndarray, np.ndarray]:
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
    """EER, minDCF and TAR from scikit-learn's ROC curve."""
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(labels, scores, sample_weight=weights)
    i = int(np.argmin(np.abs(far - (1 - tar))))
    return [
        (far[i] + 1 - tar[i]) / 2,
        *(np.min((1 - tar) + (1 - p) / p * far) for p in (0.01, 0.05)),
        *(tar[np.argmin(np.abs(far - x))] for x in fars),
    ]


def metrics(name: str, who: str) -> Work:
    from eval.verification import verification_metrics

    target, nontarget = made_scores(*SIZES[name])
    if who == "ours":
        return partial(verification_metrics, target, nontarget, fars=FARS)
    scores, labels = (
        np.concatenate([target, nontarget]),
        np.arange(target.size + nontarget.size) < target.size,
    )
    return partial(np.sort, scores) if who == "limit" else partial(from_curve, scores, labels)


def bootstrap(name: str, who: str) -> Work:
    from eval.bootstrap import intervals
    from eval.types import Scores
    from eval.verification import eer, min_dcf

    rng = np.random.default_rng(0)
    target = np.arange(37_611) % 2 == 0
    a = rng.integers(40, size=target.size)
    pairs = np.stack(
        [a, np.where(target, a, (a + rng.integers(1, 40, size=target.size)) % 40)], axis=1
    )
    values = rng.standard_normal(target.size) + 3.5 * target
    if who == "ours":
        return partial(
            intervals,
            {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)},
            Scores(values, target),
            pairs,
        )
    order = np.argsort(values)

    def draws(count: int, each: Callable[[np.ndarray], object]) -> None:
        for _ in range(count):
            c = np.bincount(rng.integers(40, size=40), minlength=40)
            each(c)

    if who == "limit":
        of = pairs[order]
        return partial(
            draws,
            1000,
            lambda c: np.cumsum(np.where(target, c[of[:, 0]], c[of[:, 0]] * c[of[:, 1]])),
        )
    return partial(
        draws,
        1000,
        lambda c: from_curve(
            values, target, np.where(target, c[pairs[:, 0]], c[pairs[:, 0]] * c[pairs[:, 1]]), ()
        ),
    )


def identify(name: str, who: str) -> Work:
    from eval.identification import rank_rate, search_embeddings, tpir

    rng = np.random.default_rng(0)
    gallery, probes = (rng.standard_normal((n, 512), dtype=np.float32) for n in (3531, 19_593))
    own = rng.integers(3531, size=len(probes))
    probes += 0.2 * gallery[own]

    def ours() -> list[float]:
        found = search_embeddings(probes, gallery, np.arange(3531), own, keep=1960)
        return [
            rank_rate(found, 1),
            *(tpir(found, fpir, protocol="closed").value for fpir in (0.01, 0.1)),
        ]

    def limit() -> None:
        for start in range(0, len(probes), 2048):
            probes[start : start + 2048] @ gallery.T

    def peer() -> list[float]:
        x, y = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (probes, gallery))
        scores = x @ y.T
        top = np.mean(np.argsort(-scores)[:, 0] == own)
        rows = np.arange(len(scores))
        mate = scores[rows, own].copy()
        scores[rows, own] = -2
        others = np.sort(scores.ravel())
        return [
            float(top),
            *(float(np.mean(mate > others[-int(np.ceil(fpir * len(x)))])) for fpir in (0.01, 0.1)),
        ]

    return {"ours": ours, "limit": limit, "peer": peer}[who]


def process(who: str, repeats: int) -> tuple[float, float]:
    """Wall seconds and peak MB of whole processes."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scores.txt"
        target = np.arange(40_000) % 2 == 0
        a, b = rng.integers(40, size=target.size), rng.integers(1, 40, size=target.size)
        scores = rng.standard_normal(target.size) + 3 * target
        sides = zip(
            a,
            np.where(target, a, (a + b) % 40),
            rng.integers(0, 1_000_000, (target.size, 2)),
            scores,
            target,
            strict=True,
        )
        file.write_text(
            "".join(
                f"s{x}/{i} s{y}/{j} {s!r} {int(t)}\n"
                for x, y, (i, j), s, t in ((x, y, ij, float(s), t) for x, y, ij, s, t in sides)
            )
        )
        code = {
            "ours": "import sys; from likeness.cli import main\ntry: main(['evaluate', "
            f"{str(file)!r}])\nfinally: assert 'torch' not in sys.modules",
            "limit": "import numpy",
            "peer": "import sys; sys.path.insert(0, 'benchmarks'); import numpy as np; from "
            "eval_verification import from_curve\n"
            f"t = np.loadtxt({str(file)!r}, usecols=(2, 3)); from_curve(t[:, 0], t[:, 1])",
        }[who]
        best, peak = float("inf"), 0.0
        for _ in range(repeats):
            started = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(child.pid, 0)
            best, peak = min(best, time.perf_counter() - started), usage.ru_maxrss / 1024
            if status:
                raise RuntimeError(f"{who}: the process ended with status {status}")
        return best, peak


def one_cell(name: str, who: str, repeats: int) -> tuple[float, float]:
    if name == "process":
        return process(who, repeats)
    work = (
        bootstrap if name == "bootstrap" else identify if name == "identify" else partial(metrics)
    )(name, who)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TITLES))
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="of ours and the limit; a peer runs once, but for `process`",
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(one_cell(*given.cell.split(":"), given.repeats)))
        return
    print(
        "| work | ours (s) | peer (s) | limit (s) | ours/limit | ours/peer | peak MB, ours; peer "
        "|\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in given.only.split(","):
        cell = {}
        for who in ("limit", "ours", "peer"):
            repeats = given.repeats if who != "peer" or name == "process" else 1
            command = [
                sys.executable,
                __file__,
                "--cell",
                f"{name}:{who}",
                "--repeats",
                str(repeats),
            ]
            environment = os.environ | {
                "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            }
            cell[who] = json.loads(
                subprocess.run(
                    command, check=True, capture_output=True, text=True, env=environment
                ).stdout
            )
        ours, peer, limit = (cell[who][0] for who in ("ours", "peer", "limit"))
        numbers = [
            f"{ours:.3f}",
            f"{peer:.2f}",
            f"{limit:.3f}",
            f"{ours / limit:.2f}",
            f"{ours / peer:.3f}",
            f"{cell['ours'][1]:.0f}; {cell['peer'][1]:.0f}",
        ]
        print("| " + " | ".join([TITLES[name], *numbers]) + " |", flush=True)


if __name__ == "__main__":
    main()
