"""What reading an item gives: an array, or the reason why there is none.

Nothing here imports torch, so that a model in ONNX form is used without it. What becomes of inputs
in training is in toolkit/data/batch.py.

Reading functions offer other forms by settings: likeness.modalities.image.images.read gives uint8
with dtype="uint8", a quarter of the memory. An augmentation states with `read_with` which of them
it takes. What a recipe states stays as it is, so that runs of other versions go on; a recipe's own
augmentation gets what `read` gives by itself.
"""

import hashlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, described, is_tensor
from likeness.eval.items.items import Item
from likeness.eval.writing import write_text
from likeness.toolkit.console import one_line, say

Floats = NDArray[np.float32]
Array = Floats | NDArray[np.uint8]  # the latter of images, levels (C, H, W) from 0 to 255
Read = Callable[[Item], Array]
MakeEmpty = Callable[[tuple[int, ...], Any], Array]  # as np.empty(shape, dtype)
_NUMBERS = "fiub"  # the kinds of numpy's types that are numbers: floats, integers and booleans
DType = Literal["float32", "uint8"]  # of images, as they are read
F = TypeVar("F", bound=Callable[..., Any])


class Bad(NamedTuple):
    """An item that could not be read, and why."""

    id: str
    reason: str


class Remark(NamedTuple):
    """A remark on an item that was read, which the user has seen already."""

    text: str


_remarks: ContextVar[list[Remark] | None] = ContextVar("_remarks", default=None)


@contextmanager
def remarked() -> Iterator[list[Remark]]:
    """Yield the remarks on what is read within the block, which come in as it is read."""
    noted: list[Remark] = []
    token = _remarks.set(noted)
    try:
        yield noted
    finally:
        _remarks.reset(token)


def remark(text: str) -> None:
    """Note a remark on the item that is being read, for `remarked`."""
    if (noted := _remarks.get()) is not None:
        noted.append(Remark(text))


def write_bad(path: Path, bad: Iterable[Bad]) -> None:
    """Write a line for each item: its id, whose tabs and line ends become blanks, a tab, and the
    reason.
    """
    lines = []
    for item in bad:
        name = " ".join(item.id.replace("\t", " ").splitlines())
        lines.append(f"{name}\t{' '.join(item.reason.split())}\n")
    write_text(path, "".join(lines))


class Unreadable(LikenessError):
    """An item cannot be used, as its reading finds, or the augmentation that decodes a part."""


class Empty(Unreadable):
    """An item holds nothing: a recording no voice, or a picture no subject."""


class Lack(NamedTuple):
    """What an item lacks to hold a subject.

    Attributes:
        reason: What it is instead, such as "all its pixels have one colour".
        is_sure: Whether it certainly holds none. Where it may, it is used with a warning.
    """

    reason: str
    is_sure: bool = True


def refuse_empty(name: str, lack: Lack | None) -> None:
    """Refuse an item that certainly holds no subject, and warn of one that may hold none.

    Args:
        name: What messages call the item.
        lack: What it lacks; None for nothing.

    Raises:
        Empty: It certainly holds none.

    Example:
        >>> refuse_empty("a.wav", Lack("the audio is silent"))
        Traceback (most recent call last):
        likeness.toolkit.data.reading.Empty: a.wav: the audio is silent; remove it
    """
    if lack is not None and lack.is_sure:
        raise Empty(f"{name}: {lack.reason}; remove it")
    if lack is not None:
        remark(text := f"{name}: {lack.reason}; it is used all the same")
        warnings.warn(text, stacklevel=3)


def name_of(part: Any) -> str:
    """Return the name of a class, a function or an instance, with its module.

    Example:
        >>> name_of(partial(Bad, "a")), name_of(Bad("a", "no such file"))
        ('likeness.toolkit.data.reading.Bad', 'likeness.toolkit.data.reading.Bad')
    """
    while isinstance(part, partial):
        part = part.func
    if not hasattr(part, "__qualname__"):
        part = type(part)
    return f"{part.__module__}.{part.__qualname__}"


def as_input(value: Any, part: Any, item: str) -> NDArray[Any]:
    """Return what a reading or an augmentation gives as an array of numbers.

    Args:
        value: What it gives; a tensor becomes an array.
        part: The reading or augmentation.
        item: The id of the item.

    Raises:
        TypeError: It is no array of numbers. This is a mistake in the part, and not in the item.
        Unreadable: There is NaN or infinity among the numbers.

    Example:
        >>> as_input(np.array([1.0, np.nan], np.float32), read_with, "a")
        Traceback (most recent call last):
        likeness.toolkit.data.reading.Unreadable: NaN or infinity among its numbers
    """
    is_array = isinstance(value, np.ndarray)
    array = value.numpy(force=True) if not is_array and is_tensor(value) else value
    if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in _NUMBERS:
        what = f"an array {array.shape} of {array.dtype}" if is_array else described(value)
        raise TypeError(
            f"{name_of(part)} gives {what} for item {item}; it must return an array of numbers: "
            "waves (samples,), or images (channels, height, width)"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Unreadable("NaN or infinity among its numbers")
    return array


def pad(
    inputs: Sequence[Array], empty: MakeEmpty = np.empty
) -> tuple[Array, NDArray[np.float64] | None]:
    """Return inputs as one array; shorter ones are padded with zeros on the last axis.

    Args:
        inputs: B arrays of shape (..., S_i), equal but for the last axis.
        empty: empty(shape, dtype) gives the array that they are written into, in C order.

    Returns:
        (B, ..., S) of uint8 where all are, else of float32; and the relative lengths (B,) from 0
        to 1, or None where nothing is padded.

    Example:
        >>> whole, lengths = pad([np.ones(4, np.float32), np.ones(2, np.float32)])
        >>> whole.tolist(), lengths.tolist()
        ([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], [1.0, 0.5])
    """
    sizes = np.array([value.shape[-1] for value in inputs])
    longest = int(sizes.max())
    dtype = np.uint8 if all(value.dtype == np.uint8 for value in inputs) else np.float32
    shape = len(inputs), *inputs[0].shape[:-1], longest
    stacked = empty(shape, dtype)
    if (sizes == longest).all():
        # into an array in C order: by itself np.stack takes the order of the inputs in memory
        return np.stack(inputs, out=stacked, casting="unsafe"), None
    for row, value in zip(stacked, inputs, strict=True):
        row[..., : value.shape[-1]] = value
        row[..., value.shape[-1] :] = 0
    return stacked, sizes / longest


def read_with(**settings: Any) -> Callable[[F], F]:
    """Marks an augmentation that takes what `read` gives with these settings.

    Its views must be the same as without them. Settings that `read` does not have are passed over.

    Example:
        >>> @read_with(dtype="uint8")
        ... def mirrored(image, rng, batch_rng):
        ...     return image[..., ::-1]
    """

    def mark(augment: F) -> F:
        augment.read_settings = settings  # type: ignore[attr-defined]
        return augment

    return mark


def with_settings_of(
    read: Callable[..., Any], augment: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns `read` with the settings that the augmentation takes and the recipe leaves open.

    Args:
        read: read(item) -> input.
        augment: What gets the input; None where a batch does.

    Example:
        >>> def read(item, *, dtype="float32"):
        ...     return dtype
        >>> with_settings_of(read)(None), with_settings_of(partial(read, dtype="float32"))(None)
        ('uint8', 'float32')
        >>> with_settings_of(read, lambda image, rng, batch_rng: image)(None)
        'float32'
    """
    function = augment.func if isinstance(augment, partial) else augment
    # Batches of uint8 become float32 on the device, with the same values.
    taken = {"dtype": "uint8"} if function is None else getattr(function, "read_settings", {})
    stated = read.keywords if isinstance(read, partial) else {}
    try:
        known = inspect.signature(read).parameters
    except (ValueError, TypeError):  # a callable without a signature
        return read
    left = (known.keys() & taken.keys()) - stated.keys()
    return partial(read, **{name: taken[name] for name in sorted(left)}) if left else read


@dataclass(frozen=True)
class Header:
    """What a file says of itself before it is decoded.

    Attributes:
        format: Such as "WAV PCM_16" or "JPEG".
        num_bytes: Of the file.
        seconds: The duration of the item; None for an image.
        rate_hz: Samples a second; None for an image.
        channels: Of a recording; None for an image.
        size: (height, width) of an image in pixels; None for a recording.
    """

    format: str
    num_bytes: int
    seconds: float | None = None
    rate_hz: int | None = None
    channels: int | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Content:
    """What the decoded content of an item shows.

    Attributes:
        digest: SHA-256 of the samples or pixels, so that copies in other files are known.
        clipped: The share of the samples that are clipped; 0 for an image.
        level_dbfs: The mean power of a recording, in dB of full scale; None for an image.
        doubt: Why it may hold no subject; "" where it may well.
    """

    digest: bytes
    clipped: float = 0.0
    level_dbfs: float | None = None
    doubt: str = ""


@dataclass(frozen=True)
class Inspection:
    """How the files of a modality are looked at.

    Attributes:
        header: Reads the header of an item. It raises `Unreadable` for what cannot be used.
        content: Decodes an item, whose header is known. It raises `Unreadable`.
    """

    header: Callable[[Item], Header]
    content: Callable[[Item, Header], Content]


def size_of(item: Item) -> int:
    """Returns the bytes of an item's file, or of its span."""
    return os.path.getsize(item.path) if item.span is None else item.span[1]


def digest_of_bytes(item: Item) -> bytes:
    """Returns the SHA-256 of the bytes of an item's file.

    Raises:
        OSError: As from open().
        LikenessError: As from Item.open().
    """
    with item.open() as file:
        return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]


NUM_NAMED = 20  # so many bad items are named, and the others counted


def print_bad(bad: Sequence[Bad], others: str) -> None:
    """Print to stderr which items cannot be read, and why.

    Args:
        bad: The items, of which the first are named.
        others: What the rest is called after its number, such as "files".
    """
    alike: dict[str, list[Bad]] = {}
    for item in bad:
        # Reasons name the file first, and numbers of their own.
        reason = item.reason.partition(": ")[2] or item.reason
        alike.setdefault(re.sub(r"\d+", "", reason), []).append(item)
    groups = list(alike.values())
    for first, *more in groups[:NUM_NAMED]:
        ids = f"{first.id} and {len(more):,} more {others}" if more else first.id
        say(one_line(f"skipped {ids}: {first.reason}"), error=True)
    if rest := sum(map(len, groups[NUM_NAMED:])):
        say(f"skipped {rest:,} more {others}", error=True)
