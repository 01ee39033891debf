"""Exact draws from the von Mises-Fisher distribution.

Ulrich 1984, Wood 1994; with unbiased gradients. A draw is w mu + sqrt(1 - w^2) t: t is uniform
among the unit vectors orthogonal to mu, and the cosine w is from f(w) = exp(kappa w) (1 -
w^2)^((n-3)/2). n = 3 inverts the distribution function; otherwise w is drawn by rejection, with at
least .66 of the proposals accepted. The gradient with respect to kappa is implicit
reparameterisation, dw/dkappa = -(dF/dkappa)/f(w) = -int_{-1}^{w} (t - A) f(t) dt / f(w), by
Gauss-Legendre quadrature.

The sampler of the papers' releases (s_vae_pytorch) takes b = (n-1)/(4 kappa) for kappa > 10, which
is valid for kappa >> n only: at n = 512 and kappa = 11 its mean cosine is -.84, the true one .02.
Nothing here reproduces it.
"""

from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from likeness.eval.metrics.von_mises_fisher import relative
from likeness.toolkit.vmf.rows import once_in_full

NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


def sample(
    mu: Tensor, kappa: Tensor, num_samples: int, *, generator: Generator | None = None
) -> Tensor:
    """Draw unit vectors, differentiable in mu and kappa.

    Args:
        mu: Unit vectors (..., D), D >= 2. A zero row stands for any direction.
        kappa: Concentrations >= 0 (...). Where one is not finite, the draw is NaN.
        num_samples: Draws per distribution.
        generator: Of random numbers, on mu's device; None takes torch's default.

    Returns:
        (num_samples, ..., D).

    Example:
        >>> sample(torch.eye(3), torch.full((3,), 5.0), 2).shape
        torch.Size([2, 3, 3])
    """
    dim = mu.shape[-1]
    # In float32, so that the stream of random numbers is the same for every precision.
    noise = torch.randn(
        num_samples, *mu.shape, dtype=torch.float32, device=mu.device, generator=generator
    ).to(mu.dtype)
    along, across = cosines(kappa, dim, num_samples, generator=generator)
    first = torch.eye(1, dim, dtype=mu.dtype, device=mu.device)[0]
    mu = torch.where(mu.square().sum(-1, keepdim=True) > 0.25, mu, first)
    tangent = noise - (noise * mu).sum(-1, keepdim=True) * mu
    tangent = tangent / tangent.square().sum(-1, keepdim=True).clamp(min=1e-30).sqrt()
    return along.to(mu.dtype)[..., None] * mu + across.to(mu.dtype)[..., None] * tangent


def cosines(
    kappa: Tensor, dim: int, num_samples: int, *, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw the cosines w of draws with their directions, and sqrt(1 - w^2).

    Args:
        kappa: Concentrations >= 0 (...).
        dim: n >= 2.
        num_samples, generator: See sample.

    Returns:
        Two of (num_samples, ...), float64, differentiable in kappa.
    """
    kappa = kappa.double()
    with torch.no_grad():
        drawn = (_inverse if dim == 3 else _rejection)(kappa, dim, num_samples, generator)
    along = _Implicit.apply(kappa.expand(drawn.shape), drawn, dim)  # type: ignore[no-untyped-call]
    along = along.where(kappa.isfinite(), torch.nan)
    square = (1 - along) * (1 + along)
    return along, torch.where(
        square > 1e-30, square.clamp(min=1e-30).sqrt(), torch.zeros_like(square)
    )


def _inverse(kappa: Tensor, dim: int, num_samples: int, generator: Generator | None) -> Tensor:
    """Cosines for n = 3 by the inverse of the distribution function."""
    uniform = torch.rand(
        num_samples, *kappa.shape, dtype=torch.float64, device=kappa.device, generator=generator
    )
    kappa = kappa.clamp(min=1e-100)
    return (1 + torch.log1p(uniform * torch.expm1(-2 * kappa)) / kappa).clamp(-1, 1)


def _rejection(kappa: Tensor, dim: int, num_samples: int, generator: Generator | None) -> Tensor:
    """Cosines by rejection.

    Every round draws for all, accepted or not: the same seed gives each distribution the same
    proposals whatever its neighbours accept.
    """
    n = dim - 1
    b = n / (2 * kappa + (4 * kappa * kappa + n * n).sqrt())
    # `rest` is 1 - x, where x = (1 - b)/(1 + b) is the proposals' parameter: everything below is in
    # 1 - x and 1 - w, so that no kappa cancels.
    rest = 2 * b / (1 + b)
    half = torch.full((num_samples, *kappa.shape), n / 2, dtype=torch.float64, device=kappa.device)
    result = torch.zeros_like(half)
    waiting = kappa.isfinite().expand(half.shape)  # NaN would never accept a proposal
    while bool(waiting.any()):
        left, right = (torch._standard_gamma(half, generator=generator) for _ in range(2))
        uniform = torch.rand(
            half.shape, dtype=torch.float64, device=half.device, generator=generator
        )
        # The share is (1 - w)/(1 - x), w = (1 - (1 + b) beta)/(1 - (1 - b) beta), where beta =
        # left/(left + right).
        share = left * (1 + b) / (right + b * left)
        log_ratio = kappa * rest * (1 - share)
        log_ratio = log_ratio + n * torch.log((1 + (1 - rest) * share) / (2 - rest))
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
    """dw/dkappa of a cosine w at fixed quantile.

    The integral runs over the tail beyond w, in the angle: smooth for every n >= 2.

    Args:
        kappa: Concentrations, float64.
        w: Cosines of kappa's shape, float64.
        dim: n.

    Returns:
        A tensor of kappa's shape.
    """
    kappa = kappa.nan_to_num(0.0, 0.0)  # what is not finite has slope 0
    square = kappa.square()
    q, above = (
        torch.as_tensor(relative(kappa.cpu().numpy(), n)[1], device=kappa.device)
        for n in (dim, dim + 2)
    )
    mean = kappa * q
    # 12 standard deviations: dA/dkappa is the variance.
    reach = 12 * (q + square * q * (above - q)).clamp(min=1e-300).sqrt()
    upper = w > mean
    start = torch.acos(w.clamp(-1, 1))
    far = torch.where(upper, torch.maximum(mean + reach, w), torch.minimum(mean - reach, w))
    end = torch.acos(far.clamp(-1, 1))
    nodes, weights = (torch.as_tensor(x, device=kappa.device) for x in (NODES, WEIGHTS))
    angle = (0.5 * (start + end))[..., None] + (0.5 * (end - start))[..., None] * nodes
    cosine, sine = torch.cos(angle), torch.sin(angle).clamp(min=1e-300)
    sine_w = torch.sin(start).clamp(min=1e-300)
    height = kappa[..., None] * (cosine - w[..., None]) + (dim - 3) * torch.log(
        sine / sine_w[..., None]
    )
    area = ((cosine - mean[..., None]) * height.exp() * sine * weights).sum(-1)
    integral = area * 0.5 * (end - start).abs()
    integral = torch.where(upper, integral, -integral)
    # w rounds to 1 where kappa is beyond 1e15.
    usable = torch.isfinite(integral) & (w.abs() < 1)
    return torch.where(usable, integral, torch.zeros_like(integral))


def generator_of(seed: Tensor, device: torch.device) -> Generator:
    """The generator that an integer tensor stands for."""
    return Generator(device=device).manual_seed(int(seed))


def ranks(z: Tensor) -> Tensor:
    """Order rows by what they contain.

    Noise that is dealt out in this order does not depend on the order of rows.

    Args:
        z: (B, D).

    Returns:
        The place of every row in the order (B,).
    """
    weights = torch.cos(torch.arange(z.shape[1], dtype=torch.float64, device=z.device))
    direction = torch.nn.functional.normalize(z.detach().double(), dim=1)
    return (direction @ weights).argsort().argsort()


def move_on(value: Tensor, seed: Tensor) -> Tensor:
    """Give back value as it is; a backward pass through it adds 1 to the seed.

    So a loss without a step in between repeats itself, and the next step draws afresh.
    """
    if value.requires_grad:
        value.register_hook(lambda _: _increment(seed))  # type: ignore[no-untyped-call]
    return value


def _increment(seed: Tensor) -> None:
    seed.add_(1)
