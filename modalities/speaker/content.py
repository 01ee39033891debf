"""Whether a recording can hold a voice: neither silence, nor a noise, hum or tone that stays.

Speech changes the shape of its spectrum several times a second (Houtgast and Steeneken, "A review
of the MTF concept in room acoustics", JASA 77, 1985: most at 2 to 8 Hz; Scheirer and Slaney,
"Construction and evaluation of a robust multifeature speech/music discriminator", ICASSP 1997).
A stationary noise of any colour changes by chance alone, and by how much is known: the logarithms
of its powers in a band have a fixed variance, whatever the level. So the change in a second of
sound, divided by that of noise, is about 1 for noise, 0 for a tone or hum, and 2 to 4 for speech.
What every band gains or loses alike, as in noise that swells, does not count.

What is steady may still be a vowel that somebody holds, or speech in noise. Its periods tell
(Boersma, "Accurate short-term analysis of the fundamental frequency", IFA Proceedings 17, 1993).

docs/how-to/check_data.md has the margins, of speech that is whispered, noisy and short too.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.modalities.speaker.decoding import ROUNDING, SILENCE_DBFS, Wave
from likeness.toolkit.data.reading import Lack

QUIET_DBFS = -60.0  # a recording whose peak is lower holds no speech that can be heard
LEAST_SECONDS = 0.1  # of sound, between pauses of digital silence
# The change of speech beyond that of noise, in standard deviations of a stretch of noise: above the
# first it is speech, and below the second noise. Both together leave room for what codecs add.
SPEECH_SIGMAS, NOISE_SIGMAS = 5.0, 2.0
CODED_NOISE = 1.2  # the change of noise after MP3, Opus or GSM, in long recordings
LEAST_HARMONICITY = 0.33  # of noise 0.25 at most, of a vowel in as much noise 0.4 or more
LEAST_BESIDE_TONE = 0.005  # the share of the power that is not within 80 Hz of the strongest tone

_FRAME_SECONDS, _HOP_SECONDS, _TOGETHER = 0.032, 0.016, 3
_EDGES_HZ = (125, 300, 500, 750, 1050, 1450, 2000, 2700, 3700)
# The variance of the smoothed logarithms in these bands, of 25 minutes of white noise. Pink and
# brown noise and other rates give the same within 5 %.
_OF_NOISE = np.array((0.0920, 0.0893, 0.0700, 0.0585, 0.0475, 0.0386, 0.0303, 0.0246))
_LOST = 2.5  # frames whose variance the mean takes away, as they overlap
_SPREAD = 0.8  # the standard deviation of the change of noise, times the root of its frames
_MOST = 4.0  # a frame counts no more than this, so that a click is none of speech
_LOUD, _FLOOR = 1e-4, 1e-3  # 40 dB below the loud frames, and 30 dB below all bands together
_PERIODS_HZ, _HUM_HZ = (500.0, 75.0), 40.0  # voices; the hum of mains has 50 or 60 Hz
_LEAST_FRAMES = 5  # smoothed ones that can be judged


class _Seen(NamedTuple):
    """What a stretch of about a second shows.

    Attributes:
        power: Its mean power.
        sounding: How many of its frames hold sound.
        frames: How many there are.
        is_tone: Whether half the sounding frames or more hold nothing but one tone.
        change: How much the shape of the spectrum changes, where noise has 1.
        num_judged: The number of smoothed frames that the change is of.
    """

    power: float
    sounding: int
    frames: int
    is_tone: bool
    change: float
    num_judged: int


def lack_of_voice(wave: Wave, rate_hz: int) -> Lack | None:
    """Say what a recording lacks to hold a voice.

    Args:
        wave: (samples,), at least one, where full scale is 1.
        rate_hz: Its rate in Hz.

    Returns:
        What it lacks; None where it may well hold a voice.

    Example:
        >>> noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
        >>> print(lack_of_voice(noise, 16_000).reason)
        it holds a steady noise and no voice
        >>> syllables = noise * 0.1
        >>> syllables[4_000:8_000] += 0.3 * np.sin(np.arange(4_000) * 0.1).astype(np.float32)
        >>> lack_of_voice(syllables, 16_000) is None
        True
    """
    peak = 20 * float(np.log10(max(1e-30, np.abs(wave).max())))
    if peak < SILENCE_DBFS:
        return Lack(
            f"the audio is silent, its peak is {peak:.1f} dBFS after its channels are averaged (at "
            f"least {SILENCE_DBFS:.0f} dBFS is needed), which may cancel"
        )
    if rate_hz < 2 * _EDGES_HZ[3]:
        return None  # too few bands to tell
    edges = np.linspace(0, len(wave), max(1, round(len(wave) / rate_hz)) + 1).astype(np.int64)
    stretches, seen = np.split(wave, edges[1:-1]), list[_Seen]()
    for stretch in stretches:
        part = _look(stretch, rate_hz)
        excess = (part.change - 1) * part.num_judged**0.5
        is_speech = excess > SPEECH_SIGMAS * _SPREAD and not part.is_tone
        if is_speech and part.num_judged >= _LEAST_FRAMES:
            return _too_quiet(peak)
        seen.append(part)
    sounding, frames = sum(part.sounding for part in seen), sum(part.frames for part in seen)
    if sounding * _HOP_SECONDS < LEAST_SECONDS - _FRAME_SECONDS and sounding < frames:
        return Lack(f"it holds less than {LEAST_SECONDS} s of sound, and silence around it")
    loudest = int(np.argmax([part.power for part in seen]))
    if seen[loudest].is_tone:
        return Lack("it holds a single tone and no voice")
    return _steady(stretches[loudest], rate_hz, seen) or _too_quiet(peak)


def _too_quiet(peak: float) -> Lack | None:
    """The doubt about a recording whose loudest sample is hardly louder than its rounding."""
    if peak >= QUIET_DBFS:
        return None
    return Lack(f"the audio is nearly silent, its peak is {peak:.1f} dBFS", is_sure=False)


def _steady(loudest: Wave, rate_hz: int, seen: Sequence[_Seen]) -> Lack | None:
    """What a recording lacks no second of which changes as speech does."""
    judged = [each for each in seen if each.num_judged >= _LEAST_FRAMES]
    if not judged:
        return Lack("it is too short to tell whether it holds a voice", is_sure=False)
    frames = [each.num_judged for each in judged]
    change = float(np.average([each.change for each in judged], weights=frames))
    limit = CODED_NOISE if len(judged) > 1 else 1.0
    if change > max(limit, 1 + NOISE_SIGMAS * _SPREAD / sum(frames) ** 0.5):
        return Lack("it hardly changes, and may hold noise and no voice", is_sure=False)
    if _harmonicity(loudest, rate_hz) > LEAST_HARMONICITY:
        return Lack("it holds one steady sound, perhaps a vowel or a hum", is_sure=False)
    return Lack("it holds a steady noise and no voice")


def _frames(wave: Wave, size: int) -> Wave:
    """Frames (T, size) without their means that overlap by half, of a wave filled up with zeros."""
    if len(wave) < size:
        wave = np.pad(wave, (0, size - len(wave)))
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[:: size // 2]
    return np.asarray(frames - frames.mean(axis=1, keepdims=True), np.float32)


def _window(size: int) -> Wave:
    return np.hanning(size + 1)[:-1].astype(np.float32)


def _running(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """The sums of the first rows: (T, F) -> (T + 1, F), of which the first are 0."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, dtype=np.float64, out=sums[1:])
    return sums


def _bands(last: int, rate_hz: float) -> NDArray[np.int64]:
    """The first frequency of each band of a spectrum up to half the rate, and that after it.

    last: the number of the frequency that is half the rate.
    """
    edges = [round(2 * last * edge / rate_hz) for edge in _EDGES_HZ if edge <= rate_hz / 2]
    return np.array(edges)


def _look(stretch: Wave, rate_hz: int) -> _Seen:
    """Look at the frames of 32 ms of a stretch, one every 16 ms."""
    size = round(_FRAME_SECONDS * rate_hz)
    frames = _frames(stretch, size)
    power = np.square(frames).mean(axis=1)
    is_loud = (power >= ROUNDING) & (power >= _LOUD * np.quantile(power, 0.95))
    complex_spectrum = np.fft.rfft(frames[is_loud] * _window(size), axis=1)
    spectrum = (complex_spectrum.real**2 + complex_spectrum.imag**2).astype(np.float32)
    # Below 100 Hz lie rumble and what is left of the mean.
    upper, rows = spectrum[:, 3:], np.arange(len(spectrum))
    sums = _running(upper.T).T
    top = upper.argmax(axis=1)
    tone = sums[rows, np.minimum(top + 3, upper.shape[1])] - sums[rows, np.maximum(top - 2, 0)]
    beside = 1 - tone / np.maximum(sums[:, -1], 1e-30)
    is_tone = bool(len(rows) and np.median(beside) < LEAST_BESIDE_TONE)
    seen = float(np.square(stretch).mean()), len(spectrum), len(frames), is_tone
    edges = _bands(size // 2, rate_hz)
    widths = np.diff(edges)
    num = len(spectrum) - _TOGETHER + 1
    if num < _LEAST_FRAMES:
        return _Seen(*seen, 0.0, max(0, num))
    powers = np.add.reduceat(spectrum[:, : edges[-1]], edges[:-1], axis=1, dtype=np.float64)
    # Rounding to 16 bits is everywhere; what is far below the rest is of the window's side lobes.
    powers += ROUNDING * 0.375 * (size // 2 * 2) * widths
    powers += _FLOOR * powers.sum(axis=1, keepdims=True) * (widths / widths.sum())
    shape = np.log(powers)
    shape -= shape.mean(axis=1, keepdims=True)
    sums = _running(shape)
    shape = (sums[_TOGETHER:] - sums[:-_TOGETHER]) / _TOGETHER
    change = np.square(shape - shape.mean(axis=0)) / _OF_NOISE[: len(widths)]
    per_frame = change.mean(axis=1) * (num / (num - _LOST))
    return _Seen(*seen, float(np.minimum(per_frame, _MOST).mean()), num)


def _harmonicity(wave: Wave, rate_hz: int) -> float:
    """The median over frames of the autocorrelation at the period of a voice, of a flat spectrum.

    Each band is divided by its power first, so that the colour of a noise makes no period.
    """
    size = round(2 * _FRAME_SECONDS * rate_hz)
    frames, window = _frames(wave, size), _window(size)
    power = np.square(frames).mean(axis=1)
    frames = frames[power >= 0.1 * np.quantile(power, 0.95)] * window
    spectrum = np.square(np.abs(np.fft.rfft(frames, 2 * size, axis=1)))
    flat, edges = np.zeros_like(spectrum), _bands(size, rate_hz)[:7]
    for low, high in pairwise(edges):
        band = spectrum[:, low:high]
        flat[:, low:high] = band / np.maximum(band.mean(axis=1, keepdims=True), 1e-30)
    of_window = np.fft.irfft(np.square(np.abs(np.fft.rfft(window, 2 * size))))
    correlation = np.fft.irfft(flat, axis=1)
    correlation = correlation[:, :size] / np.maximum(correlation[:, :1], 1e-30)
    correlation[:, : size // 2] /= of_window[: size // 2] / of_window[0]
    shortest, longest, of_hum = (int(rate_hz / hz) for hz in (*_PERIODS_HZ, _HUM_HZ))
    voice = correlation[:, shortest : longest + 1].max(axis=1)
    hum = correlation[:, longest + 1 : of_hum].max(axis=1)
    return float(np.median(np.where(hum > np.maximum(1.1 * voice, 0.6), 0.0, voice)))
