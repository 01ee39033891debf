"""Verification sets in InsightFace's .bin (lfw.bin, cfp_fp.bin, ...), which are read with bounds.

A .bin is a pickle of (list of 2 P encoded images, list of P labels). Images 2 i and 2 i + 1 are
pair i, and folds are consecutive blocks of P / 10
(insightface/recognition/arcface_torch/eval/verification.py load_bin).

A pickle from elsewhere can run any program when it is loaded. Here it is gone through by an
interpreter that knows the opcodes of numbers, strings, tuples and lists only, and whose classes are
the stand-ins below: names that a pickle states are looked up in a short list and never imported.
What else a file asks for is refused by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import atomic_path, refuse_device
from eval.types import Trials, name_first
from modalities.face.images import encoded
from toolkit.data.items import Item

MAX_BIN_BYTES = 2**32
# How many images may be missing from the file as they are. Each one costs a search through the
# whole file.
_MAX_STRANGERS = 20
_FIRST_BYTES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp", b"RI": ".webp", b"P5": ".pgm"}


def items(path: str | Path, *, prefix: str | None = None) -> tuple[list[Item], Trials]:
    """List the images and pairs of a .bin; each image is read from its span in the file.

    The file may be written by Python 2 or 3, with images as bytes, str or uint8 arrays.

    Args:
        path: The file.
        prefix: What the ids begin with; None means "NAME/" of NAME.bin.

    Returns:
        The items, and the trials in their order (folds: eval.protocols.lfw with folds=10). Ids are
            the
        prefix and the number of the image, 0 to 2 P - 1. There are no labels, as the file holds
            none.

    Raises:
        LikenessError: The file is no such pickle, is truncated or over 4 GiB, or asks for anything
            else, which is named and not executed. Its images and labels do not pair up. Or its
            images do not lie in it as they are, as in old text pickles; rewrite() makes a new file
            of such a one.
    """
    path = Path(path)
    data = _bytes_of(path)
    images, same = _load(data, path)
    prefix = f"{path.stem}/" if prefix is None else prefix
    items: list[Item] = []
    place, strangers = 0, []
    # An image that the pickle refers to again and again is looked for once.
    known: dict[int, int] = {}
    for number, image in enumerate(images):
        at = known.get(id(image))
        if at is None:
            # The images lie in their order as a rule, so that each search is short.
            at = data.find(image, place)
            at = known[id(image)] = data.find(image) if at < 0 else at
        if at < 0:
            strangers.append(str(number))
            if len(strangers) == _MAX_STRANGERS:
                break
            continue
        place = at + len(image)
        suffix = _FIRST_BYTES.get(image[:2], ".jpg")
        items.append(Item(f"{prefix}{number}", path, None, (at, len(image)), suffix))
    if strangers:
        some = "at least " if number + 1 < len(images) else ""
        raise LikenessError(
            f"{path}: {some}{len(strangers)} of {len(images)} images are held in an old encoding "
            f"({name_first(strangers)}), so that they cannot be read from the file one by one; "
            "write it anew with modalities.face.pickled.rewrite"
        )
    ids = tuple(item.id for item in items)
    enrol = np.arange(0, len(images), 2, dtype=np.int32)
    return items, Trials(ids, ids, enrol, enrol + 1, np.array(same, dtype=np.bool_))


def write(items: Sequence[Item], trials: Trials, path: str | Path) -> None:
    """Write a .bin of pairs in their order, with the image files as they are.

    InsightFace decodes JPEG and PNG. For its ten folds the pairs should come in ten blocks of equal
    size, each with same and different ones.

    Args:
        items: The images.
        trials: The labelled pairs.
        path: The file to write.

    Raises:
        LikenessError: The trials have no labels, or ids are no items; these are counted.
    """
    if trials.target is None:
        raise LikenessError(f"{path}: the trials have no labels, which a .bin needs")
    by_id = {item.id: item for item in items}
    missing = sorted(({*trials.enrol_ids} | {*trials.probe_ids}) - by_id.keys())
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} ids of the trials are no items ({name_first(missing)}); give "
            "all of them"
        )
    images = [
        encoded(by_id[ids[row]])
        for pair in zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True)
        for ids, row in zip((trials.enrol_ids, trials.probe_ids), pair, strict=True)
    ]
    _dump(images, trials.target.tolist(), Path(path))


def rewrite(path: str | Path, out: str | Path) -> None:
    """Read a .bin of any kind and write the same pairs as one whose images can be read one by one.

    The file is read with the same care as by items().

    Args:
        path: The file to read.
        out: The file to write.
    """
    images, same = _load(_bytes_of(Path(path)), Path(path))
    _dump(images, same, Path(out))


def _dump(images: list[bytes], same: list[bool], path: Path) -> None:
    """Write the pickle."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        pickle.dump((images, same), file, protocol=4)


def _bytes_of(path: Path) -> bytes:
    """Read a file of at most MAX_BIN_BYTES."""
    refuse_device(path)
    size = path.stat().st_size
    if size > MAX_BIN_BYTES:
        raise LikenessError(
            f"{path}: the file has {size} bytes; at most {MAX_BIN_BYTES} are read; is this a "
            "verification set?"
        )
    return path.read_bytes()


def _load(data: bytes, path: Path) -> tuple[list[bytes], list[bool]]:
    """Read the images and the labels of a pickle, and refuse anything else."""
    try:
        content = _Reader(data).load()
    except _Refused as error:
        raise LikenessError(
            f"{path}: the file is refused, because it {error}; a verification set holds images and "
            "labels only, so do not load this file with anything else"
        ) from None
    except Exception as error:
        # A damaged pickle leads to any type: EOFError, IndexError, TypeError, MemoryError, ...
        raise LikenessError(
            f"{path}: this is no whole pickle of a verification set ({type(error).__name__}: "
            f"{str(error)[:80]}); fetch it again"
        ) from None
    if not (isinstance(content, tuple | list) and len(content) == 2):
        raise LikenessError(
            f"{path}: the file holds no pair of images and labels, but "
            f"{type(content).__name__.lstrip('_').lower()}; is this a verification set?"
        )
    images, same = (part.values() if isinstance(part, _Array) else part for part in content)
    if not isinstance(images, list | tuple) or not isinstance(same, list | tuple):
        raise LikenessError(
            f"{path}: its images and labels must be two lists; is this a verification set?"
        )
    if not same or len(images) != 2 * len(same):
        raise LikenessError(
            f"{path}: there are {len(images)} images and {len(same)} labels; two images for each "
            "label are needed; fetch it again"
        )
    blobs: list[Any] = [
        image.raw if isinstance(image, _Array) and image.code == "u1" else image for image in images
    ]
    bad = [
        str(number) for number, blob in enumerate(blobs) if not isinstance(blob, bytes) or not blob
    ]
    if bad:
        raise LikenessError(
            f"{path}: {len(bad)} of {len(images)} images are empty or no bytes "
            f"({name_first(bad)}); fetch it again"
        )
    wrong = [
        str(number)
        for number, label in enumerate(same)
        if not (isinstance(label, bool) or (isinstance(label, int) and label in (0, 1)))
    ]
    if wrong:
        raise LikenessError(
            f"{path}: {len(wrong)} of {len(same)} labels are neither true nor false "
            f"({name_first(wrong)}); fetch it again"
        )
    return blobs, [bool(label) for label in same]


class _Refused(Exception):
    """The file asks for something that it does not get; the message completes "it ..."."""


class _Dtype:
    """A stand-in for numpy.dtype, which keeps its code, such as u1 or b1."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = _text(code)

    def set_state(self, state: Any) -> None:
        """Ignore the byte order and the like, which single bytes do not have."""


class _Array:
    """A stand-in for numpy.ndarray, which keeps the type of its elements and its bytes."""

    code = ""
    raw = b""

    def set_state(self, state: Any) -> None:
        """Take the bytes of one row, and refuse any other array."""
        _, shape, dtype, _, raw = state
        if (
            not isinstance(dtype, _Dtype)
            or dtype.code not in ("u1", "b1")
            or not isinstance(raw, bytes)
            or len(shape) != 1
            or shape[0] != len(raw)
        ):
            raise _Refused("holds an array that is not one row of bytes")
        self.code, self.raw = dtype.code, raw

    def values(self) -> list[bool]:
        """Return the elements as labels."""
        return [bool(value) for value in self.raw]


def _reconstruct(*_: Any) -> _Array:
    """Stand in for numpy's function that makes an empty array."""
    return _Array()


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Stand in for the function by which protocol 5 makes an array."""
    array = _Array()
    array.set_state((1, shape, dtype, False, raw))
    return array


def _scalar(dtype: Any, raw: Any) -> int:
    """Stand in for numpy's function that makes a number."""
    if (
        not isinstance(dtype, _Dtype)
        or dtype.code not in ("b1", "u1", "i1", "i4", "i8")
        or not isinstance(raw, bytes)
        or len(raw) > 8
    ):
        raise _Refused("holds a number that is no label")
    return int.from_bytes(raw, "little")


def _encode(text: Any, encoding: Any = "") -> bytes:
    """Stand in for the way in which Python 3 pickles bytes for Python 2."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1", "iso-8859-1"):
        raise _Refused("encodes something other than bytes")
    return text.encode("latin-1")


def _nothing(*arguments: Any) -> bytes:
    """Stand in for bytes() without arguments, as Python 3 pickles it for Python 2."""
    if arguments:
        raise _Refused("makes bytes from something")
    return b""


def _text(value: Any) -> str:
    """Return a name as text.

    str() must never be called on anything else: nested tuples double their text with every two
    bytes that are read.
    """
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise _Refused("names something by what is no text")
    return value


_NUMPY = (
    ("multiarray", "_reconstruct", _reconstruct),
    ("multiarray", "scalar", _scalar),
    ("numeric", "_frombuffer", _from_buffer),
)
_STAND_INS: dict[tuple[str, str], Any] = {
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in _NUMPY
    },
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _nothing,
    ("builtins", "bytes"): _nothing,
}
# The opcodes of pickle (CPython Lib/pickle.py) that move constants, tuples and lists about. None of
# them makes objects, fills dictionaries or reaches outside.
_HARMLESS = """
MARK STOP POP POP_MARK DUP INT BININT BININT1 LONG BININT2 LONG1 LONG4 NONE NEWTRUE NEWFALSE
STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_LIST LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE PROTO FRAME GLOBAL STACK_GLOBAL
"""


class _Reader(pickle._Unpickler):
    """Python's own interpreter of pickles, restricted to few opcodes.

    It is the interpreter that is written in Python: its memo is a dictionary, while that of the one
    in C is an array that a file can make huge.
    """

    stack: list[Any]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.size, self.encoded = len(data), 0

    def find_class(self, module: Any, name: Any) -> Any:
        """Return the stand-in of a name, and never import anything."""
        try:
            return _STAND_INS[_text(module), _text(name)]
        except KeyError:
            raise _Refused(
                f"asks for {_text(module)[:60]}.{_text(name)[:60]}, which was not run"
            ) from None

    def load_reduce(self) -> None:
        """Call a stand-in."""
        arguments, function = self.stack.pop(), self.stack[-1]
        known = any(function is stand_in for stand_in in _STAND_INS.values())
        if not known or not isinstance(arguments, tuple):
            raise _Refused("calls something that is no part of an array")
        self.stack[-1] = function(*arguments)
        # Seven bytes of a file can encode one long text once more, so the sum is bounded.
        if function is _encode:
            self.encoded += len(self.stack[-1])
            if self.encoded > self.size:
                raise _Refused("makes more bytes than it has")

    def load_build(self) -> None:
        """Set the state of a stand-in."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) not in (_Array, _Dtype):
            raise _Refused("sets the state of something that is no array")
        target.set_state(state)

    def load_append(self) -> None:
        """Append a value to a list, and to nothing else."""
        value = self.stack.pop()
        _list(self.stack[-1]).append(value)

    def load_appends(self) -> None:
        """Append values to a list, and to nothing else."""
        values = self.pop_mark()  # type: ignore[attr-defined]
        _list(self.stack[-1]).extend(values)

    def load_bytearray8(self) -> None:
        """Read a bytearray as bytes, without allocating what a file only announces."""
        size = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        content = self.read(size)  # type: ignore[attr-defined]
        if len(content) < size:
            raise EOFError("cut short")
        self.stack.append(content)


def _list(value: Any) -> list[Any]:
    """Return a value that is a list, and refuse any other."""
    if type(value) is not list:
        raise _Refused("appends to something that is no list")
    return value


class _Opcodes(dict[int, Any]):
    """The methods of the opcodes, which refuses opcodes that it does not have."""

    def __missing__(self, opcode: int) -> Any:
        raise _Refused(
            f"uses the pickle opcode {bytes([opcode])!r}, which no verification set needs"
        )


_Reader.dispatch = _Opcodes(
    {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _HARMLESS.split()
    }
)
_Reader.dispatch.update(
    {
        pickle.REDUCE[0]: _Reader.load_reduce,
        pickle.BUILD[0]: _Reader.load_build,
        pickle.APPEND[0]: _Reader.load_append,
        pickle.APPENDS[0]: _Reader.load_appends,
        pickle.BYTEARRAY8[0]: _Reader.load_bytearray8,
    }
)
