"""Tasks that wait together are embedded together, and do not harm each other."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from likeness.service import batches
from likeness.service.batches import Gone, Late, Question, Workers
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.resnet import ResNet34
from toolkit.data.reading import Array, Floats
from toolkit.models.embedder import TorchEmbedder


class Network:
    """An embedder whose embedding of an input is its mean and its largest number."""

    dim, pads_exactly, is_on_cpu = 2, False, False

    def __init__(self) -> None:
        self.batches: list[int] = []

    def embed_batch(self, inputs: Array, lengths: object = None) -> Floats:
        self.batches.append(len(inputs))
        if (inputs == 13).any():
            raise RuntimeError("a network of its own")
        return np.stack([inputs.mean(1), inputs.max(1)], axis=1).astype(np.float32)

    def used_length(self, length: int) -> int:
        return length


def asking(network: Any, *values: float, size: int = 4) -> Question:
    """A question of one file for each value, whose answer are the embeddings."""
    return Question(
        network,
        [f"file {i}" for i in range(len(values))],
        [[np.full(size, value, np.float32)] for value in values],
        lambda count, reason: ValueError(f"{count}: {reason}"),
        np.ndarray.tolist,
    )


def together(network: Any, *questions: Question) -> list[Any]:
    """The answers to questions that wait while the only worker is busy."""

    async def ask() -> list[Any]:
        workers, busy = Workers(1, 60), threading.Event()
        first = asyncio.create_task(workers.work(busy.wait, 60))
        tasks = [
            asyncio.create_task(workers.work(lambda each=each: each, joins=True))
            for each in questions
        ]
        await asyncio.sleep(0)  # each begins to wait
        busy.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(ask())


def test_what_waits_together_is_one_batch_with_the_answers_of_each() -> None:
    network = Network()
    answers = together(network, asking(network, 1, 2), asking(network, 3), asking(network, 4, 5))
    assert network.batches == [5]
    assert answers == [[[1, 1], [2, 2]], [[3, 3]], [[4, 4], [5, 5]]]


def test_inputs_that_a_network_refuses_harm_nobody_else() -> None:
    network = Network()
    good, refused, endless = asking(network, 1), asking(network, 2, 13), asking(network, np.inf)
    answers = together(network, good, refused, asking(network, 3))
    assert (answers[0], answers[2]) == ([[1, 1]], [[3, 3]])
    assert str(answers[1]) == "the model cannot embed this (RuntimeError)"
    many = together(network, good, asking(network, 5), endless)
    assert many[:2] == [[[1, 1]], [[5, 5]]]
    assert isinstance(many[2], ValueError)
    assert "NaN or infinity" in str(many[2])


def test_batches_are_bounded_and_small_for_sound_on_a_cpu() -> None:
    network = Network()
    together(network, *(asking(network, 1) for _ in range(batches.MAX_INPUTS + 3)))
    assert network.batches == [batches.MAX_INPUTS, 3]
    network.batches.clear()
    network.is_on_cpu = True
    together(network, *(asking(network, 1, size=16_000) for _ in range(3)))
    assert network.batches == [1, 1, 1]


def test_a_worker_that_has_a_batch_takes_only_what_may_join_it() -> None:
    """Also where a second worker comes between its look at what waits first and its taking that."""
    network, workers = Network(), Workers(1, 60)
    seconds: list[threading.Thread] = []

    class Waiting(deque[Any]):
        def __getitem__(self, place: Any) -> Any:
            first = super().__getitem__(place)
            if not seconds:
                seconds.append(threading.Thread(target=workers._turn))
                seconds[0].start()
                seconds[0].join(0.3)  # it may have to wait for this worker
            return first

    async def ask() -> Any:
        tasks = [
            batches._Task(lambda: asking(network, 1), True),
            batches._Task(lambda: asking(network, 2), True),
            batches._Task(threading.current_thread, False),
        ]
        workers._waiting = Waiting(tasks)
        workers._turn()
        seconds[0].join()
        return await asyncio.gather(*(task.answered for task in tasks))

    *embedded, alone = asyncio.run(ask())
    assert embedded == [[[1, 1]], [[2, 2]]]
    assert alone is seconds[0]


def test_who_is_gone_or_late_is_not_worked_for() -> None:
    begun: list[str] = []

    async def ask() -> None:
        busy, begins, gone = threading.Event(), threading.Event(), [False]

        def work() -> None:
            begins.set()
            busy.wait(60)

        workers = Workers(1, 0.05)
        first = asyncio.create_task(workers.work(work))
        await asyncio.sleep(0)
        begins.wait(60)  # which also holds up the end of its time
        batches.is_gone.set(lambda: gone[0])
        leaving = asyncio.create_task(workers.work(begun.append, "gone"))
        await asyncio.sleep(0)
        gone[0] = True
        with pytest.raises(Late, match="goes on"):
            await first
        late = asyncio.create_task(workers.work(begun.append, "late"))
        with pytest.raises(Late, match="nothing was done"):
            await late
        busy.set()
        with pytest.raises((Gone, Late)):
            await leaving

    asyncio.run(ask())
    assert begun == []


def test_a_time_out_of_the_task_itself_is_not_that_of_the_server() -> None:
    async def ask() -> None:
        def fail() -> None:
            raise TimeoutError(110, "Connection timed out")

        await Workers(1, 60).work(fail)

    with pytest.raises(TimeoutError, match="Connection"):
        asyncio.run(ask())


def test_a_batch_of_a_trained_network_gives_the_scores_of_single_requests() -> None:
    torch.manual_seed(0)
    frontend = KaldiFbank(num_mels=16)
    backbone = ResNet34(frontend.dim, dim=4, width=2, blocks=(1, 1, 1, 1))
    network = TorchEmbedder(frontend, backbone).eval()
    rng = np.random.default_rng(0)
    waves = [rng.normal(0, 0.1, size).astype(np.float32) for size in (4000, 4000, 4100, 8000)]
    questions = [
        Question(network, ["file"], [[wave]], lambda *_: ValueError(), lambda z: z[0])
        for wave in waves
    ]
    alone = np.stack([one.answer() for one in questions])
    embedded = batches.embed(questions)
    for one, single in zip(embedded, alone, strict=True):
        assert isinstance(one, np.ndarray)
        np.testing.assert_allclose(one[0], single, rtol=1e-4, atol=1e-6)
