"""Measures scoring, score normalisation, metrics, reading and retrieval at the field's sizes.

    OMP_NUM_THREADS=1 python benchmarks/eval_scoring.py [--only voices,reading] [--repeats 5]

Measures: CPU seconds of one thread, the least of the repeats; each part in a forked process that
    has the input in memory. The peak is by how much that process grows, the result included.
    voices: 580,000 synthetic trials (VoxCeleb1-E) over 5,000 embeddings of 256 dims, and a cohort
    of 6,000. reading: a list of as many trials. cub and sop: everything that `retrieval_metrics`
    returns, MAP@1000 included, from unit vectors of 512 dims, each a class centre and noise: 5,924
    of 100 classes, and 60,502 of 11,316 classes (2 to 9 each).
Peers: SpeechBrain's loop over trials as in its VoxCeleb recipe. It is restated here, because a
    recipe is no package, and its time is scaled up from 3,000 trials, with score normalisation from
    10. SpeechBrain's EER at full size, scaled up from 199 thresholds to the 1,159,999 that distinct
    scores give it. A plain reader in Python. pytorch-metric-learning (PML): precision at 1,
    R-precision and MAP@R, with faiss where it is installed, else with its own search in torch; k is
    "max_bin_count", its fastest setting. At SOP's size it gets a tenth of the queries: its time is
    scaled up, its memory is given as it is.
Limits: the matrix product of the embeddings, that with the cohort, one np.sort of the scores,
    bytes.split of the file's bytes; for retrieval the float32 product in numpy of 1,024 queries at
    a time with all items.
Needs: speechbrain, which comes with Likeness, and `pip install "pytorch-metric-learning>=2.8,<3"`;
    without it the peer's cells of retrieval hold "-". No data.
Takes: a minute and a half of one core, half a minute for cub and ten minutes for sop.
Gives: the table "Scoring and metrics" of docs/reference/performance.md.
"""

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from performance import COMPARED, Works, compared_row, is_installed, parser_of, table

from likeness import read_trials
from likeness.metrics import as_norm, pairs, retrieval_metrics, verification_metrics
from likeness.toolkit.backbones.ecapa import import_torchaudio

Rows = np.ndarray
NUM_TRIALS, NUM_ITEMS, COHORT, TOP_N = 580_000, 5_000, 6_000, 300
BLOCK = 1024  # queries


def speechbrain_scores(x: Rows, i: Rows, j: Rows, cohort: Rows | None = None) -> None:
    """get_verification_scores of SpeechBrain's VoxCeleb recipe.

    It takes one trial at a time, and scores it against the cohort afresh.
    """
    torch.set_num_threads(1)
    similarity = torch.nn.CosineSimilarity(dim=-1, eps=1e-6)
    by_id = {str(k): torch.from_numpy(row)[None, None] for k, row in enumerate(x)}
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


def speechbrain_eer(target: Rows, nontarget: Rows) -> None:
    """SpeechBrain's EER of few distinct scores; each threshold costs what the full arrays cost."""
    from speechbrain.utils.metric_stats import EER

    torch.set_num_threads(1)
    EER(torch.from_numpy(target), torch.from_numpy(nontarget))


def voice_rows(repeats: int) -> None:
    """Cosine of 580,000 trials, their adaptive normalisation, and their metrics."""
    rng = np.random.default_rng(0)
    x, cohort = (rng.standard_normal((n, 256), dtype=np.float32) for n in (NUM_ITEMS, COHORT))
    i, j = rng.integers(0, NUM_ITEMS, (2, NUM_TRIALS))
    is_target = rng.random(NUM_TRIALS) < 0.2
    works: Works = (
        partial(pairs, x, x, i, j),
        partial(speechbrain_scores, x, i[:3_000], j[:3_000]),
        lambda: x @ x.T,
    )
    title = "score 580,000 trials, 5,000 x 256"
    compared_row(title, works, repeats, scale=NUM_TRIALS / 3_000)
    scores = pairs(x, x, i, j)
    works = (
        partial(as_norm, scores, x, x, cohort, top_n=TOP_N, i=i, j=j),
        partial(speechbrain_scores, x, i[:10], j[:10], cohort),
        lambda: x @ cohort.T,
    )
    compared_row("AS-norm, cohort 6,000, top 300", works, repeats, scale=NUM_TRIALS / 10)
    sides = scores[is_target] + 0.1, scores[~is_target]
    hundredths = [np.round(side * 1e9).astype(np.int64) % 100 for side in sides]
    few_values = [(number / 100).astype(np.float32) for number in hundredths]
    works = (
        partial(verification_metrics, *sides, fars=()),
        partial(speechbrain_eer, *few_values),
        partial(np.sort, scores),
    )
    title = "EER and two minDCF (peer: EER only)"
    compared_row(title, works, repeats, scale=(2 * NUM_TRIALS - 1) / 199)


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


def reading_row(repeats: int) -> None:
    """Reading a list of 580,000 trials from a file."""
    names = [f"id{10000 + k // 4}/{k:011x}/{k % 100:05d}.wav" for k in range(NUM_ITEMS)]
    i, j = np.random.default_rng(0).integers(0, NUM_ITEMS, (2, NUM_TRIALS)).tolist()
    lines = (f"{(a + b) % 5 // 4} {names[a]} {names[b]}\n" for a, b in zip(i, j, strict=True))
    data = "".join(lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.txt"
        path.write_bytes(data)
        works = partial(read_trials, path), partial(plain_reader, path), data.split
        compared_row(f"read the trial list ({len(data) / 1e6:.0f} MB)", works, repeats)


def drawn_classes(num_items: int, num_classes: int) -> tuple[Rows, Rows]:
    """Embeddings (N, 512) float32 and labels (N,), without temporaries of that size."""
    rng = np.random.default_rng(0)
    more = rng.integers(num_classes, size=num_items - 2 * num_classes)
    labels = rng.permutation(np.concatenate([np.tile(np.arange(num_classes), 2), more]))
    centres = rng.standard_normal((num_classes, 512), dtype=np.float32)
    rows = np.empty((num_items, 512), dtype=np.float32)
    for start in range(0, num_items, BLOCK):
        part = slice(start, start + BLOCK)
        noise = rng.standard_normal((labels[part].size, 512), dtype=np.float32)
        rows[part] = centres[labels[part]] + 3.5 * noise
        rows[part] /= np.linalg.norm(rows[part], axis=1, keepdims=True)
    return rows, labels


def block_products(rows: Rows) -> None:
    """The product of all items with all, block by block, and nothing else."""
    scores = np.empty((min(BLOCK, len(rows)), len(rows)), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        np.matmul(part, rows.T, out=scores[: len(part)])


def pml(rows: Rows, labels: Rows, num_queries: int) -> None:
    """PML's three metrics."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    torch.set_num_threads(1)
    has_faiss = importlib.util.find_spec("faiss") is not None
    search = None if has_faiss else CustomKNN(CosineSimilarity(), batch_size=BLOCK)
    metrics = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    on = {"device": torch.device("cpu"), "knn_func": search}
    calculator = AccuracyCalculator(include=metrics, k="max_bin_count", **on)
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)
    calculator.get_accuracy(x[:num_queries], y[:num_queries], x, y, ref_includes_query=True)


def retrieval_row(num_items: int, num_classes: int, scale: int, repeats: int) -> None:
    """The metrics of retrieval of every item among all."""
    rows, labels = drawn_classes(num_items, num_classes)
    peer = None
    if is_installed("pytorch_metric_learning", "pytorch-metric-learning"):
        pml(rows[:200], labels[:200], 200)  # its imports are not its cost
        peer = partial(pml, rows, labels, num_items // scale)
    works = partial(retrieval_metrics, rows, labels), peer, partial(block_products, rows)
    title = f"retrieval, {num_items:,} x 512, {num_classes:,} classes"
    compared_row(title, works, repeats, scale=scale)


PARTS = {
    "voices": voice_rows,
    "reading": reading_row,
    "cub": partial(retrieval_row, 5_924, 100, 1),
    "sop": partial(retrieval_row, 60_502, 11_316, 10),
}


def main() -> None:
    """Print the table."""
    only = ("only", ",".join(PARTS), f"of {', '.join(PARTS)}")
    arguments = parser_of(__doc__, only, ("repeats", 5)).parse_args()
    import_torchaudio()
    import speechbrain  # noqa: F401 - here, so that no forked process pays for it

    table(*COMPARED)
    for name in arguments.only.split(","):
        PARTS[name](repeats=arguments.repeats)


if __name__ == "__main__":
    main()
