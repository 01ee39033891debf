"""A loss on learned composites of sub-embeddings."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from likeness.toolkit.losses.common import checked, compare_with
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.pairing import Pairs
from likeness.toolkit.losses.simple import refuse_negative
from likeness.toolkit.losses.triplet import MarginLoss
from likeness.toolkit.vmf.rows import unit


@checked
class DCML(nn.Module):
    """The margin loss on learned composites of sub-embeddings. Zheng et al. 2021.

    An embedding z is cut into E sub-embeddings z^1 .. z^E of equal length, and each of K
    compositors weighs them anew for every item:

        c_k = sum over e of a_ke z^e,  with (a_k1, .., a_kE) = softmax(A_k z + b_k).

    The value is the mean over compositors of MarginLoss(c_k) + reinforce * mean over items of -log
    max_e a_ke. The second term is the paper's self-reinforced loss, which lets a compositor settle
    on few sub-embeddings. A compositor sees z without gradient, so that the sub-embeddings learn
    from the composites alone. With mining="distance_weighted" this is the paper's DCML-MDW.

    The embeddings that are compared later are z itself, the sub-embeddings end to end. No pairs:
    the second term alone.

    Args:
        num_classes: Not used.
        num_parts: E. Where it does not divide dim, the last sub-embeddings are filled up with
            zeros.
        num_composites: K. The release's command takes K = E = 4.
        reinforce: Weight of the second term, 1 in the release; at least 0.
        margin, beta, learn_beta, mining: Those of MarginLoss.

    Example:
        >>> loss = DCML(8, num_parts=2, num_composites=3)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        num_parts: int = 4,
        num_composites: int = 4,
        reinforce: float = 1.0,
        margin: float = 0.2,
        beta: float = 1.2,
        learn_beta: bool = True,
        mining: Literal["all", "distance_weighted"] = "all",
    ):
        super().__init__()
        self.dim, self.reinforce = dim, reinforce
        self.num_parts, self.num_composites = num_parts, num_composites
        self.bank: KeyBank | None = None
        length = -(-dim // num_parts)
        self.compositors = nn.Linear(dim, num_composites * num_parts)
        self.base = MarginLoss(
            length, margin=margin, beta=beta, learn_beta=learn_beta, mining=mining
        )

    def log_weights(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, K, E): the logarithms of what the compositors give each sub-embedding."""
        weight, bias = (learned.to(z.dtype) for learned in self.compositors.parameters())
        logits = linear(z.detach(), weight, bias)
        return logits.view(len(z), self.num_composites, self.num_parts).log_softmax(dim=2)

    def _composites(self, z: Tensor, log_weights: Tensor) -> Tensor:
        """(B, dim), (B, K, E) -> (K, B, d) of norm 1."""
        parts = pad(z, (0, self.base.dim * self.num_parts - self.dim))
        parts = parts.view(len(z), self.num_parts, self.base.dim)
        return unit((log_weights.exp() @ parts).transpose(0, 1))

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        refuse_negative(y)
        keys, key_labels, own = compare_with(self.bank, z, y, z_key)
        log_weights = self.log_weights(z)
        composites = of_keys = self._composites(z, log_weights)
        if keys is not z:
            with torch.no_grad():
                of_keys = self._composites(keys, self.log_weights(keys))
        values = [
            self.base.of_pairs(Pairs(x, x if keys is z else k, y, key_labels, own))
            for x, k in zip(composites, of_keys, strict=True)
        ]
        surest = log_weights.amax(dim=2)  # of each item and compositor
        return torch.stack(values).mean() - self.reinforce * surest.mean()
