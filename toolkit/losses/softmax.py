"""Softmax cross-entropy: on raw embeddings, and on the cosine with a learned or a fixed scale."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from likeness.toolkit.losses.classes import cross_entropy
from likeness.toolkit.losses.common import (
    checked,
    cosine_of_angle,
    normal,
    positive,
    proxies,
    uniform,
)
from likeness.toolkit.losses.contract import Rates, default_groups
from likeness.toolkit.vmf.rows import full, unit


def norms(x: Tensor) -> Tensor:
    """Euclidean norms of rows, (N, D) -> (N,), whose gradient at a zero row is zero, not NaN."""
    square = x.square().sum(dim=1)
    return torch.where(square > 0, square.clamp(min=torch.finfo(x.dtype).tiny).sqrt(), square)


def centre_and_scale(z: Tensor) -> Tensor:
    """Subtract from each row (N, D) the mean of its coordinates, and divide it by its norm.

    This is layer norm without learned numbers, followed by division by the norm: the standard
    deviation cancels. Products of such rows are Pearson's correlations. A row whose coordinates are
    all equal, up to rounding, has no direction: it becomes zero and gets no gradient.

    Example:
        >>> centre_and_scale(torch.tensor([[1.0, 5.0], [2.0, 2.0]]))
        tensor([[-0.7071,  0.7071],
                [ 0.0000,  0.0000]])
    """
    z = full(z)
    rows = z - z.mean(dim=1, keepdim=True)
    rounding = 8 * torch.finfo(z.dtype).eps * torch.linalg.vector_norm(z, dim=1)
    equal = torch.linalg.vector_norm(rows, dim=1) <= rounding
    return unit(rows.masked_fill(equal[:, None], 0.0))


def generalised_product(
    z: Tensor, proxies: Tensor, b_theta: float, bias: Tensor | None = None
) -> Tensor:
    """Generalised inner product z.w - b_theta |z| |w| (+ bias). SimPLE paper, Eq 6.

    Args:
        z: Embeddings (B, D).
        proxies: Class vectors (C, D).
        b_theta: Cosine of the angle at which the product changes its sign; 0 is the inner product.
        bias: Added to every row (C,), or None.

    Returns:
        (B, C).
    """
    product = linear(z, proxies, bias)
    return (
        product if b_theta == 0 else torch.addr(product, norms(z), norms(proxies), alpha=-b_theta)
    )


def scaled_cosine(z: Tensor, proxies: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """scale * cos(z_i, w_j): (B, D), (C, D) -> (B, C).

    A number multiplies the (B, D) rows, which is cheaper than the (B, C) result.
    """
    rows, columns = unit(z), unit(proxies)
    if isinstance(scale, Tensor):
        return scale.to(rows.dtype) * linear(rows, columns.to(rows.dtype))
    return linear(scale * rows, columns.to(rows.dtype))


def tau_groups(
    loss: nn.Module, tau: nn.Parameter, tau_lr: float, optim: Rates
) -> list[dict[str, Any]]:
    """The usual groups, but tau at its own rate, without momentum or decay (vMF paper, App. D.3).

    Args:
        loss: A loss with `proxies`.
        tau: The logarithm of its learned scale.
        tau_lr: The rate at which tau learns.
        optim: The optimiser's settings.

    Returns:
        Parameter groups: the proxies', tau's, and one of other parameters if there are any.
    """
    usual, *others = default_groups(loss, optim)
    own = {"params": [tau], "lr": tau_lr, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}
    rest = [parameter for group in others for parameter in group["params"] if parameter is not tau]
    return [usual, own, *([{**others[0], "params": rest}] if rest else [])]


@checked
class Softmax(nn.Module):
    """Cross-entropy of z W^T, with nothing normalised.

    Scott et al. 2021, Eq 1 (STANDARD). Pairs are compared by the cosine unless a recipe sets
    similarity="euclidean", the paper's geometry of this loss. product="generalised" is CE* of the
    SimPLE paper (Wen et al. 2023, Eq 9), with logits z.w - b_theta |z| |w|; pairs are then scored
    by simple:b_theta.

    Args:
        bias: Learn a bias for every class, as the usual linear classifier does.
        product: "inner product" or "generalised".
        b_theta: Cosine in [-1, 1] of the generalised product; not used by the other.
        start: Class vectors start uniform within +-start, as the vMF paper's do (App. D.1). 0 takes
            normal numbers of standard deviation dim^-1/2.

    Raises:
        LikenessError: b_theta is no cosine.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        bias: bool = False,
        product: Literal["inner product", "generalised"] = "inner product",
        b_theta: float = 0.3,
        start: float = 0.0,
    ):
        super().__init__()
        cosine_of_angle(self, b_theta=b_theta)
        self.dim, self.num_classes, self.product = dim, num_classes, product
        self.b_theta = float(b_theta) if product == "generalised" else 0.0
        self.proxies = proxies(num_classes, dim, uniform(start, normal(dim**-0.5)))
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings."""
        return f"simple:{self.b_theta:.6g}" if self.product == "generalised" else "cosine"

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the products, with the bias."""
        bias = None if self.bias is None else self.bias.to(z.dtype)
        return generalised_product(z, self.proxies.to(z.dtype), self.b_theta, bias)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)


@checked
class Cosine(nn.Module):
    """Cross-entropy of exp(tau) cos(z, w_j), with tau learned.

    Zhai & Wu 2019; Scott et al. 2021, Eq 3 (COSINE).

    Args:
        tau: Where tau starts. The paper takes 0 (fixed sets, SOP), 3.466 = log 32 (Cars196) and
            2.773 = log 16 (CUB).
        tau_lr: The rate at which tau learns, without momentum and weight decay (paper: 1e-4 to
            1e-2).
        start: Class vectors start uniform within +-start; 0 is Xavier's normal distribution.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        tau: float = 0.0,
        tau_lr: float = 0.001,
        start: float = 0.0,
    ):
        super().__init__()
        self.dim, self.num_classes, self.tau_lr = dim, num_classes, tau_lr
        self.proxies = proxies(num_classes, dim, uniform(start, nn.init.xavier_normal_))
        self.tau = nn.Parameter(torch.tensor(float(tau)))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): exp(tau) * cosine."""
        return scaled_cosine(z, self.proxies, self.tau.exp())

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """The usual groups, but tau at the rate tau_lr, without momentum and decay."""
        return tau_groups(self, self.tau, self.tau_lr, optim)


@checked
class NormFace(nn.Module):
    """Cross-entropy of scale * cos(z, w_j) with a fixed scale. Wang et al. 2017.

    Losses that have these logits, and change them in training alone, are made of it.
    pytorch-metric-learning calls it NormalizedSoftmaxLoss, with temperature = 1 / scale.
    """

    spreads_classes = True

    def __init__(self, dim: int, num_classes: int, *, scale: float = 30.0):
        super().__init__()
        positive(self, scale=scale)
        self.dim, self.num_classes, self.scale = dim, num_classes, scale
        self.proxies = proxies(num_classes, dim)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * cosine."""
        return scaled_cosine(z, self.proxies, self.scale)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)


@checked
class NormSoft(nn.Module):
    """Cross-entropy of cos(LN(z), w_j) / temperature. Zhai & Wu 2019.

    LN is layer norm without learned numbers, which subtracts from an embedding the mean of its
    coordinates (`centre_and_scale`). Both sides are normalised after it. Where z is divided by its
    norm alone this is NormFace of scale 1 / temperature.

    The paper's recipe also balances the batch: many items of few classes, as Sampling's
    items_per_class does.

    The release standardises the pooled features, before the last linear layer; only without such a
    layer does it standardise the embedding, as this loss does. Models are compared by the cosine of
    raw embeddings, which keeps the mean of the coordinates. No gradient of this loss moves that
    mean, and weight decay on the last layer shrinks it.

    Args:
        temperature: Positive.
        layer_norm: False leaves LN out, for networks that have it themselves.

    Raises:
        LikenessError: temperature is not positive.

    Example:
        >>> loss = NormSoft(8, 10)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    spreads_classes = True

    def __init__(
        self, dim: int, num_classes: int, *, temperature: float = 0.05, layer_norm: bool = True
    ):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim, self.num_classes = dim, num_classes
        self.temperature, self.layer_norm = temperature, layer_norm
        self.proxies = proxies(num_classes, dim, uniform(dim**-0.5))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the cosine, divided by the temperature."""
        rows = centre_and_scale(z) if self.layer_norm else z
        return scaled_cosine(rows, self.proxies, 1 / self.temperature)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)
