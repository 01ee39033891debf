"""The arrays of .npz and .npy files from elsewhere.

What they declare is compared with what is there before numpy allocates it, and nothing is
unpickled.
"""

import math
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import refuse_device, size_limit

_Member = tuple[Callable[[], IO[bytes]], int]  # what opens an array, and its bytes with its header


class Header(NamedTuple):
    """What an array declares.

    Attributes:
        dtype: The type of its values.
        shape: Its shape.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def read(
    path: Path, names: Collection[str], optional: Collection[str] | None = ()
) -> dict[str, NDArray[Any]]:
    """Reads arrays of an .npz file, or the array of an .npy, which is called "".

    Args:
        path: The file.
        names: The arrays that must be there.
        optional: Further arrays, which are read where they are there; None means all.

    Returns:
        The arrays by their names.

    Raises:
        LikenessError: The file is damaged, lacks an array, expands to too much, or holds pickled
            objects.
        OSError: It cannot be opened.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", matrix=np.eye(2))
        ...     read(Path(folder) / "a.npz", ["matrix"])["matrix"].shape
        (2, 2)
    """
    with _opened(path) as members:
        further = [name for name in members if optional is None or name in optional]
        required = dict.fromkeys([*names, *further])
        return {name: _array(path, name, members[name]) for name in required}


def headers(path: Path) -> dict[str, Header]:
    """Reads what the arrays of a file declare, by their names; none of them is allocated.

    Raises:
        LikenessError: The file is damaged, or expands to too much.
        OSError: It cannot be opened.
    """
    with _opened(path) as members:
        return {name: _header(member)[0] for name, member in members.items()}


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, _Member]]:
    """The arrays of a file by their names."""
    refuse_device(path)
    with path.open("rb") as handle:
        try:
            if path.suffix.lower() == ".npy":
                yield {"": (lambda: path.open("rb"), path.stat().st_size)}
                return
            with zipfile.ZipFile(handle) as archive:
                infos, limit = archive.infolist(), size_limit(path.stat().st_size)
                if sum(info.file_size for info in infos) > limit:
                    raise LikenessError(f"{path}: it expands to over {limit} bytes")
                names = [info.filename.removesuffix(".npy") for info in infos]
                opened = [(partial(archive.open, info), info.file_size) for info in infos]
                yield dict(zip(names, opened, strict=True))
        except LikenessError:
            raise
        except Exception as error:
            # The parsers of zipfile, zlib, lzma, tokenize and numpy raise exceptions of many kinds.
            problem = f"it is damaged, or lacks an array ({first_line(error)})"
            raise LikenessError(f"{path}: {problem}; write it again") from None


def _header(member: _Member) -> tuple[Header, int]:
    """What a member declares, and how many bytes of values it has."""
    form = np.lib.format
    opened, size = member
    with opened() as file:
        is_first = form.read_magic(file) == (1, 0)
        read_header = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
        shape, _, dtype = read_header(file)
        return Header(dtype, shape), size - file.tell()


def _array(path: Path, name: str, member: _Member) -> NDArray[Any]:
    """The array of a member; numpy would allocate whatever its header says."""
    (dtype, shape), present = _header(member)
    what = f"the array {name!r}" if name else "its array"
    if dtype.hasobject:
        remedy = "save texts as dtype=str, and vectors as numbers"
        raise LikenessError(f"{path}: {what} is pickled, and could run code; {remedy}")
    # Any number of items of no bytes fits into any file, and becomes a list of that length.
    size = dtype.itemsize * math.prod(shape)
    if min(shape, default=0) < 0 or not dtype.itemsize or size != present:
        declared = f"{what} declares {dtype} {shape}, but has {present} bytes"
        raise LikenessError(f"{path} is damaged: {declared}; write it again")
    with member[0]() as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    if dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).reshape(-1).view(f"{dtype.byteorder}u4")
        if codes.max() > sys.maxunicode:  # Python makes no texts of these
            raise LikenessError(f"{path}: damaged: {what} holds numbers that are no characters")
    return array
