"""In which order names and contents reach the disk: the calls by which files are synchronised,
renamed and removed.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def recorded(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """The calls from now on that are about `root`, such as "fsync a", "replace a" (by its new
    name), "unlink a", "rmtree a" and "sync".

    Names count from `root`, which is ".". A file that is not under its own name yet, but in a
    hidden folder, is called "new a".
    """
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    calls: list[str] = []

    def record(module: Any, name: str, path_of: Callable[..., str]) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **more: Any) -> Any:
            path = Path(path_of(*arguments))
            if "dir_fd" not in more and path.is_relative_to(root.resolve()):
                below = path.relative_to(root.resolve()).as_posix()
                shown = re.sub(r"(^|/)\.[^/]+\.(part|unfinished)/", r"\1new ", below)
                calls.append(f"{name} {shown}".rstrip())
            return real(*arguments, **more)

        monkeypatch.setattr(module, name, call)

    def of_handle(handle: Any) -> str:
        number = handle if isinstance(handle, int) else handle.fileno()
        return os.readlink(f"/proc/self/fd/{number}")

    def absolute(path: Any) -> str:
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))

    record(os, "fsync", of_handle)
    record(os, "replace", lambda _, path: absolute(path))
    record(os, "unlink", absolute)
    record(shutil, "rmtree", lambda path, *_: absolute(path))
    if hasattr(os, "sync"):
        real_sync = os.sync

        def sync() -> None:
            calls.append("sync")
            real_sync()

        monkeypatch.setattr(os, "sync", sync)
    return calls


def come_in_order(expected: Iterable[str], calls: Iterable[str]) -> bool:
    """Whether the expected calls are among the calls, in this order; others may come between."""
    left = iter(calls)
    return all(value in left for value in expected)
