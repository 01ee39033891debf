"""Trials between all pairs of items of some subjects."""

from __future__ import annotations

import numpy as np

from likeness.eval.types import Scores, Trials


def all_pairs(
    num_subjects: int, items: int = 3, *, seed: int = 0, gap: float = 1.5
) -> tuple[Trials, Scores, np.ndarray]:
    """The trials of items s00/0, s00/1, ...; normal scores, those of targets higher by the gap; and
    the numbers (P, 2) of the subjects of both sides.
    """
    ids = tuple(f"s{i // items:02d}/{i}" for i in range(num_subjects * items))
    a, b = np.triu_indices(len(ids), 1)
    subjects = np.stack([a // items, b // items], axis=1)
    target = subjects[:, 0] == subjects[:, 1]
    values = np.random.default_rng(seed).standard_normal(a.size) + gap * target
    return Trials(ids, ids, a, b, target), Scores(values, target), subjects
