"""Measures scoring, score normalisation, metrics and the reading of lists at VoxCeleb1-E's size.

    OMP_NUM_THREADS=1 python benchmarks/eval_scoring.py [--repeats 5] [--no-speechbrain]

Measures: 580,000 synthetic trials over 5,000 embeddings of 256 dims with a cohort of 6,000, and the
    1:1 scores at IJB-C's size: 15,658,489 pairs of 3,531 with 19,593 templates of 512 dims, out of
    23,124. CPU seconds of one thread, the least of the repeats; each part in a forked process that
    has the input in memory. The peak is what Python and numpy allocate beyond the input
    (tracemalloc, in a run of its own), the result included.
Peers: SpeechBrain's loop over trials as in its VoxCeleb recipe. It is restated here, because a
    recipe is no package, and its time is scaled up from 3,000 trials, with score normalisation from
    10. SpeechBrain's EER at full size, scaled up from 199 thresholds to the 1,159,999 that distinct
    scores give it. insightface's IJB loop (gather 100,000 pairs, multiply, sum), scaled up from
    1,000,000 pairs. A plain reader in Python.
Limits: the matrix product of the embeddings, that with the cohort, one np.sort of the scores, the
    product of the templates that occur, bytes.split of the file's bytes.
Needs: speechbrain, which comes with Likeness; without it, or with --no-speechbrain, its cells stay
    empty. No data.
Takes: a minute and a half of one core.
Gives: section eval_scoring of docs/reference/performance.md.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from performance import (
    is_installed,
    least_cpu_seconds,
    parser_of,
    row,
    table,
    warn_of_many_threads,
)

from eval.formats.trials import read_trials
from eval.scoring.normalization import as_norm
from eval.similarity import pairs
from eval.verification import verification_metrics

NUM_TRIALS, NUM_ITEMS, DIM, COHORT, TOP_N = 580_000, 5_000, 256, 6_000, 300
IJB_PAIRS, IJB_TEMPLATES, IJB_ENROLLED, IJB_DIM = 15_658_489, 23_124, 3_531, 512


class Voices(NamedTuple):
    """Synthetic embeddings and trials of VoxCeleb1-E's size; speaker.py has them, too."""

    embeddings: np.ndarray  # (5,000, 256) float32
    cohort: np.ndarray  # (6,000, 256) float32
    i: np.ndarray  # (580,000,) rows of the enrolled embeddings
    j: np.ndarray  # (580,000,) rows of the probes
    target: np.ndarray  # (580,000,) bool: about 20 %, and the same for each occurrence of a pair


def voices() -> Voices:
    """Draw them; they are the same in every run."""
    rng = np.random.default_rng(0)
    embeddings, cohort = (
        rng.standard_normal((count, DIM), dtype=np.float32) for count in (NUM_ITEMS, COHORT)
    )
    i, j = rng.integers(0, NUM_ITEMS, (2, NUM_TRIALS))
    return Voices(embeddings, cohort, i, j, (i * 7919 + j * 104729) % 5 == 0)


def measured(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The least CPU seconds, and the peak in MB of one more run, in a forked process."""
    receive, send = get_context("fork").Pipe(duplex=False)

    def run() -> None:
        seconds, _ = least_cpu_seconds(work, repeats)
        tracemalloc.start()
        work()
        send.send((seconds, tracemalloc.get_traced_memory()[1] / 1e6))

    process = get_context("fork").Process(target=run)
    process.start()
    send.close()
    seconds, peak_mb = receive.recv()
    process.join()
    return seconds, peak_mb


def print_row(work: str, ours: tuple[float, float], peer: float | None, limit: float) -> None:
    """Print one row of the table; the peer's cells stay empty where it was not measured."""
    seconds, peak_mb = ours
    row(
        work,
        f"{seconds:.3f} s",
        f"{peer:,.1f} s" if peer else "",
        f"{limit:.3f} s",
        f"{seconds / limit:.2f}",
        f"{seconds / peer:.2g}" if peer else "",
        f"{peak_mb:.0f}",
    )


def speechbrain_scores(
    embeddings: np.ndarray, i: np.ndarray, j: np.ndarray, cohort: np.ndarray | None = None
) -> None:
    """get_verification_scores of SpeechBrain's VoxCeleb recipe.

    It takes one trial at a time, and scores it against the cohort afresh.
    """
    import torch

    torch.set_num_threads(1)
    similarity = torch.nn.CosineSimilarity(dim=-1, eps=1e-6)
    by_id = {
        str(k): torch.from_numpy(embedding)[None, None] for k, embedding in enumerate(embeddings)
    }
    others = None if cohort is None else torch.from_numpy(cohort)[:, None]
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        enrol, test = by_id[str(a)], by_id[str(b)]
        score = similarity(enrol, test)[0]
        if others is not None:
            halves = []
            for side in (enrol, test):
                against = similarity(side.repeat(others.shape[0], 1, 1), others)
                kept = torch.topk(against, k=TOP_N, dim=0)[0]
                halves.append((score - kept.mean(dim=0)) / kept.std(dim=0))
            score = 0.5 * (halves[0] + halves[1])


def speechbrain_eer(target: np.ndarray, nontarget: np.ndarray) -> None:
    """SpeechBrain's EER of few distinct scores; each threshold costs what the full arrays cost."""
    import torch
    from speechbrain.utils.metric_stats import EER

    torch.set_num_threads(1)
    EER(torch.from_numpy(target), torch.from_numpy(nontarget))


def plain_reader(path: Path) -> None:
    """A reader of trial lists as people write it without a library."""
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
    """The scores of verification() in insightface's ijb_11.py."""
    for start in range(0, i.size, 100_000):
        part = slice(start, start + 100_000)
        np.sum(templates[i[part]] * templates[j[part]], -1)


def score_row(voices: Voices, repeats: int, with_speechbrain: bool) -> None:
    """Cosine of 580,000 trials."""
    embeddings, _, i, j, _ = voices
    ours = measured(lambda: pairs(embeddings, embeddings, i, j), repeats)
    limit, _ = measured(lambda: embeddings @ embeddings.T, repeats)
    peer, few = None, 3_000
    if with_speechbrain:
        seconds, _ = measured(lambda: speechbrain_scores(embeddings, i[:few], j[:few]), 2)
        peer = seconds * NUM_TRIALS / few
    print_row("580,000 trials, 5,000 x 256: score", ours, peer, limit)


def as_norm_row(voices: Voices, scores: np.ndarray, repeats: int, with_speechbrain: bool) -> None:
    """Adaptive normalisation of their scores."""
    embeddings, cohort, i, j, _ = voices
    ours = measured(
        lambda: as_norm(scores, embeddings, embeddings, cohort, top_n=TOP_N, i=i, j=j), repeats
    )
    limit, _ = measured(lambda: embeddings @ cohort.T, repeats)
    peer, few = None, 10
    if with_speechbrain:
        seconds, _ = measured(lambda: speechbrain_scores(embeddings, i[:few], j[:few], cohort), 2)
        peer = seconds * NUM_TRIALS / few
    print_row("the same: as_norm, cohort 6,000, top 300", ours, peer, limit)


def metrics_row(voices: Voices, scores: np.ndarray, repeats: int, with_speechbrain: bool) -> None:
    """EER and minDCF of their scores."""
    classes = scores[voices.target] + 0.1, scores[~voices.target]
    ours = measured(lambda: verification_metrics(*classes, fars=()), repeats)
    limit, _ = measured(lambda: np.sort(scores), repeats)
    peer = None
    if with_speechbrain:
        rounded = [
            (np.round(values * 1e9).astype(np.int64) % 100 / 100).astype(np.float32)
            for values in classes
        ]
        seconds, _ = measured(lambda: speechbrain_eer(*rounded), 1)
        peer = seconds * (2 * NUM_TRIALS - 1) / 199
    print_row("the same: metrics (EER, minDCF at .01 and .05; peer: EER only)", ours, peer, limit)


def reading_row(voices: Voices, repeats: int) -> None:
    """Reading their list from a file."""
    names = [f"id{10000 + k // 4}/{k:011x}/{k % 100:05d}.wav" for k in range(NUM_ITEMS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.txt"
        path.write_text(
            "".join(
                f"{int(target)} {names[a]} {names[b]}\n"
                for target, a, b in zip(
                    voices.target, voices.i.tolist(), voices.j.tolist(), strict=True
                )
            ),
            encoding="utf-8",
        )
        data = path.read_bytes()
        ours = measured(lambda: read_trials(path), repeats)
        limit, _ = measured(lambda: len(data.split()), repeats)
        peer, _ = measured(lambda: plain_reader(path), repeats)
    work = f"reading a 580,000-line trial list ({len(data) / 1e6:.0f} MB)"
    print_row(work, ours, peer, limit)


def ijb_row(repeats: int) -> None:
    """Cosine of IJB-C's pairs of templates."""
    rng = np.random.default_rng(0)
    templates = rng.standard_normal((IJB_TEMPLATES, IJB_DIM), dtype=np.float32)
    i = rng.integers(0, IJB_ENROLLED, IJB_PAIRS, dtype=np.int32)
    j = rng.integers(IJB_ENROLLED, IJB_TEMPLATES, IJB_PAIRS, dtype=np.int32)
    ours = measured(lambda: pairs(templates, templates, i, j), repeats)
    limit, _ = measured(lambda: templates[:IJB_ENROLLED] @ templates[IJB_ENROLLED:].T, repeats)
    few = 1_000_000
    seconds, _ = measured(lambda: insightface_scores(templates, i[:few], j[:few]), 1)
    peer = seconds * IJB_PAIRS / few
    print_row("IJB-C size 1:1, 15.66 M pairs, 23,124 x 512: score", ours, peer, limit)


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--no-speechbrain", action="store_true", help="leave this peer out, which takes a minute"
    )
    arguments = parser.parse_args()
    warn_of_many_threads()
    with_speechbrain = not arguments.no_speechbrain and is_installed("speechbrain", "speechbrain")
    if with_speechbrain:  # imported here, so that no forked process pays for it
        from toolkit.backbones.torchaudio_cpu import import_torchaudio

        import_torchaudio()
        import speechbrain  # noqa: F401
    table("work", "ours", "peer", "limit", "ours/limit", "ours/peer", "peak MB")
    drawn = voices()
    scores = pairs(drawn.embeddings, drawn.embeddings, drawn.i, drawn.j)
    score_row(drawn, arguments.repeats, with_speechbrain)
    as_norm_row(drawn, scores, arguments.repeats, with_speechbrain)
    metrics_row(drawn, scores, arguments.repeats, with_speechbrain)
    reading_row(drawn, arguments.repeats)
    ijb_row(min(arguments.repeats, 3))


if __name__ == "__main__":
    main()
