"""The parts of the vMF losses that cost, with their gradients taken in the same pass and in blocks
that stay in the cache.

Legend: B embeddings, S draws of each, C classes, D dimensions. lc = log C_n.
"""

from __future__ import annotations

from math import ceil, log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from toolkit.vmf.distribution import Method, Normalizer, nivmf_terms, relative, relative_log_c
from toolkit.vmf.precision import once_in_full


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
    """mean_{s,i} logsumexp_j [lc(|w_j|) - lc(|w_j + beta z_si|)] of unit z_si = along_si left_i +
    across_si left_{N+s}; and the rows w[y].

    left (N + S, D), along and across (S, N), w (C, D), y (any number,), beta scalar -> scalar,
    (len(y), D). float32 runs blockwise and never holds (S, N, C). The rows come from here so that
    their gradient joins the other's in one (C, D) tensor.
    """
    if method == "debye" and w.dtype == torch.float32:
        return cast(tuple[Tensor, Tensor], _softmax_bound(left, along, across, w, y, beta, dim))
    return torch.logsumexp(
        bound_logits(left, along, across, w, beta, dim, method), dim=-1
    ).mean(), w.index_select(0, y)


def bound_logits(
    left: Tensor, along: Tensor, across: Tensor, w: Tensor, beta: Tensor, dim: int, method: Method
) -> Tensor:
    """(S, N, C), what the logsumexp of expected_logsumexp is taken of: for other precisions, and
    for classes in shards.
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
    multiply-adds per score instead of the series' two logarithms and some fifty products.
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
        found = polynomials(square_w, log_c_w, reach, b, dim)
        scores = left @ w.T
        cosine, shared = (
            scores[:size],
            scores[size:].div_(reach),
        )  # scores in units of their reach from here on: in [-1, 1]
        sums, d_along, d_across = (
            torch.empty_like(along),
            torch.empty_like(along),
            torch.empty_like(across),
        )
        d_shared, d_score, d_log_c = (
            torch.zeros_like(shared),
            torch.zeros_like(square_w),
            torch.zeros_like(square_w),
        )
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
                if found is None:
                    log_c, q = relative(
                        (square_w + b * b + 2 * b * reach * score).clamp_(min=0), dim
                    )
                    torch.sub(log_c_w, log_c, out=value)
                else:
                    _horner(score, found[0], value)
                torch.softmax(value, 1, out=weight)
                sums[s, part] = (
                    value.amax(1) - weight.amax(1).log()
                )  # no logit is further below its row's logsumexp than log C
                slope = (
                    torch.mul(b * reach, q, out=value)
                    if found is None
                    else _horner(score, found[1], value)
                )
                d_log_c += weight.sum(0)
                slope.mul_(weight)
                d_score += slope.sum(0)
                gathered.addcmul_(slope, a)
                d_shared[s].addmv_(slope.T, c[:, 0])
                d_across[s, part] = slope @ shared[s]
                d_along[s, part] = slope.mul_(block).sum(1)
            torch.div(
                gathered, reach, out=cosine[part]
            )  # this block's scores have served: its gradient takes their place
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
        return (
            grad * (d_scores @ w),
            grad * d_along,
            grad * d_across,
            d_w,
            None,
            grad * d_beta,
            None,
        )


def polynomials(
    square_w: Tensor, log_c_w: Tensor, reach: Tensor, b: float, dim: int, *, max_degree: int = 14
) -> tuple[Tensor, Tensor] | None:
    """Per class, lc(|w|) - lc(k) and its derivative as polynomials in x, k^2 = |w|^2 + b^2 + 2 b
    reach x, -1 <= x <= 1: (degree+1, C) and (degree, C), float32.

    Interpolation of the exact series at Chebyshev points. Its error falls as rho^-degree: lc is
    singular at no k^2 above -(n/2)^2, the place of that in x gives rho and rho the degree at which
    the error is below float32's; terms that turn out to be below it are dropped. None if the degree
    exceeds max_degree (large b in few dimensions).
    """
    square, far = square_w.double(), reach.double()
    pole = float(((square + b * b + (dim / 2) ** 2) / (2 * b * far)).min())
    if (
        not pole > 1
    ):  # or NaN, of which no degree can be made: the exact series carries it on to the loss
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
    found = torch.as_tensor(to_powers, device=square.device) @ series[: degree + 1]
    powers = torch.arange(1, degree + 1, dtype=torch.float64, device=square.device)[:, None]
    return found.float(), (found[1:] * powers).float()


def _horner(x: Tensor, coefficients: Tensor, out: Tensor) -> Tensor:
    """sum_m coefficients_m x^m for (..., C) x and (degree + 1, C) coefficients, at least two; into
    out, which is not x.
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
    normalizer: Normalizer = "exact",
    method: Method = "debye",
) -> Tensor:
    """Mean cross-entropy of -d/t, d the d_el_nivmf of unit samples (S, B, D), labels y (B,), nivMF
    directions and concentrations (C, D), t scalar -> scalar.

    The same value and gradients as cross_entropy(-d_el_nivmf(...) / t, y), without ever holding (S,
    B, C): what then costs is the matrix products.
    """
    first, second, constant, power = nivmf_terms(mu, kappas, normalizer=normalizer, method=method)
    t = torch.as_tensor(temperature, dtype=samples.dtype, device=samples.device)
    return cast(
        Tensor,
        _expected_likelihood(
            samples,
            first,
            second,
            constant,
            t,
            y,
            power,
            temperature_inside,
            torch.is_grad_enabled(),
        ),
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _expected_likelihood(*arguments: Any) -> Any:
    return _ExpectedLikelihood.apply(*arguments)  # type: ignore[no-untyped-call]


class _ExpectedLikelihood(torch.autograd.Function):
    """mean_i [logsumexp_j l_ij - l_iy], l_ij = (logsumexp_s u_sij - log S) (tau / t), where u =
    density / tau, tau being t if that is inside, else 1, and density = constant_j - (power / 2) log
    m + (x.first_j) / sqrt(m), m = x^2.second_j; without second, m = 1.
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
        d_x, d_first, d_constant = (
            torch.empty_like(x),
            torch.zeros_like(first),
            torch.zeros_like(constant),
        )
        d_second = None if second is None else torch.zeros_like(second)
        offset, total, d_t = constant / tau, 0.0, 0.0
        rows = max(
            1, min(size, (2**23 if on_cpu else 2**26) // (num * classes))
        )  # of the matrix products, which want many
        few = max(
            1, min(rows, (2**18 if on_cpu else 2**26) // (num * classes))
        )  # of everything else, which wants the cache
        products = torch.empty(
            1 if second is None else 2, rows * num, classes, dtype=x.dtype, device=x.device
        )
        scratch = torch.empty(2, few, num, classes, dtype=x.dtype, device=x.device)
        for start in range(0, size, rows):
            block = x[start : start + rows].flatten(0, 1)
            square = block.square()
            inner = torch.mm(block, first.T, out=products[0, : len(block)]).view(-1, num, classes)
            lengths = (
                None
                if second is None
                else torch.mm(square, second.T, out=products[1, : len(block)]).view(
                    -1, num, classes
                )
            )
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
                d_t -= float(
                    torch.dot(u.flatten(), share.flatten()) if inside else (d_logits * logits).sum()
                )
                d_constant += share.sum((0, 1))
                if lengths is None:
                    along.copy_(share)
                else:
                    # d inner = share / sqrt(m), and d m = -(power + inner / sqrt(m)) share / 2 m,
                    # each still to be divided by tau
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
            ctx.save_for_backward(
                d_x.div_(tau).transpose(0, 1),
                d_first,
                d_second,
                d_constant / tau,
                t.new_tensor(d_t / float(t)),
            )
        return samples.new_tensor(total / size)

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (
            *(None if one is None else grad * one for one in ctx.saved_tensors),
            None,
            None,
            None,
            None,
        )
