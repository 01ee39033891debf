"""Audio files are decoded block by block; a file that cannot be decoded is refused.

Every refusal is a `BadAudio` that names the file and the reason.
"""

import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.items import containers
from likeness.eval.items.items import Item
from likeness.eval.items.remote import is_url
from likeness.eval.items.suffixes import AV_SOUNDS, SOUNDS, suffix_of
from likeness.eval.types import counted
from likeness.modalities.speaker import _extent
from likeness.toolkit.data.reading import Unreadable

Wave = NDArray[np.float32]
# Longer files are recordings to be segmented, not utterances. The value also bounds the memory.
MAX_SECONDS = 1_200.0
# The largest absolute value of a sample, where full scale is 1. 32-bit integers that were stored as
# floats reach it and are read; a larger value is not from a recording.
MAX_LEVEL = 2.0**31
# A wave whose peak is lower is silent: a 16-bit file that never leaves -1 to 1 quantisation steps
# has a peak of -90.3 dBFS.
SILENCE_DBFS = -90.0
ROUNDING = 2.0**-30 / 12  # the power of rounding samples to 16 bits, where full scale is 1
RATES_HZ = (1_000, 768_000)
# Samples x channels that are decoded of one file, 2 GiB of float32. This bounds the work.
MAX_VALUES = 2**29
_LONGEST_VALUES = 2**34  # samples x channels of a recording of which a stretch is read
_BLOCK_VALUES = 2**20  # values decoded at once: 4 MiB of float32, however many channels there are
_UNSTATED = 2**63 - 1  # libsndfile's number of frames when the header does not state it
# The longest recording of which a stretch is read, a day; what lies before it may be decoded too.
_LONGEST_SECONDS = 86_400.0
# A stretch may reach so far beyond the end of its recording, as for Kaldi's extract-segments.
_OVERSHOOT_SECONDS = 0.5
_START = 64  # bytes that tell what a file holds
SPEED_MARK = "#speed="
_SPEEDS = (0.5, 2.0)


class BadAudio(Unreadable):
    """One audio file cannot be used.

    The message names the file, what is wrong, the value and what is allowed. Callers count such
    files and skip them or refuse the data.
    """


class CutShort(BadAudio):
    """A file ends long before its header says."""


def speed_of(id: str) -> float:
    """Return the speed that an id states by its ending "#speed=...", or 1 without such an ending.

    Args:
        id: The id of an item.

    Returns:
        The speed, 1 being the original.

    Raises:
        LikenessError: The ending states anything but a number within 0.5 to 2.

    Example:
        >>> speed_of("a/1#speed=0.9"), speed_of("a/1")
        (0.9, 1.0)
    """
    _, mark, text = id.rpartition(SPEED_MARK)
    is_number = re.fullmatch(r"\d*\.?\d+", text)
    if mark and not (is_number and _SPEEDS[0] <= float(text) <= _SPEEDS[1]):
        raise LikenessError(
            f"item {id!r}: the speed {text!r} is not a number within {_SPEEDS[0]} to {_SPEEDS[1]}; "
            f"write e.g. '{SPEED_MARK}0.9'"
        )
    return float(text) if mark else 1.0


def frames_of(stretch: tuple[float, float] | None, rate_hz: int, frames: int) -> tuple[int, int]:
    """Return the first sample of a stretch of a recording, and the one after its last.

    Args:
        stretch: Start and end in seconds; None for the whole recording.
        rate_hz: The rate of the recording in Hz.
        frames: The number of samples of the recording.

    Returns:
        Both numbers, of which the first is smaller or the stretch is empty.

    Raises:
        BadAudio: The stretch ends over half a second after the recording.

    Example:
        >>> frames_of((0.5, 2.0), 1000, 1800)
        (500, 1800)
    """
    if stretch is None:
        return 0, frames
    start, end = stretch
    seconds = frames / rate_hz
    if start >= seconds or (math.isfinite(end) and end > seconds + _OVERSHOOT_SECONDS):
        raise BadAudio(
            f"the recording ends at {seconds:.3f} s; start and end are seconds within "
            "it: correct them"
        )
    begin = round(start * rate_hz)
    return begin, max(begin, frames if end >= seconds else round(end * rate_hz))


class _Bytes(io.BytesIO):
    """Bytes in memory that stay at the beginning when a decoder seeks to before it.

    A damaged header sends decoders there. BytesIO would raise inside their C code, which prints a
    traceback.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return super().seek(max(0, offset + (0, self.tell(), self.getbuffer().nbytes)[whence]))


Source = Path | _Bytes  # what decoders open


def source_of(item: Item) -> tuple[Source, str]:
    """Return what the decoders open, and the suffix that fits what it holds.

    Returns:
        The path of a file, which the decoders read faster by themselves, or the bytes of a span or
        a URL. The suffix is the item's own where the content tells none, and that of a URL.
    """
    source: Source = item.path
    start = b""
    # Path.is_file raises where a name is too long.
    if os.path.isfile(item.path) and item.span is None:
        with suppress(OSError), item.path.open("rb") as file:
            start = file.read(_START)
    else:
        is_absent = os.path.isdir(item.path) or not os.path.exists(item.path)
        if is_absent and not is_url(item.path):
            problem = f"{item.name}: no such file"
            raise BadAudio(f"{problem}; check the list of items and its root folder")
        try:
            with item.open() as file:
                source = _Bytes(file.read())
        except (OSError, ValueError) as error:
            raise BadAudio(str(error)) from error
        start = b"" if is_url(item.path) else source.getvalue()[:_START]
    if start.startswith(b"ID3") and item.suffix == ".aac":  # a tag that MP3 has as well
        return source, ".aac"
    return source, suffix_of(start) or item.suffix


def kind_of(item: Item) -> str:
    """Return the suffix that fits what a file holds, as `source_of`, and read no more than that."""
    if is_url(item.path):
        return item.suffix
    span = item.span and (item.span[0], min(_START, item.span[1]))
    with suppress(BadAudio):
        return source_of(item._replace(span=span))[1]
    return item.suffix


@contextmanager
def open_audio(item: Item, source: Source) -> Iterator[soundfile.SoundFile]:
    """Open a file that libsndfile reads; what fails in the block is a BadAudio that names it.

    Args:
        item: Its item.
        source: Its path or its bytes, as of `source_of`.

    Raises:
        BadAudio: The file cannot be decoded, its header does not state its length or states another
            one, or it has several streams.
    """
    try:
        with ExitStack() as opened:
            bare: Any = opened.enter_context(
                source.open("rb") if isinstance(source, Path) else io.BytesIO(source.getvalue())
            )
            file = opened.enter_context(soundfile.SoundFile(source))
            if file.format not in _extent.FORMATS:
                raise BadAudio(f"its format is {file.format}; convert it to .wav or .flac")
            if file.format in ("WAV", "WAVEX") and not file.frames:
                if content := _extent.replace_zero_size(bare):
                    file = opened.enter_context(soundfile.SoundFile(_Bytes(content)))
            else:
                _check_extent(file, bare)
            yield file
    except BadAudio as error:
        raise type(error)(_named(item, str(error))) from None
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error.error_string if isinstance(error, soundfile.LibsndfileError) else error)
        if isinstance(source, Path) and not os.path.getsize(source):
            reason = "the file is empty (0 bytes)"
        raise BadAudio(
            f"{item.name}: unreadable, {reason.rstrip('. ')}; {', '.join(SOUNDS)} are "
            f"read (and {', '.join(AV_SOUNDS)} with PyAV)"
        ) from error


def _check_extent(file: soundfile.SoundFile, bare: BinaryIO) -> None:
    """Raise BadAudio for a file that does not hold what its header states."""
    frames = int(file.frames)
    # libsndfile cannot read such a file without losing its place.
    if frames == _UNSTATED:
        raise BadAudio(
            "its header does not state its length, as when it was written to a pipe; write it "
            "again to a file"
        )
    in_header = _extent.frames_of_header(file, bare)
    check_whole(frames, in_header, file.samplerate)
    if frames > in_header:
        raise BadAudio(f"it has {frames} samples, its header states {in_header}; write it again")
    if _extent.is_joined(file.format, bare):
        raise BadAudio(
            "it has several streams, as of files joined end to end, of which one would be read; "
            "write them as one, as ffmpeg does"
        )


def decode(item: Item, max_seconds: float, max_values: int) -> Iterator[tuple[Wave, int, int]]:
    """Yield the blocks of a file at its own rate, of an item that is a stretch only that.

    Nothing is allocated of the size that a header states.

    Args:
        item: The file, or the span of a tar shard, to decode.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels that are decoded.

    Yields:
        (samples,) float32 of the item's channel or of the average of all, the rate of the file in
        Hz, and the samples of all blocks; 0 where they are not known.

    Raises:
        BadAudio: The file cannot be decoded, is cut short, is beyond these bounds, or lacks the
            channel.
    """
    source, kind = source_of(item)
    if kind in AV_SOUNDS:
        yield from _decode_av(item, source, kind, max_seconds, max_values)
        return
    with open_audio(item, source) as file:
        rate_hz, channels = int(file.samplerate), int(file.channels)
        begin, frames = checked_frames(
            item.stretch, rate_hz, channels, int(file.frames), max_seconds, max_values
        )
        # soundfile seeks after each read, and an MP3 decoder loses its place by that, as it does
        # where it seeks to a beginning. So that of a usual length is decoded at once.
        is_mp3 = file.format == "MP3"
        if is_mp3 and begin:
            check_header(rate_hz, channels, begin, _LONGEST_SECONDS, max_values)
            whole: Wave = file.read(begin + frames, dtype="float32", always_2d=True)
            yield select_channel(whole[begin:], item.channel), rate_hz, frames
            return
        if begin:
            file.seek(begin)
        at_once = is_mp3 and frames <= MAX_SECONDS * rate_hz
        block = frames if at_once else max(1, _BLOCK_VALUES // channels)
        samples = 0
        while samples < frames:
            raw: Wave = file.read(min(block, frames - samples), dtype="float32", always_2d=True)
            if not len(raw):  # the file ends before the length that its header states
                with item.open() as bare:
                    if not is_mp3 or _extent.states_length(bare):
                        check_whole(samples, frames, rate_hz)
                break
            samples += len(raw)
            yield select_channel(raw, item.channel), rate_hz, frames


def _named(item: Item, reason: str) -> str:
    """A reason that names the item once."""
    return reason if reason.startswith(f"{item.name}: ") else f"{item.name}: {reason}"


def select_channel(raw: Wave, channel: int | None) -> Wave:
    """Return one channel of a block, or the average of all.

    Args:
        raw: (samples, channels).
        channel: As of an Item.

    Returns:
        (samples,).

    Raises:
        BadAudio: The recording has no such channel.
    """
    num = raw.shape[1]
    if channel is None and num > 1:
        return np.asarray(raw.mean(axis=1, dtype=np.float32))
    number = channel or min(num, 1)  # 0 is the only channel of a recording
    if not (1 <= number <= num and (channel != 0 or num == 1)):
        raise BadAudio(
            f"the recording has {counted(num, 'channel')}, counted from 1; correct the channel in "
            "the list, or leave it empty for the average of all"
        )
    return np.ascontiguousarray(raw[:, number - 1])


def checked_frames(
    stretch: tuple[float, float] | None,
    rate_hz: int,
    channels: int,
    frames: int,
    max_seconds: float,
    max_values: int,
) -> tuple[int, int]:
    """Return the first sample of a stretch of a recording, and how many samples it has.

    Args:
        stretch: Start and end in seconds; None for the whole recording.
        rate_hz: The rate of the recording in Hz.
        channels: Its channels.
        frames: Its samples.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels that are accepted.

    Raises:
        BadAudio: The recording or the stretch is beyond these bounds, or the stretch ends after it.
    """
    begin, stop = 0, frames
    if stretch is not None:
        check_header(rate_hz, channels, frames, _LONGEST_SECONDS, _LONGEST_VALUES)
        begin, stop = frames_of(stretch, max(1, rate_hz), frames)
    check_header(rate_hz, channels, stop - begin, max_seconds, max_values)
    return begin, stop - begin


@contextmanager
def opened_av(item: Item, source: Source, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open a file that PyAV reads; give its container and its stream.

    What fails in the block is a BadAudio that names the file.

    Args:
        item: Its item.
        source: Its path or its bytes, as of `source_of`.
        kind: The suffix that fits them.

    Raises:
        BadAudio: The file cannot be decoded, or PyAV is not installed.
    """
    try:
        with containers.opened(source, kind) as opened:
            yield opened
    except LikenessError as error:
        bad_audio = type(error) if isinstance(error, BadAudio) else BadAudio
        raise bad_audio(_named(item, str(error))) from error.__cause__


def _decode_av(
    item: Item, source: Source, kind: str, max_seconds: float, max_values: int
) -> Iterator[tuple[Wave, int, int]]:
    """Yield what `decode` yields through PyAV; decoding stops as soon as a bound is passed."""
    # Where the recording ends is known when all of it is decoded.
    bounds = (
        (max_seconds, max_values) if item.stretch is None else (_LONGEST_SECONDS, _LONGEST_VALUES)
    )
    frames = 0
    with opened_av(item, source, kind) as (container, stream):
        import av

        rate_hz, channels = int(stream.rate or 0), int(stream.channels or 0)
        check_header(rate_hz, channels, 0, *bounds)
        # Times may be beyond all numbers of samples.
        begin, stop = (
            round(min(time * rate_hz, _UNSTATED)) for time in item.stretch or (0.0, math.inf)
        )
        to_planar = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate_hz)
        for frame in container.decode(stream):
            # The last frame of a file is longer than what the file states of it. Where it states
            # milliseconds, as Matroska does, FFmpeg cuts that frame itself.
            tick = (frame.time_base or 0) * rate_hz  # in samples
            length = round((frame.duration or 0) * tick) or None if tick <= 1 else None
            for planar in to_planar.resample(frame):
                raw: Wave = np.asarray(planar.to_ndarray(), dtype=np.float32).T[:length]
                inside = raw[max(0, begin - frames) : max(0, stop - frames)]
                frames += len(raw)
                if len(inside):
                    yield select_channel(inside, item.channel), rate_hz, 0
            check_header(rate_hz, channels, frames, *bounds)
            inner = max(0, min(frames, stop) - begin)
            check_header(rate_hz, channels, inner, max_seconds, max_values)
            if frames >= stop:
                break
        else:
            # ADTS states no duration, and a film that of its pictures.
            if container.format.name != "aac" and len(container.streams) == 1:
                seconds = (container.duration or 0) / containers.SECOND
                check_whole(frames, round(seconds * rate_hz), rate_hz)
        frames_of(item.stretch, rate_hz, frames)


def check_whole(samples: int, frames: int, rate_hz: int) -> None:
    """Raise CutShort for a file with fewer than 9 in 10 of the samples that its header states.

    Such a file is a download that was broken off.

    Args:
        samples: How many samples there are.
        frames: How many samples the header states.
        rate_hz: The rate of the file in Hz.

    Raises:
        CutShort: The file is cut short.
    """
    if samples < _extent.WHOLE * frames:
        raise CutShort(
            f"the file is cut short, {samples / rate_hz:.1f} s of the {frames / rate_hz:.1f} s "
            "that its header states; fetch it again"
        )


def check_header(
    rate_hz: int, channels: int, frames: int, max_seconds: float, max_values: int
) -> None:
    """Raise BadAudio for a header whose rate, duration or size is out of bounds.

    Args:
        rate_hz: The rate in Hz that the header states.
        channels: The number of channels that it states.
        frames: The number of samples that are to be read.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels that are decoded.

    Raises:
        BadAudio: One of them is out of bounds.
    """
    if (
        not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]
        or not 0 <= frames <= max_seconds * rate_hz
        or frames * channels > max_values
    ):
        raise BadAudio(
            f"the audio is too long, {frames / max(1, rate_hz):.1f} s of {channels} channels at "
            f"{rate_hz} Hz, or too large; at most {max_seconds:g} s and {max_values} values at "
            f"{RATES_HZ[0]} to {RATES_HZ[1]} Hz are read; cut it into utterances "
            "or, if it is a file of its own without PyAV, embed it by `embed --chunk-seconds 60`"
        )
