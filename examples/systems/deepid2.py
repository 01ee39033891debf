"""DeepID2: identification by softmax, and verification by distances with a margin that adapts.

    python examples/systems/deepid2.py --data DATA --out runs/deepid2 --steps 300

Sun, Chen, Wang and Tang, "Deep Learning Face Representation by Joint Identification-Verification",
NIPS 2014. A network learns from two signals. Identification is the cross-entropy of a softmax over
the training classes. Verification pulls two embeddings f_i and f_j of one class together, and
pushes those of two classes apart until they have the distance m:

    1/2 |f_i - f_j|^2                   for one class
    1/2 max(0, m - |f_i - f_j|)^2       for two classes

The loss is identification + weight * verification; the paper's weight is .05. The margin m is not
learned by gradient. It is the threshold on distances that makes the fewest errors on the last
pairs that were seen.

Nothing of the training loop is replaced: the system is a loss. toolkit.losses has its parts:
Joint(first=Softmax, second=partial(Contrastive, squared=True)) is DeepID2 with a fixed margin and
embeddings of length 1. The class here has what that lacks: raw distances, and a margin that moves.

No code of the authors is known to us, so the formulas are tested by loops alone.

Assumed: all pairs of a batch are used, and pairs of one class weigh as much as pairs of two, both
in the loss and in the choice of the margin. The paper remembers about 200,000 pairs; here 20,000
are kept. Left out: Joint Bayesian on features of many face patches, which compares faces in
the paper; here embeddings are compared by the cosine.

Measured with this command (2026-11-23, one seed): recall@1 .656, and .662 of the softmax alone.
With the paper's weight of .05 it was .316: raw distances start at about 15 here. So .005 was chosen
for SYSTEM.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import shared
import torch
from torch import Tensor, nn

from toolkit.losses.common import checked
from toolkit.losses.pair import hinges
from toolkit.losses.pairing import average, distance, pair_up
from toolkit.losses.softmax import Softmax
from toolkit.training.memory import Bank
from toolkit.training.recipe import Recipe
from toolkit.training.train import Step, step


class DeepID2(nn.Module):
    """Softmax plus weight times the contrastive loss of raw distances.

    Args:
        weight: Of verification.
        window: How many of the last pairs the margin is chosen on.

    Raises:
        ValueError: window is below 1.
    """

    margin: Tensor

    def __init__(
        self, dim: int, num_classes: int, *, weight: float = 0.05, window: int = 20_000
    ) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"DeepID2: window={window} must be at least 1")
        self.dim, self.num_classes, self.weight = dim, num_classes, weight
        self.identification = Softmax(dim, num_classes)
        self.seen = Bank(window, 1)  # distances of the last pairs; labels: 1 for pairs of one class
        self.register_buffer("margin", torch.zeros(()))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        identification: Tensor = self.identification(z, y)
        pairs = pair_up(None, z, y, None, normalise=False)
        d, masks = distance(z, z), pairs.masks()
        self._adapt(d.detach(), y)
        sums = hinges(d, masks, (0.0, float(self.margin)), True, "mean")
        verification = average(sums[0], sums[1]) + average(sums[2], sums[3])
        return identification + self.weight * verification

    @torch.no_grad()
    def _adapt(self, d: Tensor, y: Tensor) -> None:
        """Remember the pairs of a batch, and set the margin."""
        i, j = torch.triu_indices(len(y), len(y), 1, device=y.device)
        size = len(self.seen.labels)
        self.seen.enqueue(d[i, j][-size:, None], (y[i] == y[j]).long()[-size:])
        known = self.seen.labels >= 0
        distances, same = self.seen.keys[known, 0], self.seen.labels[known] == 1
        if same.any() and not same.all():
            self.margin.copy_(best_threshold(distances, same))


def best_threshold(distances: Tensor, same: Tensor) -> Tensor:
    """The distance () up to which pairs are taken for one class with the fewest errors.

    Errors are the mean of the share of pairs of one class that are farther, and of the share of
    pairs of two classes that are not.

    Args:
        distances: Distances of pairs (P,).
        same: Which of the pairs are of one class (P,).
    """
    order = distances.argsort(stable=True)
    ordered, same = distances[order], same[order].double()
    rejected = 1 - same.cumsum(0) / same.sum()
    accepted = (1 - same).cumsum(0) / (1 - same).sum()
    # of equal distances all are accepted together: only the last one is a threshold
    last = torch.ones_like(same, dtype=torch.bool)
    last[:-1] = ordered[1:] > ordered[:-1]
    return ordered[(rejected + accepted).masked_fill(~last, torch.inf).argmin()]


PLAIN = replace(shared.OMNIGLOT, loss=Softmax)
# distances start at about 15 here, where the paper's weight would pull everything together
SYSTEM = replace(PLAIN, loss=partial(DeepID2, weight=0.005))


def prepare(recipe: Recipe, data: Path) -> tuple[Recipe, Step]:
    """The recipe as it is, and the training loop's own step."""
    return recipe, step


if __name__ == "__main__":
    shared.main(__file__)
