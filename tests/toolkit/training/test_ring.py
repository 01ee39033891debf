"""Batches come through shared memory as the training process would read them itself."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.eval.items.items import Item
from likeness.recipe import Compute
from likeness.toolkit.data.batch import Batch, Draw, Views, collate_views
from likeness.toolkit.training import _ring
from likeness.toolkit.training._ring import Read, read_batches
from likeness.toolkit.training.loading import loader_of
from tests.scripts import program

NUM, SIZE, STEPS, BROKEN = 12, 4, 14, 5


def read_noise(item: Item) -> Any:
    if int(item.id) == BROKEN:
        raise ValueError("it is broken")
    return np.random.default_rng(int(item.id)).normal(size=(2, 900)).astype(np.float32)


def crop(wave: Any, rng: np.random.Generator, batch_rng: np.random.Generator) -> Any:
    """Lengths differ from batch to batch, and within every third one."""
    length = int(batch_rng.integers(1, 800))
    return wave[:, : length + int(rng.integers(100)) * (length % 3 == 0)]


def levels(wave: Any, rng: np.random.Generator, batch_rng: np.random.Generator) -> Any:
    return (100 + 20 * wave[:, :300]).astype(np.uint8)


def views(augment: Callable[..., Any] = crop) -> Views:
    items = [Item(str(number), Path(), "") for number in range(NUM)]
    return Views(items, np.arange(NUM), read_noise, augment, seed=3)


def order(steps: int = STEPS) -> Iterator[list[Draw]]:
    """Batches of four of the items, of which the last has one."""
    rng = np.random.default_rng(1)
    for step in range(steps):
        drawn = rng.integers(NUM, size=SIZE if step < steps - 1 else 1)
        yield [Draw(int(item), step, position) for position, item in enumerate(drawn)]


def batches(
    workers: int,
    augment: Callable[..., Any] = crop,
    draws: Iterator[list[Draw]] | None = None,
    pin: bool = False,
) -> Iterator[Read]:
    own = views(augment)
    return read_batches(own, draws or order(), Compute(workers=workers), seed=0, pin=pin)


def copied(read: Read) -> tuple[list[Any], list[Any]]:
    batch, bad = read
    assert batch is not None
    parts = (None if part is None else torch.as_tensor(part).clone() for part in batch)
    return list(parts), bad


def assert_equal(ours: list[Any], expected: list[Any]) -> None:
    assert len(ours) == len(expected) == STEPS
    for (parts, bad), (parts_expected, bad_expected) in zip(ours, expected, strict=True):
        assert bad == bad_expected
        for part, wanted in zip(parts, parts_expected, strict=True):
            assert (part is None) == (wanted is None)
            assert part is None or (part.dtype == wanted.dtype and torch.equal(part, wanted))


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """Every batch, collated with memory of its own."""
    own = views()
    every = [copied(collate_views([own[draw] for draw in draws])) for draws in order()]
    assert any(bad for _, bad in every), "no item is broken"
    assert {parts[2] is None for parts, _ in every} == {True, False}
    return every


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_those_of_the_training_process(workers, expected):
    assert_equal([copied(read) for read in batches(workers)], expected)


def test_levels_stay_levels():
    (one, _), *_ = (copied(read) for read in batches(2, levels))
    (other, _), *_ = (copied(read) for read in batches(0, levels))
    assert one[0].dtype == torch.uint8
    assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_that_are_kept_stay_as_they_are(workers, expected):
    """A step may keep inputs, or a part of them, as long as it likes."""
    kept = list(batches(workers))
    assert_equal([copied(read) for read in kept], expected)
    parts = [batch.inputs[:, 1:] for batch, _ in batches(workers) if batch is not None]
    for part, (whole, _) in zip(parts, expected, strict=True):
        assert torch.equal(part, whole[0][:, 1:])


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The memory that a GPU would know."""
    every: list[Any] = []
    monkeypatch.setattr(_ring, "pin_pages", every.append)
    return every


@pytest.mark.parametrize(("workers", "places"), [(1, 4), (2, 6)])
def test_memory_is_used_again(workers, places, pinned):
    whole = ([draw for draw in draws if draw.item != BROKEN][:2] for draws in order())
    where = set()
    for batch, _ in batches(workers, levels, whole, pin=True):
        assert batch is not None
        where.add(batch.inputs.data_ptr())
        del batch
    assert where == {memory.ctypes.data for memory in pinned}
    assert len(pinned) == len(where) == places


def test_what_finds_no_shared_memory_comes_all_the_same(expected, pinned, monkeypatch):
    """As where a container has 64 MB of it: some batches find room, others do not."""
    share = torch.Tensor.share_memory_

    def full(tensor: torch.Tensor) -> torch.Tensor:
        if len(tensor) > 12_000:
            raise RuntimeError("unable to allocate shared memory(shm): No space left on device")
        return share(tensor)

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    assert_equal([copied(read) for read in batches(2, pin=True)], expected)
    sizes = [2 * 4 * parts[0].shape[0] * parts[0].shape[-1] for parts, _ in expected]
    assert min(sizes) < 12_000 < max(sizes)
    assert 0 < max(map(len, pinned)) <= 12_000


class Runtime:
    """What CUDA is asked for; a refusal stays until a launch raises it."""

    def __init__(self, answer: int):
        self.answer, self.refused, self.registered = answer, 0, dict[int, int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.registered
        if self.answer:
            self.refused += 1
        else:
            self.registered[address] = size
        return self.answer

    def cudaHostUnregister(self, address: int) -> None:
        del self.registered[address]

    def zeros(self, size: int, device: str) -> None:
        self.refused -= 1
        raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize("answer", [0, 2])
def test_memory_is_pinned_while_it_lives(answer, expected, monkeypatch):
    runtime = Runtime(answer)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "zeros", runtime.zeros)
    read = batches(2, pin=True)
    ours = [copied(next(read)) for _ in range(STEPS - 1)]
    assert bool(runtime.registered) == (answer == 0)
    assert all(size > 0 for size in runtime.registered.values())
    assert_equal([*ours, *map(copied, read)], expected)
    gc.collect()
    assert not runtime.registered
    assert not runtime.refused


def test_a_gpu_has_copied_a_batch_before_the_next_but_one_is_asked_for(monkeypatch):
    """Copies of this GPU end only when they are waited for."""
    events: list[str] = []

    class Stream:
        def synchronize(self) -> None:
            events.append("wait")

    def to(batch: Batch, *_: object) -> Batch:
        events.append("copy")
        return Batch(batch.inputs.clone(), torch.as_tensor(batch.labels), None)

    def read(*_: object, **__: object) -> Iterator[Read]:
        for number in range(3):
            events.append(f"ask {number}")
            yield Batch(torch.zeros(1), torch.zeros(1), None), []

    class Current:
        def wait_stream(self, stream: Stream) -> None:
            events.append("use")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(Batch, "to", to)
    monkeypatch.setattr("likeness.toolkit.training.loading.read_batches", read)
    loader = loader_of(views(), order(), Compute(workers=2), torch.device("cuda"), seed=0)
    assert len(list(loader)) == 3
    assert events == [
        event for number in range(3) for event in (f"ask {number}", "wait", "copy", "use")
    ]


SPAWNED = """
import multiprocessing
import torch
from tests.toolkit.training.test_ring import batches, copied

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    whole = [copied(read) for read in batches(0)]
    ours = [copied(read) for read in batches(1)]
    for (one, _), (other, _) in zip(whole, ours, strict=True):
        assert torch.equal(one[0], other[0])
    print("equal")
"""


@pytest.mark.slow  # a process that imports torch and starts another one that does
def test_processes_may_be_spawned(tmp_path):
    (tmp_path / "spawned.py").write_text(SPAWNED)
    assert program(str(tmp_path / "spawned.py")).stdout.strip() == "equal"
