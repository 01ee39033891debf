"""vMF, SCF and the probabilistic proxy losses against references, loops, and the properties of
their noise.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ive
from torch import Tensor, nn
from torch.nn.functional import normalize

from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.losses.probabilistic import Joint, ProbabilisticNCA
from likeness.toolkit.losses.proxy import ProxyAnchor
from likeness.toolkit.losses.simple import SimPLE
from likeness.toolkit.losses.softmax import Softmax
from likeness.toolkit.losses.vmf import SCF, VMF
from likeness.toolkit.training.recipe import Optim
from likeness.toolkit.vmf.distances import d_el_vmf
from likeness.toolkit.vmf.distribution import mean_resultant
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import SMOOTH_ROWS, close

pytestmark = pytest.mark.usefixtures("one_thread")


batch = partial(drawn.batch, length=2.0)


def set_(parameter: Any, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value.reshape(parameter.shape))


@pytest.mark.parametrize("case", ["small0", "hard0"])
@pytest.mark.parametrize("name", ["vmf__vmf_embeddings", "vmf_n3__vmf_embeddings"])
def test_vmf_equals_its_release_on_given_samples(name: str, case: str) -> None:
    a, (_, h) = drawn.tensors(name, case), drawn.read(name, case)
    loss = VMF(h["n"], len(a["w"]), method="bounds").double()
    set_(loss.proxies, a["w"])
    set_(loss.tau, torch.tensor(h["tau"], dtype=torch.float64))
    z = a["x_used"].clone().requires_grad_()
    value = loss(z, a["labels"], samples=a["z_samples"])
    value.backward()
    assert value.item() == pytest.approx(float(a["loss"]), rel=1e-9)
    close(z.grad, a["grad_embeddings"], 1e-9, SMOOTH_ROWS if case == "hard0" else slice(None))
    close(loss.proxies.grad, a["grad_w"], 1e-9)
    close(loss.tau.grad, -a["grad_temp"], 1e-9)


def log_c(kappa: float, dim: int) -> float:
    v = dim / 2 - 1
    return v * math.log(kappa) - (v + 1) * math.log(2 * math.pi) - math.log(ive(v, kappa)) - kappa


def ratio(kappa: float, dim: int) -> float:
    return float(ive(dim / 2, kappa) / ive(dim / 2 - 1, kappa))


def test_vmf_is_eq_13_by_loops() -> None:
    z, y = batch()
    loss = VMF(5, 4, tau=0.5).double()
    loss.alpha.fill_(1.5)
    set_(loss.tau, torch.tensor(0.5))
    samples = normalize(torch.randn(3, 8, 5, dtype=torch.float64), dim=-1)
    beta, w, x, total = math.exp(0.5), loss.proxies.detach().numpy(), 1.5 * z.numpy(), 0.0
    for i in range(8):
        for s in range(3):
            logits = [
                log_c(float(np.linalg.norm(value)), 5)
                - log_c(float(np.linalg.norm(value + beta * samples[s, i].numpy())), 5)
                for value in w
            ]
            total += math.log(sum(math.exp(logit) for logit in logits)) / 3
        own, kz, kw = w[int(y[i])], float(np.linalg.norm(x[i])), float(np.linalg.norm(w[int(y[i])]))
        total -= beta * ratio(kz, 5) * ratio(kw, 5) * float(own @ x[i]) / kz / kw
    assert loss(z, y, samples=samples).item() == pytest.approx(total / 8, rel=1e-8)


def test_posterior_draws_from_the_distribution() -> None:
    """Two certain and opposite class vectors: the first one's probability is E[1 / (1 + e^-2c)], c
    the draw's cosine, here by a sum over its density.
    """
    loss = VMF(16, 2, num_samples=1).double()
    set_(loss.proxies, torch.stack([torch.eye(16)[0], -torch.eye(16)[0]]) * 1e9)
    c = np.linspace(-1, 1, 20001)[1:-1]
    log_density = 6.5 * np.log(1 - c * c) + 20 * c
    density = np.exp(log_density - log_density.max())
    expected = float((density / (1 + np.exp(-2 * c))).sum() / density.sum())
    z = 20 * torch.eye(16, dtype=torch.float64)[:1].expand(4000, 16)
    result = loss.posterior(z, generator=torch.Generator().manual_seed(0))[:, 0]
    assert float(result.mean()) == pytest.approx(expected, abs=5 * float(result.std()) / 4000**0.5)


def test_vmf_bounds_the_expected_cross_entropy() -> None:
    """Eq 7, with class vectors drawn as well, lies below Eq 8."""
    z, y = batch(dim=6, size=4)
    loss = VMF(6, 4, num_samples=500, tau=1.0).double()
    probabilities = loss.posterior(z, num_samples=100)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(4, dtype=torch.float64))
    assert float(loss(z, y).detach()) > float(nn.functional.nll_loss(probabilities.log(), y))


@pytest.mark.parametrize(
    ("dim", "classes", "tau"),
    [
        (2, 5, 1.0),
        (3, 4, 3.0),
        (16, 7, 1.0),
        (64, 200, 2.7),
        (64, 30, 4.0),
        (512, 40, 2.0),
        (16, 30_000, 1.0),
    ],
)
def test_vmf_blockwise_float32_equals_float64(dim: int, classes: int, tau: float) -> None:
    """With and without polynomials (3 dimensions, beta 20), with logits above 40, with a class
    vector of 0, in more than one block.
    """
    torch.manual_seed(dim)
    single = VMF(dim, classes, num_samples=3, tau=tau)
    with torch.no_grad():
        single.proxies[0] = 0
        single.proxies[1] *= 3
    double = VMF(dim, classes, num_samples=3, tau=tau).double()
    double.load_state_dict(single.state_dict())
    values = []
    for loss, dtype in ((single, torch.float32), (double, torch.float64)):
        z = torch.randn(20, dim, generator=torch.Generator().manual_seed(0)) * 3
        z = z.to(dtype).requires_grad_()
        value = loss(z, torch.arange(20) % classes)
        value.backward()
        values.append([value.detach(), z.grad, loss.proxies.grad, loss.tau.grad])
    for ours, expected in zip(*values, strict=True):
        largest = expected.abs().max()
        # on the circle a tangent may come from noise along mu
        atol = 1e-4 if dim > 2 else 2e-3
        torch.testing.assert_close(ours.double() / largest, expected / largest, rtol=0, atol=atol)


def test_class_vectors_that_are_not_numbers_give_a_loss_that_is_none() -> None:
    """So that the training loop can say what happened, and not a function deep inside."""
    z, y = batch(dim=20)
    loss = VMF(20, 4)
    set_(loss.proxies, loss.proxies * math.nan)
    assert math.isnan(loss(z.float(), y).item())


def test_vmf_gradients_by_finite_differences() -> None:
    z, y = batch(size=3)
    loss = VMF(5, 4, num_samples=2).double()
    samples = normalize(torch.randn(2, 3, 5, dtype=torch.float64), dim=-1)

    def value(x: Tensor, w: Tensor, tau: Tensor) -> Tensor:
        named = {"proxies": w, "tau": tau}
        return torch.func.functional_call(loss, named, (x, y), {"samples": samples})

    proxies = loss.proxies.detach().clone().requires_grad_()
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (z.requires_grad_(), proxies, tau))


def test_shared_and_independent_noise_have_the_same_mean() -> None:
    z, y = batch(dim=20, size=6)
    settings: dict[str, Any] = {"num_samples": 2, "tau": 2.0}
    shared = VMF(20, 4, noise="shared", **settings).double()
    independent = VMF(20, 4, noise="independent", **settings).double()
    independent.proxies = shared.proxies
    values = []
    for loss in (shared, independent):
        drawn = []
        for seed in range(60):
            loss.noise.fill_(seed)
            drawn.append(loss(z, y).item())
        values.append(torch.tensor(drawn))
    difference = values[0].mean() - values[1].mean()
    assert abs(float(difference)) < 4 * float((values[0].var() + values[1].var()).sqrt()) / 60**0.5


@pytest.mark.parametrize(
    "make",
    [VMF, partial(VMF, noise="independent"), ProbabilisticNCA],
    ids=["shared", "independent", "el_nivmf"],
)
def test_noise_repeats_until_a_backward_pass_and_is_part_of_the_state(make: Any) -> None:
    z, y = batch(dim=20)
    loss = make(20, 4).double()
    order = torch.randperm(8)
    first = loss(z, y)
    assert loss(z[order], y[order]).item() == pytest.approx(first.item(), rel=1e-12)
    state = {key: value.clone() for key, value in loss.state_dict().items()}
    first.backward()
    second = loss(z, y).item()
    assert second != first.item()
    loss.load_state_dict(state)
    assert loss(z, y).item() == first.item()


def test_vmf_starts_at_the_concentration_of_eq_14() -> None:
    loss = VMF(128, 400, resultant=0.4)
    kappa = 0.4 * 127 / (1 - 0.16)
    assert float(loss.proxies.detach().norm(dim=1).mean()) == pytest.approx(kappa, rel=0.01)
    assert float(mean_resultant(torch.tensor(kappa), 128)) == pytest.approx(0.4, abs=0.005)
    z = torch.randn(500, 128, generator=torch.Generator().manual_seed(0)) * 7
    alpha = loss.estimate(z)
    assert float((alpha * z).norm(dim=1).mean()) == pytest.approx(kappa, rel=1e-5)
    absolute = VMF(loss.dim, 10, alpha_from="absolute").estimate(z)
    assert absolute == pytest.approx(1.25 * alpha, rel=0.01)
    assert "alpha" in loss.state_dict()
    assert "alpha" not in dict(loss.named_parameters())
    with pytest.raises(ValueError, match="not all 0"):
        loss.estimate(torch.zeros(4, 128))
    groups = loss.param_groups(Optim(lr=0.1))
    assert groups[1]["lr"] == 1e-3
    torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def test_vmf_logits_are_expected_cosines_and_posterior_agrees_when_certain() -> None:
    z, _ = batch()
    loss = VMF(5, 4).double()
    w = loss.proxies.detach()
    lengths = mean_resultant(z.norm(dim=1), 5)[:, None] * mean_resultant(w.norm(dim=1), 5)
    expected = lengths * (normalize(z, dim=1) @ normalize(w, dim=1).T)
    torch.testing.assert_close(loss.logits(z).detach(), expected)
    set_(loss.proxies, loss.proxies * 1e5)
    expected = loss.logits(z * 1e5).softmax(1).detach()
    torch.testing.assert_close(loss.posterior(z * 1e5), expected, rtol=0.02, atol=0.01)


def vmf_draws(rng: np.random.Generator, nu: np.ndarray, num: int) -> np.ndarray:
    """(num, D) draws of vMF(nu/|nu|, |nu|): cosines by the distribution function summed on a grid,
    directions by Gaussians less what lies along nu.
    """
    dim, kappa = nu.size, float(np.linalg.norm(nu))
    grid = np.linspace(-1, 1, 20_001)
    density = (1 - grid**2) ** ((dim - 3) / 2) * np.exp(kappa * (grid - 1))
    cosine = np.interp(rng.random(num), np.cumsum(density) / density.sum(), grid)
    across = rng.normal(size=(num, dim))
    across -= np.outer(across @ nu, nu) / kappa**2
    across *= (np.sqrt(1 - cosine**2) / np.linalg.norm(across, axis=1))[:, None]
    drawn: np.ndarray = np.outer(cosine, nu / kappa) + across
    return drawn


def test_vmf_posterior_draws_class_vectors_for_each_row() -> None:
    """One embedding in 40,000 rows (two blocks): one draw each, so that their mean is that of
    40,000 draws of z and of the class vectors together.
    """
    loss = VMF(16, 8, tau=2.0).double()
    z = 4 * torch.randn(16, dtype=torch.float64)
    num = 40_000
    assert 2**22 // loss.proxies.numel() < num  # rows that posterior takes at a time
    generator = torch.Generator().manual_seed(1)
    result = loss.posterior(z.expand(num, 16), num_samples=1, generator=generator)
    assert result.shape == (num, 8)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.sum(1), torch.ones(num, dtype=torch.float64))
    assert len(set(result[:, 0].tolist())) > 0.999 * num
    rng = np.random.default_rng(0)
    embeddings = vmf_draws(rng, z.numpy(), num)
    vectors = loss.proxies.detach().numpy()
    dots = [(embeddings * vmf_draws(rng, w, num)).sum(1) for w in vectors]
    logits = math.exp(2.0) * np.stack(dots, axis=1)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = 5 * expected.std(axis=0) * (2 / num) ** 0.5
    assert error.max() < 0.01
    assert (np.abs(result.mean(0).numpy() - expected.mean(axis=0)) < error).all()
    np.testing.assert_allclose(result.std(0).numpy(), expected.std(axis=0), rtol=0.05)
    # z is drawn at its mean, so that only the class vectors can differ
    certain = loss.posterior(1e9 * z.expand(2, 16), num_samples=3)
    assert float((certain[0] - certain[1]).abs().max()) > 1e-3


def test_scf_is_its_closed_form() -> None:
    z, y = batch()
    loss = SCF(5, 4).double()
    z.requires_grad_()
    value = loss(z, y)
    value.backward()
    total, slopes = 0.0, []
    for i in range(8):
        row, w = z[i].detach().numpy(), loss.proxies[y[i]].detach().numpy()
        kappa, cosine = float(np.linalg.norm(row)), drawn.cosine(row, w)
        total += -kappa * cosine - log_c(kappa, 5) + 5 * math.log(64)
        slopes.append((ratio(kappa, 5) - cosine) / 8)
    assert value.item() == pytest.approx(total / 8, rel=1e-8)
    assert loss.proxies.grad is None
    torch.testing.assert_close(z.grad, torch.tensor(slopes)[:, None] * normalize(z.detach(), dim=1))
    head = SCF(6, 4, concentration="output").double()
    set_(head.proxies, loss.proxies)
    stacked = torch.cat([z.detach(), z.detach().norm(dim=1, keepdim=True).log()], dim=1)
    assert head(stacked, y).item() == pytest.approx(value.item(), rel=1e-12)


RELEASED: dict[str, dict[str, Any]] = {
    "d_el_vmf": {"distance": "el_vmf", "method": "quadratic"},
    "d_b_vmf": {"distance": "b_vmf", "method": "quadratic"},
    "d_nivmf": {"distance": "nivmf", "method": "quadratic", "normalizer": "paper"},
    "el_nivmf": {"distance": "el_nivmf", "method": "quadratic", "normalizer": "released"},
    "d_l2": {"distance": "l2"},
    "d_cos": {"distance": "cos"},
}


@pytest.mark.parametrize("case", ["small0", "hard0"])
@pytest.mark.parametrize("name", RELEASED)
def test_probabilistic_nca_equals_its_release(name: str, case: str) -> None:
    a = drawn.tensors(f"{name}__prob_dml", case)
    loss = ProbabilisticNCA(16, 5, temperature=0.5, **RELEASED[name]).double()
    set_(loss.proxies, a["weight_v"])
    if loss.kappas is not None:
        set_(loss.kappas, a["kappa"] if "kappa" in a else a["weight_g"])
    z = a["embeddings"].clone().requires_grad_()
    value = loss(z, a["labels"], **({"samples": a["z_samples"]} if "z_samples" in a else {}))
    value.backward()
    assert value.item() == pytest.approx(float(a["loss"]), rel=1e-8)
    if z.grad is not None:
        close(z.grad, a["grad_embeddings"], 1e-8, SMOOTH_ROWS if case == "hard0" else slice(None))
    close(loss.proxies.grad, a["grad_weight_v"], 1e-8)
    close(loss.temperature.grad, a["grad_temp"], 1e-8)  # type: ignore[union-attr]
    if loss.kappas is not None:
        close(loss.kappas.grad, a["grad_kappa"] if "grad_kappa" in a else a["grad_weight_g"], 1e-8)


def counted_per_sample(z: Tensor, proxies: Tensor, y: Tensor) -> Tensor:
    """The release's ProxyAnchor less Kim et al.'s: its positive term is a mean over samples, so
    that a class counts as often as it has samples.
    """
    gaps = 32.0 * (0.1 - normalize(z, dim=1) @ normalize(proxies, dim=1).T)
    terms = {c: torch.log1p(torch.exp(gaps[y == c, c]).sum()) for c in set(y.tolist())}
    return torch.stack([terms[int(c)] for c in y]).mean() - torch.stack(list(terms.values())).mean()


@pytest.mark.parametrize("case", ["small0", "hard0"])
def test_joint_equals_the_release_up_to_how_often_a_class_counts(case: str) -> None:
    a = drawn.tensors("joint_panc_el_nivmf__prob_dml", case)
    first = partial(ProbabilisticNCA, temperature=0.5, method="quadratic", normalizer="released")
    second = partial(ProxyAnchor, margin=0.1, scale=32.0)
    loss = Joint(16, 5, first=first, second=second, weight=3.0).double()
    set_(loss.proxies, a["weight_v"])
    inner: Any = loss.first
    set_(inner.kappas, a["kappa"])
    inner._draw = lambda z: a["z_samples"]
    z = a["embeddings"].clone().requires_grad_()
    value = loss(z, a["labels"])
    more = counted_per_sample(z, inner.proxies, a["labels"])
    # two of each class in small0, one to three in hard0
    assert (abs(float(more.detach())) > 1e-3) == (case == "hard0")
    value = value + 3.0 * more
    value.backward()
    assert value.item() == pytest.approx(float(a["loss"]), rel=1e-8)
    close(z.grad, a["grad_embeddings"], 1e-8, SMOOTH_ROWS if case == "hard0" else slice(None))
    close(inner.proxies.grad, a["grad_weight_v"], 1e-8)
    close(inner.kappas.grad, a["grad_kappa"], 1e-8)
    close(inner.temperature.grad, a["grad_temp"], 1e-8)


@pytest.mark.parametrize("distance", ["el_nivmf", "el_vmf", "cos"])
def test_proxies_start_at_the_concentration_and_have_no_decay(distance: Any) -> None:
    """As weight_v of the release."""
    loss = ProbabilisticNCA(16, 6, distance=distance, concentration=20.0)
    assert loss.proxies.detach().norm(dim=1).tolist() == pytest.approx(6 * [20.0], rel=1e-5)
    groups = loss.param_groups(Optim(lr=1e-3, weight_decay=0.1, proxy_lr_scale=5.0))
    (own,) = (group for group in groups if any(value is loss.proxies for value in group["params"]))
    assert (own["lr"], own["weight_decay"]) == (0.005, 0.0)


@pytest.mark.parametrize(
    ("normalizer", "inside"), [("jacobian", True), ("paper", False), ("released", True)]
)
def test_el_nivmf_in_blocks_equals_the_cross_entropy_of_its_logits(normalizer, inside):
    """Value and every gradient, in more than one block (30,000 classes x 3 draws: 93 rows per
    product, 2 per block of the rest) and in both precisions.
    """
    settings: Any = {"temperature": 0.7, "temperature_inside": inside, "normalizer": normalizer}
    cases = (4, 6, torch.float64, 1e-12), (30_000, 100, torch.float32, 2e-5)
    for classes, size, dtype, tolerance in cases:
        torch.manual_seed(classes)
        loss = ProbabilisticNCA(6, classes, num_samples=3, **settings).to(dtype)
        assert loss.kappas is not None
        set_(loss.kappas, 2 + 6 * torch.rand(classes, 6))
        y, result = torch.arange(size) % classes, []
        for whole in (False, True):
            z = 4 * torch.randn(size, 6, generator=torch.Generator().manual_seed(1))
            z = z.to(dtype).requires_grad_()
            loss.noise.fill_(0)  # the same draws for both
            samples = loss._draw(z)
            if whole:
                value = nn.functional.cross_entropy(loss.logits(z, samples=samples), y)
            else:
                value = loss(z, y, samples=samples)
                with torch.no_grad():
                    again = loss(z, y, samples=samples)
                assert again.item() == pytest.approx(value.item(), rel=1e-12)
            loss.zero_grad()
            (2 * value).backward()
            gradients = [parameter.grad.clone() for parameter in loss.parameters()]
            result.append([value.detach(), z.grad, *gradients])
        for ours, expected in zip(*result, strict=True):
            close(ours, expected.reshape(-1) if expected.ndim == 0 else expected, tolerance)


def test_joint_is_the_sum_of_its_parts_and_shares_proxies_by_choice() -> None:
    z, y = batch()
    loss = Joint(5, 4, weight=0.5).double()
    assert loss.second.proxies is loss.first.proxies
    expected = loss.first(z, y).item() + 0.5 * loss.second(z, y).item()
    assert loss(z, y).item() == pytest.approx(expected, rel=1e-12)
    groups = loss.param_groups(Optim(lr=0.1))
    assert sum(len(group["params"]) for group in groups) == len(list(loss.parameters())) == 3
    apart = Joint(5, 4, share=False)
    assert apart.second.proxies is not apart.first.proxies


def test_joint_hands_on_what_a_loss_says_of_itself() -> None:
    """The step to both parts, the first part's similarity; a part that needs a constant or features
    of its own is refused.
    """
    z, y = batch()
    moving = partial(ArcFace, margin=0.4, scale=4.0, warmup_steps=(0, 10))
    for first, second in ((moving, ProxyAnchor), (ProxyAnchor, moving)):
        loss = Joint(5, 4, first=first, second=second, weight=1.0, share=False).double()
        loss.at_step(5)
        arc = loss.first if first is moving else loss.second
        still = ArcFace(5, 4, margin=0.2, scale=4.0).double()
        still.load_state_dict(arc.state_dict())
        other = loss.second if first is moving else loss.first
        expected = still(z, y).item() + other(z, y).item()
        assert loss(z, y).item() == pytest.approx(expected, rel=1e-12)
    generalised = partial(Softmax, product="generalised", b_theta=0.2)
    assert Joint(5, 4, first=generalised).similarity == "simple:0.2"
    assert Joint(5, 4, second=generalised).similarity == "cosine"
    for parts in ({"first": VMF}, {"second": VMF}):
        with pytest.raises(ValueError, match="Joint: VMF"):
            Joint(5, 4, **parts)
    with pytest.raises(ValueError, match="Joint: SimPLE"):
        Joint(5, 4, second=partial(SimPLE, features="polarlike"))
    assert math.isfinite(Joint(5, 4, second=SimPLE).double()(z, y).item())


@pytest.mark.parametrize("distance", ["el_nivmf", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_temperature_below_its_floor_returns(distance: Any, dtype: torch.dtype) -> None:
    """A step that left it there is undone before the next loss, which has a gradient to it."""
    z, y = batch(size=4)
    loss: Any = ProbabilisticNCA(5, 4, distance=distance)
    with torch.no_grad():
        loss.temperature.fill_(-0.5)
    (loss(z.to(dtype), y) + loss(-z.to(dtype), y)).backward()  # two passes before one backward pass
    assert float(loss.temperature.detach()) == pytest.approx(1e-4, rel=1e-6)
    assert float(loss.temperature.grad) != 0


@pytest.mark.parametrize(
    "distance", ["el_nivmf", "nivmf", "el_vmf", "b_vmf", "kl_vmf", "l2", "cos"]
)
def test_probabilistic_nca_gradients_and_label_permutation(distance: Any) -> None:
    z, y = batch(size=4)
    loss = ProbabilisticNCA(5, 4, distance=distance, concentration=3.0, temperature=2.0).double()
    samples = normalize(torch.randn(3, 4, 5, dtype=torch.float64), dim=-1)
    assert torch.autograd.gradcheck(
        lambda x: loss(x, y, samples=samples) + 0 * x.sum(), (z.requires_grad_(),)
    )
    expected = loss(z, y, samples=samples).item()
    order = torch.tensor([2, 0, 3, 1])
    set_(loss.proxies, loss.proxies[order].clone())
    assert loss(z, order.argsort()[y], samples=samples).item() == pytest.approx(expected, rel=1e-12)


def test_el_nivmf_of_isotropic_proxies_tends_to_the_closed_form() -> None:
    """With K = c I the nivMF is a vMF, so that many samples approach d_EL-vMF; and the gradient in
    the embedding passes through the draws.
    """
    z, _ = batch(size=4)
    settings: Any = {"num_samples": 5000, "normalizer": "jacobian"}
    drawn = ProbabilisticNCA(5, 4, concentration=4.0, **settings).double()
    nu = 4 * normalize(drawn.proxies.detach(), dim=1)
    expected = d_el_vmf(z, nu, relative=True)
    torch.testing.assert_close(drawn.distances(z).detach(), expected, rtol=0, atol=0.12)
    z.requires_grad_()
    ours = torch.autograd.grad(drawn.distances(z).sum(), z)[0]
    theirs = torch.autograd.grad(d_el_vmf(z, nu).sum(), z)[0]
    assert float((ours - theirs).norm() / theirs.norm()) < 0.16
