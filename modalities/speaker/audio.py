"""Audio files to float32 mono waves at one rate; what cannot be used is refused with its reason."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from toolkit.data.batch import Item

Wave = NDArray[np.float32]

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".sph")  # through libsndfile
AV_SUFFIXES = (".m4a", ".aac", ".mp4")  # through PyAV, the extra "m4a"
MAX_SECONDS = (
    1_200.0  # longer files are recordings to be segmented, not utterances; also the bound on memory
)
# of a sample, full scale being 1: 32-bit integers stored as floats are read, what no recording can
# hold is not
MAX_LEVEL = 2.0**31
SILENCE_DBFS = (
    -90.0
)  # peak; a 16-bit file that never leaves -1..1 quantisation steps (-90.3 dBFS) is silent
_RATES_HZ = (1_000, 768_000)
MAX_VALUES = (
    2**29
)  # samples x channels that are decoded of one file: the bound on work, 2 GiB of float32
_BLOCK_VALUES = 2**20  # decoded at once: 4 MiB of float32, however many channels there are
_UNSTATED = 2**63 - 1  # libsndfile's number of frames when the header leaves it open
_WHOLE = 0.9  # of the stated samples; an encoder's delay and padding are a few thousandths
_SPEED_MARK = "#speed="
_SPEEDS = (0.5, 2.0)


class BadAudio(ValueError):
    """One file cannot be used.

    The message names the file, what is wrong, the value and what is allowed; callers count such
    files and skip or refuse.
    """


def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
) -> Wave:
    """item -> (samples,) float32 mono at rate_hz, from any rate and number of channels; channels
    are averaged, integers scaled to [-1, 1).

    The file is decoded, mixed and resampled block by block: memory is the result and a few MiB,
    whatever the number of channels and the file's rate. max_values bounds the work, in samples x
    channels that are decoded.

    An id that ends in "#speed=0.9" is read at that speed, as sox's: the duration is divided by it,
    pitch and formants are multiplied. Raises BadAudio for a file that cannot be decoded, is empty,
    cut short, shorter than min_seconds or longer than max_seconds (before the change of speed),
    holds NaN or infinity, is silent (peak below -90 dBFS after the channels are averaged) or
    absurdly loud (peak above 2^31, where full scale is 1, which only files of floats can hold), or
    whose header claims an absurd rate or size; ValueError for a speed that is no number within 0.5
    to 2.
    """
    name, speed = item.name, speed_of(item.id)
    decode = _decode_av if item.suffix in AV_SUFFIXES else _decode_soundfile
    resampled: list[Wave] = []
    to_rate: soxr.ResampleStream | None = None
    samples, values, bad, peak, file_hz = 0, 0, 0, 0.0, 0
    for raw, file_hz in decode(item, max_seconds, max_values):
        samples, values = samples + len(raw), values + raw.size
        bad += int(np.count_nonzero(~np.isfinite(raw)))
        block = mix(raw)
        peak = float(
            np.maximum(peak, np.abs(block).max(initial=0))
        )  # keeps NaN, unlike Python's max
        if file_hz * speed != rate_hz:
            # soxr's stream gives the same bits as soxr.resample of the whole.
            to_rate = to_rate or soxr.ResampleStream(
                file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ"
            )
            block = to_rate.resample_chunk(block)
        resampled.append(block)
    if samples == 0:
        raise BadAudio(
            f"{name}: empty, 0 samples; at least {min_seconds} s are needed; remove the file"
        )
    if samples < min_seconds * file_hz:
        raise BadAudio(
            f"{name}: too short, {samples / file_hz:.3f} s; at least {min_seconds} s are needed; "
            "remove the file or lower min_seconds"
        )
    if bad:
        raise BadAudio(
            f"{name}: {bad} of {values} samples are NaN or infinite; all must be finite; write the "
            "file again"
        )
    if peak < 10 ** (SILENCE_DBFS / 20):
        level = (
            f"its peak is {20 * np.log10(peak):.1f} dBFS" if peak > 0 else "all samples are zero"
        )
        raise BadAudio(
            f"{name}: silent, {level} (channels averaged); at least {SILENCE_DBFS:.0f} dBFS is "
            "needed; remove the file"
        )
    refuse_level(name, peak)
    if to_rate is not None:
        resampled.append(to_rate.resample_chunk(np.empty(0, np.float32), last=True))
    return resampled[0] if len(resampled) == 1 else np.concatenate(resampled)


def mix(raw: Wave) -> Wave:
    """(samples, channels) -> (samples,): the mean of the channels."""
    mixed: Wave = raw[:, 0] if raw.shape[1] == 1 else raw.mean(axis=1, dtype=np.float32)
    return np.ascontiguousarray(mixed)


def refuse_level(name: str, peak: float) -> None:
    """BadAudio for a peak that no recording has: a few of its powers, and a network's numbers
    overflow.
    """
    if not peak <= MAX_LEVEL:  # also refuses NaN, where the mean of the channels overflowed
        raise BadAudio(
            f"{name}: the level is absurd, peak {peak:.3g}; full scale is 1, and at most "
            f"{MAX_LEVEL:.3g} is read; write the file again or remove it"
        )


def resample(wave: Wave, from_hz: float, to_hz: float) -> Wave:
    """(samples,) -> (about samples x to_hz / from_hz,) by soxr's high-quality filter.

    The rates need not be integers, which is how the speed is changed.
    """
    if from_hz == to_hz:
        return wave
    resampled: Wave = soxr.resample(wave, from_hz, to_hz, quality="HQ")
    return resampled


def speed_of(id: str) -> float:
    """The speed that an id's ending "#speed=..." states; 1 without one.

    ValueError for anything but a number within 0.5 to 2.
    """
    _, mark, text = id.rpartition(_SPEED_MARK)
    if not mark:
        return 1.0
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not _SPEEDS[0] <= speed <= _SPEEDS[1]:  # also refuses NaN
        raise ValueError(
            f"item {id!r}: the speed {text!r} is not a number within {_SPEEDS[0]} to {_SPEEDS[1]}; "
            f"write e.g. '{_SPEED_MARK}0.9'"
        )
    return speed


def speed_copies(items: Iterable[Item], speeds: Iterable[float] = (0.9, 1.1)) -> list[Item]:
    """The items, then one copy of all for each speed, "#speed=..." appended to id and label: a
    speaker at another speed is a new class, counted like any other.

    Unlabelled items stay so. ValueError for speeds outside 0.5 to 2, repeated or 1.

    >>> items = [Item("a/1", Path("a/1.flac"), "a")]
    >>> [(one.id, one.label) for one in speed_copies(items, speeds=(0.9,))]
    [('a/1', 'a'), ('a/1#speed=0.9', 'a#speed=0.9')]
    """
    originals, wanted = list(items), list(speeds)
    if 1.0 in wanted or len(set(wanted)) != len(wanted):
        raise ValueError(
            f"speeds {wanted}: each speed once and none of 1, since the originals are kept"
        )
    copies = list(originals)
    for speed in wanted:
        mark = f"{_SPEED_MARK}{speed:g}"
        speed_of(mark)
        copies += [
            one._replace(id=one.id + mark, label=None if one.label is None else one.label + mark)
            for one in originals
        ]
    return copies


def crop(wave: Wave, num_samples: int, rng: np.random.Generator) -> Wave:
    """(samples,) -> (num_samples,) from a uniformly drawn start; a wave that is too short is
    repeated, end to beginning. One draw in either case.
    """
    if num_samples < 1 or len(wave) < 1:
        raise ValueError(
            f"crop: {num_samples} samples wanted of a wave with {len(wave)}; both must be 1 or more"
        )
    if len(wave) >= num_samples:
        start = int(rng.integers(len(wave) - num_samples + 1))
        return wave[start : start + num_samples].copy()
    start = int(rng.integers(len(wave)))
    return np.take(wave, np.arange(start, start + num_samples), mode="wrap")


class _Bytes(io.BytesIO):
    """A damaged header sends decoders to before the beginning, where BytesIO raises inside their C
    code, which prints a traceback; here they stay in front.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return super().seek(max(0, offset + (0, self.tell(), self.getbuffer().nbytes)[whence]))


def _source(item: Item) -> Path | _Bytes:
    """What the decoders open: the path of a file, which they read faster by themselves, or the
    bytes of a span.
    """
    if not os.path.isfile(item.path):  # Path.is_file raises where a name is too long
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
    """Blocks (samples, channels) float32, each with the file's rate.

    Nothing is allocated of the size that a header states.
    """
    source, name = _source(item), item.name
    try:
        with soundfile.SoundFile(source) as file:
            rate_hz, channels, frames = int(file.samplerate), int(file.channels), int(file.frames)
            if frames == _UNSTATED:  # libsndfile cannot read such a file without losing its place
                raise BadAudio(
                    f"{name}: its header does not state its length, as when it was written to a "
                    "pipe; the length is needed; write it again to a file"
                )
            _check_header(name, rate_hz, channels, frames, max_seconds, max_values)
            # soundfile seeks after each read, and an MP3 decoder loses its place by it. MP3 has at
            # most two channels at 48 kHz, so that the whole is bounded by max_seconds.
            block = frames if file.format == "MP3" else block_frames(channels)
            samples = 0
            while samples < frames:
                asked = min(block, frames - samples)
                raw: Wave = file.read(asked, dtype="float32", always_2d=True)
                samples += len(raw)
                yield raw, rate_hz
                if len(raw) < asked:  # the file ends before the length that its header states
                    break
            check_whole(item, file.format, samples, frames, rate_hz)
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error.error_string if isinstance(error, soundfile.LibsndfileError) else error)
        raise BadAudio(
            f"{name}: unreadable, {reason.rstrip('. ')}; {', '.join(SUFFIXES)} are read (and "
            f"{', '.join(AV_SUFFIXES)} with PyAV)"
        ) from error


def block_frames(channels: int) -> int:
    """How many samples of so many channels are decoded at once."""
    return max(1, _BLOCK_VALUES // channels)


def _decode_av(item: Item, max_seconds: float, max_values: int) -> Iterator[tuple[Wave, int]]:
    """As _decode_soundfile, for AAC through PyAV; decoding stops as soon as a bound is passed."""
    source, name = _source(item), item.name
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
                raise BadAudio(f"{name}: unreadable, no audio stream; one is needed")
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
    """BadAudio for a file of libsndfile's file_format that gave fewer than 9 in 10 of the samples
    that its header states: a download that was broken off.
    """
    if samples < _WHOLE * frames and (file_format != "MP3" or _states_length(item)):
        raise BadAudio(
            f"{item.name}: cut short, {samples / rate_hz:.1f} s of the {frames / rate_hz:.1f} s "
            "that its header states; fetch it again"
        )


def _states_length(item: Item) -> bool:
    """Whether an MP3's first frame states its length.

    Without that libsndfile guesses from the first bit rate, and of a variable one wrongly.
    """
    with item.open() as file:
        head = file.read(10)
        tag = head[:3] == b"ID3" and len(head) == 10
        file.seek(
            10 + sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:])))
            if tag
            else 0
        )  # four times seven bits
        frame = file.read(256)
    return any(mark in frame for mark in (b"Xing", b"Info", b"VBRI"))


def _check_header(
    name: str, rate_hz: int, channels: int, frames: int, max_seconds: float, max_values: int
) -> None:
    if not _RATES_HZ[0] <= rate_hz <= _RATES_HZ[1]:
        raise BadAudio(
            f"{name}: the header states {rate_hz} Hz; {_RATES_HZ[0]} to {_RATES_HZ[1]} are "
            "allowed; repair or remove the file"
        )
    if frames < 0 or frames > max_seconds * rate_hz:
        raise BadAudio(
            f"{name}: too long, {frames / rate_hz:.1f} s; at most {max_seconds:g} s are read; cut "
            "it into utterances, raise max_seconds"
            " or, if it is a file of its own and not AAC, embed it with --chunk-seconds 60"
        )
    if frames * channels > max_values:
        raise BadAudio(
            f"{name}: too large, {frames} samples of {channels} channels; at most {max_values} "
            "values are read; average its channels first"
        )
