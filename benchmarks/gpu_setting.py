"""What the sections of benchmarks/gpu.py share: where they run, how they take times, their rows.

It is no benchmark itself.
"""

from __future__ import annotations

import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from performance import row


@dataclass(frozen=True)
class Setting:
    """Where a section runs.

    Attributes:
        device: A GPU, or the CPU where there is none.
        small: Whether sizes are tiny.
    """

    device: torch.device
    small: bool

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def size(self, full: int, small: int) -> int:
        """Return a size: `full`, or `small` where sizes are tiny."""
        return small if self.small else full

    def wait(self) -> None:
        """Wait until the GPU has done what it was asked."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median seconds of a call: of at least three, and of two seconds of calls."""
        warm_up, budget = (1, 0.0) if self.small else (3, 2.0)
        for _ in range(warm_up):
            work()
        self.wait()
        times: list[float] = []
        until = time.perf_counter() + budget
        while len(times) < 3 or (time.perf_counter() < until and len(times) < 200):
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def waits(self, work: Callable[[], object]) -> int | None:
        """Return how often a call waits for the GPU; None on a CPU."""
        if not self.on_gpu:
            return None
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchron" in str(warning.message) for warning in caught)

    def row(self, name: str, work: Callable[[], Sequence[object]]) -> None:
        """Print the row of a work. What goes wrong in it must not cost the others their rows.

        Numbers get four digits, and None is a dash.
        """
        try:
            cells = work()
        except Exception as error:
            traceback.print_exc()
            cells = [f"failed: {type(error).__name__}"]
        texts = (f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells)
        row(name, *("-" if text is None else text for text in texts))
        if self.on_gpu:
            torch.cuda.empty_cache()
