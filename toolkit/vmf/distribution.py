"""Distributions on the unit sphere. toolkit/vmf/distances.py has the distances between them.

The von Mises-Fisher distribution (vMF) and the non-isotropic one (nivMF) have the densities

    vMF(mu, kappa):
        C_n(kappa) exp(kappa mu.x)                   natural parameter nu = kappa mu
    nivMF(mu, K):
        C_n(k) exp(k s(K x, K mu)) D(K)              k = |K mu|, K = diag(kappas)

Letters: B samples, C proxies, S draws, D = n dimensions. lc(k) = log C_n(k), A_n = -lc'. Everything
is differentiable once; gradients are analytic: with Q(k^2) = A_n(k)/k, d lc/d(k^2) = -Q/2 and
dQ/d(k^2) = Q (Q' - Q)/2, where Q' belongs to n + 2. Only k^2 enters: nothing is singular at k = 0.
The series itself is eval/metrics/von_mises_fisher.py's. Draws: toolkit/vmf/sampling.py.
"""

from math import ceil, log
from typing import Any, Literal

import torch
from torch import Tensor

from likeness.eval.metrics.von_mises_fisher import (
    closed_form,
    expansion,
    log_normalizer_at_zero,
    orders,
)
from likeness.toolkit.vmf.rows import once_in_full, unit

Method = Literal["debye", "bounds", "quadratic"]
Normalizer = Literal["paper", "jacobian", "released"]
# Eq 12 and 13 of the nivMF paper, fitted on kappa 10 ... 50 only.
QUADRATIC = {128: (127.0, -0.01909, -0.003355), 512: (868.0, -0.0002662, -0.0009685)}


def relative(square: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """lc(k) - lc(0) and Q = A/k of k^2, by Debye's expansion, without gradient.

    The error in lc is 1e-9 in float64 and rounding in float32.

    Args:
        square: k^2 >= 0, of any shape.
        dim: n, 2 or more.

    Returns:
        Both, of square's shape.
    """
    v, steps = orders(dim)
    if square.dtype == torch.float64 and v < 30:
        # Twice the order has a thirtieth of the truncation error.
        v, steps = dim / 2 - 1 + (more := ceil(30 - (dim / 2 - 1))), more
    stride = 4 if square.dtype == torch.float64 else 2
    log_c, q = expansion(square, v, steps, xp=torch, stride=stride)
    if dim == 3:
        log_c = closed_form(square.sqrt(), xp=torch)
    return log_c, q


class _LogC(torch.autograd.Function):
    """lc(k) - lc(0) as a function of k^2."""

    @staticmethod
    def forward(ctx: Any, square: Tensor, dim: int) -> Tensor:
        log_c, q = relative(square, dim)
        ctx.save_for_backward(q)
        return log_c

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -0.5 * grad * ctx.saved_tensors[0], None


class _Ratio(torch.autograd.Function):
    """Q(k^2) = A_n(k)/k."""

    @staticmethod
    def forward(ctx: Any, square: Tensor, dim: int) -> Tensor:
        q = relative(square, dim)[1]
        ctx.save_for_backward(square, q)
        ctx.dim = dim
        return q

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        square, q = ctx.saved_tensors
        return 0.5 * grad * q * (relative(square, ctx.dim + 2)[1] - q), None


def _quadratic(method: Method, dim: int) -> tuple[float, float, float]:
    """The fit for n = dim, once `method` turned out to be none of the others."""
    assert method == "quadratic", method
    return QUADRATIC[128 if dim == 128 else 512]


def relative_log_c(square: Tensor, dim: int, *, method: Method = "debye") -> Tensor:
    """lc(k) - lc(0) of k^2: what losses take differences of, since |lc(0)| is large and cancels.

    Args:
        square: k^2 >= 0, of any shape.
        dim: n.
        method: "debye": exact (error 1e-9 at worst, n = 3 in closed form). "bounds": the mean of an
            upper and a lower bound, Eq 12 of the vMF paper (error up to .1). "quadratic": Eq 12 and
            13 of the nivMF paper, far off outside kappa 10 ... 50; the fit for n = 128 there, the
            one for n = 512 elsewhere, as in the release.

    Returns:
        A tensor of square's shape.
    """
    if method == "debye":
        result: Tensor = _LogC.apply(square, dim)  # type: ignore[no-untyped-call]
        return result
    if method == "bounds":
        a = (dim - 1) / 2
        # The rise is sqrt(c^2 + k^2) - c.
        rise_a, rise_b = (square / ((square + c * c).sqrt() + c) for c in (a, a + 1))
        return 0.5 * (
            a * torch.log1p(rise_a / (2 * a))
            - rise_a
            + a * torch.log1p(rise_b / (2 * a + 1))
            - rise_b
        )
    _, slope, curve = _quadratic(method, dim)
    return slope * root(square) + curve * square


def resultant_ratio(square: Tensor, dim: int, *, method: Method = "debye") -> Tensor:
    """Q(k^2) = A_n(k)/k, which is 1/n at 0.

    The mean A_n(k) mu of a vMF with natural parameter nu is Q(|nu|^2) nu.

    Args:
        square: k^2 >= 0, of any shape.
        dim: n.
        method: See relative_log_c.

    Returns:
        A tensor of square's shape.
    """
    if method == "debye":
        result: Tensor = _Ratio.apply(square, dim)  # type: ignore[no-untyped-call]
        return result
    a = (dim - 1) / 2
    if method == "bounds":  # (g + h)/2k: Eq 10 of the vMF paper
        return 0.5 / (a + ((a + 1) ** 2 + square).sqrt()) + 0.5 / (a + (a * a + square).sqrt())
    _, slope, curve = _quadratic(method, dim)
    return -slope / root(square).clamp(min=1e-12) - 2 * curve


def log_normalizer(kappa: Tensor, dim: int, *, method: Method = "debye") -> Tensor:
    """log C_n(kappa).

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: n.
        method: See relative_log_c; the constant of "bounds" is the vMF paper's with eta = 0.

    Returns:
        A tensor of kappa's shape.

    Example:
        >>> log_normalizer(torch.zeros(1, dtype=torch.float64), 3).exp()  # 1 / (4 pi), uniform
        tensor([0.0796], dtype=torch.float64)
    """
    at_zero = log_normalizer_at_zero(dim)
    if method == "bounds":
        a = (dim - 1) / 2
        at_zero = 0.5 * (a * (log(2 * a) + log(2 * a + 1)) - 2 * a - 1)
    elif method == "quadratic":
        at_zero = _quadratic(method, dim)[0]
    return relative_log_c(kappa.square(), dim, method=method) + at_zero


def mean_resultant(kappa: Tensor, dim: int, *, method: Method = "debye") -> Tensor:
    """A_n(kappa) = |E[x]| = I_{n/2}(kappa)/I_{n/2-1}(kappa).

    Its derivative is 1 - A^2 - (n-1) A/kappa.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: n.
        method: See relative_log_c.

    Returns:
        A tensor of kappa's shape.
    """
    exact = kappa.double()  # the derivative is a small difference at large kappa
    return (exact * resultant_ratio(exact.square(), dim, method=method)).to(kappa.dtype)


def log_density_nivmf(
    x: Tensor,
    mu: Tensor,
    kappas: Tensor,
    *,
    normalizer: Normalizer = "paper",
    method: Method = "debye",
    relative: bool = False,
) -> Tensor:
    """Log density of nivMF(mu_j, diag(kappas_j)). nivMF paper, Eq 4 and supplement B.

    Args:
        x: Unit vectors (..., D).
        mu: Directions (C, D).
        kappas: Concentrations > 0 (C, D).
        normalizer: "paper": its D(K) = det(K)/|K mu|. The mode is mu, as the paper defines it, but
            the density does not integrate to 1: for K = c I it is c^(n-1) too large, which favours
            large concentrations. "jacobian": the map x -> Kx/|Kx| of the sphere has Jacobian
            det(K)/|Kx|^n, so the density integrates to 1 and equals vMF for K = c I; but |Kx|^n
            draws its mode away from mu, to the axes of small concentration. "released": what the
            release's EL-nivMF runs (utilities/misc.py): x is not multiplied by K, so k s(x, K mu),
            an isotropic vMF around K mu, with the D(K) of the paper.
        method: See relative_log_c.
        relative: Leave log C_n(0) out.

    Returns:
        (..., C).
    """
    first, second, constant, power = nivmf_terms(mu, kappas, normalizer=normalizer, method=method)
    inner = x @ first.T
    if second is None:
        density = constant + inner
    else:
        length = (x.square() @ second.T).clamp(min=1e-30)
        density = constant - (power / 2) * length.log() + inner * length.rsqrt()
    return density if relative else density + log_c_at_zero(x.shape[-1], method)


def nivmf_terms(
    mu: Tensor, kappas: Tensor, *, normalizer: Normalizer = "paper", method: Method = "debye"
) -> tuple[Tensor, Tensor | None, Tensor, float]:
    """What log_density_nivmf(relative=True) is made of.

    The density is constant_j - (power / 2) log m + (x.first_j) / sqrt(m), with m = x^2.second_j.

    Args:
        mu: Directions (C, D).
        kappas: Concentrations > 0 (C, D).
        normalizer, method: See log_density_nivmf.

    Returns:
        first (C, D); second (C, D), or None for "released", where m = 1; constant (C,); and power.
    """
    mu = unit(mu)
    peak = (kappas * mu).square().sum(-1)
    constant = relative_log_c(peak, mu.shape[-1], method=method)
    if normalizer != "jacobian":
        constant = constant + kappas.log().sum(-1) - 0.5 * peak.log()
    if normalizer == "released":
        return kappas * mu, None, constant, 0.0
    # The scale is the geometric mean: with K/scale, |Kx| stays near 1 and its logarithm exact in
    # float32. k s(Kx, K mu) = x.(kappas axes mu) / sqrt(m), m = |Kx|^2 / scale^2.
    scale = kappas.log().mean(-1, keepdim=True).exp()
    axes = kappas / scale
    power = float(mu.shape[-1]) if normalizer == "jacobian" else 0.0
    return kappas * axes * mu, axes.square(), constant, power


def log_c_at_zero(dim: int, method: Method) -> float:
    """log C_n(0) by the given method."""
    return float(log_normalizer(torch.zeros((), dtype=torch.float64), dim, method=method))


def root(square: Tensor) -> Tensor:
    """sqrt with gradient 0 at 0, of any shape."""
    return torch.where(square > 0, square.clamp(min=1e-30).sqrt(), square * 0)
