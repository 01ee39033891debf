"""Noise, music, babble and room impulse responses from the user's folders, mixed into waves as the
field's tools do. Deterministic given the generator.

Sources: WeSpeaker wespeaker/dataset/processor.py add_reverb_noise; 3D-Speaker
speakerlab/process/augmentation.py and processor.py SpkVeriAug; voxceleb_trainer DatasetLoader.py
AugmentWAV (babble). One rule differs from all three: their signal-to-noise ratios add 1e-4
(3D-Speaker: 1e-6) to both powers, so that what is quieter than -40 dBFS is drowned; here the ratio
is the one that was drawn. Folders: MUSAN's (noise/, music/, speech/) and RIRS_NOISES', or any of
that shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from modalities.speaker.audio import SILENCE_DBFS, SUFFIXES, BadAudio, Wave, resample

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
_TRIES = 50  # files drawn in a row before giving up: with half of them unusable, once in 1e15 draws
_RIR_SECONDS = 10.0  # longer impulse responses are cut: nothing audible is left
_RATES_HZ = (1_000, 192_000)
_MAX_CHANNELS = 64  # with the two above, the bound on memory, whatever a header says


@lru_cache(maxsize=32)
def listing(folder: str) -> tuple[Path, ...]:
    """All audio files below a folder, sorted by path, hidden ones left out; read once in a process,
    so files that come later are not seen.

    ValueError for a missing folder and one without audio files.
    """
    root = Path(folder)
    if not folder or not root.is_dir():
        raise ValueError(
            f"augmentation: {folder!r} is no folder; give the one with the audio files, or leave "
            "the augmentation out"
        )
    found = [
        Path(where, name)
        for where, _, names in os.walk(root)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
    ]
    if not found:
        raise ValueError(
            f"augmentation: {folder}: no audio files below it ({', '.join(SUFFIXES)}); give the "
            "folder where it was unpacked"
        )
    return tuple(sorted(found, key=Path.as_posix))


@lru_cache(maxsize=32)
def kinds(folder: str) -> Mapping[str, tuple[Path, ...]]:
    """The files of a folder as "noise", "music" and "speech", by the first folder below it; all
    else is noise (WeSpeaker's rule). ValueError as listing().
    """
    sorted_in: dict[str, list[Path]] = {kind: [] for kind in _KINDS}
    for path in listing(folder):
        first = path.relative_to(folder).parts[0]
        sorted_in[first if first in _KINDS else "noise"].append(path)
    return {kind: tuple(paths) for kind, paths in sorted_in.items()}


def stretch(
    path: Path, num_samples: int, rng: np.random.Generator, *, rate_hz: int = 16_000
) -> Wave:
    """(num_samples,) of a file from a uniformly drawn start, channels averaged; only that part is
    read. A shorter file is repeated from its beginning.

    One draw in either case. BadAudio for a file that cannot be read, or whose stretch is silent
    (peak below -90 dBFS) or not finite.
    """
    try:
        with soundfile.SoundFile(path) as file:
            file_hz, frames = _checked(path, file)
            wanted = -(-num_samples * file_hz // rate_hz)
            start = int(rng.integers(max(1, frames - wanted + 1)))
            file.seek(start)
            read: Wave = file.read(min(wanted, frames), dtype="float32", always_2d=True).mean(
                axis=1, dtype=np.float32
            )
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudio(f"{path}: unreadable, {error}; repair or remove the file") from error
    _check_level(path, read)
    return np.resize(resample(read, file_hz, rate_hz), num_samples)  # repeats, where it is shorter


def impulse_response(path: Path, *, rate_hz: int = 16_000) -> Wave:
    """(samples,) of a file's first channel, at most 10 s: channels of a microphone array must not
    be averaged. BadAudio as stretch().
    """
    try:
        with soundfile.SoundFile(path) as file:
            file_hz, frames = _checked(path, file)
            read: Wave = file.read(
                min(frames, int(_RIR_SECONDS * file_hz)), dtype="float32", always_2d=True
            )[:, 0].copy()
    except (soundfile.SoundFileError, OSError) as error:
        raise BadAudio(f"{path}: unreadable, {error}; repair or remove the file") from error
    _check_level(path, read)
    return resample(read, file_hz, rate_hz)


def mix(wave: Wave, noise: Wave, snr_db: float) -> Wave:
    """wave + noise, the noise scaled to exactly that ratio of the two mean powers.

    A silent wave or noise leaves the wave as it is.
    """
    return wave + _scaled(noise, wave, snr_db)


def reverberate(wave: Wave, response: Wave) -> Wave:
    """(samples,) convolved with an impulse response of unit energy, of the same length: WeSpeaker's
    rule for the level.

    The result is shifted so that the direct path (the response's largest value) does not delay it,
    as Kaldi's wav-reverberate does; WeSpeaker leaves the delay.
    """
    from scipy.signal import fftconvolve  # slow to import, needed here only

    direct = int(np.abs(response).argmax())
    unit = response / np.sqrt(np.sum(np.square(response, dtype=np.float64))).astype(np.float32)
    heard: Wave = fftconvolve(wave, unit)[direct : direct + len(wave)].astype(np.float32)
    return heard


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
    """With probability `prob`, one of `choices`, all equally probable. (samples,) in and out.

    musan: folder of noise (see kinds()); rirs: folder of impulse responses. "reverb": one of rirs.
    "noise", "music", "speech": one file of that kind; "any": one of all files, each equally
    probable. "babble": babble_speakers different speech files (both bounds included), each at its
    own ratio, so that together they are about 10 log10(speakers) dB louder. "reverb+any": both, in
    that order. The signal-to-noise ratio is drawn uniformly from the kind's range.
    peak: a corrupted wave is divided by its largest absolute value (WeSpeaker and 3D-Speaker; the
    others stay as they are).

    Files that cannot be used are passed over, up to 50 in a row. ValueError, at the first call
    whatever it draws: a missing folder or one without the kinds that the choices need, a range out
    of order, an unknown choice.
    """
    ranges = {"noise": noise_snr_db, "music": music_snr_db, "speech": speech_snr_db}
    _check(musan, rirs, prob, choices, {**ranges, "babble": babble_snr_db}, babble_speakers)
    if rng.random() >= prob:
        return wave
    choice = choices[int(rng.integers(len(choices)))]
    if choice.startswith("reverb"):
        wave = reverberate(
            wave, _usable(listing(rirs), partial(impulse_response, rate_hz=rate_hz), rng)[1]
        )
    if choice == "babble":
        speakers = kinds(musan)["speech"]
        number = int(rng.integers(babble_speakers[0], babble_speakers[1] + 1))
        babble = np.zeros_like(wave)
        for group in np.array_split(
            rng.permutation(len(speakers)), number
        ):  # disjoint groups: no file is drawn twice
            _, noise = _usable(
                [speakers[i] for i in group],
                partial(stretch, num_samples=len(wave), rng=rng, rate_hz=rate_hz),
                rng,
            )
            babble += _scaled(noise, wave, rng.uniform(*babble_snr_db))
        wave = wave + babble
    elif choice != "reverb":
        files = listing(musan) if choice.endswith("any") else kinds(musan)[choice]
        path, noise = _usable(
            files, partial(stretch, num_samples=len(wave), rng=rng, rate_hz=rate_hz), rng
        )
        first = path.relative_to(musan).parts[0]
        wave = mix(wave, noise, rng.uniform(*ranges[first if first in _KINDS else "noise"]))
    largest = float(np.abs(wave).max())
    return wave / np.float32(largest) if peak and largest > 0 else wave


# The field's rules, as parts: partial(WESPEAKER, musan=..., rirs=...). CAM++ of 3D-Speaker takes
# prob=0.2.
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
    """A drawn file and what is read of it; files that cannot be used are passed over."""
    for _ in range(_TRIES):
        path = files[int(rng.integers(len(files)))]
        try:
            return path, read(path)
        except BadAudio as error:
            last = error
    raise ValueError(
        f"augmentation: {_TRIES} files drawn in a row from {len(files)} cannot be used; repair the "
        f"folder; the last: {last}"
    )


def _scaled(noise: Wave, wave: Wave, snr_db: float) -> Wave:
    signal_power, noise_power = (
        float(np.mean(np.square(one, dtype=np.float64))) for one in (wave, noise)
    )
    if noise_power == 0.0:
        return noise
    return noise * np.float32(np.sqrt(signal_power / noise_power * 10 ** (-snr_db / 10)))


def _checked(path: Path, file: soundfile.SoundFile) -> tuple[int, int]:
    """Rate and frames of an opened file; BadAudio for a header that is absurd or leaves the length
    open.
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


def _check_level(path: Path, read: Wave) -> None:
    """BadAudio for NaN, infinity and silence."""
    largest = float(np.abs(read).max(initial=0.0))  # NaN if any value is
    if not 10 ** (SILENCE_DBFS / 20) <= largest < np.inf:
        raise BadAudio(
            f"{path}: its largest value is {largest}; silent and not finite stretches cannot be "
            "used"
        )


def _check(
    musan: str,
    rirs: str,
    prob: float,
    choices: Sequence[str],
    ranges: Mapping[str, Range],
    speakers: tuple[int, int],
) -> None:
    if not 0.0 <= prob <= 1.0:
        raise ValueError(f"augmentation: prob is {prob}; a probability from 0 to 1 is needed")
    unknown = [choice for choice in choices if choice not in _CORRUPTIONS]
    if unknown or not choices:
        raise ValueError(
            f"augmentation: choices {choices} must be one or more of {', '.join(_CORRUPTIONS)}"
        )
    for name, (lowest, highest) in ranges.items():
        if not -np.inf < lowest <= highest < np.inf:
            raise ValueError(
                f"augmentation: {name}_snr_db ({lowest}, {highest}) must be (lowest, highest), "
                "both finite"
            )
    if any(choice.startswith("reverb") for choice in choices):
        listing(rirs)
    if any(choice != "reverb" for choice in choices):
        found = kinds(musan)
        needed = {"babble": "speech"} | {kind: kind for kind in _KINDS}
        missing = sorted(
            {needed[choice] for choice in choices if choice in needed and not found[needed[choice]]}
        )
        if missing:
            raise ValueError(
                f"augmentation: {musan}: no files in its folders {', '.join(missing)}; musan is "
                "the folder that holds noise/, music/ and speech/"
            )
        if "babble" in choices and not 1 <= speakers[0] <= speakers[1] <= len(found["speech"]):
            raise ValueError(
                f"augmentation: babble_speakers {speakers} must be in order, from 1 to the "
                f"{len(found['speech'])} files of {musan}/speech"
            )
