"""What a telephone or a lossy file does to a wave: a round trip through a codec of libsndfile.

It happens in memory. Waves are (samples,) float32 in and out, of the same length.
"""

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.modalities.speaker.audio import resample
from likeness.modalities.speaker.decoding import Wave

Line = Literal["mulaw", "alaw", "gsm"]  # what a telephone line has
Codec = Line | Literal["mp3", "vorbis", "opus"]

_CONTAINERS = {
    "mulaw": ("WAV", "ULAW"),
    "alaw": ("WAV", "ALAW"),
    "gsm": ("WAV", "GSM610"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
}
_TELEPHONE_HZ = 8_000
_BAND_HZ = (300.0, 3_400.0)  # ITU-T G.712
# MP3 up to 40 kbit/s has no room to say that encoder and decoder delay it by so many samples.
_MP3_DELAY = 1_105


def telephone(wave: Wave, codec: Line = "mulaw", *, rate_hz: int = 16_000) -> Wave:
    """Send a wave through a telephone line.

    The line passes 300 to 3,400 Hz (ITU-T G.712; a Butterworth filter, -6 dB at the edges, without
    delay), at 8 kHz and with 8 bits of mu-law or A-law (ITU-T G.711) or GSM full rate (13 kbit/s).

    Args:
        wave: (samples,) float32.
        codec: "mulaw", "alaw" or "gsm".
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32 at rate_hz.
    """
    from scipy.signal import butter, sosfiltfilt  # slow to import, needed here only

    narrow = resample(wave, rate_hz, _TELEPHONE_HZ)
    band = butter(4, _BAND_HZ, "bandpass", fs=_TELEPHONE_HZ, output="sos")
    passed = sosfiltfilt(band, narrow, padlen=min(100, len(narrow) - 1)).astype(np.float32)
    received = round_trip(passed, codec, rate_hz=_TELEPHONE_HZ)
    return _fit(resample(received, _TELEPHONE_HZ, rate_hz), len(wave))


def round_trip(
    wave: Wave,
    codec: Codec,
    *,
    compression: float = 0.5,
    constant: bool = False,
    rate_hz: int = 16_000,
) -> Wave:
    """Encode a wave and decode it again at rate_hz.

    A wave above full scale is scaled down for the codec and up again, so that nothing is clipped.

    Args:
        wave: (samples,) float32.
        codec: The codec.
        compression: libsndfile's compression_level, from 0 (the largest file) to below 1 (the
            smallest). At 16 kHz, from 0.3 to 0.95, mp3 has 51 to 30 kbit/s, vorbis 69 to 37 and
            opus 186 to 20. mulaw, alaw and gsm have no such level.
        constant: Whether mp3 has a constant bit rate: at 16 kHz 160 - 152 * compression kbit/s.
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: The codec is unknown, this libsndfile lacks it, it does not have that rate,
            or compression is out of range.
    """
    _check((codec,), (compression, compression))
    container, subtype = _CONTAINERS[codec]
    settings: dict[str, Any] = {} if container == "WAV" else {"compression_level": compression}
    if constant:
        settings["bitrate_mode"] = "CONSTANT"
    level = np.float32(max(1.0, float(np.abs(wave).max(initial=0.0))))
    memory = io.BytesIO()
    try:
        with soundfile.SoundFile(
            memory, "w", rate_hz, 1, format=container, subtype=subtype, **settings
        ) as file:
            file.write(wave / level)
        memory.seek(0)
        decoded: Wave = soundfile.read(memory, dtype="float32")[0]
    except (soundfile.SoundFileError, ValueError) as error:
        raise LikenessError(
            f"codec: {codec} at {rate_hz} Hz fails in libsndfile "
            f"{soundfile.__libsndfile_version__} ({error}); leave it out or install a newer "
            "soundfile"
        ) from error
    delay = _MP3_DELAY if codec == "mp3" and len(decoded) > len(wave) else 0
    return _fit(decoded[delay:] * level, len(wave))


def transmit(
    wave: Wave,
    rng: np.random.Generator,
    *,
    codecs: tuple[Codec, ...] = ("mulaw", "alaw", "mp3", "vorbis"),
    compression: tuple[float, float] = (0.3, 0.95),
    rate_hz: int = 16_000,
) -> Wave:
    """Send a wave through one of `codecs`, all equally probable.

    mulaw, alaw and gsm act as telephone(), the others as round_trip() at a compression that is
    drawn uniformly. There are two draws in any case.

    Args:
        wave: (samples,) float32.
        rng: The generator of the draws.
        codecs: The codecs to draw from.
        compression: The lowest and the highest compression, see round_trip().
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: A codec is unknown, compression is out of range, or round_trip() refuses the
            codec.
    """
    _check(codecs, compression)
    codec, strength = codecs[int(rng.integers(len(codecs)))], rng.uniform(*compression)
    if codec in ("mulaw", "alaw", "gsm"):
        return telephone(wave, codec, rate_hz=rate_hz)
    return round_trip(wave, codec, compression=strength, rate_hz=rate_hz)


def _check(codecs: Sequence[str], compression: tuple[float, float]) -> None:
    """Refuse codecs that are not known, and compressions that are out of range."""
    is_in_order = 0.0 <= compression[0] <= compression[1] < 1.0
    if not codecs or not set(codecs) <= _CONTAINERS.keys() or not is_in_order:
        raise LikenessError(
            f"codec: codecs {codecs} with compression {compression}; one or more of "
            f"{', '.join(_CONTAINERS)}, and (lowest, highest) from 0 to below 1 are allowed"
        )


def _fit(wave: Wave, num_samples: int) -> Wave:
    """Cut or pad the wave, as codecs and resampling may change its length by some samples."""
    if len(wave) >= num_samples:
        return wave[:num_samples]
    return np.pad(wave, (0, num_samples - len(wave)))
