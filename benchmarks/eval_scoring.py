"""Measures scoring, score normalisation, metrics and the reading of lists at VoxCeleb1-E's size.

    OMP_NUM_THREADS=1 python benchmarks/eval_scoring.py [--repeats 5]

Measures: 580,000 synthetic trials over 5,000 embeddings of 256 dims with a cohort of 6,000. CPU
    seconds of one thread, the least of the repeats; each part in a forked process that has the
    input in memory. The peak is by how much that process grows, the result included.
Peers: SpeechBrain's loop over trials as in its VoxCeleb recipe. It is restated here, because a
    recipe is no package, and its time is scaled up from 3,000 trials, with score normalisation from
    10. SpeechBrain's EER at full size, scaled up from 199 thresholds to the 1,159,999 that distinct
    scores give it. A plain reader in Python.
Limits: the matrix product of the embeddings, that with the cohort, one np.sort of the scores,
    bytes.split of the file's bytes.
Needs: speechbrain, which comes with Likeness. No data.
Takes: a minute and a half of one core.
Gives: section eval_scoring of docs/reference/performance.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from performance import forked, parser_of, row, table

from likeness.eval.formats.trials import read_trials
from likeness.eval.scoring.normalization import as_norm
from likeness.eval.similarity import pairs
from likeness.eval.verification import verification_metrics
from likeness.toolkit.backbones.ecapa import import_torchaudio

NUM_TRIALS, NUM_ITEMS, DIM, COHORT, TOP_N = 580_000, 5_000, 256, 6_000, 300
Work = Callable[[], Any]


class Voices(NamedTuple):
    """Synthetic embeddings and trials of VoxCeleb1-E's size."""

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


def print_row(name: str, ours: Work, peer: Work, limit: Work, repeats: int, scale: float) -> None:
    """Measure and print a row; the peer did 1/scale of the work, and runs once."""
    seconds, peak_mb = forked(ours, repeats)
    bare, other = forked(limit, repeats)[0], scale * forked(peer, 1)[0]
    times = (f"{seconds:.3f} s", f"{other:,.1f} s", f"{bare:.3f} s")
    row(name, *times, f"{seconds / bare:.2f}", f"{seconds / other:.2g}", f"{peak_mb:.0f}")


def speechbrain_scores(
    embeddings: np.ndarray, i: np.ndarray, j: np.ndarray, cohort: np.ndarray | None = None
) -> None:
    """get_verification_scores of SpeechBrain's VoxCeleb recipe.

    It takes one trial at a time, and scores it against the cohort afresh.
    """
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


def voice_rows(voices: Voices, repeats: int) -> None:
    """Cosine of 580,000 trials, their adaptive normalisation, and their metrics."""
    x, cohort, i, j, is_target = voices
    print_row(
        "580,000 trials, 5,000 x 256: score",
        lambda: pairs(x, x, i, j),
        lambda: speechbrain_scores(x, i[:3_000], j[:3_000]),
        lambda: x @ x.T,
        repeats,
        NUM_TRIALS / 3_000,
    )
    scores = pairs(x, x, i, j)
    print_row(
        "the same: as_norm, cohort 6,000, top 300",
        lambda: as_norm(scores, x, x, cohort, top_n=TOP_N, i=i, j=j),
        lambda: speechbrain_scores(x, i[:10], j[:10], cohort),
        lambda: x @ cohort.T,
        repeats,
        NUM_TRIALS / 10,
    )
    sides = scores[is_target] + 0.1, scores[~is_target]
    few_values = [
        (np.round(side * 1e9).astype(np.int64) % 100 / 100).astype(np.float32) for side in sides
    ]
    print_row(
        "the same: metrics (EER, minDCF at .01 and .05; peer: EER only)",
        lambda: verification_metrics(*sides, fars=()),
        lambda: speechbrain_eer(*few_values),
        lambda: np.sort(scores),
        repeats,
        (2 * NUM_TRIALS - 1) / 199,
    )


def reading_row(voices: Voices, repeats: int) -> None:
    """Reading their list from a file."""
    names = [f"id{10000 + k // 4}/{k:011x}/{k % 100:05d}.wav" for k in range(NUM_ITEMS)]
    trials = zip(voices.target, voices.i.tolist(), voices.j.tolist(), strict=True)
    data = "".join(f"{int(target)} {names[a]} {names[b]}\n" for target, a, b in trials).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.txt"
        path.write_bytes(data)
        print_row(
            f"reading a 580,000-line trial list ({len(data) / 1e6:.0f} MB)",
            partial(read_trials, path),
            partial(plain_reader, path),
            lambda: len(data.split()),
            repeats,
            1,
        )


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    import_torchaudio()
    import speechbrain  # noqa: F401 - here, so that no forked process pays for it

    table("work", "ours", "peer", "limit", "ours/limit", "ours/peer", "peak MB")
    drawn = voices()
    voice_rows(drawn, repeats)
    reading_row(drawn, repeats)


if __name__ == "__main__":
    main()
