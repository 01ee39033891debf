"""Noise, music, babble and room impulse responses from the user's folders, mixed into waves.

The mixing follows published tools and is deterministic given the generator. The folders are those
of MUSAN (noise/, music/, speech/) and RIRS_NOISES, or any of that shape.

Sources: WeSpeaker wespeaker/dataset/processor.py add_reverb_noise; 3D-Speaker
speakerlab/process/augmentation.py and processor.py SpkVeriAug; voxceleb_trainer DatasetLoader.py
AugmentWAV (babble).

One rule differs from all three. Their signal-to-noise ratios add 1e-4 (3D-Speaker: 1e-6) to both
powers, so that a wave that is quieter than -40 dBFS is drowned. Here the ratio is the one that was
drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from eval.errors import LikenessError
from modalities.speaker.audio import resample
from modalities.speaker.decoding import SILENCE_DBFS, SUFFIXES, BadAudio, Wave

Corruption = Literal["reverb", "any", "noise", "music", "speech", "babble", "reverb+any"]
Range = tuple[float, float]

_KINDS = ("noise", "music", "speech")
_CORRUPTIONS: tuple[Corruption, ...] = (
    "reverb",
    "any",
    "noise",
    "music",
    "speech",
    "babble",
    "reverb+any",
)
# How many unusable files may be drawn in a row. With half of the files unusable that happens once
# in 1e15 draws.
_TRIES = 50
_RIR_SECONDS = 10.0  # longer impulse responses are cut, because nothing audible is left by then
_RATES_HZ = (1_000, 192_000)
_MAX_CHANNELS = 64  # bounds the memory, together with the two above, whatever a header says


@lru_cache(maxsize=32)
def listing(folder: str) -> tuple[Path, ...]:
    """List all audio files below a folder, sorted by path, without hidden ones.

    The folder is read once in a process, so files that are added later are not seen.

    Args:
        folder: The path of the folder.

    Returns:
        The paths of the files.

    Raises:
        LikenessError: The folder is missing or holds no audio files.
    """
    root = Path(folder)
    if not folder or not root.is_dir():
        raise LikenessError(
            f"augmentation: {folder!r} is no folder; give the one with the audio files, or leave "
            "the augmentation out"
        )
    paths = [
        Path(parent, name)
        for parent, _, names in os.walk(root)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
    ]
    if not paths:
        raise LikenessError(
            f"augmentation: {folder}: no audio files below it ({', '.join(SUFFIXES)}); give the "
            "folder into which the archive was unpacked"
        )
    return tuple(sorted(paths, key=Path.as_posix))


@lru_cache(maxsize=32)
def kinds(folder: str) -> Mapping[str, tuple[Path, ...]]:
    """Sort the files of a folder into "noise", "music" and "speech", by the first folder below it.

    All other files are noise, which is WeSpeaker's rule.

    Args:
        folder: The path of the folder.

    Returns:
        The paths of the files of each kind.

    Raises:
        LikenessError: The folder is missing or holds no audio files.
    """
    sorted_in: dict[str, list[Path]] = {kind: [] for kind in _KINDS}
    for path in listing(folder):
        first = path.relative_to(folder).parts[0]
        sorted_in[first if first in _KINDS else "noise"].append(path)
    return {kind: tuple(paths) for kind, paths in sorted_in.items()}


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
    try:
        with soundfile.SoundFile(path) as file:
            file_hz, frames = _checked(path, file)
            needed = -(-num_samples * file_hz // rate_hz)  # rounded up
            start = int(rng.integers(max(1, frames - needed + 1)))
            file.seek(start)
            raw = file.read(min(needed, frames), dtype="float32", always_2d=True)
            part: Wave = raw.mean(axis=1, dtype=np.float32)
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudio(f"{path}: unreadable, {error}; repair or remove the file") from error
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
    try:
        with soundfile.SoundFile(path) as file:
            file_hz, frames = _checked(path, file)
            longest = int(_RIR_SECONDS * file_hz)
            raw = file.read(min(frames, longest), dtype="float32", always_2d=True)
            response: Wave = raw[:, 0].copy()
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudio(f"{path}: unreadable, {error}; repair or remove the file") from error
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
    return wave + _scaled(noise, wave, snr_db)


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
    from scipy.signal import fftconvolve  # slow to import, needed here only

    direct = int(np.abs(response).argmax())
    unit = response / np.sqrt(np.sum(np.square(response, dtype=np.float64))).astype(np.float32)
    reverberant: Wave = fftconvolve(wave, unit)[direct : direct + len(wave)].astype(np.float32)
    return reverberant


def corrupt(
    wave: Wave,
    rng: np.random.Generator,
    *,
    musan: str = "",
    rirs: str = "",
    prob: float = 0.6,
    choices: tuple[Corruption, ...] = ("reverb", "any"),
    noise_snr_db: Range = (0.0, 15.0),
    music_snr_db: Range = (5.0, 15.0),
    speech_snr_db: Range = (10.0, 30.0),
    babble_snr_db: Range = (13.0, 20.0),
    babble_speakers: tuple[int, int] = (3, 7),
    peak: bool = True,
    rate_hz: int = 16_000,
) -> Wave:
    """Do one of `choices` to a wave with probability `prob`; all choices are equally probable.

    Files that cannot be used are passed over, up to 50 in a row.

    Args:
        wave: (samples,) float32.
        rng: The generator of all draws.
        musan: The folder of noise, see kinds().
        rirs: The folder of impulse responses.
        prob: The probability that anything is done.
        choices: "reverb" convolves with one of rirs. "noise", "music" and "speech" add one file of
            that kind. "any" adds one of all files, each equally probable. "babble" adds several
            different speech files. "reverb+any" does both, in that order.
        noise_snr_db: The range of the signal-to-noise ratio of noise in dB; the ratio is drawn
            uniformly. music_snr_db, speech_snr_db and babble_snr_db are those of the other kinds.
        babble_speakers: The fewest and the most speech files of "babble". Each is at its own ratio,
            so that together they are about 10 log10(speakers) dB louder.
        peak: Whether a corrupted wave is divided by its largest absolute value, as WeSpeaker and
            3D-Speaker do. Waves that were not corrupted stay as they are.
        rate_hz: The rate of the wave in Hz.

    Returns:
        (samples,) float32.

    Raises:
        LikenessError: A folder is missing or lacks the kinds that the choices need, a range is out
            of order, or a choice is unknown. This is raised at the first call, whatever it draws.
    """
    ranges = {"noise": noise_snr_db, "music": music_snr_db, "speech": speech_snr_db}
    _check(musan, rirs, prob, choices, {**ranges, "babble": babble_snr_db}, babble_speakers)
    if rng.random() >= prob:
        return wave
    choice = choices[int(rng.integers(len(choices)))]
    if choice.startswith("reverb"):
        read_response = partial(impulse_response, rate_hz=rate_hz)
        wave = reverberate(wave, _usable(listing(rirs), read_response, rng)[1])
    read_noise = partial(stretch, num_samples=len(wave), rng=rng, rate_hz=rate_hz)
    if choice == "babble":
        number = int(rng.integers(babble_speakers[0], babble_speakers[1] + 1))
        wave = wave + _babble(wave, rng, kinds(musan)["speech"], read_noise, number, babble_snr_db)
    elif choice != "reverb":
        files = listing(musan) if choice.endswith("any") else kinds(musan)[choice]
        path, noise = _usable(files, read_noise, rng)
        wave = mix(wave, noise, rng.uniform(*ranges[_kind_of(path, musan)]))
    return _of_peak_one(wave) if peak else wave


def _of_peak_one(wave: Wave) -> Wave:
    """The wave divided by its largest absolute value; as it is where that is 0."""
    largest = float(np.abs(wave).max())
    return wave / np.float32(largest) if largest > 0 else wave


def _kind_of(path: Path, musan: str) -> str:
    """Which kind of noise a file of the folder is."""
    first = path.relative_to(musan).parts[0]
    return first if first in _KINDS else "noise"


def _babble(
    wave: Wave,
    rng: np.random.Generator,
    speakers: Sequence[Path],
    read_noise: Callable[[Path], Wave],
    number: int,
    snr_db: Range,
) -> Wave:
    """The sum of `number` different files of speech, each at a ratio of its own to the wave."""
    babble = np.zeros_like(wave)
    # The groups are disjoint, so that no file is drawn twice.
    for group in np.array_split(rng.permutation(len(speakers)), number):
        _, noise = _usable([speakers[i] for i in group], read_noise, rng)
        babble += _scaled(noise, wave, rng.uniform(*snr_db))
    return babble


# The rules of published tools, as parts: partial(WESPEAKER, musan=..., rirs=...). CAM++ of
# 3D-Speaker takes prob=0.2.
WESPEAKER = partial(corrupt, prob=0.6, choices=("reverb", "any"))
THREED_SPEAKER = partial(
    corrupt,
    prob=0.8,
    choices=("any", "reverb", "reverb+any"),
    noise_snr_db=(0.0, 15.0),
    music_snr_db=(0.0, 15.0),
    speech_snr_db=(0.0, 15.0),
)
VOXCELEB_TRAINER = partial(
    corrupt, prob=0.8, choices=("reverb", "music", "babble", "noise"), peak=False
)


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


def _scaled(noise: Wave, wave: Wave, snr_db: float) -> Wave:
    """Scale noise so that the ratio of the mean powers of wave and noise is snr_db."""
    signal_power = float(np.mean(np.square(wave, dtype=np.float64)))
    noise_power = float(np.mean(np.square(noise, dtype=np.float64)))
    if noise_power == 0.0:
        return noise
    return noise * np.float32(np.sqrt(signal_power / noise_power * 10 ** (-snr_db / 10)))


def _checked(path: Path, file: soundfile.SoundFile) -> tuple[int, int]:
    """Return the rate and the length of an opened file.

    A header that is absurd or does not state the length raises BadAudio.
    """
    rate_hz, frames, channels = int(file.samplerate), int(file.frames), int(file.channels)
    if not (
        _RATES_HZ[0] <= rate_hz <= _RATES_HZ[1]
        and 1 <= frames < 2**62
        and channels <= _MAX_CHANNELS
    ):
        raise BadAudio(
            f"{path}: the header states {rate_hz} Hz, {frames} samples and {channels} channels;"
            f" {_RATES_HZ[0]} to {_RATES_HZ[1]} Hz, some samples and at most {_MAX_CHANNELS} "
            "channels are needed"
        )
    return rate_hz, frames


def _check_level(path: Path, part: Wave) -> None:
    """Raise BadAudio for a stretch that is silent or holds NaN or infinity."""
    largest = float(np.abs(part).max(initial=0.0))  # NaN if any value is NaN
    if not 10 ** (SILENCE_DBFS / 20) <= largest < np.inf:
        raise BadAudio(
            f"{path}: its largest value is {largest}; stretches that are silent or not finite "
            "cannot be used"
        )


def _check(
    musan: str,
    rirs: str,
    prob: float,
    choices: Sequence[str],
    ranges: Mapping[str, Range],
    speakers: tuple[int, int],
) -> None:
    """Refuse settings of corrupt() that contradict each other or the folders."""
    if not 0.0 <= prob <= 1.0:
        raise LikenessError(f"augmentation: prob is {prob}; a probability from 0 to 1 is needed")
    unknown = [choice for choice in choices if choice not in _CORRUPTIONS]
    if unknown or not choices:
        raise LikenessError(
            f"augmentation: choices {choices} must be one or more of {', '.join(_CORRUPTIONS)}"
        )
    for name, (lowest, highest) in ranges.items():
        if not -np.inf < lowest <= highest < np.inf:
            raise LikenessError(
                f"augmentation: {name}_snr_db ({lowest}, {highest}) must be (lowest, highest), "
                "both finite"
            )
    if any(choice.startswith("reverb") for choice in choices):
        listing(rirs)
    if any(choice != "reverb" for choice in choices):
        files = kinds(musan)
        kind_of = {"babble": "speech"} | {kind: kind for kind in _KINDS}
        needed = {kind_of[choice] for choice in choices if choice in kind_of}
        missing = sorted(kind for kind in needed if not files[kind])
        if missing:
            raise LikenessError(
                f"augmentation: {musan}: no files in its folders {', '.join(missing)}; musan is "
                "the folder that holds noise/, music/ and speech/"
            )
        if "babble" in choices and not 1 <= speakers[0] <= speakers[1] <= len(files["speech"]):
            raise LikenessError(
                f"augmentation: babble_speakers {speakers} must be in order, from 1 to the "
                f"{len(files['speech'])} files of {musan}/speech"
            )
