"""Augmenting speech: exact noise ratios, coloured noise, gain, and views that repeat exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.modalities.speaker.augment import add_noise, gain, train_view
from likeness.modalities.synthetic import voice

VOICE = voice(0, 0)


@given(st.floats(-5, 40), st.floats(0, 2), st.integers(0, 1000))
def test_snr_is_exact(snr_db: float, color: float, seed: int) -> None:
    noisy = add_noise(
        VOICE, np.random.default_rng(seed), snr_db=(snr_db, snr_db), color=(color, color)
    )
    noise = noisy.astype(np.float64) - VOICE
    assert noisy.dtype == np.float32
    assert 10 * np.log10(
        np.mean(VOICE.astype(np.float64) ** 2) / np.mean(noise**2)
    ) == pytest.approx(snr_db, abs=0.01)


def test_color_tilts_the_noise() -> None:
    for color, slope in ((0.0, 0.0), (1.0, -1.0), (2.0, -2.0)):
        noise = (
            add_noise(VOICE, np.random.default_rng(0), snr_db=(0, 0), color=(color, color)) - VOICE
        )
        power = np.abs(np.fft.rfft(noise)[1:]) ** 2
        assert np.polyfit(np.log(np.arange(1, len(power) + 1)), np.log(power), 1)[
            0
        ] == pytest.approx(slope, abs=0.1)


def test_silence_stays() -> None:
    assert not add_noise(np.zeros(100, dtype=np.float32), np.random.default_rng(0)).any()
    assert add_noise(np.ones(1, dtype=np.float32), np.random.default_rng(0)).shape == (1,)


def test_gain() -> None:
    louder = gain(VOICE, np.random.default_rng(0), (6.0, 6.0))
    np.testing.assert_allclose(louder, VOICE * 10**0.3, rtol=1e-6)
    assert louder.dtype == np.float32


def view(seed: int, batch_seed: int, **settings: object) -> np.ndarray:
    return train_view(
        VOICE, np.random.default_rng(seed), np.random.default_rng(batch_seed), **settings
    )  # type: ignore[arg-type]


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
