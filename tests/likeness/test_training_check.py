"""What a training takes over from its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from likeness.modalities import synthetic
from likeness.recipe_files import located
from likeness.toolkit.training.recipe import load
from likeness.training import with_bandwidth


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_a_model_takes_narrow_recordings_where_it_is_trained_on_them(
    rate_hz: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write_voices(
        tmp_path / "voices", num_speakers=6, num_utterances=2, seconds=(0.6, 0.7), rate_hz=rate_hz
    )
    recipe, _ = load(located("speaker/folders"))
    is_kept = with_bandwidth(recipe, tmp_path / "voices") is recipe
    assert is_kept == (rate_hz == 16_000)
    assert ("above 4.5 kHz" in capsys.readouterr().err) == (rate_hz == 8_000)
