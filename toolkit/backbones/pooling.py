"""Pooling over time that counts valid frames only.

The masks that carry through a network which frames are valid are here too.
"""

from collections import OrderedDict
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pooling = Literal["TAP", "TSTP", "ASTP", "ASP", "MQMHASTP"]


def frame_mask(lengths: Tensor, num_frames: int) -> Tensor:
    """Return (B, T) bool, which is True for valid frames.

    Args:
        lengths: (B,), relative to num_frames, 0 to 1.
        num_frames: T.

    Example:
        >>> frame_mask(torch.tensor([1.0, 0.5]), 4).tolist()
        [[True, True, True, True], [True, True, False, False]]
    """
    valid = (lengths * num_frames).round().clamp(min=1)
    return torch.arange(num_frames, device=lengths.device)[None, :] < valid[:, None]


def valid_frames(features: Tensor, lengths: Tensor | None) -> Tensor:
    """Return frame_mask of features (B, T, ...): (B, T) bool, all True without lengths.

    Example:
        >>> valid_frames(torch.zeros(1, 3, 8), None).tolist()
        [[True, True, True]]
    """
    if lengths is None:
        return torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    return frame_mask(lengths, features.shape[1])


def keep(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the padded frames.

    Then the next convolution sees what it would see past the end of an unpadded input. `mask` is
    bool and broadcasts to x; None keeps all.
    """
    return x if mask is None else x.masked_fill(~mask, 0.0)


def flat(x: Tensor) -> Tensor:
    """Flatten (B, C, F, T) to (B, C * F, T).

    It goes through (B, T, C, F): where dimensions before one of free size are to_rgb,
    torch.export fixes that size.
    """
    return x.permute(0, 3, 1, 2).contiguous().flatten(2).transpose(1, 2)


def statistics(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return mean and standard deviation over valid frames: (B, C, T) -> (B, 2C).

    This is WeSpeaker's TSTP: the unbiased variance, plus 1e-7, in float32 at least. 3D-Speaker adds
    1e-8 in its ERes2Nets and nothing in CAM++. So a deviation d differs by about 4.5e-8 / d or 5e-8
    / d, and that of a constant channel by 2.2e-4 or 3.2e-4.
    """
    x = precise(x)
    if mask is None:
        mean = x.mean(dim=-1)
        # As a tensor, the number of frames stays free in torch.export.
        num = x.new_ones(1, x.shape[-1]).sum(dim=1, keepdim=True)
        square = (x - mean[..., None]).square().sum(dim=-1)
    else:
        valid = mask[:, None, :].to(x.dtype)
        num = valid.sum(dim=-1)
        mean = (x * valid).sum(dim=-1) / num
        square = ((x - mean[..., None]) * valid).square().sum(dim=-1)
    return torch.cat([mean, (square / (num - 1).clamp(min=1) + 1e-7).sqrt()], dim=1)


def attend(x: Tensor, scores: Tensor, mask: Tensor | None, *, floor: float = 1e-7) -> Tensor:
    """Return mean and standard deviation over valid frames, weighted by attention.

    Source: Okabe et al. 2018, Eq 5 and 6. The variance is taken around the mean: E[x^2] - mean^2,
    as in the releases, loses float32's digits.

    Args:
        x: (B, C, T).
        scores: (B, C or 1, T); the weights are their softmax over valid frames.
        mask: (B, T) bool, or None if all frames are valid.
        floor: The smallest variance.

    Returns:
        (B, 2C).
    """
    x, scores = precise(x), precise(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    weight = scores.softmax(dim=-1)
    mean = (weight * x).sum(dim=-1)
    variance = (weight * (x - mean[..., None]).square()).sum(dim=-1)
    return torch.cat([mean, variance.clamp(min=floor).sqrt()], dim=1)


def pool(
    name: Pooling, channels: int, *, global_context: bool = False, floor: float = 1e-7
) -> tuple[nn.Module, int]:
    """Return the pooling of this name over (B, channels, T), and the size of what it gives.

    Call the module with (x, mask or None). Names of parameters are WeSpeaker's. The sizes of the
    attention are the defaults of WeSpeaker's pooling_layers.py, which none of its recipes changes.

    - TAP: the mean.
    - TSTP: mean and standard deviation (Snyder et al. 2018).
    - ASTP: both under channel-wise attention (Desplanques et al. 2020); with `global_context` the
      attention sees the utterance's mean and deviation too, and `floor` is the smallest variance.
    - ASP: the same with ReLU and batch norm inside (Okabe et al. 2018 as in voxceleb_trainer).
    - MQMHASTP: two queries of eight heads with channel-wise attention (Zhao et al. 2022).
    """
    if name == "TAP":
        return _Mean(), channels
    if name == "TSTP":
        return _Statistics(), 2 * channels
    if name == "ASTP":
        return _Attentive(channels, global_context, floor), 2 * channels
    if name == "ASP":
        return _NormedAttentive(channels), 2 * channels
    assert name == "MQMHASTP", name
    return _MultiQuery(channels), 4 * channels


def precise(x: Tensor) -> Tensor:
    """Return x in float32 at least."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class _Mean(nn.Module):
    """The mean."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return statistics(x, mask)[:, : x.shape[1]]


class _Statistics(nn.Module):
    """Mean and standard deviation."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return statistics(x, mask)


class _Attentive(nn.Module):
    """Channel-wise attention, which may see the utterance's statistics."""

    def __init__(self, channels: int, global_context: bool, floor: float, hidden: int = 128):
        super().__init__()
        self.global_context, self.floor = global_context, floor
        self.linear1 = nn.Conv1d(3 * channels if global_context else channels, hidden, 1)
        self.linear2 = nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.global_context:
            # The utterance's statistics are the same in every frame, so their part of linear1 is
            # computed once and not for every frame.
            weight, channels = self.linear1.weight, x.shape[1]
            shared = F.linear(statistics(x, mask).to(x.dtype), weight[:, channels:, 0])
            hidden = F.conv1d(x, weight[:, :channels], self.linear1.bias) + shared[..., None]
        else:
            hidden = self.linear1(x)
        return attend(x, self.linear2(hidden.tanh()), mask, floor=self.floor)


class _NormedAttentive(nn.Module):
    """Channel-wise attention with ReLU and batch norm inside."""

    def __init__(self, channels: int, hidden: int = 128):
        super().__init__()
        self.attention = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.ReLU(),
            nn.BatchNorm1d(hidden),
            nn.Conv1d(hidden, channels, 1),
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return attend(x, self.attention(x), mask, floor=1e-5)


class _MultiHead(nn.Module):
    """Several heads, each of which attends to its part of the channels."""

    def __init__(self, channels: int, *, heads: int = 8, hidden: int = 64):
        super().__init__()
        size = channels // heads
        self.heads_att_trans = nn.ModuleList(
            nn.Sequential(
                OrderedDict(
                    att_0=nn.Conv1d(size, hidden, 1),
                    tanh0=nn.Tanh(),
                    att_1=nn.Conv1d(hidden, size, 1),
                ),
            )
            for _ in range(heads)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        parts = x.chunk(len(self.heads_att_trans), dim=1)
        pairs = zip(parts, self.heads_att_trans, strict=True)
        return torch.cat([attend(part, head(part), mask) for part, head in pairs], dim=1)


class _MultiQuery(nn.Module):
    """Two multi-head attentions side by side."""

    def __init__(self, channels: int):
        super().__init__()
        self.n_query = nn.ModuleList(_MultiHead(channels) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return torch.cat([query(x, mask) for query in self.n_query], dim=1)
