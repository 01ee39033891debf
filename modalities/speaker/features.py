"""Front-ends: Kaldi's log mel filterbank, Kaldi's MFCC, and the wave itself.

SpeechBrain's filterbank is in speechbrain_fbank.py, and torchaudio's in mel_spectrogram.py.

A front-end is an nn.Module. It takes a padded batch of waves (B, S) with relative lengths and gives
features (B, T, F) with relative lengths. It has `dim`, which is F, and trim(samples).

The definition is Kaldi's feature-window, mel-computations and feature-mfcc (Apache 2.0), as
torchaudio.compliance.kaldi states them with snip_edges, remove_dc_offset and use_power, and without
use_energy. The front-ends here take a padded batch, build the mel bank and the window once, and let
gradients flow to the wave.

Two published settings are ready to be used as parts. A part can be changed:
partial(WESPEAKER_FBANK, num_mels=72).

WESPEAKER_FBANK
    WeSpeaker, wespeaker/dataset/processor.py compute_fbank and apply_cmvn. Its dither of 1 is for
    training only, as in bin/extract.py.
THREED_SPEAKER_FBANK
    3D-Speaker, speakerlab/process/processor.py FBank with mean_nor.

The two differ in window and level. Mean normalisation does not cancel that where the log floor
takes effect, so weights that were made for one do not fit the other.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor, nn
from torch.nn import functional

from likeness.eval.errors import LikenessError, refuse_broken
from likeness.modalities.speaker import cmn
from likeness.toolkit.backbones.ecapa import import_torchaudio

Window = Literal["hamming", "povey", "hanning"]

VARIANCE_FLOOR = 1e-7  # under the variance of a wave, or of a band
LOG_FLOOR = 1.1920929e-07  # Kaldi's floor under the mel energies: the epsilon of float32
_MOST_MELS, _MOST_SAMPLES = 1024, 1 << 16  # of a frame


def mel_bank(num_mels: int, fft_size: int, rate_hz: int, low_hz: float, high_hz: float) -> Tensor:
    """Return Kaldi's triangular mel filters, which are linear on the scale 1127 ln(1 + f / 700).

    They are torchaudio's, whose arithmetic is float32 as in Kaldi: the lowest triangles are
    narrower than one FFT bin, so that float64 would give weights that differ in the fourth digit.

    Args:
        num_mels: The number of triangles.
        fft_size: The samples of the transform.
        rate_hz: The rate of the waves in Hz.
        low_hz: The lower edge of the first triangle in Hz.
        high_hz: The upper edge of the last triangle in Hz.

    Returns:
        The weights, (fft_size // 2 + 1, num_mels) float32.
    """
    kaldi = import_torchaudio().compliance.kaldi
    no_warp = {"vtln_low": 100.0, "vtln_high": -500.0, "vtln_warp_factor": 1.0}
    bank, _ = kaldi.get_mel_banks(num_mels, fft_size, rate_hz, low_hz, high_hz, **no_warp)
    # The bin at the Nyquist frequency has no weight in Kaldi.
    return functional.pad(bank, (0, 1)).T.contiguous()


def window_function(name: Window, size: int) -> Tensor:
    """Compute a window (size,) float32, symmetric as Kaldi's windows are.

    Args:
        name: "hamming", "hanning", or "povey", which is hanning to the power of 0.85.
        size: The number of samples.

    Returns:
        The window, (size,) float32.
    """
    if name == "hamming":
        return torch.hamming_window(size, periodic=False, alpha=0.54, beta=0.46)
    hanning = torch.hann_window(size, periodic=False)
    return hanning.pow(0.85) if name == "povey" else hanning


class KaldiFbank(nn.Module):
    """Kaldi's log mel filterbank: waves (B, S) -> log mel energies (B, T, F).

    It equals torchaudio.compliance.kaldi.fbank to 1e-4. The logarithm is natural. Frames are padded
    to a power of two. The arithmetic is float32, also under autocast, and float64 after .double().

    Args:
        num_mels: F, at least 4.
        rate_hz: The rate of the waves in Hz.
        frame_ms: The length of a frame in milliseconds.
        hop_ms: The distance between the beginnings of two frames in milliseconds.
        window: The window function, see window_function().
        scale: The factor that multiplies the wave first. 32768 gives the integer levels of Kaldi
            and WeSpeaker, 1 is 3D-Speaker's. The log floor makes the two differ in pauses.
        dither: The standard deviation of Gaussian noise on each scaled frame, in training mode
            only.
        preemphasis: The share of the sample before that is subtracted from each sample, 0 to 1.
        low_hz: The lower edge of the mel bank in Hz.
        high_hz: The upper edge of the mel bank in Hz. A value of 0 or less counts from Nyquist.
        cmn: Whether to subtract the mean of each utterance over its valid frames.
        cmn_variance: Whether to divide by the standard deviation too.
        snip_edges: Whether all frames lie within the utterance. If not, there is one frame for each
            hop, and an utterance is mirrored at its ends, as in sherpa-onnx and lhotse.

    Raises:
        LikenessError: An argument is out of range.

    Example:
        >>> fbank = KaldiFbank(num_mels=40)
        >>> feats, lengths = fbank(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
        >>> feats.shape, (lengths * feats.shape[1]).round().int().tolist()
        (torch.Size([2, 98, 40]), [98, 48])
    """

    taper: Tensor  # (frame_samples,) the window function
    mel: Tensor  # (fft_size // 2 + 1, F)

    def __init__(
        self,
        num_mels: int = 80,
        rate_hz: int = 16_000,
        frame_ms: float = 25.0,
        hop_ms: float = 10.0,
        window: Window = "hamming",
        scale: float = 32768.0,
        dither: float = 0.0,
        preemphasis: float = 0.97,
        low_hz: float = 20.0,
        high_hz: float = 0.0,
        cmn: bool = True,
        cmn_variance: bool = False,
        snip_edges: bool = True,
    ) -> None:
        super().__init__()
        self.num_mels, self.rate_hz = num_mels, rate_hz
        self.frame_ms, self.hop_ms = frame_ms, hop_ms
        self.window, self.scale, self.dither, self.preemphasis = window, scale, dither, preemphasis
        self.low_hz, self.high_hz = low_hz, high_hz
        self.cmn, self.cmn_variance = cmn, cmn_variance
        self.snip_edges = snip_edges
        self.dim = num_mels  # the size of what the backbone takes in
        self.frame_samples = int(rate_hz * frame_ms * 0.001)
        self.hop_samples = int(rate_hz * hop_ms * 0.001)
        top_hz = high_hz if high_hz > 0 else 0.5 * rate_hz + high_hz
        is_in_order = 0.0 <= low_hz < top_hz <= 0.5 * rate_hz
        are_levels = 0.0 <= preemphasis <= 1.0 and dither >= 0.0 and scale > 0.0
        are_frames = 2 <= self.frame_samples <= _MOST_SAMPLES and self.hop_samples >= 1
        rules = {
            "frontend.window is hamming, povey or hanning": window in get_args(Window),
            f"frontend.num_mels is 4 to {_MOST_MELS}": 4 <= num_mels <= _MOST_MELS,
            "frontend.frame_ms and frontend.hop_ms are of 2 to 65,536 samples": are_frames,
            "frontend.low_hz and frontend.high_hz rise within half the rate": is_in_order,
            "frontend.preemphasis is 0 to 1, frontend.scale above 0, dither not below": are_levels,
        }
        refuse_broken(rules, lambda name: getattr(self, name.partition(".")[2]))
        self.fft_size = 1 << (self.frame_samples - 1).bit_length()
        self.register_buffer("taper", window_function(window, self.frame_samples), persistent=False)
        self.register_buffer(
            "mel", mel_bank(num_mels, self.fft_size, rate_hz, low_hz, top_hz), persistent=False
        )

    def num_frames(self, num_samples: int) -> int:
        """Count the frames in `num_samples`.

        That is 1 + (num_samples - 400) // 160 with the defaults, (num_samples + 80) // 160 without
        snip_edges, and 0 below one frame.
        """
        if not self.snip_edges and num_samples >= self.frame_samples:
            return (num_samples + self.hop_samples // 2) // self.hop_samples
        return max(0, 1 + (num_samples - self.frame_samples) // self.hop_samples)

    def trim(self, num_samples: int) -> int:
        """Return how many of `num_samples` the whole frames cover; the rest changes nothing.

        A number below one frame is returned as it is, for forward() to refuse. Without snip_edges
        every sample is in a frame.
        """
        if not self.snip_edges:
            return num_samples
        frames = self.num_frames(num_samples)
        return self.frame_samples + (frames - 1) * self.hop_samples if frames else num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the features of a padded batch of waves.

        The valid frames of an utterance do not depend on its padding or on its neighbours. Frames
        that reach into the padding are zero.

        Args:
            wave: (B, S) in [-1, 1], mono at rate_hz.
            lengths: (B,) relative to S, or None when all waves are full.

        Returns:
            The features (B, T, F), and their lengths (B,) relative to T.

        Raises:
            LikenessError: The wave has another shape, a length lies outside (0, 1], or an utterance
                is shorter than one frame.
        """
        cmn.check_wave(wave.shape, "KaldiFbank", self.mel.dtype)
        samples = wave.shape[1]
        total = self.num_frames(samples)
        if total < 1:
            raise LikenessError(
                f"KaldiFbank: {samples} samples are less than one frame of {self.frame_samples} "
                f"({self.frame_ms} ms); give longer audio"
            )
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(self.mel.dtype)
            if not self.snip_edges:
                wave = self._mirrored(wave, lengths, total)
            frames = None if lengths is None else self._valid_frames(lengths, samples)
            is_plain = wave.device.type == "cpu" and not wave.requires_grad
            if is_plain and not self._dithers() and not torch.compiler.is_compiling():
                feats = self._log_mel_in_place(wave, total)
            else:
                feats = cmn.in_groups(self._log_mel, wave)
            feats, relative = cmn.finish(feats, frames, mean=self.cmn, variance=self.cmn_variance)
            if frames is not None and self.training and frames.device.type != "cpu":
                # nobody looked; a training stops at NaN
                feats = feats.masked_fill((frames < 1).view(-1, 1, 1), math.nan)
            return feats, relative

    def _valid_frames(self, lengths: Tensor, samples: int) -> Tensor:
        """Count the whole frames (B,) of each utterance; refuse utterances without one."""
        num_samples = cmn.valid_samples(lengths, samples, self)
        hop = self.hop_samples
        frames = 1 + (num_samples - self.frame_samples).div(hop, rounding_mode="floor")
        if not self.snip_edges:
            rounded = (num_samples + hop // 2).div(hop, rounding_mode="floor")
            frames = torch.where(frames < 1, frames, rounded)
        if cmn.checks_lengths(frames, self) and int(frames.min()) < 1:
            raise LikenessError(
                f"KaldiFbank: {int((frames < 1).sum())} of {frames.numel()} waves are shorter than "
                f"one frame of {self.frame_samples} samples"
                f" (the shortest has {int(num_samples.min())}); drop or repeat them"
            )
        return frames

    def _mirrored(self, wave: Tensor, lengths: Tensor | None, frames: int) -> Tensor:
        """Mirror each utterance at its ends, so that whole frames are those without snip_edges."""
        batch, samples = wave.shape
        before = (self.frame_samples - self.hop_samples) // 2
        most = (frames - 1) * self.hop_samples + self.frame_samples - before
        place = torch.arange(-before, most, device=wave.device).expand(batch, -1)
        end = torch.full((batch, 1), samples, device=wave.device)
        if lengths is not None:
            end = cmn.valid_samples(lengths, samples, self)[:, None]
        place = torch.where(place < 0, -1 - place, place)
        place = torch.where(place < end, place, 2 * end - 1 - place)
        # What lies beyond the mirror is in no valid frame.
        return wave.gather(1, place.clamp(0, samples - 1))

    def _dithers(self) -> bool:
        return self.training and self.dither > 0.0

    def _log_mel_in_place(self, waves: Tensor, total: int) -> Tensor:
        """Compute what _log_mel does, but for rounding, utterance by utterance in one buffer.

        On a CPU each new array of that size costs as much as the arithmetic in it.
        """
        feats = waves.new_empty(len(waves), total, self.num_mels)
        padded = waves.new_zeros(total, self.fft_size)
        frames = padded[:, : self.frame_samples]
        for wave, energies in zip(waves, feats, strict=True):
            scaled = (wave * self.scale).unfold(0, self.frame_samples, self.hop_samples)
            torch.sub(scaled, scaled.mean(1, keepdim=True), out=frames)
            if self.preemphasis > 0.0:
                before = frames[:, :-1] * self.preemphasis
                frames[:, 0].sub_(frames[:, 0] * self.preemphasis)
                frames[:, 1:].sub_(before)
            frames.mul_(self.taper)
            squares = torch.view_as_real(torch.fft.rfft(padded)).square_()
            torch.mm(squares[..., 0] + squares[..., 1], self.mel, out=energies)
        return feats.clamp_(min=LOG_FLOOR).log_()

    def _log_mel(self, wave: Tensor) -> Tensor:
        """Compute log mel energies without normalisation: (b, S) -> (b, T, F)."""
        scaled = wave * self.scale
        frames = scaled.unfold(1, self.frame_samples, self.hop_samples)  # (b, T, frame_samples)
        if self._dithers():
            frames = frames + self.dither * torch.randn_like(frames)
        frames = frames - frames.mean(2, keepdim=True)
        if self.preemphasis > 0.0:
            # In Kaldi the first sample of a frame is its own predecessor.
            before = torch.cat((frames[..., :1], frames[..., :-1]), dim=2)
            frames = frames - self.preemphasis * before
        spectrum = torch.fft.rfft(frames * self.taper, n=self.fft_size)
        # abs().square() would have NaN as its gradient at zero.
        power = spectrum.real.square() + spectrum.imag.square()
        return torch.matmul(power, self.mel).clamp(min=LOG_FLOOR).log()


_MFCC_FBANK = partial(KaldiFbank, num_mels=23, window="povey")


class MFCC(nn.Module):
    """Kaldi's cepstra: waves (B, S) -> (B, T, F).

    They equal torchaudio.compliance.kaldi.mfcc without use_energy: the first coefficient is C0, not
    the energy.

    Args:
        num_ceps: F, C0 included, at most the number of mel filters.
        lifter: The coefficient of Kaldi's sine lifter; 0 means none.
        fbank: The filterbank below the cepstra.
        cmn: As in KaldiFbank, on the cepstra. So is cmn_variance.

    Raises:
        LikenessError: An argument is out of range, or KaldiFbank refuses one.

    Example:
        >>> MFCC(num_ceps=20)(torch.randn(2, 16000))[0].shape
        torch.Size([2, 98, 20])
    """

    transform: Tensor  # (num_mels, num_ceps) cosine transform and lifter

    def __init__(
        self,
        num_ceps: int = 13,
        lifter: float = 22.0,
        fbank: Callable[..., KaldiFbank] = _MFCC_FBANK,
        cmn: bool = True,
        cmn_variance: bool = False,
    ) -> None:
        super().__init__()
        self.fbank = fbank(cmn=False)
        num_mels = self.fbank.num_mels
        if not (1 <= num_ceps <= num_mels and 0.0 <= lifter < math.inf):
            raise LikenessError(
                f"MFCC: num_ceps is {num_ceps} and lifter {lifter}; 1 to num_mels ({num_mels}), "
                "and 0 (none) or more, e.g. 22, are allowed"
            )
        self.num_ceps, self.lifter = num_ceps, lifter
        self.cmn, self.cmn_variance = cmn, cmn_variance
        self.dim = num_ceps
        cosines = torch.from_numpy(dct(np.eye(num_mels), norm="ortho")[:, :num_ceps])
        if lifter > 0:
            order = torch.arange(num_ceps, dtype=torch.float64)
            cosines = cosines * (1.0 + 0.5 * lifter * torch.sin(math.pi * order / lifter))
        self.register_buffer("transform", cosines.float(), persistent=False)

    def trim(self, num_samples: int) -> int:
        """Return how many of `num_samples` count, as KaldiFbank.trim does."""
        return self.fbank.trim(num_samples)

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the cepstra of a padded batch of waves.

        Args, Returns and Raises are those of KaldiFbank.forward.
        """
        feats, relative = self.fbank(wave, lengths)
        with torch.autocast(wave.device.type, enabled=False):
            # Frames of padding are zero, and the transform keeps them so.
            feats = torch.matmul(feats, self.transform)
            if self.cmn:
                frames = None
                if lengths is not None:
                    frames = (relative.double() * feats.shape[1]).round().long()
                feats = cmn.normalise(feats, frames, variance=self.cmn_variance)
        return feats, relative


class UnitWave(nn.Module):
    """The wave with zero mean and unit variance over its valid samples: (B, S) -> (B, S, 1).

    (x - mean) / sqrt(variance + 1e-7), as Wav2Vec2FeatureExtractor.zero_mean_unit_var_norm. The
    padding is zero.

    Args:
        normalise: Whether to normalise; False only sets the padding to zero.
        floor: What is added to the variance; s3prl's networks have 1e-5.

    Example:
        >>> features, lengths = UnitWave()(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([2 / 3]))
        >>> [round(value, 4) for value in features.flatten().tolist()]
        [-1.0, 1.0, 0.0]
    """

    def __init__(self, normalise: bool = True, floor: float = VARIANCE_FLOOR) -> None:
        super().__init__()
        self.normalise, self.floor = normalise, floor
        self.dim = 1

    def trim(self, num_samples: int) -> int:
        """Return `num_samples`, because every sample counts."""
        return num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalise a padded batch of waves.

        Args:
            wave: (B, S), mono.
            lengths: (B,) relative to S, or None when all waves are full.

        Returns:
            (B, S, 1), and the lengths (B,).

        Raises:
            LikenessError: The wave has another shape, or a length lies outside (0, 1].
        """
        cmn.check_wave(wave.shape, "UnitWave")
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave if wave.dtype == torch.float64 else wave.float()
            counts = torch.full((wave.shape[0],), wave.shape[1], device=wave.device)
            if lengths is not None:
                counts = cmn.valid_samples(lengths, wave.shape[1], self)
            padding = cmn.past_the_end(counts, wave.shape[1])
            wave = wave.masked_fill(padding, 0.0)
            if self.normalise:
                num = counts.to(wave.dtype).unsqueeze(1)
                wave = (wave - wave.sum(1, keepdim=True) / num).masked_fill(padding, 0.0)
                wave = wave / (wave.square().sum(1, keepdim=True) / num + self.floor).sqrt()
            relative = wave.new_ones(wave.shape[0]) if lengths is None else lengths
            return wave.unsqueeze(2), relative


# The wave itself, for networks that take samples: the padding is set to zero.
RawWave = partial(UnitWave, normalise=False)
WESPEAKER_FBANK = partial(
    KaldiFbank, num_mels=80, window="hamming", scale=32768.0, dither=1.0, cmn=True
)
THREED_SPEAKER_FBANK = partial(
    KaldiFbank, num_mels=80, window="povey", scale=1.0, dither=0.0, cmn=True
)
