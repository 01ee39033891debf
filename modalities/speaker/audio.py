"""Audio files become float32 mono waves at one rate; a file that cannot be used is refused.

Every refusal is a `BadAudio` that names the file and the reason.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import numpy as np
import soxr

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item, Items
from likeness.eval.types import check_choice
from likeness.modalities.speaker import decoding
from likeness.modalities.speaker.bandwidth import is_narrow, narrow_audio
from likeness.modalities.speaker.content import lack_of_voice
from likeness.toolkit.data.reading import refuse_empty

SpeedItems = Literal["all", "one"]

_FRAME = 400  # samples whose power is taken together: 25 ms at 16 kHz
_ACTIVE = 0.01  # frames within 20 dB of the loud ones count


def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = decoding.MAX_SECONDS,
    max_values: int = decoding.MAX_VALUES,
    needs_hz: float = 0.0,
    level_dbfs: float | None = None,
) -> decoding.Wave:
    """Read one item as a mono wave at the wanted rate.

    Any rate and any number of channels can be read. Channels are averaged, unless the item is one
    of them, and integers are scaled
    to [-1, 1). The file is decoded, mixed and resampled block by block: the memory is the result
    and a few MiB, whatever the number of channels and the rate of the file.

    An id that ends in "#speed=0.9" is read at that speed, as sox changes it: the duration is
    divided by the speed, and pitch and formants are multiplied by it.

    Args:
        item: The file, or the span of a tar shard, to read.
        rate_hz: The rate of the result in Hz.
        min_seconds: The shortest duration that is accepted, before the change of speed.
        max_seconds: The longest duration that is accepted, before the change of speed.
        max_values: The most samples x channels that are decoded, which bounds the work.
        needs_hz: A recording that has nothing above this frequency is refused, such as one of a
            telephone (bandwidth.py); 0 refuses none.
        level_dbfs: The level of speech that every recording is brought to, after digital silence
            was cut out; None leaves both as they are.

    Returns:
        The wave, (samples,) float32.

    Raises:
        BadAudio: The file cannot be decoded, is empty, is cut short, or is shorter than min_seconds
            or longer than max_seconds. It holds NaN or infinity. It is absurdly loud: its peak is
            above 2^31, where full scale is 1, which only files of floats can hold. Its header
            claims an absurd rate or size. It has nothing above needs_hz.
        Empty: It certainly holds no voice (content.py), after the channels are averaged. Where it
            may hold none, there is a warning.
        LikenessError: The speed in the id is no number within 0.5 to 2.
    """
    least = _least(min_seconds)
    wave = decoded(
        item,
        rate_hz=rate_hz,
        min_seconds=min_seconds,
        max_seconds=max_seconds,
        max_values=max_values,
    )
    if lack := lack_of_voice(wave, rate_hz):
        refuse_empty(item.name, lack)
    if needs_hz and is_narrow(wave, rate_hz, needs_hz):
        raise narrow_audio(item, needs_hz)
    if level_dbfs is not None:
        wave = at_level(cut_digital_silence(wave), level_dbfs)
        if len(wave) / rate_hz < least:
            raise _too_short(item, len(wave) / rate_hz, min_seconds)
    return wave


def decoded(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = decoding.MAX_SECONDS,
    max_values: int = decoding.MAX_VALUES,
) -> decoding.Wave:
    """Decode one item as `read` does, whatever it holds.

    Raises:
        BadAudio: As `read`, but for what the recording holds.
        LikenessError: As `read`.
    """
    if not decoding.RATES_HZ[0] <= rate_hz <= decoding.RATES_HZ[1]:
        raise LikenessError(
            f"rate_hz {rate_hz}: recordings are read at {decoding.RATES_HZ[0]:,} to "
            f"{decoding.RATES_HZ[1]:,} Hz"
        )
    whole = mono_blocks(item, rate_hz, max_seconds=max_seconds, max_values=max_values)
    blocks = [block for block, _ in whole]
    wave = blocks[0] if len(blocks) == 1 else np.concatenate([np.empty(0, np.float32), *blocks])
    seconds = len(wave) / rate_hz * decoding.speed_of(item.id)
    if seconds < _least(min_seconds):
        raise _too_short(item, seconds, min_seconds)
    return wave


def _least(min_seconds: float) -> float:
    """The shortest duration that is accepted, as a resampler rounds the number of samples."""
    return max(min_seconds - 1e-4, 1e-9)


def mono_blocks(
    item: Item, rate_hz: int, *, max_seconds: float, max_values: int
) -> Iterator[tuple[decoding.Wave, float]]:
    """Yield the blocks of an item at a rate, mixed and at its speed, each with the whole's length.

    Args:
        item: The item.
        rate_hz: The rate in Hz.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels that are decoded.

    Yields:
        (samples,) float32, and the number of samples of all blocks together, about.

    Raises:
        BadAudio: The file cannot be decoded, or holds NaN, infinity or levels that no recording
            has. A network's numbers overflow at a few powers of these.
    """
    speed, length = decoding.speed_of(item.id), 0.0
    to_rate: soxr.ResampleStream | None = None
    for block, file_hz, frames in decoding.decode(item, max_seconds, max_values):
        peak = np.abs(block).max(initial=0)
        if not peak <= decoding.MAX_LEVEL:  # NaN is not either
            raise decoding.BadAudio(
                f"{item.name}: its samples are NaN or infinite, or their level is absurd ({peak:g}"
                f", where full scale is 1 and at most {decoding.MAX_LEVEL:.3g} is read); write the "
                "file again or remove it"
            )
        length = frames / file_hz / speed * rate_hz
        if file_hz * speed != rate_hz:
            # The stream of soxr gives the same bits as soxr.resample of the whole wave.
            to_rate = to_rate or soxr.ResampleStream(
                file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ"
            )
            block = to_rate.resample_chunk(block)
        yield block, length
    if to_rate is not None:
        yield to_rate.resample_chunk(np.empty(0, np.float32), last=True), length


def _too_short(item: Item, seconds: float, min_seconds: float) -> decoding.BadAudio:
    """The error of a wave without samples, or of less than min_seconds."""
    return decoding.BadAudio(
        f"{item.name}: the audio is too short, {seconds:.3f} s; at least {min_seconds} s are "
        "needed; give a longer recording, or remove this one"
    )


def resample(wave: decoding.Wave, from_hz: float, to_hz: float) -> decoding.Wave:
    """Resample a wave with the high-quality filter of soxr.

    Args:
        wave: (samples,) at from_hz.
        from_hz: The rate of the wave in Hz. The rates need not be integers, which is how the speed
            of a recording is changed.
        to_hz: The rate of the result in Hz.

    Returns:
        About samples x to_hz / from_hz samples.
    """
    if from_hz == to_hz:
        return wave
    resampled: decoding.Wave = soxr.resample(wave, from_hz, to_hz, quality="HQ")
    return resampled


def cut_digital_silence(wave: decoding.Wave) -> decoding.Wave:
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
    kept = frames.var(axis=1) >= decoding.ROUNDING
    if kept.all():
        return wave
    return np.concatenate([frames[kept].reshape(-1), wave[whole:]])


def at_level(wave: decoding.Wave, dbfs: float) -> decoding.Wave:
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
    power = np.square(frames, out=frames).mean(axis=1)
    active = power[power >= _ACTIVE * np.quantile(power, 0.95)]
    level = float(np.median(active))
    if not level > 0:
        return wave
    scaled: decoding.Wave = (wave * np.float32(10 ** (dbfs / 20) / level**0.5)).astype(np.float32)
    return scaled


def speed_copies(
    items: Iterable[Item],
    speeds: Iterable[float] = (0.9, 1.1),
    *,
    speed_items: SpeedItems = "all",
) -> Items:
    """Return the items, followed by copies of them for each speed.

    A copy has "#speed=..." appended to its id and to its label: a speaker at another speed is a new
    class, which counts like any other. Unlabelled items stay unlabelled.

    Args:
        items: The items to copy.
        speeds: The speeds of the copies, within 0.5 to 2. No speed may be repeated, and none may be
            1.
        speed_items: "all" copies every utterance. "one" copies the first one of each speaker. That
            keeps the classes, and so the class proxies of a run to fine-tune from, while sped-up
            speech is a small part of the draws: the large-margin stage.

    Returns:
        The items and their copies.

    Raises:
        LikenessError: A speed is outside 0.5 to 2, repeated, or 1.

    Example:
        >>> from pathlib import Path
        >>> items = [Item("a/1", Path("a/1.flac"), "a")]
        >>> [(item.id, item.label) for item in speed_copies(items, speeds=(0.9,))]
        [('a/1', 'a'), ('a/1#speed=0.9', 'a#speed=0.9')]
    """
    check_choice("speed_items", speed_items, get_args(SpeedItems))
    originals, factors = Items.of(items), list(speeds)
    if 1.0 in factors or len(set(factors)) != len(factors):
        raise LikenessError(
            f"the speeds are {factors}; give each speed once, and leave out 1, because the "
            "originals are kept"
        )
    marks = [f"{decoding.SPEED_MARK}{speed:g}" for speed in factors]
    for mark in marks:
        decoding.speed_of(mark)
    if not marks:
        return originals
    copied = originals
    if speed_items == "one":
        firsts = np.unique(originals.numbers, return_index=True)[1]
        copied = originals.take(np.sort(firsts))
    return Items.joined([originals, *map(copied.marked, marks)])


def crop(wave: decoding.Wave, num_samples: int, rng: np.random.Generator) -> decoding.Wave:
    """Cut a stretch from a uniformly drawn start of a wave.

    A wave that is too short is repeated, end to beginning. Either case takes one draw.

    Args:
        wave: (samples,), at least one.
        num_samples: The length of the result, at least 1.
        rng: The generator of the start.

    Returns:
        The stretch, (num_samples,).

    Raises:
        LikenessError: num_samples is below 1, or the wave is empty.

    Example:
        >>> crop(np.arange(3, dtype=np.float32), 3, np.random.default_rng(0)).tolist()
        [0.0, 1.0, 2.0]
    """
    if num_samples < 1 or len(wave) < 1:
        raise LikenessError(
            f"crop: {num_samples} samples are to be cut from a wave of {len(wave)}; both numbers "
            "must be 1 or more"
        )
    if len(wave) >= num_samples:
        start = int(rng.integers(len(wave) - num_samples + 1))
        return wave[start : start + num_samples].copy()
    start = int(rng.integers(len(wave)))
    return np.take(wave, np.arange(start, start + num_samples), mode="wrap")
