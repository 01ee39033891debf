"""What tests/toolkit/training/test_train.py runs: killed_training.py RECIPE DATA OUT EVENT:COUNT
... trains, and is killed there.

An event is "step", a step of training, or the name of a call of the operating system that changes
what a folder holds. Each EVENT:COUNT is for a process of its own, which goes on where the one
before was killed. All are forked from this one, so that torch is imported once. Prints JSON: for
each of them, whether it was killed there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import likeness.toolkit.training.train  # before the first fork
from likeness.cli import main

CALLS = {
    call.__name__: call for call in (os.replace, os.rename, os.fsync, os.unlink, os.rmdir, os.mkdir)
}


class Killer:
    """Kills this process at the COUNTth event of a name, counted from its first step on."""

    def __init__(self, name: str, count: int) -> None:
        self.call, self.left, self.trains = CALLS.get(name), count, False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        is_step = event == "call" and frame.f_code is likeness.toolkit.training.train.step.__code__
        self.trains |= is_step
        if self.call is None:
            self.left -= is_step
        elif self.trains:
            self.left -= event == "c_call" and argument is self.call
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(arguments: list[str], name: str, count: int) -> bool:
    """Train in a process of its own until the event; whether it came to it."""
    child = os.fork()
    if not child:
        sys.setprofile(Killer(name, count))
        try:
            main(arguments)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    recipe, data, out, *events = sys.argv[1:]
    arguments = ["train", recipe, "--data", data, "--out", out]
    results = []
    for event in events:
        name, _, count = event.partition(":")
        results.append(killed(arguments, name, int(count)))
    print(json.dumps(results))
