"""A shallow network over histograms of oriented gradients: for data sets of a few dozen subjects,
where deep networks overfit; trains in seconds on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, pad

from toolkit.backbones.images import check_images


def oriented_gradients(grey: Tensor, *, cells: int, bins: int, sigma: float) -> Tensor:
    """(B, H, W) grey -> (B, cells, cells, bins): histograms of the gradient's direction, in 0 to 2
    pi from the x axis towards the y axis (downwards).

    Smoothing by a Gaussian of sigma pixels, centred differences, each pixel's magnitude shared
    between the two nearest bins (circular) and the nearest cells, cells divided by the energy of
    their 3 x 3 neighbourhood, square root. After Dalal and Triggs 2005, whose signed form (Sec.
    6.3) it is; they do not smooth, and normalise each cell in four overlapping blocks in place of
    one neighbourhood and a square root (Hellinger's kernel, Arandjelovic and Zisserman 2012). Edges
    are repeated.
    Adding to the grey levels of an image or multiplying them changes nothing; a constant image
    gives zeros. It has no gradient where an image is flat.
    """
    x = _smooth(grey[:, None], sigma)
    around = pad(x, (1, 1, 1, 1), mode="replicate")
    dx = around[..., 1:-1, 2:] - around[..., 1:-1, :-2]
    dy = around[..., 2:, 1:-1] - around[..., :-2, 1:-1]
    magnitude = (dx.square() + dy.square()).sqrt()
    place = (
        torch.atan2(dy, dx) * (bins / (2 * math.pi)) - 0.5
    )  # in bins; -0.5: bin k is centred at k + 1/2
    apart = (place - torch.arange(bins, dtype=x.dtype, device=x.device)[:, None, None]).remainder(
        bins
    )
    share = (1 - torch.minimum(apart, bins - apart)).clamp(min=0)
    rows, columns = (_cell_weights(side, cells, like=x) for side in x.shape[2:])
    found = torch.einsum("rh,bkhw,cw->bkrc", rows, magnitude * share, columns)
    energy = avg_pool2d(
        found.sum(dim=1, keepdim=True), 3, stride=1, padding=1, count_include_pad=False
    )
    floor = 1e-3 * energy.mean(
        dim=(2, 3), keepdim=True
    )  # of the image itself: flat cells of a face beside a dark ground are not blown up
    return (found / (energy + floor).clamp(min=1e-12)).sqrt().permute(0, 2, 3, 1)


def _smooth(x: Tensor, sigma: float) -> Tensor:
    """(B, 1, H, W) filtered by a Gaussian cut at 3 sigma; sigma 0 leaves it."""
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
    """(cells, side): triangles about the cells' centres that reach to the next centre, each of sum
    1.
    """
    pixel = torch.arange(side, dtype=like.dtype, device=like.device) + 0.5
    centre = (torch.arange(cells, dtype=like.dtype, device=like.device) + 0.5) * (side / cells)
    weight = (1 - (pixel - centre[:, None]).abs() * (cells / side)).clamp(min=0)
    return weight / weight.sum(dim=1, keepdim=True)


def within_class_whitening(x: Tensor, y: Tensor, shrinkage: float) -> Tensor:
    """(N, S) float64 rows and their labels (N,) -> (S, S): its transpose times the shrunk
    within-class covariance times it is the identity.

    Hatch et al. 2006 (WCCN); shrinkage: towards the diagonal of the covariance, 0 to 1, above 0
    where N is not far above S.
    """
    y = torch.unique(y, return_inverse=True)[1]
    count = torch.bincount(y).to(x.dtype)
    centres = (
        torch.zeros(len(count), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, y, x)
        / count[:, None]
    )
    within = x - centres[y]
    covariance = within.T @ within / len(x)
    scale = covariance.diagonal().clamp(min=1e-12).sqrt()
    correlation = (1 - shrinkage) * covariance / scale[:, None] / scale + shrinkage * torch.eye(
        len(scale), dtype=x.dtype, device=x.device
    )
    values, vectors = torch.linalg.eigh(correlation)
    return torch.as_tensor(vectors / values.clamp(min=1e-12).sqrt() / scale[:, None])


class GradientHistograms(nn.Module):
    """Histograms of oriented gradients, mean of the image's and its mirror image's -> within-class
    whitening -> linear -> (B, dim).

    Images (B, in_dim, image_size, image_size), of which the mean over channels is taken. Mean and
    whitening are estimated once from the training data by `estimate`, then frozen and saved; the
    linear layer, which starts as a rotation (dim >= `size`) or a projection, is trained. Embeddings
    of an image and of its mirror image are equal. norm: root mean square of the norm at the start,
    which losses on raw embeddings (SimPLE) depend on. Déniz et al. 2011 (histograms of oriented
    gradients for faces); see oriented_gradients and within_class_whitening.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    mean: Tensor  # (S,) of the histograms
    whitening: Tensor  # (S, S)

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 256,
        image_size: int = 64,
        cells: int = 6,
        bins: int = 12,
        sigma: float = 1.0,
        shrinkage: float = 0.3,
        norm: float = 1.0,
    ):
        super().__init__()
        if not (
            2 <= cells <= image_size
            and bins >= 4
            and bins % 2 == 0
            and sigma >= 0
            and 0 <= shrinkage <= 1
        ):
            raise ValueError(
                f"GradientHistograms: cells={cells} must be 2 to image_size={image_size}, "
                f"bins={bins} even and at least 4, sigma={sigma} not below 0, "
                f"shrinkage={shrinkage} from 0 to 1"
            )
        (
            self.in_dim,
            self.dim,
            self.image_size,
            self.cells,
            self.bins,
            self.sigma,
            self.shrinkage,
        ) = in_dim, dim, image_size, cells, bins, sigma, shrinkage
        self.size = bins * cells * ((cells + 1) // 2)
        self.register_buffer("mean", torch.zeros(self.size))
        self.register_buffer("whitening", torch.eye(self.size))
        self.gain = norm * min(dim, self.size) ** -0.5
        self.linear = nn.Linear(self.size, dim, bias=False)
        nn.init.orthogonal_(self.linear.weight)

    def histograms(self, images: Tensor) -> Tensor:
        """(B, size): the mean of an image's histograms and its mirror image's, whose right half
        says nothing new. No gradient reaches the images.
        """
        grey = (images if images.dtype == torch.float64 else images.float()).mean(dim=1)
        found = oriented_gradients(grey, cells=self.cells, bins=self.bins, sigma=self.sigma)
        # left and right change places: the angle a becomes pi - a, bin k bin (bins / 2 - 1 - k)
        turned = torch.tensor(
            [(self.bins // 2 - 1 - k) % self.bins for k in range(self.bins)], device=found.device
        )
        both = (found + found.flip(2).index_select(3, turned)) / 2
        return both[:, :, : (self.cells + 1) // 2].flatten(1).detach()

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """images (B, in_dim, image_size, image_size) -> (B, dim) raw embeddings; lengths is
        ignored.
        """
        check_images(images, "GradientHistograms", self.in_dim, self.image_size)
        with torch.autocast(images.device.type, enabled=False):  # the whitening magnifies rounding
            return torch.as_tensor(
                self.linear((self.histograms(images) - self.mean) @ self.whitening) * self.gain
            )

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Mean and whitening from (images, lengths, labels) of the training data; whitened
        histograms have unit mean square.
        """
        rows, labels = zip(*((self.histograms(images), y) for images, _, y in batches), strict=True)
        x = torch.cat(rows).double()
        self.mean.copy_(x.mean(dim=0))
        whitening = within_class_whitening(x, torch.cat(labels), self.shrinkage)
        self.whitening.copy_(whitening / ((x - x.mean(dim=0)) @ whitening).square().mean().sqrt())
