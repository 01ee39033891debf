"""Variables of MATLAB files (.mat), read by scipy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from eval.errors import LikenessError, first_line


def read_variable(path: Path, name: str, *, max_bytes: int, squeeze: bool = False) -> Any:
    """Reads one variable of a .mat file.

    Args:
        path: The file.
        name: The variable.
        max_bytes: The most bytes that the file may have. Its outer array may have as many cells.
        squeeze: Whether dimensions of size 1 are left out.

    Returns:
        What scipy.io.loadmat gives for the variable.

    Raises:
        LikenessError: The file is larger or damaged, or contains no such variable.
    """
    from scipy.io import loadmat, whosmat

    if path.stat().st_size > max_bytes:
        raise LikenessError(f"{path}: over {max_bytes} bytes; this is no list of the data set")
    try:
        shapes = {found: shape for found, shape, _ in whosmat(path)}
        if math.prod(shapes[name]) > max_bytes:
            raise LikenessError(f"it states {shapes[name]} cells")
        return loadmat(path, variable_names=[name], squeeze_me=squeeze)[name]
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise LikenessError(f"{path}: it has no {name} to read ({first_line(error)})") from None
