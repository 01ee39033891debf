"""Cepstral mean and variance normalisation of padded batches, utterance by utterance.

The functions also define what lengths mean, for every front-end.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def normalise(feats: Tensor, frames: Tensor | None, *, variance: bool = False) -> Tensor:
    """Subtract the mean over the valid frames from the features, and set the padding to zero.

    Args:
        feats: (B, T, F).
        frames: (B,) the numbers of valid frames, or None when all are valid.
        variance: Whether to divide by the standard deviation too. It is that of the population, as
            in Kaldi and SpeechBrain.

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
    if variance:
        feats = feats * (mean(feats.square()) + _VARIANCE_FLOOR).rsqrt()
    return feats if padding is None else feats.masked_fill(padding, 0.0)
