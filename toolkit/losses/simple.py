"""SimPLE: pairwise similarity learning without proxies, normalisation or margins."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.common import checked, compare_with, cosine_of_angle, positive, share
from likeness.toolkit.losses.contract import KeyBank, Rates, default_groups
from likeness.toolkit.vmf.rows import once_in_full, unit

GATHERING = {"cpu"}  # devices on which positives are gathered
BLOCK = 1 << 20  # logits in memory at a time on a CPU; sixteen times as many elsewhere


def polarlike(z: Tensor) -> Tensor:
    """Softplus of the first coordinate times the direction of the others: (..., D) -> (..., D - 1).

    So the released code of SimPLE has it.
    """
    return softplus(z[..., :1]) * unit(z[..., 1:])


def refuse_negative(y: Tensor) -> None:
    """Refuse labels (B,) below 0, since -1 is an empty slot of a bank.

    Labels on a GPU are not looked at, since every step would wait for it.

    Raises:
        LikenessError: A label is negative.
    """
    if y.device.type == "cpu" and not torch.compiler.is_compiling() and bool((y < 0).any()):
        wrong = y[y < 0]
        raise LikenessError(
            f"labels must be 0 or more, but {len(wrong)} of {len(y)} are negative (first: "
            f"{int(wrong[0])}); -1 marks an empty slot of a bank"
        )


def count_pairs(y: Tensor, key_labels: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Count the positive and the negative pairs without making the (B, Q) block.

    Args:
        y: Labels of the batch (B,).
        key_labels: Labels of the keys (Q,), -1 for an empty slot.
        own: The column of each row's self-pair (B,).

    Returns:
        Two scalars, int64. Self-pairs and empty slots are left out.
    """
    ordered = key_labels.sort().values
    same = (torch.searchsorted(ordered, y, right=True) - torch.searchsorted(ordered, y)).sum()
    return same - (key_labels[own] == y).sum(), len(y) * (key_labels >= 0).sum() - same


class LogisticPairs(torch.autograd.Function):
    """weight_p sum_P softplus((margin - S - b) / r) + weight_n sum_N softplus(r (S + b + margin)).

    S is the generalised inner product of z (B, D) and keys (Q, D). The sum is linear in its terms
    and the weights are known, so each block's gradient is taken while the block is at hand: memory
    is one block of BLOCK logits, and nothing is computed twice. b, b_theta and the weights are
    0-dimensional; the weights take no gradient. An autograd Function takes its tensors one by one,
    hence the many parameters of `forward`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        keys: Tensor,
        b: Tensor,
        b_theta: Tensor,
        y: Tensor,
        key_labels: Tensor,
        own: Tensor,
        weight_p: Tensor,
        weight_n: Tensor,
        r: float,
        margin: float,
    ) -> Tensor:
        needed = ctx.needs_input_grad[:4]
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        total, grad_b, grad_theta = z.new_zeros(()), z.new_zeros(()), z.new_zeros(())
        grad_z, norm_sum = torch.zeros_like(z), torch.zeros_like(norm)
        grad_keys = torch.zeros_like(keys) if needed[1] else None
        step = max(1, BLOCK * (1 if z.device.type == "cpu" else 16) // max(len(z), 1))
        for start in range(0, len(keys), step):
            block = slice(start, start + step)
            key_norm = torch.linalg.vector_norm(keys[block], dim=1, keepdim=True)
            logits = (z @ keys[block].T).addcmul_(norm * b_theta, key_norm.T, value=-1.0).add_(b)
            same = y[:, None] == key_labels[None, block]
            left_out = same | (key_labels[None, block] < 0)
            columns = torch.arange(start, start + logits.shape[1], device=z.device)
            same &= own[:, None] != columns  # without the self-pairs
            # Positives are few, so that a CPU gathers them. A GPU computes the whole block: a
            # step would have to wait for it to know how many there are.
            at = same.nonzero(as_tuple=True) if z.device.type in GATHERING else ...
            positive, negative = (margin - logits[at]) / r, logits.add_(margin).mul_(r)
            of_positives = softplus(positive, threshold=50)
            if at is ...:
                of_positives.masked_fill_(~same, 0.0)
            total += weight_p * of_positives.sum()
            total += weight_n * softplus(negative, threshold=50).masked_fill_(left_out, 0.0).sum()
            if not any(needed):
                continue
            # The slope is d total / d S.
            slope = negative.sigmoid_().mul_(weight_n * r).masked_fill_(left_out, 0.0)
            slope_p = positive.sigmoid().mul_(weight_p / -r)
            if at is ...:
                slope = torch.where(same, slope_p, slope)
            else:
                slope[at] = slope_p
            grad_b += slope.sum()
            grad_z.addmm_(slope, keys[block])
            norm_sum.addmm_(slope, key_norm)
            if grad_keys is not None:
                grad_keys[block] = slope.T @ z - b_theta * (slope.T @ norm) * _direction(
                    keys[block], key_norm
                )
        grad_z -= b_theta * norm_sum * _direction(z, norm)
        grad_theta -= (norm_sum * norm).sum()
        ctx.save_for_backward(grad_z, grad_keys, grad_b, grad_theta)
        return total

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [
            None if saved is None or not needed else grad * saved
            for saved, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return (*grads, *[None] * 7)


def _direction(z: Tensor, norm: Tensor) -> Tensor:
    """Rows (N, D) over their norms (N, 1); zero rows stay zero, the gradient taken there."""
    return torch.where(norm > 0, z / norm.clamp(min=torch.finfo(z.dtype).tiny), 0.0)


def logistic_pairs(
    z: Tensor,
    keys: Tensor,
    b: Tensor | float,
    b_theta: Tensor | float,
    labels: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    r: float = 1.0,
    margin: float = 0.0,
) -> Tensor:
    """LogisticPairs on numbers or parameters of any float type.

    Args:
        z: Embeddings (B, D).
        keys: (Q, D).
        b: The bias, a number or 0-dimensional.
        b_theta: The angular bias, a number or 0-dimensional.
        labels: y (B,), the keys' (Q,) and own (B,): see losses.common.against.
        weights: Of a positive and of a negative pair, 0-dimensional, of z's type.
        r: Divides the positives' scores and multiplies the negatives'.
        margin: Between positives and negatives.

    Returns:
        A scalar.
    """
    b, b_theta = (
        value.to(z) if isinstance(value, Tensor) else z.new_full((), value)
        for value in (b, b_theta)
    )
    value: Tensor = LogisticPairs.apply(  # type: ignore[no-untyped-call]
        z, keys, b, b_theta, *labels, *weights, r, margin
    )
    return value


@checked
class SimPLE(nn.Module):
    """SimPLE: every pair against one threshold, without proxies. Wen et al. 2023, Eq 8.

    weight * [alpha mean_P softplus(-(S - margin + b) / r) + (1 - alpha) mean_N softplus(r (S +
    margin + b))]. S is the generalised inner product of RAW embeddings; P and N are the pairs of
    equal and of different labels between the batch and its keys (losses.common.against), with
    self-pairs and empty slots of the bank left out. A pair is accepted if and only if S > -b. An
    empty P or N contributes 0. The (B, Q) block of scores is never kept whole: the memory beside a
    bank of any size is one block of logits (LogisticPairs).

    Args:
        num_classes: Not used.
        b_theta: Start of the angular bias, a cosine in [-1, 1].
        r: Divides the positives' scores and multiplies the negatives', positive.
        alpha: Weight of the positives, in (0, 1).
        b: Start of the bias.
        margin: Between positives and negatives.
        weight: Factor of the loss, the release's lw (500).
        learn_b: Learn the bias.
        learn_b_theta: Learn the angular bias within [-1, 1], as the text of Sec. 3 has it. It is
            fixed in the paper's appendix and in the release.
        reduction: "separate" takes both means apart, as the release does. "joint" is the literal
            expectation over all pairs of Eq 8.
        features: "polarlike" applies the release's softplus-magnitude features first.
        product: "cosine" is "SimPLE (cosine)" of Tables 3 and 10: S = scale * cos in training, and
            the cosine at test. b_theta would only add to b (Sec. 3) and is left out.
        scale: Of product="cosine". The paper prints none, and the release has no such score; with
            30, b = -10 sets the threshold at a cosine of 1/3.

    Raises:
        LikenessError: A setting is outside its range, or learn_b_theta is set with
            product="cosine".

    Example:
        >>> loss = SimPLE(8, b=-2.0, alpha=0.5)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
        >>> loss.similarity
        'simple:0.3'
    """

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        b_theta: float = 0.3,
        r: float = 3.0,
        alpha: float = 0.001,
        b: float = -10.0,
        margin: float = 0.0,
        weight: float = 1.0,
        learn_b: bool = True,
        learn_b_theta: bool = False,
        reduction: Literal["separate", "joint"] = "separate",
        features: Literal["raw", "polarlike"] = "raw",
        product: Literal["generalised", "cosine"] = "generalised",
        scale: float = 30.0,
    ):
        super().__init__()
        share(self, alpha=alpha)
        positive(self, alpha=alpha, r=r, scale=scale)
        cosine_of_angle(self, b_theta=b_theta)
        if product == "cosine" and learn_b_theta:
            raise LikenessError(
                "SimPLE: learn_b_theta=True needs product='generalised': product='cosine' has no "
                "b_theta to learn"
            )
        self.dim, self.r, self.alpha, self.margin, self.weight = dim, r, alpha, margin, weight
        self.reduction, self.features, self.product = reduction, features, product
        self.scale = scale
        self.b = nn.Parameter(torch.tensor(float(b)), requires_grad=learn_b)
        self.b_theta: nn.Parameter | float = float(b_theta) if product == "generalised" else 0.0
        if learn_b_theta:
            self.b_theta = nn.Parameter(torch.tensor(float(b_theta)))
        self.bank: KeyBank | None = None

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings."""
        if self.product == "cosine":
            return "cosine"
        b_theta = self.b_theta
        value = b_theta.item() if isinstance(b_theta, Tensor) else b_theta
        return f"simple:{min(max(value, -1.0), 1.0):.6g}"

    def _compared(self, z: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What the product is taken of: z (B, D) and keys (Q, D) after `features` and `product`."""
        if self.features == "polarlike":
            z, keys = polarlike(z), polarlike(keys)
        return (self.scale * unit(z), unit(keys)) if self.product == "cosine" else (z, keys)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        refuse_negative(y)
        if not isinstance(self.b_theta, float):
            # No score exists beyond a cosine's -1 and 1. The parameter itself is clamped, so that
            # it can return; .data keeps valid what an earlier forward pass saved for its gradient.
            self.b_theta.data.clamp_(-1.0, 1.0)
        keys, key_labels, own = compare_with(self.bank, z, y, z_key)
        num_positive, num_negative = (
            count.to(z.dtype) for count in count_pairs(y, key_labels, own)
        )
        if self.reduction == "joint":
            num_positive = num_negative = num_positive + num_negative
        weights = (
            self.weight * self.alpha / num_positive.clamp(min=1),
            self.weight * (1 - self.alpha) / num_negative.clamp(min=1),
        )
        z, keys = self._compared(z, keys)
        return logistic_pairs(
            z, keys, self.b, self.b_theta, (y, key_labels, own), weights, self.r, self.margin
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """b and b_theta at a tenth of the backbone's rate (the release: .01 beside .1)."""
        return [{**group, "lr": 0.1 * optim.lr} for group in default_groups(self, optim)]
