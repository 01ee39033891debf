"""Items, batches and the embedder: the three things that pass between a modality and the core."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.formats.files import atomic_path, refuse_device
from eval.types import name_first, nfc

Floats = NDArray[np.float32]
_MAX_LINE = 8192  # characters of a list
MAX_SPAN = 2**30  # bytes of one item in a shard: it is read into memory whole


class _Fields(NamedTuple):
    id: str
    path: Path
    label: str | None = None
    span: tuple[int, int] | None = None
    ending: str = ""


class Item(_Fields):
    """One file of a data set: a unique id, where it lies, and its class (None if unknown).

    Ids and labels are names that are compared, and kept in Unicode NFC; the path stays as the file
    system has it.
    span: offset and size in bytes where it lies inside `path`, a tar shard; None if `path` is the
    file itself. ending: a span's suffix, such as ".flac".
    """

    __slots__ = ()

    def __new__(
        cls,
        id: str,
        path: Path,
        label: str | None = None,
        span: tuple[int, int] | None = None,
        ending: str = "",
    ) -> Self:
        # Lists have millions of items: a call of nfc or of the base's __new__ for each would take
        # half of the time.
        id = id if id.isascii() else nfc(id)
        label = label if label is None or label.isascii() else nfc(label)
        return tuple.__new__(cls, (id, path, label, span, ending))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        return cls(*iterable)  # so that `_replace` keeps to it

    @property
    def suffix(self) -> str:
        """What tells its format: ".flac", in lower case."""
        return (self.ending or self.path.suffix).lower()

    @property
    def name(self) -> str:
        """What errors call it: its path, or SHARD[id]."""
        return str(self.path) if self.span is None else f"{self.path}[{self.id}]"

    def open(self) -> BinaryIO:
        """Its bytes, to be read and closed: the file, or the span in memory.

        OSError as open(); ValueError for a pipe or a device, and for a span over 1 GiB or past the
        shard's end.
        """
        if self.span is None:
            refuse_device(self.path)
            return self.path.open("rb")
        offset, size = self.span
        if offset < 0 or not 0 <= size <= MAX_SPAN:
            raise ValueError(
                f"{self.name}: its span is {size} bytes from byte {offset}; at most {MAX_SPAN} "
                "bytes are read; write the shard's index again"
            )
        with self.path.open(
            "rb"
        ) as shard:  # opened for each item: nothing that forked workers could share
            shard.seek(offset)
            held = shard.read(size)
        if len(held) < size:
            raise ValueError(
                f"{self.name}: only {len(held)} of its {size} bytes are in the shard, which is cut "
                "short; fetch the shard again"
            )
        return io.BytesIO(held)


class Batch(NamedTuple):
    """inputs (B, ...) padded with zeros at the end; labels (B,) int64; lengths (B,) relative 0..1,
    None if nothing is padded.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None


class Embedder(Protocol):
    """Anything that turns a batch of inputs into (B, dim) raw embeddings."""

    dim: int

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor: ...


class Draw(NamedTuple):
    """One place of one training batch: which item, in which step, at which position.

    Its random numbers derive from these alone.
    """

    item: int
    step: int
    position: int


class Bad(NamedTuple):
    """An item that could not be read, and why."""

    id: str
    reason: str


NOT_FINITE = "NaN or infinity among its numbers"

Read = Callable[[Item], Floats]
Augment = Callable[[Floats, np.random.Generator, np.random.Generator], Floats]


class Views(torch.utils.data.Dataset[tuple[Floats, int] | Bad]):
    """Training views: item `draw.item`, read and augmented with generators seeded by (seed, step,
    position).

    augment(input, rng, batch_rng): `batch_rng` is equal for all items of a step (one crop length
    per batch). cache=True keeps what was read in memory, for data sets that fit.
    """

    def __init__(
        self,
        items: Sequence[Item],
        labels: NDArray[np.int64],
        read: Read,
        augment: Augment | None,
        *,
        seed: int,
        cache: bool = False,
    ):
        self.items, self.labels, self.read, self.augment, self.seed = (
            items,
            labels,
            read,
            augment,
            seed,
        )
        self.kept: dict[int, Floats] | None = {} if cache else None

    def __getitem__(self, draw: Draw) -> tuple[Floats, int] | Bad:
        item = self.items[draw.item]
        try:
            value = self.kept.get(draw.item) if self.kept is not None else None
            if value is None:
                value = self.read(item)
                if self.kept is not None:
                    self.kept[draw.item] = value
        except (ValueError, OSError) as error:
            return Bad(item.id, str(error))
        if self.augment is not None:
            rng = np.random.default_rng((self.seed, draw.step, draw.position))
            batch_rng = np.random.default_rng((self.seed, draw.step))
            value = self.augment(value, rng, batch_rng)
        if not is_finite(value):
            return Bad(
                item.id,
                NOT_FINITE
                if self.augment is None
                else f"{NOT_FINITE}, as read or after its augmentation",
            )
        return value, int(self.labels[draw.item])


def is_finite(value: Floats) -> bool:
    """Whether an input holds neither NaN nor infinity."""
    if np.isfinite(
        np.vdot(value, value)
    ):  # in which both remain: one pass at the speed of the memory
        return True
    return bool(np.isfinite(value).all())  # squares may overflow where numbers do not


def collate(inputs: Sequence[Floats], labels: Sequence[int] | None = None) -> Batch:
    """Stack inputs of shape (..., S_i); shorter ones are padded with zeros on the last axis and
    their relative length is given.
    """
    longest = max(one.shape[-1] for one in inputs)
    stacked = np.zeros((len(inputs), *inputs[0].shape[:-1], longest), dtype=np.float32)
    for row, one in zip(stacked, inputs, strict=True):
        row[..., : one.shape[-1]] = one
    sizes = torch.tensor([one.shape[-1] for one in inputs])
    lengths = None if bool((sizes == longest).all()) else sizes.double().div(longest)
    return Batch(
        torch.from_numpy(stacked),
        torch.as_tensor(labels if labels is not None else [-1] * len(inputs), dtype=torch.int64),
        lengths,
    )


def collate_views(views: Sequence[tuple[Floats, int] | Bad]) -> tuple[Batch | None, list[Bad]]:
    """The readable views as a Batch (None if there are none) and the unreadable ones."""
    bad = [view for view in views if isinstance(view, Bad)]
    good = [view for view in views if not isinstance(view, Bad)]
    return (
        collate([value for value, _ in good], [label for _, label in good]) if good else None
    ), bad


def label_numbers(items: Sequence[Item]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The sorted class names and each item's class number (N,).

    ValueError counts unlabelled items.
    """
    unlabelled = [item.id for item in items if item.label is None]
    if unlabelled:
        raise ValueError(
            f"{len(unlabelled)} of {len(items)} items have no label ({name_first(unlabelled)}); "
            "training needs one for each"
        )
    names = tuple(sorted({str(item.label) for item in items}))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[str(item.label)] for item in items], dtype=np.int64)


def read_items(path: Path, root: Path | None = None) -> list[Item]:
    """Read a LIST: one path per line, or `id path [label]` (spaces, tabs or commas); blank lines
    and # comments are skipped.

    Relative paths are taken from `root` (default: the list's folder). A bare path is its own id.
    ValueError counts malformed lines and repeated ids, and names the first.
    """
    root = path.parent if root is None else root
    items: list[Item] = []
    malformed: list[str] = []
    for number, fields in _rows(path):
        if len(fields) == 1:
            items.append(Item(fields[0], root / fields[0]))
        elif len(fields) in (2, 3):
            items.append(Item(fields[0], root / fields[1], fields[2] if len(fields) == 3 else None))
        else:
            malformed.append(f"line {number}")
    if malformed:
        raise ValueError(
            f"{path}: {len(malformed)} malformed lines ({', '.join(malformed[:5])}); each must be "
            "`path` or `id path [label]`"
        )
    if not items:
        raise ValueError(f"{path}: no items; each line must be `path` or `id path [label]`")
    check_unique(items, str(path))
    return items


def write_items(path: Path, items: Sequence[Item], root: Path | None = None) -> None:
    """A LIST that `read_items` reads, `id path` parted by a tab, replaced in one step.

    Paths are relative to `root`, below which they lie, or as they are.

    ValueError counts items in tar shards, which a list of paths cannot name, and items whose names
    would be read back as others.
    """
    if inside := [item.id for item in items if item.span is not None]:
        raise ValueError(
            f"{path}: {len(inside)} of {len(items)} items lie inside tar shards "
            f"({name_first(inside)}), and a list names files only; unpack the shards, and"
            " make the list of the folder of their files"
        )
    rows = [
        [item.id, (item.path if root is None else item.path.relative_to(root)).as_posix()]
        for item in items
    ]
    if bad := [
        row[0] for row in rows if row[0].startswith("\ufeff") or _line_fields("\t".join(row)) != row
    ]:
        raise ValueError(
            f"{path}: {len(bad)} of {len(items)} items have names that a list cannot hold "
            f"({name_first(bad)}): they begin with # or a quotation mark,"
            " begin or end with a blank, hold tabs, line ends or bytes that are not UTF-8, or are "
            "too long; rename their files"
        )
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{id}\t{place}\n" for id, place in rows), encoding="utf-8")


_SOCKET_PATH = 100  # bytes; systems allow 103 or 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"  # as multiprocessing names them


def make_room_for_sockets() -> None:
    """Let reading processes hand over what they read where the temporary folder has a long path;
    call it before they start.

    They do so through sockets there. Where the path of a socket passes the system's limit, both
    sides would wait for ever. Then multiprocessing, which makes its folder once and removes it at
    the end, is made to have it in /tmp.
    """
    if (
        os.name == "posix"
        and len(os.fsencode(tempfile.gettempdir())) + len(_SOCKET_NAME) > _SOCKET_PATH
    ):
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            get_temp_dir()
        finally:
            tempfile.tempdir = before


def check_unique(items: Sequence[Item], where: str) -> None:
    """ValueError counts repeated ids and names the first."""
    seen: set[str] = set()
    repeated = [item.id for item in items if item.id in seen or seen.add(item.id)]  # type: ignore[func-returns-value]
    if repeated:
        doubtful = {one for one in repeated if not one.isascii()}
        alike = sorted({ascii(item.path.name) for item in items if item.id in doubtful})
        forms = (
            f"; ids are compared in Unicode NFC, in which these files are one: {name_first(alike)}"
            if len(alike) > 1
            else ""
        )
        raise ValueError(
            f"{where}: {len(repeated)} repeated ids ({name_first(repeated)}); every id must be "
            f"unique{forms}"
        )


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", errors="strict") as lines:
        for number, line in enumerate(lines, 1):
            if not _is_text(line):
                raise ValueError(
                    f"{path}: line {number} is no text line of at most {_MAX_LINE} characters; is "
                    "this a list of files?"
                )
            if fields := _line_fields(line):
                yield number, fields


def _is_text(line: str) -> bool:
    return len(line) <= _MAX_LINE and "\0" not in line


def _line_fields(line: str) -> list[str]:
    """The fields of one line of a list; none of a blank line, a comment, or what is more than one
    line or no UTF-8 text.
    """
    stripped = line.strip()
    try:
        stripped.encode()
    except UnicodeEncodeError:
        return []
    if (
        not stripped
        or stripped.startswith("#")
        or "\n" in stripped
        or "\r" in stripped
        or not _is_text(stripped)
    ):
        return []
    if "\t" in stripped or "," in stripped:
        return [
            field.strip()
            for field in next(csv.reader([stripped], delimiter="\t" if "\t" in stripped else ","))
        ]
    return stripped.split()
