"""Codecs, and augmentation in a run that resumes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.modalities.folders import items
from likeness.modalities.speaker.augment import WESPEAKER_VIEW, clip
from likeness.modalities.speaker.codec import Codec, round_trip, telephone, transmit
from likeness.modalities.speaker.features import WESPEAKER_FBANK
from likeness.modalities.speaker.spec_augment import spec_augment
from likeness.modalities.synthetic import voice
from likeness.models.run import load_model
from likeness.recipe import Recipe, fit, override
from likeness.toolkit.models.embed import embed
from tests.modalities.speaker import test_voxceleb
from tests.tiny import BASE
from tests.toolkit.training.tiny_runs import cut_and_resumed, same

VOICE = voice(0, 0)[:32000]
FILES: tuple[Codec, ...] = ("mp3", "vorbis", "opus")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mulaw_levels() -> np.ndarray:
    """ITU-T G.711 table 2: sixteen steps in each of eight segments, 14 bits, in units of 2**-13."""
    positive = [((2 * step + 33) << segment) - 33 for segment in range(8) for step in range(16)]
    return np.array(sorted({sign * value for value in positive for sign in (1, -1)})) / 2**13


def alaw_levels() -> np.ndarray:
    """ITU-T G.711 table 1: 13 bits, in units of 2**-12."""
    positive = [2 * step + 1 for step in range(16)]
    positive += [(2 * step + 33) << segment for segment in range(7) for step in range(16)]
    return np.array(sorted({sign * value for value in positive for sign in (1, -1)})) / 2**12


@pytest.mark.parametrize(("law", "levels"), [("mulaw", mulaw_levels()), ("alaw", alaw_levels())])
def test_companding_is_g711(law: Codec, levels: np.ndarray) -> None:
    wave = (VOICE[:8000] * 0.98 / np.abs(VOICE[:8000]).max()).astype(np.float32)
    heard = round_trip(wave, law, rate_hz=8000).astype(np.float64)
    nearest = np.abs(heard[:, None] - levels).argmin(1)
    np.testing.assert_allclose(heard, levels[nearest], atol=1e-6)  # no other values occur
    steps = np.diff(levels)
    widest = np.maximum(np.r_[steps, steps[-1]], np.r_[steps[0], steps])[nearest]
    # half a step, to the resolution of the input
    assert (np.abs(heard - wave) <= 0.5 * widest + 2**-12).all()
    assert len(np.unique(heard)) > 100


@pytest.mark.parametrize("law", ["mulaw", "alaw", "gsm"])
def test_the_telephone_has_its_band_and_no_delay(law: Any) -> None:
    white = rng().standard_normal(64000).astype(np.float32) * 0.1
    heard = telephone(white, law)
    assert heard.shape == white.shape
    power = np.abs(np.fft.rfft(heard)) ** 2 / np.abs(np.fft.rfft(white)) ** 2
    hz = np.fft.rfftfreq(64000, 1 / 16000)
    edges = ((20, 120), (500, 3000), (4200, 8000))
    medians = [np.median(power[(hz > low) & (hz < high)]) for low, high in edges]
    band = 10 * np.log10(medians)
    assert band[0] < (-25 if law != "gsm" else -12)  # GSM models speech
    assert abs(band[1]) < (0.5 if law != "gsm" else 3)
    assert band[2] < -30
    assert int(np.argmax(np.correlate(heard[1000:9000], white[1010:8990], "valid"))) == 10


@pytest.mark.parametrize("codec", FILES)
def test_lossy_files_keep_time_and_level(codec: Codec) -> None:
    errors = []
    for compression in (0.3, 0.95):
        heard = round_trip(VOICE, codec, compression=compression)
        assert heard.shape == VOICE.shape
        assert heard.dtype == np.float32
        assert np.corrcoef(heard, VOICE)[0, 1] > 0.85
        errors.append(float(np.mean((heard - VOICE) ** 2)))
    assert 0 < errors[0] < errors[1]
    if codec == "mp3":
        for kbps in (16, 40, 64):
            heard = round_trip(VOICE, codec, compression=(160 - kbps) / 152, constant=True)
            assert np.corrcoef(heard, VOICE)[0, 1] > 0.85
    loud = round_trip(VOICE * 20, codec)
    assert np.abs(loud).max() > 2.0
    assert np.corrcoef(loud, VOICE)[0, 1] > 0.9


def test_any_length_and_any_level() -> None:
    for codec in ("mulaw", "alaw", "gsm", *FILES):
        coded = round_trip if codec in FILES else telephone
        for size in (1, 2, 57, 1000):
            for wave in (VOICE[3000 : 3000 + size], np.zeros(size, dtype=np.float32)):
                heard = coded(wave, codec)
                assert heard.shape == wave.shape
                assert np.isfinite(heard).all()


def test_each_codec_is_drawn_and_draws_are_repeated() -> None:
    short = VOICE[4000:5600]
    exact = {law: telephone(short, law) for law in ("mulaw", "alaw")}
    drawn = [transmit(short, rng(seed), codecs=("mulaw", "alaw", "vorbis")) for seed in range(60)]
    counts = {law: sum(np.array_equal(draw, wave) for draw in drawn) for law, wave in exact.items()}
    assert 9 < counts["mulaw"] < 32
    assert 9 < counts["alaw"] < 32
    assert 9 < 60 - sum(counts.values()) < 32
    for seed in range(6):
        assert np.array_equal(transmit(short, rng(seed)), transmit(short, rng(seed)))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.floats(1e-4, 10))
def test_clipping(seed: int, level: float, scale: float) -> None:
    wave = VOICE * np.float32(scale)
    clipped = clip(wave, rng(seed), (level, level))
    bound = np.float32(np.abs(wave).max() * level)
    assert np.abs(clipped).max() == pytest.approx(bound, rel=1e-5)
    inside = np.abs(wave) < bound * 0.9999
    assert np.array_equal(clipped[inside], wave[inside])
    assert clipped.dtype == np.float32


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("noises")
    test_voxceleb.miniature(folder)
    view, mask = partial(WESPEAKER_VIEW, seconds=(0.4, 0.5)), partial(spec_augment, prob=0.0)
    base = replace(BASE, frontend=partial(WESPEAKER_FBANK, num_mels=16), augment=view, mask=mask)
    corrupt = [f"augment.corrupt.{name}={folder / name}" for name in ("musan", "rirs")]
    settings = [*corrupt, "frontend.low_hz=30", "mask.prob=1.0"]
    return override(replace(base, measure=None), settings)


def test_resumes_bit_for_bit(recipe: Recipe, voices: Path, tmp_path: Path) -> None:
    fit(recipe, data=voices, out=tmp_path / "whole")
    cut_and_resumed(recipe, at=7, data=voices, out=tmp_path / "cut")
    assert same(tmp_path / "whole", tmp_path / "cut")
    # embeddings are without masks
    fit(override(recipe, ["mask.prob=0.0"]), data=voices, out=tmp_path / "unmasked")
    assert not same(tmp_path / "whole", tmp_path / "unmasked")
    model = load_model(tmp_path / "cut")
    assert model.embedder.frontend.low_hz == 30  # type: ignore[union-attr]
    four = items(voices, split="all")[:4]
    once, twice = (embed(model.embedder, four, model.read)[0].matrix for _ in range(2))
    assert np.array_equal(once, twice)
