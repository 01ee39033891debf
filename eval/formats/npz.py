"""The arrays of an .npz file from elsewhere.

What they declare is compared with what is there before numpy allocates it, and nothing is
unpickled.
"""

from __future__ import annotations

import errno
import math
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError, first_line
from eval.formats.files import refuse_device


class Header(NamedTuple):
    """The type and the shape that an array declares."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Npz(NamedTuple):
    """An open .npz file and the headers of its arrays, by name."""

    archive: zipfile.ZipFile
    headers: dict[str, Header]

    def read(self, name: str) -> NDArray[Any]:
        """Reads an array.

        Raises:
            KeyError: There is none of this name.
            LikenessError: It is text that Unicode does not have.
        """
        with self.archive.open(f"{name}.npy") as member:
            array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        if array.dtype.kind == "U" and array.size:
            _refuse_non_unicode(name, array)
        return array


@contextmanager
def opened(path: Path, limit: int) -> Iterator[Npz]:
    """Opens an .npz file, whose arrays may take `limit` bytes together.

    Args:
        path: The file.
        limit: The bytes that all arrays may take, unpacked.

    Yields:
        The open file.

    Raises:
        LikenessError: The file is damaged, larger, or contains pickled objects. Errors that reading
            raises within the block become this too.
        OSError: It cannot be read.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", matrix=np.eye(2))
        ...     with opened(Path(folder) / "a.npz", 1 << 20) as archive:
        ...         archive.headers["matrix"].shape
        (2, 2)
    """
    refuse_device(path)
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                if sum(info.file_size for info in archive.infolist()) > limit:
                    raise LikenessError(
                        f"{path}: it expands to over {limit} bytes, more than a file of its size "
                        "may; it is damaged or hostile"
                    )
                headers = {
                    info.filename.removesuffix(".npy"): _header(archive, info, path)
                    for info in archive.infolist()
                    if info.filename.endswith(".npy")
                }
                yield Npz(archive, headers)
        except Exception as error:
            # The parsers of zipfile, zlib, lzma, tokenize and numpy raise exceptions of many kinds.
            # A place before the beginning of the file (EINVAL) is what a damaged file states.
            is_of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
            if is_of_system or str(path) in str(error):
                raise
            raise LikenessError(
                f"{path}: the .npz is damaged or truncated ({first_line(error)}); "
                "write or fetch it again"
            ) from None


def _refuse_non_unicode(name: str, texts: NDArray[Any]) -> None:
    """ValueError for numbers that are no characters: Python makes texts of them that cannot be
    used.
    """
    codes = np.ascontiguousarray(texts).reshape(-1).view(texts.dtype.byteorder + "u4")
    wrong = codes > sys.maxunicode
    if wrong.any():
        raise LikenessError(
            f"{name}.npy holds {int(wrong.sum())} numbers that are no characters of Unicode, the "
            f"first is {int(codes[wrong][0]):#x}"
        )


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Header:
    """The type and the shape that a member declares.

    numpy would allocate what they say, so they have to agree with the size of the member.
    """
    with archive.open(info) as member:
        form = np.lib.format
        is_first = form.read_magic(member) == (1, 0)
        read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
        shape, _, dtype = read(member)
        if dtype.hasobject:
            raise LikenessError(
                f"{path}: {info.filename} holds pickled objects, which run code and are refused "
                "(allow_pickle=False); save text as np.array(ids, dtype=str)"
            )
        size, present = dtype.itemsize * math.prod(shape), info.file_size - member.tell()
        # Any number of items of no bytes fits into any file, and becomes a list of that length.
        if min(shape, default=0) < 0 or not dtype.itemsize or size != present:
            raise LikenessError(
                f"{path}: {info.filename} declares {dtype} {shape}, but has {present} bytes; "
                "the file is damaged"
            )
    return Header(dtype, shape)
