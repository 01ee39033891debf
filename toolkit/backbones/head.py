"""Networks over the embeddings of other networks: heads, score normalisation, several side by side.

`Head` adapts the embeddings of a large network, which stays as it is, to the subjects or instances
of one domain. Kordopatis-Zilos et al., "ILIAS: Instance-Level Image retrieval At Scale", CVPR 2025,
put linear layers on foundation models in this way.

`ScoreNorm` makes score normalisation a part of the embedding, so that no cohort is needed when it
is used. Some embeddings are similar to many other subjects, and their scores are high without a
reason. Score normalisation divides the scores of an embedding by how much its scores against a
cohort, a set of other subjects, spread (eval/scoring/normalization.py). With the whole cohort this
spread is a quadratic form of the embedding, so that the division can be a part of the network.
Dehak et al., "Cosine Similarity Scoring without Score Normalization Techniques", Odyssey 2010, did
this with the diagonal of the form.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from likeness.eval.errors import LikenessError


def check_embeddings(x: Tensor, name: str, in_dim: int) -> None:
    """Refuse what is not a batch of embeddings (B, in_dim).

    Args:
        x: What a network was given.
        name: What the error calls the network.
        in_dim: The size of the embeddings that it takes.

    Raises:
        LikenessError: The shape is another one.
    """
    if x.ndim != 2 or x.shape[1] != in_dim:
        raise LikenessError(
            f"{name}: the input has shape {tuple(x.shape)}; it takes embeddings (B, {in_dim}): "
            "give it those of the model that it was made for"
        )


class Head(nn.Module):
    """Takes embeddings (B, in_dim) and gives embeddings (B, dim).

    Without a hidden layer it gives W x + b. With one it gives P x + V relu(U x + c), where P is the
    identity, or a linear layer where the sizes differ or there is a gain.

    Where the sizes agree, a new head gives back what it takes: training starts from the embeddings
    as they are. Otherwise it starts from a projection with orthogonal rows, which keeps distances
    as far as the new size can. With a gain it starts from a multiple of either.

    Args:
        in_dim: The size of the embeddings that it takes.
        dim: The size of those that it gives; 0 for the same.
        hidden: The size of the hidden layer; 0 for none.
        gain: By what the embeddings are multiplied at the start, for losses that see their norms.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> Head(2)(x).tolist(), Head(2, hidden=8)(x).tolist(), Head(2, dim=1)(x).shape
        ([[3.0, 4.0]], [[3.0, 4.0]], torch.Size([1, 1]))
    """

    takes = "embeddings"
    pads_exactly = False

    def __init__(self, in_dim: int, *, dim: int = 0, hidden: int = 0, gain: float = 1.0):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim or in_dim
        same = self.dim == in_dim
        self.linear: nn.Module = nn.Identity()
        if not (hidden and same and gain == 1):
            linear = nn.Linear(in_dim, self.dim, bias=not hidden)
            if same:
                nn.init.eye_(linear.weight)
            else:
                nn.init.orthogonal_(linear.weight)
            with torch.no_grad():
                linear.weight.mul_(gain)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
            self.linear = linear
        self.hidden: nn.Sequential | None = None
        if hidden:
            last = nn.Linear(hidden, self.dim)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.hidden = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), last)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim).

        Args:
            x: Embeddings (B, in_dim).
            lengths: Not used: nothing of an embedding is padded.

        Raises:
            LikenessError: The embeddings have another size.
        """
        check_embeddings(x, "Head", self.in_dim)
        z: Tensor = self.linear(x)
        return z if self.hidden is None else z + self.hidden(x)


class ScoreNorm(nn.Module):
    """Takes embeddings (B, in_dim), and gives embeddings whose dot product is a normalised score.

    With e = (x - m) / |x - m| and sigma(e) = sqrt(e' C e) it gives e / sqrt(sigma(e)), so that the
    dot product of two is cos / sqrt(sigma(e1) sigma(e2)). Here m is the mean of the cohort's
    embeddings, and C is the second moment of its subjects' mean unit vectors: sigma(e) is the root
    mean square of the scores of e against the cohort.

    Symmetric normalisation (S-norm) divides the score by the spread of either side, and takes the
    mean of the two quotients. Here it is their geometric mean. S-norm also subtracts the cohort's
    mean score from each side, which is left out here: it is near 0 after centring.

    `estimate` learns both constants from the training data. The mean is that of all embeddings; in
    the moment each subject counts once. They hold no embedding of any subject.

    Args:
        in_dim: The size of the embeddings that it takes and gives.
        floor: The least sigma(e), as a share of the root mean square of sigma over all directions.
            So an embedding that resembles nobody in a small cohort has finite scores.

    Example:
        >>> cohort = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> head = ScoreNorm(2)
        >>> head.estimate([(cohort, None, torch.tensor([0, 1, 2, 3]))])
        >>> a, b = head(torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
        >>> f"cosine {0.5**0.5:.3f}, spread {0.5**0.5:.3f}, normalised {a @ b:.3f}"
        'cosine 0.707, spread 0.707, normalised 1.000'
    """

    takes = "embeddings"
    pads_exactly = False
    mean: Tensor  # (in_dim,)
    moment: Tensor  # (in_dim, in_dim)

    def __init__(self, in_dim: int, *, floor: float = 0.1):
        super().__init__()
        self.in_dim = self.dim = in_dim
        self.floor = floor
        self.register_buffer("mean", torch.zeros(in_dim))
        # torch.eye imports torch's compiler, a second's work, where models are restored
        self.register_buffer("moment", torch.zeros(in_dim, in_dim).fill_diagonal_(1 / in_dim))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim); that of an embedding at the mean is 0.

        Args:
            x: Embeddings (B, in_dim).
            lengths: Not used: nothing of an embedding is padded.

        Raises:
            LikenessError: The embeddings have another size.
        """
        check_embeddings(x, "ScoreNorm", self.in_dim)
        # Without autocast, which would round the embeddings that training and scoring compare.
        with torch.autocast(x.device.type, enabled=False):
            unit = normalize(x.float() - self.mean)
            variance = ((unit @ self.moment) * unit).sum(dim=1, keepdim=True)
        least = self.floor**2 * self.moment.diagonal().mean()
        return unit / variance.clamp(min=least).sqrt().sqrt()

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Learn the mean and the moment from (embeddings, None, labels); a label is a subject.

        An embedding that comes twice counts twice.

        Raises:
            LikenessError: All embeddings are alike, which says nothing of a spread.
        """
        rows, labels = zip(*((x, y) for x, _, y in batches), strict=True)
        x, y = torch.cat(rows).double(), torch.unique(torch.cat(labels), return_inverse=True)[1]
        count = torch.bincount(y).double()[:, None]
        mean = x.mean(dim=0)
        apart = x - mean
        # What rounding leaves of equal embeddings would have a direction.
        some = apart.norm(dim=1) > 1e-9 * x.norm(dim=1)
        unit = normalize(apart) * some[:, None]
        subjects = torch.zeros_like(unit[: len(count)]).index_add_(0, y, unit) / count
        moment = subjects.T @ subjects / len(subjects)
        if not moment.diagonal().sum() > 0:
            raise LikenessError(
                f"ScoreNorm: the embeddings of all {len(subjects)} subjects are alike, so nothing "
                "can be normalised by them; give those of different subjects"
            )
        self.mean.copy_(mean)
        self.moment.copy_(moment)


class Beside(nn.Module):
    """Backbones that take the same input, whose embeddings are put one after the other.

    The dot product of two such embeddings is the sum of the networks' dot products. So one model
    has the summed scores of several systems.

    Args:
        in_dim: The size of what all of them take: that of the front-end's features.
        networks: Each is called as network(in_dim), and has a `dim` as every backbone here.

    Raises:
        LikenessError: There is no network, or one takes features and another one images or
            embeddings.

    Example:
        >>> from functools import partial
        >>> from likeness.toolkit.backbones.statistics import OrderStatistics
        >>> net = Beside(8, networks=[partial(OrderStatistics, dim=size) for size in (4, 6)])
        >>> net.eval()(torch.randn(2, 50, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, in_dim: int, *, networks: Sequence[Callable[[int], nn.Module]]):
        super().__init__()
        self.networks: Any = nn.ModuleList(network(in_dim) for network in networks)
        if not len(self.networks):
            raise LikenessError("Beside: networks is empty; give one or more")
        kinds = {getattr(network, "takes", "features") for network in self.networks}
        if len(kinds) != 1:
            raise LikenessError(
                f"Beside: the {len(self.networks)} networks take {' and '.join(sorted(kinds))}; "
                "give networks that take the same"
            )
        self.in_dim, self.takes = in_dim, kinds.pop()
        self.dim = sum(cast(int, network.dim) for network in self.networks)
        self.pads_exactly = all(
            bool(getattr(network, "pads_exactly", False)) for network in self.networks
        )

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim), those of the first network first."""
        return torch.cat([network(features, lengths) for network in self.networks], dim=1)

    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Let every network that learns constants from (features, lengths, labels) do so.

        The batches are kept in memory meanwhile.
        """
        kept = list(batches)
        for network in self.networks:
            if hasattr(network, "estimate"):
                network.estimate(kept)
