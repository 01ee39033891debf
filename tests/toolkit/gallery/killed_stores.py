"""What test_gallery.py runs: killed_stores.py PLACE ... changes galleries in processes that are
killed at some call.

A PLACE holds {}, in which a number stands for each gallery. Prints JSON: a list of [kills, times
that the old state was there, times the new, what else was there] for each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

with suppress(ImportError):  # once, and not in each child; their tests are left out without them
    import faiss as faiss_package  # noqa: F401
    import psycopg  # noqa: F401

from eval.types import Embeddings
from toolkit.gallery import faiss
from toolkit.gallery.gallery import open_gallery

META = {"model": "a" * 64, "similarity": "cosine"}
FOLDER = str(Path(faiss.__file__).parent)
NUM_POINTS = 8
State = list[tuple[str, int, list[float]]]


def embedded(rows: Any) -> Embeddings:
    matrix = np.asarray(rows, dtype=np.float32)
    return Embeddings(tuple(map(str, range(len(matrix)))), matrix, META)


def prepare(place: str) -> None:
    gallery = open_gallery(place, META)
    gallery.enrol(embedded(np.eye(4)), ["ann", "ann", "bob", "zoe"])
    gallery.search(embedded(np.eye(4)))  # which makes an index of FAISS
    gallery.close()


def change(place: str) -> None:
    gallery = open_gallery(place, META)
    gallery.update(embedded(2 * np.eye(4)[:3]), ["ann", "bob", "bob"])
    gallery.close()


def state(place: str) -> State:
    gallery = open_gallery(place, META)
    found = gallery.search(embedded(np.eye(4)), k=1)
    assert all(len(matches) == 1 for matches in found)
    entries = sorted(
        (entry.subject, entry.enrolments, gallery.enrolments(entry.subject).ravel().tolist())
        for entry in gallery.entries()
    )
    assert len(gallery) == len(entries)
    gallery.enrol(embedded(np.eye(4)[:1]), ["new"])  # and it can be changed
    gallery.close()
    return entries


class Counter:
    """Counts the calls that the stores make, and kills this process at the `last`."""

    def __init__(self, last: int = -1) -> None:
        self.count, self.last = 0, last

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work: Callable[[], Any]) -> Any:
    """What the work gives in a process of its own; None if that is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return None if killed else json.loads(text)


def counted(place: str, last: int = -1) -> int:
    counter = Counter(last)
    sys.setprofile(counter)
    change(place)
    sys.setprofile(None)
    return counter.count


def main(places: list[str]) -> None:
    reports = []
    for pattern in places:
        place = pattern.format(0)
        in_a_child(partial(prepare, place))
        total = in_a_child(partial(counted, place))
        new = in_a_child(partial(state, place))
        place = pattern.format(1)
        in_a_child(partial(prepare, place))
        old = in_a_child(partial(state, place))
        kills, olds, news, other = 0, 0, 0, []
        for number, point in enumerate(np.linspace(1, total, NUM_POINTS).astype(int).tolist(), 2):
            place = pattern.format(number)
            in_a_child(partial(prepare, place))
            kills += in_a_child(partial(counted, place, point)) is None
            left = in_a_child(partial(state, place))
            olds += left == old
            news += left == new
            if left not in (old, new):
                other.append(f"kill at call {point} of {total}: {left}")
        reports.append([kills, olds, news, other])
    print(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1:])
