"""Exact draws from the von Mises-Fisher distribution (Ulrich 1984, Wood 1994), with unbiased
gradients; and from its cousin, the Power Spherical.

A draw is w mu + sqrt(1 - w^2) t: t uniform among the unit vectors orthogonal to mu, the cosine w
from f(w) = exp(kappa w) (1 - w^2)^((n-3)/2). n = 3 inverts the distribution function; otherwise w
is drawn by rejection, at least .66 of the proposals being accepted. Gradient with respect to kappa:
implicit reparameterisation, dw/dkappa = -(dF/dkappa)/f(w) = -int_{-1}^{w} (t - A) f(t) dt / f(w),
by Gauss-Legendre quadrature. The sampler of the papers' releases (s_vae_pytorch) takes b = (n-1)/(4
kappa) for kappa > 10, which is valid for kappa >> n only: at n = 512 and kappa = 11 its mean cosine
is -.84, the true one .02. Nothing here reproduces it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from eval.directional import relative
from toolkit.vmf.precision import once_in_full

Family = Literal["vmf", "power_spherical"]
FAMILIES = get_args(Family)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def sample(
    mu: Tensor,
    kappa: Tensor,
    num_samples: int,
    *,
    generator: Generator | None = None,
    family: Family = "vmf",
) -> Tensor:
    """num_samples draws per distribution: unit mu (..., D), kappa (...) >= 0 -> (num_samples, ...,
    D) unit vectors, differentiable in mu and kappa. D >= 2.

    family="power_spherical" (De Cao & Aziz 2020) has the density (1 + mu.x)^kappa: no rejection,
    mean kappa/(n - 1 + kappa); not the same distribution. A zero row of mu stands for any
    direction. generator: of mu's device.
    """
    dim = mu.shape[-1]
    if dim < 2 or mu.shape[:-1] != kappa.shape:
        raise ValueError(
            "sample: mu must be (..., D) with D >= 2 and kappa (...), but their shapes are "
            f"{tuple(mu.shape)} and {tuple(kappa.shape)}"
        )
    noise = torch.randn(
        num_samples, *mu.shape, dtype=torch.float32, device=mu.device, generator=generator
    ).to(mu.dtype)  # one stream for every precision
    along, across = cosines(kappa, dim, num_samples, generator=generator, family=family)
    mu = torch.where(
        mu.square().sum(-1, keepdim=True) > 0.25,
        mu,
        torch.eye(1, dim, dtype=mu.dtype, device=mu.device)[0],
    )
    tangent = noise - (noise * mu).sum(-1, keepdim=True) * mu
    tangent = tangent / tangent.square().sum(-1, keepdim=True).clamp(min=1e-30).sqrt()
    return along.to(mu.dtype)[..., None] * mu + across.to(mu.dtype)[..., None] * tangent


def cosines(
    kappa: Tensor,
    dim: int,
    num_samples: int,
    *,
    generator: Generator | None = None,
    family: Family = "vmf",
) -> tuple[Tensor, Tensor]:
    """w and sqrt(1 - w^2) of num_samples draws per concentration: (...) -> two of (num_samples,
    ...), float64, differentiable in kappa.
    """
    if family not in FAMILIES:
        raise ValueError(f"sample: family={family!r} must be one of {', '.join(FAMILIES)}")
    kappa = kappa.double()
    bad = ~(torch.isfinite(kappa) & (kappa >= 0))
    if bool(bad.any()):
        raise ValueError(
            f"sample: {int(bad.sum())} of {bad.numel()} concentrations are negative, NaN or "
            "infinite; they are norms of embeddings"
        )
    if family == "power_spherical":
        half = torch.full(
            (num_samples, *kappa.shape), (dim - 1) / 2, dtype=torch.float64, device=kappa.device
        )
        with_, against = (
            torch._standard_gamma(shape, generator=generator) for shape in (half + kappa, half)
        )  # reparameterised by torch
        along = (with_ - against) / (with_ + against)
    else:
        with torch.no_grad():
            drawn = (_inverse if dim == 3 else _rejection)(kappa, dim, num_samples, generator)
        along = _Implicit.apply(kappa.expand(drawn.shape), drawn, dim)  # type: ignore[no-untyped-call]
    square = (1 - along) * (1 + along)
    return along, torch.where(
        square > 1e-30, square.clamp(min=1e-30).sqrt(), torch.zeros_like(square)
    )


def _inverse(kappa: Tensor, dim: int, num_samples: int, generator: Generator | None) -> Tensor:
    uniform = torch.rand(
        num_samples, *kappa.shape, dtype=torch.float64, device=kappa.device, generator=generator
    )
    kappa = kappa.clamp(min=1e-100)
    return (1 + torch.log1p(uniform * torch.expm1(-2 * kappa)) / kappa).clamp(-1, 1)


def _rejection(kappa: Tensor, dim: int, num_samples: int, generator: Generator | None) -> Tensor:
    """Every round draws for all, accepted or not: the same seed gives each distribution the same
    proposals whatever its neighbours accept.
    """
    n = dim - 1
    b = n / (2 * kappa + (4 * kappa * kappa + n * n).sqrt())
    # 1 - x, where x = (1 - b)/(1 + b) is the proposals' parameter: everything below is in 1 - x and
    # 1 - w, so that no kappa cancels
    rest = 2 * b / (1 + b)
    half = torch.full((num_samples, *kappa.shape), n / 2, dtype=torch.float64, device=kappa.device)
    result = torch.zeros_like(half)
    waiting = torch.ones_like(half, dtype=torch.bool)
    while bool(waiting.any()):
        left, right = (
            torch._standard_gamma(half, generator=generator),
            torch._standard_gamma(half, generator=generator),
        )
        uniform = torch.rand(
            half.shape, dtype=torch.float64, device=half.device, generator=generator
        )
        share = (
            left * (1 + b) / (right + b * left)
        )  # (1 - w)/(1 - x), w = (1 - (1 + b) beta)/(1 - (1 - b) beta), beta = left/(left + right)
        log_ratio = kappa * rest * (1 - share) + n * torch.log(
            (1 + (1 - rest) * share) / (2 - rest)
        )
        accepted = waiting & (log_ratio >= torch.log(uniform))
        result = torch.where(accepted, 1 - rest * share, result)
        waiting = waiting & ~accepted
    return result


class _Implicit(torch.autograd.Function):
    """w as it was drawn, with dw/dkappa."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, w: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa, w)
        ctx.dim = dim
        return w.clone()

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        kappa, w = ctx.saved_tensors
        return grad * slope(kappa, w, ctx.dim), None, None


def slope(kappa: Tensor, w: Tensor, dim: int) -> Tensor:
    """dw/dkappa of a cosine w (kappa's shape, float64) at fixed quantile.

    The integral runs over the tail beyond w, in the angle: smooth for every n >= 2.
    """
    square = kappa.square()
    q, above = (
        torch.as_tensor(relative(kappa.cpu().numpy(), n)[1], device=kappa.device)
        for n in (dim, dim + 2)
    )
    mean = kappa * q
    reach = (
        12 * (q + square * q * (above - q)).clamp(min=1e-300).sqrt()
    )  # 12 standard deviations: dA/dkappa is the variance
    upper = w > mean
    start = torch.acos(w.clamp(-1, 1))
    end = torch.acos(
        torch.where(upper, torch.maximum(mean + reach, w), torch.minimum(mean - reach, w)).clamp(
            -1, 1
        )
    )
    nodes, weights = (torch.as_tensor(x, device=kappa.device) for x in (NODES, WEIGHTS))
    angle = (0.5 * (start + end))[..., None] + (0.5 * (end - start))[..., None] * nodes
    cosine, sine = torch.cos(angle), torch.sin(angle).clamp(min=1e-300)
    sine_w = torch.sin(start).clamp(min=1e-300)
    height = kappa[..., None] * (cosine - w[..., None]) + (dim - 3) * torch.log(
        sine / sine_w[..., None]
    )
    integral = (
        ((cosine - mean[..., None]) * height.exp() * sine * weights).sum(-1)
        * 0.5
        * (end - start).abs()
    )
    integral = torch.where(upper, integral, -integral)
    return torch.where(
        torch.isfinite(integral) & (w.abs() < 1), integral, torch.zeros_like(integral)
    )  # w rounds to 1: kappa beyond 1e15


def generator_of(seed: Tensor, device: torch.device) -> Generator:
    """The generator that an integer tensor stands for."""
    return Generator(device=device).manual_seed(int(seed))


def ranks(z: Tensor) -> Tensor:
    """(B,) the place of every row of (B, D) in an order that its content alone decides: noise dealt
    out by it does not depend on the order of rows.
    """
    weights = torch.cos(torch.arange(z.shape[1], dtype=torch.float64, device=z.device))
    direction = torch.nn.functional.normalize(z.detach().double(), dim=1)
    return (direction @ weights).argsort().argsort()


def move_on(value: Tensor, seed: Tensor) -> Tensor:
    """value as it is; a backward pass through it adds 1 to the seed.

    So a loss without a step in between repeats itself, and the next step draws afresh.
    """
    if value.requires_grad:
        value.register_hook(lambda _: _increment(seed))  # type: ignore[no-untyped-call]
    return value


def _increment(seed: Tensor) -> None:
    seed.add_(1)
