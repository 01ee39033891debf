"""Looks at the files of items: their headers, their bytes and, where it is asked for, their
content.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from eval.progress import report
from toolkit.data.inspection import Content, Header, Inspection, digest_of_bytes
from toolkit.data.items import Item
from toolkit.data.reading import Unreadable

T = TypeVar("T")
R = TypeVar("R")
Modality = Literal["speaker", "face", "image"]
Kind = Literal["missing", "unreadable", "cut", "silent"]
# The content is decoded without being asked for where there is no more than this.
_DECODED_FILES, _DECODED_SECONDS = 5_000, 36_000.0
_TOGETHER = 64  # files that a thread reads before it says so


@dataclass(frozen=True)
class Problem:
    """Why an item cannot be trained on.

    Attributes:
        kind: "missing", "unreadable", "cut" (the file ends before its header says) or "silent" (a
            silent recording, or an image of one colour).
        reason: The sentence of the reader.
    """

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Files:
    """What was seen of N items.

    Attributes:
        headers: (N,) what the header says; None where there is a problem.
        contents: (N,) what the content shows; None where it was not decoded.
        problems: (N,) why an item cannot be used; None where it can.
        same: (N,) a key that items of the same content share; None where there is a problem.
        was_decoded: Whether the content was decoded.
    """

    headers: list[Header | None]
    contents: list[Content | None]
    problems: list[Problem | None]
    same: list[object]
    was_decoded: bool

    def first(self, num: int) -> Files:
        """Return what was seen of the first items."""
        return Files(
            self.headers[:num],
            self.contents[:num],
            self.problems[:num],
            self.same[:num],
            self.was_decoded,
        )


def inspection_of(modality: Modality) -> Inspection:
    """Return how the files of a modality are looked at."""
    if modality == "speaker":
        from modalities.speaker.inspection import RECORDINGS

        return RECORDINGS
    from toolkit.data.inspection import IMAGES

    return IMAGES


def look_at(items: Sequence[Item], inspection: Inspection, decode: bool | None) -> Files:
    """Look at the files of items.

    Args:
        items: N items.
        inspection: How the modality's files are looked at.
        decode: Whether the content is decoded; None decodes at most 5,000 items of 10 hours.

    Returns:
        What was seen. Items share a key where the bytes of their files have the same SHA-256, and
        where the content was decoded also where the samples or pixels have.
    """

    def header(item: Item) -> Header | Problem:
        try:
            os.stat(item.path)
        except (FileNotFoundError, NotADirectoryError):
            return Problem("missing", f"{item.name}: no such file; correct the path")
        except (OSError, ValueError) as error:  # a path that is too long, or holds NUL
            return Problem("unreadable", f"{item.name}: {getattr(error, 'strerror', error)}")
        return _attempt(lambda: inspection.header(item))

    seen = _over("reading headers", header, items)
    headers = [value if isinstance(value, Header) else None for value in seen]
    problems = [value if isinstance(value, Problem) else None for value in seen]
    contents: list[Content | None] = [None] * len(items)
    if decode is None:
        seconds = sum(known.seconds or 0.0 for known in headers if known is not None)
        decode = len(items) <= _DECODED_FILES and seconds <= _DECODED_SECONDS
    same = _keys_of_bytes(items, headers)
    if decode:
        rows = [row for row, value in enumerate(headers) if value is not None]

        def content(row: int) -> Content | Problem:
            known = headers[row]
            assert known is not None
            return _attempt(lambda: inspection.content(items[row], known))

        for row, decoded in zip(rows, _over("decoding", content, rows), strict=True):
            if isinstance(decoded, Content):
                contents[row], same[row] = decoded, decoded.digest
            else:
                problems[row], same[row] = decoded, None
    return Files(headers, contents, problems, same, decode)


def _attempt(look: Callable[[], R]) -> R | Problem:
    """What a reader gives, or why it refuses."""
    from modalities.speaker.decoding import CutShort, SilentAudio
    from toolkit.data.inspection import BlankImage, CutImage

    try:
        return look()
    except (Unreadable, OSError, ValueError) as error:
        kind: Kind = "unreadable"
        if isinstance(error, CutShort | CutImage):
            kind = "cut"
        if isinstance(error, SilentAudio | BlankImage):
            kind = "silent"
        return Problem(kind, str(error))


def _keys_of_bytes(items: Sequence[Item], headers: Sequence[Header | None]) -> list[object]:
    """A key for each item that those of equal bytes share.

    Only files of a size that several have are read.
    """
    files = [(item.path, item.span) for item in items]
    first: dict[object, tuple[Item, int]] = {}  # of the items that are stretches of one file
    for file, item, header in zip(files, items, headers, strict=True):
        if header is not None:
            first.setdefault(file, (item, header.num_bytes))
    sizes = Counter(size for _, size in first.values())
    alike = [file for file, (_, size) in first.items() if sizes[size] > 1]

    def digest(file: object) -> bytes | Problem:
        return _attempt(lambda: digest_of_bytes(first[file][0]))

    digests = dict(zip(alike, _over("comparing files of one size", digest, alike), strict=True))
    keys: list[object] = []
    for file, item in zip(files, items, strict=True):
        key = digests.get(file, file)
        keys.append(None if file not in first or isinstance(key, Problem) else (key, item.stretch))
    return keys


def _over(what: str, work: Callable[[T], R], values: Sequence[T]) -> list[R]:
    """The results of some work on all values, by several threads, in their order."""
    runs = [values[start : start + _TOGETHER] for start in range(0, len(values), _TOGETHER)]
    results: list[R] = []
    report(what, 0, len(values))
    pool = ThreadPoolExecutor(max(1, os.cpu_count() or 1))
    try:
        for run in pool.map(lambda run: [work(value) for value in run], runs):
            results += run
            report(what, len(results), len(values))
    finally:
        pool.shutdown(cancel_futures=True)  # so that Ctrl-C ends it
    return results
