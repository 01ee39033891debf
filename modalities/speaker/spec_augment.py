"""SpecAugment: stretches of time and of frequency masked out of the features, in training only.

Park et al. 2019 (arXiv:1904.08779), without time warping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from modalities.speaker.features import KaldiFbank


class SpecAugment(nn.Module):
    """A front-end around a front-end: the same features, with masks while in training mode.

    It has no weights and changes nothing in eval mode.

    frontend: the front-end, as a part: partial(KaldiFbank, ...). With probability `prob`, item by
    item, `time_masks` stretches of 1 to `time_frames` frames and `freq_masks` bands of 1 to
    `freq_bins` bins are masked; starts and widths are uniform. The defaults are WeSpeaker's
    (dataset/processor.py spec_aug). A masked value becomes the utterance's mean of its band: with
    mean normalisation 0, as in WeSpeaker, and without it no outlier.

    The draws: features exist only in batches, so the masks come from torch's CPU generator
    (whatever the device), 1 + 2 x (time_masks + freq_masks) numbers an item in the batch's order. A
    run saves and restores that generator's state: a resumed run draws the same masks. Raises
    ValueError for arguments out of range.
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
        if not 0.0 <= prob <= 1.0:
            raise ValueError(f"SpecAugment: prob is {prob}; a probability from 0 to 1 is needed")
        if min(time_masks, freq_masks) < 0 or min(time_frames, freq_bins) < 1:
            raise ValueError(
                f"SpecAugment: {time_masks} time masks up to {time_frames} frames, {freq_masks} "
                f"frequency masks up to {freq_bins} bins;"
                " the numbers must be 0 or more, the widths 1 or more"
            )
        self.frontend = frontend()
        self.prob, self.time_masks, self.time_frames, self.freq_masks, self.freq_bins = (
            prob,
            time_masks,
            time_frames,
            freq_masks,
            freq_bins,
        )
        self.dim: int = cast(Any, self.frontend).dim
        if freq_bins > self.dim:
            raise ValueError(
                f"SpecAugment: freq_bins is {freq_bins}, but the features have {self.dim}; take "
                "fewer"
            )

    def trim(self, num_samples: int) -> int:
        """As the front-end's."""
        return cast(int, cast(Any, self.frontend).trim(num_samples))

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As the front-end's; in training mode with masks over its (B, T, F) features."""
        feats, relative = self.frontend(wave, lengths)
        if not self.training or self.prob == 0.0:
            return feats, relative
        batch, total, dim = feats.shape
        frames = (relative.double() * total).round()
        drawn = torch.rand(
            batch, 1 + 2 * (self.time_masks + self.freq_masks), dtype=torch.float64
        ).to(feats.device)
        struck = (drawn[:, 0] < self.prob).unsqueeze(1)
        split = 1 + 2 * self.time_masks
        in_time = _stretches(drawn[:, 1:split], frames, self.time_frames, total) & struck
        in_frequency = (
            _stretches(drawn[:, split:], torch.full_like(frames, dim), self.freq_bins, dim) & struck
        )
        mean = feats.sum(1, keepdim=True) / frames.to(feats.dtype).view(
            -1, 1, 1
        )  # frames of padding are zero
        inside = torch.arange(total, device=feats.device) < frames.unsqueeze(1)
        masked = (in_time.unsqueeze(2) | in_frequency.unsqueeze(1)) & inside.unsqueeze(2)
        return torch.where(masked, mean, feats), relative

    def extra_repr(self) -> str:
        return (
            f"prob={self.prob}, time_masks={self.time_masks}, time_frames={self.time_frames}, "
            f"freq_masks={self.freq_masks}, freq_bins={self.freq_bins}"
        )


def _stretches(drawn: Tensor, size: Tensor, widest: int, total: int) -> Tensor:
    """drawn (B, 2 x masks) uniform in [0, 1) -> (B, total) bool: the union of stretches that start
    anywhere in 0 ... size - 1 and are 1 ... widest long.
    """
    starts, widths = drawn.chunk(2, dim=1)
    starts = (starts * size.unsqueeze(1)).floor()
    ends = starts + 1 + (widths * widest).floor()
    place = torch.arange(total, device=drawn.device).view(1, -1, 1)
    return ((place >= starts.unsqueeze(1)) & (place < ends.unsqueeze(1))).any(2)
