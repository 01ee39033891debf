"""How the C library keeps freed memory for the next arrays."""

from __future__ import annotations

import numpy as np

# glibc learns thresholds from what is freed, up to 32 MB; a block keeps a head beside its content.
_LARGEST_KEPT = (1 << 25) - (1 << 13)


def keep_freed_memory() -> None:
    """Lets the C library keep freed arrays of up to 32 MB for the next ones.

    Otherwise it gives each of them back to the system, and taking it again costs more than what
    numpy does with it: work on blocks of a few megabytes becomes up to twice as fast. glibc raises
    its threshold to the size of what is freed (mallopt(3), M_MMAP_THRESHOLD), so it is enough to
    take and free such a piece once; it is never written to. Other C libraries are not changed.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)
