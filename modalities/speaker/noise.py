"""Noise, music, speech and room impulse responses from the user's folders, mixed into waves.

The mixing follows published tools and is deterministic given the generator. The folders are those
of MUSAN (noise/, music/, speech/) and RIRS_NOISES, or any of that shape.

Source: WeSpeaker wespeaker/dataset/processor.py add_reverb_noise.

One rule differs. WeSpeaker's signal-to-noise ratio adds 1e-4 to both powers, so that a wave that is
quieter than -40 dBFS is drowned. Here the ratio is the one that was drawn.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import SOUNDS
from likeness.modalities.speaker import decoding
from likeness.modalities.speaker.audio import resample
from likeness.modalities.speaker.decoding import SILENCE_DBFS, BadAudio, Wave

# Where `likeness prepare` puts them below DATA, by the setting of corrupt().
FOLDERS = {"musan": "musan", "rirs": "RIRS_NOISES/simulated_rirs"}
_SNR_DB = {"noise": (0.0, 15.0), "music": (5.0, 15.0), "speech": (10.0, 30.0)}
# How many unusable files may be drawn in a row. With half of the files unusable that happens once
# in 1e15 draws.
_TRIES = 50
_RIR_SECONDS = 10.0  # longer impulse responses are cut, because nothing audible is left by then


@lru_cache(maxsize=32)
def listing(folder: str, name: str = "musan") -> tuple[Path, ...]:
    """List all audio files below a folder, sorted by path, without hidden ones.

    The folder is read once in a process, so files that are added later are not seen.

    Args:
        folder: The path of the folder.
        name: The setting of corrupt() that has it, as a recipe names it.

    Returns:
        The paths of the files.

    Raises:
        LikenessError: The folder is missing or holds no audio files.
    """
    paths = [
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if Path(name).suffix.lower() in SOUNDS and not name.startswith(".")
    ]
    if not paths:
        raise LikenessError(
            f"augment.corrupt.{name}={folder} is no folder with audio files ({', '.join(SOUNDS)}); "
            f"name one, such as DATA/{FOLDERS[name]}, which `likeness prepare "
            f"{FOLDERS[name].partition('/')[0].lower()}` makes, or leave noise out by "
            "augment.corrupt=none"
        )
    return tuple(sorted(paths, key=Path.as_posix))


def stretch(
    path: Path, num_samples: int, rng: np.random.Generator, *, rate_hz: int = 16_000
) -> Wave:
    """Read a stretch of a file from a uniformly drawn start.

    Only that part of the file is read, and its channels are averaged. A shorter file is repeated
    from its beginning. Either case takes one draw.

    Args:
        path: The file.
        num_samples: The length of the result in samples at rate_hz.
        rng: The generator of the start.
        rate_hz: The rate of the result in Hz.

    Returns:
        (num_samples,) float32.

    Raises:
        BadAudio: The file cannot be read, or its stretch is silent (peak below -90 dBFS) or not
            finite.
    """
    with _opened(path) as file:
        file_hz, frames = int(file.samplerate), int(file.frames)
        needed = -(-num_samples * file_hz // rate_hz)  # rounded up
        file.seek(int(rng.integers(max(1, frames - needed + 1))))
        raw = file.read(min(needed, frames), dtype="float32", always_2d=True)
    part: Wave = raw.mean(axis=1, dtype=np.float32)
    _check_level(path, part)
    # np.resize repeats a part that is shorter.
    return np.resize(resample(part, file_hz, rate_hz), num_samples)


def impulse_response(path: Path, *, rate_hz: int = 16_000) -> Wave:
    """Read the first channel of a file, at most 10 s of it.

    The channels of a microphone array must not be averaged.

    Args:
        path: The file.
        rate_hz: The rate of the result in Hz.

    Returns:
        (samples,) float32.

    Raises:
        BadAudio: The file cannot be read, or is silent (peak below -90 dBFS) or not finite.
    """
    with _opened(path) as file:
        file_hz = int(file.samplerate)
        longest = min(int(file.frames), int(_RIR_SECONDS * file_hz))
        response: Wave = file.read(longest, dtype="float32", always_2d=True)[:, 0].copy()
    _check_level(path, response)
    return resample(response, file_hz, rate_hz)


def mix(wave: Wave, noise: Wave, snr_db: float) -> Wave:
    """Add noise to a wave, scaled to exactly the given ratio of the two mean powers.

    Args:
        wave: (samples,) float32.
        noise: (samples,) float32.
        snr_db: The ratio of the power of the wave to the power of the noise in dB.

    Returns:
        (samples,) float32. A silent wave or silent noise leaves the wave as it is.

    Example:
        >>> wave, noise = np.ones(2, np.float32), np.full(2, 5, np.float32)
        >>> mix(wave, noise, 0.0).tolist()
        [2.0, 2.0]
    """
    signal_power = float(np.mean(np.square(wave, dtype=np.float64)))
    noise_power = float(np.mean(np.square(noise, dtype=np.float64)))
    if noise_power == 0.0:
        return wave + noise
    return wave + noise * np.float32(np.sqrt(signal_power / noise_power * 10 ** (-snr_db / 10)))


def reverberate(wave: Wave, response: Wave) -> Wave:
    """Convolve a wave with an impulse response of unit energy; the length stays.

    The unit energy is WeSpeaker's rule for the level. The result is shifted so that the direct
    path, which is the largest value of the response, does not delay it. Kaldi's wav-reverberate
    does so too, while WeSpeaker leaves the delay.

    Args:
        wave: (samples,) float32.
        response: (any length,) float32.

    Returns:
        (samples,) float32.
    """
    # Slow to import, needed here only. torchaudio's fftconvolve takes 3 to 17 times as long, as its
    # transforms are not rounded up to a fast length, and `likeness bench` works without torch.
    from scipy.signal import fftconvolve

    direct = int(np.abs(response).argmax())
    unit = response / np.sqrt(np.sum(np.square(response, dtype=np.float64))).astype(np.float32)
    reverberant: Wave = fftconvolve(wave, unit)[direct : direct + len(wave)].astype(np.float32)
    return reverberant


def add_file(wave: Wave, rng: np.random.Generator, musan: str, *, rate_hz: int = 16_000) -> Wave:
    """Add one of all files of a folder, each equally probable.

    A file in the folder music or speech is of that kind, and every other file is noise. The
    signal-to-noise ratio is drawn uniformly: 0 to 15 dB for noise, 5 to 15 dB for music, 10 to
    30 dB for speech.

    Args:
        wave: (samples,) float32.
        rng: The generator of all draws.
        musan: The folder of noise.
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32.
    """
    read_noise = partial(stretch, num_samples=len(wave), rng=rng, rate_hz=rate_hz)
    path, noise = _usable(listing(musan), read_noise, rng)
    kind = path.relative_to(musan).parts[0]
    return mix(wave, noise, rng.uniform(*_SNR_DB.get(kind, _SNR_DB["noise"])))


def corrupt(
    wave: Wave,
    rng: np.random.Generator,
    *,
    musan: str = "",
    rirs: str = "",
    prob: float = 0.6,
    rate_hz: int = 16_000,
) -> Wave:
    """Put a wave into a room or add noise to it, each with half of the probability `prob`.

    A corrupted wave is divided by its largest absolute value. Files that cannot be used are passed
    over, up to 50 in a row.

    Args:
        wave: (samples,) float32.
        rng: The generator of all draws.
        musan: The folder of noise, see add_file().
        rirs: The folder of impulse responses.
        prob: The probability that anything is done.
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: A folder is missing or empty, or the probability is out of range. This is
            raised at the first call, whatever it draws.
    """
    if not 0.0 <= prob <= 1.0:
        raise LikenessError(f"augmentation: prob is {prob}; a probability from 0 to 1 is needed")
    rooms = listing(rirs, "rirs")
    listing(musan)
    if rng.random() >= prob:
        return wave
    if int(rng.integers(2)) == 0:
        _, response = _usable(rooms, partial(impulse_response, rate_hz=rate_hz), rng)
        wave = reverberate(wave, response)
    else:
        wave = add_file(wave, rng, musan, rate_hz=rate_hz)
    largest = float(np.abs(wave).max())
    return wave / np.float32(largest) if largest > 0 else wave


# WeSpeaker's rule, as a part: partial(WESPEAKER, musan=..., rirs=...).
WESPEAKER = partial(corrupt, prob=0.6)


def _usable(
    files: Sequence[Path], read: Callable[[Path], Wave], rng: np.random.Generator
) -> tuple[Path, Wave]:
    """Return a drawn file and what is read of it; files that cannot be used are passed over."""
    for _ in range(_TRIES):
        path = files[int(rng.integers(len(files)))]
        try:
            return path, read(path)
        except BadAudio as error:
            last = error
    raise LikenessError(
        f"augmentation: {_TRIES} files drawn in a row from {len(files)} cannot be used; repair the "
        f"folder; the last one was refused with: {last}"
    )


@contextmanager
def _opened(path: Path) -> Iterator[soundfile.SoundFile]:
    """Open a file whose header is not absurd."""
    item = Item(str(path), path)
    with decoding.open_audio(item, decoding.source_of(item)[0]) as file:
        sizes = file.samplerate, file.channels, file.frames
        decoding.check_header(*sizes, max_seconds=86_400.0, max_values=decoding.MAX_VALUES)
        yield file


def _check_level(path: Path, part: Wave) -> None:
    """Raise BadAudio for a stretch that is silent or holds NaN or infinity."""
    largest = float(np.abs(part).max(initial=0.0))  # NaN if any value is NaN
    if not 10 ** (SILENCE_DBFS / 20) <= largest < np.inf:
        raise BadAudio(
            f"{path}: its largest value is {largest}; stretches that are silent or not finite "
            "cannot be used"
        )
