"""What happens to recordings and pictures: compression, noise, rooms, level, blur and light.

What was damaged is a file again, which a model reads like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.modalities.speaker.audio import read, resample
from likeness.modalities.speaker.augment import add_noise
from likeness.modalities.speaker.codec import round_trip, telephone
from likeness.modalities.speaker.decoding import Wave
from likeness.modalities.speaker.noise import reverberate
from likeness.toolkit.data.images import decode_bytes, encode, file_bytes

_RATE_HZ = 16_000


class _Kind(NamedTuple):
    """A kind of condition: the group in which conditions are averaged, what is done, the number N
    where none is named, and its range. Without a range it has no number.
    """

    group: str
    text: str
    usual: float = 0
    least: float = 0
    most: float = 0


_LINE = "a telephone line (300 to 3,400 Hz at 8 kHz) with "
_RECORDINGS = {
    "mulaw": _Kind("codec", _LINE + "G.711 mu-law"),
    "alaw": _Kind("codec", _LINE + "G.711 A-law"),
    "gsm": _Kind("codec", _LINE + "GSM full rate"),
    "opus": _Kind("codec", "Opus at about N kbit/s", 16, 6, 128),
    "mp3": _Kind("codec", "MP3 at N kbit/s", 64, 16, 160),
    "ogg": _Kind("codec", "Ogg Vorbis at about 45 kbit/s"),
    "8khz": _Kind("codec", "a rate of 8 kHz"),
    "webcam": _Kind("microphone", "the microphone of a webcam"),
    "laptop": _Kind("microphone", "the microphone of a laptop"),
    "phone": _Kind("microphone", "the microphone of a phone"),
    "headset": _Kind("microphone", "the microphone of a headset"),
    "loudspeaker": _Kind("microphone", "the loudspeaker of a phone or laptop"),
    "noise": _Kind("noise", "white noise, N dB below the recording", 20, 0.1, 100),
    "pink": _Kind("noise", "pink noise, N dB below the recording", 20, 0.1, 100),
    "reverb": _Kind("room", "a synthetic room, whose echo falls by 60 dB in N s", 0.5, 0.01, 10),
    "quiet": _Kind("level", "N dB less level, at 16 bits", 20, 0.1, 100),
}
_PICTURES = {
    "jpeg": _Kind("jpeg", "JPEG of quality N", 30, 1, 100),
    "blur": _Kind("blur", "a Gaussian blur of N pixels", 2, 0.1, 100),
    "small": _Kind("small", "a shorter edge of N pixels, enlarged again", 32, 1, 10_000),
    "dark": _Kind("dark", "N % of the light", 30, 1, 100),
    "mirror": _Kind("mirror", "left and right changed"),
}
# Synthetic responses, Hz: dB. Between two frequencies the decibels are linear in log(Hz),
# beyond the first and the last one they stay.
RESPONSES = {
    "webcam": {100: -18, 200: -6, 400: 0, 2_000: 0, 4_000: 5, 6_000: 6, 8_000: -6},
    "laptop": {100: -30, 200: -15, 400: -4, 900: 0, 1_600: 6, 2_500: 0, 5_000: 2, 8_000: -8},
    "phone": {100: -30, 200: -12, 300: -3, 500: 0, 2_500: 3, 3_400: -3, 4_000: -24, 8_000: -48},
    "headset": {50: -20, 100: -8, 200: 0, 1_500: 0, 3_000: 4, 5_000: 0, 6_500: -6, 8_000: -20},
    "loudspeaker": {100: -40, 200: -24, 400: -8, 700: 0, 3_000: 4, 5_000: -2, 8_000: -10},
}
# The conditions of CASE 2026 (github.com/gittb/case-benchmark), which has recorded noise and rooms.
# A chain is what is played to a microphone, in the order in which it happens.
_CASE = (
    *("mulaw", "alaw", "gsm", "opus6", "opus12", "opus24", "mp3-16", "mp3-32"),
    *("webcam", "laptop", "phone", "headset"),
    *("pink5", "pink10", "pink15", "pink20", "pink25", "reverb0.5"),
    "alaw+loudspeaker+reverb0.5+phone+pink25",
    "gsm+loudspeaker+reverb0.5+webcam+pink20",
    "mulaw+loudspeaker+reverb0.5+laptop+pink15",
)


class Condition(NamedTuple):
    """What is done to an item.

    Attributes:
        name: As it was written, such as "noise20" or "gsm+noise20".
        steps: What is done, in its order: each kind and its number, such as ("noise", 20.0).
        group: The group in which it is averaged, such as "noise"; "chain" where it has steps.
        text: What is done, in words.
    """

    name: str
    steps: Sequence[tuple[str, float]]
    group: str
    text: str


def room(seconds: float, rate_hz: int, rng: np.random.Generator) -> Any:
    """Draw the impulse response of a room: noise that dies away behind a direct sound.

    Both have the same energy, as at a distance of one or two metres. Source: J.-D. Polack, La
    transmission de l'énergie sonore dans les salles, 1988.

    Args:
        seconds: The time in which the echo falls by 60 dB.
        rate_hz: The rate in Hz.
        rng: The generator of the noise.

    Returns:
        (samples,) float32. The first one is the direct sound, 1.

    Example:
        >>> response = room(0.5, 16_000, np.random.default_rng(0))
        >>> response.shape, float(response[0]), round(float(np.sum(response**2)), 3)
        ((8000,), 1.0, 2.0)
    """
    samples = np.arange(int(seconds * rate_hz))
    tail = rng.standard_normal(samples.size) * 10 ** (-3 * samples / (seconds * rate_hz))
    tail[0] = 0.0
    response = (tail / np.sqrt(np.sum(tail**2))).astype(np.float32)
    response[0] = 1.0
    return response


def respond(wave: Wave, device: str) -> Wave:
    """Filter a wave with the response of a device, without a delay.

    Args:
        wave: (samples,) float32 at 16 kHz.
        device: "webcam", "laptop", "phone", "headset" or "loudspeaker".

    Returns:
        (samples,) float32.
    """
    from scipy.fft import next_fast_len  # slow to import, needed here only

    response = RESPONSES[device]
    length = next_fast_len(len(wave) + _RATE_HZ, real=True)  # a second, so that no end wraps around
    hz = np.maximum(np.fft.rfftfreq(length, 1 / _RATE_HZ), 1.0)
    db = np.interp(np.log(hz), np.log([*response]), [*response.values()])
    spectrum = np.fft.rfft(wave, length) * 10 ** (db / 20)
    return np.fft.irfft(spectrum, length)[: len(wave)].astype(np.float32)


def parse(names: Sequence[str], modality: str) -> list[Condition]:
    """Read the names of conditions.

    Args:
        names: Such as "mp3", "noise20" and "gsm+noise20"; "case" stands for those of CASE 2026.
        modality: "speaker", "face" or "image".

    Raises:
        LikenessError: A name is not known, or its number is out of range.

    Example:
        >>> [one.steps for one in parse(["mp3-32", "reverb", "gsm+noise15"], "speaker")]
        [[('mp3', 32.0)], [('reverb', 0.5)], [('gsm', 0.0), ('noise', 15.0)]]
    """
    known = _RECORDINGS if modality == "speaker" else _PICTURES
    sets = {"case": _CASE} if modality == "speaker" else {}
    names = [each for name in names for each in sets.get(name, [name])]
    conditions = []
    for name in dict.fromkeys(names):
        steps = [_step(part, known, modality) for part in name.split("+")]
        texts = [re.sub(r"\bN\b", f"{value:g}", known[kind].text) for kind, value in steps]
        group = known[steps[0][0]].group if len(steps) == 1 else "chain"
        conditions.append(Condition(name, steps, group, ", then ".join(texts)))
    return conditions


def _step(name: str, known: Mapping[str, _Kind], modality: str) -> tuple[str, float]:
    """The kind and the number of a step, such as "noise20"."""
    split = re.fullmatch(rf"({'|'.join(known)})(?:-?(\d+(?:\.\d+)?))?", name)
    if split:
        of, (kind, number) = known[split[1]], split.groups()
        value = float(number or of.usual)
        if of.least <= value <= of.most and (of.most or not number):
            return kind, value
    listed = [
        each + f"N ({of.least:g} to {of.most:g})" * bool(of.most) for each, of in known.items()
    ]
    raise LikenessError(
        f"{modality} models have no {name!r}; there is {', '.join(listed)}, several joined by +"
        + ", and case" * ("gsm" in known)
    )


def damaged(item: Item, condition: Condition, modality: str, folder: Path) -> Path:
    """Write an item as it is in a condition. The same id gets the same noise and the same room.

    A recording is brought to 16 kHz first and becomes a FLAC file of 16 bits. A picture becomes a
    PNG file.

    Args:
        item: The item.
        condition: What is done to it.
        modality: "speaker", "face" or "image".
        folder: Where the file is written.

    Returns:
        The file.

    Raises:
        LikenessError: The item cannot be read.
    """
    if modality != "speaker":
        pixels = decode_bytes(file_bytes(item), item.name)
        path = folder / "damaged.png"
        for step in condition.steps:
            pixels = _picture(pixels, *step)
        path.write_bytes(encode(pixels))
        return path
    rng = np.random.default_rng(crc32(item.id.encode()))
    wave = read(item, rate_hz=_RATE_HZ)
    for step in condition.steps:
        wave = _sound(wave, *step, rng)
    path = folder / "damaged.flac"
    full = max(1.0, float(np.abs(wave).max()))  # nothing is clipped
    soundfile.write(path, wave / full, _RATE_HZ, subtype="PCM_16")
    return path


def _sound(wave: Wave, kind: str, value: float, rng: np.random.Generator) -> Wave:
    """A wave in a condition."""
    match kind:
        case "mulaw" | "alaw" | "gsm":
            return telephone(wave, kind)
        case "opus":  # whose compression has to be below 1
            return round_trip(wave, "opus", compression=min((256 - value) / 250, 0.999999))
        case "mp3":
            return round_trip(wave, "mp3", compression=(160 - value) / 152, constant=True)
        case "ogg":
            return round_trip(wave, "vorbis", compression=0.6)
        case "8khz":
            return resample(resample(wave, _RATE_HZ, 8_000), 8_000, _RATE_HZ)
        case "noise" | "pink":
            color = float(kind == "pink")
            return add_noise(wave, rng, snr_db=(value, value), color=(color, color))
        case "reverb":
            return reverberate(wave, room(value, _RATE_HZ, rng))
        case "quiet":
            return wave * np.float32(10 ** (-value / 20))
    return respond(wave, kind)


def _picture(pixels: Any, kind: str, value: float) -> Any:
    """Pixels in a condition."""
    match kind:
        case "jpeg":
            return decode_bytes(encode(pixels, ".jpg", quality=round(value)), kind)
        case "blur":
            import cv2

            return cv2.GaussianBlur(pixels, (0, 0), value)
        case "small":
            import cv2

            share = min(1.0, max(1.0, value) / min(pixels.shape[:2]))
            shrunk = cv2.resize(pixels, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
            return cv2.resize(shrunk, pixels.shape[1::-1], interpolation=cv2.INTER_CUBIC)
        case "dark":
            return np.rint(pixels * (value / 100)).astype(np.uint8)
    return np.ascontiguousarray(pixels[:, ::-1])
