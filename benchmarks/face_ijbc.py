"""Measures IJB-C from a file of features: `likeness evaluate` and `likeness identify`.

    OMP_NUM_THREADS=1 python benchmarks/face.py --only ijbc [--folder DIR]

Measures: the CPU seconds of a whole process, started from files, with its start, and its peak
    resident memory less the features. Lists and features of the protocol's sizes are drawn: 469,375
    faces of 512 dimensions, 23,124 templates, 15,658,489 pairs, 3,531 x 19,593 searches. They lie
    in DIR, 1.3 GB; without --folder in a temporary folder.
Peers: insightface's ijb_11.py and ijb_1n.py, restated without their image part and with features
    and lists in memory: the loop over templates, gathered products (scaled up from a million
    pairs), scikit-learn's ROC; the argsort of all searches.
Limits: reading the files' bytes, one pass over the features, the product of the templates, one
    sort.
Needs, takes, gives: see face.py, which prints these rows as its third table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from performance import ROOT, environment_of_one_thread, least_cpu_seconds, row, table

from eval.formats import embeddings
from eval.protocols.ijb_files import (
    MetaFiles,
    meta_files,
    read_detector_scores,
    read_faces,
    read_side,
    read_template_pairs,
)
from eval.types import Embeddings, Trials

FACES, SIDES, PAIRS, DIM = 469_375, (1_772, 1_759, 19_593), 15_658_489, 512
BLOCK = 1 << 20


class Templates(NamedTuple):
    """The drawn templates: those of both galleries come first, then the probes."""

    ids: np.ndarray  # (T,) their numbers in the lists
    subject: np.ndarray  # (T,) the subject of each
    count: np.ndarray  # (T,) how many faces each has

    @property
    def num_enrolled(self) -> int:
        """How many of them stand in the two galleries."""
        return SIDES[0] + SIDES[1]


def draw_templates(rng: np.random.Generator) -> Templates:
    """Templates of the protocol's sizes; the probes' subjects are among the galleries'."""
    enrolled, total = SIDES[0] + SIDES[1], sum(SIDES)
    ids = rng.permutation(8 * total)[:total] + 1
    subject = np.concatenate([np.arange(enrolled), rng.integers(0, enrolled, SIDES[2])]) + 1
    count = 1 + rng.multinomial(FACES - total, rng.dirichlet(np.full(total, 0.5)))
    return Templates(ids, subject, count)


def write_faces(meta: Path, templates: Templates, rng: np.random.Generator) -> np.ndarray:
    """The lists of faces and of landmarks; returns each face's place among the templates."""
    template = np.repeat(np.arange(len(templates.ids)), templates.count)
    medium = rng.integers(1, 1 + templates.count[template] // 3 + 1)
    ids = templates.ids[template].tolist()
    lines = zip(range(1, FACES + 1), ids, medium.tolist(), strict=True)
    (meta / "ijbc_face_tid_mid.txt").write_text("".join(f"{k}.jpg {t} {m}\n" for k, t, m in lines))
    drawn = rng.uniform(20, 200, (1000, 10)).round(2).tolist()
    points = [" ".join(map(str, landmarks)) for landmarks in drawn]
    scores = rng.uniform(0.5, 1.0, FACES).round(6).tolist()
    (meta / "ijbc_name_5pts_score.txt").write_text(
        "".join(f"{k}.jpg {points[k % 1000]} {score}\n" for k, score in enumerate(scores, 1))
    )
    return template


def write_sides(meta: Path, templates: Templates) -> None:
    """The lists of both galleries and of the probes."""
    first, enrolled = SIDES[0], templates.num_enrolled
    for name, side in (
        ("gallery_G1", slice(0, first)),
        ("gallery_G2", slice(first, enrolled)),
        ("probe_mixed", slice(enrolled, len(templates.ids))),
    ):
        ids, subjects = (
            np.repeat(values[side], templates.count[side]).tolist()
            for values in (templates.ids, templates.subject)
        )
        lines = zip(ids, subjects, strict=True)
        (meta / f"ijbc_1N_{name}.csv").write_text(
            "TEMPLATE_ID,SUBJECT_ID,FILENAME\n"
            + "".join(f"{t},{s},img/{t}.jpg\n" for t, s in lines)
        )


def write_pairs(meta: Path, templates: Templates, rng: np.random.Generator) -> None:
    """The list of pairs of templates, in which every probe meets its mate once."""
    enrolled, total = templates.num_enrolled, len(templates.ids)
    own = np.arange(enrolled, total)
    others = PAIRS - own.size
    i = np.concatenate([templates.subject[own] - 1, rng.integers(0, enrolled, others)])
    j = np.concatenate([own, rng.integers(enrolled, total, others)])
    with (meta / "ijbc_template_pair_label.txt").open("w") as file:
        for start in range(0, PAIRS, BLOCK):
            a, b = i[start : start + BLOCK], j[start : start + BLOCK]
            same = (templates.subject[a] == templates.subject[b]).astype(int)
            lines = zip(
                templates.ids[a].tolist(), templates.ids[b].tolist(), same.tolist(), strict=True
            )
            file.writelines(f"{x} {y} {label}\n" for x, y, label in lines)


def write_pack(root: Path) -> None:
    """Write lists and features.npz into ROOT; a pack that is there already stays."""
    meta, out = root / "meta", root / "features.npz"
    if out.is_file():
        return
    meta.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    templates = draw_templates(rng)
    template = write_faces(meta, templates, rng)
    write_sides(meta, templates)
    write_pairs(meta, templates, rng)
    centres = rng.standard_normal((templates.num_enrolled, DIM), dtype=np.float32)
    matrix = np.empty((FACES, DIM), dtype=np.float32)
    for start in range(0, FACES, 1 << 14):
        owners = template[start : start + (1 << 14)]
        noise = rng.standard_normal((owners.size, DIM), dtype=np.float32)
        faces = 0.2 * centres[templates.subject[owners] - 1] + noise
        matrix[start : start + owners.size] = faces * rng.uniform(0.5, 2.0, (owners.size, 1))
    names = tuple(f"{k}.jpg" for k in range(1, FACES + 1))
    embeddings.write(out, Embeddings(names, matrix, {"similarity": "cosine", "flip": "sum"}))


def command(*arguments: str) -> tuple[float, float]:
    """CPU seconds and peak resident MB of `likeness` with these arguments, its start included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "likeness", *arguments],
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment_of_one_thread(),
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise ValueError(f"likeness {' '.join(arguments)}: it ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def least_command(repeats: int, *arguments: str) -> tuple[float, float]:
    """The least seconds and the least MB of several runs of a command."""
    seconds, megabytes = zip(*(command(*arguments) for _ in range(repeats)), strict=True)
    return min(seconds), min(megabytes)


def insightface_templates(
    features: np.ndarray, template: np.ndarray, medium: np.ndarray
) -> np.ndarray:
    """image2template_feature of ijb_11.py; faces of a template lie together."""
    rows = []
    for number in np.unique(template):
        here = np.flatnonzero(template == number)
        own = features[here]
        parts = [
            own[medium[here] == m].mean(axis=0, keepdims=True) for m in np.unique(medium[here])
        ]
        rows.append(np.sum(parts, axis=0)[0])
    stacked = np.stack(rows)
    unit: np.ndarray = stacked / np.linalg.norm(stacked, axis=1, keepdims=True)
    return unit


def gathered_products(rows: np.ndarray, i: np.ndarray, j: np.ndarray) -> None:
    """verification() of ijb_11.py: 100,000 pairs at a time."""
    for start in range(0, i.size, 100_000):
        part = slice(start, start + 100_000)
        np.sum(rows[i[part]] * rows[j[part]], -1)


def touch(files: Sequence[Path], features: np.ndarray) -> None:
    """Read the bytes of all files, and the features in memory once."""
    for path in files:
        with path.open("rb", buffering=0) as handle:
            block = bytearray(1 << 22)
            while handle.readinto(block):
                pass
    for start in range(0, len(features), 1 << 12):
        features[start : start + (1 << 12)].sum(axis=0)


def once(work: Callable[[], object]) -> float:
    """The CPU seconds of one run."""
    return least_cpu_seconds(work, 1)[0]


def sides_of(pairs: Trials, place: dict[int, int]) -> list[np.ndarray]:
    """The row of the first and of the second template of every pair."""
    return [
        np.array([place[int(name)] for name in ids], dtype=np.int32)[side]
        for ids, side in ((pairs.enrol_ids, pairs.enrol), (pairs.probe_ids, pairs.probe))
    ]


def peers_and_limits(
    file: Path, lists: MetaFiles
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The peer's seconds of 1:1 and of 1:N, and the limits of both."""
    from sklearn.metrics import roc_curve

    faces, pairs = read_faces(lists.faces), read_template_pairs(lists.pairs)
    features = embeddings.read(file).matrix
    quality = read_detector_scores(lists.landmarks, faces)[:, None].astype(np.float32)
    pooling, rows = least_cpu_seconds(
        partial(insightface_templates, features * quality, faces.template, faces.medium), 1
    )
    place = {number: k for k, number in enumerate(np.unique(faces.template).tolist())}
    i, j = sides_of(pairs, place)
    few = 1_000_000
    products = once(lambda: gathered_products(rows, i[:few], j[:few])) * PAIRS / few
    first, second, probes = (
        np.array([place[number] for number in read_side(path).template.tolist()])
        for path in (*lists.galleries, lists.probes)
    )
    short = rows.astype(np.float32)
    enrolled, searched = short[np.concatenate([first, second])], short[probes]
    product, cells = least_cpu_seconds(lambda: searched @ enrolled.T, 1)
    scores = cells.ravel()[np.arange(PAIRS) % cells.size].astype(np.float64)
    roc = once(lambda: roc_curve(pairs.target, scores))
    sorting = once(lambda: np.sort(scores))
    searching = once(lambda: np.argsort(-cells, axis=1)) + product
    touching = once(lambda: touch((file, lists.faces, lists.landmarks, lists.pairs), features))
    return (
        (pooling + products + roc, pooling + searching),
        (touching + product + sorting, touching + product),
    )


def ijbc_rows(folder: Path, repeats: int) -> None:
    """Print the table of 1:1 and 1:N; the pack is written into the folder first."""
    # In a process of its own, because a process's peak of memory is also its children's.
    writer = get_context("fork").Process(target=write_pack, args=(folder,))
    writer.start()
    writer.join()
    if writer.exitcode:
        raise RuntimeError(f"{folder}: writing the lists and features ended with an error")
    file = folder / "features.npz"
    size = file.stat().st_size / 1e6
    shared = ["--ijb", str(folder), "--preset", "insightface"]
    ours = [
        least_command(repeats, "evaluate", str(file), *shared),
        least_command(repeats, "identify", "--probes", str(file), *shared, "--resamples", "0"),
    ]
    peers, limits = peers_and_limits(file, meta_files(folder))
    print()
    table(
        "IJB-C size, files to table, CPU s",
        "ours",
        "MB above the features",
        "peer, from memory",
        "limit",
        "ours/limit",
        "ours/peer",
    )
    names = ("1:1, `likeness evaluate`", "1:N, `likeness identify`")
    for name, (seconds, peak), peer, limit in zip(names, ours, peers, limits, strict=True):
        row(
            name,
            f"{seconds:.2f}",
            f"{peak - size:.0f}",
            f"{peer:.1f}",
            f"{limit:.2f}",
            f"{seconds / limit:.2f}",
            f"{seconds / peer:.2f}",
        )
