"""Views and batches: what becomes of items on their way into a network."""

import multiprocessing.process
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likeness.eval.items.items import Item
from likeness.toolkit.data import reading

# Bytes of the longest temporary folder in which the path of a socket still fits.
_MOST_FOR_SOCKETS = 45
_folder = cache(tempfile.TemporaryDirectory)  # until the process ends

Augment = Callable[[Any, np.random.Generator, np.random.Generator], reading.Array]


class Batch(NamedTuple):
    """Inputs of one size with their labels.

    Attributes:
        inputs: (B, ...) float32, padded with zeros at the end; of images perhaps uint8.
        labels: (B,) int64.
        lengths: (B,) relative lengths from 0 to 1; None if nothing is padded.
        places: (B,) int64, which of the training items each row is, as in `Plan.items`; None of a
            batch that was not drawn from them.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None
    places: Tensor | None = None

    def to(self, device: torch.device, channels_last: bool) -> "Batch":
        """The batch on a device, where the levels of images become float32."""
        inputs, labels, lengths, places = (
            None if part is None else torch.as_tensor(part).to(device, non_blocking=True)
            for part in self
        )
        assert inputs is not None
        assert labels is not None
        inputs = inputs.float()
        if channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return Batch(inputs, labels, lengths, places)


class Draw(NamedTuple):
    """One place of one training batch: which item, in which step, at which position.

    Its random numbers derive from these numbers and the seed alone.
    """

    item: int
    step: int
    position: int


class View(NamedTuple):
    """One row of a training batch.

    Attributes:
        input: What the network gets, before it is padded (..., S).
        label: The class number.
        place: Which of the items it is.
    """

    input: reading.Array
    label: int
    place: int


@dataclass(eq=False)
class Views(torch.utils.data.Dataset[View | reading.Bad]):
    """Training views: items that are read and augmented, each with random numbers of its own.

    View `draw` is item `draw.item`, read and augmented with generators that are seeded by (seed,
    step, position). So a run that is resumed sees the same views.

    Attributes:
        items: N items.
        labels: Their class numbers (N,).
        read: Reads an item as an array of float32 or, for images, of uint8. Where it gives an
            opened file instead, `augment` decodes the part that it needs.
        augment: augment(input, rng, batch_rng) gives the augmented input; None for no augmentation.
            `batch_rng` is equal for all items of a step, for example for one crop length per batch.
        seed: The seed of all of them.
        cache: Whether what was read stays in memory, for data sets that fit.
    """

    items: Sequence[Item]
    labels: NDArray[np.int64]
    read: Callable[[Item], Any]
    augment: Augment | None
    seed: int
    cache: bool = False
    _values: dict[int, tuple[str, Any]] = field(default_factory=dict, init=False)
    _of_step: tuple[int, np.random.Generator, Any] | None = field(default=None, init=False)

    def __getitem__(self, draw: Draw) -> View | reading.Bad:
        found = self._values.get(draw.item) or self._read(draw.item)
        if isinstance(found, reading.Bad):
            return found
        value: Any
        id, value = found
        if self.augment is not None:
            rng = np.random.default_rng((self.seed, draw.step, draw.position))
            batch_rng = self._batch_rng(draw.step)
            try:
                value = reading.as_input(self.augment(value, rng, batch_rng), self.augment, id)
            except reading.Unreadable as error:
                return reading.Bad(id, str(error))
        return View(value, self.labels.item(draw.item), draw.item)

    def _read(self, place: int) -> tuple[str, Any] | reading.Bad:
        """The id of an item and what is read of it."""
        item = self.items[place]
        try:
            value = self.read(item)
            # A reading may give an opened file to the augmentation, which is no value of Python's
            # own.
            plain = isinstance(value, Tensor) or type(value).__module__ == "builtins"
            if plain or self.augment is None:
                value = reading.as_input(value, self.read, item.id)
        except (ValueError, OSError) as error:
            return reading.Bad(item.id, str(error))
        if self.cache:
            self._values[place] = item.id, value
        return item.id, value

    def _batch_rng(self, step: int) -> np.random.Generator:
        """The generator of a step, in its first state; seeding takes ten times as long."""
        if self._of_step is None or self._of_step[0] != step:
            rng = np.random.default_rng((self.seed, step))
            self._of_step = step, rng, rng.bit_generator.state
        _, rng, state = self._of_step
        rng.bit_generator.state = state
        return rng


def collate_views(
    views: Sequence[View | reading.Bad], empty: reading.MakeEmpty = np.empty
) -> tuple[Batch | None, list[reading.Bad]]:
    """Separates views into a Batch of the readable ones (None if there are none) and the others.

    Shorter inputs are padded with zeros on the last axis. Where all are of uint8, so is the batch:
    a quarter of the bytes for the device, which turns them into float32. `empty` gives the array
    (shape, dtype) that the inputs are written into.
    """
    bad = [view for view in views if isinstance(view, reading.Bad)]
    good = [view for view in views if not isinstance(view, reading.Bad)]
    if not good:
        return None, bad
    inputs, labels, places = zip(*good, strict=True)
    stacked, sizes = reading.pad(inputs, empty)
    lengths = None if sizes is None else torch.from_numpy(sizes)
    whole = torch.from_numpy(stacked)
    return Batch(whole, torch.tensor(labels), lengths, torch.tensor(places)), bad


def pin_pages(memory: NDArray[Any]) -> None:
    """Pin memory for as long as it lives, so that a GPU copies from it while the process goes on.

    Where the system refuses, the process waits for each copy.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.ctypes.data
    if int(runtime.cudaHostRegister(address, memory.nbytes, 1)) == 0:  # 1: for every GPU
        weakref.finalize(memory, runtime.cudaHostUnregister, address)
    else:
        with suppress(RuntimeError):  # CUDA keeps the refusal, and the next launch raises it
            torch.zeros(1, device="cuda")


def make_room_for_sockets() -> None:
    """Let reading processes hand over their data where the temporary folder has a long path.

    Call it before these processes start. They use sockets in a folder of multiprocessing, and where
    the path of a socket is longer than the system allows, both sides would wait for ever.
    """
    # What multiprocessing.util.get_temp_dir looks for, and would fill with a folder of its own.
    settings = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    if os.name == "posix" and len(os.fsencode(tempfile.gettempdir())) > _MOST_FOR_SOCKETS:
        settings.setdefault("tempdir", _folder(dir="/tmp").name)
