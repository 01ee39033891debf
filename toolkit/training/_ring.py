"""A ring of shared memory by which reading processes hand batches over.

If each batch had shared memory of its own, every step would map it, fill it page by page, copy the
batch into it and free it. The places of the ring stay: the processes collate into them, and a GPU
copies from them.
"""

import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likeness.toolkit.data.batch import Batch, Draw, Views, collate_views, pin_pages
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.signals import leave_signals_to_parent
from likeness.toolkit.training.recipe import Compute

Read = tuple[Batch | None, list[Bad]]  # a batch, or None where no item of it could be read


class _Batches(torch.utils.data.Dataset[Read]):
    """Reads one batch for each task: a place in the ring, whether it is free, and the draws.

    The `inputs` of a batch from a reading process say where they lie: the process and the place,
    their memory if it is new, the shape and the type.
    """

    def __init__(self, views: Views):
        self.views = views
        self.memories: dict[int, Tensor] = {}  # of this process, by place

    def __getitem__(self, task: tuple[int, bool, list[Draw]]) -> Read:
        place, is_free, draws = task
        read = [self.views[draw] for draw in draws]
        process = torch.utils.data.get_worker_info()
        if process is None:
            return collate_views(read)
        if not is_free:
            self.memories.pop(place, None)
        known = self.memories.get(place)
        batch, bad = collate_views(read, lambda *array: self._empty(place, *array))
        if batch is not None:
            # Arrays travel within a message. Each tensor would take a connection of its own, and
            # the training process a third of a millisecond.
            parts: list[Any] = [None if tensor is None else tensor.numpy() for tensor in batch]
            if (memory := self.memories.get(place)) is not None:
                new = None if memory is known else memory
                parts[0] = (process.id, place), new, parts[0].shape, parts[0].dtype
            batch = Batch(*parts)
        return batch, bad

    def _empty(self, place: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array in the memory of a place; elsewhere if no shared memory is left."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory: Any = self.memories.pop(place, None)
        if memory is None or len(memory) < size:
            memory = torch.empty(size, dtype=torch.uint8)
            try:
                memory.share_memory_()
            except RuntimeError:
                return np.empty(shape, dtype)
        self.memories[place] = memory
        return np.ndarray(shape, dtype, memory.numpy())


def read_batches(
    views: Views, order: Iterator[list[Draw]], compute: Compute, *, seed: int, pin: bool
) -> Iterator[Read]:
    """Batches of views in the given order, read in compute.workers processes.

    A place is written again when nobody holds its inputs any more, at the earliest when two more
    batches were asked for. Where somebody does, the place gets other memory.

    Args:
        views: The views.
        order: The draws of each batch.
        compute: How many processes read, and how far ahead; without them this process reads.
        seed: Of the processes' own random numbers.
        pin: Whether a GPU copies the batches.
    """
    # The batches on the way, and two more. Each place always comes to the same process.
    num = compute.workers * compute.prefetch + max(compute.workers, 2)
    held = weakref.WeakValueDictionary[int, NDArray[Any]]()
    tasks: Any = ((i % num, i % num not in held, draws) for i, draws in enumerate(order))
    loader: Any = torch.utils.data.DataLoader(
        _Batches(views),
        sampler=tasks,
        batch_size=None,
        collate_fn=tuple,  # leaves what it gets as it is
        num_workers=compute.workers,
        prefetch_factor=compute.prefetch if compute.workers else None,
        worker_init_fn=leave_signals_to_parent,
        pin_memory=pin and not compute.workers,
        # its own, so that making the loader draws nothing from the run's generator
        generator=torch.Generator().manual_seed(seed),
    )
    memories: dict[tuple[int, int], NDArray[Any]] = {}
    for batch, bad in loader:
        if batch is not None and isinstance(batch.inputs, tuple):
            name, memory, shape, dtype = batch.inputs
            if memory is not None:
                memories[name] = memory.numpy()
                if pin:
                    pin_pages(memories[name])
            held[name[1]] = inputs = np.ndarray(shape, dtype, memories[name])
            batch = batch._replace(inputs=torch.from_numpy(inputs))
        yield batch, bad
