"""Audio files become float32 mono waves at one rate; a file that cannot be used is refused.

Every refusal is a `BadAudio` that names the file and the reason.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, overload

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from toolkit.data.batch import Unreadable
from toolkit.data.items import Item, Items

Wave = NDArray[np.float32]

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".sph")  # through libsndfile
AV_SUFFIXES = (".m4a", ".aac", ".mp4")  # through PyAV, the extra "m4a"
# Longer files are recordings to be segmented, not utterances. The value also bounds the memory.
MAX_SECONDS = 1_200.0
# The largest absolute value of a sample, where full scale is 1. 32-bit integers that were stored as
# floats reach it and are read; a larger value is not from a recording.
MAX_LEVEL = 2.0**31
# A wave whose peak is lower is silent: a 16-bit file that never leaves -1 to 1 quantisation steps
# has a peak of -90.3 dBFS.
SILENCE_DBFS = -90.0
_RATES_HZ = (1_000, 768_000)
# Samples x channels that are decoded of one file, 2 GiB of float32. This bounds the work.
MAX_VALUES = 2**29
_BLOCK_VALUES = 2**20  # values decoded at once: 4 MiB of float32, however many channels there are
_UNSTATED = 2**63 - 1  # libsndfile's number of frames when the header does not state it
# The share of the stated samples that a whole file gives: the delay and the padding of an encoder
# are a few thousandths of the file.
_WHOLE = 0.9
_SPEED_MARK = "#speed="
_SPEEDS = (0.5, 2.0)


class Sliceable(Protocol):
    """What crop() cuts from: a wave, or a Recording (recording.py), which decodes the slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Wave: ...


class BadAudio(Unreadable):
    """One audio file cannot be used.

    The message names the file, what is wrong, the value and what is allowed. Callers count such
    files and skip them or refuse the data.
    """


@overload
def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    decoded: Literal[True] = True,
) -> Wave: ...


@overload
def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    decoded: bool,
) -> Wave | Sliceable: ...


def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    decoded: bool = True,
) -> Wave | Sliceable:
    """Read one item as a mono wave at the wanted rate.

    Any rate and any number of channels can be read. Channels are averaged, and integers are scaled
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
        decoded: False leaves the decoding of a long WAV or FLAC file to crop(), which then decodes
            only what it cuts out (recording.py), to the same numbers. Damage of the file is found
            where a crop meets it.

    Returns:
        The wave, (samples,) float32; perhaps a Recording, which is sliced as a wave is, where
        `decoded` is False.

    Raises:
        BadAudio: The file cannot be decoded, is empty, is cut short, or is shorter than min_seconds
            or longer than max_seconds. It holds NaN or infinity. It is silent: its peak is below
            -90 dBFS after the channels are averaged. It is absurdly loud: its peak is above 2^31,
            where full scale is 1, which only files of floats can hold. Its header claims an absurd
            rate or size.
        ValueError: The speed in the id is no number within 0.5 to 2.
    """
    if not decoded:
        from modalities.speaker.recording import open_recording

        read_whole = partial(
            read,
            item,
            rate_hz=rate_hz,
            min_seconds=min_seconds,
            max_seconds=max_seconds,
            max_values=max_values,
        )
        recording = open_recording(
            item,
            read_whole,
            rate_hz=rate_hz,
            min_seconds=min_seconds,
            max_seconds=max_seconds,
            max_values=max_values,
        )
        if recording is not None:
            return recording
    name, speed = item.name, speed_of(item.id)
    decode = _decode_av if item.suffix in AV_SUFFIXES else _decode_soundfile
    resampled: list[Wave] = []
    to_rate: soxr.ResampleStream | None = None
    samples, values, bad, peak, file_hz = 0, 0, 0, 0.0, 0
    for raw, file_hz in decode(item, max_seconds, max_values):
        samples, values = samples + len(raw), values + raw.size
        bad += int(np.count_nonzero(~np.isfinite(raw)))
        block = mix(raw)
        # NumPy's maximum keeps NaN, unlike Python's max.
        peak = float(np.maximum(peak, np.abs(block).max(initial=0)))
        if file_hz * speed != rate_hz:
            # The stream of soxr gives the same bits as soxr.resample of the whole wave.
            to_rate = to_rate or soxr.ResampleStream(
                file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ"
            )
            block = to_rate.resample_chunk(block)
        resampled.append(block)
    _refuse_short(name, samples, file_hz, min_seconds)
    _refuse_not_finite(name, bad, values)
    _refuse_silence(name, peak)
    refuse_level(name, peak)
    if to_rate is not None:
        resampled.append(to_rate.resample_chunk(np.empty(0, np.float32), last=True))
    return resampled[0] if len(resampled) == 1 else np.concatenate(resampled)


def _refuse_short(name: str, samples: int, file_hz: int, min_seconds: float) -> None:
    """Raise BadAudio for a file of no samples, or of less than min_seconds."""
    if samples == 0:
        raise BadAudio(
            f"{name}: the audio is empty, 0 samples; at least {min_seconds} s are needed; "
            "remove the file"
        )
    if samples < min_seconds * file_hz:
        raise BadAudio(
            f"{name}: the audio is too short, {samples / file_hz:.3f} s; at least {min_seconds} s "
            "are needed; remove the file or lower min_seconds"
        )


def _refuse_not_finite(name: str, bad: int, values: int) -> None:
    """Raise BadAudio where any of the values is NaN or infinite."""
    if bad:
        raise BadAudio(
            f"{name}: {bad} of {values} samples are NaN or infinite; all must be finite; write the "
            "file again"
        )


def _refuse_silence(name: str, peak: float) -> None:
    """Raise BadAudio for a wave whose largest absolute value is below SILENCE_DBFS."""
    if peak < 10 ** (SILENCE_DBFS / 20):
        level = (
            f"its peak is {20 * np.log10(peak):.1f} dBFS" if peak > 0 else "all samples are zero"
        )
        raise BadAudio(
            f"{name}: the audio is silent, {level} after its channels are averaged; at least "
            f"{SILENCE_DBFS:.0f} dBFS is needed; remove the file"
        )


def mix(raw: Wave) -> Wave:
    """Average the channels of a wave: (samples, channels) -> (samples,)."""
    mixed: Wave = raw[:, 0] if raw.shape[1] == 1 else raw.mean(axis=1, dtype=np.float32)
    return np.ascontiguousarray(mixed)


def refuse_level(name: str, peak: float) -> None:
    """Raise BadAudio if the peak is one that no recording has.

    Args:
        name: The name of the item, for the message.
        peak: The largest absolute value of the wave. A network's numbers overflow at a few powers
            of a larger one.

    Raises:
        BadAudio: The peak is above MAX_LEVEL or NaN.
    """
    # Written so that it also refuses NaN, which the mean of the channels becomes by overflow.
    if not peak <= MAX_LEVEL:
        raise BadAudio(
            f"{name}: the level is absurd, its peak is {peak:.3g}; full scale is 1, and at most "
            f"{MAX_LEVEL:.3g} is read; write the file again or remove it"
        )


def resample(wave: Wave, from_hz: float, to_hz: float) -> Wave:
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
    resampled: Wave = soxr.resample(wave, from_hz, to_hz, quality="HQ")
    return resampled


def speed_of(id: str) -> float:
    """Return the speed that an id states by its ending "#speed=...", or 1 without such an ending.

    Args:
        id: The id of an item.

    Returns:
        The speed, 1 being the original.

    Raises:
        ValueError: The ending states anything but a number within 0.5 to 2.

    Example:
        >>> speed_of("a/1#speed=0.9"), speed_of("a/1")
        (0.9, 1.0)
    """
    _, mark, text = id.rpartition(_SPEED_MARK)
    if not mark:
        return 1.0
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    # Written so that it also refuses NaN.
    if not _SPEEDS[0] <= speed <= _SPEEDS[1]:
        raise ValueError(
            f"item {id!r}: the speed {text!r} is not a number within {_SPEEDS[0]} to {_SPEEDS[1]}; "
            f"write e.g. '{_SPEED_MARK}0.9'"
        )
    return speed


def speed_copies(items: Iterable[Item], speeds: Iterable[float] = (0.9, 1.1)) -> Items:
    """Return the items, followed by one copy of all of them for each speed.

    A copy has "#speed=..." appended to its id and to its label: a speaker at another speed is a new
    class, which counts like any other. Unlabelled items stay unlabelled.

    Args:
        items: The items to copy.
        speeds: The speeds of the copies, within 0.5 to 2. No speed may be repeated, and none may be
            1.

    Returns:
        len(items) x (1 + len(speeds)) items.

    Raises:
        ValueError: A speed is outside 0.5 to 2, repeated, or 1.

    Example:
        >>> items = [Item("a/1", Path("a/1.flac"), "a")]
        >>> [(item.id, item.label) for item in speed_copies(items, speeds=(0.9,))]
        [('a/1', 'a'), ('a/1#speed=0.9', 'a#speed=0.9')]
    """
    originals, factors = Items.of(items), list(speeds)
    if 1.0 in factors or len(set(factors)) != len(factors):
        raise ValueError(
            f"the speeds are {factors}; give each speed once, and leave out 1, because the "
            "originals are kept"
        )
    marks = [f"{_SPEED_MARK}{speed:g}" for speed in factors]
    for mark in marks:
        speed_of(mark)
    if not marks:
        return originals
    copies = (
        item._replace(id=item.id + mark, label=None if item.label is None else item.label + mark)
        for mark in marks
        for item in originals
    )
    return Items.of(chain(originals, copies))


def crop(wave: Wave | Sliceable, num_samples: int, rng: np.random.Generator) -> Wave:
    """Cut a stretch from a uniformly drawn start of a wave.

    A wave that is too short is repeated, end to beginning. Either case takes one draw.

    Args:
        wave: (samples,), at least one. Of a Recording, only the stretch is decoded.
        num_samples: The length of the result, at least 1.
        rng: The generator of the start.

    Returns:
        The stretch, (num_samples,).

    Raises:
        ValueError: num_samples is below 1, or the wave is empty.

    Example:
        >>> crop(np.arange(3, dtype=np.float32), 3, np.random.default_rng(0)).tolist()
        [0.0, 1.0, 2.0]
    """
    if num_samples < 1 or len(wave) < 1:
        raise ValueError(
            f"crop: {num_samples} samples are to be cut from a wave of {len(wave)}; both numbers "
            "must be 1 or more"
        )
    if len(wave) >= num_samples:
        start = int(rng.integers(len(wave) - num_samples + 1))
        return wave[start : start + num_samples].copy()
    start = int(rng.integers(len(wave)))
    return np.take(wave[:], np.arange(start, start + num_samples), mode="wrap")


class _Bytes(io.BytesIO):
    """Bytes in memory that stay at the beginning when a decoder seeks to before it.

    A damaged header sends decoders there. BytesIO would raise inside their C code, which prints a
    traceback.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return super().seek(max(0, offset + (0, self.tell(), self.getbuffer().nbytes)[whence]))


def source_of(item: Item) -> Path | _Bytes:
    """Return what the decoders open: the path of a file, or the bytes of a span.

    The decoders read a path faster by themselves.
    """
    # Path.is_file raises where a name is too long.
    if not os.path.isfile(item.path):
        raise BadAudio(f"{item.name}: no such file; check the list of items and its root folder")
    if item.span is None:
        return item.path
    try:
        with item.open() as file:
            return _Bytes(file.read())
    except (OSError, ValueError) as error:
        raise BadAudio(str(error)) from error


def _decode_soundfile(
    item: Item, max_seconds: float, max_values: int
) -> Iterator[tuple[Wave, int]]:
    """Yield blocks (samples, channels) float32 of a file, each with the rate of the file.

    Nothing is allocated of the size that a header states.
    """
    source, name = source_of(item), item.name
    try:
        with soundfile.SoundFile(source) as file:
            rate_hz, channels, frames = int(file.samplerate), int(file.channels), int(file.frames)
            # libsndfile cannot read such a file without losing its place.
            if frames == _UNSTATED:
                raise BadAudio(
                    f"{name}: its header does not state its length, as when it was written to a "
                    "pipe; the length is needed; write it again to a file"
                )
            _check_header(name, rate_hz, channels, frames, max_seconds, max_values)
            # soundfile seeks after each read, and an MP3 decoder loses its place by that. An MP3
            # has at most two channels at 48 kHz, so that max_seconds bounds the whole.
            block = frames if file.format == "MP3" else block_frames(channels)
            samples = 0
            while samples < frames:
                requested = min(block, frames - samples)
                raw: Wave = file.read(requested, dtype="float32", always_2d=True)
                samples += len(raw)
                yield raw, rate_hz
                if len(raw) < requested:
                    # The file ends before the length that its header states.
                    break
            check_whole(item, file.format, samples, frames, rate_hz)
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error.error_string if isinstance(error, soundfile.LibsndfileError) else error)
        if item.span is None and item.path.is_file() and not item.path.stat().st_size:
            reason = "the file is empty (0 bytes)"
        raise BadAudio(
            f"{name}: unreadable, {reason.rstrip('. ')}; {', '.join(SUFFIXES)} are "
            f"read (and {', '.join(AV_SUFFIXES)} with PyAV)"
        ) from error


def block_frames(channels: int) -> int:
    """Return how many samples of so many channels are decoded at once."""
    return max(1, _BLOCK_VALUES // channels)


def _decode_av(item: Item, max_seconds: float, max_values: int) -> Iterator[tuple[Wave, int]]:
    """Yield what _decode_soundfile yields, for AAC through PyAV.

    Decoding stops as soon as a bound is passed.
    """
    source, name = source_of(item), item.name
    try:
        import av
    except ImportError as error:
        raise BadAudio(
            f"{name}: {item.suffix} needs PyAV, which is not installed; run `pip install "
            "'likeness[m4a]'` or convert it to .flac"
        ) from error
    frames = 0
    try:
        with av.open(str(source) if isinstance(source, Path) else source, mode="r") as container:
            if not container.streams.audio:
                raise BadAudio(f"{name}: unreadable, it has no audio stream; one is needed")
            stream = container.streams.audio[0]
            rate_hz, channels = int(stream.rate or 0), int(stream.channels or 0)
            _check_header(name, rate_hz, channels, 0, max_seconds, max_values)
            to_planar = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate_hz)
            for frame in container.decode(stream):
                for planar in to_planar.resample(frame):
                    raw: Wave = np.asarray(planar.to_ndarray(), dtype=np.float32).T
                    frames += len(raw)
                    yield raw, rate_hz
                _check_header(name, rate_hz, channels, frames, max_seconds, max_values)
    except (av.FFmpegError, OSError) as error:
        raise BadAudio(
            f"{name}: unreadable, {error}; AAC in {', '.join(AV_SUFFIXES)} is read through PyAV"
        ) from error


def check_whole(item: Item, file_format: str, samples: int, frames: int, rate_hz: int) -> None:
    """Raise BadAudio for a file that gave fewer than 9 in 10 of the samples that its header states.

    Such a file is a download that was broken off.

    Args:
        item: The item, for the message.
        file_format: The format as libsndfile names it.
        samples: How many samples were decoded.
        frames: How many samples the header states.
        rate_hz: The rate of the file in Hz.

    Raises:
        BadAudio: The file is cut short. An MP3 is only refused if its first frame states its
            length.
    """
    if samples < _WHOLE * frames and (file_format != "MP3" or _states_length(item)):
        raise BadAudio(
            f"{item.name}: the file is cut short, {samples / rate_hz:.1f} s of the "
            f"{frames / rate_hz:.1f} s that its header states; fetch it again"
        )


def _states_length(item: Item) -> bool:
    """Return whether the first frame of an MP3 states its length.

    Without that libsndfile guesses the length from the first bit rate. Where the bit rate varies,
    the guess is wrong.
    """
    with item.open() as file:
        head = file.read(10)
        has_tag = head[:3] == b"ID3" and len(head) == 10
        # An ID3 tag states its size as four times seven bits.
        tag_size = sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:])))
        file.seek(10 + tag_size if has_tag else 0)
        frame = file.read(256)
    return any(mark in frame for mark in (b"Xing", b"Info", b"VBRI"))


def _check_header(
    name: str, rate_hz: int, channels: int, frames: int, max_seconds: float, max_values: int
) -> None:
    """Raise BadAudio for a header whose rate, duration or size is out of bounds."""
    if not _RATES_HZ[0] <= rate_hz <= _RATES_HZ[1]:
        raise BadAudio(
            f"{name}: the header states {rate_hz} Hz; {_RATES_HZ[0]} to {_RATES_HZ[1]} are "
            "allowed; repair or remove the file"
        )
    if frames < 0 or frames > max_seconds * rate_hz:
        raise BadAudio(
            f"{name}: the audio is too long, {frames / rate_hz:.1f} s; at most {max_seconds:g} s "
            "are read; cut it into utterances, raise max_seconds or, if it is a file of its own "
            "and not AAC, embed it with --chunk-seconds 60"
        )
    if frames * channels > max_values:
        raise BadAudio(
            f"{name}: the audio is too large, {frames} samples of {channels} channels; at most "
            f"{max_values} values are read; average its channels first"
        )
