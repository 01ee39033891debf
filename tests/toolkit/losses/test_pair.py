"""What pair losses share (keys, empty sets, distances), and those against a threshold in loops."""

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from likeness.toolkit.losses.contrast import LiftedStructure, NPair, NTXent, SupCon, TupletMargin
from likeness.toolkit.losses.pair import AMC, Contrastive, LogRatio, PairBCE, SNRContrastive
from likeness.toolkit.losses.pairing import distance
from likeness.toolkit.losses.rank import FastAP, RankedList, SmoothAP
from likeness.toolkit.losses.simple import SimPLE
from likeness.toolkit.losses.triplet import Angular, EasyPositive, MarginLoss, SNRTriplet, Triplet
from likeness.toolkit.losses.weighted import CirclePair, MultiSimilarity
from likeness.toolkit.training.memory import Bank
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import GivenBank, learned

TARGETS = [[0.1, 0.5], [0.7, 0.2], [1.5, 0.1], [3.0, 1.0]]
MINING: Any = ("all", "hard", "semihard", "facenet", "batch_hard")
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "PairBCE": lambda: PairBCE(5),
    "PairBCE cosine": lambda: PairBCE(5, product="cosine", scale=4.0, learn_scale=True),
    "Contrastive": lambda: Contrastive(5),
    "Contrastive squared": lambda: Contrastive(5, squared=True, positive_margin=0.1),
    "AMC": lambda: AMC(5),
    "SNRContrastive": lambda: SNRContrastive(5),
    "SNRContrastive normalised": lambda: SNRContrastive(5, normalise=True, zero_mean=0.1),
    "LogRatio": lambda: LogRatio(5),
    "LogRatio targets": lambda: LogRatio(5, targets=TARGETS),
    **{f"Triplet {mining}": partial(Triplet, 5, mining=mining) for mining in MINING},
    "Triplet semihard smooth": lambda: Triplet(5, mining="semihard", smooth=True),
    "Triplet smooth squared": lambda: Triplet(5, smooth=True, squared=True),
    "SNRTriplet": lambda: SNRTriplet(5),
    "SNRTriplet batch_hard": lambda: SNRTriplet(5, mining="batch_hard", normalise=True),
    "EasyPositive": lambda: EasyPositive(5),
    "EasyPositive hard": lambda: EasyPositive(5, negatives="hard", temperature=1.0),
    "MarginLoss": lambda: MarginLoss(5, nu=0.1),
    "MarginLoss per class": lambda: MarginLoss(5, 4, per_class=True),
    "Angular": lambda: Angular(5),
    "TupletMargin": lambda: TupletMargin(5),
    "NPair": lambda: NPair(5),
    "NTXent": lambda: NTXent(5),
    "SupCon": lambda: SupCon(5),
    "LiftedStructure": lambda: LiftedStructure(5),
    "LiftedStructure generalised": lambda: LiftedStructure(5, generalised=True),
    "MultiSimilarity": lambda: MultiSimilarity(5),
    "MultiSimilarity direction": lambda: MultiSimilarity(5, direction=0.3),
    "CirclePair": lambda: CirclePair(5),
    "CirclePair batch": lambda: CirclePair(5, over="batch"),
    "RankedList": lambda: RankedList(5),
    "FastAP": lambda: FastAP(5),
    "SmoothAP": lambda: SmoothAP(5),
    "SimPLE": lambda: SimPLE(5, b=-1.0, learn_b_theta=True),
    "SimPLE joint": lambda: SimPLE(5, reduction="joint", margin=0.2),
}

batch = partial(drawn.batch, size=9)


@pytest.mark.parametrize("name", LOSSES)
class TestShared:
    def test_without_any_pair_the_value_is_a_connected_zero(self, name: str) -> None:
        z = batch(size=1)[0].requires_grad_()
        loss = LOSSES[name]().double()
        value = loss(z, torch.tensor([2]))
        # regularisers
        expected = {
            "MarginLoss": 0.1 * 1.2,
            "SNRContrastive normalised": 0.1 * float(z.detach().div(z.detach().norm()).sum().abs()),
        }.get(name, 0.0)
        assert value.item() == pytest.approx(expected, rel=1e-6)
        (grad,) = torch.autograd.grad(value, z)
        assert bool(torch.isfinite(grad).all())

    def test_the_gradient_is_the_value_s(self, name: str) -> None:
        if name.startswith("CirclePair"):
            pytest.skip("its weights take no gradient: test_contrast compares with them held fixed")
        z, y = batch(3)
        loss = LOSSES[name]().double()
        moved = tuple(learned(loss, z.requires_grad_()))
        assert torch.autograd.gradcheck(lambda z, *_: loss(z, y), moved)

    def test_keys_equal_to_the_batch_change_no_value(self, name: str) -> None:
        z, y = batch(4)
        loss = LOSSES[name]().double()
        assert loss(z, y, z.clone()).item() == pytest.approx(loss(z, y).item(), rel=1e-12)

    def test_a_bank_that_fills_ignores_its_empty_slots_and_its_order(self, name: str) -> None:
        loss = LOSSES[name]().double()
        bank = Bank(25, 5).double()
        loss.bank = bank  # type: ignore[assignment]
        for step in range(4):
            z, y = batch(step)
            z.requires_grad_()
            value = loss(z, y, z.detach() + 0.1)
            (grad,) = torch.autograd.grad(value, z)
            assert bool(torch.isfinite(grad).all())
            full = (bank.labels >= 0).nonzero()[:, 0].flip(0)  # the same keys in another order
            slots = (9 * step + torch.arange(9)) % 25
            own = torch.stack([(full == slot).nonzero()[0, 0] for slot in slots])
            other: Any = LOSSES[name]().double()
            other.bank = GivenBank(bank.keys[full], bank.labels[full], own)
            assert other(z, y, z.detach()).item() == pytest.approx(value.item(), rel=1e-9)

    def test_blocks_of_anchors_change_nothing(self, name: str, monkeypatch: Any) -> None:
        """The batch with itself and against a bank: value and gradients from blocks of 9, 2 and 1
        anchors.
        """
        keys, labels, own = batch(size=21)[0], torch.arange(21) % 5 - 1, torch.arange(9) + 6
        z, y = batch(8)
        labels[own] = y
        for banked in (False, True):
            values = []
            for block in (1 << 18, 11, 1):
                for room in ("pairing", "simple"):
                    monkeypatch.setattr(f"likeness.toolkit.losses.{room}.BLOCK", block)
                loss: Any = LOSSES[name]().double()
                loss.bank = GivenBank(keys, labels, own) if banked else None
                x = z.clone().requires_grad_()
                value = loss(x, y, z if banked else None)
                grads = torch.autograd.grad(value, learned(loss, x))
                values.append(torch.cat([part.detach().reshape(-1) for part in (value, *grads)]))
            torch.testing.assert_close(values[1], values[0], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(values[2], values[0], rtol=1e-11, atol=1e-12)

    def test_what_a_bank_leaves_for_the_backward_pass_is_small(self, name, monkeypatch):
        """In copies of the (B, Q) block, the keys themselves among them: losses that keep their
        Functions' gradients hold two, the others none.
        """
        monkeypatch.setattr("likeness.toolkit.losses.pairing.BLOCK", 64)
        loss = LOSSES[name]().double()
        # what is held of each positive pair shall not matter
        classes = 4 if name in ("LogRatio targets", "MarginLoss per class") else 40
        keys = torch.randn(400, 5, dtype=torch.float64)
        loss.bank = GivenBank(keys, torch.arange(400) % classes, torch.arange(48))
        z = batch(size=48)[0].requires_grad_()
        contents: dict[int, int] = {}

        def pack(saved: Tensor) -> Tensor:
            contents[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            value = loss(z, torch.arange(48) % classes, z.detach())
        keeps = "Triplet" in name or name == "SmoothAP"
        assert sum(contents.values()) / (8 * 48 * 400) < (2.5 if keeps else 0.5)
        assert bool(torch.isfinite(value))

    def test_single_precision_is_close(self, name: str) -> None:
        z, y = batch(6)
        loss = LOSSES[name]()
        value = float(loss.float()(z.float(), y).detach())
        assert value == pytest.approx(float(loss.double()(z, y).detach()), rel=1e-4)

    def test_a_negative_label_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"2 of 9 .*first: -1"):
            LOSSES[name]().double()(batch()[0], torch.tensor([0, -1, 1, 1, -2, 0, 0, 0, 0]))


def test_distance_is_exact_for_close_rows_and_its_gradient_finite() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(6, 7, generator=generator, dtype=torch.float64)
    noise = 1e-7 * torch.randn(2, 7, generator=generator, dtype=torch.float64)
    b = torch.cat([a[:3], a[3:5] + noise, 100 * a[5:]])
    expected = (a[:, None] - b[None]).square().sum(2)
    torch.testing.assert_close(distance(a, b), expected.sqrt(), rtol=1e-12, atol=0)
    torch.testing.assert_close(distance(a, b, squared=True), expected, rtol=1e-12, atol=0)
    weight = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    for squared in (False, True):
        both = a.clone().requires_grad_(), b.clone().requires_grad_()
        d = torch.cdist(*both, compute_mode="donot_use_mm_for_euclid_dist")
        sums = distance(*both, squared=squared), d.square() if squared else d
        ours, theirs = (torch.autograd.grad((of * weight).sum(), both) for of in sums)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def unit(row: Any) -> Any:
    return row / np.linalg.norm(row)


def hinge(d: Any, same: bool, low: float, high: float) -> float:
    return max(float(d) - low, 0.0) if same else max(high - float(d), 0.0)


def logistic(score: Any, same: bool) -> float:
    return math.log1p(math.exp(-score if same else score))


# The loss, and its term of a pair of rows.
FORMULAS: dict[str, tuple[nn.Module, Callable[[Any, Any, bool], float]]] = {
    "Contrastive": (
        Contrastive(5, positive_margin=0.3, negative_margin=1.1),
        lambda a, k, same: hinge(np.linalg.norm(unit(a) - unit(k)), same, 0.3, 1.1),
    ),
    "Contrastive squared": (
        Contrastive(5, positive_margin=0.3, negative_margin=1.1, squared=True),
        lambda a, k, same: 0.5 * hinge(np.linalg.norm(unit(a) - unit(k)), same, 0.3, 1.1) ** 2,
    ),
    "SNRContrastive": (
        SNRContrastive(5, positive_margin=0.1, negative_margin=3.0),
        lambda a, k, same: hinge(np.var(a - k) / np.var(a), same, 0.1, 3.0),
    ),
    "AMC": (
        AMC(5, margin=1.4),
        lambda a, k, same: hinge(math.acos(unit(a) @ unit(k)), same, 0.0, 1.4) ** 2,
    ),
    "PairBCE": (
        PairBCE(5, scale=0.7, bias=0.25),
        lambda a, k, same: logistic(0.7 * (a @ k) + 0.25, same),
    ),
    "PairBCE cosine": (
        PairBCE(5, product="cosine", scale=4.0, bias=0.25, learn_scale=True),
        lambda a, k, same: logistic(4.0 * (unit(a) @ unit(k)) + 0.25, same),
    ),
    "SimPLE cosine": (
        SimPLE(5, product="cosine", scale=4.0, b=0.25, r=1, alpha=0.5, reduction="joint", weight=2),
        lambda a, k, same: logistic(4.0 * (unit(a) @ unit(k)) + 0.25, same),
    ),
}


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_losses_against_a_threshold_are_their_formulas(name: str, crossed: bool) -> None:
    loss, term = FORMULAS[name]
    z, y = batch(7)
    z_key = batch(8)[0] if crossed else None
    keys = (z if z_key is None else z_key).numpy()
    values: dict[bool, list[float]] = {True: [], False: []}
    for i, j in np.argwhere(~np.eye(9, dtype=bool)):
        same = bool(y[i] == y[j])
        values[same].append(term(z.numpy()[i], keys[j], same))
    expected = np.mean(values[True] + values[False])
    if "Contrastive" in name:  # those above 0 of positive and of negative pairs have own means
        expected = sum(np.mean([value for value in some if value]) for some in values.values())
    assert float(loss(z, y, z_key).detach()) == pytest.approx(expected, rel=1e-9)


def test_the_price_of_a_mean_and_the_names_of_scores() -> None:
    z, y = batch(7)
    price = SNRContrastive(5, zero_mean=0.2)(z, y) - SNRContrastive(5)(z, y)
    assert float(price) == pytest.approx(0.2 * float(z.sum(1).abs().mean()), rel=1e-9)
    assert PairBCE(5, product="cosine").similarity == "cosine"
    assert PairBCE(5).similarity == "dot"


@pytest.mark.parametrize("reduction", ["separate", "joint"])
def test_simple_without_gathering_its_positives_is_the_same(reduction, monkeypatch):
    """A GPU computes positives in full blocks, since counting them would make it wait."""
    z, y = batch(12)
    loss = SimPLE(5, reduction=reduction, margin=0.2, learn_b_theta=True).double()
    taken = []
    for devices in ({"cpu"}, set()):
        monkeypatch.setattr("likeness.toolkit.losses.simple.GATHERING", devices)
        given = z.clone().requires_grad_()
        value = loss(given, y)
        slopes = torch.autograd.grad(value, [given, *loss.parameters()])
        taken.append([value.detach(), *slopes])
    for gathered, whole in zip(*taken, strict=True):
        torch.testing.assert_close(whole, gathered, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("targets", [None, [0.1, 0.5, 2.0, 2.5]])
def test_log_ratio_is_its_triplets(targets: Any) -> None:
    z, y = batch(9)
    value = float(LogRatio(5, targets=targets)(z, y))
    values = []

    def apart(i: int, j: int) -> float:
        first, second = int(y[i]), int(y[j])
        return first != second if targets is None else (targets[first] - targets[second]) ** 2

    for a in range(9):
        others = [i for i in range(9) if i != a]
        d = {i: float((z[a] - z[i]).square().sum()) + 1e-6 for i in others}
        g = {i: apart(a, i) + 1e-6 for i in others}
        pairs = combinations(others, 2)
        terms = [(math.log(d[i] / d[j]) - math.log(g[i] / g[j])) ** 2 for i, j in pairs]
        values.append(np.mean(terms))
    assert value == pytest.approx(np.mean(values), rel=1e-6)  # the table of targets is float32
