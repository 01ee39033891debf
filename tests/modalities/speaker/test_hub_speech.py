"""Front-ends of the hub's speech networks, against the feature extractors of transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from likeness.modalities.speaker.features import UnitWave
from likeness.modalities.speaker.hub_speech import StackedFbank, WhisperMel
from likeness.toolkit.backbones.hub_networks import import_transformers

transformers: Any = import_transformers()
RATE_HZ = 16_000


def waves(*seconds: float) -> list[NDArray[np.float32]]:
    """Noise whose level and colour change, of these lengths."""
    rng = np.random.default_rng(7)
    result = []
    for length in seconds:
        noise = rng.standard_normal(round(length * RATE_HZ))
        smooth = np.convolve(noise, rng.uniform(-1, 1, 9), mode="same")
        level = 0.1 + np.abs(np.sin(np.arange(len(smooth)) / 3000))
        result.append((0.05 * level * smooth + 0.01).astype(np.float32))
    return result


def padded(found: list[NDArray[np.float32]]) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch of waves with their relative lengths, rubbish in the padding."""
    longest = max(map(len, found))
    batch = torch.full((len(found), longest), 0.7)
    for row, wave in zip(batch, found, strict=True):
        row[: len(wave)] = torch.from_numpy(wave)
    return batch, torch.tensor([len(wave) for wave in found]).double() / longest


def frames_of(features: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    counts = (lengths.double() * features.shape[1]).round().long().tolist()
    assert not any(features[row, count:].any() for row, count in enumerate(counts))
    return [features[row, :count] for row, count in enumerate(counts)]


@pytest.mark.parametrize("normalise", [True, False])
def test_unit_wave_is_the_wav2vec2_extractor(normalise: bool) -> None:
    found = waves(0.31, 0.2, 0.37)
    how = {"do_normalize": normalise, "return_attention_mask": True}
    extract = transformers.Wav2Vec2FeatureExtractor(**how)
    theirs = extract(found, sampling_rate=RATE_HZ, padding=True, return_tensors="pt")
    features, _ = UnitWave(normalise)(*padded(found))
    torch.testing.assert_close(features[..., 0], theirs["input_values"], rtol=1e-5, atol=1e-6)


def test_stacked_fbank_is_the_seamless_extractor() -> None:
    """Odd and even numbers of frames: an odd last frame is in the statistics and then masked."""
    found = waves(0.31, 0.2, 0.215, 0.4)
    extract: Any = transformers.SeamlessM4TFeatureExtractor()
    theirs = extract(found, sampling_rate=RATE_HZ, padding=True, return_tensors="pt")
    features, lengths = StackedFbank()(*padded(found))
    counts = theirs["attention_mask"].sum(1).tolist()
    assert [len(part) for part in frames_of(features, lengths)] == counts
    for row, part in enumerate(frames_of(features, lengths)):
        expected = theirs["input_features"][row, : len(part)]
        torch.testing.assert_close(part, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_mels", [80, 128])
def test_whisper_mel_is_the_whisper_extractor_in_every_window(num_mels: int) -> None:
    """As many frames as every second value of its mask says, twice, and two more."""
    found = waves(0.31, 29.97, 29.99, 30.0, 61.3)
    extract: Any = transformers.WhisperFeatureExtractor(feature_size=num_mels)
    batch, lengths = padded(found)
    features, relative = WhisperMel(num_mels)(batch, lengths)
    size = 30 * RATE_HZ
    for wave, part in zip(found, frames_of(features, relative), strict=True):
        expected, marked = [], 0
        for start in range(0, len(wave), size):
            how = {"sampling_rate": RATE_HZ, "return_tensors": "pt", "return_attention_mask": True}
            theirs = extract(wave[start : start + size], **how)
            expected.append(theirs["input_features"][0].T)
            marked += int(theirs["attention_mask"][0, ::2].sum())
        assert len(part) == 2 * marked + 2
        # what the backbone adds in the last window: one value in all bands and frames
        rest = expected[-1][len(part) - len(expected) * 3000 :] if len(part) % 3000 > 2 else ()
        silence = max(-1.5, float(expected[-1].max()) - 2.0)
        assert all(float((frame - silence).abs().max()) < 1e-5 for frame in rest)
        silent = torch.full((2, num_mels), -1.5)  # past the end of a window that is full
        theirs_all = torch.cat([*expected, silent])[: len(part)]
        torch.testing.assert_close(part, theirs_all, rtol=1e-4, atol=2e-5)
        alone, _ = WhisperMel(num_mels)(torch.from_numpy(wave)[None])
        torch.testing.assert_close(part, alone[0], rtol=1e-4, atol=2e-5)
