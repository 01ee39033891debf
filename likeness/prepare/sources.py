"""The data sets that `likeness prepare` knows: those of each modality's sources.py."""

from __future__ import annotations

import difflib

from modalities.face import sources as faces
from modalities.image import sources as images
from modalities.speaker import sources as speech
from toolkit.data.source import Dataset

DATASETS = (*speech.DATASETS, *images.DATASETS, *faces.DATASETS)


def table() -> str:
    """The data sets that there are, a line each."""
    width = max(len(one.name) for one in DATASETS)
    return "\n".join(
        f"{one.name:{width}}  {'by hand ' if one.by_hand else 'download'}  {one.about}"
        for one in DATASETS
    )


def named(name: str) -> Dataset:
    """The data set of this name. ValueError names the nearest and all."""
    for one in DATASETS:
        if one.name == name.lower():
            return one
    near = difflib.get_close_matches(name.lower(), [one.name for one in DATASETS], n=1)
    meant = f"; did you mean {near[0]!r}" if near else ""
    raise ValueError(
        f"there is no data set {name!r} to prepare{meant}; there are "
        f"{', '.join(one.name for one in DATASETS)}"
    )
