"""Cepstral mean (and variance) normalisation of padded batches, by utterance or in a sliding
window; what lengths mean, for every front-end.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# WeSpeaker's (dataset/processor.py apply_cmvn): a band that never changes gives zeros, not NaN
_VARIANCE_FLOOR = 1e-8


def valid_samples(lengths: Tensor, samples: int, owner: str) -> Tensor:
    """lengths (B,) relative to `samples` -> (B,) int64 samples.

    In float64: relative float32 lengths are exact to the sample up to 2**22 samples.

    ValueError, in the name of `owner`, for lengths outside (0, 1].
    """
    if (
        not torch.compiler.is_compiling()
        and lengths.numel()
        and not bool(((lengths > 0) & (lengths <= 1)).all())
    ):
        raise ValueError(
            f"{owner}: lengths run from {float(lengths.min())} to {float(lengths.max())}; relative "
            "ones, above 0 up to 1, are needed"
        )
    return (lengths.double() * samples).round().long()


def past_the_end(counts: Tensor, total: int) -> Tensor:
    """counts (B,) -> (B, total) bool, True where an item is over: the padding."""
    return torch.arange(total, device=counts.device).unsqueeze(0) >= counts.unsqueeze(1)


def normalise(
    feats: Tensor, frames: Tensor | None, *, variance: bool = False, window: int = 0
) -> Tensor:
    """feats (B, T, F), of which frames (B,) are valid (None: all), minus the mean over the valid
    frames, and zero in the padding.

    variance: divide by the standard deviation (of the population, as Kaldi and SpeechBrain have it)
    too. window: take the statistics of each frame over so many frames around it, fewer where the
    utterance is shorter, 0 = the whole utterance. At its ends the window is shifted inwards:
    Kaldi's `apply-cmvn-sliding --center=true` (feat/feature-functions.cc, SlidingWindowCmn),
    torchaudio.functional.sliding_window_cmn with center=True.
    """
    padding = None if frames is None else past_the_end(frames, feats.shape[1]).unsqueeze(2)

    def mean(values: Tensor) -> Tensor:
        if padding is None or frames is None:
            return values.mean(1, keepdim=True)
        return values.masked_fill(padding, 0.0).sum(1, keepdim=True) / frames.to(values.dtype).view(
            -1, 1, 1
        )

    feats = feats - mean(feats)
    if window:
        feats = _slide(feats, frames, window, variance)
    elif variance:
        feats = feats * (mean(feats.square()) + _VARIANCE_FLOOR).rsqrt()
    return feats if padding is None else feats.masked_fill(padding, 0.0)


def check_cmn(owner: str, cmn: bool, variance: bool, window: int) -> None:
    """ValueError for settings that contradict each other."""
    if window < 0:
        raise ValueError(
            f"{owner}: cmn_window is {window} frames; 0 (the whole utterance) or more, e.g. 300, "
            "are allowed"
        )
    if not cmn and (variance or window):
        raise ValueError(
            f"{owner}: cmn is off, but cmn_variance={variance} and cmn_window={window} are set; "
            "set cmn=True or leave them out"
        )


def _slide(feats: Tensor, frames: Tensor | None, window: int, variance: bool) -> Tensor:
    """Mean and variance of each frame's window as differences of cumulative sums. float64: they
    grow with T. feats are centred: squares stay small.
    """
    batch, total, dim = feats.shape
    place = torch.arange(total, device=feats.device)
    over = (
        torch.full((batch, 1), total, device=feats.device)
        if frames is None
        else frames.unsqueeze(1)
    )
    end = torch.minimum((place - window // 2).clamp(min=0) + window, over)  # (B, T)
    start = (end - window).clamp(min=0)
    count = (end - start).unsqueeze(2)
    end, start = (edge.unsqueeze(2).expand(-1, -1, dim) for edge in (end, start))

    def mean(values: Tensor) -> Tensor:
        sums = functional.pad(values.cumsum(1), (0, 0, 1, 0))
        return (sums.gather(1, end) - sums.gather(1, start)) / count

    wide = feats.double()
    centre = mean(wide)
    centred = wide - centre
    if variance:
        centred = (
            centred
            * ((mean(wide.square()) - centre.square()).clamp(min=0.0) + _VARIANCE_FLOOR).rsqrt()
        )
    return centred.to(feats.dtype)
