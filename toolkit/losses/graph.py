"""Losses that spread labels over a graph of similarities."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from likeness.toolkit.losses.classes import (
    class_logsumexp,
    cross_entropy,
    set_target,
    target_column,
)
from likeness.toolkit.losses.common import checked, proxies, refuse_pairs
from likeness.toolkit.losses.contract import Rates, proxy_group
from likeness.toolkit.losses.softmax import Softmax, centre_and_scale
from likeness.toolkit.vmf.rows import unit

LEAST = 1e-30  # a smaller payoff counts as this one, so that its logarithm has a finite gradient


@checked
class ProxyGML(nn.Module):
    """Classification by the nearest of several proxies per class. Zhu et al. 2020.

    With N proxies for each of C classes, all of unit norm, an embedding's sub-graph has the k =
    ceil(ratio C N) proxies of largest cosine s to it, where its own class's N proxies go before all
    others. Labels flow back from the proxies to the embedding: the score of a class, S_j, is the
    sum of s over its proxies in the sub-graph. The loss is

        mean over z of -log(e^{scale S_y} / sum of e^{scale S_j} over the classes in the sub-graph)
        + weight * mean over proxies p of -log(e^{R_j(p)} / sum over classes i of e^{R_i(p)}),

    where p is of class j, and R_i(p) is the sum of its cosines with the N proxies of class i. The
    first proxy of every class is in `proxies` (C, D), the others are in `centres` (N - 1, C, D).
    The choice of the sub-graph has no gradient. With a weight, time and memory grow with N C^2:
    with 12 proxies of 10,000 classes a step takes 1,000 times as long as a softmax's. More than
    2^32 products (N C^2) are refused.

    Args:
        num_proxies: N. The release takes 12 for Cars196 and CUB, and 1 for SOP.
        ratio: The share of all proxies that a sub-graph has, in (0, 1]; .05 in the release. With
            few classes this share may be the own class's proxies alone, whose loss is 0: k is
            therefore 2 N at least, which leaves N places to other classes.
        weight: Of the proxies' own classification, at least 0. The release takes .3 for Cars196 and
            CUB, and 0 for SOP.
        scale: Factor of S_j, positive. It is 1 in the release, where S_j comes up to N.

    Example:
        >>> loss = ProxyGML(8, 10, num_proxies=3)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_proxies: int = 12,
        ratio: float = 0.05,
        weight: float = 0.3,
        scale: float = 1.0,
    ):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.ratio, self.weight, self.scale = ratio, weight, scale
        self.proxies = proxies(num_classes, dim)
        self.centres = nn.Parameter(torch.empty(num_proxies - 1, num_classes, dim))
        for centre in self.centres:
            nn.init.xavier_normal_(centre)

    def _proxies(self) -> Tensor:
        """All proxies as unit rows (N, C, D)."""
        return unit(torch.cat([self.proxies[None], self.centres]))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale times the sum of the cosines with all proxies of a class."""
        return self.scale * linear(unit(z), self._proxies().sum(dim=0).to(z.dtype))

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        vectors = self._proxies().to(z.dtype)
        cosine = linear(unit(z), vectors.flatten(0, 1)).view(len(z), *vectors.shape[:2])
        chosen = self._subgraph(cosine.detach(), y)
        scores = self.scale * cosine.masked_fill(~chosen, 0.0).sum(dim=1)
        value = cross_entropy(scores.masked_fill(~chosen.any(dim=1), -torch.inf), y)
        if self.weight == 0:
            return value
        number = self.num_classes * len(vectors)
        refuse_pairs(self, number, self.num_classes, "set num_proxies=1, or weight=0")
        of_classes = linear(vectors.flatten(0, 1), vectors.sum(dim=0))  # R_i(p) of all N C proxies
        classes = torch.arange(self.num_classes, device=y.device).repeat(len(vectors))
        return value + self.weight * cross_entropy(of_classes, classes)

    def _subgraph(self, cosine: Tensor, y: Tensor) -> Tensor:
        """The proxies in each embedding's sub-graph: (B, N, C) -> (B, N, C)."""
        count, classes = cosine.shape[1:]
        # ceil without the rounding of a product such as .07 * 100 = 7.000000000000001
        share = math.ceil(round(self.ratio * count * classes, 9))
        size = min(max(share, 2 * count), count * classes)
        own = torch.arange(classes, device=y.device) == y[:, None]
        nearest = (cosine + 4.0 * own[:, None]).flatten(1).topk(size, dim=1).indices
        mask = torch.zeros(len(y), count * classes, dtype=torch.bool, device=y.device)
        return mask.scatter_(1, nearest, True).view_as(cosine)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """All proxies as proxies, those in `centres` too."""
        return [proxy_group(optim, self.proxies, self.centres)]


@checked
class GroupLoss(Softmax):
    """Class probabilities that the items of a batch refine together. Elezi et al. 2020.

    A linear classifier gives each item its prior probabilities x_i, the softmax of (W z_i + b) /
    temperature. Some items of every class are anchors, whose x_i is 1 for their class. The items'
    similarity w_ij is Pearson's correlation of z_i and z_j over the dimensions, where negative ones
    count as 0; w_ii is 1. Then num_steps times the replicator dynamics

        x_ic <- x_ic p_ic / sum over classes e of x_ie p_ie,  with p_ic = sum over j of w_ij x_jc,

    draw similar items to a common class. The value is the mean over the batch of -log x_iy, plus
    `classify` times the cross-entropy of the classifier, CE(W z + b). An anchor's own term is 0: it
    teaches the network by its similarities with others. `proxies` (C, D) are W. Nothing is
    normalised in the classifier. Probabilities are kept as logarithms, so that none becomes 0, and
    p_ic below 1e-30 counts as 1e-30. An item whose coordinates are all equal has no correlation
    with any and keeps its prior.

    Args:
        temperature: Of the prior, positive. The release takes 24 (CUB), 79 (Cars196) and 54 (SOP).
        num_steps: Of the dynamics; 1 in the release. 0 leaves a cross-entropy of the prior.
        num_anchors: Anchors of each class, at most all its items but one. The release takes 2 (CUB,
            SOP) or 3 (Cars196), of 9, 7 and 6 items.
        anchors: "confident" takes the items whose prior of their own class is largest, so that the
            order of rows does not matter. "random" draws them, as the release does. The draws
            follow a number that is stored with the loss.
        classify: Weight of the classifier's cross-entropy; 1 in the release.
        bias: Learn b.

    Example:
        >>> loss = GroupLoss(8, 10, temperature=10.0, num_anchors=1)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    draws: Tensor  # how many batches have drawn their anchors

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        temperature: float = 24.0,
        num_steps: int = 1,
        num_anchors: int = 2,
        anchors: Literal["confident", "random"] = "confident",
        classify: float = 1.0,
        bias: bool = True,
    ):
        super().__init__(dim, num_classes, bias=bias)
        self.temperature, self.num_steps, self.classify = temperature, num_steps, classify
        self.num_anchors, self.anchors = num_anchors, anchors
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def _are_anchors(self, prior: Tensor, y: Tensor) -> Tensor:
        """Choose the anchors, given the prior of each item's own class: (B,), (B,) -> (B,)."""
        score = prior
        if self.anchors == "random":
            generator = torch.Generator().manual_seed(int(self.draws))
            score = torch.rand(len(y), generator=generator, dtype=torch.float64).to(y.device)
            self.draws += 1
        same = y[:, None] == y
        place = torch.arange(len(y), device=y.device)
        tied = (score == score[:, None]) & (place < place[:, None])
        before = same & ((score > score[:, None]) | tied)
        return before.sum(dim=1) < (same.sum(dim=1) - 1).clamp(max=self.num_anchors)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        log_x = logits / self.temperature
        log_x = log_x - class_logsumexp(log_x)[:, None]
        anchor = self._are_anchors(target_column(log_x, y), y)
        certain = set_target(torch.full_like(log_x, -torch.inf), y, 0.0)
        log_x = torch.where(anchor[:, None], certain, log_x)
        rows = centre_and_scale(z)
        similarity = (rows @ rows.T).relu()
        for _ in range(self.num_steps):
            log_x = log_x + (similarity @ log_x.exp()).clamp(min=LEAST).log()
            log_x = log_x - class_logsumexp(log_x)[:, None]
        value = -target_column(log_x, y).mean()
        return value + self.classify * cross_entropy(logits, y) if self.classify else value
