"""SpeechBrain's ECAPA-TDNN behind the backbone signature."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ECAPA(nn.Module):
    """ECAPA-TDNN (Desplanques et al. 2020) as SpeechBrain has it: (B, T, in_dim) features -> (B, dim) raw embeddings.

    channels: width of the first four blocks (512 or 1024 in the field, 128 for small data); the fifth has mfa_channels (default 3 x channels).
    SpeechBrain reflects the input at the edges of every convolution, so a padded utterance would end differently from an unpadded one:
    `pads_exactly` is False and embedding batches hold equal lengths only.
    """

    pads_exactly = False

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        channels: int = 512,
        mfa_channels: int = 0,
        attention_channels: int = 128,
        se_channels: int = 128,
        res2net_scale: int = 8,
    ):
        super().__init__()
        from toolkit.torchaudio_cpu import import_torchaudio

        import_torchaudio()  # speechbrain imports torchaudio
        from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

        self.in_dim, self.dim = in_dim, dim
        widths = [channels] * 4 + [mfa_channels or 3 * channels]
        self.network = ECAPA_TDNN(
            in_dim, lin_neurons=dim, channels=widths, attention_channels=attention_channels, se_channels=se_channels, res2net_scale=res2net_scale
        )

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """features (B, T, in_dim), lengths (B,) relative -> (B, dim)."""
        return torch.as_tensor(self.network(features, None if lengths is None else lengths.to(features.dtype))).squeeze(1)
