"""Recordings of which only the crop is decoded.

A training view is a few seconds of a recording that may last minutes. WAV and FLAC files can be
decoded from any sample on, to the same numbers as when they are decoded whole.
"""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from likeness.modalities.speaker import decoding
from likeness.toolkit.data.items import Item

_FORMATS = ("WAV", "FLAC")
# Samples of integers are never NaN, infinite or absurdly loud, which only the whole file shows.
_SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32")
# Bytes of a file; a smaller one, about 8 s of WAV at 16 kHz, is decoded in the time that opening it
# again would take.
_SMALL = 2**18


@dataclass(frozen=True)
class Recording:
    """A recording that is decoded where it is sliced: recording[start:stop] is a Wave.

    Attributes:
        name: What messages call it.
        source: The file, or the bytes of a span.
        first: Its first sample in the file.
        num_samples: Its length.
        layout: What its header said when it was opened.
        read_whole: Reads it whole, or refuses it.
    """

    name: str
    source: Path | io.BytesIO
    first: int
    num_samples: int
    layout: tuple[object, ...]
    read_whole: Callable[[], decoding.Wave]

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, part: slice) -> decoding.Wave:
        """Decode a part of consecutive samples.

        Raises:
            BadAudio: The file is damaged there, or all of it is silent, or it is another one than
                when it was opened.
        """
        start, stop, _ = part.indices(self.num_samples)
        try:
            if isinstance(self.source, io.BytesIO):
                self.source.seek(0)
            with soundfile.SoundFile(self.source) as file:
                if _layout(file) != self.layout:
                    raise self._replaced()
                file.seek(self.first + start)
                wave = decoding.mix(file.read(stop - start, dtype="float32", always_2d=True))
        except (soundfile.SoundFileError, OSError):
            wave = np.empty(0, np.float32)
        is_silent = float(np.abs(wave).max(initial=0.0)) < 10 ** (decoding.SILENCE_DBFS / 20)
        if len(wave) < stop - start or is_silent:
            # Only the whole file shows whether it is to be refused.
            whole = self.read_whole()
            if len(whole) != self.num_samples:
                raise self._replaced()
            return whole[start:stop]
        return wave

    def _replaced(self) -> decoding.BadAudio:
        return decoding.BadAudio(
            f"{self.name}: the file was replaced after its {self.num_samples} samples were found; "
            "start again when nothing writes to it"
        )


def open_recording(
    item: Item,
    read_whole: Callable[[], decoding.Wave],
    *,
    rate_hz: int,
    min_seconds: float,
    max_seconds: float,
    max_values: int,
) -> Recording | None:
    """Open a WAV or FLAC file of integers at the wanted rate; None for any other and small ones.

    Args:
        item: The file, or the span of a tar shard.
        read_whole: Reads the same item whole.
        rate_hz: The wanted rate in Hz.
        min_seconds: The shortest duration that is accepted.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels.

    Returns:
        The recording, or None where it has to be read whole, also to be refused.
    """
    source = decoding.source_of(item)
    size = os.path.getsize(source) if isinstance(source, Path) else source.getbuffer().nbytes
    if item.suffix not in (".wav", ".flac") or decoding.speed_of(item.id) != 1.0 or size < _SMALL:
        return None
    try:
        with soundfile.SoundFile(source) as file:
            first, stop = decoding.frames_of(item, int(file.samplerate), int(file.frames))
            frames = stop - first
            if (
                file.format not in _FORMATS
                or file.subtype not in _SUBTYPES
                or file.samplerate != rate_hz
                or not min_seconds * rate_hz <= frames <= max_seconds * rate_hz
                or frames * file.channels > max_values
            ):
                return None
            # A FLAC file that is cut short states more samples than it has.
            file.seek(stop - 1)
            if not len(file.read(1)):
                return None
            return Recording(item.name, source, first, frames, _layout(file), read_whole)
    except (soundfile.SoundFileError, OSError):
        return None


def _layout(file: soundfile.SoundFile) -> tuple[object, ...]:
    """Return what the header of a file says about its samples."""
    return file.format, file.subtype, file.samplerate, file.channels, int(file.frames)
