"""One level for all recordings, for models to which it must not matter how loud a recording is."""

import numpy as np

from likeness.modalities.speaker.decoding import ROUNDING, Wave

_FRAME = 400  # samples whose power is taken together: 25 ms at 16 kHz
_ACTIVE = 0.01  # frames within 20 dB of the loud ones count


def levelled(wave: Wave, dbfs: float) -> Wave:
    """Cut digital silence out of a wave, and bring the rest to a level.

    Args:
        wave: (samples,), where full scale is 1.
        dbfs: As for at_level.

    Returns:
        What is left, perhaps nothing.

    Example:
        >>> levelled(np.zeros(800, np.float32), -26.0).size
        0
    """
    return at_level(cut_digital_silence(wave), dbfs)


def cut_digital_silence(wave: Wave) -> Wave:
    """Cut the frames out that hold less than the rounding to 16 bits, as editors put them in.

    Args:
        wave: (samples,), where full scale is 1.

    Returns:
        What is left, perhaps nothing. The last samples, which fill no frame, stay.

    Example:
        >>> noise = np.random.default_rng(0).normal(0, 0.1, size=12_000).astype(np.float32)
        >>> len(cut_digital_silence(np.concatenate([noise, np.zeros(4_000, np.float32)])))
        12000
    """
    whole = len(wave) // _FRAME * _FRAME
    frames = wave[:whole].reshape(-1, _FRAME)
    kept = frames.var(axis=1) >= ROUNDING
    if kept.all():
        return wave
    return np.concatenate([frames[kept].reshape(-1), wave[whole:]])


def at_level(wave: Wave, dbfs: float) -> Wave:
    """Scale a wave so that its speech has a level.

    A twentieth of the frames is louder than the 95 % quantile of their powers. The level is the
    median power of the frames that are at most 20 dB below this quantile, or above it. So neither
    pauses nor a click change it.

    Args:
        wave: (samples,), where full scale is 1.
        dbfs: The level of the result, in dB of full scale.

    Returns:
        (samples,), which may exceed full scale. A wave without any power stays as it is.

    Example:
        >>> quiet = 0.001 * np.random.default_rng(0).normal(size=16_000).astype(np.float32)
        >>> round(20 * np.log10(np.std(at_level(quiet, -26.0))))
        -26
    """
    if not len(wave):
        return wave
    size = min(_FRAME, len(wave))
    frames = wave[: len(wave) // size * size].reshape(-1, size).astype(np.float64)
    power = np.square(frames).mean(axis=1)
    active = power[power >= _ACTIVE * np.quantile(power, 0.95)]
    level = float(np.median(active))
    if not level > 0:
        return wave
    scaled: Wave = (wave * np.float32(10 ** (dbfs / 20) / level**0.5)).astype(np.float32)
    return scaled
