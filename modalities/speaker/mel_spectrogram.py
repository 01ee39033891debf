"""Mel spectrograms as torchaudio.transforms.MelSpectrogram computes them, for padded batches.

The spectrogram and the mel bank are torchaudio's. What it lacks is here: the end of an utterance is
reflected where the utterance ends, not where the batch does.

The defaults are those of ReDimNet and ReDimNet2 in the releases of IDRnD and PalabraAI
(redimnet/layers/features.py MelBanks) with 72 bands. Part of ReDimNet2's weights were trained on
features_tf.py TFMelBanks, framing="tensorflow". WeSpeaker trains ReDimNet on Kaldi's filterbank
instead. Another published setting is ready to be used as a part:

RESEMBLYZER_MEL
    Resemblyzer, audio.py wav_to_mel_spectrogram (librosa.feature.melspectrogram before librosa
    0.10, which pads with zeros). The energies are not logarithmic, so that the level matters.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, refuse_broken
from likeness.modalities.speaker import cmn
from likeness.modalities.speaker.features import mel_bank
from likeness.toolkit.backbones.ecapa import import_torchaudio

Framing = Literal["centred", "tensorflow"]
# Is added to the energies under the logarithm, and to the deviation that a wave is divided by.
_OFFSETS = {"centred": 1e-6, "tensorflow": 1e-8}
_WINDOWS = {"hamming": torch.hamming_window, "hann": torch.hann_window}  # periodic


class MelSpectrogram(nn.Module):
    """torchaudio's mel spectrogram: waves (B, S) -> mel energies (B, T, F), T = 1 + S // hop.

    The arithmetic is float32, also under autocast, and float64 after .double().

    Args:
        num_mels: F, at least 4.
        rate_hz: The rate of the waves in Hz.
        frame_ms: The length of the window in milliseconds.
        hop_ms: The distance between the centres of two frames in milliseconds.
        fft_size: The samples of a frame, at least the window.
        window: The window function, "hamming" or "hann".
        low_hz: The lower edge of the mel bank in Hz.
        high_hz: The upper edge of the mel bank in Hz.
        mel_scale: "htk", whose triangles all have the height 1, or "slaney", whose triangles all
            have the same area, as in librosa.
        preemphasis: The share of the sample before that is subtracted from each sample, 0 to 1.
        log: Whether to take the natural logarithm of the energies, plus 1e-6 (1e-8 in tensorflow's
            framing).
        cmn: Whether to subtract the mean of each utterance over its valid frames.
        normalise: Whether each utterance first gets zero mean and unit variance.
        framing: "centred" is torchaudio's. "tensorflow" is that of the releases' TFMelBanks: the
            first frame begins half a hop before the utterance, which has zeros around it, the
            window is symmetric, triangles are linear in mel and lie on one bin less, and energies
            are at least 1e-8.

    Raises:
        LikenessError: An argument is out of range.

    Example:
        >>> feats, lengths = MelSpectrogram()(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
        >>> feats.shape, (lengths * feats.shape[1]).round().int().tolist()
        (torch.Size([2, 101, 72]), [101, 51])
    """

    taper: Tensor  # (window_samples,) the window function
    mel: Tensor  # (fft_size // 2 + 1, F)

    def __init__(
        self,
        num_mels: int = 72,
        rate_hz: int = 16_000,
        frame_ms: float = 25.0,
        hop_ms: float = 10.0,
        fft_size: int = 512,
        window: Literal["hamming", "hann"] = "hamming",
        low_hz: float = 20.0,
        high_hz: float = 7600.0,
        mel_scale: Literal["htk", "slaney"] = "htk",
        preemphasis: float = 0.97,
        log: bool = True,
        cmn: bool = True,
        normalise: bool = False,
        framing: Framing = "centred",
    ) -> None:
        super().__init__()
        self.num_mels, self.rate_hz, self.fft_size = num_mels, rate_hz, fft_size
        self.frame_ms, self.hop_ms, self.window = frame_ms, hop_ms, window
        self.low_hz, self.high_hz, self.mel_scale = low_hz, high_hz, mel_scale
        self.preemphasis, self.log, self.cmn = preemphasis, log, cmn
        self.normalise, self.framing = normalise, framing
        self.dim = num_mels
        self.hop_samples = round(rate_hz * hop_ms * 0.001)
        window_samples = round(rate_hz * frame_ms * 0.001)
        are_frames = 2 <= window_samples <= fft_size and self.hop_samples >= 1
        rules = {
            "frontend.num_mels is at least 4": num_mels >= 4,
            "frontend.frame_ms has 2 to frontend.fft_size samples, and hop_ms has any": are_frames,
            "frontend.window is hamming or hann": window in _WINDOWS,
            "frontend.mel_scale is htk or slaney": mel_scale in ("htk", "slaney"),
            "frontend.low_hz and frontend.high_hz rise within half the rate": (
                0.0 <= low_hz < high_hz <= 0.5 * rate_hz
            ),
            "frontend.preemphasis is 0 to 1": 0.0 <= preemphasis <= 1.0,
            "frontend.framing is centred or tensorflow": framing in _OFFSETS,
        }
        refuse_broken(rules, lambda name: getattr(self, name.partition(".")[2]))
        # here, because an export cannot follow an import
        self._spectrogram = import_torchaudio().functional.spectrogram
        centred, norm = framing == "centred", "slaney" if mel_scale == "slaney" else None
        taper = _WINDOWS[window](window_samples, periodic=centred)
        if centred:
            bank = import_torchaudio().functional.melscale_fbanks(
                fft_size // 2 + 1, low_hz, high_hz, num_mels, rate_hz, norm, mel_scale
            )
        else:  # TFMelBanks takes the last bin but one for half the rate
            bank = mel_bank(num_mels, fft_size - 2, rate_hz, low_hz, high_hz)
            bank = torch.cat((bank, bank[:1] * 0))
        self.register_buffer("taper", taper, persistent=False)
        self.register_buffer("mel", bank, persistent=False)
        # How far the first frame of the transform reaches out of an utterance on either side.
        beyond = self.hop_samples // 2 + (fft_size - window_samples) // 2
        self.beyond = fft_size // 2 if centred else beyond

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
            LikenessError: The wave has another shape, a length lies outside (0, 1], or an utterance
                is no longer than half a frame, which cannot be reflected.
        """
        cmn.check_wave(wave.shape, "MelSpectrogram", self.mel.dtype)
        samples, beyond = wave.shape[1], self.beyond
        shortest = beyond + 1 if self.framing == "centred" else self.fft_size - 2 * beyond
        ends, least = torch.full((wave.shape[0],), samples, device=wave.device), samples
        if lengths is not None:
            ends = cmn.valid_samples(lengths, samples, self)
            least = int(ends.min()) if cmn.checks_lengths(ends, self) else samples
        if not torch.compiler.is_compiling() and least < shortest:
            raise LikenessError(
                f"MelSpectrogram: the shortest utterance has {least} samples; at least "
                f"{shortest} are needed: give longer audio"
            )
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(self.mel.dtype)
            wave = self._levelled(wave, ends[:, None]) if self.normalise else wave
            # The first sample has the second one before it, as in the releases.
            before = torch.cat((wave[:, 1:2], wave[:, :-1]), dim=1)
            wave = wave - self.preemphasis * before
            place = torch.arange(-beyond, samples + beyond, device=wave.device)
            last = ends[:, None] - 1
            around = (place < 0) | (place > last)
            place = torch.where(place.abs() <= last, place.abs(), 2 * last - place)
            # What lies beyond the reflection is in no valid frame.
            wave = wave.gather(1, place.clamp(0, samples - 1))
            if self.framing == "tensorflow":
                wave = wave.masked_fill(around, 0.0)
            feats, frames = cmn.in_groups(self._energies, wave), None
            if lengths is not None:
                hops = (ends + 2 * beyond - self.fft_size).div(
                    self.hop_samples, rounding_mode="floor"
                )
                frames = 1 + hops
            return cmn.finish(feats, frames, mean=self.cmn, variance=False)

    def _levelled(self, wave: Tensor, ends: Tensor) -> Tensor:
        """Give each utterance (b, S) of so many samples (b, 1) zero mean and unit variance."""
        padding = torch.arange(wave.shape[1], device=wave.device) >= ends
        wave = wave.masked_fill(padding, 0.0)
        wave = (wave - wave.sum(1, keepdim=True) / ends).masked_fill(padding, 0.0)
        deviation = (wave.square().sum(1, keepdim=True) / ends).sqrt()
        return wave / (deviation + _OFFSETS[self.framing])

    def _energies(self, wave: Tensor) -> Tensor:
        """Compute mel energies, or their logarithm, without normalisation: (b, S) -> (b, T, F)."""
        sizes = self.fft_size, self.hop_samples, len(self.taper)
        power = self._spectrogram(wave, 0, self.taper, *sizes, 2.0, False, center=False)
        floor = _OFFSETS[self.framing]
        if self.framing == "tensorflow":
            power = power.clamp(floor, 1 / floor)
        energies = torch.matmul(power.transpose(1, 2), self.mel)
        if self.framing == "tensorflow":
            energies = energies.clamp(floor, 1 / floor)
        return (energies + floor).log() if self.log else energies


RESEMBLYZER_MEL = partial(
    MelSpectrogram,
    num_mels=40,
    fft_size=400,
    window="hann",
    low_hz=0.0,
    high_hz=8000.0,
    mel_scale="slaney",
    preemphasis=0.0,
    log=False,
    cmn=False,
)
