"""Classification losses against their formulas written out sample by sample, their states and
schedules, and the properties that all share.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from likeness.eval.metrics.similarity import pairs
from likeness.toolkit.losses.adaptive import AdaFace, CircleSoftmax, CurricularFace, MagFace
from likeness.toolkit.losses.broadface import BroadFace
from likeness.toolkit.losses.contract import has_proxies, param_groups
from likeness.toolkit.losses.hyperbolic import Hyperbolic, exp_map, project
from likeness.toolkit.losses.margin import ArcFace, CosFace, SubCenterArcFace, angle
from likeness.toolkit.losses.memvir import MemVir
from likeness.toolkit.losses.softmax import Cosine, NormFace, NormSoft, Softmax, centre_and_scale
from likeness.toolkit.losses.sphereface import LSoftmax, SphereFace, SphereFace2, SphereFaceR, psi
from likeness.toolkit.training.recipe import Optim
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import LOSSES, cosine, learned

# those of vmf.py and probabilistic.py draw at random
DRAWING = ("VMF", "SCF", "ProbabilisticNCA", "Joint")
PROXY = [make for make in LOSSES if has_proxies(make) and make.__name__ not in DRAWING]
# (cosines, label, |z|, |w_j|) -> logits
Row = Callable[[list[float], int, float, list[float]], list[float]]
# (a cosine, whether it is that of the own class, |z|, |w_j|) -> its logit
Term = Callable[[float, bool, float, float], float]


batch = partial(drawn.batch, size=12)


def cross_entropy(logits: list[float], label: int) -> float:
    largest = max(logits)
    return largest + math.log(sum(math.exp(logit - largest) for logit in logits)) - logits[label]


def by_loops(loss: Any, z: Tensor, y: Tensor, row: Row) -> float:
    """Mean cross-entropy of row(...) for every sample."""
    proxies = list(loss.proxies.detach().numpy())
    lengths = [float(np.linalg.norm(proxy)) for proxy in proxies]
    total = 0.0
    for x, label in zip(z.detach().numpy(), y.tolist(), strict=True):
        cosines = [cosine(x, proxy) for proxy in proxies]
        total += cross_entropy(row(cosines, label, float(np.linalg.norm(x)), lengths), label)
    return total / len(y)


def fall(cosine: float, m: float) -> float:
    """psi by its definition: the sign and the step of every m-th part of the half turn."""
    theta, last = math.acos(cosine), math.ceil(m) - 1
    k = next(k for k in range(last + 1) if theta <= (k + 1) * math.pi / m or k == last)
    return (-1) ** k * math.cos(m * theta) - 2 * k


def each(term: Term) -> Row:
    """A row of logits, one class at a time."""
    return lambda cosines, label, length, lengths: [
        term(c, j == label, length, lengths[j]) for j, c in enumerate(cosines)
    ]


def changed(change: Callable[[float], float], scale: float = 1.0) -> Term:
    """The target's cosine changed, all times scale."""
    return lambda c, own, *_: scale * (change(c) if own else c)


def circle(c: float, own: bool, *_: float) -> float:
    m = 0.3
    return 20 * (max(1 + m - c, 0) * (c - 1 + m) if own else max(c + m, 0) * (c - m))


def monotone(cosine: float, m: float) -> float:
    """The target's cosine of ArcFace with the classic rule beyond pi."""
    theta = math.acos(cosine)
    return math.cos(theta + m) if theta + m < math.pi else cosine - m * math.sin(m)


def mag(c: float, own: bool, length: float, _: float) -> float:
    margin = 0.45 + 0.35 * (min(max(length, 10.0), 110.0) - 10) / 100
    return 8 * (monotone(c, margin) if own else c)


STAR: dict[str, Any] = {"product": "generalised", "margin": 0.1, "b_theta": 0.2}
FORMULAS: dict[str, tuple[Any, Term]] = {
    "Softmax": (Softmax(5, 4), lambda c, own, length, w: c * length * w),
    "CE*": (
        Softmax(5, 4, product="generalised", b_theta=0.4),
        lambda c, own, length, w: length * w * (c - 0.4),
    ),
    "Cosine": (Cosine(5, 4, tau=1.5), changed(lambda c: c, math.exp(1.5))),
    "NormFace": (NormFace(5, 4, scale=7.0), changed(lambda c: c, 7.0)),
    "NormSoft, no layer norm": (
        NormSoft(5, 4, temperature=0.25, layer_norm=False),
        changed(lambda c: c, 4.0),
    ),
    "CosFace": (CosFace(5, 4, margin=0.25, scale=9.0), changed(lambda c: c - 0.25, 9.0)),
    "CosFace*": (
        CosFace(5, 4, **STAR),
        lambda c, own, length, w: length * w * (c - 0.2 - 0.1 * own),
    ),
    "CosFace*, as printed": (
        CosFace(5, 4, **STAR, lowers="others"),
        lambda c, own, length, w: length * w * (c - 0.2 - 0.1 * (not own)),
    ),
    "CosFace, lowers others": (
        CosFace(5, 4, margin=0.25, scale=9.0, lowers="others"),
        lambda c, own, *_: 9.0 * (c - 0.25 * (not own)),
    ),
    "CosFace, inner product": (
        CosFace(5, 4, product="inner product", margin=0.1),
        lambda c, own, length, w: length * w * (c - 0.1 * own),
    ),
    "LSoftmax": (
        LSoftmax(5, 4, margin=3),
        lambda c, own, length, w: length * w * (fall(c, 3) if own else c),
    ),
    "SphereFace": (
        SphereFace(5, 4, lam_min=2.0),
        lambda c, own, length, _: length * ((2 * c + fall(c, 4)) / 3 if own else c),
    ),
    "SphereFaceR v1": (
        SphereFaceR(5, 4, margin=2.6, scale=6.0),
        changed(lambda c: fall(c, 2.6), 6.0),
    ),
    "SphereFaceR v2": (
        SphereFaceR(5, 4, version=2, margin=1.4, scale=6.0),
        lambda c, own, *_: 6 * (c if own else math.cos(math.acos(c) / 1.4)),
    ),
    "CircleSoftmax": (CircleSoftmax(5, 4, margin=0.3, scale=20.0), circle),
    "MagFace": (MagFace(5, 4, scale=8.0, weight=0.0), mag),
}


def fresh(name: str) -> Any:
    """A copy in float64 whose proxies do not depend on when this file was imported."""
    loss = copy.deepcopy(FORMULAS[name][0]).double()
    loss.proxies.data.normal_()
    return loss


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_are_their_formulas_by_loops(name: str) -> None:
    loss, row = fresh(name), each(FORMULAS[name][1])
    if name == "Cosine":
        loss.tau.data.fill_(1.5)
    z, y = batch(length=12.0 if name == "MagFace" else 1.0)
    assert loss(z, y).item() == pytest.approx(by_loops(loss, z, y, row), rel=1e-9)


SLOPES = ("CE*", "CosFace*", "CosFace, inner product", "SphereFaceR v2", "LSoftmax", "SphereFace")


@pytest.mark.parametrize("name", [*SLOPES, "MagFace"])
def test_gradients_are_the_loss_s(name: str) -> None:
    loss = fresh(name)
    loss.grad = "exact"
    z, y = batch(length=12.0 if name == "MagFace" else 1.0)
    assert drawn.gradcheck(loss, z, y, "proxies")


def test_normsoft_is_layer_norm_then_the_cosine() -> None:
    z, y = batch()
    loss = NormSoft(5, 4, temperature=0.3).double()
    functional = torch.nn.functional

    def plain(x: Tensor, proxies: Tensor) -> Tensor:
        rows = functional.normalize(functional.layer_norm(x, (5,)))
        return functional.cross_entropy(rows @ functional.normalize(proxies).T / 0.3, y)

    proxies = loss.proxies.detach().clone().requires_grad_()
    z.requires_grad_()
    ours, theirs = loss(z, y), plain(z, proxies)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    mine = torch.autograd.grad(ours, (z, loss.proxies))
    other = torch.autograd.grad(theirs, (z, proxies))
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    shifted = z.detach() + torch.arange(len(y), dtype=torch.float64)[:, None]
    assert loss(shifted, y).item() == pytest.approx(ours.item(), rel=1e-9)


def test_a_row_of_equal_coordinates_has_no_direction() -> None:
    """The mean of equal numbers may be off by their last bit, which is no direction."""
    for number in (0.1, 1 / 3, 1e-20, 7e20):
        for dim in (3, 7, 192):
            z = torch.full((2, dim), number, requires_grad=True)
            rows = centre_and_scale(z)
            (rows * torch.randn(2, dim)).sum().backward()
            assert z.grad is not None
            assert float(rows.detach().abs().max()) == 0 == float(z.grad.abs().max())


def test_magface_s_price_of_the_norm_and_its_gradient() -> None:
    z, y = batch(length=12.0)
    loss, free = MagFace(5, 4).double(), MagFace(5, 4, weight=0.0).double()
    free.load_state_dict(loss.state_dict())
    a = [min(max(float(np.linalg.norm(x)), 10.0), 110.0) for x in z.numpy()]
    price = 35 * np.mean([value / 110**2 + 1 / value for value in a])
    assert float(loss(z, y) - free(z, y)) == pytest.approx(price, rel=1e-9)


def moebius(u: Any, v: Any, c: float) -> Any:
    uv, u2, v2 = float(u @ v), float(u @ u), float(v @ v)
    return ((1 + 2 * c * uv + c * v2) * u + (1 - c * u2) * v) / (1 + 2 * c * uv + c * c * u2 * v2)


@pytest.mark.parametrize("c", [1e-5, 0.1, 1.0])
def test_hyperbolic_is_eq_2_by_moebius_addition(c: float) -> None:
    z, y = batch()
    loss = Hyperbolic(5, 4, c=c).double()
    root = math.sqrt(c)

    def ball(x: Any) -> Any:
        length = float(np.linalg.norm(x))
        point = math.tanh(root * length) * x / (root * length)
        return point * min(1.0, (1 - 1e-3) / root / float(np.linalg.norm(point)))

    tangents, normals = loss.proxies.detach().numpy(), loss.normals.detach().numpy()
    total = 0.0
    for x, label in zip(z.numpy(), y.tolist(), strict=True):
        logits = []
        for tangent, normal in zip(tangents, normals, strict=True):
            p = ball(tangent)
            a = (1 - c * float(p @ p)) * normal
            q = moebius(-p, ball(x), c)
            size = float(np.linalg.norm(a))
            inner = 2 * root * float(q @ a) / ((1 - c * float(q @ q)) * size)
            logits.append(2 / (1 - c * float(p @ p)) * size / root * math.asinh(inner))
        total += cross_entropy(logits, label)
    assert loss(z, y).item() == pytest.approx(total / len(y), rel=1e-8)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (z.requires_grad_(),))


def test_hyperbolic_tends_to_a_linear_classifier_and_its_distance_to_twice_the_euclidean() -> None:
    """The distance is the one by which its similarity scores the tangent vectors: between the
    points that exp_map and project make of them.
    """
    z, _ = batch()
    loss = Hyperbolic(5, 4, c=1e-8).double()
    linear = 4 * ((z[:, None] - loss.proxies) * loss.normals).sum(dim=2)
    torch.testing.assert_close(loss.logits(z), linear, rtol=1e-6, atol=1e-7)
    i, j = np.indices((12, 12)).reshape(2, -1)
    apart = -pairs(z.numpy(), z.numpy(), i, j, loss.similarity).reshape(12, 12)
    np.testing.assert_allclose(apart, 2 * torch.cdist(z, z).numpy(), rtol=1e-6, atol=1e-6)
    x = project(exp_map(0.3 * z, 0.7), 0.7)
    sums = [[np.linalg.norm(moebius(-a, b, 0.7)) for b in x.numpy()] for a in x.numpy()]
    expected = 2 / math.sqrt(0.7) * np.arctanh(math.sqrt(0.7) * np.array(sums))
    tangents, similarity = 0.3 * z.numpy(), Hyperbolic(5, 4, c=0.7).similarity
    apart = -pairs(tangents, tangents, i, j, similarity).reshape(12, 12)
    # of equal rows it is the root of what cancels
    np.testing.assert_allclose(apart, expected, rtol=1e-9, atol=1e-6)
    plain, scaled = (Hyperbolic(5, 4, c=1e-5, riemannian=by).double() for by in (False, True))
    scaled.load_state_dict(plain.state_dict())
    x, y = batch()
    x.requires_grad_()
    gradients = [torch.autograd.grad(loss_of(x, y), x)[0] for loss_of in (plain, scaled)]
    torch.testing.assert_close(gradients[1], gradients[0] / 4, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 1.7, 2.5])
def test_psi_falls_without_a_break(m: float) -> None:
    theta = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    values = psi(theta.cos(), m)
    assert bool((values.diff() <= 1e-12).all())
    assert float(values.diff().abs().max()) < 2 * m * math.pi / 2000
    assert float(values[0]) == pytest.approx(1.0)
    expected = [fall(max(-1.0, min(1.0, math.cos(value))), m) for value in theta.tolist()]
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-7)
    torch.testing.assert_close(angle(theta.cos()), theta, atol=1e-7, rtol=0)


@pytest.mark.parametrize("step", [0, 10, 100, 100_000])
def test_sphereface_lambda_falls_with_the_steps(step: int) -> None:
    z, y = batch()
    loss = SphereFace(5, 4).double()
    assert loss.lam == 5.0
    loss.at_step(step)
    lam = max(5.0, 1000 / (1 + 0.12 * (step + 1)))

    def term(c: float, own: bool, length: float, _: float) -> float:
        return length * ((lam * c + fall(c, 4)) / (1 + lam) if own else c)

    assert loss(z, y).item() == pytest.approx(by_loops(loss, z, y, each(term)), rel=1e-9)


@pytest.mark.parametrize("kind", ["C", "A"])
def test_sphereface2_is_its_formula_and_its_bias_the_minimum(kind: Any) -> None:
    z, y = batch()
    settings = {"scale": 6.0, "margin": 0.3, "t": 2.0, "alpha": 0.6, "weight": 3.0}
    loss = SphereFace2(5, 4, kind=kind, **settings).double()
    b = float(loss.bias)

    def g(c: float) -> float:
        return 2 * ((c + 1) / 2) ** 2.0 - 1

    total = 0.0
    for x, label in zip(z.numpy(), y.tolist(), strict=True):
        for j, proxy in enumerate(loss.proxies.detach().numpy()):
            theta = math.acos(cosine(x, proxy))
            if kind == "C":
                positive, negative = g(math.cos(theta)) - 0.3, g(math.cos(theta)) + 0.3
            else:
                positive = g(math.cos(min(theta + 0.3, math.pi)))
                negative = g(math.cos(max(theta - 0.3, 0.0)))
            if j == label:
                total += 0.6 * math.log1p(math.exp(-(6 * positive + b)))
            else:
                total += 0.4 * math.log1p(math.exp(6 * negative + b))
    assert loss(z, y).item() == pytest.approx(3 * total / len(y), rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (z.requires_grad_(),))

    for classes in (2, 3, 5, 1000):  # at cosine 0 everywhere the derivative with respect to b is 0
        loss = SphereFace2(classes + 1, classes, kind=kind).double()
        with torch.no_grad():
            loss.proxies.copy_(torch.eye(classes, classes + 1, dtype=torch.float64))
            loss.bias.fill_(loss.best_bias())
        at_zero = torch.zeros(1, classes + 1, dtype=torch.float64)
        at_zero[0, -1] = 1.0
        loss(at_zero, torch.zeros(1, dtype=torch.int64)).backward()
        bent = loss._bent(at_zero[:, 0], at_zero[:, 0])[0]
        scale = loss.alpha * float(torch.sigmoid(-bent - loss.bias))
        assert abs(float(loss.bias.grad)) < 1e-6 * scale


def test_curricularface_by_loops_and_its_running_mean() -> None:
    loss = CurricularFace(5, 4, margin=0.4, scale=5.0).double()
    ema = 0.0
    for step in range(1, 4):
        z, y = batch(seed=step)
        own = loss.proxies.detach().numpy()[y]
        targets = [cosine(x, proxy) for x, proxy in zip(z.numpy(), own, strict=True)]
        ema = 0.99 * ema + 0.01 * float(np.mean(targets))
        t = ema / (1 - 0.99**step)

        def row(cosines: list[float], label: int, *_: Any, t: float = t) -> list[float]:
            theta, target = math.acos(cosines[label]), monotone(cosines[label], 0.4)
            return [
                5 * (target if j == label else c * (t + c) if c > math.cos(theta + 0.4) else c)
                for j, c in enumerate(cosines)
            ]

        assert loss(z, y).item() == pytest.approx(by_loops(loss, z, y, row), rel=1e-9)
        assert float(loss.t) == pytest.approx(t, rel=1e-9)


def test_adaface_by_loops_and_its_running_norms() -> None:
    loss = AdaFace(5, 4, scale=6.0).double()
    mean = std = 0.0
    for step in range(1, 4):
        z, y = batch(seed=step, length=3.0)
        lengths = [min(max(float(np.linalg.norm(x)), 1e-3), 100.0) for x in z.numpy()]
        mean = 0.99 * mean + 0.01 * np.mean(lengths)
        std = 0.99 * std + 0.01 * np.std(lengths, ddof=1)
        now = mean / (1 - 0.99**step), std / (1 - 0.99**step)

        def row(cosines: Any, label: int, length: float, _: Any, now: Any = now) -> list[float]:
            k = min(max(0.333 * (length - now[0]) / (now[1] + 1e-3), -1.0), 1.0)
            theta = min(max(math.acos(cosines[label]) - 0.4 * k, 1e-3), math.pi - 1e-3)
            return [
                6 * (math.cos(theta) - 0.4 - 0.4 * k if j == label else c)
                for j, c in enumerate(cosines)
            ]

        assert loss(z, y).item() == pytest.approx(by_loops(loss, z, y, row), rel=1e-9)


def test_adaface_with_one_sample_is_defined() -> None:
    z, y = batch()
    loss = AdaFace(5, 4).double()
    assert bool(torch.isfinite(loss(z[:1], y[:1])))
    assert int(loss.steps) == 0
    loss(z, y)
    assert bool(torch.isfinite(loss(z[:1], y[:1])))
    assert int(loss.steps) == 1


def test_broadface_by_loops_over_batch_and_queue() -> None:
    """The queue wraps and the proxies move between the steps; past embeddings follow their proxies
    and take no gradient.
    """
    loss = BroadFace(5, 4, margin=0.3, scale=4.0, queue_size=20).double()
    queue: list[tuple[Any, Any, int]] = []  # embedding, its proxy then, label
    for step in range(4):
        z, y = batch(seed=step)
        z.requires_grad_()
        proxies = loss.proxies.detach().numpy().copy()
        rows = [(x, label) for x, label in zip(z.detach().numpy(), y.tolist(), strict=True)]
        rows += [
            (e + np.linalg.norm(e) / np.linalg.norm(old) * (proxies[label] - old), label)
            for e, old, label in queue
        ]
        total = 0.0
        for x, label in rows:
            logits = [4 * cosine(x, proxy) for proxy in proxies]
            logits[label] = 4 * monotone(cosine(x, proxies[label]), 0.3)
            total += cross_entropy(logits, label)
        value = loss(z, y)
        assert value.item() == pytest.approx(total / len(rows), rel=1e-9)
        value.backward()
        queue = [*queue, *((x, proxies[label], label) for x, label in rows[: len(y)])][-20:]
        with torch.no_grad():
            loss.proxies.add_(0.1 * batch(seed=step + 10)[0][:4])

    alone = ArcFace(5, 4, margin=0.3, scale=4.0).double()
    alone.load_state_dict({"proxies": loss.proxies})
    copied, close = copy.deepcopy(loss), torch.testing.assert_close
    of_z, of_proxies = torch.autograd.grad(copied(z, y), (z, copied.proxies))
    close(of_z, torch.autograd.grad(alone(z, y), z)[0])
    # nothing but constants: the proxies' gradient is ArcFace's on batch and queue
    e, labels = loss.compensated()
    every = alone(torch.cat([z, e]), torch.cat([y, labels]))
    close(of_proxies, torch.autograd.grad(every, alone.proxies)[0])
    assert float(loss.eval()(z, y)) == pytest.approx(float(alone(z, y)), rel=1e-12)
    large = BroadFace(5, 4, queue_size=5).double()
    large(*batch())
    close(large.past, batch()[0][-5:])


@pytest.mark.parametrize(
    "make", [CurricularFace, AdaFace, BroadFace, MemVir], ids=lambda made: made.__name__
)
def test_states_are_saved_move_in_training_only_and_repeat(make: Any) -> None:
    z, y = batch()
    loss = make(5, 4).double()
    start = copy.deepcopy(loss)
    first = [float(loss(*batch(seed=step)).detach()) for step in range(3)]
    assert [float(start(*batch(seed=step)).detach()) for step in range(3)] == first
    state = {name: value.clone() for name, value in loss.state_dict().items()}
    new = make(5, 4).double().state_dict()
    assert any(not torch.equal(new[name], state[name]) for name in state.keys() - {"proxies"})
    loss.eval()
    value = float(loss(z, y).detach())
    assert all(torch.equal(tensor, state[name]) for name, tensor in loss.state_dict().items())
    other = make(5, 4).double()
    other.load_state_dict(state)
    assert float(other.eval()(z, y).detach()) == value
    assert float(other.train()(z, y).detach()) == float(loss.train()(z, y).detach())


def test_arcface_warm_up() -> None:
    z, y = batch()
    full = ArcFace(5, 4).double()

    def value(step: int | None, *, training: bool = True, **options: Any) -> float:
        loss = ArcFace(5, 4, **options).double().train(training)
        loss.load_state_dict(full.state_dict())
        if step is not None:
            loss.at_step(step)
        return float(loss(z, y).detach())

    plain, half, whole = (value(None, margin=margin) for margin in (0.0, 0.25, 0.5))
    assert [value(step, warmup_steps=10) for step in (0, 9, 10)] == [plain, plain, whole]
    ramp = [value(step, warmup_steps=(10, 30)) for step in (0, 10, 20, 30)]
    assert ramp == [plain, plain, half, whole]
    assert value(5) == value(None, training=False, warmup_steps=10) == whole
    with pytest.raises(ValueError, match="at_step"):
        value(None, warmup_steps=10)
    with pytest.raises(ValueError, match="warmup_steps"):
        ArcFace(5, 4, warmup_steps=(30, 10))


def test_subcentres_take_the_nearest() -> None:
    z, y = batch()
    loss, plain = SubCenterArcFace(5, 4).double(), ArcFace(5, 4).double()
    every = torch.cat([loss.proxies[None], loss.subcentres]).detach().numpy()
    expected = [[max(cosine(x, w) for w in every[:, j]) for j in range(4)] for x in z.numpy()]
    np.testing.assert_allclose(loss.logits(z).detach().numpy() / 64, expected, rtol=1e-9)
    single = SubCenterArcFace(5, 4, num_subcentres=1).double()
    single.proxies = plain.proxies
    assert float(single(z, y).detach()) == pytest.approx(float(plain(z, y).detach()), rel=1e-12)


@pytest.mark.parametrize("make", [Cosine, partial(ArcFace, learn_scale=True)])
def test_learned_scales_have_their_own_rate(make: Any) -> None:
    loss = make(5, 4, tau_lr=0.02)
    groups = param_groups(loss, Optim(nesterov=True))
    group = next(group for group in groups if any(value is loss.tau for value in group["params"]))
    stated = [group[name] for name in ("lr", "weight_decay", "momentum", "nesterov")]
    assert stated == [0.02, 0.0, 0.0, False]
    loss(*batch()).backward()
    torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True).step()


def test_hyperbolic_class_vectors_take_no_decay() -> None:
    """vmf_embeddings, utils.get_parameter_list: mlr.p_vals and mlr.a_vals are without it; of the
    other losses the class vectors have it.
    """
    optim = Optim(lr=0.1, weight_decay=0.3, proxy_lr_scale=2.0)
    loss = Hyperbolic(5, 4)
    (group,) = param_groups(loss, optim)
    assert (group["lr"], group["weight_decay"]) == (0.2, 0.0)
    assert {id(parameter) for parameter in group["params"]} == {id(loss.proxies), id(loss.normals)}
    for make in (Softmax, Cosine, ArcFace):
        assert param_groups(make(5, 4), optim)[0]["weight_decay"] == 0.3


@pytest.mark.parametrize(
    ("make", "deviation"),
    [(Softmax, 128**-0.5), (Cosine, (2 / 528) ** 0.5), (ArcFace, (2 / 528) ** 0.5)],
)
def test_class_vectors_start_uniform_or_normal(make: Any, deviation: float) -> None:
    """start: uniform on +-start, whose mean |w| is half of it and whose mean square a third."""
    w = make(128, 400, start=0.3).proxies.detach().double()
    assert 0.3 * 0.999 < float(w.abs().max()) <= 0.3
    assert float(w.abs().mean()) == pytest.approx(0.15, rel=0.02)
    assert float(w.square().mean()) == pytest.approx(0.03, rel=0.02)
    torch.manual_seed(3)
    plain = make(128, 400).proxies.detach()
    torch.manual_seed(3)
    torch.testing.assert_close(plain, torch.randn(400, 128) * deviation)


@pytest.mark.parametrize("make", PROXY, ids=lambda made: made.__name__)
class TestEveryProxyLoss:
    def test_float32_is_close_to_float64(self, make: Any) -> None:
        z, y = batch()
        z[1], z[5] = z[0], -z[0]
        z[2] *= 1e3
        z[3] *= 1e-3
        loss = make(5, 4)
        single = copy.deepcopy(loss)
        expected = float(loss.double()(z, y).detach())
        assert float(single(z.float(), y).detach()) == pytest.approx(expected, rel=2e-5)

    def test_one_class_one_sample_and_a_proxy_hit_exactly_are_defined(self, make: Any) -> None:
        z, y = batch()
        loss = make(5, 4).double()
        with torch.no_grad():
            z[0], z[1] = loss.proxies[0], -loss.proxies[1]
            loss.proxies[3] = loss.proxies[2]
        z.requires_grad_()
        for rows in (slice(None), slice(0, 1), slice(0, 12, 4)):
            value = loss(z[rows], y[rows])
            assert bool(torch.isfinite(value))
            gradient = torch.autograd.grad(value, learned(loss, z))
            assert all(bool(torch.isfinite(value).all()) for value in gradient)

    def test_learns_free_embeddings(self, make: Any) -> None:
        """What it is for: after gradient steps on embeddings and proxies, the prediction without
        margins is the label for every sample.
        """
        z, y = batch()
        z.requires_grad_()
        loss = make(5, 4).double()
        optimizer = torch.optim.Adam([z, *loss.parameters()], lr=0.05)
        for _ in range(80):
            optimizer.zero_grad()
            loss(z, y).backward()
            optimizer.step()
        assert loss.logits(z).argmax(dim=1).tolist() == y.tolist()


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
def test_the_exponential_ramp_is_wespeaker_s(kind: Any) -> None:
    """MarginScheduler: 1 - exp(progress log(1e-3 / (1 + 1e-6))), whose 1e-6 is 1e-6 of the ramp."""
    loss = kind(5, 4, margin=0.2, warmup_steps=(20, 40), ramp="exponential")
    result = []
    for step in (0, 19, 20, 25, 30, 39, 40, 1000):
        loss.at_step(step)
        result.append(loss.moving.now(True))
    rate = math.log(1e-3 / (1 + 1e-6))
    expected = [0.2 * (1 - math.exp(p * rate)) for p in (0, 0, 0, 0.25, 0.5, 0.95)]
    assert result == pytest.approx([*expected, 0.2, 0.2], abs=1e-6)
    z, y = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4
    values = []
    for step in (0, 30, 40):
        loss.at_step(step)
        values.append(float(loss(z, y).detach()))
    assert values == sorted(values)
    assert values[0] < values[2]
