"""The model of an .onnx file of `likeness export`."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from likeness.models.trust import check_trusted
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.onnx import read
from likeness.toolkit.models.parts import restore


def load(path: Path, *, trust: Sequence[str] = ()) -> Loaded | None:
    """Load an .onnx file of `likeness export`; return None for an .onnx file from elsewhere.

    Front-end and network are in the graph. Only the reading of a model may be of another package.

    Args:
        path: The file.
        trust: The packages and Python files of others that may be imported for its reading.

    Raises:
        LikenessError: As likeness.toolkit.models.onnx.read, and for a reading that does not exist
            or is of a package that is not trusted.
    """
    contents = read(path)
    if contents is None:
        return None
    embedder, stated = contents
    trusted = check_trusted(stated.get("read"), trust, str(path))
    reading = restore(stated.get("read"), f"{path}: read", kind="read", trusted=trusted)
    quality = stated.get("norm_is_quality") is True
    return Loaded(
        embedder,
        cast(Read, reading),
        stated["modality"],
        stated["similarity"],
        stated["digest"],
        0,
        norm_is_quality=quality,
    )
