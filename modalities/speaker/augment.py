"""Augmentation of waves in numpy, deterministic given its generators: (samples,) float32 in and
out. Nothing is clipped unless clip() is asked for.

train_view() is a recipe's `augment`: crop, then what recordings suffer in the order in which they
suffer it: noise and room (noise.py), level, clipping, codec (codec.py). Speeds are new classes:
items with ids "#speed=" (audio.py). Masks of the features: spec_augment.py, around the front-end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from modalities.speaker import noise
from modalities.speaker.audio import Wave, crop
from modalities.speaker.codec import Codec, transmit


def add_noise(
    wave: Wave,
    rng: np.random.Generator,
    *,
    snr_db: tuple[float, float] = (0.0, 15.0),
    color: tuple[float, float] = (0.0, 1.5),
) -> Wave:
    """Add Gaussian noise at an SNR drawn uniformly from snr_db; the SNR of the two drawn signals is
    exact. A silent wave is returned as it is.

    color: range of the exponent c of the noise's power spectrum 1 / f^c: 0 is white, 1 pink, 2
    brown.
    """
    _check_range("snr_db", snr_db)
    _check_range("color", color)
    wanted_db, exponent = rng.uniform(*snr_db), rng.uniform(*color)
    spectrum = np.fft.rfft(rng.standard_normal(len(wave)))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-exponent / 2)
    spectrum[0] = 0.0
    noise = np.fft.irfft(spectrum, n=len(wave))
    signal_power, noise_power = (
        float(np.mean(np.square(wave, dtype=np.float64))),
        float(np.mean(np.square(noise))),
    )
    if (
        signal_power == 0.0 or noise_power == 0.0
    ):  # nothing to keep a ratio to; a single sample has no noise without its mean
        return wave.copy()
    noisy: Wave = (
        wave + noise * np.sqrt(signal_power / noise_power * 10 ** (-wanted_db / 10))
    ).astype(np.float32)
    return noisy


def gain(wave: Wave, rng: np.random.Generator, db: tuple[float, float] = (-6.0, 6.0)) -> Wave:
    """Multiply by a gain drawn uniformly in decibels from `db`."""
    _check_range("gain db", db)
    return wave * np.float32(10 ** (rng.uniform(*db) / 20))


def volume(wave: Wave, rng: np.random.Generator, peak: tuple[float, float] = (0.05, 1.0)) -> Wave:
    """Scale so that the largest absolute value is one drawn uniformly from `peak`, whatever the
    level was. A silent wave is returned as it is.
    """
    _check_range("volume peak", peak)
    if peak[0] < 0:
        raise ValueError(
            f"volume: peak {peak} starts below 0; give levels such as (0.05, 1.0), where 1 is full "
            "scale"
        )
    largest = float(np.abs(wave).max(initial=0.0))
    wanted = rng.uniform(*peak)
    return wave * np.float32(wanted / largest) if largest > 0 else wave.copy()


def clip(wave: Wave, rng: np.random.Generator, level: tuple[float, float] = (0.3, 0.9)) -> Wave:
    """Cut off what is larger than a share of the wave's largest absolute value, the share drawn
    uniformly from `level` (above 0, up to 1).
    """
    _check_range("clip level", level)
    if not 0.0 < level[0] <= level[1] <= 1.0:
        raise ValueError(
            f"clip: level {level} is outside 0 to 1; give shares of the peak, e.g. (0.3, 0.9)"
        )
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
    volume_prob: float = 0.0,
    volume_peak: tuple[float, float] = (0.05, 1.0),
    clip_prob: float = 0.0,
    clip_level: tuple[float, float] = (0.3, 0.9),
    codec_prob: float = 0.0,
    codecs: tuple[Codec, ...] = ("mulaw", "alaw", "mp3", "vorbis"),
) -> Wave:
    """One training view (num_samples,): a random crop, then with their probabilities real noise and
    rooms, synthetic noise, gain, volume, clipping and a codec.

    corrupt(wave, rng, rate_hz=rate_hz) -> wave: noise.corrupt with its folders and its own
    probability, e.g. partial(noise.WESPEAKER, musan=..., rirs=...). The crop's length is drawn from
    batch_rng, uniformly from `seconds`: give every item of a batch a generator in the same state
    and the batch stacks without padding. Everything else is drawn from rng; corrupt, volume,
    clipping and codec draw nothing while they are off. Raises ValueError for a range out of order,
    seconds of 0 or less, probabilities outside 0 to 1, and what corrupt() refuses (a missing
    folder).
    """
    _check_range("seconds", seconds)
    if seconds[0] * rate_hz < 1:
        raise ValueError(
            f"train_view: seconds {seconds} at {rate_hz} Hz are less than one sample; give e.g. "
            "(3.0, 3.0)"
        )
    probs = {
        "noise_prob": noise_prob,
        "gain_prob": gain_prob,
        "volume_prob": volume_prob,
        "clip_prob": clip_prob,
        "codec_prob": codec_prob,
    }
    for name, prob in probs.items():
        if not 0.0 <= prob <= 1.0:
            raise ValueError(f"train_view: {name} is {prob}; a probability from 0 to 1 is needed")
    view = crop(wave, round(batch_rng.uniform(*seconds) * rate_hz), rng)
    if corrupt is not None:
        view = corrupt(view, rng, rate_hz=rate_hz)
    if rng.random() < noise_prob:
        view = add_noise(view, rng, snr_db=snr_db)
    if rng.random() < gain_prob:
        view = gain(view, rng, gain_db)
    if volume_prob and rng.random() < volume_prob:
        view = volume(view, rng, volume_peak)
    if clip_prob and rng.random() < clip_prob:
        view = clip(view, rng, clip_level)
    if codec_prob and rng.random() < codec_prob:
        view = transmit(view, rng, codecs=codecs, rate_hz=rate_hz)
    return view


# The field's training views, as parts to be given their folders: partial(WESPEAKER_VIEW,
# corrupt=partial(noise.WESPEAKER, musan=..., rirs=...)), or on the command line
# augment.corrupt.musan=DIR augment.corrupt.rirs=DIR. WeSpeaker: 200 frames of 25 ms every 10 ms
# (large-margin fine-tuning: 600, 6.015 s). 3D-Speaker: 3 s (6 s); it fills short files with zeros,
# here they are repeated. voxceleb_trainer: 200 frames and 240 samples.
WESPEAKER_VIEW = partial(train_view, seconds=(2.015, 2.015), corrupt=noise.WESPEAKER)
THREED_SPEAKER_VIEW = partial(train_view, seconds=(3.0, 3.0), corrupt=noise.THREED_SPEAKER)
VOXCELEB_TRAINER_VIEW = partial(train_view, seconds=(2.015, 2.015), corrupt=noise.VOXCELEB_TRAINER)


def _check_range(name: str, bounds: tuple[float, float]) -> None:
    if not (np.isfinite(bounds).all() and bounds[0] <= bounds[1]):
        raise ValueError(
            f"{name}: the range {bounds} must be (lowest, highest), both finite; give the same "
            "value twice for a constant"
        )
