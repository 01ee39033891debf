"""Files of one value as JSON: calibrations, fusions, PLDA, thresholds, origins of scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from eval.errors import LikenessError
from eval.formats.files import bounded

T = TypeVar("T")


def read_json(
    path: Path, form: str, make: Callable[[dict[str, Any]], T], *, most: int, otherwise: str
) -> T:
    """Reads a value that was written as an object of JSON with its format.

    Args:
        path: The file.
        form: What the object has as "format".
        make: Makes the value of the other fields. What it raises becomes part of the message.
        most: How many bytes the file may have.
        otherwise: What the message says of another file; `{error}` stands for the reason.

    Raises:
        LikenessError: The file is damaged, or another one.
        FileNotFoundError: There is none.
    """
    try:
        fields = json.loads(bounded(path, most).decode())
        if fields.pop("format") != form:
            raise LikenessError(f"its format is not {form!r}")
        return make(fields)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise LikenessError(f"{path}: {otherwise.format(error=error)}") from None
