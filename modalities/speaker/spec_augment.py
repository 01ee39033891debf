"""SpecAugment masks stretches of time and bands of frequency of the features, in training only.

Source: Park et al. 2019 (arXiv:1904.08779), without time warping. The masks are torchaudio's.
"""

import torch
from torch import Tensor

from likeness.eval.errors import refuse_broken
from likeness.toolkit.backbones.ecapa import import_torchaudio


def spec_augment(
    features: Tensor,
    lengths: Tensor,
    *,
    prob: float = 0.6,
    num_t_mask: int = 1,
    max_t: int = 10,
    num_f_mask: int = 1,
    max_f: int = 8,
) -> Tensor:
    """Mask the features of a batch, each item by draws of its own: a recipe's `mask`.

    A masked value becomes the utterance's mean of its band. With mean normalisation that is 0, as
    in WeSpeaker, and without it that is no outlier.

    The masks are drawn from torch's CPU generator, whatever the device. A run saves and restores
    its state, so that a resumed run draws the same masks. Nothing is drawn where `prob` is 0.

    Names and defaults are WeSpeaker's (dataset/processor.py spec_aug). In the paper num_t_mask,
    max_t, num_f_mask and max_f are m_T, T, m_F and F.

    Args:
        features: (B, T, F), zero in the padding.
        lengths: (B,) relative to T.
        prob: The probability, item by item, that an item is masked.
        num_t_mask: How many stretches of time are masked.
        max_t: The widest stretch in frames. Widths are uniform from 0, and starts within the
            utterance, so that the padding is never masked.
        num_f_mask: How many bands of frequency are masked.
        max_f: The widest band in bins.

    Returns:
        The features (B, T, F).

    Raises:
        LikenessError: A setting is out of range.

    Example:
        >>> spec_augment(torch.arange(6.0).view(1, 3, 2), torch.ones(1), prob=0.0).tolist()
        [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]]
    """
    values = {"mask.num_t_mask": num_t_mask, "mask.num_f_mask": num_f_mask}
    values |= {"mask.max_t": max_t, "mask.max_f": max_f}
    rules = {
        "mask.prob is 0 to 1": 0.0 <= prob <= 1.0,
        f"{', '.join(values)} are 0 or more": min(values.values()) >= 0,
    }
    refuse_broken(rules, {**values, "mask.prob": prob}.get)
    if prob == 0.0:
        return features
    batch, total, bins = features.shape
    frames = (lengths.double() * total).round().long().cpu()
    in_frequency = _masks(batch, bins, num_f_mask, max_f)
    in_time = torch.zeros(batch, total, dtype=torch.bool)
    for size in sorted(set(frames.tolist())):
        rows = frames == size
        in_time[rows, :size] = _masks(int(rows.sum()), size, num_t_mask, max_t)
    is_struck = torch.rand(batch, 1) < prob
    inside = (torch.arange(total) < frames[:, None]) & is_struck
    # On the device the vectors of bands and of frames become masks of both.
    in_time, in_frequency, inside = (
        mask.to(features.device) for mask in (in_time, in_frequency, inside)
    )
    masked = (in_time[:, :, None] | in_frequency[:, None]) & inside[:, :, None]
    mean = features.sum(1, keepdim=True) / frames.to(features).view(-1, 1, 1)
    return torch.where(masked, mean, features)


def _masks(batch: int, size: int, count: int, widest: int) -> Tensor:
    """Draw `count` masks for each row of a batch: (batch, size) bool, True where one is."""
    mask_along_axis_iid = import_torchaudio().functional.mask_along_axis_iid
    # One column more than there are, because torchaudio's masks never reach the last one.
    kept = torch.ones(batch, 1, size + 1)
    for _ in range(count):
        kept = mask_along_axis_iid(kept, min(widest, size) + 1, 0.0, axis=2)
    return kept[:, 0, :size] == 0.0
