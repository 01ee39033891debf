"""Log mel features equal torchaudio's, and neither padding nor neighbours change them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.modalities.speaker.audio import read
from likeness.modalities.speaker.features import LOG_FLOOR, KaldiFbank
from likeness.modalities.synthetic import voice
from likeness.toolkit.backbones.torchaudio_cpu import import_torchaudio
from likeness.toolkit.data.items import Item

SHARED = Path(__file__).parents[2].parent / "shared"
import_torchaudio()
from torchaudio.compliance.kaldi import fbank  # noqa: E402  (only importable after the line above)


def a_voice(number: int = 0) -> torch.Tensor:
    return torch.from_numpy(voice(number, 0))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window": "povey", "scale": 1.0},
        {"window": "hanning", "num_mels": 23, "preemphasis": 0.0},
        {"num_mels": 40, "frame_ms": 32.0, "hop_ms": 8.0},
        {"num_mels": 72, "low_hz": 60.0, "high_hz": 7600.0},
        {"num_mels": 64, "low_hz": 0.0, "high_hz": -400.0},
        {"rate_hz": 8000, "num_mels": 40},
        {"window": "povey", "high_hz": -400.0, "snip_edges": False},
        {"num_mels": 40, "frame_ms": 32.0, "hop_ms": 8.0, "snip_edges": False},
    ],
)
@pytest.mark.parametrize("source", ["synthetic", "an4"])
def test_equals_torchaudio(settings: dict[str, object], source: str) -> None:
    if source == "an4":
        result = sorted((SHARED / "data" / "an4" / "wav").glob("*/*.flac"))
        if not result:
            pytest.skip("../shared is absent")
        wave = torch.from_numpy(read(Item("a", result[0])))
    else:
        wave = a_voice()
    ours = KaldiFbank(**settings, cmn=False).eval()  # type: ignore[arg-type]
    theirs = fbank(
        wave[None] * ours.scale,
        num_mel_bins=ours.num_mels,
        sample_frequency=ours.rate_hz,
        frame_length=ours.frame_ms,
        frame_shift=ours.hop_ms,
        window_type=ours.window,
        preemphasis_coefficient=ours.preemphasis,
        low_freq=ours.low_hz,
        high_freq=ours.high_hz,
        dither=0.0,
        snip_edges=ours.snip_edges,
    )
    feats, lengths = ours(wave[None])
    assert feats.shape == (1, ours.num_frames(len(wave)), ours.num_mels)
    torch.testing.assert_close(feats[0], theirs, atol=1e-4, rtol=0)
    assert lengths.tolist() == [1.0]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(400, 6000), min_size=1, max_size=20),
    st.booleans(),
    st.booleans(),
    st.floats(-1e3, 1e3),
)
def test_padding_and_neighbours_change_nothing(
    sizes: list[int], cmn: bool, snip_edges: bool, filler: float
) -> None:
    front_end = KaldiFbank(num_mels=20, cmn=cmn, snip_edges=snip_edges).eval()
    longest = max(sizes)
    waves = [torch.randn(n, generator=torch.Generator().manual_seed(n)) * 0.1 for n in sizes]
    batch = torch.full((len(sizes), longest), filler)
    for row, wave in zip(batch, waves, strict=True):
        row[: len(wave)] = wave
    feats, lengths = front_end(batch, torch.tensor([n / longest for n in sizes]))
    for row, relative, wave in zip(feats, lengths, waves, strict=True):
        alone = front_end(wave[None])[0][0]
        frames = round(float(relative) * feats.shape[1])
        expected = 1 + (len(wave) - 400) // 160 if snip_edges else (len(wave) + 80) // 160
        assert frames == len(alone) == expected
        torch.testing.assert_close(row[:frames], alone, atol=2e-4, rtol=0)
        assert not row[frames:].any()


def test_the_padding_may_hold_nan() -> None:
    wave = torch.stack((a_voice()[:16000], a_voice(1)[:16000]))
    wave[1, 8000:] = torch.nan
    feats, _ = KaldiFbank()(wave, torch.tensor([1.0, 0.5]))
    assert feats.isfinite().all()


def test_samples_past_the_last_whole_frame_change_nothing() -> None:
    front_end, wave = KaldiFbank(), a_voice()[None]
    assert torch.equal(front_end(wave)[0], front_end(wave[:, : front_end.trim(wave.shape[1])])[0])


def test_mean_over_valid_frames_is_removed() -> None:
    wave = torch.stack((a_voice()[:16000], a_voice(1)[:16000]))
    feats, lengths = KaldiFbank()(wave, torch.tensor([1.0, 0.4]))
    assert feats.sum(1).div(lengths[:, None] * feats.shape[1]).abs().max() < 1e-4


def test_silence_reaches_the_floor_and_has_finite_gradients() -> None:
    wave = torch.zeros(1, 1000, requires_grad=True)
    feats, _ = KaldiFbank(cmn=False)(wave)
    torch.testing.assert_close(feats, torch.full_like(feats, float(np.log(LOG_FLOOR))))
    feats.sum().backward()
    assert wave.grad is not None
    assert wave.grad.isfinite().all()


def test_gradients_match_finite_differences_in_float64() -> None:
    front_end = KaldiFbank(num_mels=6, rate_hz=2000).double()
    wave = torch.from_numpy(
        np.random.default_rng(0).standard_normal((2, 90)) * 0.1
    ).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: front_end(x, torch.tensor([1.0, 0.8]))[0], (wave,), eps=1e-7, atol=1e-4
    )


def test_dither_in_training_only() -> None:
    wave = a_voice()[None]
    front_end = KaldiFbank(dither=1.0)
    clean = KaldiFbank()(wave)[0]
    assert not torch.equal(front_end.train()(wave)[0], clean)
    assert torch.equal(front_end.eval()(wave)[0], clean)


def test_float32_under_autocast() -> None:
    wave = a_voice()[None]
    with torch.autocast("cpu", torch.bfloat16):
        inside = KaldiFbank()(wave)[0]
    assert inside.dtype == torch.float32
    assert torch.equal(inside, KaldiFbank()(wave)[0])
    assert KaldiFbank()(wave.bfloat16())[0].dtype == torch.float32


def test_nothing_is_saved_and_everything_is_described() -> None:
    front_end = KaldiFbank(num_mels=72, window="povey", dither=1.0)
    assert not front_end.state_dict()
    assert (front_end.num_mels, front_end.window, front_end.dither, front_end.rate_hz) == (
        72,
        "povey",
        1.0,
        16000,
    )
    assert front_end.dim == 72
    assert [front_end.trim(n) for n in (399, 400, 559, 560, 48000)] == [399, 400, 400, 560, 47920]
    assert [front_end.num_frames(n) for n in (0, 399, 400, 559, 560, 16000)] == [0, 0, 1, 1, 2, 98]
