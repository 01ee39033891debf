"""SpecAugment masks stretches of time and bands of frequency of the features, in training only.

Source: Park et al. 2019 (arXiv:1904.08779), without time warping.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.modalities.speaker.features import KaldiFbank


class SpecAugment(nn.Module):
    """A front-end around a front-end, which masks its features while it is in training mode.

    It has no weights and changes nothing in eval mode. A masked value becomes the utterance's mean
    of its band. With mean normalisation that is 0, as in WeSpeaker, and without it that is no
    outlier.

    Features exist only in batches, so the masks are drawn from torch's CPU generator, whatever the
    device: 1 + 2 x (time_masks + freq_masks) numbers an item, in the order of the batch. A run
    saves and restores the state of that generator, so that a resumed run draws the same masks.

    The defaults are WeSpeaker's (dataset/processor.py spec_aug).

    Args:
        frontend: The front-end, as a part: partial(KaldiFbank, ...).
        prob: The probability, item by item, that an item is masked.
        time_masks: How many stretches of time are masked. Starts and widths are uniform.
        time_frames: The widest stretch in frames; the narrowest has 1.
        freq_masks: How many bands of frequency are masked.
        freq_bins: The widest band in bins; the narrowest has 1.

    Raises:
        LikenessError: An argument is out of range.
    """

    def __init__(
        self,
        frontend: Callable[[], nn.Module] = KaldiFbank,
        prob: float = 0.6,
        time_masks: int = 1,
        time_frames: int = 10,
        freq_masks: int = 1,
        freq_bins: int = 8,
    ) -> None:
        super().__init__()
        self.frontend = frontend()
        self.prob = prob
        self.time_masks, self.time_frames = time_masks, time_frames
        self.freq_masks, self.freq_bins = freq_masks, freq_bins
        self.dim: int = cast(Any, self.frontend).dim
        if (
            not 0.0 <= prob <= 1.0
            or min(time_masks, freq_masks) < 0
            or min(time_frames, freq_bins) < 1
            or freq_bins > self.dim
        ):
            raise LikenessError(
                f"SpecAugment: prob is {prob}, with {time_masks} time masks up to {time_frames} "
                f"frames and {freq_masks} frequency masks up to {freq_bins} of {self.dim} bins; a "
                "probability from 0 to 1, 0 or more masks and widths of 1 up to all bins are "
                "allowed"
            )

    def trim(self, num_samples: int) -> int:
        """Return how many of `num_samples` count, as the front-end's trim does."""
        return cast(int, cast(Any, self.frontend).trim(num_samples))

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the front-end's features; in training mode, mask stretches of (B, T, F) of them.

        Args and Returns are those of the front-end.
        """
        feats, relative = self.frontend(wave, lengths)
        if not self.training or self.prob == 0.0:
            return feats, relative
        batch, total, dim = feats.shape
        frames = (relative.double() * total).round()
        num_draws = 1 + 2 * (self.time_masks + self.freq_masks)
        drawn = torch.rand(batch, num_draws, dtype=torch.float64).to(feats.device)
        struck = (drawn[:, 0] < self.prob).unsqueeze(1)
        split = 1 + 2 * self.time_masks
        bands = torch.full_like(frames, dim)
        in_time = _stretches(drawn[:, 1:split], frames, self.time_frames, total) & struck
        in_frequency = _stretches(drawn[:, split:], bands, self.freq_bins, dim) & struck
        # Frames of padding are zero, so that the sum is that of the valid frames.
        mean = feats.sum(1, keepdim=True) / frames.to(feats.dtype).view(-1, 1, 1)
        inside = torch.arange(total, device=feats.device) < frames.unsqueeze(1)
        masked = (in_time.unsqueeze(2) | in_frequency.unsqueeze(1)) & inside.unsqueeze(2)
        return torch.where(masked, mean, feats), relative


def _stretches(drawn: Tensor, size: Tensor, widest: int, total: int) -> Tensor:
    """Return the union of stretches as (B, total) bool.

    `drawn` (B, 2 x masks) is uniform in [0, 1) and holds the starts, then the widths. A stretch
    starts anywhere in 0 ... size - 1 and is 1 ... widest long.
    """
    starts, widths = drawn.chunk(2, dim=1)
    starts = (starts * size.unsqueeze(1)).floor()
    ends = starts + 1 + (widths * widest).floor()
    place = torch.arange(total, device=drawn.device).view(1, -1, 1)
    return ((place >= starts.unsqueeze(1)) & (place < ends.unsqueeze(1))).any(2)
