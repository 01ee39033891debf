"""Uploads that arrive together are embedded together.

A worker takes the task that has waited longest. Where its inputs leave room in a batch, the worker
takes those that wait behind it too, and the network gets all of them at once. Nobody waits for
company: a task that is alone is begun at once. Of sound a batch on a CPU has room for a second,
because larger ones are slower there (toolkit/models/embed.py); on a GPU it has room for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.types import Floats32
from toolkit.data.items import Item
from toolkit.data.reading import Array
from toolkit.models.embed import embedded_rows
from toolkit.models.loaded import Embedder

MAX_INPUTS = 64  # of one batch
_CPU_SAMPLES = 2**14  # of the waves of one batch
_VALUES = 2**24  # of one batch
_log = logging.getLogger("likeness.serve")


class Late(Exception):
    """The time of a task is over; the text says what became of it."""


class Gone(Exception):
    """Whoever asked has closed the connection before the task was begun."""


def _is_there() -> bool:
    return False


# Whether who sent the request that is answered now has closed the connection. The guard sets it.
is_gone: ContextVar[Callable[[], bool]] = ContextVar("is_gone", default=_is_there)


@dataclass(frozen=True)
class Question:
    """What a task asks of the network, and what follows from the embeddings.

    Attributes:
        embedder: The network.
        names: What errors call the files.
        inputs: Of each file what the network gets: one input, or several.
        refusal: Gives the error for so many files that the network gives no embedding for, with
            the first one's name and the reason.
        finish: Takes the embeddings (files, D) and gives the answer.
    """

    embedder: Embedder
    names: Sequence[str]
    inputs: Sequence[list[Array]]
    refusal: Callable[[int, str], ValueError]
    finish: Callable[[Floats32], Any]

    @property
    def sizes(self) -> list[int]:
        """The numbers in each input."""
        return [part.size for parts in self.inputs for part in parts]

    @property
    def has_waves(self) -> bool:
        """Whether the inputs are waves, (samples,)."""
        return all(part.ndim == 1 for parts in self.inputs for part in parts)

    def answer(self) -> Any:
        """Embed the inputs, without others, and give the answer.

        Raises:
            LikenessError: The network gives no embedding for an input.
        """
        (embedded,) = embed([self])
        if isinstance(embedded, Exception):
            raise embedded
        return self.finish(embedded)


def embed(questions: Sequence[Question]) -> list[Floats32 | ValueError]:
    """Embed the inputs of several questions at once.

    Args:
        questions: At least one; they have the same network.

    Returns:
        Of each question the embeddings (files, D), or why there are none. An input that the network
        does not take changes nothing for the other questions.
    """
    names = [(number, name) for number, one in enumerate(questions) for name in one.names]
    inputs = [given for one in questions for given in one.inputs]
    prefix = "{0} {1}" if len(questions) > 1 else "{1}"
    items = [Item(prefix.format(*name), Path()) for name in names]
    by_id = dict(zip((item.id for item in items), inputs, strict=True))
    try:
        rows, bad = embedded_rows(
            questions[0].embedder, items, partial(_given, by_id), batch_size=MAX_INPUTS
        )
    except (ValueError, OSError, RuntimeError) as error:
        if len(questions) > 1:
            return [embed([one])[0] for one in questions]
        if not isinstance(error, ValueError):
            _log.warning("an upload ended in %s", type(error).__name__)
            error = LikenessError(f"the model cannot embed this ({type(error).__name__})")
        return [error]
    reasons = {one.id: one.reason for one in bad}
    results: list[Floats32 | ValueError] = []
    begin = 0
    for one in questions:
        places = range(begin, begin + len(one.names))
        begin = places.stop
        wrong = [place for place in places if place not in rows]
        if wrong:
            name, reason = names[wrong[0]][1], reasons[items[wrong[0]].id]
            results.append(one.refusal(len(wrong), f"{name}: {reason}"))
        else:
            results.append(np.stack([rows[place] for place in places]))
    return results


def _given(inputs: Mapping[str, list[Array]], item: Item) -> Any:
    """What was read already."""
    return inputs[item.id]


class _Task:
    """A task that waits or is worked on, and the coroutine that waits for its answer."""

    def __init__(self, run: Callable[[], Any], joins: bool):
        self.loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Any] = self.loop.create_future()
        self.joins = joins
        # Whoever takes it out, a worker or who gives up, decides whether it is done. With it go the
        # uploads.
        self.waiting = [run]
        self._is_gone = is_gone.get()

    def begin(self) -> Any:
        """Run the task, unless nobody waits for it any more: then None."""
        try:
            run = self.waiting.pop()
        except IndexError:
            return None
        if self._is_gone():
            self.end(Gone("the client closed the connection"))
            return None
        try:
            result = run()
        except BaseException as error:
            self.end(error)
            return None
        if not isinstance(result, Question):
            self.end(result)
            return None
        return result

    def end(self, result: Any) -> None:
        """Hand over the answer, or an exception."""
        with contextlib.suppress(RuntimeError):  # of a loop that has ended, where nobody waits
            self.loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: Any) -> None:
        if self.answered.done():
            return
        if isinstance(result, BaseException):
            self.answered.set_exception(result)
        else:
            self.answered.set_result(result)


class Workers:
    """Threads that work on tasks, and embed together what waits together.

    Args:
        number: How many threads.
        seconds: The time of a task, waiting included.
    """

    def __init__(self, number: int, seconds: float):
        self._seconds = seconds
        self._waiting: deque[_Task] = deque()
        self._taking = Lock()
        self._threads = ThreadPoolExecutor(number, thread_name_prefix="likeness")

    async def work(
        self, task: Callable[..., Any], *arguments: Any, joins: bool = False, **named: Any
    ) -> Any:
        """Run a task in a thread.

        A task that has not begun when its time is up never begins, nor does one whose client is
        gone. One that has begun cannot be stopped, and the error says so.

        Args:
            task: Gives the answer, or a Question whose answer it is.
            arguments: Of the task.
            joins: Whether the task gives a Question, so that it may be taken together with others.
            named: Of the task.

        Raises:
            Late: Its time is over.
            Gone: Its client is gone.
            Exception: What the task raises.
        """
        waiting = _Task(partial(task, *arguments, **named), joins)
        self._waiting.append(waiting)
        self._threads.submit(self._turn)
        try:
            async with asyncio.timeout(self._seconds) as time:
                return await waiting.answered
        except TimeoutError:
            if not time.expired():  # it is the task's own, of a network disk for instance
                raise
            try:
                waiting.waiting.pop()
                outcome = "nothing was done: try again, or send less"
            except IndexError:
                outcome = (
                    "it goes on: if it enrols or removes, look at the gallery before you send it "
                    "again"
                )
            raise Late(outcome) from None
        finally:
            # Where nobody waits any more the uploads go, and a task that has not begun never does.
            waiting.waiting.clear()

    def _take(self, *, only_joining: bool) -> _Task | None:
        """Take the task that has waited longest; None where there is none, or where it has to join
        others and may not.
        """
        with self._taking:  # another thread must not take it after this one has looked at it
            if not self._waiting or (only_joining and not self._waiting[0].joins):
                return None
            return self._waiting.popleft()

    def _turn(self) -> None:
        """Work on the task that has waited longest, and on those that may join it.

        There is one turn for every task, so that a turn may find that nothing is left.
        """
        taken: list[tuple[_Task, Question]] = []
        while (task := self._take(only_joining=bool(taken))) is not None:
            question = task.begin()
            if question is not None:
                taken.append((task, question))
            elif not taken:
                return
            if not _has_room([each for _, each in taken]):
                break
        if not taken:
            return
        try:
            answers = embed([question for _, question in taken])
        except BaseException as error:
            for task, _ in taken:
                task.end(error)
            return
        for (task, question), embedded in zip(taken, answers, strict=True):
            if isinstance(embedded, ValueError):
                task.end(embedded)
                continue
            try:
                task.end(question.finish(embedded))
            except BaseException as error:
                task.end(error)


def _has_room(taken: Sequence[Question]) -> bool:
    """Whether one more like the last fits into the batch."""
    sizes = [size for question in taken for size in question.sizes]
    last = taken[-1].sizes
    on_cpu = taken[-1].embedder.is_on_cpu and taken[-1].has_waves
    most = _CPU_SAMPLES if on_cpu else _VALUES
    return len(sizes) + len(last) <= MAX_INPUTS and sum(sizes) + sum(last) <= most
