"""The spoken digits of FSDD: splits by speaker, and trials."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from likeness.modalities.speaker import fsdd
from likeness.modalities.speaker.audio import read


@pytest.fixture
def data(shared: Path) -> Path:
    return shared / "data"


def test_every_two_speakers_meet_once_and_were_never_trained_on(data: Path) -> None:
    speakers = {item.label for item in fsdd.items(data, split="all")}
    assert len(speakers) == 6
    pairs = []
    for fold in range(fsdd.num_folds(data)):
        test, train = (
            {str(item.label) for item in fsdd.items(data, split=split, fold=fold)}
            for split in ("test", "train")
        )  # type: ignore[arg-type]
        assert not test & train
        assert test | train == speakers
        pairs.append(tuple(sorted(test)))
    assert Counter(pairs) == Counter(combinations(sorted(map(str, speakers)), 2))


def test_ids_name_speaker_digit_and_number(data: Path) -> None:
    who = fsdd.items(data, split="all")
    assert all(
        item.id == f"{item.label}/{item.path.stem.split('_')[0]}_{item.path.stem.split('_')[2]}.wav"
        for item in who
    )
    assert len(fsdd.items(data, speeds=(0.9, 1.1))) == 3 * len(fsdd.items(data))
    assert read(who[0], rate_hz=fsdd.RATE_HZ).ndim == 1
