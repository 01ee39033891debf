"""ECAPA-TDNN in two versions: SpeechBrain's, and WeSpeaker's.

SpeechBrain's is put behind the backbone signature. WeSpeaker's pads with zeros and masks exactly.

SpeechBrain imports torchaudio, whose wheel carries a compiled extension that is linked against CUDA
libraries. Beside a CPU torch its import raises OSError, beside another version of CUDA
RuntimeError. torchaudio has its own path without the extension (its loader returns False), which
the second import takes. MelSpectrogram, MFCC, resample and compliance.kaldi work without the
extension. torchaudio.load and save do not: read audio with likeness.modalities.speaker.audio.
Likeness imports torchaudio by import_torchaudio() alone, and does so before it imports speechbrain,
transformers or peft.
"""

import importlib
import sys
from collections import OrderedDict
from types import ModuleType

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.pooling import frame_mask, keep, pool


def import_torchaudio() -> ModuleType:
    """Import torchaudio, without its extension where that cannot be loaded.

    Call it before anything imports speechbrain, which imports torchaudio itself. Calling it again
    is free. A script of your own that imports torchaudio or speechbrain begins with it too:

        from likeness.toolkit.backbones.ecapa import import_torchaudio

        torchaudio = import_torchaudio()
    """
    try:
        return importlib.import_module("torchaudio")
    except (OSError, RuntimeError):
        loader = vars(sys.modules["torchaudio._extension.utils"])
        loader["_load_lib"] = lambda lib: False  # there is no extension
        return importlib.import_module("torchaudio")


class ECAPA(nn.Module):
    """ECAPA-TDNN (Desplanques et al. 2020) as SpeechBrain has it, which gives (B, dim) embeddings.

    SpeechBrain reflects the input at the edges of every convolution, so a padded utterance would
    end differently from an unpadded one. Therefore `pads_exactly` is False, and embedding batches
    hold equal lengths only.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the raw embeddings.
        channels: The width of the first four blocks: 512 or 1024 in the literature, 128 for small
            data.
    """

    pads_exactly = False

    def __init__(self, in_dim: int, *, dim: int = 192, channels: int = 512):
        super().__init__()
        import_torchaudio()  # speechbrain imports torchaudio
        from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

        self.in_dim, self.dim = in_dim, dim
        widths = [channels] * 4 + [3 * channels]
        self.network = ECAPA_TDNN(in_dim, lin_neurons=dim, channels=widths)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        return torch.as_tensor(
            self.network(features, None if lengths is None else lengths.to(features.dtype))
        ).squeeze(1)


class WeSpeakerECAPA(nn.Module):
    """ECAPA-TDNN as WeSpeaker's models/ecapa_tdnn.py has it, which gives raw embeddings (B, dim).

    Source: Desplanques et al. 2020. Parameter names are WeSpeaker's. Padded frames are zeroed
    before every convolution over time and left out of every mean, so padding never changes an
    embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
        channels: 512 (c512) or 1024 (c1024).
        pooled: The width of the layer under the pooling, 1536 in both.
        res2net_scale: The number of groups of channels of a Res2 convolution.
        se_channels: The hidden channels of squeeze and excitation.
        global_context: Whether the attention sees the utterance's mean and deviation (the GLOB
            variants, which WeSpeaker's recipes use: 6.19 and 14.66 M parameters at 80 mel).
        normalise: Whether batch norm follows the embedding (emb_bn).
        floor: The smallest variance of the pooling.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        channels: int = 512,
        pooled: int = 1536,
        res2net_scale: int = 8,
        se_channels: int = 128,
        global_context: bool = True,
        normalise: bool = False,
        floor: float = 1e-7,
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        self.layer1 = _layer(in_dim, channels, 5)
        self.layer2, self.layer3, self.layer4 = (
            _Block(channels, dilation, res2net_scale, se_channels) for dilation in (2, 3, 4)
        )
        self.conv = nn.Conv1d(3 * channels, pooled, 1)
        self.pool, size = pool("ASTP", pooled, global_context=global_context, floor=floor)
        self.bn = nn.BatchNorm1d(size)
        self.linear = nn.Linear(size, dim)
        self.bn2 = nn.BatchNorm1d(dim) if normalise else nn.Identity()

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        mask = None if lengths is None else frame_mask(lengths, features.shape[1])
        frames = None if mask is None else mask[:, None]
        x, outputs = self.layer1(keep(features.transpose(1, 2), frames)), []
        for layer in (self.layer2, self.layer3, self.layer4):
            x = layer(x, frames)
            outputs.append(x)
        x = torch.relu(self.conv(torch.cat(outputs, dim=1)))
        return torch.as_tensor(self.bn2(self.linear(self.bn(self.pool(x, mask)))))


def _layer(channels_in: int, channels: int, size: int) -> nn.Sequential:
    """Convolution, ReLU and batch norm, in this order."""
    conv = nn.Conv1d(channels_in, channels, size, padding=size // 2)
    return nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(), bn=nn.BatchNorm1d(channels)))


class _Block(nn.Module):
    """SE-Res2Block: 1x1 layer, Res2 convolutions, 1x1 layer, squeeze and excitation, shortcut.

    `frames` is (B, 1, T) bool or None.
    """

    def __init__(self, channels: int, dilation: int, scale: int, se_channels: int):
        super().__init__()
        parts = [
            _layer(channels, channels, 1),
            _Res2(channels, dilation, scale),
            _layer(channels, channels, 1),
            _Excitation(channels, se_channels),
        ]
        self.se_res2block = nn.ModuleList(parts)

    def forward(self, x: Tensor, frames: Tensor | None) -> Tensor:
        widen, res2, mix, excite = self.se_res2block
        return torch.as_tensor(x + excite(mix(res2(keep(widen(x), frames), frames)), frames))


class _Res2(nn.Module):
    """Each group of channels is convolved together with the output of the group before it.

    The last group passes unchanged. The input is zero in padded frames.
    """

    def __init__(self, channels: int, dilation: int, scale: int):
        super().__init__()
        self.width = channels // scale
        self.convs = nn.ModuleList(
            nn.Conv1d(self.width, self.width, 3, padding=dilation, dilation=dilation)
            for _ in range(scale - 1)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(self.width) for _ in range(scale - 1))

    def forward(self, x: Tensor, frames: Tensor | None) -> Tensor:
        *groups, last = torch.split(x, self.width, dim=1)
        done: list[Tensor] = []
        for conv, bn, group in zip(self.convs, self.bns, groups, strict=True):
            y = done[-1] + group if done else group
            done.append(keep(bn(torch.relu(conv(y))), frames))
        return torch.cat([*done, last], dim=1)


class _Excitation(nn.Module):
    """Channels scaled by a function of their means over valid frames."""

    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x: Tensor, frames: Tensor | None) -> Tensor:
        mean = x.mean(dim=2) if frames is None else keep(x, frames).sum(dim=2) / frames.sum(dim=2)
        return torch.as_tensor(
            x * self.linear2(torch.relu(self.linear1(mean))).sigmoid()[..., None]
        )
