"""How many cores and threads this process may use, and how it keeps freed memory."""

import os

import numpy as np

# glibc learns thresholds from what is freed, up to 32 MB; a block keeps a head beside its content.
_LARGEST_KEPT = (1 << 25) - (1 << 13)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_threads() -> int:
    """Return how many threads a computation may take.

    This is OMP_NUM_THREADS where it is a number, as for torch and numpy, else the number of cores.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return (int(asked) if asked.isdecimal() else 0) or num_cores()


def keep_freed_memory() -> None:
    """Lets the C library keep freed arrays of up to 32 MB for the next ones.

    Otherwise it gives each of them back to the system, and taking it again costs more than what
    numpy does with it: work on blocks of a few megabytes becomes up to twice as fast. glibc raises
    its threshold to the size of what is freed (mallopt(3), M_MMAP_THRESHOLD), so it is enough to
    take and free such a piece once; it is never written to. Other C libraries are not changed.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)
