"""What a run writes down: log.jsonl always; TensorBoard and Weights & Biases where they are
installed and asked for. And what it says of items that it cannot read.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.runs import LOG
from likeness.eval.types import name_first
from likeness.eval.writing import full_disk, write_text
from likeness.toolkit.console import one_line, say
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.reading import Bad

LOGGERS = ("tensorboard", "wandb")
RUN_ID = "wandb.id"


class Log:
    """Entries of one run, one JSON object a line: {"step": ..., name: value, ...}.

    Only the main process of a run makes one; the others give out=None.

    loggers: names of LOGGERS that get the same numbers. Entries after `step`, left by a killed run,
    are dropped first.
    """

    def __init__(
        self,
        out: Path | None,
        step: int = 0,
        loggers: Sequence[str] = (),
        description: str = "{}",
    ):
        self.file = self.board = self.wandb = None
        if out is None:
            return
        self.out = out
        cut(out, step)
        self.file = (out / LOG).open("a", encoding="utf-8")
        if "tensorboard" in loggers:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
        if "wandb" in loggers:
            import wandb

            self.wandb = wandb.init(
                dir=str(out),
                project="likeness",
                name=out.name,
                id=run_id(out),
                resume="allow",
                config=json.loads(description),
            )

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with full_disk(self.out / LOG):  # closing writes what could not be written before
                self.file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()

    def write(self, step: int, **entry: Any) -> None:
        """Write one entry; its numbers also go to the loggers.

        What is NaN or infinite is left out: JSON has no such numbers.
        """
        if self.file is None:
            return
        entry = {
            name: value
            for name, value in entry.items()
            if not isinstance(value, float) or math.isfinite(value)
        }
        with full_disk(self.out / LOG):
            self.file.write(json.dumps({"step": step, **entry}) + "\n")
            self.file.flush()
        numbers = {name: value for name, value in entry.items() if isinstance(value, (int, float))}
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(numbers, step=step)


def check_loggers(loggers: Sequence[str]) -> None:
    """Refuse a logger that is unknown, or not installed (ModuleNotFoundError)."""
    for name in loggers:
        if name not in LOGGERS:
            raise LikenessError(
                f"logger {name!r} is unknown; there are {', '.join(LOGGERS)} (log.jsonl is always "
                "written)"
            )
        import_module(name)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The entries of a run's log.jsonl; none without one.

    A line that a kill cut short is left out.

    Raises:
        LikenessError: The log is damaged.
    """
    file = folder / LOG
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
    except ValueError as error:
        raise LikenessError(
            f"{file} is damaged: a line of it is no JSON ({first_line(error)}); restore "
            "it or remove it"
        ) from None


def cut(folder: Path, step: int) -> None:
    """Drop what a killed run logged after the checkpoint that is resumed; all of it at step 0."""
    if (folder / LOG).is_file():
        kept = [entry for entry in read_log(folder) if step and entry["step"] <= step]
        write_text(folder / LOG, "".join(f"{json.dumps(entry)}\n" for entry in kept))


def run_id(out: Path) -> str:
    """One id for a run's folder, so that a resumed run goes on in the same Weights & Biases run;
    kept in the folder.
    """
    path = out / RUN_ID
    if not path.is_file():
        write_text(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()


class Clock:
    """Where the time goes: waiting for data, and the rest of a step."""

    def __init__(self) -> None:
        self.first = self.since = time.perf_counter()
        self.waited, self.steps = 0.0, 0

    def waiting(
        self, loader: Iterable[tuple[Batch | None, list[Bad]]]
    ) -> Iterator[tuple[Batch | None, list[Bad]]]:
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def read(self, batch_size: int) -> dict[str, float]:
        """Seconds since the start; of the steps since the last call: items per second, mean seconds
        a step, and of these the seconds spent waiting for data.
        """
        now = time.perf_counter()
        taken, steps = now - self.since, max(1, self.steps)
        numbers = {
            "seconds": now - self.first,
            "items_per_second": steps * batch_size / taken,
            "step_seconds": taken / steps,
            "data_seconds": self.waited / steps,
        }
        self.since, self.waited, self.steps = now, 0.0, 0
        return {name: float(f"{value:.4g}") for name, value in numbers.items()}


class BadItems:
    """Names every unreadable item once, and stops the run when their share is too large."""

    def __init__(self, max_share: float):
        self.max_share, self.seen, self.failed, self.drawn = max_share, dict[str, str](), 0, 0

    def count(self, unreadable: list[Bad], drawn: int) -> None:
        self.drawn += drawn
        self.failed += len(unreadable)
        for item in unreadable:
            if item.id not in self.seen:
                self.seen[item.id] = item.reason
                say(one_line(f"skipped {item.id}: {item.reason}"), error=True)
        if self.failed > self.max_share * self.drawn + (1 if self.max_share else 0):
            raise LikenessError(
                f"{self.failed} of {self.drawn} items drawn so far cannot be read "
                f"({name_first(self.seen)}), more than max_bad_share={self.max_share}; the first: "
                f"{next(iter(self.seen.values()))}; repair or remove them, or raise max_bad_share"
            )

    def report(self) -> None:
        if self.seen:
            say(f"{len(self.seen)} unreadable items: {name_first(self.seen)}", error=True)
