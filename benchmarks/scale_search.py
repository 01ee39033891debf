"""Measures how the time and the memory of a search grow with the gallery.

    OMP_NUM_THREADS=1 python benchmarks/scale_search.py [--folder DIR] [--most 1e6]

Measures: `likeness identify` and `likeness retrieve` from files to the table, 512 dimensions, 2,000
    probes, without intervals: CPU seconds and peak memory of the whole process, for galleries of
    10,000, 100,000 and 1,000,000. Then IJB-C's 1:1 and 1:N, from files of the protocol's sizes
    (face_ijbc.py).
Limits: the bare product of the same shape, in blocks of 512 x 16,384, in memory.
Needs: 2.1 GB of disk in DIR for a gallery of a million, and 1.3 GB for IJB-C; without --folder in a
    temporary folder.
Gives: lines `name,n,seconds,peak_mb`, from which scale.py makes a table and a picture.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from face_ijbc import command, write_pack
from performance import least_cpu_seconds, sizes, sizes_parser

DIM, PROBES, PER_CLASS = 512, 2_000, 10
LARGEST = 1_000_000  # templates: ten times as many do not fit into the memory of most machines
_BLOCK, _TILE = 512, 1 << 14

Line = tuple[str, int, float, float]


def write_side(path: Path, size: int, num_subjects: int, seed: int) -> None:
    """Embeddings around drawn centres, written block by block; ids are SUBJECT/NUMBER."""
    if path.is_file():
        return
    codes = np.arange(size) % num_subjects
    rng = np.random.default_rng(seed)
    temporary = path.with_suffix(".new")
    with zipfile.ZipFile(temporary, "w") as archive:
        with archive.open("matrix.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (size, DIM)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, size, num_subjects):
                for first in range(start, min(start + num_subjects, size), _BLOCK):
                    count = min(_BLOCK, size - first, start + num_subjects - first)
                    centre = np.random.default_rng(first - start)  # the same in every round
                    rows = centre.standard_normal((_BLOCK, DIM), dtype=np.float32)[:count]
                    rows += 1.5 * rng.standard_normal((count, DIM), dtype=np.float32)
                    file.write(rows.tobytes())
        for name, values in (
            ("ids", np.array([f"{code}/{seed}-{k}" for k, code in enumerate(codes.tolist())])),
            ("meta", np.array('{"similarity": "cosine"}')),
        ):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, values)
    temporary.rename(path)


def search_lines(folder: Path, most: float) -> Iterator[Line]:
    """Identification, retrieval and the bare product for each size."""
    counts = list(sizes(most))
    for size in counts:
        for name, num_subjects in (("identify", size), ("retrieve", size // PER_CLASS)):
            gallery, probes = folder / f"{name}-{size}.npz", folder / f"{name}-{size}-probes.npz"
            for path, count, seed in ((gallery, size, 1), (probes, PROBES, 2)):
                # A process's peak of memory is also that of its children.
                writer = get_context("fork").Process(
                    target=write_side, args=(path, count, num_subjects, seed)
                )
                writer.start()
                writer.join()
            side = "--probes" if name == "identify" else "--embeddings"
            shared = [name, side, str(probes), "--gallery", str(gallery), "--resamples", "0"]
            yield name, size, *command(*shared)
            if size == counts[-1]:
                gallery.unlink()
        seconds, _ = least_cpu_seconds(partial(product, size), 1)
        yield "product", size, seconds, 0.0


def product(size: int) -> None:
    """The bare product of all probes with a gallery, whose tile is the same each time."""
    rng = np.random.default_rng(0)
    tile, probes = (rng.random((count, DIM), dtype=np.float32) for count in (_TILE, PROBES))
    out = np.empty((_BLOCK, _TILE), dtype=np.float32)
    for start in range(0, size, _TILE):
        width = min(_TILE, size - start)
        for first in range(0, PROBES, _BLOCK):
            height = min(_BLOCK, PROBES - first)
            x = probes[first : first + height]
            np.matmul(x, tile[:width].T, out=out[:height, :width])


def ijbc_lines(folder: Path) -> Iterator[Line]:
    """IJB-C from files to the tables of 1:1 and 1:N."""
    pack = folder / "ijbc"
    writer = get_context("fork").Process(target=write_pack, args=(pack,))
    writer.start()
    writer.join()
    shared = ["--ijb", str(pack), "--preset", "insightface", "--resamples", "0"]
    features = str(pack / "features.npz")
    yield "ijbc 1:1", 15_658_489, *command("evaluate", features, *shared)
    yield "ijbc 1:N", 19_593 * 3_531, *command("identify", "--probes", features, *shared)


def main() -> None:
    """Print all lines."""
    parser = sizes_parser(__doc__)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for lines in (search_lines(folder, min(options.most, LARGEST)), ijbc_lines(folder)):
            for name, size, seconds, megabytes in lines:
                print(f"{name},{size},{seconds:.2f},{megabytes:.0f}", flush=True)


if __name__ == "__main__":
    main()
