"""SpeechBrain's log mel filterbank, batched, in plain torch.

It is another definition than Kaldi's, so that weights that were made for one do not fit the other.

Source: speechbrain/processing/features.py (STFT, spectral_magnitude, Filterbank,
InputNormalization) as lobes/features.py Fbank joins them, SpeechBrain 1.1 (Apache 2.0). Frames are
centred, with zeros before and after the wave. The window is a periodic Hamming window. There is no
pre-emphasis, no dither and no scaling. The triangles are symmetric in hertz. The result is in
decibels, with a floor 80 dB under the loudest value of the utterance.
"""

import math

import torch
from torch import Tensor, nn

from likeness.eval.errors import refuse_broken
from likeness.modalities.speaker import cmn
from likeness.toolkit.backbones.ecapa import import_torchaudio

_LOWEST_POWER = 1e-10  # SpeechBrain's amin


def symmetric_mel_bank(
    num_mels: int, fft_size: int, rate_hz: int, low_hz: float, high_hz: float
) -> Tensor:
    """Compute SpeechBrain's triangular mel filters.

    Their centres are equidistant on the scale 2595 log10(1 + f / 700), and both sides of a triangle
    are as wide as the left one.

    Args:
        num_mels: The number of triangles.
        fft_size: The samples of the transform.
        rate_hz: The rate of the waves in Hz.
        low_hz: The lower edge of the first triangle in Hz.
        high_hz: The upper edge of the last triangle in Hz.

    Returns:
        The weights, (fft_size // 2 + 1, num_mels) float32.
    """
    lowest, highest = (2595.0 * math.log10(1.0 + hz / 700.0) for hz in (low_hz, high_hz))
    edges = torch.linspace(lowest, highest, num_mels + 2)
    hz = 700.0 * (torch.pow(10.0, edges / 2595.0) - 1.0)
    centre, width = hz[1:-1], (hz[1:] - hz[:-1])[:-1]
    bins = torch.linspace(0.0, rate_hz // 2, fft_size // 2 + 1).unsqueeze(1)
    return (1.0 - ((bins - centre) / width).abs()).clamp(min=0.0)


class SpeechBrainFbank(nn.Module):
    """SpeechBrain's log mel filterbank: waves (B, S) -> decibels (B, T, F).

    It equals SpeechBrain's Fbank, and with cmn also Fbank with
    InputNormalization(norm_type="sentence", std_norm=False). The arithmetic is float32, also under
    autocast, and float64 after .double().

    T = 1 + S // hop: an utterance has as many frames alone as in a padded batch. SpeechBrain itself
    counts ceil(length x T) there, which may be one frame more, of the padding.

    Args:
        num_mels: F, at least 4. SpeechBrain's recipes for VoxCeleb take 80 (ECAPA, ResNet) and 24
            (x-vector); its class has a default of 40.
        rate_hz: The rate of the waves in Hz.
        frame_ms: The length of the window in milliseconds.
        hop_ms: The distance between the beginnings of two frames in milliseconds.
        fft_size: The samples of a frame, at least the window.
        low_hz: The lower edge of the mel bank in Hz.
        high_hz: The upper edge of the mel bank in Hz; 0 means Nyquist.
        top_db: How far the floor lies under the utterance's loudest value, in dB.
        cmn: As in KaldiFbank. So is cmn_variance, which is std_norm=True.

    Raises:
        LikenessError: An argument is out of range.

    Example:
        >>> feats, lengths = SpeechBrainFbank()(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
        >>> feats.shape, (lengths * feats.shape[1]).round().int().tolist()
        (torch.Size([2, 101, 80]), [101, 51])
    """

    taper: Tensor  # (window_samples,) the window function
    mel: Tensor  # (fft_size // 2 + 1, F)

    def __init__(
        self,
        num_mels: int = 80,
        rate_hz: int = 16_000,
        frame_ms: float = 25.0,
        hop_ms: float = 10.0,
        fft_size: int = 400,
        low_hz: float = 0.0,
        high_hz: float = 0.0,
        top_db: float = 80.0,
        cmn: bool = True,
        cmn_variance: bool = False,
    ) -> None:
        super().__init__()
        self.num_mels, self.rate_hz = num_mels, rate_hz
        self.frame_ms, self.hop_ms, self.fft_size = frame_ms, hop_ms, fft_size
        self.low_hz, self.high_hz, self.top_db = low_hz, high_hz, top_db
        self.cmn, self.cmn_variance = cmn, cmn_variance
        self.dim = num_mels
        self.hop_samples = round(rate_hz / 1000.0 * hop_ms)
        window_samples = round(rate_hz / 1000.0 * frame_ms)
        top_hz = high_hz or rate_hz // 2
        is_in_order = 0.0 <= low_hz < top_hz <= 0.5 * rate_hz
        are_frames = 2 <= window_samples <= fft_size and self.hop_samples >= 1
        rules = {
            "frontend.num_mels is at least 4": num_mels >= 4,
            "frontend.frame_ms has 2 to frontend.fft_size samples, and hop_ms has any": are_frames,
            "frontend.low_hz and frontend.high_hz rise within half the rate": is_in_order,
            "frontend.top_db is above 0": top_db > 0,
        }
        refuse_broken(rules, lambda name: getattr(self, name.partition(".")[2]))
        # here, because an export cannot follow an import
        self._spectrogram = import_torchaudio().functional.spectrogram
        self.register_buffer("taper", torch.hamming_window(window_samples), persistent=False)
        self.register_buffer(
            "mel", symmetric_mel_bank(num_mels, fft_size, rate_hz, low_hz, top_hz), persistent=False
        )

    def trim(self, num_samples: int) -> int:
        """Return `num_samples`: every sample counts, as the last frame reaches past the end."""
        return num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the features of a padded batch of waves.

        The valid frames of an utterance do not depend on its padding or on its neighbours. The
        frames after them are zero.

        Args:
            wave: (B, S) in [-1, 1], mono at rate_hz.
            lengths: (B,) relative to S, or None when all waves are full.

        Returns:
            The features (B, T, F), and their lengths (B,) relative to T.

        Raises:
            LikenessError: The wave has another shape or no samples, or a length lies outside (0,
                1].
        """
        cmn.check_wave(wave.shape, "SpeechBrainFbank", self.mel.dtype)
        samples = wave.shape[1]
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(self.mel.dtype)
            frames = None
            if lengths is not None:
                num_samples = cmn.valid_samples(lengths, samples, self)
                # The zeros are what a wave of that length would be padded with.
                wave = wave.masked_fill(cmn.past_the_end(num_samples, samples), 0.0)
                frames = 1 + num_samples.div(self.hop_samples, rounding_mode="floor")
            feats = cmn.in_groups(self._decibels, wave)
            return cmn.finish(feats, frames, mean=self.cmn, variance=self.cmn_variance)

    def _decibels(self, wave: Tensor) -> Tensor:
        """Compute decibels above the floor without normalisation: (b, S) -> (b, T, F).

        Frames of padding are at the lowest power or fade to it, so they are never the loudest.
        """
        sizes = self.fft_size, self.hop_samples, len(self.taper)
        # The power from the complex values takes two thirds of the time that power=2.0 takes.
        spectrum = self._spectrogram(wave, 0, self.taper, *sizes, None, False, pad_mode="constant")
        power = (spectrum.real.square() + spectrum.imag.square()).transpose(1, 2)
        level = 10.0 * torch.matmul(power, self.mel).clamp(min=_LOWEST_POWER).log10()
        return torch.maximum(level, level.amax((1, 2), keepdim=True) - self.top_db)
