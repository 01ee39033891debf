"""Recordings whose upper frequencies are missing, for models that need them.

Telephones and strong compression leave nothing above some frequency. A model that has not learnt
this may take all such recordings for the same voice, because the same is missing in all of them.
The sampling rate of a file does not tell: it may have been resampled.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import welch

from modalities.speaker.decoding import BadAudio, Wave

# Of 1,158 recordings (speechocean, AN4, LibriSpeech) 2 had a lower share of power above 7 kHz. Of
# the same, cut at 7 kHz and stored with 16 bits, 13 had a higher one: the rounding of a quiet
# recording is noise in all bands.
LEAST_SHARE = 1e-7
_SECONDS, _FRAME = 30, 512


def share_above(wave: Wave, rate_hz: int, edge_hz: float) -> float:
    """The share of a wave's power that lies above a frequency, over its middle 30 s.

    Args:
        wave: (samples,) at rate_hz.
        rate_hz: The rate in Hz.
        edge_hz: The frequency in Hz.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
        >>> round(share_above(noise, 16_000, 4000.0), 1)
        0.5
    """
    start = max(0, (len(wave) - _SECONDS * rate_hz) // 2)
    part = np.asarray(wave[start : start + _SECONDS * rate_hz], dtype=np.float64)
    # The window's side lobes are at -92 dB, far below the least share.
    hertz, power = welch(part, rate_hz, window="blackmanharris", nperseg=min(_FRAME, len(part)))
    whole = float(power.sum())
    return float(power[hertz > edge_hz].sum()) / whole if whole > 0 else 0.0


def refuse_narrow(name: str, wave: Wave, rate_hz: int, needs_hz: float) -> None:
    """Refuse a wave that has nothing above a frequency.

    Args:
        name: What the error calls it.
        wave: (samples,) at rate_hz.
        rate_hz: The rate in Hz.
        needs_hz: The frequency in Hz, below half the rate; 0 refuses nothing.

    Raises:
        BadAudio: It has nothing there.
        ValueError: The frequency is not below half the rate.
    """
    if not needs_hz:
        return
    if not 0 < needs_hz < rate_hz / 2:
        raise ValueError(
            f"needs_hz is {needs_hz:g}, and recordings are read at {rate_hz} Hz; give a frequency "
            "below half of that, or 0"
        )
    if (share := share_above(wave, rate_hz, needs_hz)) < LEAST_SHARE:
        raise BadAudio(
            f"{name}: the recording has nothing above {needs_hz / 1000:g} kHz (a share of "
            f"{share:.1g} of its power), as after a telephone or strong compression, and this "
            "model might take all such recordings for one voice; give the original at 16 kHz or "
            "more, or take another model"
        )
