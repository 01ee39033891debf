"""Synthetic voices: the same numbers give the same voice, and speakers can be told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.modalities import folders
from likeness.modalities.speaker.features import KaldiFbank
from likeness.modalities.synthetic import voice, write_voices


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from([8000, 16000, 22050]),
    st.floats(0.3, 1.0),
)
def test_any_voice_is_a_finite_function_of_its_numbers(
    speaker: int, utterance: int, seed: int, rate_hz: int, seconds: float
) -> None:
    wave = voice(speaker, utterance, seed=seed, seconds=(seconds, seconds), rate_hz=rate_hz)
    assert wave.dtype == np.float32
    assert wave.shape == (round(seconds * rate_hz),)
    assert np.isfinite(wave).all()
    assert 0.1 < np.abs(wave).max() < 1.0
    assert np.array_equal(
        wave, voice(speaker, utterance, seed=seed, seconds=(seconds, seconds), rate_hz=rate_hz)
    )


def statistics(speakers: range, utterances: int) -> np.ndarray:
    """(speakers, utterances, 160) mean and deviation of the log mel energies."""
    front_end = KaldiFbank(cmn=False).eval()
    rows = []
    for speaker in speakers:
        feats = [
            front_end(torch.from_numpy(voice(speaker, utterance))[None])[0][0]
            for utterance in range(utterances)
        ]
        rows.append(np.stack([torch.cat((feat.mean(0), feat.std(0))).numpy() for feat in feats]))
    return np.stack(rows)


def test_speakers_are_separable_but_not_trivially() -> None:
    stats = statistics(range(20), 6)
    within = np.mean(
        [np.linalg.norm(stat[:, None] - stat[None], axis=2).sum() / 30 for stat in stats]
    )
    centres = stats.mean(1)
    flat = stats.reshape(-1, stats.shape[2])
    label = np.repeat(np.arange(20), 6)
    distance = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    between = distance[label[:, None] != label[None]].mean()
    assert within < 0.9 * between
    # Yet the long-term spectrum alone mistakes speakers: some stranger is nearer than some own
    # utterance of most.
    nearest_stranger = np.where(label[:, None] != label[None], distance, np.inf).min(1)
    farthest_own = np.where(label[:, None] == label[None], distance, 0).max(1)
    assert (nearest_stranger < farthest_own).mean() > 0.5
    assert len(centres) == 20


def test_written_voices_are_the_same_voices(tmp_path: Path) -> None:
    write_voices(tmp_path, num_speakers=2, num_utterances=3, seed=5, seconds=(0.5, 0.6))
    items = folders.scan(tmp_path)
    assert [item.id for item in items] == [
        f"spk{speaker:03d}/utt{utterance:02d}.flac"
        for speaker in range(2)
        for utterance in range(3)
    ]
    wave, rate_hz = soundfile.read(items[4].path, dtype="float32")
    assert rate_hz == 16000
    np.testing.assert_allclose(wave, voice(1, 1, seed=5, seconds=(0.5, 0.6)), atol=2**-15)
