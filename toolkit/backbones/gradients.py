"""A shallow network over histograms of oriented gradients, which trains in seconds on a CPU.

It is for data sets of a few dozen subjects, where deep networks overfit.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, pad

from likeness.toolkit.backbones._images import check_images

_CELLS, _BINS = 6, 12  # along an edge of the image, and directions; both are even
_SIGMA = 1.0  # of the smoothing, in pixels
_SHRINKAGE = 0.3  # see within_class_whitening


def oriented_gradients(grey: Tensor, *, cells: int, bins: int, sigma: float) -> Tensor:
    """Return histograms of the gradient's direction: (B, H, W) grey -> (B, cells, cells, bins).

    Directions go from 0 to 2 pi, from the x axis towards the y axis (downwards). The image is
    smoothed by a Gaussian of sigma pixels, and differences are centred. Each pixel's magnitude is
    shared between the two nearest bins (circular) and the nearest cells. Cells are divided by the
    energy of their 3 x 3 neighbourhood; then the square root is taken. Edges are repeated.

    It follows Dalal and Triggs 2005, in their signed form (Sec. 6.3). They do not smooth; and they
    normalise each cell in four overlapping blocks, in place of one neighbourhood and a square root
    (Hellinger's kernel, Arandjelovic and Zisserman 2012).

    Adding to the grey levels of an image or multiplying them changes nothing. A constant image
    gives zeros. The function has no gradient where an image is flat.

    Example:
        >>> oriented_gradients(torch.rand(2, 64, 64), cells=6, bins=12, sigma=1.0).shape
        torch.Size([2, 6, 6, 12])
    """
    x = _smooth(grey[:, None], sigma)
    around = pad(x, (1, 1, 1, 1), mode="replicate")
    dx = around[..., 1:-1, 2:] - around[..., 1:-1, :-2]
    dy = around[..., 2:, 1:-1] - around[..., :-2, 1:-1]
    magnitude = (dx.square() + dy.square()).sqrt()
    # The direction in bins; bin k is centred at k + 1/2.
    place = torch.atan2(dy, dx) * (bins / (2 * math.pi)) - 0.5
    bin_numbers = torch.arange(bins, dtype=x.dtype, device=x.device)[:, None, None]
    apart = (place - bin_numbers).remainder(bins)
    share = (1 - torch.minimum(apart, bins - apart)).clamp(min=0)
    rows, columns = (_cell_weights(side, cells, like=x) for side in x.shape[2:])
    cell_bins = torch.einsum("rh,bkhw,cw->bkrc", rows, magnitude * share, columns)
    total = cell_bins.sum(dim=1, keepdim=True)
    energy = avg_pool2d(total, 3, stride=1, padding=1, count_include_pad=False)
    # The floor depends on the image, so that flat cells, such as those of a dark ground beside a
    # face, are not blown up.
    floor = 1e-3 * energy.mean(dim=(2, 3), keepdim=True)
    return (cell_bins / (energy + floor).clamp(min=1e-12)).sqrt().permute(0, 2, 3, 1)


def _smooth(x: Tensor, sigma: float) -> Tensor:
    """Filter (B, 1, H, W) by a Gaussian that is cut at 3 sigma; sigma 0 leaves it unchanged."""
    if sigma == 0:
        return x
    radius = math.ceil(3 * sigma)
    place = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    kernel = (-0.5 * (place / sigma).square()).exp()
    kernel = kernel / kernel.sum()
    across = conv2d(pad(x, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None])
    return conv2d(
        pad(across, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None]
    )


def _cell_weights(side: int, cells: int, *, like: Tensor) -> Tensor:
    """Return (cells, side): triangles about the cells' centres, each of sum 1.

    They reach to the next centre.
    """
    pixel = torch.arange(side, dtype=like.dtype, device=like.device) + 0.5
    centre = (torch.arange(cells, dtype=like.dtype, device=like.device) + 0.5) * (side / cells)
    weight = (1 - (pixel - centre[:, None]).abs() * (cells / side)).clamp(min=0)
    return weight / weight.sum(dim=1, keepdim=True)


def within_class_whitening(x: Tensor, y: Tensor, shrinkage: float) -> Tensor:
    """Return the matrix (S, S) that whitens the within-class covariance.

    Its transpose times the shrunk covariance times it is the identity (WCCN, Hatch et al. 2006).

    Args:
        x: (N, S) float64 rows.
        y: (N,) their labels.
        shrinkage: How far the covariance is moved towards its diagonal, 0 to 1; it has to be above
            0 where N is not far above S.
    """
    y = torch.unique(y, return_inverse=True)[1]
    count = torch.bincount(y).to(x.dtype)
    sums = torch.zeros(len(count), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, y, x)
    within = x - (sums / count[:, None])[y]
    covariance = within.T @ within / len(x)
    scale = covariance.diagonal().clamp(min=1e-12).sqrt()
    identity = torch.eye(len(scale), dtype=x.dtype, device=x.device)
    correlation = (1 - shrinkage) * covariance / scale[:, None] / scale + shrinkage * identity
    values, vectors = torch.linalg.eigh(correlation)
    return torch.as_tensor(vectors / values.clamp(min=1e-12).sqrt() / scale[:, None])


class GradientHistograms(nn.Module):
    """Histograms of oriented gradients, within-class whitening and a linear layer, to (B, dim).

    The histograms are the mean of those of the image and of its mirror image, so both have equal
    embeddings. Mean and whitening are estimated once from the training data by `estimate`, then
    frozen and saved. The linear layer is trained; it starts as a rotation (dim >= `size`) or a
    projection. Source: Déniz et al. 2011 (histograms of oriented gradients for faces); see
    oriented_gradients and within_class_whitening.

    Args:
        in_dim: The number of channels of the images (B, in_dim, image_size, image_size), whose mean
            is taken.
        dim: The size of the embeddings.
        image_size: The edge of the images in pixels.
        norm: The root mean square of the norm at the start, on which losses on raw embeddings
            (SimPLE) depend.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    mean: Tensor  # (S,) of the histograms
    whitening: Tensor  # (S, S)

    def __init__(self, in_dim: int, *, dim: int = 256, image_size: int = 64, norm: float = 1.0):
        super().__init__()
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        self.size = _BINS * _CELLS * (_CELLS // 2)
        self.register_buffer("mean", torch.zeros(self.size))
        # torch.eye imports torch's compiler, a second's work, where models are restored
        self.register_buffer("whitening", torch.zeros(self.size, self.size).fill_diagonal_(1.0))
        self.gain = norm * min(dim, self.size) ** -0.5
        self.linear = nn.Linear(self.size, dim, bias=False)
        nn.init.orthogonal_(self.linear.weight)

    def histograms(self, images: Tensor) -> Tensor:
        """Return (B, size): the mean of the histograms of an image and of its mirror image.

        The right half of the mean is left out, since it says nothing new. No gradient reaches the
        images.
        """
        grey = (images if images.dtype == torch.float64 else images.float()).mean(dim=1)
        own = oriented_gradients(grey, cells=_CELLS, bins=_BINS, sigma=_SIGMA)
        # In the mirror image left and right change places. The angle a becomes pi - a there, and
        # bin k becomes bin (bins / 2 - 1 - k).
        bins = [(_BINS // 2 - 1 - k) % _BINS for k in range(_BINS)]
        turned = torch.tensor(bins, device=own.device)
        both = (own + own.flip(2).index_select(3, turned)) / 2
        return both[:, :, : _CELLS // 2].flatten(1).detach()

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of square images; `lengths` is ignored."""
        check_images(images, "GradientHistograms", self.in_dim, self.image_size)
        with torch.autocast(images.device.type, enabled=False):  # the whitening magnifies rounding
            return torch.as_tensor(
                self.linear((self.histograms(images) - self.mean) @ self.whitening) * self.gain
            )

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Estimate mean and whitening from (images, lengths, labels) of the training data.

        Whitened histograms have unit mean square.
        """
        rows, labels = zip(*((self.histograms(images), y) for images, _, y in batches), strict=True)
        x = torch.cat(rows).double()
        self.mean.copy_(x.mean(dim=0))
        whitening = within_class_whitening(x, torch.cat(labels), _SHRINKAGE)
        self.whitening.copy_(whitening / ((x - x.mean(dim=0)) @ whitening).square().mean().sqrt())
