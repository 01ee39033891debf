"""Embeddings of a long list by all machines of a Ray cluster.

Ray Data moves batches of items to processes that hold the model, and repeats what a machine that
went away had begun.
"""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from likeness.eval.errors import LikenessError, install_line
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.items import Item, check_unique
from likeness.eval.progress import track
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.models.embed import embed_where_readable
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.signals import handlers_stay

# As many as `embed` reads ahead and sorts by length, so that both make the same batches.
TASK_ITEMS = 256
Piece = tuple[Embeddings | None, list[Bad]]  # the readable items, and the others
_TASKS_IN_FLIGHT = 4  # of each process: the next ones wait where it is


def embed(
    load: Callable[[], tuple[Loaded, Any]],
    items: Sequence[Item],
    address: str,
    *,
    batch_size: int = 16,
    workers: int = 0,
    task_items: int = TASK_ITEMS,
) -> list[Piece]:
    """Embed all readable items on a cluster, and name the unreadable ones with their reasons.

    Each GPU of the cluster runs one process with the model; without GPUs, each core does.

    Args:
        load: Loads the model on a machine of the cluster, as
            `likeness.models.reading.load_reading`. It can be pickled.
        items: N items with distinct ids, whose paths mean the same on all machines.
        address: The address of the cluster's head, or "auto" on one of its machines.
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read files beside each process with the model.
        task_items: How many items are handed to a process at once.

    Returns:
        Of each task, in the order of the items: the raw embeddings, or None where no item could be
        read; and the items that cannot be read.

    Raises:
        LikenessError: Ray is missing, there is no cluster, or the network refuses an input.
    """
    check_unique(items, "items to embed")
    with _connected(address) as ray:
        tasks = [
            {"task": number, "items": pickle.dumps(list(items[start : start + task_items]))}
            for number, start in enumerate(range(0, len(items), task_items))
        ]
        num_gpus, num_cpus = (int(ray.cluster_resources().get(name, 0)) for name in ("GPU", "CPU"))
        most = max(1, min(num_gpus or num_cpus, len(tasks)))
        results = (
            ray.data.from_items(tasks, override_num_blocks=len(tasks))
            .map_batches(
                _Embed,
                fn_constructor_args=(load, os.getcwd(), batch_size, workers),
                batch_size=1,
                num_gpus=1 if num_gpus else 0,
                num_cpus=1,
                compute=ray.data.ActorPoolStrategy(
                    size=most, max_tasks_in_flight_per_actor=_TASKS_IN_FLIGHT
                ),
            )
            .iter_rows()
        )
        pieces: dict[int, Piece] = {}
        for row in track(results, "embedding on the cluster", total=len(tasks), unit="tasks"):
            result = pickle.loads(row["result"])  # of a process that this run started
            if isinstance(result, Exception):
                raise result
            rows, bad = result
            pieces[row["task"]] = (None if rows is None else Embeddings(*rows)), bad
    return [pieces[number] for number in range(len(tasks))]


class _Embed:
    """The model in a process of the cluster."""

    def __init__(
        self, load: Callable[[], tuple[Loaded, Any]], folder: str, batch_size: int, workers: int
    ) -> None:
        with suppress(OSError):  # it matters to relative paths alone
            os.chdir(folder)
        self.load, self.batch_size, self.workers = load, batch_size, workers
        self.model: Loaded | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        items = pickle.loads(batch["items"][0])  # of the process that started this one
        try:
            if self.model is None:
                self.model = self.load()[0]
                self.model.embedder.to_device("")
                self.model.embedder.share_cores(os.cpu_count() or 1)
            embeddings, bad = embed_where_readable(
                self.model.embedder,
                items,
                self.model.read,
                batch_size=self.batch_size,
                workers=self.workers,
                part=True,
            )
        except (LikenessError, OSError, ImportError) as error:
            return {"task": batch["task"], "result": [pickle.dumps(error)]}
        rows = None if embeddings is None else (embeddings.ids, embeddings.matrix)
        return {"task": batch["task"], "result": [pickle.dumps((rows, bad))]}


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Join a cluster that was started by `ray start`, and leave it at the end. Yields `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise LikenessError(f"--ray needs Ray ({error}); run `{install_line('ray')}`") from None
    try:
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        with handlers_stay():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, ValueError) as error:
        raise LikenessError(
            f"--ray {address}: there is no Ray cluster ({str(error).splitlines()[0]}); start one "
            "by `ray start --head` on one machine and `ray start --address HEAD:6379` on the others"
        ) from None
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield ray
    finally:
        ray.shutdown()
