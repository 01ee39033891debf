"""Augmentation of waves in numpy, deterministic given its generators: (samples,) float32 in and out. Nothing is clipped, as nothing is written to integers."""

from __future__ import annotations

import numpy as np

from modalities.speaker.audio import Wave, crop, resample


def add_noise(wave: Wave, rng: np.random.Generator, *, snr_db: tuple[float, float] = (0.0, 15.0), color: tuple[float, float] = (0.0, 1.5)) -> Wave:
    """Add Gaussian noise at an SNR drawn uniformly from snr_db; the SNR of the two drawn signals is exact. A silent wave is returned as it is.

    color: range of the exponent c of the noise's power spectrum 1 / f^c: 0 is white, 1 pink, 2 brown.
    """
    _check_range("snr_db", snr_db)
    _check_range("color", color)
    wanted_db, exponent = rng.uniform(*snr_db), rng.uniform(*color)
    spectrum = np.fft.rfft(rng.standard_normal(len(wave)))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-exponent / 2)
    spectrum[0] = 0.0
    noise = np.fft.irfft(spectrum, n=len(wave))
    signal_power, noise_power = float(np.mean(np.square(wave, dtype=np.float64))), float(np.mean(np.square(noise)))
    if signal_power == 0.0 or noise_power == 0.0:  # nothing to keep a ratio to; a single sample has no noise without its mean
        return wave.copy()
    noisy: Wave = (wave + noise * np.sqrt(signal_power / noise_power * 10 ** (-wanted_db / 10))).astype(np.float32)
    return noisy


def gain(wave: Wave, rng: np.random.Generator, db: tuple[float, float] = (-6.0, 6.0)) -> Wave:
    """Multiply by a gain drawn uniformly in decibels from `db`."""
    _check_range("gain db", db)
    return wave * np.float32(10 ** (rng.uniform(*db) / 20))


def speed(wave: Wave, rate: float) -> Wave:
    """(samples,) -> (about samples / rate,): faster and higher for a rate above 1, as sox's speed. ValueError outside 0.5 to 2."""
    if not 0.5 <= rate <= 2.0:
        raise ValueError(f"speed: the rate {rate} is outside 0.5 to 2; the field uses 0.9 and 1.1")
    return resample(wave, rate, 1.0)


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
) -> Wave:
    """One training view (num_samples,): a random crop, then with their probabilities noise and gain.

    The crop's length is drawn from batch_rng, uniformly from `seconds`: give every item of a batch a generator in the same state and the batch stacks without
    padding. Everything else is drawn from rng. Raises ValueError for a range out of order, seconds of 0 or less and probabilities outside 0 to 1.
    """
    _check_range("seconds", seconds)
    if seconds[0] * rate_hz < 1:
        raise ValueError(f"train_view: seconds {seconds} at {rate_hz} Hz are less than one sample; give e.g. (3.0, 3.0)")
    for name, prob in (("noise_prob", noise_prob), ("gain_prob", gain_prob)):
        if not 0.0 <= prob <= 1.0:
            raise ValueError(f"train_view: {name} is {prob}; a probability from 0 to 1 is needed")
    view = crop(wave, round(batch_rng.uniform(*seconds) * rate_hz), rng)
    if rng.random() < noise_prob:
        view = add_noise(view, rng, snr_db=snr_db)
    if rng.random() < gain_prob:
        view = gain(view, rng, gain_db)
    return view


def _check_range(name: str, bounds: tuple[float, float]) -> None:
    if not (np.isfinite(bounds).all() and bounds[0] <= bounds[1]):
        raise ValueError(f"{name}: the range {bounds} must be (lowest, highest), both finite; give the same value twice for a constant")
