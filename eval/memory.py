"""How much memory work may take, and how it is kept."""

from __future__ import annotations

import re

import numpy as np

from eval.errors import LikenessError

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
# glibc learns thresholds from what is freed, up to 32 MB; a block keeps a head beside its content.
_LARGEST_KEPT = (1 << 25) - (1 << 13)


def parse_size(text: str) -> int:
    """Returns the number of bytes that a text such as 512M or 8G states.

    Args:
        text: A number, and a unit of 1,024, 1,024^2, 1,024^3 or 1,024^4 bytes: K, M, G or T. B or
            iB may follow the unit. Without a unit the number counts bytes.

    Returns:
        The number of bytes, rounded down.

    Raises:
        LikenessError: It is no such text, or less than a byte.

    Example:
        >>> parse_size("512M"), parse_size("1.5 GiB"), parse_size("1000")
        (536870912, 1610612736, 1000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * 2 ** _UNITS[match[2].upper()]) if match and len(text) < 32 else 0
    if size < 1:
        raise LikenessError(
            f"memory {text!r} is no size; write a number and a unit, such as 512M or 8G"
        )
    return size


def keep_freed_memory() -> None:
    """Lets the C library keep freed arrays of up to 32 MB for the next ones.

    Otherwise it gives each of them back to the system, and taking it again costs more than what
    numpy does with it: work on blocks of a few megabytes becomes up to twice as fast. glibc raises
    its threshold to the size of what is freed (mallopt(3), M_MMAP_THRESHOLD), so it is enough to
    take and free such a piece once; it is never written to. Other C libraries are not changed.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)
