"""Measures the stores of galleries on embeddings of a trained model: recall, time, size.

    python benchmarks/stores.py [--model RUN] [--data ../shared/data] [--size 100000]
        [--stores exact,faiss,postgresql]

Measures: each store as it comes, with its defaults. Templates are embeddings of the 19,280 drawings
    of Omniglot's background set, each turned by 0, 90, 180 and 270 degrees and mirrored, by a model
    that was trained on two thirds of these alphabets: 138,816 real embeddings, of which SIZE are
    drawn. Beyond that, templates are simulated: around the mean of each character (in its turn) are
    drawn more, with the covariance that the real drawings of a character have around their means.
    Probes are 1,000 real drawings by two people of twenty, who have no template. recall@1 counts
    probes whose best score is that of exact search. ms is the median wall time of 200 searches of
    one probe for its 5 best, embedding not included.
Peer: the stores of each other.
Limit: the product of one probe with all templates, and its largest.
Needs: Omniglot in DATA/omniglot; the extras search and postgres-server.
Takes: five minutes at 100,000, half an hour at 1,000,000, and two minutes to train a model.
Gives: the table of section stores of docs/reference/performance.md.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from performance import parser_of, row, table

from eval.types import Embeddings
from toolkit.gallery import postgres_server
from toolkit.gallery.gallery import open_gallery, recall

META = {"model": "benchmark", "similarity": "cosine"}
PLACES = {
    "exact": "{}/exact",
    "faiss": "faiss:{}/faiss",
    "postgresql": "postgresql:{}/postgresql",
}
NUM_SEARCHES, NUM_PROBES, PROBE_DRAWINGS = 200, 1_000, 2


def embedded(model_name: str, data: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (N, D) of the drawings in eight positions, and the class of each (N,)."""
    import torch

    import likeness
    from modalities.image import small_sets

    with tempfile.TemporaryDirectory() as folder:
        if not model_name:
            model_name = f"{folder}/run"
            settings = [f"schedule.{entry}" for entry in ("steps=300", "eval_every=0")]
            likeness.train("image/omniglot_losses:arcface", data, model_name, settings=settings)
        loaded = likeness.load(model_name).loaded
    items = small_sets.omniglot_items(data, split="all")
    ink = np.stack([loaded.read(item) for item in items])
    names = np.unique([item.label for item in items], return_inverse=True)[1]
    rows = []
    with torch.inference_mode():
        for position in range(8):
            turned = np.rot90(ink[..., ::-1] if position > 3 else ink, position % 4, axes=(2, 3))
            for start in range(0, len(ink), 512):
                views = torch.from_numpy(np.ascontiguousarray(turned[start : start + 512]))
                rows.append(loaded.embedder(views).numpy())
    classes = np.concatenate([names + position * (names.max() + 1) for position in range(8)])
    return np.concatenate(rows), classes


def divided(rows: np.ndarray, classes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Templates (SIZE, D), simulated where there are too few, and probes (1000, D)."""
    rng = np.random.default_rng(0)
    order = np.argsort(classes, kind="stable")
    drawing = np.empty(len(rows), dtype=np.int64)
    counts = np.bincount(classes)
    drawing[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_probe = drawing >= counts[classes] - PROBE_DRAWINGS
    probes = rng.permutation(rows[is_probe])[:NUM_PROBES]
    real, of = rows[~is_probe], classes[~is_probe]
    if size <= len(real):
        return rng.permutation(real)[:size], probes
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, of, real)
    means = sums / np.bincount(of, minlength=len(counts))[:, None]
    within = np.linalg.cholesky(np.cov((real - means[of]).T) + 1e-9 * np.eye(rows.shape[1]))
    more = rng.choice(of, size - len(real))
    noise = rng.standard_normal((len(more), rows.shape[1]), dtype=np.float32)
    simulated = means[more].astype(np.float32) + noise @ within.T.astype(np.float32)
    return np.concatenate([real, simulated]), probes


def as_embeddings(rows: np.ndarray) -> Embeddings:
    """The rows with their numbers as ids."""
    return Embeddings(tuple(map(str, range(len(rows)))), rows.astype(np.float32), META)


def seconds(work: Callable[[], object]) -> float:
    """The wall seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_ms(work: Callable[[int], object]) -> float:
    """The median milliseconds of the searches."""
    return 1000 * float(np.median([seconds(lambda i=i: work(i)) for i in range(NUM_SEARCHES)]))


def measure(name: str, folder: Path, templates: np.ndarray, probes: np.ndarray) -> None:
    """Print the row of one store."""
    exact = open_gallery(None, META)
    people = as_embeddings(templates)
    exact.enrol(people, people.ids)
    where = PLACES[name].format(folder)
    gallery = open_gallery(where, META)
    enrolled = seconds(lambda: gallery.enrol(people, people.ids))
    single = [as_embeddings(probe[None]) for probe in probes[:NUM_SEARCHES]]
    first = seconds(lambda: gallery.search(single[0]))
    ms = median_ms(lambda i: gallery.search(single[i]))
    found = recall(gallery, exact, as_embeddings(probes), 1)
    removed = seconds(lambda: gallery.remove(["0"]))
    gallery.close()
    postgres_server.end()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    row(
        name,
        f"{len(templates):,}",
        f"{found:.3f}",
        f"{ms:.1f}",
        f"{enrolled:.0f} s",
        f"{first:.2f} s",
        f"{removed:.2f} s",
        f"{size / 2**20:,.0f} MiB",
    )


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="", help="a run on Omniglot (default: trained here)")
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--size", type=int, default=100_000, help="templates in the gallery")
    parser.add_argument("--stores", default=",".join(PLACES), help="which, with commas")
    parser.add_argument("--work", type=Path, help="a folder for the galleries (default: temporary)")
    arguments = parser.parse_args()
    templates, probes = divided(*embedded(arguments.model, arguments.data), arguments.size)
    units = templates / np.linalg.norm(templates, axis=1, keepdims=True)
    print(f"limit: {median_ms(lambda i: (units @ probes[i]).max()):.1f} ms")
    table("store", "templates", "recall@1", "ms", "enrol all", "first search", "remove one", "disk")
    for name in arguments.stores.split(","):
        folder = Path(tempfile.mkdtemp(dir=arguments.work))
        try:
            measure(name, folder, templates, probes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
