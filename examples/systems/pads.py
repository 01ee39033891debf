"""PADS: a policy moves the distances at which negatives are drawn, by what helps on other classes.

    python examples/systems/pads.py --data DATA --out runs/pads --steps 300

Roth, Milbich and Ommer, "PADS: Policy-Adapted Sampling for Visual Similarity Learning", CVPR 2020.
A triplet's negative is drawn by its distance to the anchor: each of K bins of distances has a
probability. Every `every` steps the network is measured on validation classes, and a small policy
network looks at these measurements, at those before, and at the probabilities. It chooses for each
bin whether its probability is multiplied by .5, by 1 or by 1.5. The reward is the sign of the
change of the mean of recall@1 and NMI since the last choice. The policy learns by REINFORCE: what
it chose becomes more probable if the reward was above its running mean, and less otherwise.

The loss on the triplets is the margin loss (Wu et al. 2017). Bins, factors, the limits of .1 and
1.4, the first probabilities (distances of .3 to .7), the layers and the rate of the policy, what it
sees and the reward are the defaults of the authors' code (Confusezius/CVPR2020_PADS). Their default
trainer of the policy is PPO with a value network; theirs without it is the one here. Their code was
run, and its numbers are in tests/golden: what the policy sees, its loss and the probabilities are
the same here. But two things differ. Their first probabilities lie one bin lower, since they add
2 / 30 to the left edge of a bin to get its centre. They keep a bin above 1e-25 before the
probabilities are divided by their sum, and here it is kept above 1e-15 of it.

Assumed: an anchor gets a negative for each of its positives. Validation classes are the last three
of the training alphabets, on which the plain recipe does not train, either. The policy's weights
are in the optimiser of the run, with a rate of their own that follows the run's schedule; they
have a gradient only at steps at which the policy chooses, and the optimiser leaves them alone
elsewhere. So the policy moves after it has made its next choice, not before.

Measured with this command (2026-11-23, one seed): recall@1 .644, and .703 of the margin loss with
distance-weighted negatives. The policy made nine choices, which is too few to learn from.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eval.retrieval import nmi, query_metrics
from toolkit.data.batch import Batch
from toolkit.data.items import Item
from toolkit.losses.common import checked
from toolkit.losses.contract import Rates
from toolkit.losses.mining import Triplets
from toolkit.losses.pairing import distance, pair_up
from toolkit.training.recipe import Recipe
from toolkit.training.run import Run
from toolkit.training.train import Step
from toolkit.training.tune import fit_items, held_out_items

KS = (1, 2, 4, 8)
METRICS = len(KS) + 3  # recalls, NMI, mean distance within and between classes
HISTORY, SPANS = 10, (2, 8, 16, 32)  # measurements that the policy sees, and over which it averages
FACTORS = (0.5, 1.0, 1.5)


class PADS(nn.Module):
    """The margin loss on triplets whose negatives are drawn by a policy's probabilities.

    Args:
        num_bins: K.
        limits: The distances between which the bins lie.
        start: The distances whose bins have a probability at first.
        every: Steps between two choices of the policy.
        rate: The policy's learning rate.
        smoothing: Of the running mean of rewards.

    Raises:
        ValueError: A setting is outside its range, or no bin starts with a probability.
    """

    probabilities: Tensor
    history: Tensor
    state: Tensor
    choices: Tensor
    baseline: Tensor
    measurements: Tensor  # how many there were

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        num_bins: int = 29,
        limits: tuple[float, float] = (0.1, 1.4),
        start: tuple[float, float] = (0.3, 0.7),
        every: int = 30,
        rate: float = 0.01,
        smoothing: float = 0.05,
        margin: float = 0.2,
        beta: float = 1.2,
    ) -> None:
        super().__init__()
        if num_bins < 1 or every < 1:
            raise ValueError(f"PADS: num_bins={num_bins} and every={every} must be at least 1")
        if not 0 <= limits[0] < limits[1] <= 2:
            raise ValueError(f"PADS: limits={limits} must be two growing distances in [0, 2]")
        self.dim, self.every, self.rate, self.smoothing = dim, every, rate, smoothing
        self.limits, self.margin = limits, margin
        self.beta = nn.Parameter(torch.tensor(beta))
        size = METRICS * (HISTORY + len(SPANS)) + num_bins + 1
        self.policy = nn.Sequential(
            nn.Linear(size, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, num_bins * len(FACTORS)),
        )
        centres = torch.linspace(*limits, 2 * num_bins + 1, device="cpu")[1::2]
        inside = (centres >= start[0]) & (centres <= start[1])
        if not inside.any():
            raise ValueError(
                f"PADS: none of the {num_bins} bins has its centre in start={start}; take a wider "
                "one, or more bins"
            )
        self.register_buffer("probabilities", normalised(inside.float()))
        self.register_buffer("history", torch.full((max(SPANS), METRICS), -1.0))
        self.register_buffer("state", torch.zeros(size))
        self.register_buffer("choices", torch.full((num_bins,), -1))
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("measurements", torch.zeros((), dtype=torch.int64))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """The boundary at the run's rate, and the policy at its own, without decay."""
        return [
            {"params": [self.beta], "lr": optim.lr, "weight_decay": 0.0},
            {"params": list(self.policy.parameters()), "lr": self.rate, "weight_decay": 0.0},
        ]

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x = normalize(z, dim=1)
        d = distance(x, x)
        masks = pair_up(None, z, y, None, normalise=False).masks()
        triplets = drawn_by_bin(d.detach(), masks, self.probabilities, self.limits)
        return shared.boundary(d, triplets, self.beta, self.margin)

    def choose(self, metrics: Tensor, progress: float) -> Tensor:
        """Judge the last choice by new measurements (METRICS,), and make the next one.

        Args:
            metrics: As `measured` gives them.
            progress: The share of the steps that are done.

        Returns:
            The policy's loss (), whose gradient rewards the last choice; 0 before there is one.
        """
        loss = self.beta.new_zeros(())
        before = int(self.measurements)
        if before:
            reward = (target(metrics) - target(self.history[-1])).sign()
            # copies, for both change below and the gradient is computed later
            log_probabilities = self._log_probabilities(self.state.clone())
            of_choices = log_probabilities.gather(1, self.choices[:, None].clone())
            loss = -(reward - self.baseline) * of_choices.mean()
            # the mean starts at the first reward
            self.baseline.lerp_(reward, self.smoothing if before > 1 else 1.0)
        # before there are enough measurements, the first stands for those that are missing
        history = self.history if before else metrics.expand_as(self.history)
        self.history.copy_(torch.cat((history[1:], metrics[None])))
        self.measurements += 1
        means = [self.history[-min(span, before + 1) :].mean(0) for span in SPANS]
        seen = [self.history[-HISTORY:].flatten(), *means, self.probabilities]
        self.state.copy_(torch.cat([*seen, metrics.new_tensor([progress])]))
        with torch.no_grad():
            self.choices.copy_(self._log_probabilities(self.state).exp().multinomial(1)[:, 0])
            factors = metrics.new_tensor(FACTORS)[self.choices]
            self.probabilities.copy_(normalised(self.probabilities * factors))
        return loss

    def _log_probabilities(self, state: Tensor) -> Tensor:
        """(K, 3): of each factor for each bin."""
        scores: Tensor = self.policy(state)
        return scores.view(-1, len(FACTORS)).log_softmax(1)


def normalised(weights: Tensor) -> Tensor:
    """Probabilities (K,) in proportion to weights, none of them 0."""
    weights = (weights / weights.sum()).clamp(min=1e-15)
    return weights / weights.sum()


def target(metrics: Tensor) -> Tensor:
    """What is rewarded: the mean of recall@1 and NMI."""
    return (metrics[..., 0] + metrics[..., len(KS)]) / 2


@torch.no_grad()
def drawn_by_bin(
    d: Tensor,
    masks: tuple[Tensor, Tensor],
    probabilities: Tensor,
    limits: tuple[float, float],
) -> Triplets:
    """A negative for each positive pair, drawn by the probability of its distance's bin.

    Args:
        d: Distances (B, B).
        masks: Positive and negative pairs (B, B).
        probabilities: Of the bins (K,), which divide the limits evenly.
        limits: The smallest and the largest distance.
    """
    same, other = masks
    weights = weights_by_bin(d, probabilities, limits) * other
    a, p = (same & other.any(1)[:, None]).nonzero(as_tuple=True)
    weights = weights / weights.amax(1, keepdim=True).clamp(min=1e-30)
    return (a, p, weights[a].multinomial(1)[:, 0]) if len(a) else (a, p, p)


def weights_by_bin(d: Tensor, probabilities: Tensor, limits: tuple[float, float]) -> Tensor:
    """The probability of each distance's bin: (B, B) -> (B, B).

    Distances outside the limits count as in the first or the last bin.
    """
    width = (limits[1] - limits[0]) / len(probabilities)
    place = ((d - limits[0]) / width).floor().clamp(0, len(probabilities) - 1).long()
    return probabilities[place]


def measured(z: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> list[float]:
    """Recalls, NMI, and the mean cosine distances within and between classes, of (N, D) rows."""
    of_queries = query_metrics(z, labels, ks=KS)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    numbers, counts = np.unique(labels, return_counts=True)
    means = np.stack([unit[labels == label].mean(0) for label in numbers])
    # 1 - |mean|^2 is the mean over all pairs, those of an item with itself too
    other_pairs = counts / np.maximum(counts - 1, 1)
    within = np.mean((1 - np.sum(means**2, axis=1)) * other_pairs)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    between = 1 - (means @ means.T)[np.triu_indices(len(means), 1)].mean()
    recalls = [float(of_queries[f"recall@{k}"].mean()) for k in KS]
    return [*recalls, nmi(z, labels), float(within), float(between)]


def step(run: Run, batch: Batch, recipe: Recipe, *, validation: list[Item]) -> Tensor:
    """The margin loss of a batch and, where the policy chooses, the policy's loss."""
    loss = run.loss
    assert isinstance(loss, PADS)
    value = torch.zeros((), device=run.device)
    if run.step and run.step % loss.every == 0:
        z = shared.embedded(run, validation, recipe).cpu().numpy()
        labels = np.unique([str(item.label) for item in validation], return_inverse=True)[1]
        metrics = torch.tensor(measured(z, labels), device=run.device)
        value = loss.choose(metrics, run.step / recipe.schedule.steps)
    of_batch: Tensor = loss(run.embedder.encode(batch.inputs, batch.lengths), batch.labels)
    return value + of_batch


ITEMS = partial(shared.OMNIGLOT.items, validation_alphabets=3)
PLAIN = replace(shared.OMNIGLOT, loss=shared.MARGIN, items=ITEMS)
SYSTEM = replace(PLAIN, loss=PADS)


def adapted(recipe: Recipe) -> Recipe:
    """A recipe whose data set has no validation split: a part of its classes do not train."""
    return replace(recipe, items=partial(fit_items, items=recipe.items))


def prepare(recipe: Recipe, data: Path) -> tuple[Recipe, Step]:
    """The recipe as it is, and the step, which knows the validation items."""
    assert isinstance(recipe.items, partial)
    if recipe.items.func is fit_items:
        validation = held_out_items(data, **recipe.items.keywords)
    else:
        validation = partial(recipe.items, split="validation")(data)
    return recipe, partial(step, validation=list(validation))


if __name__ == "__main__":
    shared.main(__file__)
