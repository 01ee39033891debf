"""Cepstral mean and variance normalisation of padded batches, by utterance or in a sliding window.

The functions also define what lengths mean, for every front-end.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eval.errors import LikenessError

# WeSpeaker's floor (dataset/processor.py apply_cmvn): a band that never changes gives zeros, not
# NaN.
_VARIANCE_FLOOR = 1e-8


def valid_samples(lengths: Tensor, samples: int, owner: str) -> Tensor:
    """Convert relative lengths to numbers of samples.

    The arithmetic is float64: relative float32 lengths are exact to the sample up to 2**22 samples.

    Args:
        lengths: (B,) relative to `samples`.
        samples: The length of the padded batch.
        owner: The name of the front-end, for the message.

    Returns:
        (B,) int64 numbers of samples.

    Raises:
        LikenessError: A length lies outside (0, 1].

    Example:
        >>> valid_samples(torch.tensor([1.0, 0.5]), 16000, "owner").tolist()
        [16000, 8000]
    """
    if (
        not torch.compiler.is_compiling()
        and lengths.numel()
        and not bool(((lengths > 0) & (lengths <= 1)).all())
    ):
        raise LikenessError(
            f"{owner}: lengths run from {float(lengths.min())} to {float(lengths.max())}; relative "
            "ones, above 0 up to 1, are needed"
        )
    return (lengths.double() * samples).round().long()


def past_the_end(counts: Tensor, total: int) -> Tensor:
    """Mark the padding of a batch: counts (B,) -> (B, total) bool, True where an item is over."""
    return torch.arange(total, device=counts.device).unsqueeze(0) >= counts.unsqueeze(1)


def normalise(
    feats: Tensor, frames: Tensor | None, *, variance: bool = False, window: int = 0
) -> Tensor:
    """Subtract the mean over the valid frames from the features, and set the padding to zero.

    Args:
        feats: (B, T, F).
        frames: (B,) the numbers of valid frames, or None when all are valid.
        variance: Whether to divide by the standard deviation too. It is that of the population, as
            in Kaldi and SpeechBrain.
        window: How many frames around each frame the statistics are taken over; 0 means the whole
            utterance. Where the utterance is shorter, there are fewer frames. At its ends the
            window is shifted inwards, as by Kaldi's `apply-cmvn-sliding --center=true`
            (feat/feature-functions.cc, SlidingWindowCmn) and by
            torchaudio.functional.sliding_window_cmn with center=True.

    Returns:
        (B, T, F).
    """
    padding = None if frames is None else past_the_end(frames, feats.shape[1]).unsqueeze(2)

    def mean(values: Tensor) -> Tensor:
        if padding is None or frames is None:
            return values.mean(1, keepdim=True)
        total = values.masked_fill(padding, 0.0).sum(1, keepdim=True)
        return total / frames.to(values.dtype).view(-1, 1, 1)

    feats = feats - mean(feats)
    if window:
        feats = _slide(feats, frames, window, variance)
    elif variance:
        feats = feats * (mean(feats.square()) + _VARIANCE_FLOOR).rsqrt()
    return feats if padding is None else feats.masked_fill(padding, 0.0)


def check_cmn(owner: str, cmn: bool, variance: bool, window: int) -> None:
    """Raise ValueError for settings of the normalisation that contradict each other.

    Args:
        owner: The name of the front-end, for the message.
        cmn: Whether the mean is subtracted.
        variance: Whether the standard deviation divides.
        window: The window in frames, 0 for the utterance.

    Raises:
        LikenessError: The window is negative, or the mean is off but the other two are set.
    """
    if window < 0:
        raise LikenessError(
            f"{owner}: cmn_window is {window} frames; 0 (the whole utterance) or more, e.g. 300, "
            "are allowed"
        )
    if not cmn and (variance or window):
        raise LikenessError(
            f"{owner}: cmn is off, but cmn_variance={variance} and cmn_window={window} are set; "
            "set cmn=True or leave them out"
        )


def _slide(feats: Tensor, frames: Tensor | None, window: int, variance: bool) -> Tensor:
    """Normalise each frame by its window, whose sums are differences of cumulative sums.

    The sums are float64, because they grow with T. The features are centred, so that squares stay
    small.
    """
    batch, total, dim = feats.shape
    place = torch.arange(total, device=feats.device)
    if frames is None:
        last = torch.full((batch, 1), total, device=feats.device)
    else:
        last = frames.unsqueeze(1)
    end = torch.minimum((place - window // 2).clamp(min=0) + window, last)  # (B, T)
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
        spread = (mean(wide.square()) - centre.square()).clamp(min=0.0)
        centred = centred * (spread + _VARIANCE_FLOOR).rsqrt()
    return centred.to(feats.dtype)
