"""Verification sets in InsightFace's .bin (lfw.bin, cfp_fp.bin, ...), which are pickles.

A .bin is a pickle of (images, same): encoded images in the order of the pairs, 2i beside 2i + 1,
and whether each pair is of one person. It is read by an unpickler that knows what these files need,
which is bytes and numpy's arrays of bytes, and refuses every other name. What it knows is made
here, so that nothing of a file is imported or called.
"""

import io
import pickle
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import refuse_device
from likeness.eval.formats.provenance import digest
from likeness.eval.items.items import Item
from likeness.eval.types import Trials, quoted

MAX_BIN_BYTES = 2**32
_folder = cache(TemporaryDirectory)  # until the process ends
_FIRST_BYTES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp", b"RI": ".webp", b"P5": ".pgm"}


def items(path: str | Path) -> tuple[list[Item], Trials]:
    """List the images and pairs of a .bin; each image is read from its span in the file.

    The file may be written by Python 2 or 3, with images as bytes, str or uint8 arrays.

    Args:
        path: The file.

    Returns:
        The items, and the trials in their order (folds: likeness.eval.protocols.lfw with folds=10).
        The ids in NAME.bin are NAME/0 to NAME/(2 P - 1). There are no labels, as the file holds
        none.

    Raises:
        LikenessError: The file is no such pickle, is truncated or over 4 GiB, or asks for anything
            else, which is named and not executed. Or its images and labels do not pair up.
    """
    path = Path(path)
    refuse_device(path)
    if (size := path.stat().st_size) > MAX_BIN_BYTES:
        raise LikenessError(
            f"{path}: {size} bytes, over {MAX_BIN_BYTES}; is this a verification set?"
        )
    data = path.read_bytes()
    images, same = _load(data, path)
    source, spans = path, _spans(data, images)
    if spans is None:  # Python 3 writes them as text in protocol 2
        source = Path(_folder().name, f"{path.name}-{digest([str(path.resolve())])}")
        source.write_bytes(b"".join(images))
        ends = np.cumsum([len(image) for image in images]).tolist()
        spans = [(end - len(image), len(image)) for end, image in zip(ends, images, strict=True)]
    items = [
        Item(f"{path.stem}/{number}", source, None, span, _FIRST_BYTES.get(image[:2], ".jpg"))
        for number, (image, span) in enumerate(zip(images, spans, strict=True))
    ]
    ids = tuple(item.id for item in items)
    enrol = np.arange(0, len(images), 2, dtype=np.int32)
    return items, Trials(ids, ids, enrol, enrol + 1, np.array(same, dtype=np.bool_))


def _spans(data: bytes, images: list[bytes]) -> list[tuple[int, int]] | None:
    """Where each image lies in a file, and its length; None if one does not lie there as it is."""
    place, spans = 0, []
    # An image that the pickle refers to again and again is looked for once.
    known: dict[int, int] = {}
    for image in images:
        at = known.get(id(image))
        if at is None:
            # The images lie in their order as a rule, so that each search is short.
            at = data.find(image, place)
            at = known[id(image)] = data.find(image) if at < 0 else at
        if at < 0:
            return None
        place = at + len(image)
        spans.append((at, len(image)))
    return spans


def _load(data: bytes, path: Path) -> tuple[list[bytes], list[bool]]:
    """Read the images and the labels of a pickle, and refuse anything else."""
    try:
        content = _Unpickler(data).load()
    except Exception as error:
        # A damaged pickle leads to any type: EOFError, IndexError, TypeError, MemoryError, ...
        raise LikenessError(
            f"{path}: this is no whole pickle of a verification set ({first_line(error)}); fetch "
            "it again, and do not load it with anything else"
        ) from None
    parts = content if isinstance(content, tuple | list) and len(content) == 2 else ((), ())
    images, same = (
        [*part.raw] if isinstance(part, _Bytes) else part if isinstance(part, list | tuple) else ()
        for part in parts
    )
    blobs: list[Any] = [image.raw if isinstance(image, _Bytes) else image for image in images]
    if (
        not same
        or len(blobs) != 2 * len(same)
        or not all(isinstance(blob, bytes) and blob for blob in blobs)
        or not all(isinstance(label, int) and label in (0, 1) for label in same)
    ):
        raise LikenessError(
            f"{path}: this is no verification set, with two images for each label; fetch it again"
        )
    return blobs, [bool(label) for label in same]


class _Dtype:
    """What stands for numpy.dtype: the code of a type of one byte, or of an integer."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order and the like."""


class _Bytes:
    """What stands for numpy.ndarray: the bytes of one row of uint8 or bool."""

    raw = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, raw = state
        if dtype.code not in ("u1", "b1") or not isinstance(raw, bytes) or shape != (len(raw),):
            raise pickle.UnpicklingError("it holds an array that is not one row of bytes")
        self.raw = raw


class _Unpickler(pickle._Unpickler):
    """An unpickler that finds the few names of these files, and no other.

    The names lead to methods of this object, which a pickle cannot change for the next one. Its
    base is the unpickler in Python, whose memo is a dictionary: that of the one in C is an array,
    which a few bytes of a file can make huge.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")  # str of Python 2 become bytes
        self._known: dict[str, Any] = {
            "numpy.ndarray": None,  # an argument of _reconstruct, which needs none
            "numpy.dtype": self._dtype,
            "_codecs.encode": self._encoded,
        }
        for core in ("numpy.core", "numpy._core"):
            self._known |= {
                f"{core}.multiarray._reconstruct": self._array,
                f"{core}.multiarray.scalar": self._scalar,
                f"{core}.numeric._frombuffer": self._array_of,
            }

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name, and never import anything."""
        whole = f"{module}.{name}"
        if whole not in self._known:
            raise pickle.UnpicklingError(f"it asks for {quoted(whole)}, which was not run")
        return self._known[whole]

    def _encoded(self, text: Any, codec: Any) -> bytes:
        """Make bytes as Python 3 writes them in protocols 0 to 2."""
        if codec != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(f"it asks for the codec {quoted(str(codec))}")
        return text.encode("latin1")

    def _dtype(self, code: Any, *_: Any) -> _Dtype:
        return _Dtype(code.decode("latin-1") if isinstance(code, bytes) else code)

    def _array(self, *_: Any) -> _Bytes:
        """Make an array whose content follows."""
        return _Bytes()

    def _array_of(self, raw: Any, dtype: Any, shape: Any, order: Any) -> _Bytes:
        """Make an array as protocol 5 does."""
        array = _Bytes()
        array.__setstate__((1, shape, dtype, False, bytes(raw)))
        return array

    def _scalar(self, dtype: _Dtype, raw: bytes) -> int:
        """Make a number, which is a label."""
        if dtype.code not in ("b1", "u1", "i1", "i4", "i8"):
            raise pickle.UnpicklingError("it holds a number that is no label")
        return int.from_bytes(raw[:8], "little")
