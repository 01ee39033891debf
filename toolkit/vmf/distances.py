"""Distances between distributions on the unit sphere, which losses are made of.

Letters: B samples, C proxies, S draws, D = n dimensions; lc = log C_n and A are those of
toolkit/vmf/distribution.py. A natural parameter of a vMF is nu = kappa mu. Everything is
differentiable once.
"""

from math import log

import torch
from torch import Tensor

from likeness.toolkit.vmf.distribution import (
    Method,
    Normalizer,
    log_c_at_zero,
    log_density_nivmf,
    relative_log_c,
    resultant_ratio,
)
from likeness.toolkit.vmf.rows import unit


def d_cos(z: Tensor, p: Tensor) -> Tensor:
    """-cos, with both sides normalised: (B, D), (C, D) -> (B, C)."""
    return -unit(z) @ unit(p).T


def d_l2(z: Tensor, p: Tensor) -> Tensor:
    """|p - z|^2 of natural parameters: (B, D), (C, D) -> (B, C)."""
    return (z.square().sum(-1)[:, None] + p.square().sum(-1) - 2 * z @ p.T).clamp(min=0)


def d_nivmf(
    z: Tensor,
    mu: Tensor,
    kappas: Tensor,
    *,
    normalizer: Normalizer = "paper",
    method: Method = "debye",
    relative: bool = False,
) -> Tensor:
    """-log nivMF_j(mu_z); the sample's norm is not used.

    Args:
        z: Embeddings (B, D).
        mu: Directions (C, D).
        kappas: Concentrations > 0 (C, D).
        normalizer, method, relative: See log_density_nivmf.

    Returns:
        (B, C).
    """
    return -log_density_nivmf(
        unit(z), mu, kappas, normalizer=normalizer, method=method, relative=relative
    )


def d_el_nivmf(
    mu: Tensor,
    kappas: Tensor,
    *,
    samples: Tensor,
    temperature: Tensor | float = 1.0,
    temperature_inside: bool = True,
    normalizer: Normalizer = "paper",
    method: Method = "debye",
    relative: bool = False,
) -> Tensor:
    """Expected likelihood -log mean_s nivMF_j(z_s) by Monte Carlo. nivMF paper, Eq 5.

    The draws are z_s ~ vMF(z/|z|, |z|).

    Args:
        mu: Directions (C, D).
        kappas: Concentrations > 0 (C, D).
        samples: The draws, unit vectors (S, B, D).
        temperature: t.
        temperature_inside: True gives -t log mean_s nivMF_j(z_s)^(1/t), Algorithm 1 and the release
            (d/t is then what their softmax takes); False is Eq 5 and 6. They are the same at t = 1;
            at small t the former is the best of the samples.
        normalizer, method, relative: See log_density_nivmf.

    Returns:
        (B, C).
    """
    density = log_density_nivmf(
        samples, mu, kappas, normalizer=normalizer, method=method, relative=relative
    )
    if not temperature_inside:
        temperature = 1.0
    return temperature * (log(len(samples)) - torch.logsumexp(density / temperature, dim=0))


def d_el_vmf(z: Tensor, p: Tensor, *, method: Method = "debye", relative: bool = False) -> Tensor:
    """Expected likelihood of two vMFs. nivMF paper, Eq 35.

    lc(|z + p|) - lc(|z|) - lc(|p|).

    Args:
        z: Natural parameters (B, D).
        p: Natural parameters (C, D).
        method: See relative_log_c.
        relative: Leave log C_n(0) out.

    Returns:
        (B, C).
    """
    return _kernel(z, p, 1.0, method) - (0.0 if relative else log_c_at_zero(z.shape[-1], method))


def d_b_vmf(z: Tensor, p: Tensor, *, method: Method = "debye") -> Tensor:
    """Bhattacharyya distance of two vMFs. nivMF paper, Eq 29.

    lc(|z + p|/2) - lc(|z|)/2 - lc(|p|)/2 of natural parameters (B, D), (C, D) -> (B, C).
    """
    return _kernel(z, p, 0.5, method)


def _kernel(z: Tensor, p: Tensor, power: float, method: Method) -> Tensor:
    """lc(power |z + p|) - power (lc(|z|) + lc(|p|)): (B, D), (C, D) -> (B, C).

    lc is relative to lc(0).
    """
    dim, square_z, square_p = z.shape[-1], z.square().sum(-1)[:, None], p.square().sum(-1)
    square = (square_z + square_p + 2 * z @ p.T).clamp(min=0)
    apart = relative_log_c(square_z, dim, method=method) + relative_log_c(
        square_p, dim, method=method
    )
    return relative_log_c(power**2 * square, dim, method=method) - power * apart


def d_kl_vmf(z: Tensor, p: Tensor, *, method: Method = "debye") -> Tensor:
    """KL(vMF_z || vMF_p) = lc(|z|) - lc(|p|) + A(|z|) (|z| - |p| cos).

    Of natural parameters (B, D), (C, D) -> (B, C). Eq 39 of the nivMF paper lacks A; its release
    also returns it with the sign of a similarity, so that training would maximise it: not
    reproduced.
    """
    dim, square = z.shape[-1], z.square().sum(-1)[:, None]
    apart = relative_log_c(square, dim, method=method) - relative_log_c(
        p.square().sum(-1), dim, method=method
    )
    return apart + resultant_ratio(square, dim, method=method) * (square - z @ p.T)
