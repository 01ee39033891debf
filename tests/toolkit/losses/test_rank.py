"""Losses on ranks against their definitions in loops."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from likeness.toolkit.losses.rank import FastAP, RankedList, SmoothAP
from likeness.toolkit.vmf.rows import unit
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import sides


def rank(ahead: Any, j: int, among: list[int]) -> float:
    return 1 + sum(ahead[j, k] for k in among if k != j)


batch = partial(drawn.batch, size=10, labels=(0, 1, 2, 3, 0, 1, 2, 3, 0, 4))


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("include_query", [False, True])
def test_smooth_ap_is_its_definition(include_query: bool, crossed: bool) -> None:
    z, y = batch(1)
    z_key = batch(2)[0] if crossed else None
    c = (unit(z) @ unit(z if z_key is None else z_key).T).numpy()
    values = []
    for i in range(10):
        positive, negative = sides(y, i)
        positive += [i] if include_query else []
        # [j, k]: how far k is ahead of j
        ahead = 1 / (1 + np.exp(-(c[i][None, :] - c[i][:, None]) / 0.1))
        everyone = positive + negative
        shares = [rank(ahead, j, positive) / rank(ahead, j, everyone) for j in positive]
        values += [np.mean(shares)] if positive else []
    loss = SmoothAP(5, temperature=0.1, include_query=include_query)
    assert float(loss(z, y, z_key)) == pytest.approx(1 - np.mean(values), rel=1e-12)


def test_smooth_ap_tends_to_average_precision() -> None:
    z, y = batch(3)
    c = (unit(z) @ unit(z).T).numpy()
    values = []
    for i in range(9):
        positive, negative = sides(y, i)
        ranked = sorted(positive + negative, key=lambda j: -c[i, j])
        hits = [rank for rank, j in enumerate(ranked, 1) if j in positive]
        values.append(np.mean([number / rank for number, rank in enumerate(hits, 1)]))
    value = float(SmoothAP(5, temperature=1e-5)(z, y))
    assert value == pytest.approx(1 - np.mean(values), abs=1e-6)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_fast_ap_is_its_histograms(num_bins: int, crossed: bool) -> None:
    z, y = batch(5)
    z_key = batch(6)[0] if crossed else None
    rows, keys = unit(z).numpy(), unit(z if z_key is None else z_key).numpy()
    values, width = [], 4 / num_bins
    for i in range(10):
        positive, negative = sides(y, i)

        def histogram(columns: list[int], i: int = i) -> Any:
            square = [float(((rows[i] - keys[j]) ** 2).sum()) for j in columns]
            middles = [width * b for b in range(num_bins + 1)]
            return np.array([sum(max(1 - abs(v - m) / width, 0) for v in square) for m in middles])

        own, everyone = histogram(positive), histogram(positive + negative)
        above = own > 0
        if positive:
            precision = own.cumsum()[above] / everyone.cumsum()[above]
            values.append(1 - own[above] @ precision / len(positive))
    value = float(FastAP(5, num_bins=num_bins)(z, y, z_key))
    assert value == pytest.approx(np.mean(values), rel=1e-12)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("weights", ["exact", "pml"])
@pytest.mark.parametrize(("positive", "negative"), [(0.0, 10.0), (2.0, 300.0)])
def test_ranked_list_is_its_formula(positive, negative, weights, crossed):
    z, y = batch(7)
    z_key = batch(8)[0] if crossed else None
    rows, keys = unit(z).numpy(), unit(z if z_key is None else z_key).numpy()
    total = 0.0
    for i in range(10):
        for columns, sign, edge, temperature, share in zip(
            sides(y, i), (1, -1), (0.7, 1.3), (positive, negative), (0.7, 0.3), strict=True
        ):
            violation = [sign * (float(np.linalg.norm(rows[i] - keys[j])) - edge) for j in columns]
            violation = [value for value in violation if value > 0]
            w = [math.exp(temperature * value) for value in violation]
            divisor = sum(w) + (10 * 1e-5 if weights == "pml" else 0.0)
            if violation:
                total += share * float(np.dot(violation, w)) / divisor
    heat = {"positive_temperature": positive, "negative_temperature": negative}
    loss = RankedList(5, alpha=1.3, margin=0.6, imbalance=0.3, weights=weights, **heat)
    assert float(loss(z, y, z_key)) == pytest.approx(total / 10, rel=1e-10)


def test_ranked_list_stays_finite_at_any_temperature() -> None:
    z, y = batch(9)
    z.requires_grad_()
    value = RankedList(5, negative_temperature=5000.0)(z, y)
    assert bool(torch.isfinite(value))
    assert bool(torch.isfinite(torch.autograd.grad(value, z)[0]).all())
