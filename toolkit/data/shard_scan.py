"""The samples of one tar shard, whoever packed it.

The headers are read once, within bounds, and nothing is unpacked.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import NamedTuple, TypeGuard

from eval.errors import LikenessError
from toolkit.data.items import MAX_SPAN

LABEL_SUFFIXES = (".cls", ".spk", ".json", ".txt")  # in order of precedence
MAX_NAME = 1_024  # characters of a member's name, an id or a label

_MAX_MEMBERS = 4_000_000
_MAX_HEADER = 2**16  # bytes of a header (long names, PAX) or label member
_MAX_TAIL = 2**20  # bytes of zeros after the last member: tar pads to its blocking factor
_MAGIC = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}
_REMEDY = "fetch or pack it again"

Member = tuple[str, str | None, str, int, int]  # id, label, suffix, offset, size
Label = tuple[str | None, str | None]  # label and id, as far as they are stated


class _Headers(io.BufferedReader):
    """The file that tarfile reads headers through.

    No single read is large, so that no header makes tarfile allocate what the header claims.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most _MAX_HEADER bytes. Raises tarfile.ReadError for more."""
        if size is None or not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes; at most {_MAX_HEADER} are read")
        return super().read(size)


class _Contents(NamedTuple):
    """What the headers of a shard list."""

    data: list[tuple[str, str, int, int]]  # key, suffix, offset and size of each data member
    labels: dict[str, dict[str, Label]]  # key -> suffix -> label

    def add(self, file: io.BufferedReader, member: tarfile.TarInfo) -> None:
        """Adds a member. Label members are read from the file."""
        if member.isdir():
            return
        name = member.name.removeprefix("./")
        if reason := _refuse(member, name):
            raise LikenessError(f"the member {member.name[:80]!r} is refused: {reason}")
        folder, slash, base = name.rpartition("/")
        stem, _, ending = base.rpartition(".")
        if not stem or base.startswith(".") or not ending:
            return
        key, ending = folder + slash + stem, "." + ending.lower()
        if ending not in LABEL_SUFFIXES:
            self.data.append((key, ending, member.offset_data, member.size))
        elif member.size <= _MAX_HEADER:
            file.seek(member.offset_data)
            self.labels.setdefault(key, {})[ending] = _label(ending, file.read(member.size))


def scan(shard: Path) -> list[Member]:
    """Lists the data members of a shard: the id, label, suffix, offset and size of each.

    Folders, hidden files and names without a suffix are passed over. The label of an item is None
    where no label member fits (see toolkit.data.shards).

    Args:
        shard: A plain tar archive.

    Returns:
        The members in the order of the shard.

    Raises:
        LikenessError: It is not a whole, uncompressed tar archive. Or it contains links, devices,
            sparse files, absolute paths, "..", or names that are not printable or longer than 1,024
            characters; all of these are counted, and the first is named.
    """
    size = shard.stat().st_size
    with _Headers(io.FileIO(shard)) as file:
        magic = file.read(2)
        if magic in _MAGIC:
            raise LikenessError(
                f"{shard}: it is compressed with {_MAGIC[magic]}, so that an item inside cannot "
                "be read without all before it; unpack it to a plain .tar"
            )
        file.seek(0)
        try:
            contents = _read_headers(file, size)
        except (tarfile.TarError, ValueError, OSError, OverflowError, RecursionError) as error:
            raise LikenessError(
                f"{shard}: it is damaged, truncated or not allowed ({str(error)[:200]}); {_REMEDY}"
            ) from None
        rest = size - file.tell()
        if not tarfile.BLOCKSIZE <= rest <= _MAX_TAIL or not _is_zero(file, rest):
            raise LikenessError(
                f"{shard}: it is truncated, damaged or joined, since there is no end of archive at "
                f"byte {size - rest} of {size}; {_REMEDY}"
            )
    return [_member(contents.labels, *member) for member in contents.data]


def _read_headers(file: _Headers, size: int) -> _Contents:
    """The contents of an archive of `size` bytes; `file` is then where the headers end."""
    contents = _Contents([], {})
    with tarfile.open(fileobj=file, mode="r:") as tar:
        kept: list[tarfile.TarInfo] = tar.members  # type: ignore[attr-defined]
        num_members = end = 0
        while (member := tar.next()) is not None:
            kept.clear()  # tarfile would keep all of them in memory
            num_members += 1
            if num_members > _MAX_MEMBERS:
                raise LikenessError(f"over {_MAX_MEMBERS} members")
            if {"path", "size"} & tar.pax_headers.keys():
                raise LikenessError("a global header that renames all members")
            stop = member.offset_data + member.size
            if member.offset < end or member.size < 0 or stop > size:
                raise LikenessError(
                    f"member {member.name[:80]!r} claims {member.size} bytes from byte "
                    f"{member.offset_data} of {size}"
                )
            end = stop if member.isreg() else member.offset_data
            contents.add(file, member)
        # From the first block that is not a header on, a whole archive has nothing but zeros.
        file.seek(tar.offset)
    return contents


def _is_zero(file: _Headers, size: int) -> bool:
    """Whether the next `size` bytes of a file are zeros."""
    return not any(
        any(file.read(min(_MAX_HEADER, size - start))) for start in range(0, size, _MAX_HEADER)
    )


def is_name(text: object) -> TypeGuard[str]:
    r"""Returns whether a value can be an id or a label: a line of 1 to 1,024 printable characters.

    Example:
        >>> is_name("ann"), is_name(""), is_name("two\nlines"), is_name(3)
        (True, False, False, False)
    """
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME and text.isprintable()


def _refuse(member: tarfile.TarInfo, name: str) -> str:
    """Why a member is refused; an empty text if it is not."""
    if not member.isreg() or member.issparse():
        return "a link, device or sparse file"
    if not is_name(name) or name.startswith(("/", "\\")) or ".." in name.split("/"):
        return (
            "a name that is absolute, leaves its folder, is not printable or "
            f"over {MAX_NAME} characters"
        )
    return f"{member.size} bytes, over {MAX_SPAN}" if member.size > MAX_SPAN else ""


def _label(ending: str, content: bytes) -> Label:
    """The label and the id that a label member states, as far as it does.

    A caption in KEY.txt or metadata in KEY.json state none.
    """
    try:
        text = content.decode("utf-8-sig").strip()
        value = json.loads(text) if ending == ".json" else {"label": text}
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(value, dict):
        return None, None
    label, id = value.get("label"), value.get("id")
    label = str(label) if type(label) is int else label
    return label if is_name(label) else None, id if is_name(id) else None


def _member(
    labels: dict[str, dict[str, Label]], key: str, ending: str, offset: int, size: int
) -> Member:
    """A data member with its id, and with its label if there is one under either key."""
    folder, slash, base = key.rpartition("/")
    mine, shared = labels.get(key, {}), labels.get(folder + slash + base.partition(".")[0], {})
    stated = [
        members[suffix][0]
        for members in (mine, shared)
        for suffix in LABEL_SUFFIXES
        if suffix in members
    ]
    label = next((text for text in stated if text is not None), None)
    id = mine.get(".json", (None, None))[1] or key
    return id, label, ending, offset, size
