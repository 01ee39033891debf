"""2-D residual networks over filterbanks with statistics pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from toolkit.backbones.pooling import frame_mask, statistics


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; parameter names as in WeSpeaker."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        changes = stride != 1 or channels_in != channels
        self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)) if changes else nn.Sequential()

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if mask is not None:
            mask = mask[..., :: self.stride]  # output frame t is centred on input frame t * stride
        y = _keep(torch.relu(self.bn1(self.conv1(x))), mask)
        return _keep(torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x)), mask), mask


def _keep(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the padded frames, so that the next convolution sees what it would see past the end of an unpadded input."""
    return x if mask is None else x * mask.to(x.dtype)


class ResNet34(nn.Module):
    """ResNet-34 over (B, T, in_dim) features -> (B, dim): stem, four stages of [3, 4, 6, 3] blocks, statistics pooling, linear.

    width is the first stage's channel count (32 = WeSpeaker's ResNet34, 6.63 M parameters at 80 mel and dim 256). lengths: (B,) relative 0..1;
    padded frames are zeroed after every block, so padding never changes an embedding. He et al. 2016; WeSpeaker's parameter names.
    """

    pads_exactly = True

    def __init__(self, in_dim: int, *, dim: int = 256, width: int = 32, blocks: tuple[int, int, int, int] = (3, 4, 6, 3)):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels, mels = width, in_dim
        for stage, count in enumerate(blocks):
            wide, stride = width * 2**stage, 1 if stage == 0 else 2
            rows = [_BasicBlock(channels if i == 0 else wide, wide, stride if i == 0 else 1) for i in range(count)]
            setattr(self, f"layer{stage + 1}", nn.ModuleList(rows))
            channels, mels = wide, -(-mels // stride)
        self.seg_1 = nn.Linear(2 * channels * mels, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """features (B, T, in_dim), lengths (B,) relative -> (B, dim) raw embeddings."""
        mask = None if lengths is None else frame_mask(lengths, features.shape[1])[:, None, None, :]
        x = _keep(torch.relu(self.bn1(self.conv1(features.transpose(1, 2)[:, None]))), mask)
        for stage in range(4):
            for block in getattr(self, f"layer{stage + 1}"):
                x, mask = block(x, mask)
        pooled = statistics(x.flatten(1, 2), None if mask is None else mask[:, 0, 0])
        return torch.as_tensor(self.seg_1(pooled))
