"""The x-vector network: a time-delay network, statistics pooling, two layers over the utterance."""

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones.pooling import frame_mask, keep, pool

_CONTEXT = 14  # the number of frames that the five layers lose: 4, 2 x 2 and 3 x 2


class XVector(nn.Module):
    """The x-vector network (Snyder et al. 2018, Table 1), which gives raw embeddings (B, dim).

    It is that of WeSpeaker's models/tdnn.py (4.61 M parameters at 80 mel): batch norm without
    weights follows each ReLU. The convolutions are not padded, so an utterance needs 15 frames, and
    a padded utterance just yields fewer of them.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
        channels: The channels of the layers over frames.
        pooled: The channels under the pooling.
        two_layers: Whether the embedding is taken after the second layer over the utterance, or
            after the first, as 3D-Speaker does (4.34 M parameters).

    Raises:
        LikenessError: An utterance is shorter.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        channels: int = 512,
        pooled: int = 1500,
        two_layers: bool = True,
    ):
        super().__init__()
        self.in_dim, self.dim, self.two_layers = in_dim, dim, two_layers
        self.frame_1 = _Layer(in_dim, channels, 5, 1)
        self.frame_2 = _Layer(channels, channels, 3, 2)
        self.frame_3 = _Layer(channels, channels, 3, 3)
        self.frame_4 = _Layer(channels, channels, 1, 1)
        self.frame_5 = _Layer(channels, pooled, 1, 1)
        self.pool, size = pool("TSTP", pooled)
        self.seg_1 = nn.Linear(size, dim)
        if two_layers:
            self.seg_bn_1 = nn.BatchNorm1d(dim, affine=False)
            self.seg_2 = nn.Linear(dim, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        frames = features.shape[1]
        mask = None if lengths is None else frame_mask(lengths, frames)
        shortest = frames
        if mask is not None and not torch.compiler.is_compiling():
            shortest = int(mask.sum(dim=1).min())
        if shortest <= _CONTEXT:
            raise LikenessError(
                f"XVector: an utterance has {shortest} frames, fewer than its context of "
                f"{_CONTEXT + 1}"
            )
        x = features.transpose(1, 2)
        for layer in (self.frame_1, self.frame_2, self.frame_3, self.frame_4, self.frame_5):
            x = layer(x)
        if mask is not None:  # output frame t depends on input frames t .. t + 14
            mask = mask[:, _CONTEXT:]
            x = keep(x, mask[:, None])
        z = self.seg_1(self.pool(x, mask))
        return torch.as_tensor(self.seg_2(self.seg_bn_1(torch.relu(z))) if self.two_layers else z)


class _Layer(nn.Module):
    """A dilated convolution without padding, ReLU, and batch norm without weights."""

    def __init__(self, channels_in: int, channels: int, size: int, dilation: int):
        super().__init__()
        self.conv_1d = nn.Conv1d(channels_in, channels, size, dilation=dilation)
        self.bn = nn.BatchNorm1d(channels, affine=False)  # without weights, as Kaldi's

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.bn(torch.relu(self.conv_1d(x))))
