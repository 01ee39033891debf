"""The samples of one tar shard, whoever packed it: its headers are read once, within bounds, and
nothing is unpacked.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import TypeGuard

from eval.types import name_first
from toolkit.data.batch import MAX_SPAN, Item

LABEL_SUFFIXES = (".cls", ".spk", ".json", ".txt")  # in order of precedence
MAX_NAME = 1_024  # characters of a member's name, an id or a label

_MAX_MEMBERS = 4_000_000
_MAX_HEADER = 2**16  # bytes of a header (long names, PAX) or label member
_MAX_TAIL = 2**20  # bytes of zeros after the last member: tar pads to its blocking factor
_MAGIC = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstandard"}
_REMEDY = "fetch or pack it again"

Label = tuple[str | None, str | None]  # label and id, as far as they are stated


class _Headers(io.BufferedReader):
    """What tarfile reads headers through: no single read is large, so that no header makes it
    allocate what it claims.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes; at most {_MAX_HEADER} are read")
        return super().read(size)


def scan(shard: Path) -> list[Item]:
    """The data members as items with their spans, in the shard's order; label None where no label
    member fits (see toolkit.data.shards).

    Folders, hidden files and names without a suffix are passed over. ValueError for anything but a
    whole, uncompressed tar archive, and for links, devices, sparse files, absolute paths, "..", and
    names that are not printable or longer than 1,024 characters: all counted, the first named.
    """
    size = shard.stat().st_size
    data: list[tuple[str, str, int, int]] = []
    labels: dict[str, dict[str, Label]] = {}  # key -> suffix -> label
    refused: list[tuple[str, str]] = []  # name, reason
    with _Headers(io.FileIO(shard)) as file:
        magic = file.read(2)
        if magic in _MAGIC:
            raise ValueError(
                f"{shard}: compressed with {_MAGIC[magic]}; an item inside cannot be read without "
                "all before it: unpack it to a plain .tar"
            )
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                kept: list[tarfile.TarInfo] = tar.members  # type: ignore[attr-defined]
                num_members = end = 0
                while (member := tar.next()) is not None:
                    kept.clear()  # or tarfile would hold them all
                    num_members += 1
                    if num_members > _MAX_MEMBERS or {"path", "size"} & tar.pax_headers.keys():
                        raise ValueError(
                            f"over {_MAX_MEMBERS} members"
                            if num_members > _MAX_MEMBERS
                            else "a global header that renames all members"
                        )
                    if (
                        member.offset < end
                        or member.size < 0
                        or member.offset_data + member.size > size
                    ):
                        raise ValueError(
                            f"member {member.name[:80]!r} claims {member.size} bytes from byte "
                            f"{member.offset_data} of {size}"
                        )
                    end = member.offset_data + member.size if member.isreg() else member.offset_data
                    if member.isdir():
                        continue
                    name = member.name.removeprefix("./")
                    if reason := _refuse(member, name):
                        refused.append((member.name[:80], reason))
                        continue
                    folder, slash, base = name.rpartition("/")
                    stem, _, ending = base.rpartition(".")
                    if not stem or base.startswith(".") or not ending:
                        continue
                    key, ending = folder + slash + stem, "." + ending.lower()
                    if ending not in LABEL_SUFFIXES:
                        data.append((key, ending, member.offset_data, member.size))
                    elif member.size <= _MAX_HEADER:
                        file.seek(member.offset_data)
                        labels.setdefault(key, {})[ending] = _label(ending, file.read(member.size))
                file.seek(
                    tar.offset
                )  # of the first header that is none: a whole archive has nothing but zeros there
        except (tarfile.TarError, ValueError, OSError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{shard}: damaged or truncated, {str(error)[:200]}; {_REMEDY}"
            ) from None
        rest = size - file.tell()
        if (
            rest < tarfile.BLOCKSIZE
            or rest > _MAX_TAIL
            or any(
                any(file.read(min(_MAX_HEADER, rest - at))) for at in range(0, rest, _MAX_HEADER)
            )
        ):
            raise ValueError(
                f"{shard}: truncated, damaged or joined, no end of archive at byte {size - rest} "
                f"of {size}; {_REMEDY}"
            )
    if refused:
        raise ValueError(
            f"{shard}: {len(refused)} members are refused "
            f"({name_first(one for one, _ in refused)}): {refused[0][1]}; {_REMEDY}"
        )
    return [_item(shard, labels, *one) for one in data]


def is_name(text: object) -> TypeGuard[str]:
    """Whether it can be an id or a label: a line of 1 to 1,024 printable characters."""
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME and text.isprintable()


def _refuse(member: tarfile.TarInfo, name: str) -> str:
    """Why a member is refused; empty if it is not."""
    if not member.isreg() or member.issparse():
        return "a link, device or sparse file"
    if not is_name(name) or name.startswith(("/", "\\")) or ".." in name.split("/"):
        return (
            "a name that is absolute, leaves its folder, is not printable or "
            f"over {MAX_NAME} characters"
        )
    return f"{member.size} bytes, over {MAX_SPAN}" if member.size > MAX_SPAN else ""


def _label(ending: str, content: bytes) -> Label:
    """What a label member says; nothing if it holds no label, as a caption in KEY.txt or metadata
    in KEY.json.
    """
    try:
        text = content.decode("utf-8-sig").strip()
        held = json.loads(text) if ending == ".json" else {"label": text}
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(held, dict):
        return None, None
    label, id = held.get("label"), held.get("id")
    label = str(label) if type(label) is int else label
    return label if is_name(label) else None, id if is_name(id) else None


def _item(
    shard: Path, labels: dict[str, dict[str, Label]], key: str, ending: str, offset: int, size: int
) -> Item:
    folder, slash, base = key.rpartition("/")
    mine, shared = labels.get(key, {}), labels.get(folder + slash + base.partition(".")[0], {})
    stated = [found[one][0] for found in (mine, shared) for one in LABEL_SUFFIXES if one in found]
    label = next((one for one in stated if one is not None), None)
    return Item(mine.get(".json", (None, None))[1] or key, shard, label, (offset, size), ending)
