"""Embeddings of a long list by workers on many machines, which share a folder or a bucket.

toolkit/parallel/claims.py says how workers claim pieces. Beside the pieces lies plan.json, which
says of what they are, so that no worker adds a piece of another model, list or setting.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval.errors import LikenessError
from eval.formats.provenance import likeness_version
from eval.types import Embeddings, name_first
from likeness.defaults import LEASE_MINUTES, PIECE_ITEMS
from likeness.extract import (
    MANY_NO_NUMBERS,
    Piece,
    joined,
    plan_of,
    read_piece,
    write_piece,
)
from toolkit.console import say
from toolkit.data.item_checks import check_unique
from toolkit.data.items import MAX_SPAN, Item
from toolkit.data.reading import Bad
from toolkit.models.embed import NO_NUMBERS, embed_where_readable, refuse_diverged
from toolkit.models.loaded import Loaded
from toolkit.parallel import claims
from toolkit.parallel.claims import Place

_PLAN = "plan.json"
_MAX_PLAN = 1 << 24  # bytes
_MOST_PIECES = 10**6  # their numbers have six digits
_PAUSE_SECONDS = 5.0  # between two looks at what others do
_LOOKS_AT_PLAN = 5  # until a plan that cannot be read is taken for damaged, a second apart


@dataclass(frozen=True)
class Standing:
    """How far the pieces of a place are.

    Attributes:
        num_items: The items of the whole list.
        num_pieces: The pieces of the whole list.
        done: The numbers of the pieces that are there.
        held: By whom the others are claimed: number of a piece -> name of its worker. A worker that
            was killed is still named, until another takes its piece over.
    """

    num_items: int
    num_pieces: int
    done: frozenset[int]
    held: Mapping[int, str]

    @property
    def missing(self) -> list[int]:
        """The numbers of the pieces that are not there, in order."""
        return [piece for piece in range(self.num_pieces) if piece not in self.done]

    def __str__(self) -> str:
        text = f"{len(self.done)} of {self.num_pieces} pieces are there"
        if self.held:
            text += f", {len(self.held)} are claimed (by {name_first(sorted(self.held.values()))})"
        if num_free := len(self.missing) - len(self.held):
            text += f", {num_free} wait for a worker"
        return text


@dataclass(frozen=True)
class _Plan:
    """What the pieces of a place are of: the content of plan.json."""

    content: Mapping[str, Any]

    @property
    def num_items(self) -> int:
        return int(self.content["num_items"])

    @property
    def piece_items(self) -> int:
        return int(self.content["piece_items"])

    @property
    def num_pieces(self) -> int:
        return -(-self.num_items // self.piece_items)

    @property
    def meta(self) -> dict[str, str]:
        """What travels with the embeddings."""
        return {str(name): str(value) for name, value in self.content["meta"].items()}

    @property
    def digest(self) -> str:
        """What each piece says of the plan that it belongs to."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()

    def size_of(self, piece: int) -> int:
        """The number of items of a piece."""
        return min(self.piece_items, self.num_items - piece * self.piece_items)


@dataclass
class _Numbers:
    """What was seen of embeddings that are no numbers, in all pieces of this worker."""

    num_finite: int = 0
    bad: list[Bad] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        embeddings, bad = piece
        self.num_finite += 0 if embeddings is None else len(embeddings.ids)
        self.bad += [item for item in bad if item.reason == NO_NUMBERS]
        if len(self.bad) >= MANY_NO_NUMBERS:
            refuse_diverged(self.bad, self.num_finite)


def embed_pieces(
    model: Loaded,
    items: Sequence[Item],
    place: Place,
    *,
    batch_size: int = 16,
    workers: int = 0,
    piece_items: int = PIECE_ITEMS,
    lease_minutes: float = LEASE_MINUTES,
    waits: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> Standing:
    """Make pieces of a place until none is left that nobody works on.

    Any number of processes on any machines call this at the same time, with the same model, items
    and piece_items. Each piece is made once, and again only where its worker was taken for dead.

    Args:
        model: What embeds, and how it reads an item.
        items: N items with distinct ids.
        place: Where the pieces lie (`claims.open_place`).
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read files.
        piece_items: How many items make a piece.
        lease_minutes: After so long without a sign of life, a worker's piece goes to others.
        waits: Whether to wait for the pieces of other workers, until all are there.
        sleep: What waits for a number of seconds.

    Returns:
        How far the pieces are now.

    Raises:
        LikenessError: The place holds pieces of another model, list or setting.
        Diverged: Most embeddings are NaN or infinite.
        OSError: The place cannot be read or written.
    """
    check_unique(items, "items to embed")
    plan = _agreed(model, items, place, piece_items, sleep)
    numbers = _Numbers()
    with claims.working(place, 60 * lease_minutes) as worker:
        while True:
            claim = worker.take(plan.num_pieces)
            if claim is None:
                now = progress(place)
                if not waits or not now.missing:
                    return now
                sleep(min(_PAUSE_SECONDS, 15 * lease_minutes))
                continue
            start = claim.piece * piece_items
            with worker.holding(claim):
                piece = embed_where_readable(
                    model.embedder,
                    items[start : start + piece_items],
                    model.read,
                    batch_size=batch_size,
                    workers=workers,
                    part=True,
                )
                numbers.add(piece)
                _put(place, claim.piece, piece, plan)
            num_made = plan.size_of(claim.piece) - len(piece[1])
            say(f"piece {claim.piece + 1} of {plan.num_pieces}: {num_made} embeddings", error=True)


def progress(place: Place) -> Standing:
    """Return how far the pieces of a place are.

    Raises:
        FileNotFoundError: No worker has begun there.
        LikenessError: Its plan is damaged.
    """
    plan = _read_plan(place)
    found = claims.survey(place, plan.num_pieces)
    held = {
        piece: claims.holder(place, claim) or "a worker" for piece, claim in found.claims.items()
    }
    return Standing(plan.num_items, plan.num_pieces, found.done, held)


def join(place: Place) -> tuple[Embeddings, list[Bad]]:
    """Put the pieces of a place together, in the order of the list.

    Pieces that are damaged are removed, so that a worker makes them again.

    Returns:
        The raw embeddings of all readable items, and the items that cannot be read.

    Raises:
        FileNotFoundError: No worker has begun there.
        Damaged: Pieces were damaged, and were removed.
        LikenessError: Pieces are missing, or one belongs to another plan, or no item could be read.
        Diverged: Most embeddings are NaN or infinite.
    """
    plan = _read_plan(place)
    now = progress(place)
    if missing := now.missing:
        raise LikenessError(
            f"{place}: {len(missing)} of {now.num_pieces} pieces are missing "
            f"({name_first(map(claims.piece_name, missing))}); {now}; start `likeness embed "
            "--pieces` again, which makes them"
        )
    pieces: list[Piece] = []
    broken: dict[int, str] = {}
    for number in range(plan.num_pieces):
        try:
            pieces.append(_get(place, number, plan))
        except _Broken as error:
            broken[number] = str(error)
    for number in broken:
        claims.reopen(place, number)
    if broken:
        first = next(iter(broken))
        raise Damaged(
            f"{place}: {len(broken)} of {plan.num_pieces} pieces were damaged and have been "
            f"removed ({name_first(map(claims.piece_name, broken))}: {broken[first]}); start "
            "`likeness embed --pieces` again, which makes them anew"
        )
    return joined(pieces, plan.num_items, plan.meta)


class Damaged(ValueError):
    """Pieces were damaged and were removed, and workers have to make them again."""


class _Broken(ValueError):
    """The file of a piece cannot be read, or is not of that piece."""


def _agreed(
    model: Loaded,
    items: Sequence[Item],
    place: Place,
    piece_items: int,
    sleep: Callable[[float], object],
) -> _Plan:
    """The plan, which is that of every other worker here.

    Raises:
        LikenessError: It is not; or there are too many pieces.
    """
    content = {
        **plan_of(model, items, piece_items),
        "num_items": len(items),
        "version": likeness_version(),
        "meta": model.meta,
    }
    content["piece_items"] = content.pop("shard_items")
    plan = _Plan(content)
    if piece_items < 1 or plan.num_pieces > _MOST_PIECES:
        raise LikenessError(
            f"{len(items)} items in pieces of {piece_items} are {plan.num_pieces} pieces; 1 to "
            f"{_MOST_PIECES} are allowed: give --piece-items another number"
        )
    if not place.create(_PLAN, json.dumps(content).encode()):
        before = _plan_of_others(place, sleep).content
        differ = sorted(key for key in content if before.get(key) != content[key])
        if differ:
            raise LikenessError(
                f"{place} holds pieces of another extraction ({', '.join(differ)} differ); give "
                "this worker the same model, list and options as the others, or all of them "
                "another place"
            )
    return plan


def _plan_of_others(place: Place, sleep: Callable[[float], object]) -> _Plan:
    """The plan of the worker that was first.

    Where a file system has no links, the file is there a moment before its content is.
    """
    for _ in range(_LOOKS_AT_PLAN - 1):
        with suppress(ValueError):
            return _read_plan(place)
        sleep(1.0)
    return _read_plan(place)


def _read_plan(place: Place) -> _Plan:
    try:
        content = json.loads(place.read(_PLAN, _MAX_PLAN))
        plan = _Plan(content)
        is_plan = (
            plan.num_items > 0
            and plan.piece_items > 0
            and plan.num_pieces <= _MOST_PIECES
            and isinstance(plan.meta, dict)
        )
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{place} holds no pieces of `likeness embed --pieces`; correct the place, or start "
            "a worker there"
        ) from None
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(RecursionError, OverflowError),
    ) as error:
        raise LikenessError(
            f"{place}: its {_PLAN} is damaged ({type(error).__name__}); remove the whole place, "
            "and start the workers again"
        ) from None
    if not is_plan:
        raise LikenessError(
            f"{place}: its {_PLAN} states no items, or over {_MOST_PIECES} pieces; remove "
            "the whole place, and start the workers again"
        )
    return plan


def _put(place: Place, number: int, piece: Piece, plan: _Plan) -> None:
    """Write a piece."""
    with TemporaryDirectory(prefix="likeness-piece-") as folder:
        path = Path(folder) / claims.piece_name(number)
        write_piece(path, *piece, plan=plan.digest, piece=str(number))
        place.write(path.name, path.read_bytes())


def _get(place: Place, number: int, plan: _Plan) -> Piece:
    """Read a piece.

    Raises:
        _Broken: It is damaged.
        LikenessError: It belongs to another plan.
        OSError: It cannot be read.
    """
    name = claims.piece_name(number)
    try:
        content = place.read(name, MAX_SPAN)
    except (ValueError, IsADirectoryError) as error:  # no worker made that
        raise _Broken(str(error)) from None
    with TemporaryDirectory(prefix="likeness-piece-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            embeddings, bad, stated = read_piece(path)
        except ValueError as error:
            raise _Broken(str(error).replace(folder, str(place))) from None
    if stated.get("plan") != plan.digest:
        raise LikenessError(
            f"{place}: {name} is of another extraction than {_PLAN}; move it away, and start "
            "`likeness embed --pieces` again"
        )
    num_items = len(bad) + (0 if embeddings is None else len(embeddings.ids))
    if stated.get("piece") != str(number) or num_items != plan.size_of(number):
        raise _Broken(
            f"it holds {num_items} items of piece {stated.get('piece')}, and {number} has "
            f"{plan.size_of(number)}"
        )
    return embeddings, bad
