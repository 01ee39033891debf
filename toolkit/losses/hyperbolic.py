"""Softmax in the Poincare ball."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from likeness.toolkit.losses.classes import cross_entropy
from likeness.toolkit.losses.common import checked, positive, proxies, uniform
from likeness.toolkit.losses.contract import Rates, proxy_group
from likeness.toolkit.losses.softmax import norms

INSIDE = 1e-3  # points are kept at (1 - INSIDE) of the ball's radius


def exp_map(u: Tensor, c: float) -> Tensor:
    """Map tangent vectors at the origin into the ball: tanh(sqrt(c)|u|) u / (sqrt(c)|u|).

    Args:
        u: Tangent vectors (N, D); 0 goes to 0.
        c: Curvature of the ball.

    Returns:
        Points (N, D).
    """
    square = c * u.square().sum(dim=1, keepdim=True)
    small = 1e-12  # below, tanh(t) / t is 1 - t^2 / 3 to the last digit
    length = square.clamp(min=small).sqrt()
    return torch.where(square > small, length.tanh() / length, 1 - square / 3) * u


def project(x: Tensor, c: float) -> Tensor:
    """Move points (N, D) beyond (1 - 1e-3) / sqrt(c) back to that radius."""
    radius = (1 - INSIDE) / math.sqrt(c)
    length = norms(x)[:, None]
    return torch.where(length > radius, x * (radius / length.clamp(min=radius)), x)


class _ScaleGrad(torch.autograd.Function):
    """The identity, whose gradient is multiplied row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


@checked
class Hyperbolic(nn.Module):
    """Softmax of signed distances to hyperplanes of the Poincare ball. Ganea et al. 2018.

    HYPERBOLIC, Eq 2 of the vMF paper (Scott et al. 2021). With h = project(exp_map(z)), p_j =
    exp_map(proxies_j), a_j = (1 - c|p_j|^2) normals_j and q = -p_j (+) h (Moebius addition),
    logit_j is (2 / (1 - c|p_j|^2)) |a_j| / sqrt(c) * asinh(2 sqrt(c) <q, a_j> / ((1 - c|q|^2)
    |a_j|)).

    `proxies` (C, D) are tangent vectors at the origin of the hyperplanes' points, `normals` (C, D)
    their normals. Neither takes weight decay: the release exempts these two, though no other loss's
    class vectors. Nothing is normalised. Embeddings are compared by poincare:c (or by cosine "at
    test").

    Args:
        c: Curvature, positive. It is 1e-5 in every best setting of the paper, where the logit is 4
            <z - p, a> to five digits: a linear classifier with bias.
        riemannian: Multiply the gradient that reaches h by (1 - c|h|^2)^2 / 4, as the paper's
            training does. The default is the loss's own gradient.
        epsilon: 1e-5 reproduces the release: it is added to the denominator of (+), and is the
            floor of x + sqrt(1 + x^2) in asinh.

    Raises:
        LikenessError: c is not positive.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        c: float = 1e-5,
        riemannian: bool = False,
        epsilon: float = 0.0,
    ):
        super().__init__()
        positive(self, c=c)
        self.dim, self.num_classes = dim, num_classes
        self.c, self.riemannian, self.epsilon = c, riemannian, epsilon
        self.proxies = proxies(num_classes, dim, uniform(dim**-0.5))  # kaiming_uniform(sqrt 5)
        self.normals = proxies(num_classes, dim, uniform(dim**-0.5))

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings."""
        return f"poincare:{self.c:.6g}"

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the signed distances, scaled."""
        c = self.c
        h = project(exp_map(z, c), c)
        if self.riemannian:
            factor = (1 - c * h.detach().square().sum(dim=1, keepdim=True)).square() / 4
            h = _ScaleGrad.apply(h, factor)  # type: ignore[no-untyped-call]
        p = exp_map(self.proxies.to(z.dtype), c)
        p = p if self.epsilon else project(p, c)
        normals = self.normals.to(z.dtype)
        h2, p2 = h.square().sum(dim=1, keepdim=True), p.square().sum(dim=1)
        length = norms(normals).clamp(min=torch.finfo(z.dtype).tiny)
        a = normals / length[:, None]
        ph = -linear(h, p)  # <-p, h>
        by_p, by_h = 1 + 2 * c * ph + c * h2, 1 - c * p2  # q = (by_p (-p) + by_h h) / below
        along = by_h * linear(h, a) - by_p * (p * a).sum(dim=1)  # <q, a> below / |a|
        if self.epsilon:
            below = 1 + 2 * c * ph + c * c * h2 * p2 + self.epsilon
            q2 = (by_p.square() * p2 + 2 * by_p * by_h * ph + by_h.square() * h2) / below.square()
            ratio = 2 * math.sqrt(c) * along / (below * (1 - c * q2))
            bent = (ratio + (1 + ratio.square()).sqrt()).clamp(min=self.epsilon).log()
            # Its backward is asinh's.
            bent = torch.asinh(ratio) + (bent - torch.asinh(ratio)).detach()
        else:  # 1 - c|q|^2 = (1 - c|p|^2)(1 - c|h|^2) / below, so below cancels
            bent = torch.asinh(2 * math.sqrt(c) * along / (by_h * (1 - c * h2)))
        return 2 * length / math.sqrt(c) * bent  # lambda_p |a| = 2 |normal|

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """Points and normals at the proxies' rate, without weight decay, as in the release."""
        return [proxy_group(optim, self.proxies, self.normals, decay=False)]
