"""Scoring, score normalisation, metrics and list reading at VoxCeleb1-E size, and 1:1 scores at
IJB-C size: ours, a peer, and the bare limit.

    OMP_NUM_THREADS=1 python benchmarks/eval_scoring.py [--repeats 5] [--no-speechbrain]

Synthetic data: 580,000 trials over 5,000 embeddings of 256 dims with a cohort of 6,000; 15,658,489
pairs of 3,531 with 19,593 templates of 512 dims, out of 23,124. CPU seconds (process time) of one
thread, least of the repeats; each part in a forked process that has the input in memory. Peak: what
Python and numpy allocate beyond the input (tracemalloc, in a run of its own), the result included.
Peers: SpeechBrain's loop over trials as in its VoxCeleb recipe (restated here: a recipe is no
package), its time scaled up from 3,000 trials, and from 10 with score normalisation; its EER at
full size, scaled up from 199 thresholds to the 1,159,999 that distinct scores give it;
insightface's IJB loop (gather 100,000 pairs, multiply, sum), scaled up from 1,000,000 pairs; a
plain Python reader. Limits: the matrix product of the embeddings, that with the cohort, one np.sort
of the scores, the product of the templates that occur, bytes.split of the file's bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from eval.formats.trials import read_trials
from eval.normalization import as_norm
from eval.similarity import pairs
from eval.verification import verification_metrics

TRIALS, ITEMS, DIM, COHORT, TOP_N = 580_000, 5_000, 256, 6_000, 300
IJB_PAIRS, IJB_TEMPLATES, IJB_ENROLLED, IJB_DIM = 15_658_489, 23_124, 3_531, 512


def measured(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Least CPU seconds, and the peak in MB from one more run, in a forked process."""
    receive, send = get_context("fork").Pipe(duplex=False)

    def run() -> None:
        seconds = []
        for _ in range(repeats):
            started = time.process_time()
            work()
            seconds.append(time.process_time() - started)
        tracemalloc.start()
        work()
        send.send((min(seconds), tracemalloc.get_traced_memory()[1] / 1e6))

    process = get_context("fork").Process(target=run)
    process.start()
    send.close()
    found = receive.recv()
    process.join()
    return found


def row(work: str, ours: tuple[float, float], peer: float | None, limit: float) -> None:
    """One line of the table; the peer's cells stay empty where it was not measured."""
    cells = [
        work,
        f"{ours[0]:.3f} s",
        f"{peer:,.1f} s" if peer else "",
        f"{limit:.3f} s",
        f"{ours[0] / limit:.2f}",
    ]
    print(
        "| "
        + " | ".join([*cells, f"{ours[0] / peer:.2g}" if peer else "", f"{ours[1]:.0f}"])
        + " |",
        flush=True,
    )


def speechbrain_scores(
    embeddings: np.ndarray, i: np.ndarray, j: np.ndarray, cohort: np.ndarray | None = None
) -> None:
    """get_verification_scores of SpeechBrain's VoxCeleb recipe: one trial at a time, the cohort
    afresh for each.
    """
    import torch

    torch.set_num_threads(1)
    similarity = torch.nn.CosineSimilarity(dim=-1, eps=1e-6)
    held = {str(k): torch.from_numpy(one)[None, None] for k, one in enumerate(embeddings)}
    others = None if cohort is None else torch.from_numpy(cohort)[:, None]
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        enrol, test = held[str(a)], held[str(b)]
        score = similarity(enrol, test)[0]
        if others is not None:
            halves = []
            for side in (enrol, test):
                against = similarity(side.repeat(others.shape[0], 1, 1), others)
                kept = torch.topk(against, k=TOP_N, dim=0)[0]
                halves.append((score - kept.mean(dim=0)) / kept.std(dim=0))
            score = 0.5 * (halves[0] + halves[1])


def speechbrain_eer(target: np.ndarray, nontarget: np.ndarray) -> None:
    """Its EER with few distinct scores: the cost of each threshold is that of the full arrays."""
    import torch
    from speechbrain.utils.metric_stats import EER

    torch.set_num_threads(1)
    EER(torch.from_numpy(target), torch.from_numpy(nontarget))


def plain_reader(path: Path) -> None:
    """What one writes without a library."""
    ids: dict[str, int] = {}
    enrol, probe, labels = [], [], []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            label, a, b = line.split()
            labels.append(int(label))
            enrol.append(ids.setdefault(a, len(ids)))
            probe.append(ids.setdefault(b, len(ids)))
    np.array(enrol), np.array(probe), np.array(labels, dtype=bool)


def insightface_scores(templates: np.ndarray, i: np.ndarray, j: np.ndarray) -> None:
    """verification() of insightface's ijb_11.py."""
    for start in range(0, i.size, 100_000):
        part = slice(start, start + 100_000)
        np.sum(templates[i[part]] * templates[j[part]], -1)


def voxceleb_rows(repeats: int, with_speechbrain: bool) -> None:
    rng = np.random.default_rng(0)
    embeddings, cohort = (
        rng.standard_normal((ITEMS, DIM), dtype=np.float32),
        rng.standard_normal((COHORT, DIM), dtype=np.float32),
    )
    i, j = rng.integers(0, ITEMS, (2, TRIALS))
    scores = pairs(embeddings, embeddings, i, j)
    target = (i * 7919 + j * 104729) % 5 == 0  # 20 %, and one label for each pair
    classes = scores[target] + 0.1, scores[~target]

    ours = measured(lambda: pairs(embeddings, embeddings, i, j), repeats)
    limit, _ = measured(lambda: embeddings @ embeddings.T, repeats)
    peer = (
        measured(lambda: speechbrain_scores(embeddings, i[:3_000], j[:3_000]), 2)[0]
        * TRIALS
        / 3_000
        if with_speechbrain
        else None
    )
    row("580,000 trials, 5,000 x 256: score", ours, peer, limit)

    ours = measured(
        lambda: as_norm(scores, embeddings, embeddings, cohort, top_n=TOP_N, i=i, j=j), repeats
    )
    limit, _ = measured(lambda: embeddings @ cohort.T, repeats)
    peer = (
        measured(lambda: speechbrain_scores(embeddings, i[:10], j[:10], cohort), 2)[0] * TRIALS / 10
        if with_speechbrain
        else None
    )
    row("the same: as_norm, cohort 6,000, top 300", ours, peer, limit)

    ours = measured(lambda: verification_metrics(*classes, fars=()), repeats)
    limit, _ = measured(lambda: np.sort(scores), repeats)
    peer = None
    if with_speechbrain:
        few = [
            (np.round(one * 1e9).astype(np.int64) % 100 / 100).astype(np.float32) for one in classes
        ]
        peer = measured(lambda: speechbrain_eer(*few), 1)[0] * (2 * TRIALS - 1) / 199
    row("the same: metrics (EER, minDCF at .01 and .05; peer: EER only)", ours, peer, limit)

    names = [f"id{10000 + k // 4}/{k:011x}/{k % 100:05d}.wav" for k in range(ITEMS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.txt"
        path.write_text(
            "".join(
                f"{int(t)} {names[a]} {names[b]}\n"
                for t, a, b in zip(target, i.tolist(), j.tolist(), strict=True)
            ),
            encoding="utf-8",
        )
        data = path.read_bytes()
        ours = measured(lambda: read_trials(path), repeats)
        limit, _ = measured(lambda: len(data.split()), repeats)
        peer, _ = measured(lambda: plain_reader(path), repeats)
        row(f"reading a 580,000-line trial list ({len(data) / 1e6:.0f} MB)", ours, peer, limit)


def ijb_row(repeats: int) -> None:
    rng = np.random.default_rng(0)
    templates = rng.standard_normal((IJB_TEMPLATES, IJB_DIM), dtype=np.float32)
    i = rng.integers(0, IJB_ENROLLED, IJB_PAIRS, dtype=np.int32)
    j = rng.integers(IJB_ENROLLED, IJB_TEMPLATES, IJB_PAIRS, dtype=np.int32)
    ours = measured(lambda: pairs(templates, templates, i, j), repeats)
    limit, _ = measured(lambda: templates[:IJB_ENROLLED] @ templates[IJB_ENROLLED:].T, repeats)
    few = 1_000_000
    peer = measured(lambda: insightface_scores(templates, i[:few], j[:few]), 1)[0] * IJB_PAIRS / few
    row("IJB-C size 1:1, 15.66 M pairs, 23,124 x 512: score", ours, peer, limit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-speechbrain", action="store_true")
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "set OMP_NUM_THREADS=1 before Python starts: CPU time of many threads is not "
            "comparable",
            file=sys.stderr,
        )
    if not given.no_speechbrain:
        from toolkit.backbones.torchaudio_cpu import import_torchaudio

        import_torchaudio()
        import speechbrain  # noqa: F401
    print(
        "| work | ours | peer | limit | ours/limit | ours/peer | peak MB "
        "|\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    voxceleb_rows(given.repeats, not given.no_speechbrain)
    ijb_row(min(given.repeats, 3))


if __name__ == "__main__":
    main()
