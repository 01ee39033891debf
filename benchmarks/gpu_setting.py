"""What the sections of benchmarks/gpu.py share: where they run, how they take times, their tables.

It is no benchmark itself.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from likeness.eval.errors import first_line


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

    def peak_gib(self, work: Callable[[], object]) -> float | None:
        """Return the most memory of the GPU during a call, in GiB; None on a CPU."""
        if not self.on_gpu:
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
        rows: Of texts.
    """

    columns: list[str]
    about: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row. Numbers get four digits, and None is a dash."""
        self.rows.append([_text(cell) for cell in cells])

    def measure(self, name: str, work: Callable[[], list[object]], setting: Setting) -> None:
        """Add the row of a work. What goes wrong in it must not cost the others their rows."""
        if time.perf_counter() > setting.end:
            self.add(name, "no time left")
            return
        try:
            self.add(name, *work())
        except Exception as error:
            traceback.print_exc()
            reason = first_line(error).replace("|", "/")[:160]
            self.add(name, f"failed: {type(error).__name__}: {reason}")
        if setting.on_gpu:
            torch.cuda.empty_cache()

    def markdown(self) -> str:
        """Return the table with the sentences above it."""
        lines = [f"{self.about}\n"] if self.about else []
        for cells in (self.columns, ["---"] * len(self.columns), *self.rows):
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
