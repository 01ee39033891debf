"""Directional distributions against 50-digit values, reference implementations, closed forms and
Monte Carlo.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from likeness.toolkit.vmf import distances, distribution
from likeness.toolkit.vmf.distances import d_b_vmf, d_el_nivmf, d_el_vmf, d_kl_vmf, d_nivmf
from likeness.toolkit.vmf.distribution import log_density_nivmf, log_normalizer, mean_resultant
from likeness.toolkit.vmf.sampling import sample, slope
from tests.toolkit.losses.drawn import GOLDEN, SMOOTH_ROWS, close, tensors

EXACT = np.load(GOLDEN / "logC_bessel_ratio__mpmath.npz", allow_pickle=False)


pytestmark = pytest.mark.usefixtures("one_thread")


def exact(dim: int) -> tuple[Tensor, Tensor, Tensor]:
    mine = EXACT["n"] == dim
    return tuple(torch.tensor(EXACT[name][mine]) for name in ("kappa", "log_C", "A"))


@pytest.mark.parametrize("dim", sorted(set(EXACT["n"].tolist())))
def test_normalizer_resultant_and_gradients_against_50_digits(dim):
    kappa, log_c, resultant = exact(dim)
    kappa.requires_grad_()
    ours, a = log_normalizer(kappa, dim), mean_resultant(kappa, dim)
    assert float((ours - log_c).detach().abs().max()) < 1e-9
    torch.testing.assert_close(a, resultant, rtol=2e-9, atol=0)
    slope = torch.autograd.grad(ours.sum(), kappa)[0]
    torch.testing.assert_close(slope, -resultant, rtol=2e-9, atol=1e-12)
    k = kappa.detach()
    variance = 1 - resultant**2 - (dim - 1) * resultant / k.clamp(min=1e-30)
    variance[k == 0] = 1 / dim
    # the right-hand side cancels at small kappa
    torch.testing.assert_close(torch.autograd.grad(a.sum(), kappa)[0], variance, rtol=0, atol=2e-8)
    single = log_normalizer(k.float(), dim).double()
    # rounding
    torch.testing.assert_close(single, log_c, rtol=4e-7, atol=4e-7 * float(log_c.abs().max()))


@pytest.mark.parametrize("method", ["debye", "bounds", "quadratic"])
@pytest.mark.parametrize("dim", [2, 3, 7, 128])
def test_analytic_gradients_of_the_square(dim, method):
    square = torch.tensor([0.3, 1.0, 40.0, 900.0], dtype=torch.float64, requires_grad=True)
    for function in (distribution.relative_log_c, distribution.resultant_ratio):
        assert torch.autograd.gradcheck(partial(function, dim=dim, method=method), (square,))
    kappa = torch.tensor([0.0, 0.5, 8.0, 70.0], dtype=torch.float64)
    if method != "quadratic":
        ratio = distribution.resultant_ratio(kappa.square(), dim, method=method)
        torch.testing.assert_close(mean_resultant(kappa, dim, method=method), kappa * ratio)
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(distribution.relative_log_c(zero, dim, method=method).sum())
    assert zero.grad is not None
    if method == "debye":
        assert float(zero.grad) == pytest.approx(-0.5 / dim, rel=1e-9)


def test_bounds_equal_the_vmf_papers_release():
    with np.load(GOLDEN / "bessel_bounds__vmf_embeddings.npz") as file:
        kappa = torch.tensor(file["kappa"])
        for dim in (3, 8, 64, 128, 512, 2048):
            for name, function in (("ratio", mean_resultant), ("logC", log_normalizer)):
                ours, theirs = function(kappa, dim, method="bounds"), file[f"{name}_{dim}"]
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_quadratic_is_eq_12_and_13_and_why_it_is_not_the_default():
    kappa = torch.tensor([10.0, 50.0, 200.0], dtype=torch.float64)
    for dim, a, b, c in ((512, 868, 0.0002662, 0.0009685), (128, 127, 0.01909, 0.003355)):
        found = log_normalizer(kappa, dim, method="quadratic")
        torch.testing.assert_close(found, a - b * kappa - c * kappa**2)
    error = (log_normalizer(kappa, 128, method="quadratic") - log_normalizer(kappa, 128)).abs()
    assert float(error[1]) < 0.3
    assert float(error[2]) > 40


@pytest.mark.parametrize("dim", [3, 16, 128, 512])
def test_distances_between_vmfs_against_mpmath(dim):
    a = tensors("vmf_distances_exact__mpmath", f"n{dim}")
    z, p = a["z"], a["p"]
    found = {"d_EL": d_el_vmf(z, p), "d_B": d_b_vmf(z, p), "d_KL_z_p": d_kl_vmf(z, p)}
    for name, ours in (*found.items(), ("d_KL_p_z", d_kl_vmf(p, z).T)):
        torch.testing.assert_close(ours, a[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["small0", "hard0"])
def test_the_density_that_integrates_to_one_equals_its_reference(case):
    """The distances of the nivMF release: test_probabilistic_nca_equals_its_release."""
    a = tensors("nivmf_exact_jacobian__own", case)
    learned = [a[key].requires_grad_() for key in ("embeddings", "w", "kappa")]
    result = d_nivmf(*learned, normalizer="jacobian")
    torch.testing.assert_close(-result, a["log_density"], rtol=0, atol=3e-8)
    loss = cross_entropy(-result / a.get("temp", torch.tensor(0.5)), a["labels"])
    assert loss.item() == pytest.approx(float(a["loss"]), rel=1e-9)
    loss.backward()
    for key in ("embeddings", "w", "kappa"):
        rows: Any = SMOOTH_ROWS if case == "hard0" and key == "embeddings" else slice(None)
        # that file is the gradient of the series truncated at order 15, itself off by 3e-9
        close(a[key].grad, a[f"grad_{key}"], 5e-9, rows)


def test_released_kl_with_its_sign_slip_is_not_reproduced():
    a = tensors("d_kl_vmf_AS_RELEASED__prob_dml", "small0")
    proxies = normalize(a["weight_v"], dim=1) * a["weight_g"].clamp(min=0.1)
    result = d_kl_vmf(a["embeddings"], proxies, method="quadratic")
    loss = cross_entropy(-result / a.get("temp", torch.tensor(0.5)), a["labels"])
    assert abs(float(loss) - float(a["loss"])) > 0.1
    z = 3 * uniform(20, 6)
    assert bool((d_kl_vmf(z, z).diagonal().abs() < 1e-9).all())
    assert bool((d_kl_vmf(z, z) >= -1e-9).all())


def uniform(num: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return normalize(torch.randn(num, dim, generator=generator, dtype=torch.float64), dim=1)


def test_densities_integrate_to_one():
    x = uniform(400_000, 4)
    area = float(-log_normalizer(torch.zeros(1, dtype=torch.float64), 4))
    mu = normalize(torch.tensor([[1.0, -2.0, 0.5, 1.0]]).double(), dim=1)
    kappa = torch.tensor([5.0]).double()
    vmf = torch.exp(area + log_normalizer(kappa, 4) + kappa * (x @ mu[0]))
    assert float(vmf.mean()) == pytest.approx(1, abs=4 * float(vmf.std()) / len(x) ** 0.5)
    kappas = torch.tensor([[1.0, 2.0, 3.0, 0.5]]).double()
    density = torch.exp(area + log_density_nivmf(x, mu, kappas, normalizer="jacobian")[:, 0])
    assert float(density.mean()) == pytest.approx(1, abs=4 * float(density.std()) / len(x) ** 0.5)
    paper = torch.exp(area + log_density_nivmf(x, mu, kappas)[:, 0])
    assert abs(float(paper.mean()) - 1) > 0.1
    fives = torch.full((1, 4), 5.0).double()
    isotropic = log_density_nivmf(x[:5], mu, fives, normalizer="jacobian")[:, 0]
    torch.testing.assert_close(isotropic, log_normalizer(kappa, 4) + 5 * (x[:5] @ mu[0]))
    outside = log_density_nivmf(x[:5], mu, fives)[:, 0] - isotropic
    torch.testing.assert_close(outside, torch.full((5,), 3 * np.log(5)).double())  # c^(n-1)


@pytest.mark.parametrize(
    ("dim", "kappa", "spread", "most"), [(512, 18.0, 0.05, 0.2), (128, 6.0, 0.02, 0.9)]
)
def test_the_density_of_the_paper_has_its_mode_at_mu(dim, kappa, spread, most):
    """The density that integrates to 1 has its mode elsewhere, at a cosine below `most`."""
    generator = torch.Generator().manual_seed(0)
    mu = normalize(torch.randn(1, dim, generator=generator).double(), dim=1)
    kappas = kappa * (spread * torch.randn(1, dim, generator=generator).double()).exp()
    found = {}
    for name in ("paper", "jacobian"):
        x = normalize(mu + 0.1 * uniform(1, dim), dim=1).requires_grad_()
        optim = torch.optim.LBFGS([x], max_iter=1000, line_search_fn="strong_wolfe")

        def loss(normalizer: Any = name, at: Tensor = x, by: Any = optim) -> Tensor:
            by.zero_grad()
            unit = normalize(at, dim=1)
            value = -log_density_nivmf(unit, mu, kappas, normalizer=normalizer).sum()
            value.backward()
            return value

        optim.step(loss)
        found[name] = float(normalize(x.detach(), dim=1) @ mu.T)
    assert found["paper"] == pytest.approx(1, abs=1e-6)
    assert found["jacobian"] < most


@pytest.mark.parametrize("name", ["paper", "jacobian"])
def test_nivmf_by_loops(name):
    x, mu, kappas = uniform(4, 5), uniform(3, 5), torch.rand(3, 5, dtype=torch.float64) * 4 + 0.5
    for i in range(4):
        for j in range(3):
            k_x, k_mu = kappas[j] * x[i], kappas[j] * mu[j]
            kt = float(k_mu.norm())
            cosine = float(k_x @ k_mu / (k_x.norm() * k_mu.norm()))
            expected = float(log_normalizer(k_mu.norm(), 5)) + kt * cosine
            outside = 5 * float(k_x.norm().log()) if name == "jacobian" else np.log(kt)
            expected += float(kappas[j].log().sum()) - outside
            density = log_density_nivmf(x, mu, kappas, normalizer=name)[i, j]
            assert float(density) == pytest.approx(expected, rel=1e-11)


def test_expected_likelihoods_are_monte_carlo_means():
    z, p = 3 * uniform(2, 4), 4 * uniform(5, 4)[2:]
    generator = torch.Generator().manual_seed(0)
    draws = sample(normalize(z, dim=1), z.norm(dim=1), 100_000, generator=generator)
    likelihood = torch.exp(log_normalizer(p.norm(dim=1), 4) + draws @ p.T)
    standard = likelihood.std(0) / len(draws) ** 0.5
    assert bool(((torch.exp(-d_el_vmf(z, p)) - likelihood.mean(0)).abs() < 4 * standard).all())
    same = torch.full((3, 4), 4.0).double()
    settings: Any = {"normalizer": "jacobian"}
    every = d_el_nivmf(p, same, samples=draws, **settings)
    torch.testing.assert_close(every, -likelihood.mean(0).log())
    first = d_el_nivmf(p, same, samples=draws[:7], temperature=0.5, **settings)
    density = log_density_nivmf(draws[:7], p, same, **settings)
    torch.testing.assert_close(first, -0.5 * torch.log(torch.exp(density / 0.5).mean(0)))
    settings |= {"temperature": 0.5, "temperature_inside": False}
    outside = d_el_nivmf(p, same, samples=draws[:7], **settings)
    torch.testing.assert_close(outside, -likelihood[:7].mean(0).log())


# at dim 512 and kappa 11 the release's sampler has a mean cosine of -0.84, and ours 0.0215
@pytest.mark.parametrize("dim", [2, 3, 64, 128, 512])
@pytest.mark.parametrize("kappa", [1.0, 11.0, 50.0, 243.0, 701.0, 2000.0])
def test_sampler_has_the_exact_mean_and_an_unbiased_gradient(dim, kappa):
    num = 2000
    generator = torch.Generator().manual_seed(dim)
    mu = normalize(torch.randn(dim, generator=generator).double(), dim=0)
    kappas = torch.full((num,), kappa, dtype=torch.float64, requires_grad=True)
    drawn = sample(mu.expand(num, dim), kappas, 1, generator=generator)[0]
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(num, dtype=torch.float64))
    cosine = drawn @ mu
    gradient = torch.autograd.grad(cosine.sum(), kappas)[0]
    k = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    a = mean_resultant(k, dim)
    variance = torch.autograd.grad(a, k)[0]
    cosine, a = cosine.detach(), a.detach()
    spread = (cosine - a).square()
    # the mean's standard error, four times
    within = {values: 4 * float(values.std()) / num**0.5 for values in (cosine, spread, gradient)}
    assert abs(float(cosine.mean() - a)) < within[cosine]
    assert abs(float(spread.mean() - variance)) < within[spread]
    assert abs(float(gradient.mean() - variance)) < within[gradient] + 1e-9 * float(variance)
    residue = drawn.detach().mean(0) - (drawn.detach().mean(0) @ mu) * mu
    assert float(residue.norm()) < 2 / num**0.5  # E = A mu: nothing across


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (5, 5.0), (64, 30.0), (512, 5000.0)])
def test_implicit_gradient_is_that_of_the_quantile(dim, kappa):
    """dw/dkappa at a fixed quantile, by finite differences of the distribution on a grid."""
    angle = torch.linspace(1e-9, np.pi - 1e-9, 400_001, dtype=torch.float64)

    def distribution(k: float) -> tuple[Tensor, Tensor]:
        height = k * torch.cos(angle) + (dim - 2) * torch.log(torch.sin(angle))
        density = torch.exp(height - height.max())
        mass = density.cumsum(0)
        # F(w <= cos angle), density in the angle
        return 1 - (mass - 0.5 * density) / mass[-1], density / (mass[-1] * (angle[1] - angle[0]))

    step = 1e-4 * kappa
    (low, _), (middle, density), (high, _) = map(distribution, (kappa - step, kappa, kappa + step))
    for quantile in (0.03, 0.3, 0.7, 0.97):
        at = int((middle - quantile).abs().argmin())
        moved = float(high[at] - low[at]) / (2 * step)
        expected = -moved / float(density[at] / torch.sin(angle[at]))
        ours = slope(torch.tensor([kappa], dtype=torch.float64), torch.cos(angle[at : at + 1]), dim)
        assert float(ours) == pytest.approx(expected, rel=2e-4)


def test_sampler_edges():
    generator = torch.Generator().manual_seed(0)
    for dim in (2, 3, 20):
        mu = torch.zeros(3, dim)
        mu[1, 0] = mu[2, 1] = 1
        kappa = torch.tensor([0.0, 1e-8, 1e6], requires_grad=True)
        drawn = sample(mu, kappa, 50, generator=generator)
        torch.testing.assert_close(drawn.norm(dim=-1), torch.ones(50, 3))
        assert bool(torch.isfinite(torch.autograd.grad(drawn.sum(), kappa)[0]).all())
        kappa = torch.tensor([1.0, math.nan, 2.0], requires_grad=True)
        drawn = sample(mu, kappa, 5)
        assert bool(torch.autograd.grad(drawn.nansum(), kappa)[0][::2].isfinite().all())
        assert drawn.isnan().any(dim=-1).tolist() == [[False, True, False]] * 5


def test_distances_have_right_gradients():
    generator = torch.Generator().manual_seed(0)
    z = (2 * torch.randn(3, 6, generator=generator).double()).requires_grad_()
    p = (3 * torch.randn(2, 6, generator=generator).double()).requires_grad_()
    kappas = (torch.rand(2, 6, generator=generator).double() + 1).requires_grad_()
    for distance in (distances.d_cos, distances.d_l2, d_el_vmf, d_b_vmf, d_kl_vmf):
        assert torch.autograd.gradcheck(distance, (z, p)), distance
    assert torch.autograd.gradcheck(d_nivmf, (z, p, kappas))
    samples = uniform(12, 6).reshape(4, 3, 6)
    expected_likelihood = partial(d_el_nivmf, samples=samples, temperature=0.7)
    assert torch.autograd.gradcheck(expected_likelihood, (p, kappas))
