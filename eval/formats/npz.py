"""The arrays of an .npz from elsewhere: what they declare is checked against what is there before
numpy allocates it; nothing is unpickled.
"""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import refuse_device


class Header(NamedTuple):
    """What an array declares."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Npz(NamedTuple):
    """An open .npz and the headers of its arrays, by name."""

    archive: zipfile.ZipFile
    headers: dict[str, Header]

    def read(self, name: str) -> NDArray[Any]:
        """An array. KeyError if there is none of this name."""
        with self.archive.open(f"{name}.npy") as member:
            array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array


@contextmanager
def opened(path: Path, limit: int, remedy: str = "write it again") -> Iterator[Npz]:
    """The arrays of a file, of at most `limit` bytes together.

    ValueError, also of the block: damaged, larger, pickled objects. OSError: it cannot be read.
    """
    refuse_device(path)
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                if sum(info.file_size for info in archive.infolist()) > limit:
                    raise ValueError(
                        f"{path}: expands to over {limit} bytes, more than a file of its size may; "
                        "a damaged or hostile file"
                    )
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                yield Npz(
                    archive,
                    {
                        info.filename.removesuffix(".npy"): _header(archive, info, path, remedy)
                        for info in members
                    },
                )
        except OSError as error:
            if error.errno not in (
                None,
                errno.EINVAL,
            ):  # a place before the file's beginning is what the file states
                raise
            raise ValueError(f"{path}: damaged or truncated .npz ({error}); {remedy}") from None
        except Exception as error:
            # zipfile, zlib, lzma, tokenize and numpy raise what their parsers stumble over, of many
            # kinds
            if str(path) in str(error):
                raise
            raise ValueError(
                f"{path}: damaged or truncated .npz ({str(error)[:200] or type(error).__name__}); "
                f"{remedy}"
            ) from None


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, remedy: str) -> Header:
    """Type and shape that a member declares; numpy would allocate what they say, so they have to
    agree with the member's size.
    """
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
            read_header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read_header(member)
        except (zipfile.BadZipFile, OSError, EOFError):
            raise
        except Exception as error:
            # the header is Python's text for a dictionary, and numpy's reader of it raises whatever
            # its parser and tokenizer do
            raise ValueError(
                f"{path}: {info.filename} is no numpy array ({str(error)[:200]}); {remedy}"
            ) from None
        if dtype.hasobject:
            raise ValueError(
                f"{path}: {info.filename} holds pickled objects, which run code and are refused "
                "(allow_pickle=False); save text as np.array(ids, dtype=str)"
            )
        size = dtype.itemsize
        for length in shape:
            size *= length
        # items of no bytes: any number of them fits into any file, and becomes a list
        if (
            min(shape, default=0) < 0
            or not dtype.itemsize
            or size != info.file_size - member.tell()
        ):
            raise ValueError(
                f"{path}: {info.filename} declares {dtype} {shape}, but holds "
                f"{info.file_size - member.tell()} bytes; a damaged file"
            )
    return Header(dtype, shape)
