"""Every front-end against the tool that defines it, and against itself under padding."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.frontends import RESEMBLYZER_MEL, MelSpectrogram, SpeechBrainFbank, spec_augment
from likeness.modalities.speaker.features import (
    LOG_FLOOR,
    MFCC,
    THREED_SPEAKER_FBANK,
    WESPEAKER_FBANK,
    KaldiFbank,
    RawWave,
    UnitWave,
)
from likeness.modalities.speaker.hub_speech import StackedFbank, WhisperMel
from likeness.modalities.synthetic import voice
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.models.parts import describe, restore

torchaudio = import_torchaudio()
from torchaudio.compliance import kaldi  # noqa: E402  (only importable after the line above)

FRONTENDS: dict[str, Callable[[], Any]] = {
    "wespeaker": WESPEAKER_FBANK,
    "3d-speaker": THREED_SPEAKER_FBANK,
    "no cmn": partial(KaldiFbank, cmn=False),
    "frames to the edges": partial(KaldiFbank, snip_edges=False),
    "mean and variance": partial(KaldiFbank, cmn_variance=True),
    "mfcc": MFCC,
    "mfcc mean and variance": partial(MFCC, num_ceps=20, cmn_variance=True),
    "speechbrain": SpeechBrainFbank,
    "speechbrain no cmn": partial(SpeechBrainFbank, cmn=False),
    "speechbrain mean and variance": partial(SpeechBrainFbank, cmn_variance=True),
    "raw": RawWave,
    "mel spectrogram": MelSpectrogram,
    "resemblyzer": RESEMBLYZER_MEL,
    "unit wave": UnitWave,
    "stacked": StackedFbank,
    "whisper": WhisperMel,
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def wave() -> torch.Tensor:
    return torch.from_numpy(voice(3, 0))


@pytest.mark.parametrize(
    "frontend",
    [
        # WeSpeaker's processor.py has kaldi.fbank(wav * 32768, hamming) without dither in tests
        WESPEAKER_FBANK,
        # 3D-Speaker's processor.py has Kaldi's povey window and no scaling
        THREED_SPEAKER_FBANK,
        partial(KaldiFbank, window="hanning", num_mels=23, preemphasis=0.0),
        partial(KaldiFbank, num_mels=40, frame_ms=32.0, hop_ms=8.0),
        partial(KaldiFbank, num_mels=72, low_hz=60.0, high_hz=7600.0),
        partial(KaldiFbank, num_mels=64, low_hz=0.0, high_hz=-400.0),
        partial(KaldiFbank, rate_hz=8000, num_mels=40),
        partial(KaldiFbank, window="povey", high_hz=-400.0, snip_edges=False),
        partial(KaldiFbank, num_mels=40, frame_ms=32.0, hop_ms=8.0, snip_edges=False),
    ],
)
def test_log_mel_energies_are_torchaudios(wave: torch.Tensor, frontend: Callable[..., Any]) -> None:
    ours = frontend(cmn=False).eval()
    how = {"num_mel_bins": ours.num_mels, "low_freq": ours.low_hz, "high_freq": ours.high_hz}
    how |= {"frame_length": ours.frame_ms, "frame_shift": ours.hop_ms, "window_type": ours.window}
    how |= {"preemphasis_coefficient": ours.preemphasis, "snip_edges": ours.snip_edges}
    how |= {"sample_frequency": ours.rate_hz, "dither": 0.0}
    theirs = kaldi.fbank(wave[None] * ours.scale, **how)
    feats, lengths = ours(wave[None])
    assert feats.shape == (1, ours.num_frames(len(wave)), ours.num_mels)
    torch.testing.assert_close(feats[0], theirs, atol=1e-4, rtol=0)
    assert lengths.tolist() == [1.0]
    centred = frontend().eval()(wave[None])[0][0]
    torch.testing.assert_close(centred, theirs - theirs.mean(0), atol=1e-4, rtol=0)


def test_presets_have_the_settings_of_their_projects() -> None:
    ours = WESPEAKER_FBANK()
    assert (ours.num_mels, ours.window, ours.scale, ours.dither) == (80, "hamming", 32768, 1.0)
    ours = THREED_SPEAKER_FBANK()
    assert (ours.num_mels, ours.window, ours.scale, ours.dither) == (80, "povey", 1, 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_ceps": 30, "fbank": partial(KaldiFbank, 30, window="povey", high_hz=7600.0)},
        {"num_ceps": 20, "lifter": 0.0, "fbank": partial(KaldiFbank, 40, scale=1.0)},
    ],
)
def test_mfcc(wave: torch.Tensor, settings: dict[str, Any]) -> None:
    ours = MFCC(**settings, cmn=False)
    fbank = ours.fbank
    how = {"num_mel_bins": fbank.num_mels, "high_freq": fbank.high_hz, "window_type": fbank.window}
    how |= {"num_ceps": ours.num_ceps, "cepstral_lifter": ours.lifter, "dither": 0.0}
    theirs = kaldi.mfcc(wave[None] * fbank.scale, **how)
    feats, _ = ours(wave[None])
    torch.testing.assert_close(feats[0], theirs, atol=2e-3, rtol=0)  # cepstra up to several hundred
    assert feats.shape[2] == ours.dim
    centred = MFCC(**settings)(wave[None])[0][0]
    torch.testing.assert_close(centred, theirs - theirs.mean(0), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_mels": 24},
        {"num_mels": 40, "fft_size": 512},
        {"num_mels": 80, "fft_size": 1024, "frame_ms": 32.0, "hop_ms": 8.0, "low_hz": 50.0},
        {"high_hz": 7000.0},
    ],
)
def test_speechbrain(wave: torch.Tensor, settings: dict[str, Any]) -> None:
    from speechbrain.lobes.features import Fbank
    from speechbrain.processing.features import InputNormalization

    ours = SpeechBrainFbank(**settings, cmn=False)
    how = {"n_mels": ours.num_mels, "n_fft": ours.fft_size, "f_min": ours.low_hz}
    how |= {"win_length": ours.frame_ms, "hop_length": ours.hop_ms, "f_max": ours.high_hz or None}
    theirs = Fbank(**how)
    wave = torch.cat((wave, torch.zeros(3000), wave[:999]))  # a pause reaches the floor
    quiet_too = torch.stack((wave, wave.roll(3000) * 1e-3))  # which is each utterance's own
    expected = theirs(quiet_too)
    torch.testing.assert_close(ours(quiet_too)[0], expected, atol=2e-3, rtol=0)  # decibels
    assert float(expected[0].max() - expected[0].min()) == pytest.approx(80.0, abs=1e-4)
    for variance, tolerance in ((False, 2e-3), (True, 1e-3)):
        normalise = InputNormalization(norm_type="sentence", std_norm=variance)
        centred = normalise(expected, torch.ones(2))
        feats, _ = SpeechBrainFbank(**settings, cmn_variance=variance)(quiet_too)
        torch.testing.assert_close(feats, centred, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", FRONTENDS)
@settings(max_examples=4)
@given(
    st.lists(st.integers(600, 5000), min_size=1, max_size=18),
    st.sampled_from([0.0, 1e3, float("nan")]),
)
def test_a_padded_batch_equals_single_items(name: str, sizes: list[int], filler: float) -> None:
    frontend = FRONTENDS[name]().double().eval()
    waves = [0.1 * torch.from_numpy(np.random.default_rng(n).standard_normal(n)) for n in sizes]
    batch = torch.full((len(sizes), max(sizes)), filler, dtype=torch.float64)
    for row, value in zip(batch, waves, strict=True):
        row[: len(value)] = value
    feats, lengths = frontend(batch, torch.tensor(sizes).double() / max(sizes))
    assert feats.shape == (len(sizes), feats.shape[1], frontend.dim)
    for row, relative, value in zip(feats, lengths, waves, strict=True):
        alone, full = frontend(value[None])
        frames = round(float(relative) * feats.shape[1])
        assert full.tolist() == [1.0]
        assert frames == alone.shape[1]
        torch.testing.assert_close(row[:frames], alone[0], atol=1e-5, rtol=0)
        assert not row[frames:].any()
        trimmed = value[: frontend.trim(len(value))]
        torch.testing.assert_close(frontend(trimmed[None])[0], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", FRONTENDS)
def test_saved_without_weights_and_restored_from_its_description(name: str) -> None:
    frontend = FRONTENDS[name]().eval()
    assert not frontend.state_dict()
    again = restore(describe(FRONTENDS[name], "frontend"), "frontend", kind="module")().eval()
    samples = torch.from_numpy(voice(1, 0))[None]
    assert again.dim == frontend.dim
    assert torch.equal(again(samples)[0], frontend(samples)[0])


@pytest.mark.parametrize("name", FRONTENDS)
def test_gradients_are_finite_and_reach_the_samples_alone(name: str) -> None:
    frontend = FRONTENDS[name]().eval()
    for samples in (torch.zeros(2, 3000), torch.randn(2, 3000)):
        lengths = torch.tensor([1.0, 0.5])
        plain, _ = frontend(samples, lengths)
        feats, _ = frontend(samples.requires_grad_(), lengths)
        torch.testing.assert_close(feats, plain, atol=4e-6, rtol=0)
        feats.square().sum().backward()
        assert feats.isfinite().all()
        assert samples.grad.isfinite().all()
        assert not samples.grad[1, 1500:].any()
    assert samples.grad[1, :1500].any()
    with pytest.raises(ValueError, match="shape"):
        frontend(torch.zeros(2, 3, 4))


def masked(batch: int, lengths: torch.Tensor | None = None, **settings: Any) -> tuple[Any, Any]:
    """(B, 50, 30) bool: what changed; and the new values.

    The features are a ramp over time in every band, so that no value is the mean of its band.
    """
    lengths = torch.ones(batch) if lengths is None else lengths
    ramp = torch.arange(50.0).view(1, 50, 1) + 100 * torch.arange(30.0) + 0.25
    inside = torch.arange(50) < (lengths * 50).round().unsqueeze(1)
    before = ramp * inside.unsqueeze(2)
    after = spec_augment(before, lengths, **settings)
    return after != before, after


def test_masks_are_as_wide_and_as_frequent_as_the_settings_say() -> None:
    """Park et al. 2019: a width uniform in 0 ... T, then a start uniform in what is left."""
    torch.manual_seed(0)
    changed, _ = masked(4000, num_f_mask=0, prob=0.5, max_t=10)
    rows = changed.float().mean(2).round().bool()  # (B, T)
    widths = rows.sum(1)
    for width, share in enumerate(torch.bincount(widths, minlength=11) / 4000):
        assert share.item() == pytest.approx(0.5 / 11 + 0.5 * (not width), abs=0.02)
    edges = (rows[:, 1:] != rows[:, :-1]).sum(1) + rows[:, 0] + rows[:, -1]
    assert set(edges[widths > 0].tolist()) == {2}  # one stretch each
    assert rows.any(0).all()
    changed, _ = masked(2000, num_t_mask=0, num_f_mask=2, prob=1.0, max_f=8)
    bands = changed.any(1).sum(1)
    assert bands.float().mean().item() == pytest.approx(8 - 0.6, abs=0.5)  # two of 4, some overlap
    assert bands.max() <= 16
    for off in ({"prob": 0.0}, {"num_t_mask": 0, "num_f_mask": 0}, {"max_t": 0, "max_f": 0}):
        assert not masked(50, **off)[0].any()


def test_masks_hold_the_mean_and_spare_the_padding() -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([1.0, 0.4] * 50)
    changed, after = masked(100, lengths, prob=1.0)
    assert not changed[1::2, 20:].any()
    assert not after[1::2, 20:].any()
    for row, value, frames in zip(changed, after, [50, 20] * 50, strict=True):
        mean = (frames - 1) / 2 + 100 * torch.arange(30.0) + 0.25
        torch.testing.assert_close(value[row], mean.expand(50, 30)[row])
    assert len({row.numpy().tobytes() for row in changed}) > 80  # items differ
    # masks that may be wider than the utterance
    short = masked(100, torch.full((100,), 0.08), prob=1.0, num_f_mask=0, max_t=40)[0]
    assert not short[:, 4:].any()
    assert set(short.any(2).sum(1).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("frontend", "transform"),
    [
        (MelSpectrogram, {"n_fft": 512, "win_length": 400, "f_min": 20.0, "f_max": 7600.0}),
        (RESEMBLYZER_MEL, {"n_fft": 400, "norm": "slaney", "mel_scale": "slaney"}),
    ],
)
def test_mel_spectrograms_are_torchaudios(wave, frontend, transform: dict[str, Any]) -> None:
    """With torchaudio's reflection at both ends, and IDRnD's pre-emphasis, logarithm and mean."""
    ours = frontend()
    windows = {"hamming": torch.hamming_window, "hann": torch.hann_window}
    transform |= {"hop_length": 160, "n_mels": ours.num_mels, "window_fn": windows[ours.window]}
    theirs = torchaudio.transforms.MelSpectrogram(16_000, **transform)
    emphasised = torch.nn.functional.pad(wave[None], (1, 0), mode="reflect")
    emphasised = emphasised[:, 1:] - ours.preemphasis * emphasised[:, :-1]
    expected = theirs(emphasised)[0].T
    if ours.log:
        expected = (expected + 1e-6).log()
        expected = expected - expected.mean(0)
    torch.testing.assert_close(ours(wave[None])[0][0], expected, atol=1e-4, rtol=1e-4)


def test_the_framing_of_tensorflow_is_tfmelbanks() -> None:
    """redimnet/layers/features_tf.py written down by numpy: ReDimNet2's recipes train on it."""
    wave = np.random.default_rng(0).standard_normal(4003) * 0.1 + 0.02
    unit = (wave - wave.mean()) / (wave.std() + 1e-8)
    emphasised = unit - 0.97 * np.concatenate([unit[1:2], unit[:-1]])
    around = np.pad(emphasised, 80)
    window = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 399)
    mels = 2595 * np.log10(1 + np.array([20.0, 7600.0]) / 700)
    edges = np.linspace(*mels, 74)
    bins = 2595 * np.log10(1 + np.linspace(0, 8000, 256) / 700)[:, None]
    rising = (bins - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - bins) / np.diff(edges)[1:]
    bank = np.maximum(0, np.minimum(rising, falling))
    frames = np.stack([around[160 * t : 160 * t + 400] for t in range((4003 - 240) // 160 + 1)])
    power = np.clip(np.abs(np.fft.rfft(frames * window, 512))[:, :256] ** 2, 1e-8, 1e8)
    expected = np.log(np.clip(power @ bank, 1e-8, 1e8) + 1e-8)
    ours = MelSpectrogram(framing="tensorflow", normalise=True).double()
    batch = torch.from_numpy(np.stack([np.pad(wave, (0, 997)), np.full(5000, 0.1)]))
    feats, lengths = ours(batch, torch.tensor([4003 / 5000, 1.0]))
    assert round(float(lengths[0]) * feats.shape[1]) == len(expected)
    assert not feats[0, len(expected) :].any()
    found = feats[0, : len(expected)].numpy()
    np.testing.assert_allclose(found, expected - expected.mean(0), atol=2e-4)
    with pytest.raises(LikenessError, match="239 samples; at least 240"):
        ours(torch.randn(1, 239))


REFUSED = {
    "mask.prob=1.5 breaks the rule": partial(masked, 1, prob=1.5),
    "mask.max_t=-1": partial(masked, 1, max_t=-1),
    "mask.num_f_mask=-2": partial(masked, 1, num_f_mask=-2),
    "frontend.window=povey breaks the rule": partial(MelSpectrogram, window="povey"),
    "frontend.mel_scale=bark": partial(MelSpectrogram, mel_scale="bark"),
    "frontend.high_hz=9000.0": partial(MelSpectrogram, high_hz=9000.0),
    "frontend.frame_ms=40.0, frontend.fft_size=512": partial(MelSpectrogram, frame_ms=40.0),
}


@pytest.mark.parametrize("says", REFUSED)
def test_settings_that_cannot_be_are_refused(says: str) -> None:
    with pytest.raises(LikenessError, match=says):
        REFUSED[says]()


def test_a_wave_that_cannot_be_reflected_is_refused() -> None:
    with pytest.raises(LikenessError, match="the shortest utterance has 256 samples; at least 257"):
        MelSpectrogram()(torch.randn(2, 512), torch.tensor([1.0, 0.5]))
    assert MelSpectrogram()(torch.randn(1, 257))[0].isfinite().all()


def test_silence_reaches_the_floor() -> None:
    feats, _ = KaldiFbank(cmn=False)(torch.zeros(1, 1000))
    torch.testing.assert_close(feats, torch.full_like(feats, float(np.log(LOG_FLOOR))))


def test_float32_under_autocast(wave: torch.Tensor) -> None:
    wave = wave[None]
    with torch.autocast("cpu", torch.bfloat16):
        inside = KaldiFbank()(wave)[0]
    assert inside.dtype == torch.float32
    assert torch.equal(inside, KaldiFbank()(wave)[0])
    assert KaldiFbank()(wave.bfloat16())[0].dtype == torch.float32


@pytest.mark.parametrize("name", FRONTENDS)
def test_no_step_waits_for_another_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the device meta cannot be read at all. It has no autocast."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    frontend = FRONTENDS[name]().train().to("meta")
    for lengths in (None, torch.ones(2, device="meta")):
        features, relative = frontend(torch.randn(2, 16_000, device="meta"), lengths)
        assert features.shape[0] == len(relative) == 2
