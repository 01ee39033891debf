"""Items, batches and the embedder: the three things that pass between a modality and the core."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.formats.files import atomic_path, refuse_device
from eval.types import name_first, nfc

Floats = NDArray[np.float32]
Levels = NDArray[np.uint8]  # of images, (C, H, W), 0 to 255
_MAX_LINE = 8192  # characters of a list
MAX_SPAN = 2**30  # bytes of one item in a shard: it is read into memory whole


class _Fields(NamedTuple):
    """The fields of an Item, which adds what NamedTuple cannot: NFC names and methods."""

    id: str
    path: Path
    label: str | None = None
    span: tuple[int, int] | None = None
    ending: str = ""


class Item(_Fields):
    """One file of a data set: a unique id, where it lies, and its class.

    Ids and labels are names that are compared, so they are kept in Unicode NFC. The path stays as
    the file system has it.

    Attributes:
        id: Its name, which is unique in its data set.
        path: The file, or the tar shard in which it lies.
        label: Its class; None if it is not known.
        span: Offset and size in bytes inside a tar shard; None if `path` is the file itself.
        ending: The suffix of a span, such as ".flac".

    Example:
        >>> Item("ann/1", Path("voices/ann/1.FLAC"), "ann").suffix
        '.flac'
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
        # Lists have millions of items. Calling nfc or the __new__ of the base class for each of
        # them would take half of the time.
        id = id if id.isascii() else nfc(id)
        label = label if label is None or label.isascii() else nfc(label)
        return tuple.__new__(cls, (id, path, label, span, ending))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        """An item of the fields in this order."""
        return cls(*iterable)  # so that `_replace` keeps ids in NFC too

    @property
    def suffix(self) -> str:
        """The suffix that tells its format, in lower case, such as ".flac"."""
        return (self.ending or self.path.suffix).lower()

    @property
    def name(self) -> str:
        """The name that errors give it: its path, or SHARD[id]."""
        return str(self.path) if self.span is None else f"{self.path}[{self.id}]"

    def open(self) -> BinaryIO:
        """Opens its bytes: the file, or the span in memory. The caller closes it.

        Raises:
            OSError: As from open().
            ValueError: It is a pipe or a device, or a span over 1 GiB or past the end of the shard.
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
        # The shard is opened for each item, so that forked workers share no position in it.
        with self.path.open("rb") as shard:
            shard.seek(offset)
            content = shard.read(size)
        if len(content) < size:
            raise ValueError(
                f"{self.name}: only {len(content)} of its {size} bytes are in the shard, which is "
                "cut short; fetch the shard again"
            )
        return io.BytesIO(content)


class Batch(NamedTuple):
    """Inputs of one size with their labels.

    Attributes:
        inputs: (B, ...) float32, padded with zeros at the end; of images perhaps uint8.
        labels: (B,) int64.
        lengths: (B,) relative lengths from 0 to 1; None if nothing is padded.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None


class Draw(NamedTuple):
    """One place of one training batch: which item, in which step, at which position.

    Its random numbers derive from these numbers and the seed alone.
    """

    item: int
    step: int
    position: int


class Bad(NamedTuple):
    """An item that could not be read, and why."""

    id: str
    reason: str


class Unreadable(ValueError):
    """An item cannot be used, as its reading finds, or the augmentation that decodes a part."""


NOT_FINITE = "NaN or infinity among its numbers"

Array = Floats | Levels
Read = Callable[[Item], Array]
# What is read and augmented is an array, or an opened file of which the augmentation decodes a part
# (toolkit.data.images.EncodedImage, modalities.speaker.audio.Recording).
Augment = Callable[[Any, np.random.Generator, np.random.Generator], Array]


class Views(torch.utils.data.Dataset[tuple[Array, int] | Bad]):
    """Training views: items that are read and augmented, each with random numbers of its own.

    View `draw` is item `draw.item`, read and augmented with generators that are seeded by (seed,
    step, position). So a run that is resumed sees the same views.

    Args:
        items: N items.
        labels: Their class numbers (N,).
        read: Reads an item as an array of float32 or, for images, of uint8. Where it gives an
            opened file instead, `augment` decodes the part that it needs.
        augment: augment(input, rng, batch_rng) gives the augmented input; None for no augmentation.
            `batch_rng` is equal for all items of a step, for example for one crop length per batch.
        seed: The seed of all of them.
        cache: Keeps what was read in memory, for data sets that fit.
    """

    def __init__(
        self,
        items: Sequence[Item],
        labels: NDArray[np.int64],
        read: Callable[[Item], Any],
        augment: Augment | None,
        *,
        seed: int,
        cache: bool = False,
    ):
        self.items, self.labels = items, labels
        self.read, self.augment, self.seed = read, augment, seed
        self.kept: dict[int, Any] | None = {} if cache else None

    def __getitem__(self, draw: Draw) -> tuple[Array, int] | Bad:
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
            try:
                value = self.augment(value, rng, batch_rng)
            except Unreadable as error:
                return Bad(item.id, str(error))
        if not is_finite(value):
            when = "" if self.augment is None else ", as read or after its augmentation"
            return Bad(item.id, NOT_FINITE + when)
        return value, int(self.labels[draw.item])


def is_finite(value: Array) -> bool:
    """Returns whether an input contains neither NaN nor infinity.

    Example:
        >>> is_finite(np.array([1.0, 2.0], np.float32)), is_finite(np.array([np.nan], np.float32))
        (True, False)
    """
    if value.dtype == np.uint8:
        return True
    # NaN and infinity remain in the sum of squares, which takes one pass at the memory's speed.
    # The squares may overflow where the numbers do not, so the slow way has the last word.
    if np.isfinite(np.vdot(value, value)):
        return True
    return bool(np.isfinite(value).all())


def collate(inputs: Sequence[Array], labels: Sequence[int] | None = None) -> Batch:
    """Stacks inputs into a batch; shorter ones are padded with zeros on the last axis.

    Args:
        inputs: B arrays of shape (..., S_i), equal but for the last axis. Where all are of uint8,
            so is the batch: a quarter of the bytes for the device, which turns them into float32.
        labels: B class numbers; -1 for each if left out.

    Returns:
        The batch, with relative lengths where inputs are padded.

    Example:
        >>> batch = collate([np.ones(4, np.float32), np.ones(2, np.float32)])
        >>> batch.inputs.tolist(), batch.lengths.tolist()
        ([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], [1.0, 0.5])
    """
    longest = max(value.shape[-1] for value in inputs)
    dtype = np.uint8 if all(value.dtype == np.uint8 for value in inputs) else np.float32
    stacked = np.zeros((len(inputs), *inputs[0].shape[:-1], longest), dtype=dtype)
    for row, value in zip(stacked, inputs, strict=True):
        row[..., : value.shape[-1]] = value
    sizes = torch.tensor([value.shape[-1] for value in inputs])
    lengths = None if bool((sizes == longest).all()) else sizes.double().div(longest)
    numbers = labels if labels is not None else [-1] * len(inputs)
    classes = torch.as_tensor(numbers, dtype=torch.int64)
    return Batch(torch.from_numpy(stacked), classes, lengths)


def collate_views(views: Sequence[tuple[Array, int] | Bad]) -> tuple[Batch | None, list[Bad]]:
    """Separates views into a Batch of the readable ones (None if there are none) and the others."""
    bad = [view for view in views if isinstance(view, Bad)]
    good = [view for view in views if not isinstance(view, Bad)]
    if not good:
        return None, bad
    return collate([value for value, _ in good], [label for _, label in good]), bad


def label_numbers(items: Sequence[Item]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Numbers the classes of items in the order of their names.

    Args:
        items: N items with labels.

    Returns:
        The sorted class names, and the class number of each item (N,).

    Raises:
        ValueError: Items have no label; they are counted.

    Example:
        >>> label_numbers([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        (('ann', 'bob'), array([1, 0]))
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
    """Reads a list file: one path in each line, or `id path [label]`.

    Fields are separated by blanks, tabs or commas. Blank lines and # comments are skipped. The
    first line may be a header that names a column `path`, and perhaps `id` and `label`, as in a CSV
    file. Further columns are then skipped.

    Args:
        path: The list.
        root: The folder that relative paths are relative to; by default the folder of the list.

    Returns:
        The items. A path without an id is its own id.

    Raises:
        ValueError: Lines are malformed or ids are repeated; they are counted, and the first are
            named.
    """
    root = path.parent if root is None else root
    items: list[Item] = []
    malformed: list[str] = []
    header: list[str] = []
    for number, fields in _rows(path):
        if not header and not items and not malformed and _is_header(fields):
            header = fields
        elif header and len(fields) == len(header):
            row = dict(zip(header, fields, strict=True))
            items.append(Item(row.get("id", row["path"]), root / row["path"], row.get("label")))
        elif header:
            malformed.append(f"line {number}")
        elif len(fields) == 1:
            items.append(Item(fields[0], root / fields[0]))
        elif len(fields) in (2, 3):
            items.append(Item(fields[0], root / fields[1], fields[2] if len(fields) == 3 else None))
        else:
            malformed.append(f"line {number}")
    if malformed:
        raise ValueError(
            f"{path}: {len(malformed)} malformed lines ({', '.join(malformed[:5])}); each must be "
            + ("as long as the header" if header else "`path` or `id path [label]`")
            + ", and where a field contains blanks, all fields need tabs or commas between them"
        )
    if not items:
        raise ValueError(
            f"{path}: the list has no items; each line must be `path` or `id path [label]`"
        )
    check_unique(items, str(path))
    return items


def write_items(path: Path, items: Sequence[Item], root: Path | None = None) -> None:
    """Writes a list that `read_items` reads, `id path` separated by a tab, whole or not at all.

    Args:
        path: The list.
        items: The items, which must be files.
        root: A folder that contains all of them; paths are written relative to it. None leaves the
            paths as they are.

    Raises:
        ValueError: Items lie in tar shards, which a list of paths cannot name, or their names would
            be read back as others. They are counted.
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
    bad = [
        row[0] for row in rows if row[0].startswith("\ufeff") or _line_fields("\t".join(row)) != row
    ]
    if bad:
        raise ValueError(
            f"{path}: {len(bad)} of {len(items)} items have names that a list cannot contain "
            f"({name_first(bad)}): they begin with # or a quotation mark,"
            " begin or end with a blank, contain tabs, line ends or bytes that are not UTF-8, or "
            "are too long; rename their files"
        )
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{id}\t{place}\n" for id, place in rows), encoding="utf-8")


_SOCKET_PATH = 100  # bytes; systems allow 103 or 107
_SOCKET_NAME = "/pymp-12345678/listener-12345678"  # as multiprocessing names them


def make_room_for_sockets() -> None:
    """Lets reading processes hand over their data where the temporary folder has a long path.

    Call it before these processes start. They use sockets in the temporary folder. Where the path
    of a socket is longer than the system allows, both sides would wait for ever. In that case
    multiprocessing, which makes its folder once and removes it at the end, is made to have it in
    /tmp.
    """
    longest = len(os.fsencode(tempfile.gettempdir())) + len(_SOCKET_NAME)
    if os.name == "posix" and longest > _SOCKET_PATH:
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            get_temp_dir()
        finally:
            tempfile.tempdir = before


def check_unique(items: Sequence[Item], where: str) -> None:
    """Refuses repeated ids.

    Args:
        items: The items.
        where: The name of the list or folder, with which the message begins.

    Raises:
        ValueError: Ids are repeated; they are counted, and the first is named.
    """
    seen: set[str] = set()
    repeated = []
    for item in items:
        if item.id in seen:
            repeated.append(item.id)
        seen.add(item.id)
    if repeated:
        doubtful = {id for id in repeated if not id.isascii()}
        alike = sorted({ascii(item.path.name) for item in items if item.id in doubtful})
        forms = ""
        if len(alike) > 1:
            forms = (
                "; ids are compared in Unicode NFC, in which the names of these files are equal: "
                f"{name_first(alike)}"
            )
        raise ValueError(
            f"{where}: {len(repeated)} repeated ids ({name_first(repeated)}); every id must be "
            f"unique{forms}"
        )


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line numbers and fields of the lines of a list that have any."""
    with path.open(encoding="utf-8-sig", errors="strict") as lines:
        try:
            # A line is read in parts, because a link to /dev/zero has no end of a line.
            for number, line in enumerate(iter(lambda: lines.readline(_MAX_LINE + 1), ""), 1):
                if not _is_text(line):
                    raise ValueError(
                        f"{path}: line {number} is not text of at most {_MAX_LINE} characters; is "
                        "this a list of files?"
                    )
                if fields := _line_fields(line):
                    yield number, fields
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text ({error.reason}); is this a list of files?"
            ) from None


def _is_header(fields: Sequence[str]) -> bool:
    """Whether the fields are names of columns, of which one is `path`, and not a path."""
    return (
        len(fields) > 1
        and "path" in fields
        and not any("." in field or "/" in field for field in fields)
    )


def _is_text(line: str) -> bool:
    """Whether a line can belong to a list: it is not too long and contains no NUL."""
    return len(line) <= _MAX_LINE and "\0" not in line


def _line_fields(line: str) -> list[str]:
    """The fields of one line of a list.

    A blank line, a comment, and text that is more than one line or not UTF-8 have none.
    """
    stripped = line.strip()
    try:
        stripped.encode()
    except UnicodeEncodeError:
        return []
    several = "\n" in stripped or "\r" in stripped
    if not stripped or stripped.startswith("#") or several or not _is_text(stripped):
        return []
    if "\t" in stripped or "," in stripped:
        delimiter = "\t" if "\t" in stripped else ","
        return [field.strip() for field in next(csv.reader([stripped], delimiter=delimiter))]
    return stripped.split()
