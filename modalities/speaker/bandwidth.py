"""Recordings whose upper frequencies are missing, for models that need them.

Telephones and strong compression leave nothing above some frequency. A model that has not learnt
this may take all such recordings for the same voice, because the same is missing in all of them.
The sampling rate of a file does not tell: it may have been resampled.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.modalities.speaker.decoding import ROUNDING, BadAudio, Wave

# Two limits, because either alone is passed by recordings that have nothing there. The first one
# finds what was scaled after it had been stored; the second one finds quiet recordings, in which
# the rounding to 16 bits is a large share, and recordings with a click or a tone in few places.
# benchmarks/small_voice.py counts what is refused, of recordings as they are and of narrow ones.
LEAST_SHARE = 1e-7
# Times the power of rounding to 16 bits: dither adds up to twice that power again.
LEAST_ROUNDINGS = 4.0
_FRAME, _MOST_FRAMES = 512, 3750  # frames that overlap by half: all of 60 s at 16 kHz
_LOUD = 1e-5  # frames within 50 dB of the loudest are looked at, so that silence does not count


def powers(wave: Wave, rate_hz: int, edge_hz: float) -> NDArray[np.float64]:
    """The powers of a wave's frames: all of each, and what of it lies above a frequency.

    Args:
        wave: (samples,) at rate_hz, at least one.
        rate_hz: The rate in Hz.
        edge_hz: The frequency in Hz.

    Returns:
        (frames, 2), mean squares. The frames are spread evenly from the beginning to the end.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
        >>> whole, above = powers(noise, 16_000, 4000.0).mean(axis=0)
        >>> print(f"{whole:.1f} {above:.1f}")
        1.0 0.5
    """
    size = min(_FRAME, len(wave))
    last = len(wave) - size
    num = min(_MOST_FRAMES, 1 + 2 * last // size)
    starts = np.linspace(0, last, num).astype(np.int64)
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[starts].astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    window = _blackman_harris(size)
    frames *= window
    parts = np.fft.rfft(frames).view(np.float64)  # real and imaginary by turns
    first = 2 * np.count_nonzero(np.fft.rfftfreq(size, 1 / rate_hz) <= edge_hz)
    sums = [np.vecdot(part, part) for part in (parts, parts[:, first:])]
    return np.stack(sums, axis=1) * (2 / (size * np.sum(window**2)))


@cache
def _blackman_harris(size: int) -> NDArray[np.float64]:
    """The window of Blackman and Harris, whose side lobes are at -92 dB, far below the least share.

    It is what scipy.signal.get_window gives, to the bit; scipy.signal takes a second to import.
    """
    angles = np.linspace(-np.pi, np.pi, size + 1)[:-1]
    window = np.zeros(size)
    for order, share in enumerate((0.35875, 0.48829, 0.14128, 0.01168)):
        window += share * np.cos(order * angles)
    return window


def is_narrow(wave: Wave, rate_hz: int, edge_hz: float) -> bool:
    """Whether a wave has nothing above a frequency but the rounding of its samples to 16 bits.

    Args:
        wave: (samples,) at rate_hz, where full scale is 1.
        rate_hz: The rate in Hz.
        edge_hz: The frequency in Hz, below half the rate.

    Raises:
        LikenessError: The frequency is not below half the rate.

    Example:
        >>> tone = np.sin(np.arange(16_000) / 4).astype(np.float32)
        >>> is_narrow(tone, 16_000, 4000.0)
        True
    """
    if not 0 < edge_hz < rate_hz / 2:
        raise LikenessError(
            f"needs_hz is {edge_hz:g}, and recordings are read at {rate_hz} Hz; give a frequency "
            "below half of that, or 0"
        )
    whole, above = powers(wave, rate_hz, edge_hz).T
    if above.sum() <= LEAST_SHARE * whole.sum():
        return True
    usual = float(np.median(above[whole >= _LOUD * whole.max()]))
    return usual < LEAST_ROUNDINGS * ROUNDING * (1 - edge_hz / (rate_hz / 2))


def narrow_audio(item: Item, needs_hz: float) -> BadAudio:
    """The error of an item that has nothing above a frequency."""
    return BadAudio(
        f"{item.name}: the recording has nothing above {needs_hz / 1000:g} kHz, as after a "
        "telephone or strong compression, or is so quiet that rounding hides it, and this "
        "model might take all such recordings for one voice; give the original, at 16 kHz "
        "or more and not so quiet, or take another model"
    )
