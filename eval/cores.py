"""How many cores and threads this process may use."""

from __future__ import annotations

import os


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
