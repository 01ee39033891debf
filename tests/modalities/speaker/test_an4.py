"""AN4: its folds, on the real speakers."""

from pathlib import Path

from likeness.data import an4, synthetic
from tests.modalities.data_set import DataSet

SPEAKERS = [f"{'fm'[number % 2]}spk{number:03d}" for number in range(10)]


def miniature(folder: Path) -> None:
    """Ten synthetic speakers, half of them women."""
    recordings = folder / "an4" / "wav"
    synthetic.write_voices(recordings, num_speakers=10, num_utterances=3, seconds=(0.8, 1.2))
    for name in SPEAKERS:
        (recordings / name[1:]).rename(recordings / name)


FETCH = "DATA/an4/wav/SPEAKER"
DATA_SETS = {"an4": DataSet(miniature, an4.items, an4.trials, SPEAKERS, fetch=FETCH)}


def test_folds_partition_the_speakers_evenly_by_sex(shared: Path) -> None:
    data = shared / "data"
    folds = [{item.label for item in an4.items(data, split="test", fold=fold)} for fold in range(5)]
    speakers = {item.label for item in an4.items(data, split="all")}
    assert len(speakers) == 54
    assert set().union(*folds) == speakers
    assert sorted(map(len, folds)) == [10, 11, 11, 11, 11]
    women = [sum(str(value).startswith("f") for value in fold) for fold in folds]
    assert max(women) - min(women) <= 1
    assert {item.label for item in an4.items(data, fold=2)} == speakers - folds[2]
