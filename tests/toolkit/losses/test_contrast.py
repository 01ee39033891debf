"""Losses of tuples against their formulas in loops, and choices that references make at random."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from likeness.toolkit.losses.contrast import LiftedStructure, NPair, NTXent, SupCon, TupletMargin
from likeness.toolkit.losses.mining import mine_multi_similarity
from likeness.toolkit.losses.weighted import CirclePair, MultiSimilarity
from likeness.toolkit.vmf.rows import unit
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import SMOOTH_ROWS, sides

batch = partial(drawn.batch, size=10, labels=(0, 1, 2, 3, 0, 1, 2, 3, 0, 4))


def test_n_pair_counts_the_keys_of_each_class_once_for_all_blocks(monkeypatch):
    z, y = batch(1)
    expected = NPair(5)(z, y).item()
    monkeypatch.setattr("likeness.toolkit.losses.pairing.BLOCK", 2)
    counted, unique = [], torch.unique
    monkeypatch.setattr(
        torch, "unique", lambda *args, **kwargs: counted.append(1) or unique(*args, **kwargs)
    )
    x = z.clone().requires_grad_()
    value = NPair(5)(x, y)
    value.backward()  # blocks are computed again in it
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert len(counted) == 1


def lse(values: Any) -> float:
    values = list(values)
    return math.log(math.fsum(math.exp(value) for value in values)) if values else -math.inf


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) if x > -math.inf else 0.0


def mean(values: Any) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("crossed", [False, True])
def test_tuples_are_their_formulas(crossed: bool) -> None:
    z, y = batch(1)
    z_key = batch(2)[0] if crossed else None
    keys = z if z_key is None else z_key
    c = (unit(z) @ unit(keys).T).numpy()
    d = np.linalg.norm(unit(z).numpy()[:, None] - unit(keys).numpy()[None], axis=2)
    raw = (z @ keys.T).numpy()
    everyone = [(i, *sides(y, i)) for i in range(10)]

    of_pairs = [(i, p, negative) for i, positive, negative in everyone for p in positive]

    def equals(loss: Any, values: Any) -> None:
        assert float(loss(z, y, z_key)) == pytest.approx(mean(values), rel=1e-12)

    angle = np.arccos(np.clip(c, -1, 1))
    terms = [
        softplus(lse(16 * c[i, n] for n in negative) - 16 * math.cos(angle[i, p] - 0.2))
        for i, p, negative in of_pairs
    ]
    equals(TupletMargin(5, margin=0.2, scale=16.0), terms)
    terms = [softplus(lse(c[i, n] / 0.2 for n in rest) - c[i, p] / 0.2) for i, p, rest in of_pairs]
    equals(NTXent(5, temperature=0.2), terms)
    terms = [
        lse(c[i, j] / 0.2 for j in positive + negative) - mean(c[i, p] / 0.2 for p in positive)
        for i, positive, negative in everyone
        if positive
    ]
    equals(SupCon(5, temperature=0.2), terms)
    equals(SupCon(5, temperature=0.2, without_positives="zero"), [*terms, 0.0])

    size, price = np.bincount(y.numpy()), 0.02 * float(z.square().sum(1).mean())
    terms = [
        math.log1p(sum(math.exp(raw[i, n] - raw[i, p]) / size[y[n]] for n in negative)) + price
        for i, p, negative in of_pairs
    ]
    equals(NPair(5, l2=0.02), terms)
    if not crossed:
        pairs = zip([0, 1, 2, 3], [4, 5, 6, 7], strict=True)
        equals(NPair(5, pairs="one"), [lse(raw[i, 4:8]) - raw[i, p] for i, p in pairs])

    # of the anchor's negatives among the keys, and of the key's among the anchors
    def push(i: int, p: int) -> float:
        return lse(
            [0.8 - d[i, n] for n in range(10) if y[n] != y[i]]
            + [0.8 - d[n, p] for n in range(10) if y[n] != y[p]]
        )

    terms = [max(d[i, p] + push(i, p), 0.0) ** 2 / 2 for i, p, _ in of_pairs]
    equals(LiftedStructure(5, margin=0.8), terms)
    pulls = [lse(d[i, p] for p in positive) if positive else 0.0 for i, positive, _ in everyone]
    pushes = [lse(0.8 - d[i, n] for n in negative) for i, _, negative in everyone]
    terms = [max(a + b, 0.0) for a, b in zip(pulls, pushes, strict=True)]
    equals(LiftedStructure(5, margin=0.8, generalised=True), terms)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("epsilon", [None, 0.1, 0.5])
def test_multi_similarity_is_its_formula_over_the_mined_pairs(epsilon, crossed):
    z, y = batch(3)
    z_key = batch(4)[0] if crossed else None
    c = (unit(z) @ unit(z if z_key is None else z_key).T).numpy()
    values = []
    for i in range(10):
        positive, negative = sides(y, i)
        if epsilon is not None:
            farthest = min([c[i, p] for p in positive], default=math.inf)
            nearest = max(c[i, n] for n in negative)
            positive = [p for p in positive if c[i, p] - epsilon < nearest]
            negative = [n for n in negative if c[i, n] + epsilon > farthest]
        pull = softplus(lse(-2 * (c[i, p] - 0.4) for p in positive)) / 2
        values.append(pull + softplus(lse(20 * (c[i, n] - 0.4) for n in negative)) / 20)
    loss = MultiSimilarity(5, beta=20.0, base=0.4, epsilon=epsilon)
    assert float(loss(z, y, z_key)) == pytest.approx(mean(values), rel=1e-12)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_direction_regularization_is_its_formula(epsilon: float | None, crossed: bool) -> None:
    z, y = batch(3)
    z.requires_grad_()
    z_key = batch(4)[0] if crossed else None

    def way(start: Tensor, end: Tensor) -> Tensor:
        step = end - start
        return step / step.square().sum().sqrt()

    x = unit(z)
    keys = x if z_key is None else unit(z_key)
    total = torch.zeros((), dtype=torch.float64)
    turned = 0
    for i in range(10):
        positive, negative = sides(y, i)
        c = [float((x[i] @ key).detach()) for key in keys]
        hardest = min(positive, key=lambda p: c[p], default=None)
        if epsilon is not None:
            nearest = max(c[n] for n in negative)
            least = math.inf if hardest is None else c[hardest]
            positive = [p for p in positive if c[p] - epsilon < nearest]
            negative = [n for n in negative if c[n] + epsilon > least]
        pull = sum((-2 * (x[i] @ keys[p] - 0.7)).exp() for p in positive)
        push: Any = 0.0
        for n in negative:
            s = x[i] @ keys[n]
            if hardest is not None:
                s = s - 0.3 * (way(x[i], keys[n]) @ way(x[i], keys[hardest]))
                turned += 1
            push = push + (20 * (s - 0.7)).exp()
        total = total + (1 + torch.as_tensor(pull)).log() / 2
        total = total + (1 + torch.as_tensor(push)).log() / 20
    assert turned > 20
    ours = MultiSimilarity(5, beta=20.0, base=0.7, epsilon=epsilon, direction=0.3)(z, y, z_key)
    assert ours.item() == pytest.approx(total.item() / 10, rel=1e-12)
    mine, other = (torch.autograd.grad(value, z)[0] for value in (ours, total / 10))
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-13)


def test_a_positive_at_its_anchor_gives_no_direction() -> None:
    z, y = batch(3)
    z, y = z[:4].repeat(2, 1), torch.arange(4).repeat(2)  # each positive equals its anchor
    values, gradients = [], []
    for direction in (0.0, 0.3):
        rows = z.clone().requires_grad_()
        value = MultiSimilarity(5, epsilon=None, direction=direction)(rows, y)
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, rows)[0])
    assert values[1] == pytest.approx(values[0], rel=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["small0", "hard0"])
def test_multi_similarity_mines_the_reference_pairs(case: str) -> None:
    arrays = drawn.tensors("multi_similarity_miner__pml", case)
    rows, y = unit(arrays["embeddings"]), arrays["labels"]
    same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    positive, negative = mine_multi_similarity(rows @ rows.T, same, y[:, None] != y, 0.1)
    for mined, first, second in ((positive, "idx_a1", "idx_p"), (negative, "idx_a2", "idx_n")):
        expected = zip(arrays[first].tolist(), arrays[second].tolist(), strict=True)
        assert set(map(tuple, mined.nonzero().tolist())) == set(expected)


@pytest.mark.parametrize("crossed", [False, True])
def test_circle_is_its_formula_and_holds_its_weights_fixed(crossed: bool) -> None:
    z, y = batch(5)
    z_key = batch(6)[0] if crossed else None
    keys = z if z_key is None else z_key

    def by_hand(x: Tensor, weights: Any, whole: bool) -> Tensor:
        c = unit(x) @ unit(x if z_key is None else z_key).T
        pulls, pushes = [], []
        for i in range(10):
            positive, negative = sides(y, i)
            pull = [-8 * max(1.3 - weights[i, p], 0) * (c[i, p] - 0.7) for p in positive]
            push = [8 * max(weights[i, n] + 0.3, 0) * (c[i, n] - 0.3) for n in negative]
            pulls.append(torch.stack(pull) if pull else torch.empty(0, dtype=torch.float64))
            pushes.append(torch.stack(push))
        if whole:
            return torch.log1p(torch.cat(pulls).exp().sum() * torch.cat(pushes).exp().sum())
        both = zip(pulls, pushes, strict=True)
        terms = [torch.log1p(a.exp().sum() * b.exp().sum()) for a, b in both if len(a)]
        return torch.stack(terms).mean()

    weights = (unit(z) @ unit(keys).T).numpy()
    for over in ("anchor", "batch"):
        x, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
        value = CirclePair(5, margin=0.3, scale=8.0, over=over)(x, y, z_key)
        expected = by_hand(theirs, weights, over == "batch")
        assert value.item() == pytest.approx(expected.item(), rel=1e-12)
        mine, other = torch.autograd.grad(value, x), torch.autograd.grad(expected, theirs)
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["small0", "hard0"])
def test_one_pair_per_class_of_unit_rows_gives_the_reference_n_pair_loss(case: str) -> None:
    """pytorch-metric-learning's inner product normalises by default; its "random" pairs are each
    class's first, the order of rows given.
    """
    arrays = drawn.tensors("npairs__pml", case)
    z = arrays["embeddings"].requires_grad_()
    value = NPair(z.shape[1], pairs="one")(unit(z), arrays["labels"])
    assert value.item() == pytest.approx(float(arrays["loss"]), rel=1e-10)
    (grad,) = torch.autograd.grad(value, z)
    assert bool(torch.isfinite(grad).all())
    rows: Any = slice(None) if case == "small0" else SMOOTH_ROWS
    torch.testing.assert_close(grad[rows], arrays["grad_embeddings"][rows], rtol=1e-10, atol=1e-10)
