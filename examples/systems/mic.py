"""MIC: an auxiliary encoder takes over what images of all classes have in common.

    python examples/systems/mic.py --data DATA --out runs/mic --steps 300

Roth, Brattoli and Ommer, "MIC: Mining Interclass Characteristics for Improved Metric Learning",
ICCV 2019. Two encoders stand on the same features f(x). The class encoder is the embedding that is
used later, and learns the classes. The auxiliary encoder learns what varies within classes, such as
pose or stroke: its labels are clusters of features from which the classes were removed, by
subtracting each class's mean and dividing by its deviation, in every dimension. So that the class
encoder does not carry these characteristics as well, the mutual information of both embeddings is
lowered: a network R looks for the class embedding in the auxiliary one, and gradient reversal turns
what it learns into its opposite for both encoders. The loss is

    margin(class embedding, classes) + margin(auxiliary embedding, clusters)
      - weight * mean((class embedding * R(auxiliary embedding))^2)

From step `every` on, all items are clustered anew every so many steps. Before that the class
encoder learns alone, since the network of this example is not pretrained and its first features say
nothing. The margin loss has distance-weighted negatives (Wu et al. 2017).

The last term is that of the authors' code (Confusezius/ICCV2019_MIC), and so is the way in which
classes are removed: the numbers of its run are in tests/golden. Elsewhere that code differs. It
removes classes for its first clusters only, from features of an early layer, and clusters the
auxiliary embedding as it is after that. The two encoders take turns, each with a batch of its own.
It has 30 clusters for CUB-200-2011 and 200 for Cars196, and weights of 2,500 and 500.

Assumed: both encoders are updated together, with 30 clusters and a weight that suits the embedding
here, since the size of the last term depends on the dimension. k-means is that of features at
length 1 (likeness.eval.metrics.retrieval.clusters).

A step of the training loop sees embeddings only. The features before the last layer come through a
hook of torch on the layer that `LAYER` names. A hook needs compute.compile=False and
compute.accumulate=1.

Measured with this command (2026-11-23, one seed): recall@1 .610, and .703 of the margin loss alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import shared
import torch
from torch import Tensor, nn

from likeness.eval.metrics.retrieval import clusters
from likeness.recipe import Recipe
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.losses.common import checked
from likeness.toolkit.training.plan import Plan
from likeness.toolkit.training.run import Run

LAYER = "backbone.fc"  # the last layer of the network: it is the class encoder


@checked
class MIC(nn.Module):
    """The losses of both encoders, and the auxiliary encoder itself.

    Args:
        num_features: The size of the features below the last layer.
        num_items: The number of training items, whose clusters are kept.
        num_clusters: The number of characteristics.
        every: Steps between clusterings.
        weight: Of the correlation of both embeddings.
    """

    cluster: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_features: int = 512,
        num_items: int = 0,
        num_clusters: int = 30,
        every: int = 100,
        weight: float = 100.0,
    ) -> None:
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.num_clusters, self.every, self.weight = num_clusters, every, weight
        self.of_classes = shared.MARGIN(dim, num_classes)
        self.of_clusters = shared.MARGIN(dim, num_clusters)
        self.auxiliary = nn.Linear(num_features, dim)
        self.project = shared.two_layers(dim, 4 * dim, dim)
        # (N,) the cluster of each training item, -1 before the first clustering
        self.register_buffer("cluster", torch.full((num_items,), -1))

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        *,
        features: Tensor | None = None,
        cluster: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch; without features (B, F) and clusters (B,) that of classes alone."""
        value: Tensor = self.of_classes(z, y)
        if features is None or cluster is None:
            return value
        auxiliary = self.auxiliary(features.float())
        common = shared.correlation(z, auxiliary, self.project)
        of_clusters: Tensor = self.of_clusters(auxiliary, cluster)
        return value + of_clusters - self.weight * common


def without_classes(features: Tensor, labels: Tensor) -> Tensor:
    """Features whose classes all have mean 0 and deviation 1 in every dimension.

    A dimension in which a class does not vary becomes 0.

    Args:
        features: (N, F).
        labels: Class numbers (N,).
    """
    num = int(labels.max()) + 1
    count = torch.bincount(labels, minlength=num).clamp(min=1)[:, None]
    empty = features.new_zeros(num, features.shape[1])
    centred = features - (empty.index_add(0, labels, features) / count)[labels]
    deviation = (empty.index_add(0, labels, centred.square()) / count).sqrt()[labels]
    return torch.where(deviation > 1e-6, centred / deviation.clamp(min=1e-6), 0.0)


def step(run: Run, batch: Batch, recipe: Recipe, *, planned: Plan) -> Tensor:
    """One step of both encoders."""
    loss = run.loss
    assert isinstance(loss, MIC)
    layer = run.embedder.get_submodule(LAYER)
    value: Tensor
    if run.step < loss.every:  # there is nothing to find in features that are not yet trained
        value = loss(run.embedder.encode(batch.inputs, batch.lengths), batch.labels)
        return value
    if run.step % loss.every == 0:
        with shared.inputs_of(layer) as collected:
            shared.embedded(run, planned.items, recipe)
        features = without_classes(
            torch.cat(collected).cpu(), torch.from_numpy(planned.views.labels)
        )
        new = clusters(features.numpy(), loss.num_clusters, seed=recipe.seed + run.step)
        loss.cluster.copy_(torch.from_numpy(new))
    assert batch.places is not None
    with shared.inputs_of(layer) as collected:
        z = run.embedder.encode(batch.inputs, batch.lengths)
    cluster = loss.cluster[batch.places]
    value = loss(z, batch.labels, features=collected[0], cluster=cluster)
    return value


PLAIN = replace(shared.OMNIGLOT, loss=shared.MARGIN)
SYSTEM = replace(PLAIN, loss=MIC)


def adapted(recipe: Recipe) -> Recipe:
    """A recipe of another network, with as many features as go into its last layer."""
    with torch.device("meta"):  # sizes without weights
        backbone = recipe.backbone(recipe.frontend().dim)
    last = getattr(backbone, LAYER.removeprefix("backbone."), None)
    if not isinstance(last, nn.Linear):
        raise ValueError(f"MIC needs the layer {LAYER}; choose a recipe with a ResNet or an SFNet")
    loss = recipe.loss
    if (loss.func if isinstance(loss, partial) else loss) is not MIC:
        return recipe  # of PLAIN, whose loss takes no features
    return replace(recipe, loss=partial(loss, num_features=last.in_features))


prepare = partial(shared.with_items, step)

if __name__ == "__main__":
    shared.main(__file__)
