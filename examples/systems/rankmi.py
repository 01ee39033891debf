"""RankMI: a critic tells pairs of one class from other pairs by their distance.

    python examples/systems/rankmi.py --data DATA --out runs/rankmi --steps 300

Kemertas, Pishdad, Derpanis and Fazly, "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR
2020. Two embeddings of one class have distances d+, and two of different classes distances d-. The
better the two distributions of distances can be told apart, the better retrieval is. A critic T, a
small network of one distance, gives a lower bound of the divergence of the two distributions:

    E[log sigmoid(T(d+))] + E[log(1 - sigmoid(T(d-)))] + log 4  <=  2 JS(p(d+), p(d-))

with equality where T is the log of the ratio of both densities. The updates alternate: the critic
moves to make the bound tight, and the embedding moves to raise it. In each step here the critic
takes `updates` steps of gradient ascent on the batch's distances, and then the network takes one
with the new critic.

The paper itself was not at hand, and no code of its authors is known to us: this follows its
abstract and its idea. Assumed: the bound is that of Jensen and Shannon (as in f-GAN and Deep
InfoMax); distances are those of embeddings of length 1; the critic has two hidden layers of 32 and
is moved by plain gradient ascent, which has no state beside the weights. The abstract says that
negatives are drawn; here all pairs of a batch are used. With negatives drawn by distance-weighted
sampling (Wu et al. 2017) for the critic and the network, training failed: the draw depends on the
distance, and a divergence has no direction, so that the network learned to bring negatives nearer
than positives. With drawn negatives for the network and all pairs for the critic, at a rate of .05,
recall@1 was .350. So all pairs were chosen for both.

The critic stands in the loss, so that checkpoints keep it, but it is not in the optimiser, which
takes one step for each batch only (`param_groups` gives it nothing). The plain recipe is the margin
loss with distance-weighted negatives.

Measured with this command (2026-11-23, one seed): recall@1 .595, and .703 of the margin loss.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import shared
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from likeness.recipe import Recipe
from likeness.toolkit.losses.common import checked
from likeness.toolkit.losses.contract import Rates
from likeness.toolkit.losses.pairing import distance, pair_up
from likeness.toolkit.training.train import Step, step


@checked
class RankMI(nn.Module):
    """Minus the critic's bound on the batch's distances.

    Args:
        num_classes: Not used.
        hidden: The size of the critic's two hidden layers.
        updates: The critic's steps before each of the network's.
        rate: The critic's learning rate.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        hidden: int = 32,
        updates: int = 5,
        rate: float = 0.3,
    ) -> None:
        super().__init__()
        self.dim, self.updates, self.rate = dim, updates, rate
        self.critic = nn.Sequential(
            nn.Linear(1, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """Nothing: the critic moves in `forward`."""
        return []

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x = normalize(z, dim=1)
        d = distance(x, x)
        same, other = pair_up(None, z, y, None, normalise=False).masks()
        near, far = d[same], d[other]
        if not len(near) or not len(far):
            return z.sum() * 0
        if self.training and torch.is_grad_enabled():
            ascend(self.critic, near.detach(), far.detach(), self.updates, self.rate)
        return -bound(self.score(near), self.score(far))

    def score(self, d: Tensor) -> Tensor:
        """T(d) of distances (P,), with a gradient for the distances and none for the critic."""
        weights = {name: value.detach() for name, value in self.critic.named_parameters()}
        scores: Tensor = torch.func.functional_call(self.critic, weights, (d[:, None],))
        return scores[:, 0]


def bound(positive: Tensor, negative: Tensor) -> Tensor:
    """A lower bound of 2 JS(p+, p-), in nats, from the critic's scores.

    Args:
        positive: T of samples of p+ (P,).
        negative: T of samples of p- (N,).
    """
    return logsigmoid(positive).mean() + logsigmoid(-negative).mean() + math.log(4)


def ascend(critic: nn.Module, near: Tensor, far: Tensor, updates: int, rate: float) -> None:
    """Raise the bound by gradient ascent on the critic's weights.

    Args:
        critic: A network of (P, 1) distances, which is changed.
        near: Distances of pairs of one class (P,).
        far: Distances of pairs of two classes (N,).
        updates: The number of steps.
        rate: Their size.
    """
    weights = list(critic.parameters())
    for _ in range(updates):
        value = bound(critic(near[:, None])[:, 0], critic(far[:, None])[:, 0])
        gradients = torch.autograd.grad(value, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.add_(gradient, alpha=rate)


PLAIN = replace(shared.OMNIGLOT, loss=shared.MARGIN)
SYSTEM = replace(PLAIN, loss=RankMI)


def prepare(recipe: Recipe, data: Path) -> tuple[Recipe, Step]:
    """The recipe as it is, and the training loop's own step."""
    return recipe, step


if __name__ == "__main__":
    shared.main(__file__)
