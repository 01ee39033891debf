"""Losses count the pairs and triplets that a miner of another library chose."""

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from likeness import losses
from likeness.toolkit.losses.pair import Contrastive
from likeness.toolkit.losses.triplet import Triplet
from likeness.toolkit.training.memory import Bank
from likeness.toolkit.vmf.rows import unit
from tests.toolkit.losses.drawn import LOSSES, batch

TAKES = [make for make in LOSSES if "indices_tuple" in inspect.signature(make.forward).parameters]
# These choose less than all pairs by themselves.
OPEN = {"MultiSimilarity": {"epsilon": None}}


def all_pairs(y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every ordered pair of different items."""
    same = y[:, None] == y[None]
    positive, negative = (same & ~torch.eye(len(y), dtype=torch.bool)).nonzero(), (~same).nonzero()
    return positive[:, 0], positive[:, 1], negative[:, 0], negative[:, 1]


def drawn_triplets(y: Tensor, seed: int = 0) -> list[tuple[int, int, int]]:
    """A third of all triplets, at random."""
    every = itertools.product(range(len(y)), repeat=3)
    triplets = [(a, p, n) for a, p, n in every if a != p and y[a] == y[p] and y[a] != y[n]]
    chosen = np.random.default_rng(seed).random(len(triplets)) < 0.3
    return list(itertools.compress(triplets, chosen))


@pytest.mark.parametrize("make", LOSSES, ids=lambda make: make.__name__)
def test_every_loss_takes_indices_or_refuses_them(make: Any) -> None:
    z, y = batch()
    loss = make(5, 4).double()
    if make not in TAKES:
        for given in ({"indices_tuple": all_pairs(y)}, {"z_key": all_pairs(y)}):
            with pytest.raises(ValueError, match="takes no indices"):
                loss(z, y, **given)
        return
    loss = make(5, 4, **OPEN.get(make.__name__, {})).double()
    assert loss(z, y, indices_tuple=None) == loss(z, y)
    assert loss(z, y, all_pairs(y)).item() == pytest.approx(loss(z, y).item(), rel=1e-12)


@pytest.mark.parametrize("make", TAKES, ids=lambda make: make.__name__)
def test_only_what_was_chosen_moves(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item outside all triplets gets no gradient, and blocks of anchors change nothing."""
    z, y = batch()
    a, p, n = torch.tensor([each for each in drawn_triplets(y) if 2 not in each]).T
    z.requires_grad_()
    loss = make(5, 4).double()
    value = loss(z, y, (a, p, n))
    (gradient,) = torch.autograd.grad(value, z)
    assert not gradient[2].any()
    assert gradient.any()
    monkeypatch.setattr("likeness.toolkit.losses.pairing.BLOCK", 2)
    assert loss(z, y, (a, p, n)).item() == pytest.approx(value.item(), rel=1e-12)


def test_triplets_are_the_miners_and_no_others() -> None:
    z, y = batch()
    x = unit(z)
    triplets = drawn_triplets(y)
    terms = [float((x[a] - x[p]).norm() - (x[a] - x[n]).norm()) + 0.2 for a, p, n in triplets]
    above = [term for term in terms if term > 0]
    a, p, n = torch.tensor(triplets).T
    for mining in ("all", "semihard", "batch_hard"):  # the miner's choice replaces the loss's
        loss: Any = Triplet(5, mining=mining)  # type: ignore[arg-type]
        assert loss(z, y, (a, p, n)).item() == pytest.approx(sum(above) / len(above))


def test_pairs_are_the_miners_and_count_once() -> None:
    z, y = batch()
    x = unit(z)
    first, positive, second, negative = (part[::2] for part in all_pairs(y))
    pull = [float((x[a] - x[p]).norm()) for a, p in zip(first, positive, strict=True)]
    push = [1 - float((x[a] - x[n]).norm()) for a, n in zip(second, negative, strict=True)]
    above = [term for term in push if term > 0]
    expected = sum(pull) / len(pull) + (sum(above) / len(above) if above else 0.0)
    loss: Any = Contrastive(5)
    once = first, positive, second, negative
    twice = tuple(torch.cat([part, part]) for part in once)
    assert loss(z, y, once).item() == pytest.approx(expected)
    assert loss(z, y, twice).item() == pytest.approx(expected)


def test_indices_that_do_not_fit_get_a_sentence() -> None:
    z, y = batch()
    rows = torch.tensor([0, 1])
    loss: Any = Triplet(5)
    listed = rows.tolist()
    for wrong in ((rows, rows), [rows, rows], (rows, rows.float(), rows), (listed, listed, listed)):
        with pytest.raises(ValueError, match="indices_tuple must be"):
            loss(z, y, wrong)
    with pytest.raises(ValueError, match=r"outside 0\.\.7"):
        loss(z, y, (rows, rows, rows + 7))
    loss.bank = Bank(16, 5)
    with pytest.raises(ValueError, match="leave the bank out"):
        loss(z, y, (rows, rows, rows))


@pytest.mark.parametrize("miner", ["pairs", "triplets"])
def test_values_are_those_of_pytorch_metric_learning(miner: str) -> None:
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(24, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 5, (24,), generator=generator)
    mine = miners.PairMarginMiner() if miner == "pairs" else miners.BatchHardMiner()
    mined = mine(z, y)
    assert len(mined) == (4 if miner == "pairs" else 3)
    theirs: dict[Any, Any] = {
        losses.Triplet(5, margin=0.1): pml.TripletMarginLoss(margin=0.1),
        losses.MarginLoss(5): pml.MarginLoss(),
        losses.Contrastive(5): pml.ContrastiveLoss(),
        losses.MultiSimilarity(5): pml.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        losses.CirclePair(5): pml.CircleLoss(),
        losses.NTXent(5): pml.NTXentLoss(temperature=0.07),
        losses.SupCon(5): pml.SupConLoss(temperature=0.1),
        losses.TupletMargin(5): pml.TupletMarginLoss(),
    }
    for own, other in theirs.items():
        assert own.double()(z, y, mined).item() == pytest.approx(other(z, y, mined).item()), own
