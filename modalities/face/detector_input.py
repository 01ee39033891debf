"""What the networks of both kinds of detectors take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.errors import LikenessError

MAX_SIDE = 4096  # pixels
DIVISOR = 32  # the sizes of the input are multiples of it


def input_size(inputs: Sequence[Any], path: Path, kind: str) -> tuple[int, int]:
    """Check the input of a detector's network.

    Args:
        inputs: The inputs of the graph.
        path: The file, for the error.
        kind: The name of such detectors, for the error.

    Returns:
        The height and the width in pixels; 0 where the network leaves it open.

    Raises:
        LikenessError: It is not one image of floats (1, 3, height, width), or too large.
    """
    stated = ", ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
    sizes: list[int | str | None] = inputs[0].shape if len(inputs) == 1 else []
    known = [size if isinstance(size, int) else 0 for size in sizes]
    if (
        len(known) != 4
        or inputs[0].type != "tensor(float)"
        or known[0] not in (0, 1)
        or known[1] not in (0, 3)
        or any(size % DIVISOR or not 0 <= size <= MAX_SIDE for size in known[2:])
    ):
        raise LikenessError(
            f"{path}: its input is {stated or 'absent'}; {kind} takes floats (1, 3, height, "
            f"width), both sizes multiples of {DIVISOR} up to {MAX_SIDE}: give another file"
        )
    return known[2], known[3]
