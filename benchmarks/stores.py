"""Measures what a search in a gallery takes in each store, and what enrolling takes.

    OMP_NUM_THREADS=1 python benchmarks/stores.py [--most 1e6]

Measures: wall-clock milliseconds of one probe against a million simulated templates of 128
    numbers, the median of 100 probes after the first; and the seconds in which all templates
    are enrolled. A probe is the template of its subject and noise. Recall@1 is the share of the
    probes whose first match is their subject's.
Peer: none.
Limit: none; the exact store compares a probe with every template.
Needs: the extra `faiss`. PostgreSQL is measured where LIKENESS_DATABASE is the address of a
    database with pgvector, postgresql://USER@HOST/DATABASE; galleries `benchmarkN` there are new.
Takes: a minute, and ten with PostgreSQL.
Gives: the table "Stores" of docs/reference/performance.md.
"""

import os
import time
from tempfile import TemporaryDirectory

import numpy as np
from performance import parser_of, row, table

from likeness import Embeddings, open_gallery

DIM, PROBES, META = 128, 101, {"similarity": "cosine"}


def print_row(store: str, place: str, templates: np.ndarray, probes: np.ndarray) -> None:
    """Print the row of a store."""
    subjects = [f"s{number:07d}" for number in range(len(templates))]
    gallery = open_gallery(place, META)
    started = time.perf_counter()
    gallery.enrol(Embeddings(tuple(subjects), templates, META), subjects)
    enrolled = time.perf_counter() - started
    seconds, right = [], 0
    for number, probe in enumerate(probes):
        started = time.perf_counter()
        ((match,),) = gallery.search(Embeddings(("probe",), probe[None], META), k=1)
        seconds.append(time.perf_counter() - started)
        right += match.subject == subjects[number]
    gallery.close()
    numbers = f"{1e3 * np.median(seconds[1:]):.1f}", f"{enrolled:.0f}", f"{right / len(probes):.3f}"
    row(f"{store}, {len(templates):,}", *numbers)


def main() -> None:
    """Print the table."""
    most = int(parser_of(__doc__, ("most", 1e6, "the largest gallery")).parse_args().most)
    database = os.environ.get("LIKENESS_DATABASE")
    table("store, templates", "ms", "enrol all, s", "recall@1")
    rng = np.random.default_rng(0)
    templates = rng.standard_normal((most, DIM), dtype=np.float32)
    probes = templates[:PROBES] + 0.5 * rng.standard_normal((PROBES, DIM), dtype=np.float32)
    with TemporaryDirectory() as folder:
        places = {"exact": f"{folder}/exact", "faiss": f"faiss:{folder}/faiss"}
        places |= {"postgresql": f"{database}#benchmark{most}"} if database else {}
        for store, place in places.items():
            print_row(store, place, templates, probes)


if __name__ == "__main__":
    main()
