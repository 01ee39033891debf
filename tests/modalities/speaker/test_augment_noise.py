"""Noise, rooms, gain and views: ratios measured on what comes out, convolution by hand, draws
counted.
"""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve

from likeness.modalities.speaker import noise
from likeness.modalities.speaker.audio import at_level
from likeness.modalities.speaker.augment import add_noise, train_view
from likeness.modalities.speaker.decoding import BadAudio, Wave
from likeness.modalities.synthetic import voice

WHOLE = voice(0, 0)
VOICE = WHOLE[:32000]
TONES_HZ = {
    "noise/a.wav": 500,
    "noise/free/b.wav": 1000,
    "music/c.flac": 1500,
    **{f"speech/us/{i}.wav": 2000 + 500 * i for i in range(4)},
}


def tone(hz: float, seconds: float = 4.0, rate_hz: int = 16000) -> Wave:
    """Whole periods in 2 s, so that tones are orthogonal there, whatever the start."""
    time = np.arange(int(seconds * rate_hz)) / rate_hz
    return (0.1 * np.sin(2 * np.pi * hz * time)).astype(np.float32)


def power_at(wave: Wave, hz: float) -> float:
    """The mean power of a tone in a wave."""
    phasor = np.exp(-2j * np.pi * hz * np.arange(len(wave)) / 16000)
    return float(2 * np.abs(np.mean(wave.astype(np.float64) * phasor)) ** 2)


def decibels(ratio: float) -> float:
    return float(10 * np.log10(ratio))


def power(wave: Wave) -> float:
    return float(np.mean(np.square(wave, dtype=np.float64)))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def musan(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("musan")
    for name, hz in TONES_HZ.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, tone(hz), 16000, subtype="PCM_24")
    (folder / "noise" / "README").touch()
    (folder / "noise" / ".hidden.wav").touch()
    return str(folder)


@pytest.fixture(scope="module")
def rirs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rirs")
    for number in range(3):
        decay = np.exp(-np.arange(4000) / 600) * rng(number).standard_normal(4000) * 0.02
        decay[:40] = 0
        decay[40 + number] = 0.5
        soundfile.write(folder / f"room{number}.wav", decay, 16000, subtype="FLOAT")
    return str(folder)


def heard_tone(wave: Wave) -> int:
    """The tone that was added to a silent-in-those-bins wave."""
    return max(TONES_HZ.values(), key=partial(power_at, wave))


def test_any_takes_each_file_alike_with_the_range_of_its_kind(musan: str) -> None:
    counts: Counter[str] = Counter()
    ranges = {"noise": (0, 15), "music": (5, 15), "speech": (10, 30)}
    seen: dict[str, list[float]] = {kind: [] for kind in ranges}
    short = VOICE[:3200]
    for seed in range(280):
        residue = noise.add_file(short, rng(seed), musan) - short
        name = next(name for name, hz in TONES_HZ.items() if hz == heard_tone(residue))
        counts[name] += 1
        seen[name.split("/")[0]].append(decibels(power(short) / power(residue)))
    assert set(counts) == set(TONES_HZ)
    # chi-square, 6 degrees of freedom, 1 in 1000
    assert sum((n - 40) ** 2 / 40 for n in counts.values()) < 22.5
    for kind, (lowest, highest) in ranges.items():
        assert lowest - 0.1 < min(seen[kind])
        assert max(seen[kind]) < highest + 0.1
        spread = (highest - lowest) / np.sqrt(12 * len(seen[kind]))
        assert np.mean(seen[kind]) == pytest.approx((lowest + highest) / 2, abs=4 * spread)


def test_reverberation_by_hand(rirs: str) -> None:
    path = noise.listing(rirs)[1]
    response = soundfile.read(path)[0]
    unit = response / np.sqrt((response**2).sum())
    # its direct path lies at sample 41
    expected = fftconvolve(VOICE.astype(np.float64), unit)[41 : 41 + len(VOICE)]
    in_room = noise.reverberate(VOICE, noise.impulse_response(path))
    np.testing.assert_allclose(in_room, expected, atol=1e-6)


def test_peak_of_the_corrupted_only(musan: str, rirs: str) -> None:
    rooms = [noise.reverberate(VOICE, noise.impulse_response(path)) for path in noise.listing(rirs)]
    in_a_room = 0
    for seed in range(20):
        out = noise.corrupt(VOICE, rng(seed), musan=musan, rirs=rirs)
        assert out.dtype == np.float32
        assert np.array_equal(out, VOICE) or np.abs(out).max() == pytest.approx(1.0, abs=1e-6)
        in_a_room += any(np.allclose(out, room / np.abs(room).max(), atol=1e-6) for room in rooms)
    assert in_a_room > 2


def test_wespeakers_shares(musan: str, rirs: str) -> None:
    """processor.py add_reverb_noise: 0.4 nothing, 0.3 reverberation, 0.3 noise."""
    counts: Counter[str] = Counter()
    short = VOICE[:1600]
    wespeaker = partial(noise.WESPEAKER, musan=musan, rirs=rirs)
    for seed in range(600):
        out = wespeaker(short, rng(seed))
        residue = out * (power(short) / float(np.mean(out * short))) - short
        most = max(power_at(residue, hz) for hz in TONES_HZ.values())
        if np.array_equal(out, short):
            counts["none"] += 1
        else:
            counts["noise" if 2 * most > power(residue) else "reverb"] += 1
    for name, share in (("none", 0.4), ("reverb", 0.3), ("noise", 0.3)):
        deviation = np.sqrt(share * (1 - share) / 600)
        assert counts[name] / 600 == pytest.approx(share, abs=4 * deviation)


def test_short_files_are_repeated_and_long_ones_cut(tmp_path: Path) -> None:
    ramp = np.linspace(0.1, 0.9, 16000, dtype=np.float32)
    soundfile.write(tmp_path / "ramp.wav", ramp, 16000, subtype="FLOAT")
    repeated = noise.stretch(tmp_path / "ramp.wav", 40000, rng())
    np.testing.assert_array_equal(repeated, np.concatenate((ramp, ramp, ramp[:8000])))
    starts = set()
    for seed in range(40):
        part = noise.stretch(tmp_path / "ramp.wav", 15997, rng(seed))
        start = int(np.argmin(np.abs(ramp - part[0])))
        np.testing.assert_array_equal(part, ramp[start : start + 15997])
        starts.add(start)
    assert starts == {0, 1, 2, 3}  # both ends are reached
    assert len(noise.stretch(tmp_path / "ramp.wav", 16000, rng())) == 16000


def test_what_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(16000), 16000)
    soundfile.write(tmp_path / "tone.wav", tone(1000), 16000)
    soundfile.write(tmp_path / "nan.wav", np.full(16000, np.nan), 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16000)
    (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(100))
    for seed in range(10):
        out = noise.add_file(VOICE, rng(seed), str(tmp_path))
        assert heard_tone(out - VOICE) == 1000
        assert np.isfinite(out).all()
    for name in ("silent", "nan", "empty", "broken"):
        with pytest.raises(BadAudio, match=name):
            noise.stretch(tmp_path / f"{name}.wav", 100, rng())
    only = tmp_path / "only"
    only.mkdir()
    (tmp_path / "silent.wav").rename(only / "silent.wav")
    with pytest.raises(ValueError, match=r"50 files .*from 1 .*silent\.wav"):
        noise.add_file(VOICE, rng(), str(only))


@settings(max_examples=30)
@given(st.floats(-10, 40), st.floats(0, 2), st.integers(0, 1000), st.floats(1e-4, 1.0))
def test_the_ratio_is_exact(snr_db: float, color: float, seed: int, level: float) -> None:
    added = rng(seed).standard_normal(len(VOICE)).astype(np.float32) * np.float32(level)
    drawn = add_noise(VOICE, rng(seed), snr_db=(snr_db, snr_db), color=(color, color))
    for noisy in (noise.mix(VOICE, added, snr_db), drawn):
        assert noisy.dtype == np.float32
        assert decibels(power(VOICE) / power(noisy - VOICE)) == pytest.approx(snr_db, abs=0.02)


def test_color_tilts_the_noise() -> None:
    for color, slope in ((0.0, 0.0), (1.0, -1.0), (2.0, -2.0)):
        added = add_noise(WHOLE, rng(0), snr_db=(0, 0), color=(color, color)) - WHOLE
        power = np.abs(np.fft.rfft(added)[1:]) ** 2
        fitted, _ = np.polyfit(np.log(np.arange(1, len(power) + 1)), np.log(power), 1)
        assert fitted == pytest.approx(slope, abs=0.1)


def view(seed: int, batch_seed: int, **settings: object) -> np.ndarray:
    return train_view(WHOLE, rng(seed), rng(batch_seed), **settings)  # type: ignore[arg-type]


def test_a_view_has_the_level_of_speech_after_everything_else() -> None:
    plain = view(0, 0, noise_prob=1.0)
    loud = view(0, 0, noise_prob=1.0, gain_prob=1.0, gain_db=(20.0, 20.0), level_dbfs=-26.0)
    quiet = view(0, 0, noise_prob=1.0, gain_prob=1.0, gain_db=(-20.0, -20.0), level_dbfs=-26.0)
    np.testing.assert_allclose(loud, quiet, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(loud, at_level(plain, -26.0), rtol=1e-4, atol=1e-7)


def test_a_batch_shares_its_length_and_nothing_else() -> None:
    lengths = {len(view(seed, 7, seconds=(1.0, 4.0))) for seed in range(5)}
    assert len(lengths) == 1
    assert len({len(view(0, batch, seconds=(1.0, 4.0))) for batch in range(5)}) == 5
    assert not np.array_equal(view(0, 7), view(1, 7))


def test_the_view_is_a_function_of_its_generators() -> None:
    settings = {"seconds": (0.5, 4.0), "noise_prob": 0.5, "gain_prob": 0.5}
    for seed in range(10):
        assert np.array_equal(view(seed, seed, **settings), view(seed, seed, **settings))
    assert view(0, 0).shape == (48000,)
    assert len(view(0, 0, seconds=(6.0, 6.0))) == 96000  # repeated: the file is shorter


def test_noise_and_rooms_are_read_at_the_views_rate() -> None:
    heard: list[int] = []

    def corrupt(wave: np.ndarray, rng: np.random.Generator, *, rate_hz: int = 16_000) -> np.ndarray:
        heard.append(rate_hz)
        return wave

    for rate_hz in (8_000, 16_000):
        assert len(view(0, 0, seconds=(1.0, 1.0), rate_hz=rate_hz, corrupt=corrupt)) == rate_hz
    assert heard == [8_000, 16_000]


def test_a_pure_delay_is_undone_at_the_same_level() -> None:
    for level in (0.01, -3.0):
        response = np.zeros(500, dtype=np.float32)
        response[123] = level
        undone = noise.reverberate(VOICE, response)
        np.testing.assert_allclose(undone, np.sign(level) * VOICE, atol=1e-6)
