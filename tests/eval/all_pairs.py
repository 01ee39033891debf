"""Trials between all pairs of items of some subjects."""

import numpy as np
from numpy.typing import NDArray

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


def people(
    num: int, seed: int, gap: float, *, shared: float = 0.8, noise: float = 1.0
) -> tuple[Scores, NDArray[np.int64]]:
    """All pairs of people, each also with themselves, and (P, 2) who is compared.

    Who resembles many has a high effect: a nontarget score is the sum of two effects and noise.
    """
    rng = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(num), axis=1)
    is_target = pairs[:, 0] == pairs[:, 1]
    effects = shared * rng.standard_normal(num)[pairs].sum(axis=1)
    values = noise * rng.standard_normal(len(pairs)) + np.where(is_target, gap, effects)
    return Scores(values, is_target), pairs
