"""Speech by its energy, as Kaldi decides it: for recordings with pauses, not a model of speech
(music and noise pass).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modalities.speaker.audio import Wave

FRAME_SECONDS, HOP_SECONDS = 0.025, 0.01
_SCALE = 32768.0  # Kaldi's integer levels, for which its threshold is meant
_FLOOR = 1.1920929e-07


def log_energy(wave: Wave, rate_hz: int = 16_000) -> NDArray[np.float64]:
    """(samples,) -> (T,) ln of the sum of squares of each 25 ms frame every 10 ms, its mean
    removed, at int16 scale.

    Kaldi's raw energy (feat/feature-window.cc ProcessWindow) without dither and with snip_edges. A
    wave shorter than a frame is one frame.
    """
    frame, hop = min(int(FRAME_SECONDS * rate_hz), len(wave)), int(HOP_SECONDS * rate_hz)
    sums = [
        np.concatenate([[0.0], np.cumsum(power)])
        for power in (_SCALE * wave.astype(np.float64), (_SCALE * wave.astype(np.float64)) ** 2)
    ]
    starts = np.arange(1 + (len(wave) - frame) // hop) * hop
    total, squares = (one[starts + frame] - one[starts] for one in sums)
    energy: NDArray[np.float64] = np.log(np.maximum(squares - total**2 / frame, _FLOOR))
    return energy


def speech_frames(
    energy: NDArray[np.float64],
    *,
    threshold: float = 5.0,
    mean_scale: float = 0.5,
    context: int = 0,
    proportion: float = 0.6,
) -> NDArray[np.bool_]:
    """(T,) log energies -> (T,) True for speech: compute-vad's rule with its defaults (Kaldi,
    ivector/voice-activity-detection.cc, ComputeVadEnergy).

    A frame votes if its energy is above threshold + mean_scale x (mean over the frames); it is
    speech if at least `proportion` of the frames within `context` to either side vote. Kaldi's
    recipes for VoxCeleb (egs/voxceleb/v2/conf/vad.conf) take threshold 5.5, mean_scale .5, context
    2 and proportion .12.

    >>> speech_frames(np.array([20.0, 20.0, 2.0])).tolist()
    [True, True, False]
    """
    votes = np.concatenate([[0], np.cumsum(energy > threshold + mean_scale * energy.mean())])
    place = np.arange(len(energy))
    low, high = np.maximum(place - context, 0), np.minimum(place + context + 1, len(energy))
    speech: NDArray[np.bool_] = votes[high] - votes[low] >= proportion * (high - low)
    return speech


def trim(wave: Wave, rate_hz: int = 16_000) -> Wave:
    """(samples,) -> its speech, end to end: the 10 ms that every speech frame begins with, and what
    follows the last frame with it. May be empty.
    """
    if len(wave) == 0:
        return wave
    speech = speech_frames(log_energy(wave, rate_hz))
    hop = int(HOP_SECONDS * rate_hz)
    keep = np.repeat(speech, hop)[: len(wave)]
    spoken: Wave = wave[np.concatenate([keep, np.full(len(wave) - len(keep), speech[-1])])]
    return spoken
