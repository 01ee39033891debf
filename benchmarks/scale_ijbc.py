"""Draws the lists and features of IJB-C's sizes, which scale.py measures.

Measures: nothing itself. Lists and features of the protocol's sizes are drawn: 469,375 faces of 512
    dimensions, 23,124 templates, 15,658,489 pairs, 3,531 x 19,593 searches. They take 1.3 GB.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from eval.formats import embeddings
from eval.types import Embeddings

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


def write_pack(root: Path) -> Path:
    """Write lists and features.npz into ROOT; returns the path of the features."""
    meta, out = root / "meta", root / "features.npz"
    meta.mkdir(parents=True)
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
    return out
