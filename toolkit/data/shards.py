"""Data sets in tar shards, as webdataset and WeSpeaker have them.

Items are packed, listed, and read each from its span without unpacking.

A shard is a plain tar archive. A sample is a data member KEY.flac (any suffix) and a label member
KEY.cls, KEY.spk, KEY.json ({"label": ..., "id": ...}) or KEY.txt; the first of these that contains
a label counts. The formats are those of webdataset (webdataset/writer.py, tariterators.py), where
the key ends at the first dot of the file name, and of WeSpeaker (tools/make_shard_list.py,
wespeaker/dataset/processor.py), where it ends at the last dot and labels are in KEY.spk. Here the
id is the name up to the last dot. Its label is looked up under that and then under webdataset's
key, so that KEY.left.jpg and KEY.right.jpg share KEY.cls.

Beside each shard lies an index, SHARD.tar.index. It has JSON lines: one header and then [id, label,
suffix, offset, size] for each item. Shards by others are scanned once and given one.
"""

from __future__ import annotations

import gc
import glob
import io
import json
import re
import shutil
import tarfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.files import atomic_path
from eval.formats.writing import move
from eval.types import name_first
from toolkit.data.items import MAX_SPAN, NO_SPAN, Item, Items, ItemsBuilder, check_unique
from toolkit.data.shard_scan import LABEL_SUFFIXES, MAX_NAME, Member, is_name, scan

_BLOCK = tarfile.BLOCKSIZE
_MAX_INDEX = 2**30  # bytes
_FORMAT = 1


def items(
    data: str | Path,
    *,
    pattern: str = "*.tar",
    suffixes: tuple[str, ...] = (),
) -> Items:
    """Lists the items of all shards; a recipe names it where others name the items of a folder.

    A missing index is written, with a warning where that is not permitted.

    Args:
        data: A folder (with `pattern` below it), one shard, or a pattern such as
            "data/train-*.tar".
        pattern: The names of the shards in a folder.
        suffixes: The suffixes of the data members to list, such as (".flac",); () lists all members
            that are not labels.

    Returns:
        The items, in the order of the shards and of their places in them. Those without a label
        member have no label.

    Raises:
        LikenessError: There are no shards. Shards are truncated, damaged or do not match their
            index; or ids are repeated.
    """
    shards = _find(Path(data), pattern)
    made = ItemsBuilder()
    with _uncollected():
        for shard in shards:
            members = _listed(shard)
            if suffixes:
                members = [member for member in members if member[2] in suffixes]
            if members:
                ids, labels, endings, offsets, sizes = zip(*members, strict=True)
                places = np.array((offsets, sizes), dtype=np.int64).T
                made.add(ids, [shard.as_posix()] * len(ids), labels, places, endings)
    listed = made.build()
    if not listed:
        raise LikenessError(
            f"{data}: {len(shards)} shards without {' or '.join(suffixes) or 'data'} members; "
            "samples are KEY.flac and KEY.cls, or such"
        )
    check_unique(listed, str(data))
    return listed


def shard_numbers(items: Sequence[Item]) -> NDArray[np.int64]:
    """Numbers the shards of items by first occurrence, as Sampling.open_shards needs.

    Args:
        items: N items in shards.

    Returns:
        The number of each item's shard (N,).

    Raises:
        LikenessError: Items are in no shard; they are counted.

    Example:
        >>> shard_numbers([Item(str(i), Path(f"{i // 2}.tar"), span=(512, 9)) for i in range(4)])
        array([0, 0, 1, 1])
    """
    items = Items.of(items)
    files = slice(None) if items.spans is None else items.spans[:, 0] == NO_SPAN[0]
    outside = items.ids.take(np.arange(len(items))[files])
    if outside:
        raise LikenessError(
            f"{len(outside)} of {len(items)} items are files that are not in a tar shard "
            f"({name_first(outside)}); pack them, or set open_shards to 0"
        )
    # The whole path of a shard is a beginning. The first item of each is the last to set its place.
    shard = items.beginnings.numbers
    first = np.full(len(items.beginnings.names), len(items))
    first[shard[::-1]] = np.arange(len(items))[::-1]
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    numbers: NDArray[np.int64] = rank[shard]
    return numbers


def write(
    items: Iterable[Item],
    folder: str | Path,
    *,
    name: str = "shard",
    shard_bytes: int = 2**28,
    seed: int = 0,
) -> list[Path]:
    """Packs items in seeded random order into tar shards folder/NAME-000000.tar and so on.

    Members are 000000042.flac and 000000042.json with the item's id and label. Equal arguments give
    equal bytes. The shards appear in the folder when all of them are whole.

    Args:
        items: Files, or spans of other shards.
        folder: Where the shards go; made if it does not exist.
        name: The beginning of their names.
        shard_bytes: The size of a shard in bytes, at most; an item that is larger alone gets a
            shard of its own.
        seed: The seed of the order.

    Returns:
        The shards.

    Raises:
        FileNotFoundError: The file of an item is missing.
        LikenessError: An item is empty, over 1 GiB, without a usable suffix, or a stretch; or the
            folder contains other shards of that name.
    """
    items, folder = list(items), Path(folder)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name), name
    check_unique(items, "items")
    stretches = [item.id for item in items if item.stretch is not None]
    if stretches:
        raise LikenessError(
            f"{len(stretches)} of {len(items)} items are stretches of recordings "
            f"({name_first(stretches)}), and a shard holds whole files; write each stretch as a "
            "file first"
        )
    records, sizes = _label_members(items), _sizes(items)
    if others := sorted(path.name for path in folder.glob(f"{name}-*.tar")):
        raise LikenessError(
            f"{folder} contains {len(others)} other shards ({name_first(others)}); choose another "
            "name or folder, or remove them"
        )
    order = np.random.default_rng(seed).permutation(len(items)).tolist()
    plan = _plan(order, sizes, records, shard_bytes)
    shards = [folder / f"{name}-{number:06d}.tar" for number in range(len(plan))]
    unfinished = folder / f".{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a packing that was interrupted
    unfinished.mkdir(parents=True)
    first = 0
    for shard, chosen in zip(shards, plan, strict=True):
        _pack(unfinished / shard.name, [(items[i], sizes[i], records[i]) for i in chosen], first)
        first += len(chosen)
    for shard in shards:
        move(_index_of(unfinished / shard.name), _index_of(shard))
        move(unfinished / shard.name, shard)
    unfinished.rmdir()
    return shards


def _plan(
    order: Sequence[int], sizes: Sequence[int], records: Sequence[bytes], shard_bytes: int
) -> list[list[int]]:
    """The numbers of the items of each shard, of at most shard_bytes where the items allow it."""
    plan: list[list[int]] = []
    room = 0
    for number in order:
        needed = sum(
            _BLOCK + -(-size // _BLOCK) * _BLOCK for size in (sizes[number], len(records[number]))
        )
        if not plan or needed > room:
            plan.append([])
            room = shard_bytes - 2 * _BLOCK
        plan[-1].append(number)
        room -= needed
    return plan


def _sizes(items: Sequence[Item]) -> list[int]:
    """The bytes of every item. Raises LikenessError for items that cannot be packed."""
    sizes: list[int] = []
    for item in items:
        size = item.span[1] if item.span is not None else item.path.stat().st_size
        if not 0 < size <= MAX_SPAN:
            raise LikenessError(
                f"{item.name}: it has {size} bytes, but 1 to {MAX_SPAN} are allowed; write the "
                "file again, or leave the item out"
            )
        if not re.fullmatch(r"\.[a-z0-9_]{1,16}", item.suffix) or item.suffix in LABEL_SUFFIXES:
            raise LikenessError(
                f"{item.name}: a suffix such as '.flac' is needed, and {', '.join(LABEL_SUFFIXES)} "
                "are labels"
            )
        sizes.append(size)
    if not sizes:
        raise LikenessError("there are no items to pack")
    return sizes


def _label_members(items: Sequence[Item]) -> list[bytes]:
    """The JSON text that states the id and the label of each item."""
    for item in items:
        if not (is_name(item.id) and (item.label is None or is_name(item.label))):
            raise LikenessError(
                f"{item.id!r}: the id or label is not a line of 1 to {MAX_NAME} printable "
                "characters"
            )
    return [
        json.dumps({"id": item.id, "label": item.label}, ensure_ascii=False).encode()
        for item in items
    ]


def _pack(shard: Path, chosen: list[tuple[Item, int, bytes]], first: int) -> None:
    """Writes one shard and its index."""
    packed: list[Member] = []
    with (
        atomic_path(shard) as temporary,
        temporary.open("wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for key, (item, size, record) in enumerate(chosen, first):
            with item.open() as source:
                content = source.read(size + 1)
            if len(content) != size:
                raise LikenessError(
                    f"{item.name}: it changed while it was packed and had {size} bytes before; "
                    "run the packing again when nothing writes to it"
                )
            packed.append((item.id, item.label, item.suffix, file.tell() + _BLOCK, size))
            for ending, data in ((item.suffix, content), (".json", record)):
                member = tarfile.TarInfo(f"{key:09d}{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    _write_index(shard, packed)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turns garbage collection off.

    While millions of items are made, it would go through all of them again and again and take three
    quarters of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _find(data: Path, pattern: str) -> list[Path]:
    """The shards that `data` names. Raises ValueError for compressed and unfinished ones."""
    paths: Iterable[Path]
    if data.is_dir():
        paths = data.glob(pattern)
    elif data.is_file():
        paths = [data]
    else:
        paths = map(Path, glob.glob(str(data)))
    shards = sorted(path for path in paths if path.is_file() and not path.name.startswith("."))
    # A packing that was interrupted leaves a folder behind.
    begun = [
        path
        for folder in {path.parent for path in shards} | {data}
        for path in folder.glob(".*.unfinished")
    ]
    if not shards:
        again = "; shards that are not finished lie there, pack again" if begun else ""
        raise LikenessError(
            f"{data}: no tar shards{f' like {pattern!r}' if data.is_dir() else ''}; a folder, a "
            f"shard (plain .tar, not compressed) or a pattern is needed{again}"
        )
    names = [part.with_name(f"{part.stem[1:]}-") for part in begun]
    partial = [path.name for path in shards if str(path).startswith(tuple(map(str, names)))]
    if partial:
        raise LikenessError(
            f"{data}: {len(partial)} shards ({name_first(partial)}) are part of a packing that was "
            "interrupted; remove them, and pack again"
        )
    return shards


def _listed(shard: Path) -> list[Member]:
    """The members of one shard, from its index or by scanning it once."""
    if _index_of(shard).is_file():
        return _read_index(shard)
    members = scan(shard)
    try:
        _write_index(shard, members)
    except OSError as error:
        warnings.warn(
            f"{shard}: its index cannot be written ({error}); the shard is scanned each time",
            stacklevel=3,
        )
    return members


def _index_of(shard: Path) -> Path:
    """The path of the index of a shard."""
    return shard.with_name(f"{shard.name}.index")


def _write_index(shard: Path, members: Sequence[Member]) -> None:
    """Writes the index of a shard."""
    header = {
        "likeness_index": _FORMAT,
        "shard": shard.name,
        "bytes": shard.stat().st_size,
        "items": len(members),
    }
    with atomic_path(_index_of(shard)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in (header, *members))


def _read_index(shard: Path) -> list[Member]:
    """The members that the index states, if it is whole and that of the shard."""
    index, size = _index_of(shard), shard.stat().st_size
    rows: list[Any] = []
    is_whole = index.stat().st_size <= _MAX_INDEX
    try:
        if is_whole:
            lines = index.read_text(encoding="utf-8").strip().replace("\n", ",")
            header, *rows = json.loads(f"[{lines}]")
            stated = (header["likeness_index"], header["bytes"], header["items"])
            is_whole = stated == (_FORMAT, size, len(rows))
            is_whole = is_whole and all(_is_entry(size, *row) for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise LikenessError(
            f"{index}: it is not the index of this shard, or damaged; fetch the shard again, or "
            "delete the index to have it made anew"
        )
    return rows


def _is_entry(
    shard_size: int, id: object, label: object, ending: object, offset: object, size: object
) -> bool:
    """Whether these are values of an index, within a shard of this size."""
    return (
        is_name(id)
        and (label is None or is_name(label))
        and is_name(ending)
        and type(offset) is int
        and type(size) is int
        and 0 <= size <= MAX_SPAN
        and _BLOCK <= offset <= shard_size - size
    )
