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

from eval.errors import LikenessError
from eval.progress import report
from modalities.folders import suffixes_of
from toolkit.data.inspection import Content, Header, Inspection, digest_of_bytes
from toolkit.data.items import Item
from toolkit.data.reading import Unreadable

T = TypeVar("T")
R = TypeVar("R")
Modality = Literal["speaker", "face", "image"]
Kind = Literal["missing", "unreadable", "cut", "silent"]
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


def inspection_of(modality: Modality) -> Inspection:
    """Return how the files of a modality are looked at."""
    if modality == "speaker":
        from modalities.speaker.inspection import RECORDINGS

        return RECORDINGS
    from toolkit.data.inspection import IMAGES

    return IMAGES


def modality_of(items: Sequence[Item], where: str) -> Modality:
    """Return the modality that most items have, by their endings: "speaker" or "image".

    Raises:
        LikenessError: No ending is known.
    """
    endings = Counter(item.suffix for item in items)
    count = {
        kind: sum(endings[suffix] for suffix in suffixes_of(kind)) for kind in ("speaker", "image")
    }
    if not any(count.values()):
        raise LikenessError(
            f"{where}: none of {len(items)} files has an ending of a recording or an image; say "
            "what they are with --modality speaker, face or image"
        )
    return "speaker" if count["speaker"] >= count["image"] else "image"


def look_at(
    items: Sequence[Item], inspection: Inspection, decides: Callable[[list[Header | None]], bool]
) -> Files:
    """Look at the files of items.

    Args:
        items: N items.
        inspection: How the modality's files are looked at.
        decides: Whether the content is decoded, when the headers are known.

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
    decode = decides(headers)
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
    file_of = [(item.path, item.span) for item in items]
    first: dict[object, int] = {}
    for row, file in enumerate(file_of):
        if headers[row] is not None:
            first.setdefault(file, row)
    sizes = Counter(_size(headers[row]) for row in first.values())
    rows = [row for row in first.values() if sizes[_size(headers[row])] > 1]

    def digest(row: int) -> bytes | Problem:
        return _attempt(lambda: digest_of_bytes(items[row]))

    digests = dict(zip(rows, _over("comparing files of one size", digest, rows), strict=True))
    keys: list[object] = []
    for row, item in enumerate(items):
        file = file_of[row]
        key = digests.get(first.get(file, -1), file)
        keys.append(
            None if headers[row] is None or isinstance(key, Problem) else (key, item.stretch)
        )
    return keys


def _size(header: Header | None) -> int:
    return -1 if header is None else header.num_bytes


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
