"""Seeded speech-like voices of any number: the demo and every recipe's smoke test run on them.

There are no recordings, and nothing is downloaded.

A voice is made of a source and a filter, after D. H. Klatt, "Software for a cascade/parallel
formant synthesizer" (JASA 1980): a glottal pulse train and aspiration noise go through a cascade of
moving formant resonators, and frication noise is added. A speaker has a vocal tract length, formant
offsets and bandwidths, a pitch with its range, an open quotient, a spectral tilt, breathiness, a
rate of speech and sibilants of its own. The words (random syllables), prosody, level and channel
change with every utterance, the channel most from one session to the other (even and odd
utterances). So the long-term spectrum is a poor cue, and a trained network does better.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy import signal

from likeness.eval.errors import LikenessError
from likeness.eval.progress import track

Wave = NDArray[np.float32]
Floats = NDArray[np.float64]

_HOP_SECONDS = 0.008  # the step in which the formants move


class Phone(NamedTuple):
    """One sound of speech.

    Attributes:
        formants: F1 to F3 in Hz of an average man.
        seconds: Its duration in seconds.
        voice: The amplitude of the pulses.
        breath: The amplitude of the aspiration.
        hiss: The amplitude of the frication.
        hiss_hz: The centre of the frication in Hz.
        damping: What multiplies the bandwidths: nasals are damped.
    """

    formants: tuple[float, float, float]
    seconds: float
    voice: float = 1.0
    breath: float = 0.0
    hiss: float = 0.0
    hiss_hz: float = 4000.0
    damping: float = 1.0


# Vowels: Peterson and Barney (1952), averages of men. Consonants: Klatt (1980), rounded.
_VOWELS = [
    Phone((270, 2290, 3010), 0.12),
    Phone((390, 1990, 2550), 0.09),
    Phone((530, 1840, 2480), 0.11),
    Phone((660, 1720, 2410), 0.15),
    Phone((730, 1090, 2440), 0.15),
    Phone((570, 840, 2410), 0.15),
    Phone((440, 1020, 2240), 0.09),
    Phone((300, 870, 2240), 0.12),
    Phone((640, 1190, 2390), 0.10),
    Phone((490, 1350, 1690), 0.13),
]
_CONSONANTS = [
    [Phone((270, 1100, 2150), 0.07, voice=0.45, damping=2.5)],  # m
    [Phone((270, 1500, 2500), 0.07, voice=0.45, damping=2.5)],  # n
    [Phone((320, 1050, 2900), 0.06, voice=0.6)],  # l
    [Phone((310, 1060, 1400), 0.06, voice=0.6)],  # r
    [Phone((290, 650, 2150), 0.06, voice=0.6)],  # w
    [Phone((280, 2100, 3000), 0.06, voice=0.6)],  # y
    [Phone((320, 1400, 2530), 0.11, voice=0.0, hiss=0.30, hiss_hz=5800)],  # s
    [Phone((300, 1800, 2500), 0.11, voice=0.0, hiss=0.40, hiss_hz=3000)],  # sh
    [Phone((340, 1100, 2080), 0.09, voice=0.0, hiss=0.07, hiss_hz=4600)],  # f
    [Phone((300, 1400, 2500), 0.07, voice=0.4, hiss=0.14, hiss_hz=5800)],  # z
    [Phone((500, 1500, 2500), 0.06, voice=0.0, breath=0.8)],  # h
    [
        Phone((300, 900, 2200), 0.06, voice=0.0),
        Phone((350, 900, 2200), 0.03, voice=0.0, breath=0.5, hiss=0.20, hiss_hz=1000),
    ],  # p
    [
        Phone((300, 1700, 2600), 0.06, voice=0.0),
        Phone((350, 1700, 2600), 0.03, voice=0.0, breath=0.5, hiss=0.35, hiss_hz=4300),
    ],  # t
    [
        Phone((300, 1900, 2700), 0.06, voice=0.0),
        Phone((350, 1900, 2700), 0.03, voice=0.0, breath=0.5, hiss=0.30, hiss_hz=2000),
    ],  # k
    [
        Phone((220, 900, 2200), 0.06, voice=0.15),
        Phone((300, 900, 2200), 0.015, hiss=0.12, hiss_hz=900),
    ],  # b
    [
        Phone((220, 1700, 2600), 0.06, voice=0.15),
        Phone((300, 1700, 2600), 0.015, hiss=0.20, hiss_hz=3800),
    ],  # d
]
_PAUSE = Phone((500, 1500, 2500), 0.12, voice=0.0)


@dataclass(frozen=True)
class Speaker:
    """What stays the same over a speaker's utterances.

    Frequencies are in Hz, the pitch range and slides in octaves.
    """

    pitch_hz: float
    pitch_range: float
    formant_scale: Floats  # (5,): vocal tract length times an offset of each formant
    bandwidth_scale: Floats  # (5,)
    open_quotient: float
    tilt: float  # pole of the one-pole low-pass on the source
    breathiness: float
    jitter: float
    tempo: float
    hiss_scale: float
    vowel_shift: Floats  # (vowels, 3): how this speaker says each vowel, a factor on F1 to F3


def speaker_traits(speaker: int, *, seed: int = 0) -> Speaker:
    """Draw the traits of a speaker; half of them have the shorter tract and higher pitch of women.

    Args:
        speaker: The number of the speaker.
        seed: The seed of all speakers.

    Returns:
        The traits, the same for the same arguments.
    """
    rng = np.random.default_rng([seed, speaker, 1])
    high = bool(rng.integers(2))
    tract = rng.normal(1.16, 0.06) if high else rng.normal(0.99, 0.06)
    return Speaker(
        pitch_hz=float((200.0 if high else 115.0) * 2 ** rng.normal(0.0, 0.22)),
        pitch_range=float(rng.uniform(0.08, 0.3)),
        formant_scale=tract * np.exp(rng.normal(0.0, [0.03, 0.04, 0.05, 0.06, 0.06])),
        bandwidth_scale=np.exp(rng.normal(0.0, 0.25, 5)),
        open_quotient=float(rng.uniform(0.45, 0.75)),
        tilt=float(rng.uniform(0.3, 0.8)),
        breathiness=float(np.exp(rng.uniform(np.log(0.01), np.log(0.12)))),
        jitter=float(rng.uniform(0.004, 0.02)),
        tempo=float(rng.uniform(0.8, 1.25)),
        hiss_scale=float(tract * np.exp(rng.normal(0.0, 0.08))),
        vowel_shift=np.exp(rng.normal(0.0, 0.04, (len(_VOWELS), 3))),
    )


def voice(
    speaker: int,
    utterance: int,
    *,
    seed: int = 0,
    seconds: tuple[float, float] = (1.5, 3.0),
    rate_hz: int = 16_000,
) -> Wave:
    """Synthesise one utterance, which is a pure function of its arguments.

    Args:
        speaker: The number of the speaker, from 0.
        utterance: The number of the utterance, from 0. Even and odd ones are two sessions.
        seed: The seed of all speakers, from 0.
        seconds: The shortest and the longest duration, which is drawn uniformly.
        rate_hz: The rate of the wave in Hz, at least 8000.

    Returns:
        (samples,) float32 in (-1, 1).

    Raises:
        LikenessError: A number is negative, seconds are below 0.3 or out of order, or the rate is
            too low.

    Example:
        >>> voice(0, 0, seconds=(0.3, 0.3)).shape
        (4800,)
    """
    if min(speaker, utterance, seed) < 0 or not 0.3 <= seconds[0] <= seconds[1] or rate_hz < 8_000:
        raise LikenessError(
            "voice: numbers from 0, seconds=(shortest, longest) of at least 0.3, and a rate of at "
            "least 8000 Hz are needed"
        )
    who = speaker_traits(speaker, seed=seed)
    rng = np.random.default_rng([seed, speaker, utterance, 2])
    samples = round(rng.uniform(*seconds) * rate_hz)
    hop = round(_HOP_SECONDS * rate_hz)
    phones, accents = _say(who, rng, samples / rate_hz)
    frames = -(-samples // hop)
    tracks = _tracks(phones, who, frames, hop / rate_hz)
    at = np.arange(samples) / hop

    def per_sample(track_of_frames: Floats) -> Floats:
        return np.interp(at, np.arange(frames), track_of_frames)

    pitch = _pitch(
        who, rng, np.interp(np.arange(frames), np.linspace(0, frames, len(accents)), accents)
    )
    source = _glottis(per_sample(pitch) / rate_hz, who, rng) * per_sample(tracks.voice)
    source += rng.standard_normal(samples) * (
        per_sample(tracks.breath) * 0.06 + who.breathiness * 0.5 * per_sample(tracks.voice)
    )
    spoken = _cascade(source, tracks, hop, rate_hz)
    spoken += _frication(per_sample(tracks.hiss), phones, who, rng, hop, rate_hz)
    return _channel(spoken, np.random.default_rng([seed, speaker, utterance % 2, 3]), rng, rate_hz)


def write_voices(
    folder: str | Path,
    *,
    num_speakers: int,
    num_utterances: int,
    seed: int = 0,
    seconds: tuple[float, float] = (1.5, 3.0),
    rate_hz: int = 16_000,
) -> None:
    """Write folder/spk000/utt00.flac and so on (16-bit), the same for the same arguments.

    Existing files are replaced.

    Args:
        folder: The folder to write to.
        num_speakers: How many speakers there are.
        num_utterances: How many utterances each of them has.
        seed: The seed of all speakers.
        seconds: The shortest and the longest duration.
        rate_hz: The rate of the files in Hz.

    Raises:
        LikenessError: As voice().
    """
    folder = Path(folder)
    for speaker in track(range(num_speakers), "synthesising voices"):
        speaker_folder = folder / f"spk{speaker:03d}"
        speaker_folder.mkdir(parents=True, exist_ok=True)
        for utterance in range(num_utterances):
            wave = voice(speaker, utterance, seed=seed, seconds=seconds, rate_hz=rate_hz)
            path = speaker_folder / f"utt{utterance:02d}.flac"
            soundfile.write(path, wave, rate_hz, subtype="PCM_16")


class _Tracks(NamedTuple):
    """Control tracks with one value a frame; formants and bandwidths are (frames, 5) in Hz."""

    formants: Floats
    bandwidths: Floats
    voice: Floats
    breath: Floats
    hiss: Floats


def _say(
    who: Speaker, rng: np.random.Generator, seconds: float
) -> tuple[list[tuple[Phone, float]], Floats]:
    """Draw random syllables, (phone, seconds) each, and accents for the pitch.

    Syllables follow each other until the time is filled.
    """
    phones: list[tuple[Phone, float]] = [(_PAUSE, rng.uniform(0.02, 0.1) * min(1.0, seconds))]
    syllables = 0
    while not syllables or sum(length for _, length in phones) < seconds - 0.1:
        number = int(rng.integers(len(_VOWELS)))
        vowel = _VOWELS[number]
        f1, f2, f3 = (
            float(f * shift)
            for f, shift in zip(vowel.formants, who.vowel_shift[number], strict=True)
        )
        syllable = [
            *_CONSONANTS[rng.integers(len(_CONSONANTS))],
            vowel._replace(formants=(f1, f2, f3)),
        ]
        if rng.random() < 0.3:
            # The first ten are no stops: a stop never closes a syllable.
            syllable.append(_CONSONANTS[rng.integers(10)][0])
        phones += [
            (phone, phone.seconds * float(np.exp(rng.normal(0.0, 0.2))) / who.tempo)
            for phone in syllable
        ]
        syllables += 1
        if rng.random() < 0.12:
            phones.append((_PAUSE, rng.uniform(0.05, 0.2)))
    phones.append((_PAUSE, seconds))  # the caller cuts this pause to the duration
    return phones, rng.normal(0.0, 1.0, max(2, syllables))


def _tracks(
    phones: list[tuple[Phone, float]], who: Speaker, frames: int, frame_seconds: float
) -> _Tracks:
    """Compute piecewise constant targets and smooth them.

    Formants are smoothed over about 50 ms (coarticulation), amplitudes over 25 ms.
    """
    ends = np.cumsum([length for _, length in phones])
    which = np.minimum(
        np.searchsorted(ends, (np.arange(frames) + 0.5) * frame_seconds, side="right"),
        len(phones) - 1,
    )
    targets = np.array([(*phone.formants, 3300.0, 3900.0) for phone, _ in phones])
    formants = targets[which] * who.formant_scale
    damping = np.array([phone.damping for phone, _ in phones])[which]
    bandwidths_hz = np.array([60.0, 90.0, 140.0, 220.0, 280.0])
    bandwidths = bandwidths_hz * who.bandwidth_scale * damping[:, None]

    def smooth(values: Floats, width: int) -> Floats:
        kernel = np.hanning(width + 2)[1:-1]
        padded = np.pad(values, ((width // 2, width // 2), (0, 0)), mode="edge")
        smoothed: Floats = signal.convolve(padded, (kernel / kernel.sum())[:, None], mode="valid")
        return smoothed

    amplitudes = np.array([(phone.voice, phone.breath, phone.hiss) for phone, _ in phones])
    levels = smooth(amplitudes[which], 3)
    return _Tracks(
        smooth(formants, 7), smooth(bandwidths, 7), levels[:, 0], levels[:, 1], levels[:, 2]
    )


def _pitch(who: Speaker, rng: np.random.Generator, accents: Floats) -> Floats:
    """Compute the pitch (frames,) in Hz from declination, accents and slow drift.

    Each utterance has its own register.
    """
    frames = len(accents)
    drift = signal.lfilter([0.05], [1.0, -0.95], rng.standard_normal(frames))
    octaves = (
        rng.normal(0.0, 0.06)
        + who.pitch_range * (0.5 - np.linspace(0.0, 1.2, frames) + 0.6 * accents)
        + 0.05 * drift
    )
    return np.clip(who.pitch_hz * 2**octaves, 55.0, 480.0)


def _glottis(cycles_per_sample: Floats, who: Speaker, rng: np.random.Generator) -> Floats:
    """Compute the source (samples,), which has unit power.

    It is the derivative of Rosenberg's glottal flow a t^2 - b t^3 over the open part of each cycle,
    with jitter, shimmer and tilt.
    """
    samples = len(cycles_per_sample)
    wobble = signal.lfilter([0.02], [1.0, -0.98], rng.standard_normal(samples))
    phase = rng.random() + np.cumsum(cycles_per_sample * (1.0 + 8.0 * who.jitter * wobble))
    cycle = np.floor(phase).astype(np.int64)
    within = (phase - cycle) / who.open_quotient
    shimmer = 1.0 + 4.0 * who.jitter * rng.standard_normal(int(cycle[-1]) + 2)
    flow = np.where(within < 1.0, 6.75 * within**2 * (1.0 - within), 0.0) * shimmer[cycle]
    pulses = signal.lfilter([1.0 - who.tilt], [1.0, -who.tilt], np.diff(flow, prepend=flow[0]))
    normalised: Floats = pulses / np.sqrt(np.mean(pulses**2))
    return normalised


def _cascade(source: Floats, tracks: _Tracks, hop: int, rate_hz: int) -> Floats:
    """Send the source (samples,) through five digital resonators whose coefficients move every hop.

    The state is carried over (Klatt 1980, eq. 1 and 2).
    """
    formants = np.minimum(tracks.formants, 0.46 * rate_hz)
    radius = np.exp(-np.pi * tracks.bandwidths / rate_hz)
    b = 2.0 * radius * np.cos(2.0 * np.pi * formants / rate_hz)
    c = -(radius**2)
    zero = np.zeros_like(b)
    sections = np.stack((1.0 - b - c, zero, zero, zero + 1.0, -b, -c), axis=2)  # (frames, 5, 6)
    state = np.zeros((5, 2))
    spoken = np.empty_like(source)
    for frame, sos in enumerate(sections):
        part = slice(frame * hop, (frame + 1) * hop)
        spoken[part], state = signal.sosfilt(sos, source[part], zi=state)
    return spoken


def _frication(
    level: Floats,
    phones: list[tuple[Phone, float]],
    who: Speaker,
    rng: np.random.Generator,
    hop: int,
    rate_hz: int,
) -> Floats:
    """Compute noise (samples,) through one broad resonance per hissing phone.

    It is added beside the cascade, because the constriction lies at the front of the mouth.
    """
    hissing = np.zeros_like(level)
    end = 0.0
    for phone, length in phones:
        start, end = end, end + length
        if phone.hiss == 0.0:
            continue
        part = slice(
            max(0, round(start * rate_hz) - 2 * hop),
            min(len(level), round(end * rate_hz) + 2 * hop),
        )
        if part.start >= part.stop:
            break
        centre = min(phone.hiss_hz * who.hiss_scale, 0.44 * rate_hz)
        radius = np.exp(-np.pi * (0.25 * centre + 300.0) / rate_hz)
        noise = rng.standard_normal(part.stop - part.start)
        coloured = signal.lfilter(
            [1.0, 0.0, -1.0],
            [1.0, -2.0 * radius * np.cos(2 * np.pi * centre / rate_hz), radius**2],
            noise,
        )
        hissing[part] += coloured / np.sqrt(np.mean(coloured**2)) * level[part]
    return hissing * 2.5


def _channel(
    spoken: Floats, session: np.random.Generator, rng: np.random.Generator, rate_hz: int
) -> Wave:
    """Record what was spoken by a channel.

    The channel is drawn for the session and varies a little by utterance. It has a tilt, a broad
    resonance of the room or microphone, a noise floor and a level.
    """
    tilt = session.uniform(-0.45, 0.45) + rng.normal(0.0, 0.05)
    centre, boost = session.uniform(300.0, 0.4 * rate_hz), session.uniform(-0.5, 1.0)
    received = signal.lfilter([1.0, tilt], [1.0], spoken)
    peak = signal.iirpeak(centre, 1.5, fs=rate_hz)
    received = received + boost * signal.lfilter(*peak, received)
    snr_db = session.uniform(20.0, 35.0) + rng.normal(0.0, 2.0)
    noise = signal.lfilter(
        [1.0], [1.0, -session.uniform(0.0, 0.9)], rng.standard_normal(len(received))
    )
    received += noise * np.sqrt(np.mean(received**2) / np.mean(noise**2) * 10 ** (-snr_db / 10))
    peak_level = 10 ** (rng.uniform(-16.0, -3.0) / 20)
    recorded: Wave = (received * (peak_level / np.abs(received).max())).astype(np.float32)
    return recorded
