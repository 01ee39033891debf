"""What happens to recordings and pictures: compression, noise, rooms, level, blur and light.

What was damaged is a file again, which a model reads like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.modalities.speaker.audio import read, resample
from likeness.modalities.speaker.augment import add_noise
from likeness.modalities.speaker.codec import round_trip
from likeness.modalities.speaker.decoding import Wave
from likeness.modalities.speaker.noise import reverberate
from likeness.toolkit.data.images import decode_bytes, encode, file_bytes

# Of each condition the number N where none is named, the largest one, and what is done. 0: no N.
_RECORDINGS = {
    "mp3": (0.0, 0.0, "mp3 at about 64 kbit/s"),
    "ogg": (0.0, 0.0, "Ogg Vorbis at about 45 kbit/s"),
    "opus": (0.0, 0.0, "Opus at about 16 kbit/s"),
    "8khz": (0.0, 0.0, "a rate of 8 kHz"),
    "noise": (20.0, 100.0, "white noise, N dB below the recording"),
    "reverb": (0.5, 10.0, "a synthetic room, whose echo falls by 60 dB in N s"),
    "quiet": (20.0, 100.0, "N dB less level, at 16 bits"),
}
_PICTURES = {
    "jpeg": (30.0, 100.0, "JPEG of quality N"),
    "blur": (2.0, 100.0, "a Gaussian blur of N pixels"),
    "small": (32.0, 10_000.0, "a shorter edge of N pixels, enlarged again"),
    "dark": (30.0, 100.0, "N % of the light"),
    "mirror": (0.0, 0.0, "left and right changed"),
}
_RATE_HZ = 16_000


class Condition(NamedTuple):
    """What is done to an item.

    Attributes:
        name: As it was written, such as "noise20".
        kind: Such as "noise".
        value: The number, such as 20.0; 0 where the kind has none.
        text: What is done, in words.
    """

    name: str
    kind: str
    value: float
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


def parse(names: Sequence[str], modality: str) -> list[Condition]:
    """Read the names of conditions.

    Args:
        names: Such as "mp3" and "noise20".
        modality: "speaker", "face" or "image".

    Raises:
        LikenessError: A name is not known, or its number is out of range.

    Example:
        >>> [(one.name, one.value) for one in parse(["mp3", "noise15", "reverb"], "speaker")]
        [('mp3', 0.0), ('noise15', 15.0), ('reverb', 0.5)]
    """
    known = _RECORDINGS if modality == "speaker" else _PICTURES
    conditions = []
    for name in dict.fromkeys(names):
        split = re.fullmatch(r"(.*?)(\d+(?:\.\d+)?)?", name, re.DOTALL)
        kind, number = (name, None) if name in known or not split else split.groups()
        usual, most, text = known.get(kind, (0.0, -1.0, ""))
        value = float(number or usual)
        if not (0 < value <= most or value == most):
            listed = [f"{each}N (up to {of[1]:g})" if of[1] else each for each, of in known.items()]
            raise LikenessError(f"{modality} models have no {name!r}; there is {', '.join(listed)}")
        conditions.append(Condition(name, kind, value, re.sub(r"\bN\b", f"{value:g}", text)))
    return conditions


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
        path.write_bytes(encode(_picture(pixels, *condition[1:3])))
        return path
    rng = np.random.default_rng(crc32(item.id.encode()))
    wave = _SOUNDS[condition.kind](read(item, rate_hz=_RATE_HZ), condition.value, rng)
    path = folder / "damaged.flac"
    full = max(1.0, float(np.abs(wave).max()))  # nothing is clipped
    soundfile.write(path, wave / full, _RATE_HZ, subtype="PCM_16")
    return path


# What a condition makes of a wave, with its number and the generator of the item. The compressions
# give the rates above at 16 kHz.
_SOUNDS: dict[str, Callable[[Wave, float, np.random.Generator], Wave]] = {
    "mp3": lambda wave, *_: round_trip(wave, "mp3", compression=0.0),
    "ogg": lambda wave, *_: round_trip(wave, "vorbis", compression=0.6),
    "opus": lambda wave, *_: round_trip(wave, "opus", compression=0.96),
    "8khz": lambda wave, *_: resample(resample(wave, _RATE_HZ, 8_000), 8_000, _RATE_HZ),
    "noise": lambda wave, db, rng: add_noise(wave, rng, snr_db=(db, db), color=(0.0, 0.0)),
    "reverb": lambda wave, seconds, rng: reverberate(wave, room(seconds, _RATE_HZ, rng)),
    "quiet": lambda wave, db, _: wave * np.float32(10 ** (-db / 20)),
}


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
