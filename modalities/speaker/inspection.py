"""What the header of a recording says, and what its samples show."""

import hashlib
import struct

import numpy as np
import soundfile

from likeness.eval.items import containers
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import AV_SOUNDS
from likeness.modalities.speaker import decoding
from likeness.modalities.speaker.audio import decoded
from likeness.modalities.speaker.content import lack_of_voice
from likeness.toolkit.data.reading import Content, Header, Inspection, refuse_empty, size_of

MIN_SECONDS = 0.1  # as `read` accepts them
# A sample counts as clipped in a run of at least so many at the largest level of the recording,
# where that level is at least this near to full scale. A sound wave stays at its peak for one
# sample or two.
CLIPPED_RUN = 3
CLIPPED_LEVEL = 0.98


def audio_header(item: Item) -> Header:
    """Return what the header of a recording says.

    Raises:
        BadAudio: There is no such recording, it is shorter or longer than is read, or a stretch
            ends after it.
        CutShort: The file holds fewer than nine in ten of the samples that its header states, or
            the last sample of a FLAC file is not there.
    """
    source, kind = decoding.source_of(item)
    if kind in AV_SOUNDS:
        return _av_header(item, source, kind)
    with decoding.open_audio(item, source) as file:
        rate_hz, channels, frames = int(file.samplerate), int(file.channels), int(file.frames)
        form = file.format if file.subtype == file.format else f"{file.format} {file.subtype}"
        if file.format == "FLAC" and frames and not _has_last(file, frames):
            raise decoding.CutShort(
                "the file is cut short, its last sample is not there; fetch it again"
            )
        return _checked(item, form, rate_hz, channels, frames)


def _checked(item: Item, form: str, rate_hz: int, channels: int, frames: int) -> Header:
    """The header of a recording of this length, or of the stretch of it that an item is."""
    decoding.select_channel(np.empty((0, channels), np.float32), item.channel)
    _, inside = decoding.checked_frames(
        item.stretch, rate_hz, channels, frames, decoding.MAX_SECONDS, decoding.MAX_VALUES
    )
    seconds = inside / rate_hz
    if seconds < MIN_SECONDS:
        raise decoding.BadAudio(
            f"the audio is too short, {seconds:.3f} s; at least {MIN_SECONDS} s are needed; "
            "remove it"
        )
    return Header(form, size_of(item), seconds, rate_hz, channels)


def _has_last(file: soundfile.SoundFile, frames: int) -> bool:
    try:
        file.seek(frames - 1)
        return len(file.read(1)) == 1
    except soundfile.SoundFileError:
        return False


def _av_header(item: Item, source: decoding.Source, kind: str) -> Header:
    """The header of what PyAV reads. Its duration is what the container states, which decoding may
    correct; browsers state none, and the last packet tells it.
    """
    with decoding.opened_av(item, source, kind) as (container, stream):
        rate_hz, channels = int(stream.rate or 0), int(stream.channels or 0)
        seconds = (container.duration or 0) / containers.SECOND
        if seconds <= 0:
            packets = (packet for packet in container.demux(stream) if packet.pts is not None)
            ends = (packet.pts + (packet.duration or 0) for packet in packets)
            seconds = max(ends, default=0) * stream.time_base
        form = stream.codec_context.codec.canonical_name.upper()
        return _checked(item, form, rate_hz, channels, round(seconds * rate_hz))


def audio_content(item: Item, header: Header) -> Content:
    """Return what the samples of a recording show, after its channels are averaged.

    Raises:
        BadAudio: It cannot be decoded, or `read` refuses it.
        Empty: It certainly holds no voice.
    """
    assert header.rate_hz is not None
    wave = decoded(item, rate_hz=header.rate_hz)
    lack = lack_of_voice(wave, header.rate_hz)
    if lack is not None and lack.is_sure:
        refuse_empty(item.name, lack)
    digest = hashlib.sha256(struct.pack("<q", header.rate_hz) + wave.tobytes()).digest()
    level = 10 * np.log10(np.mean(np.square(wave, dtype=np.float64)))
    return Content(digest, clipped_share(wave), float(level), lack.reason if lack else "")


def clipped_share(wave: decoding.Wave) -> float:
    """Return the share of the samples of a wave that are clipped.

    Args:
        wave: (samples,), where full scale is 1.

    Returns:
        The share of those in runs of at least CLIPPED_RUN equal samples at the largest level, which
        is at least CLIPPED_LEVEL; 0 where the largest level is lower.

    Example:
        >>> clipped_share(np.array([0, 1, 1, 1, 0, -1, 0, 0.5], np.float32))
        0.375
    """
    peak = float(np.abs(wave).max(initial=0.0))
    if peak < CLIPPED_LEVEL:
        return 0.0
    clipped = 0
    for level in {float(wave.max()), float(wave.min())}:
        # A 16-bit file reaches -1 below and 1 - 2^-15 above.
        if abs(level) < CLIPPED_LEVEL:
            continue
        edges = np.flatnonzero(np.diff(wave == np.float32(level), prepend=False, append=False))
        lengths = edges[1::2] - edges[::2]
        clipped += int(lengths[lengths >= CLIPPED_RUN].sum())
    return clipped / len(wave)


RECORDINGS = Inspection(audio_header, audio_content)
