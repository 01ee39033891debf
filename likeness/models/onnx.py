"""The model of an .onnx file of `likeness export`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from likeness.models.parts import restore
from toolkit.data.batch import Read
from toolkit.models.checkpoint import Loaded
from toolkit.models.onnx import read


def load(path: Path) -> Loaded | None:
    """Load an .onnx file of `likeness export`; return None for an .onnx file from elsewhere.

    Raises:
        ValueError: As toolkit.models.onnx.read, and for a reading that does not exist.
        ImportError: A package is missing; the message names the extra to install.
    """
    contents = read(path)
    if contents is None:
        return None
    embedder, stated = contents
    reading = cast(Read, restore(stated.get("read"), f"{path}: read", kind="read", untrusted=True))
    quality = stated.get("norm_is_quality") is True
    return Loaded(
        embedder,
        reading,
        stated["modality"],
        stated["similarity"],
        stated["digest"],
        0,
        norm_is_quality=quality,
    )
