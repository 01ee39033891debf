"""What a telephone or a lossy file does to a wave: a round trip through a codec of libsndfile, in
memory. (samples,) float32 in and out, same length.
"""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import soundfile

from modalities.speaker.audio import Wave, resample

Codec = Literal["mulaw", "alaw", "mp3", "vorbis", "opus"]

_CONTAINERS = {
    "mulaw": ("WAV", "ULAW"),
    "alaw": ("WAV", "ALAW"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
}
_TELEPHONE_HZ = 8_000
_BAND_HZ = (300.0, 3_400.0)  # ITU-T G.712


def telephone(
    wave: Wave, law: Literal["mulaw", "alaw"] = "mulaw", *, rate_hz: int = 16_000
) -> Wave:
    """The telephone: 300 to 3,400 Hz (ITU-T G.712; Butterworth, -6 dB at the edges, no delay), 8
    kHz, 8 bits of mu-law or A-law (ITU-T G.711).
    """
    from scipy.signal import butter, sosfiltfilt  # slow to import, needed here only

    narrow = resample(wave, rate_hz, _TELEPHONE_HZ)
    band = butter(4, _BAND_HZ, "bandpass", fs=_TELEPHONE_HZ, output="sos")
    heard = round_trip(
        sosfiltfilt(band, narrow, padlen=min(100, len(narrow) - 1)).astype(np.float32),
        law,
        rate_hz=_TELEPHONE_HZ,
    )
    return _fit(resample(heard, _TELEPHONE_HZ, rate_hz), len(wave))


def round_trip(
    wave: Wave, codec: Codec, *, compression: float = 0.5, rate_hz: int = 16_000
) -> Wave:
    """Encoded and decoded again at rate_hz.

    A wave above full scale is scaled down for it and up again: nothing is clipped.

    compression: libsndfile's compression_level, 0 (largest file) to below 1 (smallest); at 16 kHz,
    from 0.3 to 0.95: mp3 51 to 30 kbit/s, vorbis 69 to 37, opus 186 to 20. mulaw and alaw have
    none. ValueError for an unknown codec, one that this libsndfile lacks, and a rate that the codec
    does not have.
    """
    if codec not in _CONTAINERS:
        raise ValueError(f"codec: {codec!r} is unknown; allowed are {', '.join(_CONTAINERS)}")
    if not 0.0 <= compression < 1.0:
        raise ValueError(f"codec: compression is {compression}; 0 to below 1 is allowed")
    container, subtype = _CONTAINERS[codec]
    settings = {} if container == "WAV" else {"compression_level": compression}
    level = np.float32(max(1.0, float(np.abs(wave).max(initial=0.0))))
    memory = io.BytesIO()
    try:
        with soundfile.SoundFile(
            memory, "w", rate_hz, 1, format=container, subtype=subtype, **settings
        ) as file:
            file.write(wave / level)
        memory.seek(0)
        heard: Wave = soundfile.read(memory, dtype="float32")[0]
    except (soundfile.SoundFileError, ValueError) as error:
        raise ValueError(
            f"codec: {codec} at {rate_hz} Hz fails in libsndfile "
            f"{soundfile.__libsndfile_version__} ({error}); leave it out or install a newer "
            "soundfile"
        ) from error
    return _fit(heard * level, len(wave))


def transmit(
    wave: Wave,
    rng: np.random.Generator,
    *,
    codecs: tuple[Codec, ...] = ("mulaw", "alaw", "mp3", "vorbis"),
    compression: tuple[float, float] = (0.3, 0.95),
    rate_hz: int = 16_000,
) -> Wave:
    """One of `codecs`, all equally probable: mulaw and alaw as telephone(), the others at a
    compression drawn uniformly.

    Two draws in any case. ValueError as round_trip().
    """
    if not codecs or any(codec not in _CONTAINERS for codec in codecs):
        raise ValueError(f"codec: codecs {codecs} must be one or more of {', '.join(_CONTAINERS)}")
    if not 0.0 <= compression[0] <= compression[1] < 1.0:
        raise ValueError(
            f"codec: compression {compression} must be (lowest, highest), within 0 and below 1"
        )
    codec, strength = codecs[int(rng.integers(len(codecs)))], rng.uniform(*compression)
    if codec in ("mulaw", "alaw"):
        return telephone(wave, codec, rate_hz=rate_hz)
    return round_trip(wave, codec, compression=strength, rate_hz=rate_hz)


def _fit(wave: Wave, num_samples: int) -> Wave:
    """Cut or padded with zeros: codecs and resampling may change the length by a few samples."""
    return (
        wave[:num_samples]
        if len(wave) >= num_samples
        else np.pad(wave, (0, num_samples - len(wave)))
    )
