"""Labels that are likely wrong, against a calculation item by item."""

from __future__ import annotations

import numpy as np

from likeness.eval.cleaning import near_pairs, suspects
from likeness.eval.types import Floats32


def unit_rows(seed: int, *, spread: float) -> tuple[Floats32, np.ndarray]:
    """Six classes of twelve items."""
    rng = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(6), 12)
    matrix = np.eye(6, 8)[numbers] + spread * rng.normal(size=(72, 8))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32), numbers


def by_hand(unit: Floats32, numbers: np.ndarray) -> dict[int, int]:
    """row -> the class that it looks like, of the suspects."""
    classes = range(numbers.max() + 1)

    def cosine(row: int, rows: np.ndarray) -> float:
        mean = unit[rows].astype(np.float64).mean(axis=0)
        return float(unit[row] @ mean / np.linalg.norm(mean))

    everyone = np.arange(len(unit))
    own = {
        row: cosine(row, everyone[(numbers == numbers[row]) & (everyone != row)])
        for row in everyone.tolist()
        if (numbers == numbers[row]).sum() > 1
    }
    least = {
        c: np.mean([own[row] for row in everyone[numbers == c].tolist()])
        for c in classes
        if (numbers == c).sum() > 1
    }
    found = {}
    for row, mine in own.items():
        others = {c: cosine(row, everyone[numbers == c]) for c in least if c != numbers[row]}
        near = {c: value for c, value in others.items() if value >= least[c]}
        if near and max(near.values()) > mine:
            found[row] = max(near, key=lambda c: near[c])
    return found


def test_swapped_labels_are_found_and_no_others() -> None:
    unit, numbers = unit_rows(0, spread=0.1)
    assert suspects(unit, numbers).rows.size == 0
    numbers[[3, 40]] = numbers[[40, 3]]
    found = suspects(unit, numbers)
    assert sorted(found.rows.tolist()) == [3, 40]
    assert dict(zip(found.rows.tolist(), found.looks_like.tolist(), strict=True)) == {3: 0, 40: 3}


def test_noisy_data_agree_with_the_rule_item_by_item() -> None:
    unit, numbers = unit_rows(1, spread=0.6)
    numbers[:3] = [1, 2, 6]  # class 6 has one item
    found = suspects(unit, numbers)
    expected = by_hand(unit, numbers)
    assert expected
    assert dict(zip(found.rows.tolist(), found.looks_like.tolist(), strict=True)) == expected
    assert (np.diff(found.other - found.own) <= 1e-12).all()


def test_near_pairs_are_those_of_the_whole_matrix() -> None:
    unit, _ = unit_rows(2, spread=0.3)
    similar = unit @ unit.T
    expected = [[i, j] for i in range(72) for j in range(i + 1, 72) if similar[i, j] >= 0.9]
    assert expected
    assert near_pairs(unit, 0.9).tolist() == expected
    assert near_pairs(unit[:0], 0.9).shape == (0, 2)
