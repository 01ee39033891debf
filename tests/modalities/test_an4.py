"""AN4: its folds of speakers, its trials, and what is said where the recordings are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.modalities.speaker import an4
from likeness.modalities.speaker.audio import read

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def data() -> Path:
    if not (DATA / "an4").is_dir():
        pytest.skip("../shared is absent")
    return DATA


def test_folds_partition_the_speakers_evenly_by_sex(data: Path) -> None:
    folds = [{item.label for item in an4.items(data, split="test", fold=fold)} for fold in range(5)]
    speakers = {item.label for item in an4.items(data, split="all")}
    assert len(speakers) == 54
    assert set().union(*folds) == speakers
    assert sorted(map(len, folds)) == [10, 11, 11, 11, 11]
    women = [sum(str(value).startswith("f") for value in fold) for fold in folds]
    assert max(women) - min(women) <= 1
    train = an4.items(data, split="train", fold=2)
    assert {item.label for item in train} == speakers - folds[2]
    assert all(item.id.split("/")[0] == item.label and item.path.is_file() for item in train)


def test_more_classes_to_train_on(data: Path) -> None:
    plain = an4.items(data)
    fast = an4.items(data, speeds=(0.9, 1.1))
    assert len(fast) == 3 * len(plain)
    assert len({item.label for item in fast}) == 3 * len({item.label for item in plain})


def test_a_file_reads(data: Path) -> None:
    wave = read(an4.items(data)[0])
    assert wave.dtype == np.float32
    assert 0.5 < len(wave) / 16000 < 7
