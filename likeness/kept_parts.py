"""What `likeness identify` and `likeness retrieve` share: long searches in parts that are kept
beside the results, by any number of processes, within a limit of memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from hashlib import sha256 as hashed
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.embeddings import Stored, read_within
from eval.formats.files import atomic_path, json_object
from eval.formats.provenance import likeness_version, sha256
from eval.memory import parse_size
from eval.parts import Parts
from eval.progress import report
from eval.types import Embeddings
from toolkit.console import say

# The search itself, with the ids of a million embeddings, takes less than this.
_LEAST_MEMORY = 384 << 20
_OF_FILE = 4  # a file of embeddings may take this part of the memory
_PLAN, _PARTS = "plan.json", "*-??????.npz"


def memory_limit(text: str | None) -> int | None:
    """Returns the bytes that --memory states, None where it was left out.

    Raises:
        LikenessError: It is no size, or too little for any search.
    """
    if text is None:
        return None
    size = parse_size(text)
    if size < _LEAST_MEMORY:
        raise LikenessError(
            f"--memory {text}: a search takes up to {_LEAST_MEMORY >> 20}M beside the embeddings; "
            "give at least that"
        )
    return size


def read_side(path: Path, memory: int | None) -> Embeddings | Stored:
    """Returns embeddings, whose matrix stays in the file where it is a large part of the memory.

    Raises:
        LikenessError: As `eval.formats.embeddings.read_within`.
    """
    return read_within(path, None if memory is None else memory // _OF_FILE)


def is_main() -> bool:
    """Returns whether this is the process that prints and writes the results."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def kept_parts(
    out: Path | None, inputs: Sequence[Path], settings: Mapping[str, Any], *, what: str
) -> Iterator[Parts]:
    """Yields how a search is cut, shared and shown, and removes what was kept when it is done.

    Finished parts lie in the folder OUT.parts. A command that is started again goes on from them if
    its inputs, its settings and the version are the same.

    Args:
        out: The file of the results; None keeps no part.
        inputs: The files that the results depend on.
        settings: What else they depend on, in values that JSON can write.
        what: What the search is called where its progress is shown.

    Raises:
        LikenessError: There are several processes and no `out`, or the folder has parts of another
            search, or another process works there.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1 and out is None:
        raise LikenessError(
            f"{world} processes share a search by its finished parts, which lie beside the "
            "results: give --json FILE"
        )
    folder = None if out is None else out.with_name(f"{out.name}.parts")
    plan: dict[str, Any] = {}
    with ExitStack() as stack:
        wait, on_main = _joined(stack) if world > 1 else (_nothing, _run)

        def prepare() -> str:
            assert folder is not None
            if not plan:
                plan.update(_plan(inputs, settings))
                on_main(lambda: _prepare(folder, plan, stack))
                if json_object(folder / _PLAN) != plan:
                    raise LikenessError(f"{folder}: process {rank} has other inputs than the first")
            return hashed(json.dumps(plan, sort_keys=True).encode()).hexdigest()

        def advance(done: int, total: int) -> None:  # of billions of comparisons
            report(what, 100 * done // max(1, total), 100, unit="%")

        yield Parts(folder, prepare, rank=rank, world=world, wait=wait, advance=advance)
        wait()  # the others have read what is removed now
        if plan and rank == 0 and folder is not None:
            for file in (*_parts_of(folder), folder / _PLAN):
                file.unlink(missing_ok=True)
    if plan and rank == 0 and folder is not None:
        with suppress(OSError):  # something else lies there
            folder.rmdir()


def _nothing() -> None:
    pass


def _run(work: Callable[[], object]) -> None:
    work()


def _joined(
    stack: ExitStack,
) -> tuple[Callable[[], None], Callable[[Callable[[], object]], None]]:
    """Joins the processes of torchrun.

    Returns:
        What waits for all of them, and what runs work in the first of them alone.
    """
    from toolkit.parallel import distributed

    # A process may work on its last part for longer than the others.
    distributed.start(timeout_seconds=24 * 3600.0)
    stack.callback(distributed.end)
    return distributed.wait, distributed.on_main


def _plan(inputs: Sequence[Path], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a search is of."""
    plan = {
        "version": likeness_version(),
        "inputs": {str(path): sha256(path) for path in inputs},
        "settings": dict(settings),
    }
    read_again: dict[str, Any] = json.loads(json.dumps(plan))
    return read_again


def _prepare(folder: Path, plan: Mapping[str, Any], stack: ExitStack) -> None:
    """Makes the folder, or goes on in it. Its lock is held until the stack is closed."""
    from toolkit.training.lock import only_writer

    file = folder / _PLAN
    # What is hidden is a lock, or was left by a writer that was killed.
    entries = [entry for entry in _entries(folder) if not entry.startswith(".")]
    others = [entry for entry in entries if entry != _PLAN and not fnmatch(entry, _PARTS)]
    is_planned = file.is_file() and json_object(file).keys() == plan.keys()
    if folder.is_symlink() or others or (entries and not is_planned):
        raise LikenessError(
            f"{folder} is no folder of the parts of a search, and nothing in it was changed; move "
            "it away, or choose another --json"
        )
    stack.enter_context(only_writer(folder))
    done = _parts_of(folder)
    if done:
        before = json_object(file)
        if before != plan:
            differ = ", ".join(sorted(key for key in plan if before.get(key) != plan[key]))
            raise LikenessError(
                f"{folder} has parts of another search ({differ} differ); remove that folder, or "
                "choose another --json"
            )
        say(f"going on in {folder}: {len(done)} finished parts are there", error=True)
        return
    with atomic_path(file) as temporary:
        temporary.write_text(json.dumps(plan) + "\n", encoding="utf-8")


def _entries(folder: Path) -> list[str]:
    """The names of what lies in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _parts_of(folder: Path) -> list[Path]:
    """The finished parts in a folder."""
    return [path for path in folder.glob(_PARTS) if path.is_file() and not path.is_symlink()]
