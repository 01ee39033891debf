"""The processes of torchrun, for work that may do without torch.

Where there is one process, torch is not imported. Where there are several, torch joins them
(toolkit/parallel/distributed.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def start() -> str:
    """Join the processes that torchrun started.

    Returns:
        The device of this one, such as "cuda:1"; "" with nothing done where there is one process.

    Raises:
        LikenessError: This machine has GPUs, but fewer of them than processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ""
    from toolkit.parallel import distributed

    device = distributed.start()
    return "" if device is None else str(device)


def end() -> None:
    """Leave the group, if there is one, together with the other processes."""
    if _has_group():
        from toolkit.parallel import distributed

        distributed.end()


def rank() -> int:
    """Return this process's number; 0 without a group."""
    if not _has_group():
        return 0
    from toolkit.parallel import distributed

    return distributed.rank()


def world() -> int:
    """Return the number of processes; 1 without a group."""
    if not _has_group():
        return 1
    from toolkit.parallel import distributed

    return distributed.world()


def is_main() -> bool:
    """Say whether this is the process that logs and writes."""
    return rank() == 0


def wait() -> None:
    """Return when every process has come here."""
    if _has_group():
        from toolkit.parallel import distributed

        distributed.wait()


def on_main(work: Callable[[], object]) -> None:
    """Run `work` in the main process; where it raises there, all processes raise."""
    if not _has_group():
        work()
        return
    from toolkit.parallel import distributed

    distributed.on_main(work)


def agree(**values: Any) -> None:
    """Check that each value is the same in every process.

    Raises:
        LikenessError: Some values differ. Each is named, with the processes that differ from the
            first.
    """
    if _has_group():
        from toolkit.parallel import distributed

        distributed.agree(**values)


def _has_group() -> bool:
    """Say whether this process is one of a group. Only an imported torch can have made it one."""
    torch_distributed = sys.modules.get("torch.distributed")
    return torch_distributed is not None and bool(torch_distributed.is_initialized())
