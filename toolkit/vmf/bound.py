"""The expensive parts of the vMF losses, in blocks that stay in the cache.

Their gradients are taken in the same pass. Letters: B embeddings, S draws of each, C classes, D
dimensions. lc = log C_n.
"""

from math import ceil, log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from likeness.toolkit.vmf.distribution import (
    Method,
    Normalizer,
    nivmf_terms,
    relative,
    relative_log_c,
)
from likeness.toolkit.vmf.precision import once_in_full


def expected_logsumexp(
    left: Tensor,
    along: Tensor,
    across: Tensor,
    w: Tensor,
    y: Tensor,
    beta: Tensor,
    dim: int,
    method: Method,
) -> tuple[Tensor, Tensor]:
    """mean_{s,i} logsumexp_j [lc(|w_j|) - lc(|w_j + beta z_si|)], and the rows w[y].

    The unit vectors are z_si = along_si left_i + across_si left_{N+s}. float32 runs blockwise and
    never makes (S, N, C). The rows come from here so that their gradient joins the other's in one
    (C, D) tensor.

    Args:
        left: (N + S, D).
        along, across: (S, N).
        w: Class vectors (C, D).
        y: Labels, any number of them.
        beta: The scale, a scalar.
        dim: D.
        method: See likeness.toolkit.vmf.distribution.relative_log_c.

    Returns:
        A scalar, and (len(y), D).
    """
    if method == "debye" and w.dtype == torch.float32:
        return cast(tuple[Tensor, Tensor], _softmax_bound(left, along, across, w, y, beta, dim))
    return torch.logsumexp(
        bound_logits(left, along, across, w, beta, dim, method), dim=-1
    ).mean(), w.index_select(0, y)


def bound_logits(
    left: Tensor, along: Tensor, across: Tensor, w: Tensor, beta: Tensor, dim: int, method: Method
) -> Tensor:
    """What the logsumexp of expected_logsumexp is taken of, (S, N, C).

    For other precisions than float32, and for classes that are spread over processes.
    """
    square_w, scores = w.square().sum(1), left @ w.T
    cosine, shared = scores[: along.shape[1]], scores[along.shape[1] :]
    scores = along[..., None] * cosine + across[..., None] * shared[:, None]
    square = (square_w + beta * beta + 2 * beta * scores).clamp(min=0)
    return relative_log_c(square_w, dim, method=method) - relative_log_c(square, dim, method=method)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _softmax_bound(*arguments: Any) -> Any:
    return _SoftmaxBound.apply(*arguments)  # type: ignore[no-untyped-call]


class _SoftmaxBound(torch.autograd.Function):
    """expected_logsumexp in float32.

    A class's logit is a smooth function of the score alone, which lies within |w_j|: a polynomial
    of low degree per class (see polynomials), evaluated with its derivative in a few fused
    multiply-adds per score instead of the series' two logarithms and some fifty products. `forward`
    is long, as its two loops share a dozen buffers: a part of it would be a function of them all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        along: Tensor,
        across: Tensor,
        w: Tensor,
        y: Tensor,
        beta: Tensor,
        dim: int,
    ) -> tuple[Tensor, Tensor]:
        (num, size), classes, b = along.shape, len(w), float(beta)
        norm_w = torch.linalg.vector_norm(w, dim=1)
        square_w = norm_w.square()
        log_c_w, q_w = relative(square_w, dim)
        reach = torch.maximum(norm_w, beta / 4)
        fits = polynomials(square_w, log_c_w, reach, b, dim)
        scores = left @ w.T
        # From here on scores are in units of their reach: in [-1, 1].
        cosine, shared = scores[:size], scores[size:].div_(reach)
        sums, d_along, d_across = (torch.empty_like(along) for _ in range(3))
        d_score, d_log_c = torch.zeros_like(square_w), torch.zeros_like(square_w)
        d_shared = torch.zeros_like(shared)
        rows = max(1, min(size, (2**19 if w.device.type == "cpu" else 2**25) // classes))
        buffers = torch.empty(5, rows, classes, device=w.device)
        for start in range(0, size, rows):
            part = slice(start, min(start + rows, size))
            block, score, value, weight, gathered = buffers[:, : part.stop - start]
            torch.div(cosine[part], reach, out=block)
            gathered.zero_()
            for s in range(num):
                a, c = along[s, part, None], across[s, part, None]
                torch.mul(block, a, out=score).addcmul_(shared[s], c)
                if fits is None:
                    square = (square_w + b * b + 2 * b * reach * score).clamp_(min=0)
                    log_c, q = relative(square, dim)
                    torch.sub(log_c_w, log_c, out=value)
                else:
                    _horner(score, fits[0], value)
                torch.softmax(value, 1, out=weight)
                # The largest weight is at least 1 / C, so that its logarithm is exact.
                sums[s, part] = value.amax(1) - weight.amax(1).log()
                if fits is None:
                    slope = torch.mul(b * reach, q, out=value)
                else:
                    slope = _horner(score, fits[1], value)
                d_log_c += weight.sum(0)
                slope.mul_(weight)
                d_score += slope.sum(0)
                gathered.addcmul_(slope, a)
                d_shared[s].addmv_(slope.T, c[:, 0])
                d_across[s, part] = slope @ shared[s]
                d_along[s, part] = slope.mul_(block).sum(1)
            # This block's scores have served: its gradient takes their place.
            torch.div(gathered, reach, out=cosine[part])
        torch.div(d_shared, reach, out=shared)
        d_beta = (d_score / reach).sum() + ((along * d_along).sum() + (across * d_across).sum()) / b
        d_square = d_score / (2 * b * reach) - 0.5 * q_w * d_log_c
        ctx.save_for_backward(left, w, y, scores, d_along, d_across, d_square, d_beta)
        return sums.mean(), w.index_select(0, y)

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor, grad_rows: Tensor) -> tuple[Tensor | None, ...]:
        left, w, y, d_scores, d_along, d_across, d_square, d_beta = ctx.saved_tensors
        grad = grad / d_along.numel()  # the mean over draws
        d_w = d_scores.T @ (grad * left)
        d_w.addcmul_(w, (2 * grad * d_square)[:, None]).index_add_(0, y, grad_rows)
        d_left = grad * (d_scores @ w)
        return d_left, grad * d_along, grad * d_across, d_w, None, grad * d_beta, None


def polynomials(
    square_w: Tensor, log_c_w: Tensor, reach: Tensor, b: float, dim: int, *, max_degree: int = 14
) -> tuple[Tensor, Tensor] | None:
    """Fit lc(|w|) - lc(k) of each class, and its derivative, by polynomials in x.

    k^2 = |w|^2 + b^2 + 2 b reach x, -1 <= x <= 1. They interpolate the exact series at Chebyshev
    points. The error falls as rho^-degree: lc is singular at no k^2 above -(n/2)^2, the place of
    that in x gives rho, and rho the degree at which the error is below float32's; terms that turn
    out to be below it are dropped.

    Args:
        square_w: |w|^2 (C,).
        log_c_w: lc(|w|) - lc(0) (C,).
        reach: (C,).
        b: The scale.
        dim: n.
        max_degree: Of the polynomials.

    Returns:
        (degree + 1, C) and (degree, C), float32, of ascending powers; None if the degree exceeds
        max_degree (large b in few dimensions).
    """
    square, far = square_w.double(), reach.double()
    pole = float(((square + b * b + (dim / 2) ** 2) / (2 * b * far)).min())
    # Or NaN, of which no degree can be made: the exact series carries it on to the loss.
    if not pole > 1:
        return None
    degree = max(2, ceil(log(4e7 * max(b, 1.0)) / log(pole + (pole * pole - 1) ** 0.5)))
    if degree > max_degree:
        return None
    chebyshev = np.polynomial.chebyshev
    nodes = chebyshev.chebpts1(degree + 1)
    inverse = torch.as_tensor(
        np.linalg.inv(chebyshev.chebvander(nodes, degree)), device=square.device
    )
    points = torch.as_tensor(nodes, device=square.device)[:, None]
    series = inverse @ (
        log_c_w.double() - relative((square + b * b + 2 * b * far * points).clamp(min=0), dim)[0]
    )
    tails = series.abs().amax(1).flip(0).cumsum(0).tolist()  # of the last one, two, ... terms
    degree = max(2, degree - sum(tail <= 2.0**-23 * max(b, 1.0) for tail in tails))
    to_powers = np.zeros((degree + 1, degree + 1))
    for m in range(degree + 1):
        to_powers[: m + 1, m] = chebyshev.cheb2poly([0.0] * m + [1.0])
    coefficients = torch.as_tensor(to_powers, device=square.device) @ series[: degree + 1]
    powers = torch.arange(1, degree + 1, dtype=torch.float64, device=square.device)[:, None]
    return coefficients.float(), (coefficients[1:] * powers).float()


def _horner(x: Tensor, coefficients: Tensor, out: Tensor) -> Tensor:
    """sum_m coefficients_m x^m, into out, which is not x.

    Args:
        x: (..., C).
        coefficients: (degree + 1, C), at least two.
        out: (..., C).

    Returns:
        out.
    """
    torch.addcmul(coefficients[-2], x, coefficients[-1], out=out)
    for m in range(len(coefficients) - 3, -1, -1):
        torch.addcmul(coefficients[m], out, x, out=out)
    return out


def el_nivmf_cross_entropy(
    samples: Tensor,
    y: Tensor,
    mu: Tensor,
    kappas: Tensor,
    temperature: Tensor | float,
    *,
    temperature_inside: bool = True,
    normalizer: Normalizer = "paper",
    method: Method = "debye",
) -> Tensor:
    """Mean cross-entropy of -d/t, where d is d_el_nivmf.

    The same as cross_entropy(-d_el_nivmf(...) / t, y), without ever keeping (S, B, C): a block of
    it is computed again for the gradient.

    Args:
        samples: Unit vectors (S, B, D).
        y: Labels (B,).
        mu: Directions (C, D).
        kappas: Concentrations > 0 (C, D).
        temperature: t, a scalar.
        temperature_inside, normalizer, method: See likeness.toolkit.vmf.distances.d_el_nivmf.

    Returns:
        A scalar.
    """
    terms = nivmf_terms(mu, kappas, normalizer=normalizer, method=method)
    t = torch.as_tensor(temperature, dtype=samples.dtype, device=samples.device)
    most = 2**23 if samples.device.type == "cpu" else 2**26
    size = max(1, most // (len(samples) * len(mu)))
    sums = [
        checkpoint(
            _cross_entropy_sum,
            *(samples[:, start : start + size], y[start : start + size], terms),
            *(t, temperature_inside),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, len(y), size)
    ]
    return torch.stack(sums).sum() / len(y)


def _cross_entropy_sum(
    samples: Tensor,
    y: Tensor,
    terms: tuple[Tensor, Tensor | None, Tensor, float],
    t: Tensor,
    inside: bool,
) -> Tensor:
    """The sum over some embeddings, given what nivmf_terms makes."""
    first, second, constant, power = terms
    along = samples @ first.T
    if second is not None:
        inverse = (samples.square() @ second.T).clamp(min=1e-30).rsqrt()
        along = along * inverse + power * inverse.log() if power else along * inverse
    density = constant + along
    likelihood = torch.logsumexp(density / t if inside else density, dim=0) - log(len(samples))
    return cross_entropy(likelihood if inside else likelihood / t, y, reduction="sum")
