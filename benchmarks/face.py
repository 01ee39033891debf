"""Faces: aligning and augmenting, reading RecordIO, and the IJB-C table from a file of features.

    OMP_NUM_THREADS=1 python benchmarks/face.py [--only align,recordio,ijbc] [--images 600]
    [--repeats 5] [--folder DIR]

CPU seconds (process time) of one thread, least of the repeats; the rows of a table take turns, each
beginning with a warm-up. Alignment: drawn faces somewhere in JPEG pictures of 160 x 160, as in
IJB's loose crops, to 112 x 112. Peers: insightface.utils.face_align.norm_crop on the same decoded
picture; for the whole way OpenCV's decoder, norm_crop and a plain albumentations pipeline that does
about what the AdaFace view does with the same probabilities (flip, crop and pad in place of the
crop that is pasted back, Downscale, ColorJitter). Limit: cv2.warpAffine with a matrix at hand; for
the whole way Pillow's decoding, which every reader that refuses truncated files has to do, and that
warp. RecordIO: 112 x 112 JPEG faces of quality 95 in a .rec file; images.decode of its items, in
shuffled order, against the bare file: seek, read and Pillow. IJB-C: the sizes of the protocol
(469,375 faces of 512 dimensions, 23,124 templates, 15,658,489 pairs, 3,531 x 19,593 searches),
drawn features and lists in DIR (1.3 GB; default: a temporary folder). `likeness evaluate` and
`likeness identify` as processes, started from files: CPU of the process with its start, and peak
resident memory less the features. Peer: insightface's ijb_11.py and ijb_1n.py restated without
their image part and given features and lists in memory: loop over templates, gathered products
(scaled up from 1 M pairs), scikit-learn's ROC; the argsort of all searches. Limit: reading the
files' bytes, one pass over the features, the product of the templates, one sort.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

from eval.formats import embeddings
from eval.protocols.ijb_files import (
    meta_files,
    read_detector_scores,
    read_faces,
    read_side,
    read_template_pairs,
)
from eval.types import Embeddings
from modalities import synthetic_faces
from modalities.face import align, images, recordio, recordio_writer
from modalities.face.augment import ADAFACE_VIEW
from toolkit.data.batch import Item
from toolkit.data.images import decode_bytes, encode, to_floats

FACES, SIDES, PAIRS, DIM = 469_375, (1_772, 1_759, 19_593), 15_658_489, 512


def in_turn(works: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Least CPU seconds of each; they take turns, so that a busy moment of the machine does not hit
    one of them only.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(repeats):
        for work, own in zip(works, seconds, strict=True):
            started = time.process_time()
            work()
            own.append(time.process_time() - started)
    return list(map(min, seconds))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def align_rows(num: int, repeats: int) -> None:
    import albumentations
    from insightface.utils import face_align

    rng = np.random.default_rng(0)
    pictures, points = [], []
    for k in range(num):
        image, landmarks = synthetic_faces.face(k % 50, k // 50, size=128)
        x, y = rng.integers(0, 33, 2)
        picture = rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)
        picture[y : y + 128, x : x + 128] = image
        pictures.append(picture)
        points.append(landmarks + np.array((x, y)))
    files = [encode(one, ".jpg") for one in pictures]
    matrices = [align.transform(one) for one in points]
    pipeline = albumentations.Compose(
        [
            albumentations.HorizontalFlip(p=0.5),
            albumentations.CropAndPad(percent=(-0.3, 0.0), keep_size=False, p=0.2),
            albumentations.PadIfNeeded(112, 112),
            albumentations.Downscale(scale_range=(0.2, 1.0), p=0.2),
            albumentations.ColorJitter(
                brightness=(0.5, 1.5), contrast=(0.5, 1.5), saturation=(0.5, 1.5), hue=(0, 0), p=0.2
            ),
        ]
    )

    def ours(k: int) -> object:
        view = to_floats(align.crop(decode_bytes(files[k], ""), points[k]))
        return ADAFACE_VIEW(view, np.random.default_rng(k), rng)

    def peer(k: int) -> object:
        aligned = face_align.norm_crop(
            cv2.imdecode(np.frombuffer(files[k], np.uint8), cv2.IMREAD_COLOR), points[k]
        )
        return (
            pipeline(image=np.ascontiguousarray(aligned[..., ::-1]))["image"]
            .transpose(2, 0, 1)
            .astype(np.float32)
        )

    def limit(k: int) -> object:
        return cv2.warpAffine(decode_bytes(files[k], ""), matrices[k], (112, 112), borderValue=0.0)

    def over(work: Callable[[int], object]) -> Callable[[], None]:
        def every() -> None:
            for k in range(num):
                work(k)

        return every

    print(
        "| faces, images/s on one core | ours | peer | limit | ours/limit | ours/peer "
        "|\n|---|---|---|---|---|---|"
    )
    compared: list[tuple[str, list[Callable[[int], object]]]] = [
        (
            "align a decoded picture; norm_crop; warp alone",
            [
                lambda k: align.crop(pictures[k], points[k]),
                lambda k: face_align.norm_crop(pictures[k], points[k]),
                lambda k: cv2.warpAffine(pictures[k], matrices[k], (112, 112), borderValue=0.0),
            ],
        ),
        (
            "JPEG to aligned, augmented floats; OpenCV, norm_crop, albumentations; decode and warp",
            [ours, peer, limit],
        ),
    ]
    for name, works in compared:
        seconds = in_turn([over(work) for work in works], repeats)
        row(
            name,
            *(f"{num / one:,.0f}" for one in seconds),
            f"{seconds[2] / seconds[0]:.2f}",
            f"{seconds[1] / seconds[0]:.2f}",
        )


def recordio_rows(num: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        listed = []
        for k in range(num):
            path = Path(folder) / f"{k}.jpg"
            path.write_bytes(encode(synthetic_faces.face(k % 50, k // 50).image, ".jpg"))
            listed.append(Item(str(k), path, str(k % 50)))
        rec = recordio_writer.write(listed, folder)
        found = recordio.items(rec)
        order = np.random.default_rng(0).permutation(num).tolist()

        def ours() -> None:
            for k in order:
                images.decode(found[k])

        def ours_files() -> None:
            for k in order:
                images.decode(listed[k])

        def limit() -> None:
            with rec.open("rb") as file:
                for k in order:
                    offset, size = found[k].span or (0, 0)
                    file.seek(offset)
                    decode_bytes(file.read(size), "")

        def limit_files() -> None:
            for k in order:
                with listed[k].path.open("rb") as file:
                    decode_bytes(file.read(), "")

        def listing() -> None:
            recordio.items(rec)

        print(
            "\n| reading faces, images/s on one core | ours | limit: bare read and Pillow | "
            "ours/limit, time |\n|---|---|---|---|"
        )
        for name, pair in (
            ("RecordIO, shuffled", (ours, limit)),
            ("single files, shuffled", (ours_files, limit_files)),
        ):
            seconds = in_turn(pair, repeats)
            row(name, *(f"{num / one:,.0f}" for one in seconds), f"{seconds[0] / seconds[1]:.3f}")
        row("listing the records", f"{num / in_turn([listing], repeats)[0]:,.0f}", "", "")


def write_pack(
    root: Path,
    num_faces: int = FACES,
    sides: tuple[int, int, int] = SIDES,
    num_pairs: int = PAIRS,
    dim: int = DIM,
) -> None:
    """Lists and features.npz of a pack of these sizes in ROOT, drawn; kept if they are there."""
    meta, out = root / "meta", root / "features.npz"
    if out.is_file():
        return
    meta.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    gallery, total = sides[0] + sides[1], sum(sides)
    template = rng.permutation(8 * total)[:total] + 1
    subject = np.concatenate([np.arange(gallery), rng.integers(0, gallery, sides[2])]) + 1
    count = 1 + rng.multinomial(
        num_faces - total, rng.dirichlet(np.full(total, 0.5))
    )  # faces of each template
    of = np.repeat(np.arange(total), count)
    medium = rng.integers(1, 1 + count[of] // 3 + 1)
    lines = zip(range(1, num_faces + 1), template[of].tolist(), medium.tolist(), strict=True)
    (meta / "ijbc_face_tid_mid.txt").write_text("".join(f"{k}.jpg {t} {m}\n" for k, t, m in lines))
    points = [" ".join(map(str, one)) for one in rng.uniform(20, 200, (1000, 10)).round(2).tolist()]
    scores = rng.uniform(0.5, 1.0, num_faces).round(6).tolist()
    (meta / "ijbc_name_5pts_score.txt").write_text(
        "".join(f"{k}.jpg {points[k % 1000]} {score}\n" for k, score in enumerate(scores, 1))
    )
    for name, side in (
        ("gallery_G1", slice(0, sides[0])),
        ("gallery_G2", slice(sides[0], gallery)),
        ("probe_mixed", slice(gallery, total)),
    ):
        rows = zip(
            np.repeat(template[side], count[side]).tolist(),
            np.repeat(subject[side], count[side]).tolist(),
            strict=True,
        )
        (meta / f"ijbc_1N_{name}.csv").write_text(
            "TEMPLATE_ID,SUBJECT_ID,FILENAME\n" + "".join(f"{t},{s},img/{t}.jpg\n" for t, s in rows)
        )
    own = np.arange(gallery, total)  # every probe once with its mate
    i = np.concatenate([subject[own] - 1, rng.integers(0, gallery, num_pairs - own.size)])
    j = np.concatenate([own, rng.integers(gallery, total, num_pairs - own.size)])
    with (meta / "ijbc_template_pair_label.txt").open("w") as file:
        for start in range(0, num_pairs, 1 << 20):
            part = slice(start, start + (1 << 20))
            same = (subject[i[part]] == subject[j[part]]).astype(int)
            file.writelines(
                f"{a} {b} {c}\n"
                for a, b, c in zip(
                    template[i[part]].tolist(),
                    template[j[part]].tolist(),
                    same.tolist(),
                    strict=True,
                )
            )
    centres = rng.standard_normal((gallery, dim), dtype=np.float32)
    matrix = np.empty((num_faces, dim), dtype=np.float32)
    for start in range(0, num_faces, 1 << 14):
        owners = of[start : start + (1 << 14)]
        drawn = 0.2 * centres[subject[owners] - 1] + rng.standard_normal(
            (owners.size, dim), dtype=np.float32
        )
        matrix[start : start + owners.size] = drawn * rng.uniform(0.5, 2.0, (owners.size, 1))
    embeddings.write(
        out,
        Embeddings(
            tuple(f"{k}.jpg" for k in range(1, num_faces + 1)),
            matrix,
            {"similarity": "cosine", "flip": "sum"},
        ),
    )


def command(*arguments: str) -> tuple[float, float]:
    """CPU seconds and peak resident MB of `likeness` with these arguments, its start included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "likeness.cli", *arguments],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise ValueError(f"likeness {' '.join(arguments)}: it ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def insightface_templates(
    features: np.ndarray, template: np.ndarray, medium: np.ndarray
) -> np.ndarray:
    """image2template_feature of ijb_11.py; faces of a template lie together."""
    found = []
    for t in np.unique(template):
        here = np.flatnonzero(template == t)
        own = features[here]
        parts = [
            own[medium[here] == m].mean(axis=0, keepdims=True) for m in np.unique(medium[here])
        ]
        found.append(np.sum(parts, axis=0)[0])
    rows = np.stack(found)
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def ijbc_rows(folder: Path, repeats: int) -> None:
    from sklearn.metrics import roc_curve

    writer = get_context("fork").Process(
        target=write_pack, args=(folder,)
    )  # apart: a process's peak memory is also its children's
    writer.start()
    writer.join()
    file = folder / "features.npz"
    size = file.stat().st_size / 1e6
    shared = ["--ijb", str(folder), "--preset", "insightface"]
    evaluated = [command("evaluate", str(file), *shared) for _ in range(repeats)]
    identified = [
        command("identify", "--probes", str(file), *shared, "--resamples", "0")
        for _ in range(repeats)
    ]
    ours = [
        (min(one for one, _ in found), min(two for _, two in found))
        for found in (evaluated, identified)
    ]

    lists = meta_files(folder)
    faces, pairs = read_faces(lists.faces), read_template_pairs(lists.pairs)
    held = embeddings.read(file).matrix
    weighted = held * read_detector_scores(lists.landmarks, faces)[:, None].astype(np.float32)
    started = time.process_time()
    rows = insightface_templates(weighted, faces.template, faces.medium)
    pooling = time.process_time() - started
    del weighted
    place = {one: k for k, one in enumerate(np.unique(faces.template).tolist())}
    i, j = (
        np.array([place[int(one)] for one in ids], dtype=np.int32)[side]
        for ids, side in ((pairs.enrol_ids, pairs.enrol), (pairs.probe_ids, pairs.probe))
    )
    few = 1_000_000
    started = time.process_time()
    for start in range(0, few, 100_000):
        np.sum(rows[i[start : start + 100_000]] * rows[j[start : start + 100_000]], -1)
    products = (time.process_time() - started) * PAIRS / few
    rows32 = rows.astype(np.float32)
    known = [
        np.array([place[one] for one in read_side(path).template.tolist()])
        for path in (*lists.galleries, lists.probes)
    ]
    enrolled, searched = rows32[np.concatenate(known[:2])], rows32[known[2]]
    started = time.process_time()
    cells = searched @ enrolled.T
    product = time.process_time() - started
    scores = cells.ravel()[np.arange(PAIRS) % cells.size].astype(np.float64)
    started = time.process_time()
    roc_curve(pairs.target, scores)
    roc = time.process_time() - started
    started = time.process_time()
    np.sort(scores)
    sorting = time.process_time() - started
    started = time.process_time()
    np.argsort(-cells, axis=1)
    searching = time.process_time() - started + product
    started = time.process_time()
    for path in (file, lists.faces, lists.landmarks, lists.pairs):
        with path.open("rb", buffering=0) as handle:
            block = bytearray(1 << 22)
            while handle.readinto(block):
                pass
    for start in range(0, len(held), 1 << 12):
        held[start : start + (1 << 12)].sum(axis=0)
    touching = time.process_time() - started

    print(
        "\n| IJB-C size, files to table, CPU s | ours | MB above the features | peer, from memory "
        "| limit | ours/limit | ours/peer |"
    )
    print("|---|---|---|---|---|---|---|")
    peers, limits = (
        (pooling + products + roc, pooling + searching),
        (touching + product + sorting, touching + product),
    )
    for name, (seconds, peak), peer, limit in zip(
        ("1:1, `likeness evaluate`", "1:N, `likeness identify`"), ours, peers, limits, strict=True
    ):
        row(
            name,
            f"{seconds:.2f}",
            f"{peak - size:.0f}",
            f"{peer:.1f}",
            f"{limit:.2f}",
            f"{seconds / limit:.2f}",
            f"{seconds / peer:.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="align,recordio,ijbc")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="for IJB-C's lists and features, which are kept there"
    )
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "set OMP_NUM_THREADS=1 before Python starts: CPU time of many threads is not "
            "comparable",
            file=sys.stderr,
        )
    cv2.setNumThreads(1)
    parts = {
        "align": partial(align_rows, given.images, given.repeats),
        "recordio": partial(recordio_rows, given.images, given.repeats),
    }
    for name, work in parts.items():
        if name in given.only:
            work()
    if "ijbc" in given.only:
        with tempfile.TemporaryDirectory() as temporary:
            ijbc_rows(given.folder or Path(temporary), min(3, given.repeats))


if __name__ == "__main__":
    main()
