"""The expensive parts of the vMF losses, in blocks that stay in the cache.

Their gradients are taken in the same pass. Letters: B embeddings, S draws of each, C classes, D
dimensions. lc = log C_n.
"""

from math import ceil, log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from likeness.toolkit.vmf.distribution import (
    Method,
    Normalizer,
    nivmf_terms,
    relative,
    relative_log_c,
)
from likeness.toolkit.vmf.rows import once_in_full


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
    is long for the reason of _ExpectedLikelihood's: its loops share a dozen buffers.
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

    The same value and gradients as cross_entropy(-d_el_nivmf(...) / t, y), without ever making (S,
    B, C): what then costs is the matrix products.

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
    first, second, constant, power = nivmf_terms(mu, kappas, normalizer=normalizer, method=method)
    t = torch.as_tensor(temperature, dtype=samples.dtype, device=samples.device)
    terms = (samples, first, second, constant, t, y, power, temperature_inside)
    return cast(Tensor, _expected_likelihood(*terms, torch.is_grad_enabled()))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _expected_likelihood(*arguments: Any) -> Any:
    return _ExpectedLikelihood.apply(*arguments)  # type: ignore[no-untyped-call]


class _ExpectedLikelihood(torch.autograd.Function):
    """mean_i [logsumexp_j l_ij - l_iy], l_ij = (logsumexp_s u_sij - log S) (tau / t).

    u = density / tau, where tau is t if that is inside, else 1, and density = constant_j - (power /
    2) log m + (x.first_j) / sqrt(m), m = x^2.second_j; without second, m = 1. `forward` is long, as
    its two loops share a dozen buffers: a part of it would be a function of them all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        samples: Tensor,
        first: Tensor,
        second: Tensor | None,
        constant: Tensor,
        t: Tensor,
        y: Tensor,
        power: float,
        inside: bool,
        learn: bool,
    ) -> Tensor:
        (num, size), classes, on_cpu = samples.shape[:2], len(first), samples.device.type == "cpu"
        tau, outer = (float(t), 1.0) if inside else (1.0, 1 / float(t))
        x = samples.transpose(0, 1).contiguous()  # (B, S, D): blocks of rows are then contiguous
        d_x, d_first = torch.empty_like(x), torch.zeros_like(first)
        d_constant = torch.zeros_like(constant)
        d_second = None if second is None else torch.zeros_like(second)
        offset, total, d_t = constant / tau, 0.0, 0.0
        # Matrix products want many rows, and everything else wants them in the cache.
        rows = max(1, min(size, (2**23 if on_cpu else 2**26) // (num * classes)))
        few = max(1, min(rows, (2**18 if on_cpu else 2**26) // (num * classes)))
        products = x.new_empty(1 if second is None else 2, rows * num, classes)
        scratch = x.new_empty(2, few, num, classes)
        for start in range(0, size, rows):
            block = x[start : start + rows].flatten(0, 1)
            square = block.square()
            inner = torch.mm(block, first.T, out=products[0, : len(block)]).view(-1, num, classes)
            lengths = None
            if second is not None:
                lengths = torch.mm(square, second.T, out=products[1, : len(block)])
                lengths = lengths.view(-1, num, classes)
            for begin in range(0, len(inner), few):
                along = inner[begin : begin + few]
                u, share = scratch[:, : len(along)]
                if lengths is None:
                    torch.add(offset, along, alpha=1 / tau, out=u)
                else:
                    inverse = lengths[begin : begin + few].clamp_(min=1e-30).rsqrt_()
                    along.mul_(inverse)
                    torch.add(offset, along, alpha=1 / tau, out=u)
                    if power:
                        u.add_(torch.log(inverse, out=share), alpha=power / tau)
                torch.softmax(u, 1, out=share)
                logits = (u.amax(1) - share.amax(1).log() - log(num)) * outer
                labels = y[start + begin : start + begin + len(along), None]
                own = logits.gather(1, labels)
                total += float((torch.logsumexp(logits, 1, keepdim=True) - own).sum())
                if not learn:
                    continue
                d_logits = torch.softmax(logits, 1)
                d_logits.scatter_add_(1, labels, -torch.ones_like(own)).div_(size)
                share.mul_((d_logits * outer)[:, None])  # d loss / d u
                part = torch.dot(u.flatten(), share.flatten()) if inside else d_logits * logits
                d_t -= float(part.sum())
                d_constant += share.sum((0, 1))
                if lengths is None:
                    along.copy_(share)
                else:
                    # d inner = share / sqrt(m), and d m = -(power + inner / sqrt(m)) share / 2 m,
                    # each still to be divided by tau.
                    along.add_(power).mul_(inverse)
                    inverse.mul_(share)
                    along.mul_(inverse)
            if not learn:
                continue
            d_block = d_x[start : start + rows].flatten(0, 1)
            if second is None or d_second is None or lengths is None:
                d_inner = inner.flatten(0, 1)
                torch.mm(d_inner, first, out=d_block)
            else:
                d_inner, d_square = lengths.flatten(0, 1), inner.flatten(0, 1)
                torch.mm(d_square, second, out=d_block)
                d_block.mul_(block).neg_().addmm_(d_inner, first)
                d_second.addmm_(d_square.T, square, alpha=-0.5 / tau)
            d_first.addmm_(d_inner.T, block, alpha=1 / tau)
        if learn:
            d_samples, d_temperature = d_x.div_(tau).transpose(0, 1), t.new_tensor(d_t / float(t))
            ctx.save_for_backward(d_samples, d_first, d_second, d_constant / tau, d_temperature)
        return samples.new_tensor(total / size)

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slopes = (None if slope is None else grad * slope for slope in ctx.saved_tensors)
        return (*slopes, None, None, None, None)
