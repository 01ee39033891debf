"""What the sections of benchmarks/gpu.py share: where they run, how they take times, their tables.

It is no benchmark itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eval.errors import first_line


@dataclass(frozen=True)
class Setting:
    """Where a section runs.

    Attributes:
        device: A GPU, or the CPU where there is none.
        small: Whether sizes are tiny.
        end: When all sections have to be over, in seconds of time.perf_counter.
        folder: An empty folder of the section.
    """

    device: torch.device
    small: bool
    end: float
    folder: Path

    def size(self, full: int, small: int) -> int:
        """Return a size: `full`, or `small` where sizes are tiny."""
        return small if self.small else full

    @property
    def is_over(self) -> bool:
        """Whether no time is left, so that further rows are left out."""
        return time.perf_counter() > self.end

    def wait(self) -> None:
        """Wait until the GPU has done what it was asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(
        self, work: Callable[[], object], *, warm_up: int = 3, budget: float = 2.0
    ) -> float:
        """Return the median seconds of a call.

        There are at least three calls, and more for as long as the budget of seconds lasts.
        """
        if self.small:
            warm_up, budget = 1, 0.0
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

    def peak_gib(self, work: Callable[[], object]) -> float | None:
        """Return the most memory of the GPU during a call, in GiB; None on a CPU."""
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self.wait()
        return torch.cuda.max_memory_allocated(self.device) / 2**30


@dataclass
class Table:
    """A table of a section.

    Attributes:
        columns: Their names.
        about: A sentence or two above the table.
        rows: Of texts, one for each column.
    """

    columns: list[str]
    about: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row. Numbers get four digits, and None is a dash."""
        self.rows.append([_text(cell) for cell in cells])

    def add_failed(self, what: str, error: Exception) -> None:
        """Add a row that says what went wrong."""
        if isinstance(error, ModuleNotFoundError):
            text = f"not measured: {error.name} is not installed"
        else:
            reason = first_line(error).replace("|", "/")[:160]
            text = f"failed: {type(error).__name__}: {reason}"
        self.rows.append([what, text, *[""] * (len(self.columns) - 2)])


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
