"""1:N search in a gallery of 1,000,000 subjects, 256 dims: ours, FAISS flat, and the bare matrix
product; and the recall of approximate search.

    OMP_NUM_THREADS=1 python benchmarks/use_gallery.py [--size 1000000] [--repeats 3]

Random unit templates, cosine, the 10 best. CPU seconds (process time) of one thread for one search
of all probes, least of the repeats; each part in a fresh process. Limit: the same product in the
same blocks into one buffer, and nothing else (a whole (Q, G) array costs three times as much: its
pages are new). Peer: faiss.IndexFlatIP. Approximate: FaissGallery as it comes, with the seconds of
its first search, which makes the index; probes there are noisy copies of templates (cosine .7 with
their own), for among random vectors there is nothing to be found.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

DIM, K = 256, 10
BLOCK = 1 << 14
META = {"model": "benchmark", "similarity": "cosine"}


def data(size: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Templates (G, 256) and probes (Q, 256), float32 of length 1."""
    rng = np.random.default_rng(0)
    rows = np.empty((size, DIM), dtype=np.float32)
    for start in range(0, size, BLOCK):
        part = rows[start : start + BLOCK]
        rng.standard_normal(out=part, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    asked = (
        rows[rng.integers(size, size=probes)]
        + rng.standard_normal((probes, DIM), dtype=np.float32) / 16
    )
    return rows, asked / np.linalg.norm(asked, axis=1, keepdims=True)


def embeddings(rows: np.ndarray):
    from eval.types import Embeddings

    return Embeddings(tuple(map(str, range(len(rows)))), rows, META)


def run_part(part: str, size: int, probes: int, repeats: int) -> None:
    """One part in this process: prints {"seconds", ...}."""
    rows, asked = data(size, probes)
    more: dict[str, float] = {}
    if part == "limit":
        from toolkit.gallery.exact import _CELLS, _WIDTH

        width = max(min(_CELLS // probes, _WIDTH[1]), _WIDTH[0])
        buffer = np.empty((probes, width), dtype=np.float32)

        def search() -> object:
            for start in range(0, size - width + 1, width):
                np.matmul(asked, rows[start : start + width].T, out=buffer)
            return None if size % width == 0 else asked @ rows[-(size % width) :].T

    elif part == "flat":
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatIP(DIM)
        index.add(rows)

        def search() -> object:
            return index.search(asked, K)

    else:
        from toolkit.gallery.exact import ExactGallery
        from toolkit.gallery.faiss import FaissGallery
        from toolkit.gallery.open import recall

        gallery = ExactGallery(None, META) if part == "ours" else FaissGallery(None, META)
        given = embeddings(rows)
        gallery.enrol(given, given.ids)
        probe = embeddings(asked)
        del given
        if part == "approximate":
            started = time.process_time()
            gallery.search(probe, K)
            more["first"] = time.process_time() - started
            more["recall"] = recall(gallery, gallery.exact, probe, K)
            more["recall_1"] = recall(gallery, gallery.exact, probe, 1)

        def search() -> object:
            return gallery.search(probe, K)

    search()
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        search()
        seconds.append(time.process_time() - started)
    print(
        json.dumps(
            {
                "seconds": min(seconds),
                "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                **more,
            }
        )
    )


def measure(part: str, size: int, probes: int, repeats: int) -> dict[str, float] | None:
    """run_part in a fresh process of one thread; None where FAISS is not installed."""
    if part in ("flat", "approximate") and importlib.util.find_spec("faiss") is None:
        return None
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [
        sys.executable,
        __file__,
        "--part",
        part,
        "--size",
        str(size),
        "--probes",
        str(probes),
        "--repeats",
        str(repeats),
    ]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | threads | {"PYTHONPATH": path},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{part}, {probes} probes: {found}", file=sys.stderr)
    return found


def gallery_rows(size: int, repeats: int) -> list[str]:
    """The table's rows: | work | ours | peer | limit | ours/limit | ours/peer |."""
    made = []
    for probes in (256, 1):
        mine, peer, bare = (
            measure(part, size, probes, repeats * (1 if probes > 1 else 10))
            for part in ("ours", "flat", "limit")
        )
        assert mine is not None
        assert bare is not None
        theirs = (
            ("-", "-")
            if peer is None
            else (f"{peer['seconds']:.3f} s", f"{mine['seconds'] / peer['seconds']:.2f}")
        )
        work = (
            f"search {probes} probe{'s' if probes > 1 else ''} in {size:,} x {DIM}, the {K} best "
            "(peer: FAISS flat)"
        )
        made.append(
            f"| {work} | {mine['seconds']:.3f} s | {theirs[0]} | {bare['seconds']:.3f} s | "
            f"{mine['seconds'] / bare['seconds']:.2f} | {theirs[1]} |"
        )
        if probes > 1 and (near := measure("approximate", size, probes, repeats)):
            said = (
                f"recall@1 {near['recall_1']:.3f}, recall@{K} {near['recall']:.3f} against exact; "
                f"index made in {near['first'] - near['seconds']:.0f} s"
            )
            ratio = f"{near['seconds'] / bare['seconds']:.3f}"
            made.append(
                f"| the same by FaissGallery ({said}) | {near['seconds']:.3f} s | {theirs[0]} | "
                f"{bare['seconds']:.3f} s | {ratio} | - |"
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--probes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_part(args.part, args.size, args.probes, args.repeats)
        return
    print("| work | ours | peer | limit | ours/limit | ours/peer |\n|---|---|---|---|---|---|")
    print("\n".join(gallery_rows(args.size, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
