"""Measures 1:N search in a gallery of 1,000,000 subjects of 256 dims.

    OMP_NUM_THREADS=1 python benchmarks/use_gallery.py [--size 1000000] [--repeats 3]

Measures: random unit templates, cosine, the 10 best. CPU seconds of one thread for one search of
    all probes, the least of the repeats; each part in a fresh process. faiss:FOLDER is measured as
    it comes, with the seconds of its first search, which makes the index, and with its recall.
    Probes are noisy copies of templates (cosine .7 with their own), because among random vectors
    there is nothing that a search could find.
Peer: faiss.IndexFlatIP.
Limit: the same product in the same blocks into one buffer, and nothing else. A whole (Q, G) array
    would cost three times as much, because its pages are new.
Needs: `pip install "faiss-cpu>=1.9,<2"`; without it the peer's cells hold "-" and faiss:FOLDER has
    no row. No data.
Takes: three minutes of one core and 4 GB of memory.
Gives: the table and the remark of section use_gallery of docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable

import numpy as np
from performance import is_installed, json_of_process, least_cpu_seconds, parser_of, row, table

from eval.types import Embeddings

DIM, K = 256, 10
BLOCK = 1 << 14
META = {"model": "benchmark", "similarity": "cosine"}


def data(size: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Templates (G, 256) and probes (Q, 256), float32 of length 1."""
    rng = np.random.default_rng(0)
    templates = np.empty((size, DIM), dtype=np.float32)
    for start in range(0, size, BLOCK):
        part = templates[start : start + BLOCK]
        rng.standard_normal(out=part, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    noise = rng.standard_normal((probes, DIM), dtype=np.float32) / 16
    copies = templates[rng.integers(size, size=probes)] + noise
    return templates, copies / np.linalg.norm(copies, axis=1, keepdims=True)


def as_embeddings(rows: np.ndarray) -> Embeddings:
    """The rows with their numbers as ids."""
    return Embeddings(tuple(map(str, range(len(rows)))), rows, META)


Search = tuple[Callable[[], object], dict[str, float]]


def limit(templates: np.ndarray, probes: np.ndarray) -> Search:
    """The product of all, in the blocks of the exact search."""
    from toolkit.gallery.sqlite import CELLS, WIDTH

    size = len(templates)
    width = max(min(CELLS // len(probes), WIDTH[1]), WIDTH[0])
    buffer = np.empty((len(probes), width), dtype=np.float32)

    def search() -> object:
        for start in range(0, size - width + 1, width):
            np.matmul(probes, templates[start : start + width].T, out=buffer)
        return None if size % width == 0 else probes @ templates[-(size % width) :].T

    return search, {}


def flat(templates: np.ndarray, probes: np.ndarray) -> Search:
    """FAISS's exact search."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(DIM)
    index.add(templates)
    return lambda: index.search(probes, K), {}


def ours(templates: np.ndarray, probes: np.ndarray) -> Search:
    """Our exact search."""
    from toolkit.gallery.gallery import open_gallery

    gallery, probe = open_gallery(None, META), as_embeddings(probes)
    enrolled = as_embeddings(templates)
    gallery.enrol(enrolled, enrolled.ids)
    return lambda: gallery.search(probe, K), {}


def approximate(templates: np.ndarray, probes: np.ndarray) -> Search:
    """Our approximate search, with the seconds of the first one and the recall."""
    from toolkit.gallery.faiss import FaissStore
    from toolkit.gallery.gallery import Gallery, open_gallery, recall

    store = FaissStore(None, {**META, "pooling": "mean"})
    gallery, exact, probe = Gallery(store), open_gallery(None, META), as_embeddings(probes)
    enrolled = as_embeddings(templates)
    gallery.enrol(enrolled, enrolled.ids)
    exact.enrol(enrolled, enrolled.ids)
    first, _ = least_cpu_seconds(lambda: gallery.search(probe, K), 1)
    return lambda: gallery.search(probe, K), {
        "first": first,
        "recall": recall(gallery, exact, probe, K),
        "recall_1": recall(gallery, exact, probe, 1),
    }


PARTS = {"limit": limit, "flat": flat, "ours": ours, "approximate": approximate}


def run_part(part: str, size: int, probes: int, repeats: int) -> None:
    """Run one part in this process; prints {"seconds", "peak_gb", ...} as JSON."""
    search, more = PARTS[part](*data(size, probes))
    search()
    seconds, _ = least_cpu_seconds(search, repeats)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "peak_gb": peak_gb, **more}))


def measure(part: str, size: int, probes: int, repeats: int) -> dict[str, float]:
    """Run one part in a fresh process."""
    numbers = {"--size": size, "--probes": probes, "--repeats": repeats}
    arguments = [text for name, value in numbers.items() for text in (name, str(value))]
    cost: dict[str, float] = json_of_process(__file__, "--part", part, *arguments)
    print(f"{part}, {probes} probes: {cost}", file=sys.stderr)
    return cost


def gallery_rows(size: int, repeats: int) -> None:
    """Print the rows of 256 probes and of one."""
    with_faiss = is_installed("faiss", "faiss-cpu")
    for probes in (256, 1):
        searches = repeats * (1 if probes > 1 else 10)
        own, bare = (measure(part, size, probes, searches) for part in ("ours", "limit"))
        peer = measure("flat", size, probes, searches) if with_faiss else None
        peer_cell = f"{peer['seconds']:.3f} s" if peer else "-"
        row(
            f"search {probes} probe{'s' if probes > 1 else ''} in {size:,} x {DIM}, the {K} best "
            "(peer: FAISS flat)",
            f"{own['seconds']:.3f} s",
            peer_cell,
            f"{bare['seconds']:.3f} s",
            f"{own['seconds'] / bare['seconds']:.2f}",
            f"{own['seconds'] / peer['seconds']:.2f}" if peer else "-",
        )
        if probes > 1 and with_faiss:
            near = measure("approximate", size, probes, repeats)
            row(
                f"the same by faiss:FOLDER (recall@1 {near['recall_1']:.3f}, "
                f"recall@{K} {near['recall']:.3f} against exact; "
                f"index made in {near['first'] - near['seconds']:.0f} s)",
                f"{near['seconds']:.3f} s",
                peer_cell,
                f"{bare['seconds']:.3f} s",
                f"{near['seconds'] / bare['seconds']:.3f}",
                "-",
            )


def main() -> None:
    """Print the table, or run the one part that a parent process asks for."""
    parser = parser_of(__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="templates in the gallery")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--probes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        run_part(arguments.part, arguments.size, arguments.probes, arguments.repeats)
        return
    table("work", "ours", "peer", "limit", "ours/limit", "ours/peer")
    gallery_rows(arguments.size, arguments.repeats)


if __name__ == "__main__":
    main()
