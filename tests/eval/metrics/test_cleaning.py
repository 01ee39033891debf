"""Labels that are likely wrong, against a calculation item by item."""

from collections import Counter

import numpy as np

from likeness.eval.metrics.cleaning import fit_of, near_pairs, suspects, twins
from likeness.eval.types import Floats32


def unit_rows(seed: int, *, spread: float) -> tuple[Floats32, np.ndarray]:
    """Six classes of twelve items."""
    rng = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(6), 12)
    matrix = np.eye(6, 8)[numbers] + spread * rng.normal(size=(72, 8))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32), numbers


def cosines(unit: Floats32, numbers: np.ndarray) -> np.ndarray:
    """(N, C) the cosine of each item to the mean of each class, always without the item."""
    everyone = np.arange(len(unit))
    table = np.full((len(unit), numbers.max() + 1), np.nan)
    for row in everyone:
        for number in range(table.shape[1]):
            mates = everyone[(numbers == number) & (everyone != row)]
            if len(mates):
                mean = unit[mates].astype(np.float64).mean(axis=0)
                table[row, number] = unit[row] @ mean / np.linalg.norm(mean)
    return table


def suspects_by_hand(unit: Floats32, numbers: np.ndarray) -> dict[int, int]:
    """row -> the class that it looks like, of the suspects."""
    found = {}
    for row, line in enumerate(cosines(unit, numbers)):
        own, others = line[numbers[row]], np.delete(line, numbers[row])
        others = others[~np.isnan(others)]
        if np.sum(others >= own) >= 0.1 * len(others):
            others = line.copy()
            others[numbers[row]] = np.nan
            found[row] = int(np.nanargmax(others))
    return found


def test_swapped_labels_are_found_and_no_others():
    unit, numbers = unit_rows(0, spread=0.1)
    assert suspects(fit_of(unit, numbers)).size == 0
    numbers[[3, 40]] = numbers[[40, 3]]
    fit = fit_of(unit, numbers)
    rows = suspects(fit).tolist()
    assert dict(zip(rows, fit.looks_like[rows].tolist(), strict=True)) == {3: 0, 40: 3}
    assert not twins(fit).size


def test_noisy_data_agree_with_the_rule_item_by_item():
    unit, numbers = unit_rows(1, spread=0.6)
    numbers[:3] = [1, 2, 7]  # class 7 has one item, and there is no class 6
    fit = fit_of(unit, numbers)
    rows = suspects(fit)
    expected = suspects_by_hand(unit, numbers)
    assert expected
    assert dict(zip(rows.tolist(), fit.looks_like[rows].tolist(), strict=True)) == expected
    assert (np.diff((fit.other - fit.own)[rows]) <= 1e-12).all()


def test_classes_that_are_one_agree_with_the_rule_item_by_item():
    unit, numbers = unit_rows(2, spread=0.35)
    numbers[1:12:2], numbers[12:16], numbers[24] = 6, 7, 8  # halves, a third, and a single item
    table = cosines(unit, numbers)
    own = table[np.arange(len(unit)), numbers]
    own[np.isnan(own)] = np.nanmedian(own)
    count: Counter[tuple[int, ...]] = Counter()
    for row, line in enumerate(table):
        line[numbers[row]] = np.nan
        if np.nanmax(line) >= own[row]:
            count[tuple(sorted((int(numbers[row]), int(np.nanargmax(line)))))] += 1
    sizes = np.bincount(numbers)
    expected = [pair for pair, some in count.items() if some >= 0.4 * sum(sizes[list(pair)])]
    assert (0, 6) in expected
    assert sorted(map(tuple, twins(fit_of(unit, numbers)).tolist())) == sorted(expected)


def test_lonely_items_are_no_suspects_and_no_twins():
    unit, numbers = np.eye(4, dtype=np.float32), np.arange(4)
    assert not suspects(fit_of(unit, numbers)).size
    assert not twins(fit_of(unit, numbers)).size


def test_near_pairs_are_those_of_the_whole_matrix():
    unit, _ = unit_rows(2, spread=0.3)
    similar = unit @ unit.T
    expected = [[i, j] for i in range(72) for j in range(i + 1, 72) if similar[i, j] >= 0.9]
    assert expected
    assert near_pairs(unit, 0.9).tolist() == expected
    assert near_pairs(unit[:0], 0.9).shape == (0, 2)
