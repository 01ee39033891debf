"""Sounds of which recordings are made that nobody spoke."""

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float32]


def chatter(seconds: float, rate_hz: int = 16_000, seed: int = 0, level: float = 0.1) -> Wave:
    """Noise whose colour changes ten times a second, as that of speech does."""
    noise = np.random.default_rng(seed).normal(0, level, round(seconds * rate_hz))
    width = max(4, rate_hz // 2_000)
    low = np.convolve(noise, np.full(width, width**-0.5), "same")
    return np.where(np.arange(len(noise)) * 10 // rate_hz % 2, low, noise).astype(np.float32)
