"""Looks at the files of items: their headers, their bytes and, where it is asked for, their
content.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from likeness.eval.intervals.resampling import in_threads
from likeness.eval.items.items import Item
from likeness.eval.progress import report
from likeness.modalities.folders import Modality
from likeness.toolkit.data import reading

T = TypeVar("T")
R = TypeVar("R")
Kind = Literal["missing", "unreadable", "cut", "empty"]
# The content is decoded without being asked for where there is no more than this.
_DECODED_FILES, _DECODED_SECONDS = 5_000, 36_000.0
_TOGETHER = 64  # files that a thread reads before it says so


class Problem(NamedTuple):
    """Why an item cannot be trained on.

    Attributes:
        kind: "missing", "unreadable", "cut" (the file ends before its header says) or "empty" (a
            recording that holds no voice, or an image that shows nothing).
        reason: The sentence of the reader.
    """

    kind: Kind
    reason: str


class Seen(NamedTuple):
    """What was seen of an item.

    Attributes:
        header: What the header of its file says; None where there is a problem.
        content: What the content shows; None where it was not decoded.
        problem: Why it cannot be used; None where it can.
        same: A key that items of the same content share; None where there is a problem.
    """

    header: reading.Header | None = None
    content: reading.Content | None = None
    problem: Problem | None = None
    same: object = None


def inspection_of(modality: Modality) -> reading.Inspection:
    """Return how the files of a modality are looked at."""
    if modality == "speaker":
        from likeness.modalities.speaker.inspection import RECORDINGS

        return RECORDINGS
    from likeness.toolkit.data.images import INSPECTION

    return INSPECTION


def look_at(
    items: Sequence[Item], inspection: reading.Inspection, decode: bool | None
) -> tuple[list[Seen], bool]:
    """Look at the files of items.

    Args:
        items: N items.
        inspection: How the modality's files are looked at.
        decode: Whether the content is decoded; None decodes at most 5,000 items of 10 hours.

    Returns:
        What was seen of each, and whether the content was decoded. Items share a key where the
        bytes of their files have the same SHA-256, or where the content was decoded, where the
        samples or pixels have.
    """
    seen = read_headers(items, inspection)
    if decode is None:
        seconds = sum(each.header.seconds or 0.0 for each in seen if each.header)
        decode = len(items) <= _DECODED_FILES and seconds <= _DECODED_SECONDS
    if not decode:
        keys = _keys_of_bytes(items, seen)
        return [each._replace(same=key) for each, key in zip(seen, keys, strict=True)], False
    known = {row: each.header for row, each in enumerate(seen) if each.header is not None}
    contents = _over("decoding", lambda row: inspection.content(items[row], known[row]), [*known])
    for row, decoded in zip(known, contents, strict=True):
        if isinstance(decoded, reading.Content):
            seen[row] = seen[row]._replace(content=decoded, same=decoded.digest)
        else:
            seen[row] = seen[row]._replace(problem=decoded)
    return seen, True


def read_headers(items: Sequence[Item], inspection: reading.Inspection) -> list[Seen]:
    """Read the headers of the files of items, and nothing else."""

    def header(item: Item) -> reading.Header:
        os.stat(item.path)
        return inspection.header(item)

    headers = _over("reading headers", header, items)
    return [Seen(h) if isinstance(h, reading.Header) else Seen(problem=h) for h in headers]


def _attempt(look: Callable[[T], R], value: T) -> R | Problem:
    """What a reader gives, or why it refuses."""
    from likeness.modalities.speaker.decoding import CutShort
    from likeness.toolkit.data.images import CutImage

    try:
        return look(value)
    except (FileNotFoundError, NotADirectoryError) as error:
        return Problem("missing", str(error))
    except (CutShort, CutImage) as error:
        return Problem("cut", str(error))
    except reading.Empty as error:
        return Problem("empty", str(error))
    except (reading.Unreadable, OSError, ValueError) as error:
        return Problem("unreadable", str(error))


def _keys_of_bytes(items: Sequence[Item], seen: Sequence[Seen]) -> list[object]:
    """A key for each item that those of equal bytes share.

    Only files of a size that several have are read.
    """
    first: dict[object, tuple[Item, int]] = {}  # of the items that are stretches of one file
    for item, each in zip(items, seen, strict=True):
        if each.header is not None:
            first.setdefault((item.path, item.span), (item, each.header.num_bytes))
    sizes = Counter(size for _, size in first.values())
    alike = [file for file, (_, size) in first.items() if sizes[size] > 1]
    digests = _over("comparing files", reading.digest_of_bytes, [first[of][0] for of in alike])
    digest_of = dict(zip(alike, digests, strict=True))
    keys: list[object] = []
    for item, each in zip(items, seen, strict=True):
        file = (item.path, item.span)
        key = digest_of.get(file, file)
        whole = (key, item.stretch, item.channel)
        keys.append(None if not each.header or isinstance(key, Problem) else whole)
    return keys


def _over(what: str, look: Callable[[T], R], values: Sequence[T]) -> list[R | Problem]:
    """What `look` gives for all values, or why it refuses them, by several threads."""
    runs = [values[start : start + _TOGETHER] for start in range(0, len(values), _TOGETHER)]
    results: list[R | Problem] = []
    report(what, 0, len(values))
    for run in in_threads(lambda run: [_attempt(look, value) for value in run], runs):
        results += run
        report(what, len(results), len(values))
    return results
