"""A run with noise from folders and masks on the features goes on after a break as if there had
been none, and its model needs no folders.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

from likeness.modalities.folders import items
from likeness.modalities.speaker.augment import WESPEAKER_VIEW
from likeness.modalities.speaker.features import WESPEAKER_FBANK
from likeness.modalities.speaker.spec_augment import SpecAugment
from likeness.modalities.synthetic import voice
from likeness.models.run import load_model
from likeness.toolkit.models.embed import embed
from likeness.toolkit.training.recipe import Recipe, load, override
from likeness.toolkit.training.train import fit
from likeness.toolkit.training.train import step as default_step

TINY = Path(__file__).parents[2] / "tiny.py"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("noises")
    for name in ("musan/noise/a.wav", "musan/music/b.wav", "musan/speech/c.wav"):
        (folder / name).parent.mkdir(parents=True)
        soundfile.write(folder / name, voice(len(name) + ord(name[-5]), 0), 16000)
    (folder / "rirs").mkdir()
    soundfile.write(folder / "rirs" / "room.wav", np.r_[0.0, 1.0, 0.5, -0.2], 16000)
    masked = partial(SpecAugment, frontend=partial(WESPEAKER_FBANK, num_mels=16), prob=1.0)
    base = replace(
        load(str(TINY))[0],
        frontend=masked,
        augment=partial(WESPEAKER_VIEW, seconds=(0.4, 0.5)),
        measure=None,
    )
    return override(
        base,
        [
            f"augment.corrupt.musan={folder / 'musan'}",
            f"augment.corrupt.rirs={folder / 'rirs'}",
            "frontend.frontend.low_hz=30",
        ],
    )


def test_resumes_bit_for_bit_and_embeds_without_masks(
    recipe: Recipe, voices: Path, tmp_path: Path
) -> None:
    def until_7(run: Any, batch: Any, recipe: Recipe) -> torch.Tensor:
        if run.step == 7:
            raise RuntimeError("power cut")
        return default_step(run, batch, recipe)

    whole = fit(recipe, data=voices, out=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="power cut"):
        fit(recipe, data=voices, out=tmp_path / "cut", step=until_7)
    again = fit(recipe, data=voices, out=tmp_path / "cut", resume=True)
    first, second = load_file(whole), load_file(again)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    model = load_model(again)
    assert model.embedder.frontend.frontend.low_hz == 30  # type: ignore[union-attr]
    once, twice = (
        embed(model.embedder, items(voices, split="all")[:4], model.read)[0].matrix
        for _ in range(2)
    )
    assert np.array_equal(once, twice)
