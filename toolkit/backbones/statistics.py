"""A shallow network over order statistics of the features, which trains in a minute on a CPU.

It is for data sets of a few dozen classes, where deep networks overfit.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones.gradients import within_class_whitening
from likeness.toolkit.backbones.pooling import valid_frames

Start = Literal["random", "rotation"]
_BINS = 4  # groups of frames, ranked by energy
_QUANTILES = (0.02, 0.1, 0.5, 0.9, 0.98)
_SHRINKAGE = 0.3  # see within_class_whitening


def order_statistics(features: Tensor, mask: Tensor) -> Tensor:
    """Return order statistics of features over time, which tell speech from pauses.

    They need no voice-activity detector. For each band they are, over the valid frames: the mean of
    each of four equal groups of frames ranked by energy (from pauses and consonants to vowels), the
    quantiles .02, .1, .5, .9 and .98 (linear interpolation, as numpy's), and the standard
    deviation.

    Args:
        features: (B, T, F).
        mask: (B, T) bool, True for valid frames.

    Returns:
        (B, 10 * F).

    Example:
        >>> features, mask = torch.rand(2, 50, 8), torch.ones(2, 50, dtype=torch.bool)
        >>> order_statistics(features, mask).shape
        torch.Size([2, 80])
    """
    x = features.float()
    valid = mask.sum(dim=1).clamp(min=1)
    rank = x.mean(dim=2).masked_fill(~mask, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    group = (rank * _BINS).div(valid[:, None], rounding_mode="floor")
    member = (group[..., None] == torch.arange(_BINS, device=x.device)) & mask[..., None]
    weight = member.to(x.dtype) / member.sum(dim=1, keepdim=True).clamp(min=1)
    means = torch.einsum("btk,btf->bkf", weight, x)
    ordered = x.masked_fill(~mask[..., None], torch.inf)
    if x.device.type != "cpu" or ordered.requires_grad:
        ordered = ordered.sort(dim=1).values
    else:  # numpy is 12 times as fast as torch (measured: 128 x 163 x 80, one core)
        ordered.numpy().sort(axis=1)  # in place
    shares = torch.tensor(_QUANTILES, device=x.device, dtype=torch.float64)
    place = shares[None] * (valid[:, None] - 1)
    below = place.floor().long()
    above = torch.minimum(below + 1, valid[:, None] - 1)
    low, high = (
        ordered.gather(1, index[..., None].expand(-1, -1, x.shape[2])) for index in (below, above)
    )
    cuts = low + (place - below)[..., None].to(x.dtype) * (high - low)
    return torch.cat([means.flatten(1), cuts.flatten(1), _deviation(x, mask)], dim=1)


def movement_statistics(
    features: Tensor, mask: Tensor, *, differences: tuple[int, ...], num_correlated: int
) -> Tensor:
    """Return statistics of how the features move over time, which order_statistics do not see.

    For each band they are the standard deviations of the differences between frames that lie a
    number of frames apart. Then come the correlations over time between neighbouring groups of
    bands: of every pair i < j of num_correlated groups. All are over the valid frames, and none
    changes when the features are shifted by a constant, as a microphone does it.

    Args:
        features: (B, T, F).
        mask: (B, T) bool, True for valid frames, which come first.
        differences: How many frames lie between the frames that are compared. A recording that has
            no such pair has deviations near 0.
        num_correlated: The number of groups of bands, a divisor of F; 0 for no correlations.

    Returns:
        (B, F * len(differences) + num_correlated * (num_correlated - 1) / 2).

    Example:
        >>> features, mask = torch.rand(2, 50, 8), torch.ones(2, 50, dtype=torch.bool)
        >>> movement_statistics(features, mask, differences=(2, 8), num_correlated=4).shape
        torch.Size([2, 22])
    """
    x, parts = features.float(), []
    for apart in differences:
        # Padding in front and cutting works for recordings of any length, in ONNX as well.
        earlier = pad(x, (0, 0, apart, 0))[:, : x.shape[1]]
        both = mask & pad(mask, (apart, 0))[:, : x.shape[1]]
        parts.append(_deviation(x - earlier, both))
    if num_correlated:
        groups = x.reshape(*x.shape[:2], num_correlated, -1).mean(dim=3)
        groups = (groups - _mean(groups, mask)[:, None]) * mask[..., None]
        covariance = groups.transpose(1, 2) @ groups
        # Of frames that are all alike, rounding is what is left: it would correlate perfectly.
        least = 1e-8 * mask.sum(dim=1).clamp(min=1)[:, None].to(covariance.dtype)
        size = covariance.diagonal(dim1=1, dim2=2).maximum(least).sqrt()
        correlation = covariance / size[:, :, None] / size[:, None]
        rows, columns = torch.triu_indices(num_correlated, num_correlated, 1, device=x.device)
        parts.append(correlation[:, rows, columns])
    return torch.cat(parts, dim=1) if parts else x.new_zeros(len(x), 0)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of (B, T, F) over the valid frames, (B, F); 0 where there is none."""
    return (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1).clamp(min=1)[:, None]


def _deviation(x: Tensor, mask: Tensor) -> Tensor:
    """The standard deviation of (B, T, F) over the valid frames, (B, F)."""
    squares = ((x - _mean(x, mask)[:, None]) * mask[..., None]).square().sum(dim=1)
    return (squares / mask.sum(dim=1).clamp(min=1)[:, None] + 1e-10).sqrt()


def discriminant_directions(x: Tensor, y: Tensor, *, num_directions: int) -> tuple[Tensor, Tensor]:
    """Return the mean of rows and Fisher's linear discriminant directions.

    The directions are whitened within class, the best one first, and together scaled so that what
    they project has unit mean square.

    Args:
        x: (N, S) float64 rows.
        y: (N,) their labels.
        num_directions: K. With fewer classes than K + 1, or S below K, the directions left over
            are zero.

    Returns:
        The mean (S,), and the directions (S, K).

    Example:
        >>> x, y = torch.randn(40, 5).double(), torch.arange(40) % 4
        >>> mean, directions = discriminant_directions(x, y, num_directions=6)
        >>> directions.shape, int((directions != 0).any(dim=0).sum())
        (torch.Size([5, 6]), 3)
    """
    y = torch.unique(y, return_inverse=True)[1]
    count = torch.bincount(y).double()
    sums = torch.zeros(len(count), x.shape[1], dtype=x.dtype, device=x.device)
    centres = sums.index_add_(0, y, x) / count[:, None]
    mean = x.mean(dim=0)
    whiten = within_class_whitening(x, y, _SHRINKAGE)
    between = ((centres - mean) @ whiten) * count.sqrt()[:, None]
    _, vectors = torch.linalg.eigh(between.T @ between)
    num = min(num_directions, len(count) - 1, x.shape[1])
    best = whiten @ vectors.flip(1)[:, :num]
    directions = x.new_zeros(x.shape[1], num_directions)
    directions[:, :num] = best / ((x - mean) @ best).square().mean().sqrt()
    return mean, directions


def add_discriminant(
    network: Any, size: int, num_directions: int, dropout: float, start: Start
) -> None:
    """Give a network what turns its statistics (B, size) into embeddings (B, network.dim).

    It is a mean and directions, which are estimated, dropout, a linear layer and batch norm.
    """
    network.register_buffer("mean", torch.zeros(size))
    # torch.eye imports torch's compiler, a second's work, where models are restored
    network.register_buffer("directions", torch.zeros(size, num_directions).fill_diagonal_(1.0))
    network.dropout = nn.Dropout(dropout)
    network.linear = nn.Linear(num_directions, network.dim, bias=False)
    if start == "rotation":
        nn.init.orthogonal_(network.linear.weight)
    network.normalise = nn.BatchNorm1d(network.dim, affine=False)


def run_discriminant(network: Any, statistics: Tensor) -> Tensor:
    """Return the embeddings of statistics by what `add_discriminant` made."""
    x = network.dropout((statistics - network.mean) @ network.directions)
    return torch.as_tensor(network.normalise(network.linear(x)) * network.gain)


def estimate_discriminant(
    network: Any, statistics: Sequence[Tensor], labels: Sequence[Tensor]
) -> None:
    """Estimate mean and directions from statistics (N, size) and labels (N,), in parts."""
    mean, directions = discriminant_directions(
        torch.cat(list(statistics)).double(),
        torch.cat(list(labels)),
        num_directions=network.directions.shape[1],
    )
    network.mean.copy_(mean)
    network.directions.copy_(directions)


class OrderStatistics(nn.Module):
    """Order statistics, within-class whitening, dropout, linear and batch norm, to (B, dim).

    The whitening (linear discriminant directions, within-class covariance shrunk towards its
    diagonal) is estimated once from the training data by `estimate`, then frozen and saved. The
    linear layer after it is trained. Padded frames are left out, so padding never changes an
    embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
        dropout: The share of whitened statistics that is dropped in training.
        num_directions: The number of discriminant directions.
        differences: See movement_statistics, whose values follow those of order_statistics.
        num_correlated: See movement_statistics; a divisor of in_dim.
        norm: The root mean square of the output's norm, on which losses on raw embeddings (SimPLE)
            depend.
        start: What the linear layer is before training. "rotation" (or a projection, where dim is
            below num_directions) keeps the angles that the whitening gives, so that the network
            starts as linear discriminant analysis; "random" is PyTorch's start.

    Raises:
        LikenessError: num_correlated does not divide in_dim.
    """

    pads_exactly = True
    mean: Tensor  # (S,) of the statistics
    directions: Tensor  # (S, num_directions)

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 128,
        dropout: float = 0.5,
        num_directions: int = 128,
        differences: tuple[int, ...] = (),
        num_correlated: int = 0,
        norm: float = 1.0,
        start: Start = "random",
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        self.differences, self.num_correlated = tuple(differences), num_correlated
        if num_correlated and in_dim % num_correlated:
            raise LikenessError(
                f"OrderStatistics: num_correlated={num_correlated} does not divide the {in_dim} "
                "bands of the features; 0 leaves correlations out"
            )
        size = in_dim * (_BINS + len(_QUANTILES) + 1 + len(self.differences))
        size += num_correlated * (num_correlated - 1) // 2
        self.gain = norm * dim**-0.5
        add_discriminant(self, size, num_directions, dropout, start)

    def statistics(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the order statistics, then those of movement: (B, S)."""
        mask = valid_frames(features, lengths)
        order = order_statistics(features, mask)
        movement = movement_statistics(
            features, mask, differences=self.differences, num_correlated=self.num_correlated
        )
        return torch.cat([order, movement], dim=1)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        # Without autocast, because the whitening magnifies rounding.
        with torch.autocast(features.device.type, enabled=False):
            return run_discriminant(self, self.statistics(features, lengths))

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Estimate Fisher's linear discriminant directions from (features, lengths, labels).

        They are of the training data, scaled to unit mean square. With fewer classes than
        num_directions + 1, the directions left over are zero.
        """
        rows, labels = zip(
            *((self.statistics(features, lengths), y) for features, lengths, y in batches),
            strict=True,
        )
        estimate_discriminant(self, rows, labels)
