"""Long work in parts: each is finished and kept by itself, by any number of processes.

The parts are cut by their content alone, never by the number of processes or the memory, so the
result is the same for any number of them, and a run that was stopped goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import npz
from eval.formats.files import atomic_path

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")
_LIMIT = 1 << 34  # bytes of a part


_STAMP = "part_of"  # the array that says of which work and which part a file is


def _nothing(*_: int) -> None:
    pass


def _no_work() -> str:
    return ""


@dataclass(frozen=True)
class Parts:
    """How long work is done.

    Attributes:
        folder: Where finished parts are kept, as NAME-000000.npz; None keeps them in memory only.
            A single part is never written by one process, which could not go on from it.
        prepare: Is called before parts are looked for in the folder. It sees to it that the folder
            is there, and returns a text that no other work has. Parts of other work are not read.
        name: The beginning of the names of the files.
        rank: The number of this process, from 0.
        world: How many processes share the work. They need a folder.
        wait: Returns when all processes have called it.
        advance: Is told how much is done and how much there is to do in this process.
    """

    folder: Path | None = None
    prepare: Callable[[], str] = _no_work
    name: str = "part"
    rank: int = 0
    world: int = 1
    wait: Callable[[], object] = _nothing
    advance: Callable[[int, int], object] = _nothing

    def run(
        self,
        parts: Sequence[T],
        compute: Callable[[T, Callable[[int], object]], Arrays],
        size: Callable[[T], int],
    ) -> list[Arrays]:
        """Computes the parts of this process that are not there yet, and returns all of them.

        Args:
            parts: What each part is.
            compute: Gives the arrays of a part. It may say how much of its size it has done.
            size: How much work a part is, in any unit.

        Returns:
            The arrays of every part, in order, in every process.
        """
        mine = [number for number in range(len(parts)) if number % self.world == self.rank]
        total, done = sum(size(parts[number]) for number in mine), 0
        in_files = self.folder is not None and (len(parts) > 1 or self.world > 1)
        work = self.prepare() if in_files else ""
        made: dict[int, Arrays] = {}
        self.advance(done, total)
        for number in mine:
            if not in_files or self.read(number, work) is None:
                arrays = compute(parts[number], partial(self._tell, done, total))
                if in_files:
                    self._write(number, work, arrays)
                else:
                    made[number] = arrays
            done += size(parts[number])
            self.advance(done, total)
        self.wait()
        results = [self.read(k, work) if in_files else made[k] for k in range(len(parts))]
        lost = [number for number, arrays in enumerate(results) if arrays is None]
        if lost:
            raise LikenessError(
                f"{self.folder}: {len(lost)} of {len(parts)} parts are gone or damaged; start the "
                "command again"
            )
        return [arrays for arrays in results if arrays is not None]

    def _tell(self, before: int, total: int, done: int) -> None:
        self.advance(before + done, total)

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.name}-{number:06d}.npz"

    def _stamp(self, number: int, work: str) -> str:
        return json.dumps([work, self.name, number])

    def _write(self, number: int, work: str, arrays: Arrays) -> None:
        stamped = {**arrays, _STAMP: np.array(self._stamp(number, work))}
        with atomic_path(self._path(number)) as temporary, temporary.open("wb") as file:
            np.savez(file, **stamped)  # type: ignore[arg-type]

    def read(self, number: int, work: str) -> Arrays | None:
        """Returns the arrays of a part; None where it is not there, damaged or of other work.

        Raises:
            LikenessError: A folder or a pipe is there instead.
        """
        path = self._path(number)
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise LikenessError(f"{path} is no file, and so no part of a search; remove it")
        with suppress(ValueError, OSError), npz.opened(path, _LIMIT) as file:
            arrays = {name: file.read(name) for name in file.headers}
            stamp = arrays.pop(_STAMP, None)
            if stamp is not None and str(stamp) == self._stamp(number, work):
                return arrays
        return None


ALONE = Parts()
"""One process, which keeps what it has done in memory."""
