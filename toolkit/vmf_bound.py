"""The part of the vMF loss that costs: mean_{s,i} logsumexp_j [lc(|w_j|) - lc(|w_j + beta z_si|)] over S draws of B embeddings and C classes, lc = log C_n."""

from __future__ import annotations

from math import ceil, log
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from toolkit.vmf import Method, relative, relative_log_c


def expected_logsumexp(cosine: Tensor, along: Tensor, across: Tensor, shared: Tensor, square_w: Tensor, beta: Tensor, dim: int, method: Method) -> Tensor:
    """The scores w_j.z_si of unit z_si being along_si cosine_ij + across_si shared_sj: (B, C), (S, B), (S, B), (S, C), |w|^2 (C,), scalar -> scalar.

    float32 runs blockwise and never holds (S, B, C).
    """
    log_c_w = relative_log_c(square_w, dim, method=method)
    if method == "debye" and cosine.dtype == torch.float32:
        return cast(Tensor, _blockwise(cosine, along, across, shared, square_w, log_c_w, beta, dim))
    scores = along[..., None] * cosine + across[..., None] * shared[:, None]
    square = (square_w + beta * beta + 2 * beta * scores).clamp(min=0)
    return torch.logsumexp(log_c_w - relative_log_c(square, dim, method=method), dim=-1).mean()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _blockwise(*arguments: Any) -> Tensor:
    result: Tensor = _Blockwise.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Blockwise(torch.autograd.Function):
    """expected_logsumexp with its gradient taken in the same pass, in blocks of 2 MB that stay in the cache.

    A class's logit is a smooth function of the score alone, which lies within |w_j|: a polynomial of low degree per class (see polynomials), evaluated with its
    derivative in a few fused multiply-adds per score instead of the series' two logarithms and some fifty products.
    """

    @staticmethod
    def forward(ctx: Any, cosine: Tensor, along: Tensor, across: Tensor, shared: Tensor, square_w: Tensor, log_c_w: Tensor, beta: Tensor, dim: int) -> Tensor:
        (num, size), classes = along.shape, cosine.shape[1]
        b = float(beta)
        reach = torch.maximum(square_w.sqrt(), beta / 4)
        found = polynomials(square_w, log_c_w, reach, b, dim)
        cosine, shared = cosine / reach, shared / reach  # scores in units of their reach from here on: in [-1, 1]
        sums, d_along, d_across = torch.empty_like(along), torch.empty_like(along), torch.empty_like(across)
        d_cosine, d_shared, d_score, d_log_c = torch.zeros_like(cosine), torch.zeros_like(shared), torch.zeros_like(square_w), torch.zeros_like(square_w)
        rows = max(1, (2**19 if cosine.device.type == "cpu" else 2**25) // classes)
        for start in range(0, size, rows):
            part, block = slice(start, start + rows), cosine[start : start + rows]
            for s in range(num):
                a, c = along[s, part, None], across[s, part, None]
                score = (block * a).addcmul_(shared[s], c)
                if found is None:
                    log_c, q = relative((square_w + b * b + 2 * b * reach * score).clamp_(min=0), dim)
                    weight, slope = log_c_w - log_c, b * reach * q
                else:
                    weight, slope = _horner(score, found[0]), _horner(score, found[1])
                top: Any = 0.0
                if b > 40:  # logits are within [-beta, beta]
                    top = weight.amax(1)
                    weight.sub_(top[:, None])
                total = weight.exp_().sum(1)
                sums[s, part] = total.log() + top
                each = 1 / (total * (num * size))  # what makes softmax weights of mean terms
                d_log_c.addmv_(weight.T, each)
                slope.mul_(weight)
                d_cosine[part].addcmul_(slope, each[:, None] * a)
                d_shared[s].addmv_(slope.T, each * c[:, 0])
                d_score.addmv_(slope.T, each)
                d_along[s, part] = each * slope.mul(block).sum(1)
                d_across[s, part] = each * (slope @ shared[s])
        d_beta = (d_score / reach).sum() + ((along * d_along).sum() + (across * d_across).sum()) / b
        ctx.save_for_backward(d_cosine.div_(reach), d_along, d_across, d_shared / reach, d_score / (2 * b * reach), d_log_c, d_beta)
        return sums.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(grad * one for one in ctx.saved_tensors), None


def polynomials(square_w: Tensor, log_c_w: Tensor, reach: Tensor, b: float, dim: int, *, max_degree: int = 14) -> tuple[Tensor, Tensor] | None:
    """Per class, lc(|w|) - lc(k) and its derivative as polynomials in x, k^2 = |w|^2 + b^2 + 2 b reach x, -1 <= x <= 1: (degree+1, C) and (degree, C), float32.

    Interpolation of the exact series at Chebyshev points. Its error falls as rho^-degree: lc is singular at no k^2 above -(n/2)^2, the place of that in x gives
    rho and rho the degree at which the error is below float32's. None if that exceeds max_degree (large b in few dimensions).
    """
    square, far = square_w.double(), reach.double()
    pole = float(((square + b * b + (dim / 2) ** 2) / (2 * b * far)).min())
    if pole <= 1:
        return None
    degree = max(2, ceil(log(4e7 * max(b, 1.0)) / log(pole + (pole * pole - 1) ** 0.5)))
    if degree > max_degree:
        return None
    nodes = np.polynomial.chebyshev.chebpts1(degree + 1)
    inverse = torch.as_tensor(np.linalg.inv(np.vander(nodes, increasing=True)), device=square.device)
    points = torch.as_tensor(nodes, device=square.device)[:, None]
    values = log_c_w.double() - relative((square + b * b + 2 * b * far * points).clamp(min=0), dim)[0]
    found = inverse @ values
    powers = torch.arange(1, degree + 1, dtype=torch.float64, device=square.device)[:, None]
    return found.float(), (found[1:] * powers).float()


def _horner(x: Tensor, coefficients: Tensor) -> Tensor:
    """sum_m coefficients_m x^m for (..., C) x and (degree + 1, C) coefficients, at least two."""
    value = torch.addcmul(coefficients[-2], x, coefficients[-1])
    for m in range(len(coefficients) - 3, -1, -1):
        torch.addcmul(coefficients[m], value, x, out=value)
    return value
