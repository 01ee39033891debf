"""Speech by its energy, as Kaldi decides it, for recordings with pauses.

This is not a model of speech: music and noise pass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from likeness.modalities.speaker.decoding import Wave

FRAME_SECONDS, HOP_SECONDS = 0.025, 0.01
_SCALE = 32768.0  # Kaldi's integer levels, for which its threshold is meant
_FLOOR = 1.1920929e-07


def log_energy(wave: Wave, rate_hz: int = 16_000) -> NDArray[np.float64]:
    """Compute the logarithm of the energy of every frame, which is Kaldi's raw energy.

    The energy is the sum of squares of each 25 ms frame every 10 ms, at int16 scale, after the mean
    of the frame is removed. Source: Kaldi, feat/feature-window.cc, ProcessWindow, without dither
    and with snip_edges. A wave that is shorter than a frame is one frame.

    Args:
        wave: (samples,) in [-1, 1].
        rate_hz: The rate of the wave in Hz.

    Returns:
        (T,) natural logarithms.
    """
    frame, hop = min(int(FRAME_SECONDS * rate_hz), len(wave)), int(HOP_SECONDS * rate_hz)
    scaled = _SCALE * wave.astype(np.float64)
    sums = [np.concatenate([[0.0], np.cumsum(power)]) for power in (scaled, scaled**2)]
    starts = np.arange(1 + (len(wave) - frame) // hop) * hop
    total, squares = (sum_to[starts + frame] - sum_to[starts] for sum_to in sums)
    return np.log(np.maximum(squares - total**2 / frame, _FLOOR))


def trim(wave: Wave, rate_hz: int = 16_000) -> Wave:
    """Cut the pauses out of a wave and join the rest end to end.

    A frame is speech if its energy is above 5 + 0.5 x (the mean over the frames), which is the rule
    with the defaults of Kaldi's compute-vad. Source: Kaldi, ivector/voice-activity-detection.cc,
    ComputeVadEnergy.

    The rest is the 10 ms that every speech frame begins with, and what follows the last frame if
    that is speech.

    Args:
        wave: (samples,).
        rate_hz: The rate of the wave in Hz.

    Returns:
        The samples of speech; there may be none.
    """
    if len(wave) == 0:
        return wave
    energy = log_energy(wave, rate_hz)
    speech = energy > 5.0 + 0.5 * energy.mean()
    hop = int(HOP_SECONDS * rate_hz)
    keep = np.repeat(speech, hop)[: len(wave)]
    return wave[np.concatenate([keep, np.full(len(wave) - len(keep), speech[-1])])]
