"""Margin softmax with sub-centres and a penalty on the nearest wrong classes."""

import torch
from torch import Tensor

from likeness.toolkit.losses.classes import hardest_classes, target_column
from likeness.toolkit.losses.common import checked, radians
from likeness.toolkit.losses.margin import (
    MovingMargin,
    Ramp,
    SubCenterArcFace,
    cos_plus_margin,
    margin_softmax,
)


@checked
class InterTopK(SubCenterArcFace):
    """ArcFace with K sub-centres per class and an inter-top-k penalty. Zhao et al. 2022.

    cos(theta_j) is the largest over the sub-centres of class j. The loss is the cross-entropy of
    scale * cos(theta_j), where the target's logit is scale * cos(theta_y + margin), and where the
    `hardest` wrong classes of every embedding, those with the largest cosines, have
    scale * cos(theta_j - penalty). So these classes are pushed further away. Both sides are
    normalised.

    Large-margin fine-tuning, which follows, takes the same loss with a larger margin and with
    hardest=0 (WeSpeaker's do_lm).

    Args:
        num_subcentres: K. The first sub-centre of every class is in `proxies` (C, D), the others
            are in `subcentres` (K - 1, C, D), as in SubCenterArcFace.
        hardest: How many wrong classes have the penalty; at most all of them.
        penalty: Radians in [0, pi).
        margin: Radians in [0, pi).
        scale: Factor of the cosine.
        warmup_steps, ramp: How the margin and the penalty rise together: see MovingMargin.
            WeSpeaker's rises in the same way, but has no penalty below a margin of .001.

    Raises:
        LikenessError: margin or penalty is not in [0, pi), scale or num_subcentres are not
            positive, or hardest is negative.

    Example:
        >>> loss = InterTopK(8, 10, hardest=2)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 3, 3, 9])).shape
        torch.Size([])
    """

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_subcentres: int = 3,
        hardest: int = 5,
        penalty: float = 0.06,
        margin: float = 0.2,
        scale: float = 32.0,
        warmup_steps: int | tuple[int, int] = 0,
        ramp: Ramp = "linear",
    ):
        super().__init__(
            dim,
            num_classes,
            num_subcentres=num_subcentres,
            margin=margin,
            scale=scale,
            wrap="continuous",
        )
        radians(self, penalty=penalty)
        self.hardest = hardest
        self.moving = MovingMargin("InterTopK", margin, warmup_steps, ramp)
        self.rising = MovingMargin("InterTopK", penalty, warmup_steps, ramp)

    def at_step(self, step: int) -> None:
        """Set the margin and the penalty for this step (counted from 0) of the warm-up."""
        self.moving.at_step(step)
        self.rising.at_step(step)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        target = target_column(logits, y)
        changed = cos_plus_margin(target / self.scale, self.moving.now(self.training), self.wrap)
        logits = self._penalised(logits, y, self.rising.now(self.training))
        return margin_softmax(logits, y, target, self.scale * changed)

    def _penalised(self, logits: Tensor, y: Tensor, penalty: float) -> Tensor:
        """Raise the logits (B, C) of every row's hardest wrong classes."""
        if not self.hardest:
            return logits
        nearest, chosen = hardest_classes(logits, y, self.hardest)
        before = logits.gather(1, nearest)
        after = self.scale * cos_plus_margin(before / self.scale, -penalty, "none")
        return logits.scatter_add(1, nearest, torch.where(chosen, after - before, 0.0))
