"""Verification sets as one list of trials: .bin files and folders with pairs.txt (other lists:
test_face_data.py).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.types import Trials
from likeness.modalities import synthetic_faces
from likeness.modalities.face import images, validation
from likeness.toolkit.data.images import encode
from likeness.toolkit.data.items import Item
from tests.modalities.face import bin_file

PEOPLE = ("Ann_A", "Bob_B")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """DATA/lfw with pairs.txt (1 fold of 1 same and 1 different pair a kind) and DATA/agedb_30.bin
    of the same images.
    """
    items = []
    for subject, name in enumerate(PEOPLE):
        for shot in (1, 2):
            path = tmp_path / "lfw" / name / f"{name}_{shot:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(synthetic_faces.face(subject, shot, size=32).image, ".jpg"))
            items.append(Item(path.name, path))
    (tmp_path / "lfw" / "pairs.txt").write_text(
        "2\t1\nAnn_A\t1\t2\nAnn_A\t1\tBob_B\t2\nBob_B\t1\t2\nBob_B\t1\tAnn_A\t2\n", encoding="utf-8"
    )
    ids = tuple(item.id for item in items)
    listed = Trials(
        ids,
        ids,
        np.array([3, 0], dtype=np.int32),
        np.array([2, 3], dtype=np.int32),
        np.array([True, False]),
    )
    bin_file.write(items, listed, tmp_path / "agedb_30.bin")
    return tmp_path


def pairs(items: list[Item], listed: Trials) -> list[tuple[bytes, bytes, bool]]:
    """What is compared, by the images themselves."""
    contents = {item.id: images.encoded(item) for item in items}
    assert listed.target is not None
    rows = zip(listed.enrol.tolist(), listed.probe.tolist(), listed.target.tolist(), strict=True)
    return [
        (contents[listed.enrol_ids[a]], contents[listed.probe_ids[b]], same) for a, b, same in rows
    ]


@pytest.mark.parametrize(
    "sets", [("lfw", "agedb_30"), ("agedb_30", "lfw"), ("lfw",), ("agedb_30",)]
)
def test_pairs_are_those_of_the_sets_in_their_order(data: Path, sets: tuple[str, ...]) -> None:
    a1, a2, b1, b2 = (
        data.joinpath("lfw", name, f"{name}_{shot:04d}.jpg").read_bytes()
        for name in PEOPLE
        for shot in (1, 2)
    )
    expected = {
        "lfw": [(a1, a2, True), (a1, b2, False), (b1, b2, True), (b1, a2, False)],
        "agedb_30": [(b2, b1, True), (a1, b2, False)],
    }
    items, listed = validation.trials(data, sets=sets)
    assert pairs(items, listed) == [row for name in sets for row in expected[name]]
    assert all(item.label is None and item.id.split("/")[0] in sets for item in items)
    assert len({item.id for item in items}) == len(items)
