"""DRML: an ensemble of features, each for the images that it describes best, and their relations.

    python examples/systems/drml.py --data DATA --out runs/drml --steps 300

Zheng, Zhang, Lu and Zhou, "Deep Relational Metric Learning", ICCV 2021. A loss on classes makes the
images of a class alike, and so drops what varies within classes, which may help to tell unseen
classes apart. Here the features of the network are cut into K branches of their own:

- Each branch k has a node v_k, a linear layer of its features f_k at length 1. A decoder per branch
  rebuilds f_k from v_k. An image belongs to the branch that is rebuilt with the smallest error, and
  only this branch's node learns its class. So branches come to describe different images.
- The relation module weighs how much branch i tells branch j about this image:
  s_ij = relu(w (A_i f_i - B_j f_j) + c), divided by its sum over i. Each node joins what it is
  told, u_j = sum_i s_ij v_i, by one linear layer of (v_j, u_j) for all j. The K results, one after
  the other, are the embedding, in training and in use.

The loss L of any kind is taken once for each branch and once for the embedding:

    sum_k L_k(v_k of the images of branch k) + weight L(embedding)
      + reconstruction mean((f_k - decoder_k(v_k))^2)

The decoders learn from features and nodes that get no gradient, and so do A, B, w and c from
features that get none.

The paper itself was not at hand: all this is the authors' code (zbr17/DRML, the setting
proxy_anchor_drml) and the paper's abstract. From the code: four branches, features twice as large
as the embedding, the first weights (the embedding starts as the nodes alone), the weights 10 and 1
of its README for CUB-200-2011, Proxy-Anchor (Kim et al. 2020) as L, or the margin loss in an older
setting. Where it differs: for one image alone the code sums s_ij over j, since it drops the axis of
the batch. Assumed: the margin .1 and the scale 32 of plain Proxy-Anchor, where the README has .2
and 64; one learning rate for the network and its new layers, where the README has 20 times the rate
for these, and trains them alone in the first epoch.

The network is a part of the recipe, so that checkpoints and exported models have the relation
module. Commands open them with --trust examples/systems/shared.py --trust examples/systems/drml.py.
The decoders and all class vectors are in the loss, and not in the model that is used. The loss
needs more of a batch than embeddings; the step asks the network for it (`Relational.parts`).

Measured with this command (2026-11-23, one seed): recall@1 .619, and .703 of the margin loss, which
is L here as for the other systems of this folder; .619 without the losses of the branches, too. The
published L, DRML's default, is slow to start with random vectors for 633 classes: with it the same
steps gave .177, .268 without the losses of the branches, and .297 of Proxy-Anchor alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import shared
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from toolkit.data.batch import Batch
from toolkit.losses.common import checked
from toolkit.losses.contract import Rates, param_groups
from toolkit.losses.proxy import ProxyAnchor
from toolkit.training.recipe import Recipe
from toolkit.training.run import Run
from toolkit.training.train import Step

PROXY_ANCHOR = partial(ProxyAnchor, margin=0.1, scale=32.0)


class Parts(NamedTuple):
    """What the network makes of a batch.

    Attributes:
        features: Of each branch (B, K, F / K).
        nodes: Of each branch, at length 1 (B, K, dim / K).
        embedding: (B, dim).
    """

    features: Tensor
    nodes: Tensor
    embedding: Tensor


class PerBranch(nn.Module):
    """A linear layer for each branch: (B, K, I) -> (B, K, O)."""

    def __init__(self, num_branches: int, size: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_branches, out, size) * (2 / out) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(num_branches, out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bki,koi->bko", x, self.weight) + self.bias


class Relational(nn.Module):
    """A network whose features are cut into branches, with the relation module above them.

    Args:
        in_dim: What the front-end gives: channels of images.
        network: Makes the network whose embeddings (B, F) are the features here.
        dim: The size of the embedding.
        num_branches: K, which divides F and dim.

    Raises:
        ValueError: It does not.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        network: Callable[[int], nn.Module],
        dim: int = 128,
        num_branches: int = 4,
    ) -> None:
        super().__init__()
        self.network = network(in_dim)
        size: Any = self.network.dim
        check_branches(num_branches, size, dim)
        self.dim, self.num_branches = dim, num_branches
        each, node = size // num_branches, dim // num_branches
        self.node = PerBranch(num_branches, each, node)
        self.tells = PerBranch(num_branches, each, node)
        self.listens = PerBranch(num_branches, each, node)
        self.score = nn.Linear(node, 1)
        nn.init.normal_(self.score.weight, std=2**0.5)
        nn.init.zeros_(self.score.bias)
        self.join = nn.Linear(2 * node, node)
        nn.init.eye_(self.join.weight)  # the node itself, and nothing of what it is told
        nn.init.zeros_(self.join.bias)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim)."""
        return self.parts(images, lengths).embedding

    def parts(self, images: Tensor, lengths: Tensor | None = None) -> Parts:
        """Return the embeddings, and what they are made of."""
        features = self.network(images, lengths).unflatten(1, (self.num_branches, -1))
        nodes = normalize(self.node(features), dim=2)
        passed = torch.einsum("bij,bid->bjd", self.shares(features.detach()), nodes)
        joined = self.join(torch.cat((nodes, passed), dim=2))
        return Parts(features, nodes, joined.flatten(1))

    def shares(self, features: Tensor) -> Tensor:
        """How much each branch tells each other (B, K, K): sums over dimension 1 are 1, or 0."""
        edges = self.tells(features)[:, :, None] - self.listens(features)[:, None]
        return normalize(self.score(edges)[..., 0].relu(), p=1, dim=1)


class DRML(nn.Module):
    """A loss of the embedding, one of each branch on its own images, and the decoders.

    Args:
        loss: Makes each of the K + 1 losses, as loss(dim, num_classes).
        num_features: F, the size of the network's features.
        num_branches: K, which divides F and dim.
        weight: Of the embedding's loss.
        reconstruction: Weight of the decoders' error.

    Raises:
        ValueError: num_branches does not divide both sizes.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        loss: Callable[[int, int], nn.Module] = PROXY_ANCHOR,
        num_features: int = 256,
        num_branches: int = 4,
        weight: float = 10.0,
        reconstruction: float = 1.0,
    ) -> None:
        super().__init__()
        check_branches(num_branches, num_features, dim)
        self.dim, self.num_classes = dim, num_classes
        self.weight, self.reconstruction = weight, reconstruction
        node = dim // num_branches
        self.whole = loss(dim, num_classes)
        self.branches = nn.ModuleList(loss(node, num_classes) for _ in range(num_branches))
        self.decode = PerBranch(num_branches, node, num_features // num_branches)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """What each loss states for itself, and the decoders at the network's rate."""
        groups = [param_groups(loss, optim) for loss in (self.whole, *self.branches)]
        decoders = {"params": list(self.decode.parameters()), "lr": optim.lr, "weight_decay": 0.0}
        return [*itertools.chain(*groups), decoders]

    @checked
    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        *,
        features: Tensor | None = None,
        nodes: Tensor | None = None,
    ) -> Tensor:
        """The loss of the embeddings, and of the branches where their parts are given."""
        value: Tensor = self.weight * self.whole(z, y)
        if features is None or nodes is None:
            return value
        error = (features.detach() - self.decode(nodes.detach())).square().mean(dim=2)
        best = error.argmin(dim=1)
        for k, branch in enumerate(self.branches):
            if (best == k).any():
                value = value + branch(nodes[best == k, k], y[best == k])
        return value + self.reconstruction * error.mean()


def check_branches(num_branches: int, num_features: int, dim: int) -> None:
    """Refuse a number of branches that is below 1 or does not divide both sizes.

    Raises:
        ValueError: It is.
    """
    if num_branches < 1 or num_features % num_branches or dim % num_branches:
        raise ValueError(
            f"DRML: num_branches={num_branches} must divide the {num_features} features and the "
            f"{dim} dimensions of the embedding; choose multiples of it"
        )


def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    """The loss of a batch, with the parts of its embeddings."""
    network = run.embedder.backbone
    assert isinstance(network, Relational)
    images, lengths = run.embedder.frontend(batch.inputs, batch.lengths)
    parts = network.parts(images, lengths)
    value: Tensor = run.loss(
        parts.embedding, batch.labels, features=parts.features, nodes=parts.nodes
    )
    return value


PLAIN = replace(shared.OMNIGLOT, loss=shared.MARGIN)
FEATURES = partial(shared.OMNIGLOT.backbone, dim=256, gain=1.0)
SYSTEM = replace(
    PLAIN,
    backbone=partial(Relational, network=FEATURES, dim=128),
    loss=partial(DRML, loss=shared.MARGIN),
)


def adapted(recipe: Recipe) -> Recipe:
    """No other recipe is taken: the relations between the branches are a network of their own."""
    raise ValueError("DRML has a network of its own, so that it takes no --recipe; leave it out")


def prepare(recipe: Recipe, data: Path) -> tuple[Recipe, Step]:
    """The recipe as it is, and the step."""
    return recipe, step


if __name__ == "__main__":
    shared.main(__file__)
