"""Triplet losses against reference triplets and loops; mining."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from likeness.toolkit.losses import mining as miners
from likeness.toolkit.losses.pairing import distance
from likeness.toolkit.losses.triplet import Angular, EasyPositive, MarginLoss, SNRTriplet, Triplet
from likeness.toolkit.vmf.rows import unit
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import SMOOTH_ROWS

batch = partial(drawn.batch, size=9)


def masks(y: Tensor) -> tuple[Tensor, Tensor]:
    same = y[:, None] == y[None]
    return same & ~torch.eye(len(y), dtype=torch.bool), ~same


def is_mined(gap: float, mining: str) -> bool:
    return {"all": True, "hard": gap >= 0, "semihard": -0.3 <= gap < 0}[mining]


@pytest.mark.parametrize("case", ["small0", "hard0"])
@pytest.mark.parametrize("name", ["hard", "semihard", "batchhard", "distance_weighted"])
def test_reference_triplets_give_the_reference_value(name, case, monkeypatch):
    """The loss of the triplets that the reference mined: which of several equally far rows it
    takes, and what it draws, is its own.
    """
    arrays = drawn.tensors(f"triplet_{name}__pml", case)
    z = arrays["embeddings"].requires_grad_()
    mined = arrays["idx_a"], arrays["idx_p"], arrays["idx_n"]
    monkeypatch.setattr("likeness.toolkit.losses.triplet.mine_distance_weighted", lambda *_: mined)
    value = Triplet(z.shape[1], margin=0.2, mining="distance_weighted")(z, arrays["labels"])
    assert value.item() == pytest.approx(float(arrays["loss"]), rel=1e-10)
    (grad,) = torch.autograd.grad(value, z)
    assert bool(torch.isfinite(grad).all())
    kept: Any = slice(None) if case == "small0" else SMOOTH_ROWS
    torch.testing.assert_close(grad[kept], arrays["grad_embeddings"][kept], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("mining", ["all", "hard", "semihard", "facenet", "batch_hard"])
def test_triplet_is_its_formula_over_the_mined_triplets(mining, smooth, squared, crossed):
    z, y = batch(1)
    z_key = batch(2)[0] if crossed else None
    rows, keys = unit(z).numpy(), unit(z if z_key is None else z_key).numpy()
    exponent = 1.0 if squared else 0.5
    d = np.array([[float(((a - k) ** 2).sum()) ** exponent for k in keys] for a in rows])
    values = []
    for a in range(9):
        positives = [p for p in range(9) if p != a and y[p] == y[a]]
        negatives = [n for n in range(9) if y[n] != y[a]]
        if mining == "batch_hard":
            values.append(max(d[a, p] for p in positives) - min(d[a, n] for n in negatives))
        for p in positives if mining != "batch_hard" else []:
            gaps = [d[a, p] - d[a, n] for n in negatives]
            if mining == "facenet":
                values += [max(gap for gap in gaps if gap < 0)] if min(gaps) < 0 else []
            else:
                values += [gap for gap in gaps if is_mined(gap, mining)]
    terms = [math.log1p(math.exp(gap + 0.3)) if smooth else max(gap + 0.3, 0.0) for gap in values]
    expected = sum(terms) / max(sum(term > 0 for term in terms), 1)
    loss = Triplet(5, margin=0.3, mining=mining, smooth=smooth, squared=squared)
    assert float(loss(z, y, z_key)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("case", ["close0", "close1"])
@pytest.mark.parametrize("negatives", ["semihard", "hard"])
def test_easy_positive_equals_its_release(negatives: Any, case: str) -> None:
    arrays = drawn.tensors("epshn__ephn" if negatives == "semihard" else "ephn__ephn", case)
    z = arrays["embeddings"].requires_grad_()
    temperature = float(arrays["sigma"])
    loss = EasyPositive(z.shape[1], negatives=negatives, temperature=temperature)
    value = loss(z, arrays["labels"])
    torch.testing.assert_close(value, arrays["loss"], rtol=1e-10, atol=0)
    (grad,) = torch.autograd.grad(value, z)
    torch.testing.assert_close(grad, arrays["grad_embeddings"], rtol=1e-9, atol=1e-12)


def test_the_regulariser_of_snr_equals_that_of_diva_s_release() -> None:
    """Its anchors are those of the triplets, here each row once."""
    arrays = drawn.tensors("snr_triplet_batch_hard__diva", "small0")
    z = arrays["embeddings"].requires_grad_()
    loss = SNRTriplet(z.shape[1], margin=0.2, mining="batch_hard", zero_mean=0.1)
    value = loss(z, arrays["labels"])
    torch.testing.assert_close(value, arrays["loss"], rtol=1e-10, atol=0)
    (grad,) = torch.autograd.grad(value, z)
    torch.testing.assert_close(grad, arrays["grad_embeddings"], rtol=1e-9, atol=1e-12)


def easy_positive_by_loops(rows: Any, keys: Any, y: Any, semihard: bool, temperature: float) -> Any:
    values = []
    for i, a in enumerate(rows):
        similar = [float(a @ k) for k in keys]
        own = [s for j, s in enumerate(similar) if y[j] == y[i] and i != j]
        others = [s for j, s in enumerate(similar) if y[j] != y[i]]
        if own and semihard:
            others = [s for s in others if s <= max(own)]
        if own and others:
            p, n = math.exp(max(own) / temperature), math.exp(max(others) / temperature)
            values.append(-math.log(p / (p + n)))
    return np.mean(values) if values else 0.0


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    semihard=st.booleans(),
    temperature=st.floats(0.1, 2.0),
    equal=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_easy_positive_is_its_formula(labels, semihard, temperature, equal):
    """Also with one class, lone items, and rows that are equal within and across classes."""
    z = batch(6, size=len(labels))[0]
    if equal:
        z[::2] = z[0].clone()
    y = torch.tensor(labels)
    negatives: Any = "semihard" if semihard else "hard"
    loss = EasyPositive(5, negatives=negatives, temperature=temperature).double()
    rows = unit(z).numpy()
    expected = easy_positive_by_loops(rows, rows, labels, semihard, temperature)
    x = z.requires_grad_()
    value = loss(x, y)
    if not equal:  # else it depends on the last bit which of the equal rows is more similar
        assert float(value.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    value.backward()
    assert x.grad is not None
    assert bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("negatives", ["semihard", "hard"])
def test_easy_positive_of_keys_leaves_out_the_own_one(negatives: Any) -> None:
    z, y = batch(1)
    z_key = batch(2)[0]
    loss = EasyPositive(5, negatives=negatives, temperature=0.5)
    rows, keys = unit(z).numpy(), unit(z_key).numpy()
    expected = easy_positive_by_loops(rows, keys, y.tolist(), negatives == "semihard", 0.5)
    assert float(loss(z, y, z_key)) == pytest.approx(expected, rel=1e-10)


def test_an_easy_positive_and_its_negatives_by_hand() -> None:
    s = torch.tensor([[1.0, 0.2, 0.6, 0.5, 0.9, 0.6]])
    same = torch.tensor([[False, True, True, False, False, False]])
    other = torch.tensor([[False, False, False, True, True, True]])
    hard = miners.mine_easy_positive(s, same, other, semihard=False)
    assert [part.tolist() for part in hard] == [[0], [2], [4]]
    # .6 is not more than .6
    semihard = miners.mine_easy_positive(s, same, other, semihard=True)
    assert [part.tolist() for part in semihard] == [[0], [2], [5]]
    none = miners.mine_easy_positive(s, same, other & (s > 0.7), semihard=True)
    assert [part.tolist() for part in none] == [[], [], []]


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("mining", ["all", "hard", "semihard", "batch_hard"])
def test_snr_triplet_is_its_formula(mining: Any, crossed: bool) -> None:
    z, y = batch(7)
    z[3] = 0.7  # an anchor without signal is left out, but is a key of others
    z_key = batch(8)[0] if crossed else None
    keys = (z if z_key is None else z_key).numpy()
    values = []
    for a in range(9):
        if a == 3:
            continue
        signal = np.var(z.numpy()[a])
        d = [np.var(z.numpy()[a] - k) / signal for k in keys]
        positives = [p for p in range(9) if p != a and y[p] == y[a]]
        negatives = [n for n in range(9) if y[n] != y[a]]
        if mining == "batch_hard":
            values.append(max(d[p] for p in positives) - min(d[n] for n in negatives))
            continue
        gaps = [d[p] - d[n] for p in positives for n in negatives]
        values += [gap for gap in gaps if is_mined(gap, mining)]
    terms = [max(gap + 0.3, 0.0) for gap in values]
    penalty = 0.1 * float(np.mean([abs(row.sum()) for row in z.numpy()]))
    loss: Any = SNRTriplet(5, margin=0.3, mining=mining, zero_mean=0.1).double()
    expected = sum(terms) / max(sum(term > 0 for term in terms), 1) + penalty
    assert float(loss(z, y, z_key)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("per_class", [False, True])
def test_margin_loss_is_its_triplets(per_class: bool, crossed: bool) -> None:
    z, y = batch(4)
    z_key = batch(5)[0] if crossed else None
    rows, keys = unit(z), unit(z if z_key is None else z_key)
    loss: Any = MarginLoss(5, 4, beta=1.1, per_class=per_class, nu=0.3).double()
    beta = [1.0, 1.1, 1.2, 0.9] if per_class else [1.1] * 4
    with torch.no_grad():
        loss.beta.copy_(torch.tensor(beta if per_class else 1.1, dtype=torch.float64))
    total, above, boundaries = 0.0, 0, 0.0
    for a in range(9):
        for p in range(9):
            for n in range(9):
                if p != a and y[p] == y[a] and y[n] != y[a]:
                    b = beta[int(y[a])]
                    pull = max(float((rows[a] - keys[p]).norm()) - b + 0.2, 0.0)
                    push = max(b - float((rows[a] - keys[n]).norm()) + 0.2, 0.0)
                    total += pull + push
                    above += (pull > 0) + (push > 0)
                    boundaries += b
    expected = total / above + 0.3 * (boundaries / above if per_class else 1.1)
    assert float(loss(z, y, z_key).detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("banked", [False, True])
@pytest.mark.parametrize("negatives", ["unit", "raw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.7, 1.1, 1.57])
def test_angular_is_its_formula_and_gradient(alpha, dtype, negatives, banked):
    z, y = (entry.to(dtype) if entry.is_floating_point() else entry for entry in batch(11, size=12))
    z_key = (3.0 * batch(12, size=12)[0]).to(dtype) if banked else None

    def by_hand(x: Tensor) -> Tensor:
        other = x if z_key is None else z_key.double()
        a, p, n = unit(x), unit(other), unit(other) if negatives == "unit" else other
        square = math.tan(alpha) ** 2
        exponent = (
            4 * square * (a[:, None, None] + p[None, :, None]).mul(n).sum(3)
            - 2 * (1 + square) * (a @ p.T)[:, :, None]
        )
        exponent = exponent.masked_fill((y[:, None] == y)[:, None], -torch.inf)  # (a, p, n)
        together = exponent.logsumexp(2)[masks(y)[0]]
        return torch.logaddexp(together, torch.zeros_like(together)).mean()

    ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
    value, expected = Angular(5, alpha=alpha, negatives=negatives)(ours, y, z_key), by_hand(theirs)
    tolerance, of_gradient = (1e-10, 1e-9) if dtype == torch.float64 else (3e-5, 2e-3)
    assert value.item() == pytest.approx(expected.item(), rel=tolerance)
    grad = torch.autograd.grad(value, ours)[0].double()
    reference = torch.autograd.grad(expected, theirs)[0]
    assert float((grad - reference).norm() / reference.norm()) < of_gradient


def test_distance_weighted_draws_with_the_stated_probabilities() -> None:
    z, _ = batch(8, size=12, dim=4)
    y = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4])
    d = distance(unit(z), unit(z))
    same, other = masks(y)
    torch.manual_seed(0)
    count = torch.zeros(12, 12)
    for _ in range(4000):
        a, p, n = miners.mine_distance_weighted(d, same, other, 4)
        of_first = p == same[a].to(torch.uint8).argmax(1)  # each anchor's first positive
        count[a[of_first], n[of_first]] += 1
    assert len(a) == int(same[(other & (d < 1.4)).any(1)].sum())
    near = d.clamp(min=0.5)
    weight = 1 / (near**2 * (1 - near.square() / 4).clamp(min=1e-300).sqrt())
    weight = weight * (other & (near < 1.4))
    for row in a.unique():
        off = count[row] / count[row].sum() - weight[row] / weight[row].sum()
        assert float(off.abs().max()) < 4 * 0.5 / math.sqrt(4000)


def test_distance_weighted_repeats_with_the_default_generator_and_survives_none_near() -> None:
    z, y = batch(9)
    for loss in (Triplet(5, mining="distance_weighted"), MarginLoss(5, mining="distance_weighted")):
        torch.manual_seed(1)
        first = float(loss.double()(z, y).detach())
        torch.manual_seed(1)
        assert float(loss(z, y).detach()) == first
        opposite = torch.tensor([[1.0, 0], [1, 0], [-1, 0]], dtype=torch.float64)
        opposite = opposite.repeat(1, 3)[:, :5].requires_grad_()
        value = loss(opposite, torch.tensor([0, 0, 1]))
        assert value.item() == 0.0
        assert bool(torch.isfinite(torch.autograd.grad(value, opposite)[0]).all())


def test_hardest_pairs_need_both_kinds() -> None:
    z, _ = batch(10, size=4)
    same, other = masks(torch.tensor([0, 0, 1, 2]))
    a, p, n = miners.mine_batch_hard(distance(z, z), same, other)
    assert a.tolist() == [0, 1]
    assert p.tolist() == [1, 0]
    assert all(int(value) in (2, 3) for value in n)
