"""The changes of a filterbank, beside loops over its frames."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def frames(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("corpora_frames")


@pytest.mark.parametrize("num_frames", [1, 5, 12])
def test_sliding_mean_moves_its_window_at_the_ends(frames: ModuleType, num_frames: int) -> None:
    view = np.random.default_rng(0).normal(size=(num_frames, 3)).astype(np.float32)
    width = 6
    expected = []
    for t in range(num_frames):
        first = max(0, min(t - width // 2, num_frames - width))
        expected.append(view[t] - view[first : first + width].mean(axis=0))
    np.testing.assert_allclose(frames.sliding_mean(view, width=width), expected, atol=1e-5)


def test_pcen_is_the_recursion_of_its_paper(frames: ModuleType) -> None:
    energy = np.random.default_rng(1).gamma(2, 1e4, size=(9, 2))
    smooth, expected = energy[0], []
    for t, now in enumerate(energy):
        smooth = now if t == 0 else 0.975 * smooth + 0.025 * now
        expected.append(np.sqrt(now / (1e-6 + smooth) ** 0.98 + 2) - np.sqrt(2))
    np.testing.assert_allclose(frames.pcen(np.log(energy)), expected, rtol=1e-4)


def test_the_direct_sound_keeps_its_time_and_its_level(frames: ModuleType) -> None:
    impulse = np.zeros(1000, np.float32)
    impulse[100] = 1
    heard = frames.in_room(impulse, np.random.default_rng(2))
    np.testing.assert_allclose(heard[:100], 0, atol=1e-6)
    assert heard[100] == pytest.approx(1)
    assert np.abs(heard[101:]).max() > 1e-3
