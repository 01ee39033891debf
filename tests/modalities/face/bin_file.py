"""Writes verification sets as InsightFace's .bin files."""

import pickle
from collections.abc import Sequence
from pathlib import Path

from likeness import Item, Trials
from likeness.modalities.face.images import encoded


def write(items: Sequence[Item], trials: Trials, path: Path) -> None:
    """Write the pairs in their order, with the image files as they are."""
    by_id = {item.id: item for item in items}
    sides = zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True)
    pairs = [(trials.enrol_ids[i], trials.probe_ids[j]) for i, j in sides]
    images = [encoded(by_id[id]) for pair in pairs for id in pair]
    path.write_bytes(pickle.dumps((images, trials.target.tolist()), protocol=4))
