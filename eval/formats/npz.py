"""The arrays of an .npz file from elsewhere.

What they declare is compared with what is there before numpy allocates it, and nothing is
unpickled.
"""

import math
import sys
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import refuse_device, size_limit


def read(
    path: Path, names: Collection[str], optional: Collection[str] | None = ()
) -> dict[str, NDArray[Any]]:
    """Reads arrays of an .npz file.

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
    refuse_device(path)
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                limit = size_limit(path.stat().st_size)
                if sum(info.file_size for info in members.values()) > limit:
                    raise LikenessError(f"it expands to over {limit} bytes")
                further = [name for name in members if optional is None or name in optional]
                required = dict.fromkeys([*names, *further])
                return {name: _array(archive, members[name]) for name in required}
        except Exception as error:
            # The parsers of zipfile, zlib, lzma, tokenize and numpy raise exceptions of many kinds.
            raise LikenessError(
                f"{path}: this .npz is damaged, or lacks an array ({first_line(error)}); write or "
                "fetch it again"
            ) from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """The array of a member; numpy would allocate whatever its header says."""
    form = np.lib.format
    with archive.open(info) as member:
        is_first = form.read_magic(member) == (1, 0)
        read_header = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
        shape, _, dtype = read_header(member)
        size, present = dtype.itemsize * math.prod(shape), info.file_size - member.tell()
    # Any number of items of no bytes fits into any file, and becomes a list of that length.
    if dtype.hasobject or min(shape, default=0) < 0 or not dtype.itemsize or size != present:
        raise LikenessError(
            f"{info.filename} declares {dtype} {shape} and has {present} bytes; pickled objects "
            "are refused, because they run code"
        )
    with archive.open(info) as member:
        array: NDArray[Any] = form.read_array(member, allow_pickle=False)
    if dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).reshape(-1).view(f"{dtype.byteorder}u4")
        if codes.max() > sys.maxunicode:  # Python makes no texts of these
            raise LikenessError(f"{info.filename} holds numbers that are no characters")
    return array
