"""Augmentation of waves in numpy, (samples,) float32 in and out; deterministic given generators.

Nothing is clipped unless clip() is asked for.

train_view() is a recipe's `augment`. It crops the wave, and then does to it what recordings suffer,
in the order in which they suffer it: noise and room (noise.py), level, clipping, codec (codec.py).

Two kinds of augmentation happen elsewhere. A changed speed is a new class, which is an item with an
id that ends in "#speed=..." (audio.py). The features are masked by a recipe's `mask`
(spec_augment.py).
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.modalities.speaker import noise
from likeness.modalities.speaker.audio import at_level, crop
from likeness.modalities.speaker.codec import Codec, transmit
from likeness.modalities.speaker.decoding import Wave


def add_noise(
    wave: Wave,
    rng: np.random.Generator,
    *,
    snr_db: tuple[float, float] = (0.0, 15.0),
    color: tuple[float, float] = (0.0, 1.5),
) -> Wave:
    """Add Gaussian noise at a signal-to-noise ratio drawn uniformly from snr_db.

    The ratio of the two drawn signals is exact.

    Args:
        wave: (samples,) float32.
        rng: The generator of all draws.
        snr_db: The lowest and the highest ratio in dB.
        color: The range of the exponent c of the noise's power spectrum 1 / f^c: 0 is white noise,
            1 is pink and 2 is brown.

    Returns:
        (samples,) float32. A silent wave is returned as it is.

    Raises:
        LikenessError: A range is out of order or not finite.

    Example:
        >>> add_noise(np.zeros(3, np.float32), np.random.default_rng(0)).tolist()
        [0.0, 0.0, 0.0]
    """
    _check_range("snr_db", snr_db)
    _check_range("color", color)
    ratio_db, exponent = rng.uniform(*snr_db), rng.uniform(*color)
    spectrum = np.fft.rfft(rng.standard_normal(len(wave)))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-exponent / 2)
    spectrum[0] = 0.0
    noise = np.fft.irfft(spectrum, n=len(wave))
    signal_power = float(np.mean(np.square(wave, dtype=np.float64)))
    noise_power = float(np.mean(np.square(noise)))
    # A silent wave has no ratio to anything, and a single sample has no noise but its mean.
    if signal_power == 0.0 or noise_power == 0.0:
        return wave.copy()
    factor = np.sqrt(signal_power / noise_power * 10 ** (-ratio_db / 10))
    noisy: Wave = (wave + noise * factor).astype(np.float32)
    return noisy


def gain(wave: Wave, rng: np.random.Generator, db: tuple[float, float] = (-6.0, 6.0)) -> Wave:
    """Multiply the wave by a gain drawn uniformly in decibels from `db`.

    Args:
        wave: (samples,) float32.
        rng: The generator of the gain.
        db: The lowest and the highest gain in dB.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: The range is out of order or not finite.

    Example:
        >>> wave = np.ones(2, np.float32)
        >>> gain(wave, np.random.default_rng(0), db=(20.0, 20.0)).tolist()
        [10.0, 10.0]
    """
    _check_range("gain db", db)
    return wave * np.float32(10 ** (rng.uniform(*db) / 20))


def clip(wave: Wave, rng: np.random.Generator, level: tuple[float, float] = (0.3, 0.9)) -> Wave:
    """Cut off what is larger than a share of the wave's largest absolute value.

    Args:
        wave: (samples,) float32.
        rng: The generator of the share.
        level: The lowest and the highest share, above 0 and up to 1. The share is drawn uniformly.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: The range is out of order or outside 0 to 1.

    Example:
        >>> wave = np.array([1.0, -0.25], np.float32)
        >>> clip(wave, np.random.default_rng(0), level=(0.5, 0.5)).tolist()
        [0.5, -0.25]
    """
    _check_range("clip level", level, least=1e-9, most=1.0)
    most = np.float32(np.abs(wave).max(initial=0.0) * rng.uniform(*level))
    return np.clip(wave, -most, most)


def train_view(
    wave: Wave,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    seconds: tuple[float, float] = (3.0, 3.0),
    rate_hz: int = 16_000,
    noise_prob: float = 0.0,
    snr_db: tuple[float, float] = (0.0, 15.0),
    gain_prob: float = 0.0,
    gain_db: tuple[float, float] = (-6.0, 6.0),
    corrupt: Callable[..., Wave] | None = None,
    clip_prob: float = 0.0,
    clip_level: tuple[float, float] = (0.3, 0.9),
    codec_prob: float = 0.0,
    codecs: tuple[Codec, ...] = ("mulaw", "alaw", "mp3", "vorbis"),
    level_dbfs: float | None = None,
) -> Wave:
    """Make one training view of a wave.

    A random crop comes first. Real noise and rooms, synthetic noise, gain, clipping and a codec
    follow, each with its probability. The level comes last.

    Args:
        wave: (samples,) float32 at rate_hz.
        rng: The generator of all draws but the crop's length. corrupt, clipping and the codec
            draw nothing while they are off.
        batch_rng: The generator of the crop's length. Give every item of a batch a generator in the
            same state, and the batch stacks without padding.
        seconds: The shortest and the longest crop; the length is drawn uniformly.
        rate_hz: The rate of the wave in Hz.
        noise_prob: The probability of add_noise(), which takes snr_db.
        snr_db: The range of the ratio of the synthetic noise in dB.
        gain_prob: The probability of gain(), which takes gain_db.
        gain_db: The range of the gain in dB.
        corrupt: Real noise and rooms, called as corrupt(wave, rng, rate_hz=rate_hz) -> wave. This
            is noise.corrupt with its folders and its own probability, e.g. partial(noise.WESPEAKER,
            musan=..., rirs=...).
        clip_prob: The probability of clip(), which takes clip_level.
        clip_level: The range of the share of the peak.
        codec_prob: The probability of codec.transmit(), which takes codecs.
        codecs: The codecs to draw from.
        level_dbfs: The level of speech that the view is brought to, as audio.read()
            brings whole recordings to it; None leaves it as it is.

    Returns:
        The view, (num_samples,) float32.

    Raises:
        LikenessError: A range is out of order, the crop has less than one sample, a probability
            lies outside 0 to 1, or corrupt() refuses its folder.

    Example:
        >>> rng, batch_rng = np.random.default_rng(0), np.random.default_rng(1)
        >>> train_view(np.ones(32_000, np.float32), rng, batch_rng, seconds=(0.5, 0.5)).shape
        (8000,)
    """
    _check_range("seconds", seconds, least=1 / rate_hz)
    probs = noise_prob, gain_prob, clip_prob, codec_prob
    if not all(0.0 <= prob <= 1.0 for prob in probs):
        raise LikenessError(f"train_view: of the probabilities {probs} all must be 0 to 1")
    view = crop(wave, round(batch_rng.uniform(*seconds) * rate_hz), rng)
    if corrupt is not None:
        view = corrupt(view, rng, rate_hz=rate_hz)
    if rng.random() < noise_prob:
        view = add_noise(view, rng, snr_db=snr_db)
    if rng.random() < gain_prob:
        view = gain(view, rng, gain_db)
    if clip_prob and rng.random() < clip_prob:
        view = clip(view, rng, clip_level)
    if codec_prob and rng.random() < codec_prob:
        view = transmit(view, rng, codecs=codecs, rate_hz=rate_hz)
    return view if level_dbfs is None else at_level(view, level_dbfs)


# WeSpeaker's training view, as a part that still needs its folders: partial(WESPEAKER_VIEW,
# corrupt=partial(noise.WESPEAKER, musan=..., rirs=...)), or on the command line
# augment.corrupt.musan=DIR augment.corrupt.rirs=DIR.
# WeSpeaker takes 200 frames of 25 ms every 10 ms (for large-margin fine-tuning 600, which are
# 6.015 s).
WESPEAKER_VIEW = partial(train_view, seconds=(2.015, 2.015), corrupt=noise.WESPEAKER)


def _check_range(
    name: str, bounds: tuple[float, float], *, least: float = -math.inf, most: float = math.inf
) -> None:
    """Refuse a range that is out of order, out of its bounds or not finite."""
    if not (np.isfinite(bounds).all() and least <= bounds[0] <= bounds[1] <= most):
        raise LikenessError(
            f"{name}: the range {bounds} must be (lowest, highest) within {least:g} to {most:g}, "
            "both finite; give the same value twice for a constant"
        )
