"""Pooling over time that counts valid frames only."""

from __future__ import annotations

import torch
from torch import Tensor


def frame_mask(lengths: Tensor, num_frames: int) -> Tensor:
    """(B, T) bool, True for valid frames. lengths: (B,) relative 0..1 of num_frames."""
    valid = (lengths * num_frames).round().clamp(min=1)
    return torch.arange(num_frames, device=lengths.device)[None, :] < valid[:, None]


def statistics(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, C, T) -> (B, 2C): mean and standard deviation over valid frames (TSTP in WeSpeaker: unbiased variance + 1e-7), in float32 at least."""
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    if mask is None:
        mean = x.mean(dim=-1)
        num = torch.full((1, 1), float(x.shape[-1]), device=x.device, dtype=x.dtype)
        square = (x - mean[..., None]).square().sum(dim=-1)
    else:
        valid = mask[:, None, :].to(x.dtype)
        num = valid.sum(dim=-1)
        mean = (x * valid).sum(dim=-1) / num
        square = ((x - mean[..., None]) * valid).square().sum(dim=-1)
    return torch.cat([mean, (square / (num - 1).clamp(min=1) + 1e-7).sqrt()], dim=1)
