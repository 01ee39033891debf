"""Speech networks of the Hugging Face hub behind the backbone signature.

They are wav2vec 2.0, HuBERT and WavLM over waves, w2v-BERT 2.0 over filterbanks, and Whisper's
encoder over log mel energies, as `transformers` has them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from eval.errors import LikenessError
from toolkit.backbones.hub.network import build
from toolkit.backbones.images import in_float32
from toolkit.backbones.layer_pooling import LayerPooling, pool_layers

# Of Whisper's log mel energies: silence, how far below the loudest value the others may lie, and
# how many frames follow those that are pooled.
_SILENCE, _RANGE, _MARGIN = -1.5, 2.0, 2
# The published networks make a frame of 320 samples, and Whisper 1,500 frames of a window. Four
# times as many frames are made. The cost of attention grows with the square of their number.
_FEWEST_SAMPLES, _MOST_POSITIONS = 80, 6_000


class HubSpeech(nn.Module):
    """A speech network of `transformers`, pooled to one vector: (B, T, in_dim) -> (B, dim).

    What it takes depends on the network. wav2vec 2.0, HuBERT and WavLM take waves, in_dim 1;
    w2v-BERT 2.0 takes stacked filterbanks; Whisper takes log mel energies of recordings of any
    length, which are cut into windows of 30 s, encoded one by one, and pooled together. The
    front-ends are those of modalities/speaker/hub.py.

    Padding changes no embedding, with one exception: networks whose first convolution is followed
    by group norm over time (feat_extract_norm "group", such as wav2vec2-base, hubert-base-ls960 and
    wavlm-base-plus). `pads_exactly` is False for these, and the batches of `embed` hold equal
    lengths.

    Frames are never masked at random and no layer is left out at random, whatever the configuration
    says; augment recordings instead (modalities/speaker/augment.py).

    Attributes:
        network: The network of transformers, with its names, without what only pre-training uses.
        pool: The pooling over layers and frames.
        project: The linear layer to `dim`; nothing if dim is 0.
        samples: The number of samples between two frames of a network over waves; 0 for others.

    Args:
        in_dim: The size of a frame, which the configuration states too.
        config: The configuration as JSON text; `toolkit.backbones.hub.configuration` makes it.
        pooling: "mean", "weighted", "MHFA" or "MFA"; see toolkit/backbones/layer_pooling.py.
        dim: The size of the embeddings; 0 leaves the pooled vector as it is.
        heads: The number of heads of MHFA.
        compressed: The size of keys and values of MHFA.
        revision: The commit on the hub that the configuration is of, for the record.

    Raises:
        LikenessError: The configuration is none, is of another kind of network, or states another
            size of frames; or there is no such pooling. The package transformers is missing.

    Example:
        >>> config = '{"model_type": "whisper", "d_model": 8, "encoder_layers": 1,'
        >>> config += ' "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "num_mel_bins": 4}'
        >>> backbone = HubSpeech(4, config=config, pooling="weighted", dim=16)
        >>> backbone(torch.randn(2, 100, 4)).shape, backbone.pads_exactly
        (torch.Size([2, 16]), True)
    """

    # The beginnings of the names of tensors that no pretrained network has.
    fresh = ("pool.", "project.")

    def __init__(
        self,
        in_dim: int,
        *,
        config: str,
        pooling: LayerPooling = "mean",
        dim: int = 0,
        heads: int = 32,
        compressed: int = 128,
        revision: str = "",
    ) -> None:
        super().__init__()
        built = build(config, ("waves", "features"), "HubSpeech")
        self.network, self.family, self._config = built.network, built.model_type, built.config
        self.revision = revision
        self.takes_waves = built.family.takes == "waves"
        if self.family == "wavlm":  # torch warns of how transformers calls its attention
            warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
        expected = self._frame_size()
        if in_dim != expected:
            raise LikenessError(
                f"HubSpeech: a network of model_type {self.family!r} takes frames of {expected}, "
                f"but the front-end gives {in_dim}; {self._remedy()}"
            )
        self.in_dim = in_dim
        self.samples = math.prod(self._config.conv_stride) if self.takes_waves else 0
        self._check_frames()
        self.pads_exactly = getattr(self._config, "feat_extract_norm", "layer") != "group"
        whisper = self.family == "whisper"
        width = int(self._config.d_model if whisper else self._config.hidden_size)
        blocks = self._config.encoder_layers if whisper else self._config.num_hidden_layers
        self.pool, size = pool_layers(
            pooling, 1 + int(blocks), width, heads=heads, compressed=compressed
        )
        self.project: nn.Module = nn.Linear(size, dim) if dim else nn.Identity()
        self.dim = dim or size

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,).

        Raises:
            LikenessError: The features have another shape, or are shorter than one frame.
        """
        if features.ndim != 3 or features.shape[2] != self.in_dim:
            raise LikenessError(
                f"HubSpeech: the features have shape {tuple(features.shape)}; it takes "
                f"(B, T, {self.in_dim}): {self._remedy()}"
            )
        if self.family == "wav2vec2-bert" and torch.compiler.is_exporting():
            raise LikenessError(
                "HubSpeech: torch.export cannot follow the attention of w2v-BERT over recordings "
                "of any length; use the model in torch"
            )
        counts = None
        if lengths is not None:
            counts = (lengths.double() * features.shape[1]).round().clamp(min=1).long()
        if self.takes_waves:
            layers, mask = self._of_waves(features[..., 0], counts)
        elif self.family == "whisper":
            layers, mask = self._of_windows(features, counts)
        else:
            valid = None if counts is None else _first(counts, features.shape[1])
            layers, mask = self._encode(features, valid), valid
        z = torch.as_tensor(self.pool(layers, mask))
        return in_float32(self.project, z).float()

    def _encode(self, inputs: Tensor, valid: Tensor | None) -> Sequence[Tensor]:
        """Return all layers (B, T, C) of the network, or the last one where that is enough.

        The last one is the network's own output. In networks that normalise at the end, such as
        wav2vec2-large, it is normalised, which the last of transformers' hidden_states is not.
        """
        network: Any = self.network
        options = {} if valid is None else {"attention_mask": valid.long()}
        if getattr(self.pool, "only_last", False):
            return [network(inputs, **options).last_hidden_state]
        out = network(inputs, output_hidden_states=True, **options)
        return [*out.hidden_states[:-1], out.last_hidden_state]

    def _of_waves(
        self, wave: Tensor, counts: Tensor | None
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the layers of waves (B, S), and which of their frames are valid."""
        if not torch.compiler.is_compiling():
            shortest = wave.shape[1] if counts is None else int(counts.min())
            if self._num_frames(torch.tensor(shortest)) < 1:
                raise LikenessError(
                    f"HubSpeech: a wave of {shortest} samples is shorter than a frame of the "
                    "network; give longer audio"
                )
        if counts is None:
            return self._encode(wave, None), None
        layers = self._encode(wave, _first(counts, wave.shape[1]))
        return layers, _first(self._num_frames(counts), layers[-1].shape[1])

    def _num_frames(self, samples: Tensor) -> Tensor:
        """Count the frames that the convolutions make of so many samples."""
        pairs = zip(self._config.conv_kernel, self._config.conv_stride, strict=True)
        for kernel, stride in pairs:
            samples = (samples - kernel).div(stride, rounding_mode="floor") + 1
        return samples

    def _of_windows(
        self, features: Tensor, counts: Tensor | None
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return Whisper's layers over windows of 30 s, and which of their frames are valid.

        After the end of a recording every frame has one value, that of silence in a window as loud
        as this one. The last two frames of a recording are for the encoder to see: no frame of its
        own stands for them (WhisperMel of modalities/speaker/hub.py).
        """
        batch, total, bands = features.shape
        size = 2 * int(self._config.max_source_positions)
        windows = max(1, -(-(total - _MARGIN) // size))
        if counts is None:
            counts = torch.full((batch,), total, device=features.device)
        # A margin that lies past the last window is cut off.
        padded = functional.pad(features, (0, 0, 0, windows * size - total))
        padded = padded.reshape(batch * windows, size, bands)
        empty = ~_first(counts, windows * size).reshape(batch * windows, size, 1)
        loudest = padded.masked_fill(empty, -torch.inf).amax((1, 2), keepdim=True)
        silence = (loudest - _RANGE).clamp(min=_SILENCE).expand_as(padded)
        inputs = torch.where(empty, silence, padded).transpose(1, 2)
        layers = [
            layer.reshape(batch, windows * size // 2, -1) for layer in self._encode(inputs, None)
        ]
        pooled = (counts - _MARGIN + 1).div(2, rounding_mode="floor").clamp(min=1)
        return layers, _first(pooled, windows * size // 2)

    def _check_frames(self) -> None:
        """Refuse a configuration of a network that makes many more frames than published ones."""
        if self.takes_waves and self.samples < _FEWEST_SAMPLES:
            raise LikenessError(
                f"HubSpeech: conv_stride makes a frame of every {self.samples} samples; at least "
                f"{_FEWEST_SAMPLES} are needed: give the config.json of a published network"
            )
        if self.family == "whisper":
            positions = int(self._config.max_source_positions)
            if not 1 <= positions <= _MOST_POSITIONS:
                raise LikenessError(
                    f"HubSpeech: max_source_positions is {positions} frames; 1 to "
                    f"{_MOST_POSITIONS} are read: give the config.json of a published network"
                )

    def _frame_size(self) -> int:
        """Return the size of the frames that the network takes."""
        if self.takes_waves:
            return 1
        whisper = self.family == "whisper"
        name = "num_mel_bins" if whisper else "feature_projection_input_dim"
        return int(getattr(self._config, name))

    def _remedy(self) -> str:
        """Say which front-end a network needs."""
        if self.takes_waves:
            return "take the front-end UnitWave"
        name = "WhisperMel" if self.family == "whisper" else "StackedFbank"
        return f"take the front-end {name} with as many mel bands as the network was trained with"


def _first(counts: Tensor, total: int) -> Tensor:
    """Return (B, total) bool, which is True for the first `counts` (B,) places."""
    return torch.arange(total, device=counts.device)[None, :] < counts[:, None]
