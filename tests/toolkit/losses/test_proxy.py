"""Proxy losses of metric learning against their formulas written out one pair at a time."""

import math
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch

from likeness.losses import HUG, CenterLoss, ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus, SoftTriple
from likeness.toolkit.training.recipe import Optim
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import gradcheck, rows

batch = partial(drawn.batch, size=11, classes=3)  # unequal classes; the last one of 4 is absent


def test_center_loss_is_softmax_and_the_distance_to_centres() -> None:
    z, y = batch()
    loss = CenterLoss(5, 4, weight=0.3, centre_grad="loss").double()
    with torch.no_grad():
        loss.centres.normal_(generator=torch.Generator().manual_seed(1))
    total = 0.0
    for x, label in zip(z.numpy(), y.tolist(), strict=True):
        logits = [float(x @ w) for w in loss.proxies.detach().numpy()]
        total += math.log(sum(math.exp(logit) for logit in logits)) - logits[label]
        gap = x - loss.centres.detach().numpy()[label]
        total += 0.15 * float(gap @ gap)
    assert loss(z, y).item() == pytest.approx(total / len(y), rel=1e-12)
    assert gradcheck(loss, *batch(), "proxies", "centres")


def test_centres_move_as_in_the_paper() -> None:
    z, y = batch()
    loss = CenterLoss(5, 4, weight=0.3).double()
    with torch.no_grad():
        loss.centres.normal_(generator=torch.Generator().manual_seed(1))
    other = CenterLoss(5, 4, weight=0.3, centre_grad="loss").double()
    other.load_state_dict(loss.state_dict())
    z.requires_grad_()
    value, same = loss(z, y), other(z, y)
    assert value.item() == same.item()
    torch.testing.assert_close(
        torch.autograd.grad(value, z, retain_graph=True)[0], torch.autograd.grad(same, z)[0]
    )
    value.backward()
    for j in range(4):
        mine = z.detach()[y == j]
        expected = (loss.centres[j] - mine).sum(dim=0).detach() / (1 + len(mine))
        torch.testing.assert_close(loss.centres.grad[j], expected)
    groups = loss.param_groups(Optim(weight_decay=0.1))
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    alone = CenterLoss(5, 4, classify=False).double()
    alone.centres.data = loss.centres.data
    nearest = torch.cdist(z, loss.centres).argmin(dim=1)
    assert alone.logits(z).argmax(dim=1).tolist() == nearest.tolist()


def test_proxy_nca_and_its_successor_by_distances() -> None:
    z, y = batch()
    nca, plus = ProxyNCA(5, 4, scale=1.5).double(), ProxyNCAPlusPlus(5, 4, temperature=0.4).double()
    totals = [0.0, 0.0]
    for x, label in zip(rows(z), y.tolist(), strict=True):
        d = [sum((a - b) ** 2 for a, b in zip(x, p, strict=True)) for p in rows(nca.proxies)]
        others = [math.exp(-2.25 * value) for j, value in enumerate(d) if j != label]
        totals[0] += 2.25 * d[label] + math.log(sum(others))
        d = [sum((a - b) ** 2 for a, b in zip(x, p, strict=True)) for p in rows(plus.proxies)]
        totals[1] += d[label] / 0.4 + math.log(sum(math.exp(-value / 0.4) for value in d))
    assert nca(z, y).item() == pytest.approx(totals[0] / len(y), rel=1e-12)
    assert plus(z, y).item() == pytest.approx(totals[1] / len(y), rel=1e-12)
    assert gradcheck(nca, *batch(), "proxies")


def test_proxy_anchor_by_loops() -> None:
    z, y = batch()
    loss = ProxyAnchor(5, 4, margin=0.2, scale=3.0).double()
    positive, negative = [], []
    for j, p in enumerate(rows(loss.proxies)):
        cosines = [(float(x @ p), label) for x, label in zip(rows(z), y.tolist(), strict=True)]
        own = [math.exp(-3 * (c - 0.2)) for c, label in cosines if label == j]
        other = [math.exp(3 * (c + 0.2)) for c, label in cosines if label != j]
        positive += [math.log1p(sum(own))] if own else []
        negative.append(math.log1p(sum(other)))
    assert loss(z, y).item() == pytest.approx(np.mean(positive) + np.mean(negative), rel=1e-12)
    assert gradcheck(loss, *batch(), "proxies")
    # every sample of one class: its proxy has no negatives
    first = torch.zeros(11, dtype=torch.int64)
    z.requires_grad_()
    gradient = torch.autograd.grad(loss(z, first), [z, loss.proxies])
    assert all(bool(torch.isfinite(part).all()) for part in gradient)


def test_soft_triple_by_loops() -> None:
    z, y = batch()
    loss = SoftTriple(5, 4, num_centres=3, scale=4.0, gamma=0.3, margin=0.1, tau=0.5).double()
    every = [rows(part) for part in [loss.proxies, *loss.centres]]  # [k][j]
    total = 0.0
    for x, label in zip(rows(z), y.tolist(), strict=True):
        logits = []
        for j in range(4):
            c = [float(x @ part[j]) for part in every]
            weights = [math.exp(value / 0.3) for value in c]
            mean = sum(w * value for w, value in zip(weights, c, strict=True)) / sum(weights)
            logits.append(4 * (mean - (0.1 if j == label else 0.0)))
        total += math.log(sum(math.exp(logit) for logit in logits)) - logits[label]
    products = [every[s][j] @ every[t][j] for j in range(4) for s in range(3) for t in range(s)]
    spread = sum(math.sqrt(2 + 1e-5 - 2 * float(product)) for product in products)
    expected = total / len(y) + 0.5 * spread / (4 * 3 * 2)
    assert loss(z, y).item() == pytest.approx(expected, rel=1e-12)
    assert gradcheck(loss, *batch(), "proxies", "centres")


def test_hug_by_loops_and_on_the_simplex() -> None:
    z, y = batch()
    loss = HUG(5, 4, s=1.5, alpha=0.7, beta=0.4).double()
    p = rows(loss.proxies)
    apart = [np.linalg.norm(a - b) for a, b in permutations(p, 2)]
    energy = np.mean([float(length) ** -1.5 for length in apart])
    gap = np.mean([np.linalg.norm(x - p[j]) for x, j in zip(rows(z), y.tolist(), strict=True)])
    assert loss(z, y).item() == pytest.approx(0.7 * energy + 0.4 * gap, rel=1e-12)
    assert gradcheck(loss, *batch(), "proxies")
    # four points of the regular simplex are sqrt(8 / 3) apart, the least energy of four points
    simplex = HUG(4, 4).double()
    with torch.no_grad():
        simplex.proxies.copy_(torch.eye(4, dtype=torch.float64) - 0.25)
    assert float(simplex.energy()) == pytest.approx(3 / 8, rel=1e-9)
    simplex.energy().backward()
    assert float(simplex.proxies.grad.abs().max()) < 1e-9  # type: ignore[union-attr]
    assert float(HUG(4, 1).energy()) == 0.0
