"""Front-ends: Kaldi's log mel filterbank and MFCC, batched, in plain torch, and the wave itself.

SpeechBrain's filterbank is in speechbrain_fbank.py.

A front-end is an nn.Module: (B, S) waves and relative lengths -> (B, T, F) features and relative
lengths, with `dim` = F and trim(samples).
Definition: Kaldi's feature-window, mel-computations and feature-mfcc (Apache 2.0), as
torchaudio.compliance.kaldi states them with snip_edges, remove_dc_offset and use_power, without
use_energy. These take a padded batch, build the mel bank and the window once, and let gradients
flow to the wave.

The field's settings, to be used as parts (and changed: partial(WESPEAKER_FBANK, num_mels=72)):
WESPEAKER_FBANK
    WeSpeaker, wespeaker/dataset/processor.py compute_fbank and apply_cmvn; its dither of 1 is for
    training only, as in bin/extract.py
THREED_SPEAKER_FBANK
    3D-Speaker, speakerlab/process/processor.py FBank with mean_nor
They differ in window and level, which CMN does not cancel where the log floor bites: weights made
for one do not fit the other.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from modalities.speaker.cmn import check_cmn, normalise, past_the_end, valid_samples

Window = Literal["hamming", "povey", "hanning"]

LOG_FLOOR = 1.1920929e-07  # Kaldi's floor under the mel energies: the epsilon of float32
# utterances at a time on a CPU: measured at 3 s each, groups of 16 take 1.1 times as long, 32 1.7,
# 128 4.2 times (cache)
CPU_GROUP = 8


def mel_bank(num_mels: int, fft_size: int, rate_hz: int, low_hz: float, high_hz: float) -> Tensor:
    """Kaldi's triangles, linear on the scale 1127 ln(1 + f / 700): (fft_size // 2 + 1, num_mels)
    float32.

    In float32 as Kaldi has it: the lowest triangles are narrower than one FFT bin, so that float64
    gives weights that differ in the fourth digit.
    """

    def mel(hz: float) -> float:
        return 1127.0 * math.log(1.0 + hz / 700.0)

    low, high = mel(low_hz), mel(high_hz)
    step = (high - low) / (num_mels + 1)
    number = torch.arange(num_mels).unsqueeze(1)
    left, centre, right = (
        low + number * step,
        low + (number + 1.0) * step,
        low + (number + 2.0) * step,
    )
    bins = (
        1127.0 * (1.0 + rate_hz / fft_size * torch.arange(fft_size / 2) / 700.0).log()
    )  # the Nyquist bin has no weight in Kaldi
    triangles = torch.minimum(
        (bins - left) / (centre - left), (right - bins) / (right - centre)
    ).clamp(min=0.0)
    return functional.pad(triangles, (0, 1)).T.contiguous()


def window_function(name: Window, size: int) -> Tensor:
    """(size,) float32, symmetric as Kaldi has it; povey is hanning to the power .85."""
    if name == "hamming":
        return torch.hamming_window(size, periodic=False, alpha=0.54, beta=0.46)
    hanning = torch.hann_window(size, periodic=False)
    return hanning.pow(0.85) if name == "povey" else hanning


class KaldiFbank(nn.Module):
    """(B, S) waves -> (B, T, F) log mel energies, equal to torchaudio.compliance.kaldi.fbank to
    1e-4 (natural logarithm).

    num_mels: F. frame_ms, hop_ms: window and hop. scale: multiplies the wave first (32768: Kaldi's
    and WeSpeaker's integer levels; 1: 3D-Speaker; the log floor makes the two differ in pauses).
    dither: standard deviation of Gaussian noise on each scaled frame, in training mode only.
    low_hz, high_hz: edges of the mel bank; high_hz <= 0 counts from Nyquist. Frames are padded to a
    power of two.
    cmn: subtract each utterance's mean over its valid frames; cmn_variance: divide by the standard
    deviation too; cmn_window: take both over so many frames around each frame (Kaldi's usual 300)
    instead of the utterance.

    Arithmetic is float32 (float64 after .double()), also under autocast. Raises ValueError for
    arguments out of range.

    >>> feats, lengths = KaldiFbank(num_mels=40)(torch.randn(2, 16000), torch.tensor([1.0, 0.5]))
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
        cmn_window: int = 0,
    ) -> None:
        super().__init__()
        self.num_mels, self.rate_hz, self.frame_ms, self.hop_ms = (
            num_mels,
            rate_hz,
            frame_ms,
            hop_ms,
        )
        self.window, self.scale, self.dither, self.preemphasis = window, scale, dither, preemphasis
        self.low_hz, self.high_hz, self.cmn, self.cmn_variance, self.cmn_window = (
            low_hz,
            high_hz,
            cmn,
            cmn_variance,
            cmn_window,
        )
        self.dim = num_mels  # what the backbone takes in
        self.frame_samples = int(rate_hz * frame_ms * 0.001)
        self.hop_samples = int(rate_hz * hop_ms * 0.001)
        top_hz = high_hz if high_hz > 0 else 0.5 * rate_hz + high_hz
        if window not in ("hamming", "povey", "hanning"):
            raise ValueError(
                f"KaldiFbank: window is {window!r}; allowed are 'hamming', 'povey' and 'hanning'"
            )
        if num_mels < 4:
            raise ValueError(f"KaldiFbank: num_mels is {num_mels}; at least 4 are needed")
        if self.frame_samples < 2 or self.hop_samples < 1:
            raise ValueError(
                f"KaldiFbank: frame_ms {frame_ms} and hop_ms {hop_ms} at {rate_hz} Hz give no "
                "samples; take longer frames, e.g. 25 and 10"
            )
        if not 0.0 <= low_hz < top_hz <= 0.5 * rate_hz:
            raise ValueError(
                f"KaldiFbank: the mel bank from {low_hz} to {top_hz} Hz must lie in order within 0 "
                f"and Nyquist ({0.5 * rate_hz} Hz)"
            )
        if not (0.0 <= preemphasis <= 1.0 and dither >= 0.0 and scale > 0.0):
            raise ValueError(
                f"KaldiFbank: preemphasis {preemphasis}, dither {dither}, scale {scale}; allowed "
                "are 0 to 1, 0 or more, above 0"
            )
        check_cmn("KaldiFbank", cmn, cmn_variance, cmn_window)
        self.fft_size = 1 << (self.frame_samples - 1).bit_length()
        self.register_buffer("taper", window_function(window, self.frame_samples), persistent=False)
        self.register_buffer(
            "mel", mel_bank(num_mels, self.fft_size, rate_hz, low_hz, top_hz), persistent=False
        )

    def num_frames(self, num_samples: int) -> int:
        """Whole frames in `num_samples` (snip_edges): 1 + (n - 400) // 160 with the defaults, 0
        below one frame.
        """
        return max(0, 1 + (num_samples - self.frame_samples) // self.hop_samples)

    def trim(self, num_samples: int) -> int:
        """How many of `num_samples` the whole frames cover; the rest changes nothing.

        Less than one frame stays as it is, for forward() to refuse.
        """
        frames = self.num_frames(num_samples)
        return self.frame_samples + (frames - 1) * self.hop_samples if frames else num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """wave: (B, S) in [-1, 1]; lengths: (B,) relative to S, or None when all are full -> (feats
        (B, T, F), lengths (B,) relative to T).

        An utterance's valid frames do not depend on its padding or its neighbours; frames that
        reach into the padding are zero. Raises ValueError for another shape, lengths outside (0,
        1], and an utterance shorter than one frame.
        """
        if wave.ndim != 2:
            raise ValueError(
                f"KaldiFbank: wave has shape {tuple(wave.shape)}; it must be (batch, samples), "
                f"mono at {self.rate_hz} Hz"
            )
        if self.mel.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"KaldiFbank: it was converted to {self.mel.dtype}, which ruins the mel bank; keep "
                "it in float32"
            )
        batch, samples = wave.shape
        total = self.num_frames(samples)
        if total < 1:
            raise ValueError(
                f"KaldiFbank: {samples} samples are less than one frame of {self.frame_samples} "
                f"({self.frame_ms} ms); give longer audio"
            )
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(self.mel.dtype)
            if wave.device.type == "cpu" and batch > CPU_GROUP:
                feats = torch.cat(
                    [self._log_mel(wave[i : i + CPU_GROUP]) for i in range(0, batch, CPU_GROUP)]
                )
            else:
                feats = self._log_mel(wave)
            frames = None if lengths is None else self._valid_frames(lengths, samples)
            if self.cmn:
                feats = normalise(feats, frames, variance=self.cmn_variance, window=self.cmn_window)
            elif frames is not None:
                feats = feats.masked_fill(past_the_end(frames, total).unsqueeze(2), 0.0)
            return feats, wave.new_ones(batch) if frames is None else (frames / total).to(
                feats.dtype
            )

    def _valid_frames(self, lengths: Tensor, samples: int) -> Tensor:
        """(B,) whole frames of each utterance. ValueError counts those without one."""
        num_samples = valid_samples(lengths, samples, "KaldiFbank")
        frames = 1 + (num_samples - self.frame_samples).div(self.hop_samples, rounding_mode="floor")
        if not torch.compiler.is_compiling() and frames.numel() and int(frames.min()) < 1:
            raise ValueError(
                f"KaldiFbank: {int((frames < 1).sum())} of {frames.numel()} waves are shorter than "
                f"one frame of {self.frame_samples} samples"
                f" (the shortest has {int(num_samples.min())}); drop or repeat them"
            )
        return frames

    def _log_mel(self, wave: Tensor) -> Tensor:
        """(b, S) -> (b, T, F)."""
        frames = (wave * self.scale).unfold(
            1, self.frame_samples, self.hop_samples
        )  # (b, T, frame_samples), a view
        if self.training and self.dither > 0.0:
            frames = frames + self.dither * torch.randn_like(frames)
        frames = frames - frames.mean(2, keepdim=True)
        if self.preemphasis > 0.0:
            before = torch.cat(
                (frames[..., :1], frames[..., :-1]), dim=2
            )  # Kaldi: the first sample of a frame is its own predecessor
            frames = frames - self.preemphasis * before
        spectrum = torch.fft.rfft(frames * self.taper, n=self.fft_size)
        power = (
            spectrum.real.square() + spectrum.imag.square()
        )  # not abs().square(): its gradient at zero is NaN
        return torch.matmul(power, self.mel).clamp(min=LOG_FLOOR).log()

    def extra_repr(self) -> str:
        return (
            f"num_mels={self.num_mels}, rate_hz={self.rate_hz}, window={self.window!r}, "
            f"scale={self.scale}, dither={self.dither}, cmn={self.cmn}"
        )


class MFCC(nn.Module):
    """(B, S) waves -> (B, T, F) cepstra, equal to torchaudio.compliance.kaldi.mfcc without
    use_energy (the first is C0, not the energy).

    num_ceps: F, C0 included, at most num_mels. lifter: Kaldi's sine lifter, 0 = none. cmn,
    cmn_variance, cmn_window: as in KaldiFbank, on the cepstra. The rest belongs to the KaldiFbank
    below. Raises ValueError for arguments out of range and what KaldiFbank raises.

    >>> MFCC(num_ceps=20)(torch.randn(2, 16000))[0].shape
    torch.Size([2, 98, 20])
    """

    transform: Tensor  # (num_mels, num_ceps) cosine transform and lifter

    def __init__(
        self,
        num_ceps: int = 13,
        num_mels: int = 23,
        lifter: float = 22.0,
        rate_hz: int = 16_000,
        frame_ms: float = 25.0,
        hop_ms: float = 10.0,
        window: Window = "povey",
        scale: float = 32768.0,
        dither: float = 0.0,
        preemphasis: float = 0.97,
        low_hz: float = 20.0,
        high_hz: float = 0.0,
        cmn: bool = True,
        cmn_variance: bool = False,
        cmn_window: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= num_ceps <= num_mels:
            raise ValueError(
                f"MFCC: num_ceps is {num_ceps}; 1 to num_mels ({num_mels}) are allowed"
            )
        if not 0.0 <= lifter < math.inf:
            raise ValueError(f"MFCC: lifter is {lifter}; 0 (none) or more, e.g. 22, is allowed")
        check_cmn("MFCC", cmn, cmn_variance, cmn_window)
        self.fbank = KaldiFbank(
            num_mels,
            rate_hz,
            frame_ms,
            hop_ms,
            window,
            scale,
            dither,
            preemphasis,
            low_hz,
            high_hz,
            cmn=False,
        )
        self.num_ceps, self.lifter, self.cmn, self.cmn_variance, self.cmn_window = (
            num_ceps,
            lifter,
            cmn,
            cmn_variance,
            cmn_window,
        )
        self.dim = num_ceps
        order, band = (
            torch.arange(num_ceps, dtype=torch.float64),
            torch.arange(num_mels, dtype=torch.float64),
        )
        cosines = math.sqrt(2.0 / num_mels) * torch.cos(
            math.pi / num_mels * (band.unsqueeze(1) + 0.5) * order
        )
        cosines[:, 0] = math.sqrt(1.0 / num_mels)
        if lifter > 0:
            cosines *= 1.0 + 0.5 * lifter * torch.sin(math.pi * order / lifter)
        self.register_buffer("transform", cosines.float(), persistent=False)

    def trim(self, num_samples: int) -> int:
        """As KaldiFbank.trim."""
        return self.fbank.trim(num_samples)

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As KaldiFbank.forward."""
        feats, relative = self.fbank(wave, lengths)
        with torch.autocast(wave.device.type, enabled=False):
            feats = torch.matmul(feats, self.transform)  # frames of padding are zero and stay so
            if self.cmn:
                frames = (
                    None if lengths is None else (relative.double() * feats.shape[1]).round().long()
                )
                feats = normalise(feats, frames, variance=self.cmn_variance, window=self.cmn_window)
        return feats, relative

    def extra_repr(self) -> str:
        return f"num_ceps={self.num_ceps}, lifter={self.lifter}, cmn={self.cmn}"


class RawWave(nn.Module):
    """The wave itself, for networks that take samples: (B, S) -> (B, S, 1), one frame a sample,
    with padding set to zero.

    Raises ValueError for another shape and lengths outside (0, 1].

    >>> feats, lengths = RawWave()(torch.ones(2, 4), torch.tensor([1.0, 0.5]))
    >>> feats[..., 0].tolist(), lengths.tolist()
    ([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], [1.0, 0.5])
    """

    def __init__(self) -> None:
        super().__init__()
        self.dim = 1

    def trim(self, num_samples: int) -> int:
        """Every sample counts."""
        return num_samples

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """wave (B, S), lengths (B,) relative or None -> (B, S, 1), and the lengths."""
        if wave.ndim != 2:
            raise ValueError(
                f"RawWave: wave has shape {tuple(wave.shape)}; it must be (batch, samples), mono"
            )
        if lengths is None:
            return wave.unsqueeze(2), wave.new_ones(len(wave))
        samples = valid_samples(lengths, wave.shape[1], "RawWave")
        return wave.masked_fill(past_the_end(samples, wave.shape[1]), 0.0).unsqueeze(2), lengths


WESPEAKER_FBANK = partial(
    KaldiFbank, num_mels=80, window="hamming", scale=32768.0, dither=1.0, cmn=True
)
THREED_SPEAKER_FBANK = partial(
    KaldiFbank, num_mels=80, window="povey", scale=1.0, dither=0.0, cmn=True
)
