"""Data sets in tar shards, as webdataset and WeSpeaker have them.

Items are packed, listed, and read each from its span without unpacking.

A shard is a plain tar archive. A sample is a data member KEY.flac (any suffix) and a label member
KEY.cls, KEY.spk, KEY.json ({"label": ..., "id": ...}) or KEY.txt; the first of these that contains
a label counts. The formats are those of webdataset (webdataset/writer.py, tariterators.py), where
the key ends at the first dot of the file name, and of WeSpeaker (tools/make_shard_list.py,
wespeaker/dataset/processor.py), where it ends at the last dot and labels are in KEY.spk. Here the
id is the name up to the last dot. Its label is looked up under that and then under webdataset's
key, so that KEY.left.jpg and KEY.right.jpg share KEY.cls.

Beside each shard lies an index, SHARD.tar.index, in JSON: what the shard is (its bytes and times of
change), [id, label, suffix, offset, size] of each item, and the names of labels without an item. A
shard without one, or which changed since, is scanned once and given one.
"""

import glob
import io
import json
import re
import tarfile
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, refuse_unused
from likeness.eval.formats import parquet
from likeness.eval.formats.files import json_object, refuse_device, text_lines
from likeness.eval.items.items import MAX_SPAN, Item, Items, check_unique
from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.listing import files_below, list_items
from likeness.eval.option import if_option
from likeness.eval.types import is_printable, name_first
from likeness.eval.writing import atomic_folder, write_text
from likeness.toolkit.sources import is_source, source_of

_BLOCK = tarfile.BLOCKSIZE
_LABEL_SUFFIXES = (".cls", ".spk", ".json", ".txt")  # in order of precedence
_MAX_HEADER = 2**16  # bytes of a header (long names, PAX) or label member

Member = tuple[str, str | None, str, int, int]  # id, label, suffix, offset, size
_Stated = dict[tuple[str, str], dict[str, str]]  # by key and suffix: the label, and perhaps the id


def items(
    data: str | Path, *, suffixes: tuple[str, ...] = (), root: str | Path | None = None
) -> Items:
    """Lists the items of all shards; a recipe names it where others name the items of a folder.

    A missing index is written, with a warning where that is not permitted.

    Args:
        data: A folder of shards, one shard, a pattern such as "data/train-*.tar", or a list with a
            path of a shard in each line (WeSpeaker's shard.list).
        suffixes: The suffixes of the data members to list, such as (".flac",); () lists all members
            that are not labels.
        root: The folder that relative paths of a list start from, by default the list's own.

    Returns:
        The items, in the order of the shards and of their places in them. Those without a label
        member have no label. A warning counts the label members without a data member.

    Raises:
        LikenessError: There are no shards; shards of a list do not exist; shards are truncated or
            damaged; or ids are repeated.
    """
    data = Path(data)
    if data.is_dir():
        shards = sorted(data.glob("*.tar"))
    elif data.is_file():
        shards = _of_list(data, Path(root or data.parent)) if data.suffix == ".list" else [data]
    else:
        shards = sorted(map(Path, glob.glob(str(data))))
    parts, lone = list[Items](), list[str]()
    for shard in shards:
        listed, alone = _listed(shard)
        lone += alone
        members = [member for member in listed if not suffixes or member[2] in suffixes]
        if members:
            ids, labels, endings, offsets, sizes = zip(*members, strict=True)
            spans = np.array((offsets, sizes), dtype=np.int64).T
            paths = [shard.as_posix()] * len(ids)
            parts.append(Items.rows(ids, paths, labels, spans=spans, endings=endings))
    if not parts:
        raise LikenessError(
            f"{data}: {len(shards)} tar shards without {' or '.join(suffixes) or 'data'} members; "
            "a folder, a shard (plain .tar, not compressed) or a pattern is needed, of samples "
            "KEY.flac and KEY.cls, or such"
        )
    if lone:
        warnings.warn(
            f"{data}: labels without a file beside them are left out: {len(lone):,} "
            f"({name_first(lone)})",
            stacklevel=2,
        )
    joined = Items.joined(parts)
    check_unique(joined, str(data))
    return joined


def _of_list(path: Path, base: Path) -> list[Path]:
    """The shards of a list, all of which exist."""
    shards = [base / line for _, line in text_lines(path)]
    missing = [str(shard) for shard in shards if not shard.is_file()]
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} of {len(shards)} shards do not exist ({name_first(missing)}); "
            f"correct the paths{if_option(', or say with --root where they start')}"
        )
    return shards


def or_files(
    data: str | Path, *, suffixes: Collection[str], root: str | Path | None = None, **listing: Any
) -> Items:
    """Lists the items of shards, or of whatever else `list_items` takes.

    Args:
        data: As for `items` or `list_items`.
        suffixes: The suffixes of the files that count.
        root: The folder that relative paths start from.
        listing: As for `list_items`. The label of shards is a pattern of ids and their suffixes.

    Raises:
        LikenessError: As for `items` or `list_items`, or columns of shards are named.
    """
    path, label = Path(data), listing.get("label")
    if not are_at(path, suffixes):
        return list_items(path, suffixes=suffixes, root=root, **listing)
    refuse_unused(str(path), columns=listing.get("columns"))
    listed = items(path, suffixes=tuple(suffixes), root=root)
    return LabelPattern(label).relabelled(listed, path, str(path)) if label else listed


def are_at(path: Path, suffixes: Collection[str] = ()) -> bool:
    """Says whether a path is a shard, a list of shards, or a folder of shards.

    A folder that also holds files of the suffixes, at any depth, is one of files.
    """
    if path.is_dir():
        has_shards = any(path.glob("*.tar"))
        return has_shards and not (suffixes and files_below(path, suffixes, passed_over=[]))
    if path.suffix == ".list" and path.is_file():
        return next(text_lines(path), (0, ""))[1].endswith(".tar")
    return path.suffix == ".tar"


def shard_numbers(items: Sequence[Item]) -> NDArray[np.int64]:
    """Numbers the shards of items from 0, as Sampling.open_shards needs.

    Args:
        items: N items in shards.

    Returns:
        The number of each item's shard (N,).

    Raises:
        LikenessError: An item is in no shard.

    Example:
        >>> shard_numbers([Item(str(i), Path(f"{i // 2}.tar"), span=(512, 9)) for i in range(4)])
        array([0, 0, 1, 1])
    """
    items = Items.of(items)
    offsets = np.full(len(items), -1)
    if items.has("offset"):
        offsets = parquet.numbers(items.table["offset"].combine_chunks(), -1)
    if (offsets < 0).any():
        raise LikenessError(
            f"{items[int(offsets.argmin())].name} is a file and no item of a tar shard; pack the "
            "files (likeness.toolkit.data.shards.write), or set open_shards to 0"
        )
    folders = parquet.numbers(items.table["folder"].combine_chunks().indices)
    numbers: NDArray[np.int64] = np.unique(folders, return_inverse=True)[1]
    return numbers


def write(
    items: Iterable[Item], folder: str | Path, *, shard_bytes: int = 2**28, seed: int = 0
) -> list[Path]:
    """Packs items in seeded random order into tar shards folder/shard-000000.tar and so on.

    Members are 000000042.flac and 000000042.json with the item's id and label. Equal arguments give
    shards of equal bytes. The folder is there when all shards are whole.

    Args:
        items: Files, or spans of other shards.
        folder: Where the shards go; it must not hold anything.
        shard_bytes: The size of a shard in bytes, at most; an item that is larger alone gets a
            shard of its own.
        seed: The seed of the order.

    Returns:
        The shards.

    Raises:
        FileNotFoundError: The file of an item is missing.
        LikenessError: An item is empty, over 1 GiB, without a usable suffix, or a stretch; or the
            folder holds something.
    """
    items, folder = list(items), Path(folder)
    check_unique(items, "items")
    if not items or (folder.exists() and any(folder.iterdir())):
        raise LikenessError(
            f"{folder}: {len(items)} items are to be packed; name items, and a new folder"
        )
    limit, numbers, tar = shard_bytes - 2 * _BLOCK, count(), None
    with atomic_folder(folder) as unfinished, ExitStack() as opened:
        for key, place in enumerate(np.random.default_rng(seed).permutation(len(items)).tolist()):
            item = items[place]
            record = json.dumps({"id": item.id, "label": item.label}, ensure_ascii=False).encode()
            parts = {item.suffix: _content(item), ".json": record}
            needed = sum(_BLOCK + -(-len(part) // _BLOCK) * _BLOCK for part in parts.values())
            if tar is None or tar.offset + needed > limit:
                opened.close()
                shard = unfinished / f"shard-{next(numbers):06d}.tar"
                tar = opened.enter_context(tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT))
            for ending, part in parts.items():
                member = tarfile.TarInfo(f"{key:09d}{ending}")
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
        opened.close()
        for shard in unfinished.glob("*.tar"):
            _listed(shard)  # which writes its index
    return sorted(folder.glob("*.tar"))


def _content(item: Item) -> bytes:
    """The bytes of an item that can be packed."""
    with item.open() as source:
        content = source.read(MAX_SPAN + 1)
    is_whole = item.stretch is None and item.channel is None and 0 < len(content) <= MAX_SPAN
    is_data = item.suffix not in _LABEL_SUFFIXES and re.fullmatch(r"\.\w{1,16}", item.suffix, re.A)
    if not (is_whole and is_data):
        raise LikenessError(
            f"{item.name}: it cannot be packed; a shard holds whole files (no stretches or "
            f"channels of recordings) of 1 to {MAX_SPAN} bytes, with a suffix such as .flac that "
            f"is none of {', '.join(_LABEL_SUFFIXES)}"
        )
    return content


def _listed(shard: Path) -> tuple[list[Member], list[str]]:
    """The members of one shard and its labels without one, from its index or by scanning it."""
    index = Path(f"{shard}.index")
    for path in (shard, index):
        refuse_device(path)
    source = source_of(shard)
    with suppress(OSError, ValueError, KeyError, TypeError):  # then it is made anew
        stated = json_object(index)
        size = source.size
        if is_source(shard, stated["source"]) and all(_fits(row, size) for row in stated["items"]):
            return list(stated["items"]), list(stated["lone"])
    members, lone = _scan(shard)
    try:
        stated = {"source": source, "items": members, "lone": lone}
        write_text(index, json.dumps(stated, ensure_ascii=False))
    except OSError as error:
        warnings.warn(
            f"{shard}: its index cannot be written ({error}); the shard is scanned each time",
            stacklevel=3,
        )
    return members, lone


def _fits(row: Sequence[Any], size: int) -> bool:
    """Whether a row of an index states a member that lies within a shard of `size` bytes."""
    id, label, suffix, offset, length = row
    are_texts = isinstance(id, str) and isinstance(suffix, str) and isinstance(label, str | None)
    are_places = type(offset) is int and type(length) is int
    return are_texts and are_places and 0 <= offset <= offset + length <= size


class _Headers(io.BufferedReader):
    """The file that tarfile reads headers through.

    No single read is large, so that no header makes tarfile allocate what the header claims.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most _MAX_HEADER bytes. Raises tarfile.ReadError for more."""
        if size is None or not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes; at most {_MAX_HEADER} are read")
        return super().read(size)


def _scan(shard: Path) -> tuple[list[Member], list[str]]:
    """Lists the data members of a shard in its order, and the names of label members that belong to
    none; nothing is unpacked.

    Folders, hidden files and names without a suffix are passed over. The label of an item is None
    where no label member fits.
    """
    data = list[tuple[str, str, int, int]]()  # key, suffix, offset and size
    stated: _Stated = {}
    try:
        with _Headers(io.FileIO(shard)) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep all in memory
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse() or not 0 <= member.size <= MAX_SPAN:
                    raise tarfile.ReadError(
                        f"the member {member.name[:80]!r} is a link, device or sparse file, or is "
                        f"over {MAX_SPAN} bytes"
                    )
                folder, slash, base = member.name.removeprefix("./").rpartition("/")
                stem, _, ending = base.rpartition(".")
                if not stem or base.startswith(".") or not ending:
                    continue
                key, ending = folder + slash + stem, "." + ending.lower()
                if ending not in _LABEL_SUFFIXES:
                    data.append((key, ending, member.offset_data, member.size))
                elif member.size <= _MAX_HEADER:
                    file.seek(member.offset_data)
                    stated[key, ending] = _fields(ending, file.read(member.size))
            # From the first block that is not a header on, a whole archive has nothing but zeros.
            file.seek(tar.offset)
            tail = file.read(_MAX_HEADER)
            if len(tail) < _BLOCK or tail.strip(b"\0"):
                raise tarfile.ReadError(f"there is no end of archive at byte {tar.offset}")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise LikenessError(
            f"{shard}: it is no whole, plain tar archive ({str(error)[:200]}); it is damaged, cut "
            "short, joined or compressed: fetch, pack or unpack it again"
        ) from None
    members = [_member(stated, *member) for member in data]
    known = {under for key, *_ in data for under in _keys(key)}
    labels = [name for name, fields in stated.items() if fields.get("label")]
    return members, [key + ending for key, ending in labels if key not in known]


def _keys(key: str) -> tuple[str, str]:
    """The names that the labels of a data member may have: its own, and webdataset's."""
    folder, slash, base = key.rpartition("/")
    return key, folder + slash + base.partition(".")[0]


def _fields(ending: str, content: bytes) -> dict[str, str]:
    """The label and the id that a label member states, as far as it does.

    A caption in KEY.txt or metadata in KEY.json state none.
    """
    try:
        text = content.decode("utf-8-sig").strip()
        fields = json.loads(text) if ending == ".json" else {"label": text}
        values = {name: fields.get(name) for name in ("label", "id")}
    except (ValueError, RecursionError, AttributeError):
        return {}
    names = {name: str(value) for name, value in values.items() if type(value) in (str, int)}
    return {name: text for name, text in names.items() if is_printable(text)}


def _member(stated: _Stated, key: str, ending: str, offset: int, size: int) -> Member:
    """A data member with its id, and with its label if there is one under either key."""
    places = [stated.get((under, suffix), {}) for under in _keys(key) for suffix in _LABEL_SUFFIXES]
    label = next((fields["label"] for fields in places if fields.get("label")), None)
    return stated.get((key, ".json"), {}).get("id") or key, label, ending, offset, size
