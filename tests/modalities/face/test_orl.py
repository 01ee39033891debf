"""ORL: its folds, on the real faces."""

from pathlib import Path

import cv2
import pytest

from likeness.data import orl, synthetic_faces
from tests.modalities.data_set import DataSet


def miniature(folder: Path) -> None:
    """Ten synthetic subjects, grey."""
    for subject in range(10):
        (folder / "orl" / f"s{subject + 1}").mkdir(parents=True)
        for shot in range(3):
            image = cv2.cvtColor(synthetic_faces.face(subject, shot).image, cv2.COLOR_RGB2GRAY)
            cv2.imwrite(str(folder / "orl" / f"s{subject + 1}" / f"{shot + 1}.pgm"), image)


LABELS = [f"s{subject}" for subject in range(1, 11)]
DATA_SETS = {"orl": DataSet(miniature, orl.items, orl.trials, LABELS, fetch="fetch the ORL faces")}


def test_folds_partition_the_subjects(shared: Path) -> None:
    every = orl.items(shared / "data", split="all")
    assert len(every) == 200
    assert [item.id for item in every[:11]] == [*(f"s1/{i}" for i in range(1, 11)), "s2/1"]
    tests = [orl.items(shared / "data", split="test", fold=fold) for fold in range(5)]
    assert sorted(item for fold in tests for item in fold) == sorted(every)
    assert [len(orl.items(shared / "data", fold=fold)) for fold in range(5)] == [160] * 5
    chosen, trials = orl.trials(shared / "data")
    assert (len(chosen), len(trials), int(trials.target.sum())) == (40, 780, 4 * 45)
    with pytest.raises(ValueError, match="fold 5 of 5"):
        orl.items(shared / "data", fold=5)
