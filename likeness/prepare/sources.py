"""The data sets that `likeness prepare` knows: those in each modality's sources.py."""

from __future__ import annotations

import difflib

from eval.errors import LikenessError
from modalities.face import sources as faces
from modalities.image import sources as images
from modalities.speaker import sources as speech
from toolkit.data.source import Dataset

DATASETS = (*speech.DATASETS, *images.DATASETS, *faces.DATASETS)


def table() -> str:
    """Return a table of the data sets, one line each."""
    width = max(len(dataset.name) for dataset in DATASETS)
    return "\n".join(
        f"{dataset.name:{width}}  {'by hand ' if dataset.by_hand else 'download'}  {dataset.about}"
        for dataset in DATASETS
    )


def named(name: str) -> Dataset:
    """Return the data set of this name.

    Raises:
        LikenessError: There is none. The message names the nearest and lists all.
    """
    for dataset in DATASETS:
        if dataset.name == name.lower():
            return dataset
    near = difflib.get_close_matches(name.lower(), [dataset.name for dataset in DATASETS], n=1)
    meant = f"; did you mean {near[0]!r}" if near else ""
    raise LikenessError(
        f"there is no data set {name!r} to prepare{meant}; there are "
        f"{', '.join(dataset.name for dataset in DATASETS)}"
    )
