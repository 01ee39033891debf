"""Front-ends of the speech networks of the Hugging Face hub, as `transformers` computes them.

features.UnitWave
    Wav2Vec2FeatureExtractor: the wave with zero mean and unit variance (wav2vec 2.0, HuBERT,
    WavLM).
StackedFbank
    SeamlessM4TFeatureExtractor: Kaldi's filterbank, normalised by band, two frames side by side
    (w2v-BERT 2.0).
WhisperMel
    WhisperFeatureExtractor: log10 mel energies within 8 of the loudest (Whisper).

They keep the conventions of features.py: a padded batch of waves (B, S) with relative lengths
becomes features (B, T, F) with relative lengths, and what lies in the padding changes nothing.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from likeness.eval.errors import LikenessError
from likeness.modalities.speaker.cmn import check_wave, checks_lengths, past_the_end, valid_samples
from likeness.modalities.speaker.features import VARIANCE_FLOOR, KaldiFbank
from likeness.toolkit.backbones.hub_networks import import_transformers

_WHISPER_FLOOR = 1e-10  # under the mel energies
_WHISPER_RANGE = 8.0  # how far below the loudest value the others may lie, in powers of ten
_WHISPER_SILENCE = -1.5  # (log10 of the floor + 4) / 4


class StackedFbank(nn.Module):
    """Kaldi's filterbank, normalised by band, frames side by side: (B, S) -> (B, T, stride * mels).

    It is SeamlessM4TFeatureExtractor: Povey's window, samples at int16 scale, zero mean and unit
    (unbiased) variance of each band over the utterance, then `stride` frames make one. Frames that
    are left over at the end are in mean and variance and are then dropped; transformers masks them
    out.

    Args:
        num_mels: The number of bands.
        rate_hz: The rate of the waves in Hz.
        stride: How many frames make one.

    Example:
        >>> features, lengths = StackedFbank()(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
        >>> features.shape, (lengths * features.shape[1]).round().int().tolist()
        (torch.Size([2, 49, 160]), [49, 24])
    """

    def __init__(self, num_mels: int = 80, rate_hz: int = 16_000, stride: int = 2) -> None:
        super().__init__()
        # In float64, as transformers computes it: where a band has next to no energy, float32 would
        # be off by 3e-4 after the logarithm and the division.
        self.fbank = KaldiFbank(num_mels, rate_hz, window="povey", cmn=False).double()
        bank = _mel_bank(
            *(num_mels, self.fbank.fft_size, rate_hz, 20.0),
            mel_scale="kaldi",
            triangularize_in_mel_space=True,
        )
        self.fbank.mel.copy_(bank)
        self.fbank.taper.copy_(torch.hann_window(400, False, dtype=torch.float64).pow(0.85))
        self.stride = stride
        self.dim = num_mels * stride

    def trim(self, num_samples: int) -> int:
        """Return how many of `num_samples` count, as KaldiFbank.trim does."""
        return self.fbank.trim(num_samples)

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the features of a padded batch of waves.

        Args, Returns and Raises are those of KaldiFbank.forward. At least `stride` frames are
        needed.
        """
        result = torch.float64 if wave.dtype == torch.float64 else torch.float32
        feats, relative = self.fbank(wave, lengths)
        total, shortest = feats.shape[1] // self.stride, feats.shape[1]
        frames = None
        if lengths is not None:
            frames = (relative.double() * feats.shape[1]).round().long()
            shortest = int(frames.min()) if checks_lengths(frames, self) else shortest
        if not torch.compiler.is_compiling() and shortest < max(2, self.stride):
            raise LikenessError(
                f"StackedFbank: an utterance has {shortest} frames of 25 ms; at least "
                f"{max(2, self.stride)} are needed: give longer audio"
            )
        with torch.autocast(wave.device.type, enabled=False):
            feats = _by_band(feats, frames)
            # Slices of equal size, so that torch.export can follow their number.
            last = feats.shape[1] - self.stride + 1
            slices = [feats[:, i : last + i : self.stride] for i in range(self.stride)]
            feats = torch.cat(slices, dim=2).to(result)
            if frames is None:
                return feats, relative
            valid = frames.div(self.stride, rounding_mode="floor")
            padding = past_the_end(valid, feats.shape[1]).unsqueeze(2)
            return feats.masked_fill(padding, 0.0), valid.double() / total


def _by_band(feats: Tensor, frames: Tensor | None) -> Tensor:
    """Give each band zero mean and unit unbiased variance over the valid frames of (B, T, F)."""
    if frames is None:
        # As a tensor, the number of frames stays free in torch.export.
        num = feats.new_ones(1, feats.shape[1], 1).sum(1, keepdim=True)
        centred = feats - feats.mean(1, keepdim=True)
    else:
        num = frames.to(feats.dtype).view(-1, 1, 1)
        padding = past_the_end(frames, feats.shape[1]).unsqueeze(2)
        mean = feats.masked_fill(padding, 0.0).sum(1, keepdim=True) / num
        centred = (feats - mean).masked_fill(padding, 0.0)
    variance = centred.square().sum(1, keepdim=True) / (num - 1)
    return centred / (variance + VARIANCE_FLOOR).sqrt()


class WhisperMel(nn.Module):
    """Whisper's log mel energies: waves (B, S) -> (B, T, F), in windows of 30 s.

    It is WhisperFeatureExtractor (OpenAI's whisper/audio.py): frames of 25 ms every 10 ms under a
    Hann window, Slaney's mel bank, log10 with a floor at 1e-10 and at 8 below the loudest value of
    the window, then (x + 4) / 4.

    Whisper's encoder takes 30 s. A longer recording is cut into windows of 30 s, each with its own
    loudest value. A shorter one is not padded to 30 s here: the backbone
    (toolkit/backbones/hub_networks.py) adds what is lacking, which is all of one value.

    The encoder makes one frame of two. A recording of n samples fills n / (2 * hop_samples) of
    them, rounded up, as WhisperFeatureExtractor's attention_mask says with every second value. So T
    is twice this number, and two more: sound reaches the window of up to two more frames, and the
    encoder has to see these. The backbone pools no frame for them.

    Args:
        num_mels: F: 80, or 128 for large-v3.
        rate_hz: The rate of the waves in Hz.
        fft_size: The samples of a frame.
        hop_samples: The samples between the beginnings of two frames.
        window_seconds: The length of a window.

    Example:
        >>> features, lengths = WhisperMel()(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
        >>> features.shape, (lengths * features.shape[1]).round().int().tolist()
        (torch.Size([2, 102, 80]), [102, 52])
        >>> WhisperMel()(torch.randn(1, 16001))[0].shape
        torch.Size([1, 104, 80])
    """

    taper: Tensor  # (fft_size,) the window function
    mel: Tensor  # (fft_size // 2 + 1, F)

    def __init__(
        self,
        num_mels: int = 80,
        rate_hz: int = 16_000,
        fft_size: int = 400,
        hop_samples: int = 160,
        window_seconds: int = 30,
    ) -> None:
        super().__init__()
        self.window_samples = window_seconds * rate_hz
        self.fft_size, self.hop_samples, self.rate_hz = fft_size, hop_samples, rate_hz
        self.dim = num_mels
        self.register_buffer("taper", torch.hann_window(fft_size), persistent=False)
        bank = _mel_bank(num_mels, fft_size, rate_hz, 0.0, norm="slaney", mel_scale="slaney")
        self.register_buffer("mel", bank.float(), persistent=False)

    def trim(self, num_samples: int) -> int:
        """Return `num_samples`, because every sample counts."""
        return num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the features of a padded batch of waves.

        Args:
            wave: (B, S) in [-1, 1], mono at rate_hz.
            lengths: (B,) relative to S, or None when all waves are full.

        Returns:
            The features (B, T, F), and their lengths (B,) relative to T. The frames after the end
            of a wave are zero.

        Raises:
            LikenessError: The wave has another shape or no samples, or a length lies outside (0,
                1].
        """
        check_wave(wave.shape, "WhisperMel")
        if torch.compiler.is_exporting():
            raise LikenessError(
                "WhisperMel: the number of windows of 30 s depends on the length of a recording, "
                "which an .onnx graph cannot follow; use the model in torch"
            )
        batch, samples = wave.shape
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(self.mel.dtype)
            counts = torch.full((batch,), samples, device=wave.device)
            if lengths is not None:
                counts = valid_samples(lengths, samples, self)
                wave = wave.masked_fill(past_the_end(counts, samples), 0.0)
            size = self.window_samples
            parts = [
                self._window(wave[:, start : start + size]) for start in range(0, samples, size)
            ]
            feats = torch.cat(parts, dim=1)
            total = int(self._frames(torch.tensor(samples)))
            # A last window that is full has no room for the two frames more.
            feats = functional.pad(feats, (0, 0, 0, total - feats.shape[1]), value=_WHISPER_SILENCE)
            frames = self._frames(counts)
            feats = feats.masked_fill(past_the_end(frames, total).unsqueeze(2), 0.0)
            return feats, frames.double() / total

    def _frames(self, samples: Tensor) -> Tensor:
        """Count the frames of so many samples: two for each frame of the encoder, and two more."""
        pair = 2 * self.hop_samples
        return 2 * (samples + pair - 1).div(pair, rounding_mode="floor") + 2

    def _window(self, wave: Tensor) -> Tensor:
        """Compute the frames of one window of at most 30 s: (B, S) -> (B, T, F).

        The window is a wave of 30 s that is zero after its samples, so only the frames of the
        longest wave are computed. A frame beyond the end of a window sees its reflection.
        """
        half, size = self.fft_size // 2, self.window_samples
        reached = wave.shape[1]
        total = min(size // self.hop_samples, int(self._frames(torch.tensor(reached))))
        wave = functional.pad(wave, (0, min(4 * self.hop_samples + half, size - reached)))
        wave = functional.pad(wave.unsqueeze(1), (half, half), mode="reflect").squeeze(1)
        frames = wave.unfold(1, self.fft_size, self.hop_samples)[:, :total]
        spectrum = torch.fft.rfft(frames * self.taper)
        power = spectrum.real.square() + spectrum.imag.square()
        level = torch.matmul(power, self.mel).clamp(min=_WHISPER_FLOOR).log10()
        # Frames of silence are at the floor, so they are never the loudest of a window with sound.
        level = torch.maximum(level, level.amax((1, 2), keepdim=True) - _WHISPER_RANGE)
        return (level + 4.0) / 4.0


def _mel_bank(num_mels: int, fft_size: int, rate_hz: int, low_hz: float, **kind: Any) -> Tensor:
    """Return the mel bank of transformers, (fft_size // 2 + 1, num_mels) in float64."""
    import_transformers()
    from transformers.audio_utils import mel_filter_bank

    bins = fft_size // 2 + 1
    return torch.from_numpy(mel_filter_bank(bins, num_mels, low_hz, rate_hz / 2, rate_hz, **kind))
