"""Recordings of a telephone, which have nothing above 4 kHz, for models that need what is there.

A model of wide-band speech may take all telephone recordings for the same voice, because the same
is missing in all of them. The sampling rate of a file does not tell: it may have been resampled.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import welch

from modalities.speaker.decoding import BadAudio, Wave

EDGE_HZ = 4300.0  # above the band of a telephone, and the slope of a resampler's filter
# Of 2,314 recordings in wide band (speechocean, AN4, LibriSpeech) the lowest share of power above
# the edge was 6.3e-7. Of 600 recordings at 8 kHz (FSDD) the highest was 4.2e-11. Where 541 of the
# former were brought to 8 kHz and back and stored in 16 bits, 3 had more than this limit: a quiet
# recording's rounding is noise in all bands.
LEAST_SHARE = 3e-7
_SECONDS, _FRAME = 30, 512


def share_above(wave: Wave, rate_hz: int) -> float:
    """The share of a wave's power that lies above EDGE_HZ, over its middle 30 s.

    Args:
        wave: (samples,) at rate_hz.
        rate_hz: The rate in Hz.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
        >>> round(share_above(noise, 16_000), 1)
        0.5
    """
    start = max(0, (len(wave) - _SECONDS * rate_hz) // 2)
    part = np.asarray(wave[start : start + _SECONDS * rate_hz], dtype=np.float64)
    # The window's side lobes are at -92 dB, far below the least share.
    hertz, power = welch(part, rate_hz, window="blackmanharris", nperseg=min(_FRAME, len(part)))
    whole = float(power.sum())
    return float(power[hertz > EDGE_HZ].sum()) / whole if whole > 0 else 0.0


def refuse_narrow(name: str, wave: Wave, rate_hz: int) -> None:
    """Refuse a wave that has nothing above 4.3 kHz.

    Args:
        name: What the error calls it.
        wave: (samples,) at rate_hz.
        rate_hz: The rate in Hz, above 8,600.

    Raises:
        BadAudio: It has not.
    """
    if (share := share_above(wave, rate_hz)) < LEAST_SHARE:
        raise BadAudio(
            f"{name}: the recording has nothing above {EDGE_HZ / 1000:g} kHz (a share of "
            f"{share:.1g} of its power), as telephones and files of 8 kHz have not, and this model "
            "would take all such recordings for one voice; give recordings at 16 kHz or more, or "
            "take a model that was trained on telephone speech"
        )
