"""Data sets in tar shards, as webdataset and WeSpeaker have them: pack items, list them, and read
each from its span without unpacking.

A shard is a plain tar archive. A sample is a data member KEY.flac (any suffix) and a label member
KEY.cls, KEY.spk, KEY.json ({"label": ..., "id": ...}) or KEY.txt, the first of these that holds
one. Formats: webdataset (webdataset/writer.py, tariterators.py: the key ends at the first dot of
the file name) and WeSpeaker (tools/make_shard_list.py, wespeaker/dataset/processor.py: it ends at
the last dot; KEY.spk). The id is the name up to the last dot; its label is looked up under that and
then under webdataset's key, so that KEY.left.jpg and KEY.right.jpg share KEY.cls.

Beside each shard lies an index, SHARD.tar.index: JSON lines, one header and then [id, label,
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

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import atomic_path
from eval.formats.writing import move
from eval.types import name_first
from toolkit.console import track
from toolkit.data.batch import MAX_SPAN, Item, check_unique
from toolkit.data.shard_scan import LABEL_SUFFIXES, MAX_NAME, is_name, scan

_BLOCK = tarfile.BLOCKSIZE
_MAX_INDEX = 2**30  # bytes
_FORMAT = 1
_COMPRESSED = ("*.tar.gz", "*.tar.bz2", "*.tar.xz", "*.tar.zst", "*.tgz", "*.tbz2", "*.txz")


def items(
    data: str | Path,
    *,
    pattern: str = "*.tar",
    suffixes: tuple[str, ...] = (),
    labelled: bool = True,
    prefix: bool = False,
) -> list[Item]:
    """The items of all shards, in order of shard and place in it: what a recipe names where others
    name a folder's items.

    data: a folder (with `pattern` below it), one shard, or a pattern such as "data/train-*.tar".
    suffixes: the data members wanted, such as (".flac",); () = all that are no label.
    labelled=False: items may lack a label. prefix=True: ids get their shard's name in front, for
    shards that number their samples anew. FileNotFoundError where there are no shards. ValueError
    counts and names the shards that are truncated, damaged or do not match their index, items
    without label, and repeated ids. A missing index is written, with a warning where that is not
    permitted.
    """
    shards = _find(Path(data), pattern)
    found: list[Item] = []
    damaged: list[tuple[str, str]] = []  # name, reason
    texts: dict[str, str] = {}  # one string per label and suffix, not per item
    with _uncollected():
        for shard in shards:
            try:
                held = _listed(shard)
            except (ValueError, OSError) as error:
                damaged.append((shard.name, str(error)))
                continue
            for id, path, label, span, ending in held:
                if not suffixes or ending in suffixes:
                    kept = None if label is None else texts.setdefault(label, label)
                    found.append(
                        Item(
                            f"{shard.stem}/{id}" if prefix else id,
                            path,
                            kept,
                            span,
                            texts.setdefault(ending, ending),
                        )
                    )
    if damaged:
        raise ValueError(
            f"{len(damaged)} of {len(shards)} shards cannot be used "
            f"({name_first(one for one, _ in damaged)}): {damaged[0][1]}"
        )
    if not found:
        raise ValueError(
            f"{data}: {len(shards)} shards without {' or '.join(suffixes) or 'data'} members; "
            "samples are KEY.flac and KEY.cls, or such"
        )
    unlabelled = [one.name for one in found if one.label is None]
    if labelled and unlabelled:
        raise ValueError(
            f"{len(unlabelled)} of {len(found)} items in shards have no label "
            f"({name_first(unlabelled)}); each needs a member KEY{', KEY'.join(LABEL_SUFFIXES)}"
            " beside it: pack them with labels, name the `suffixes` that count as data, or set "
            "labelled=False"
        )
    try:
        check_unique(found, str(data))
    except ValueError as error:
        raise ValueError(
            f"{error}; name the `suffixes` that count as data, or set prefix=True if each shard "
            "numbers its samples anew"
        ) from None
    return found


def shard_numbers(items: Sequence[Item]) -> NDArray[np.int64]:
    """(N,) number of each item's shard, by first occurrence: what Sampling.open_shards needs.

    ValueError counts items that are in no shard.
    """
    outside = [one.id for one in items if one.span is None]
    if outside:
        raise ValueError(
            f"{len(outside)} of {len(items)} items are files, in no tar shard "
            f"({name_first(outside)}); pack them, or set open_shards to 0"
        )
    numbers: dict[Path, int] = {}
    return np.fromiter(
        (numbers.setdefault(one.path, len(numbers)) for one in items),
        dtype=np.int64,
        count=len(items),
    )


def write(
    items: Iterable[Item],
    folder: str | Path,
    *,
    name: str = "shard",
    shard_bytes: int = 2**28,
    seed: int = 0,
    progress: bool = False,
) -> list[Path]:
    """Pack items (files, or spans of other shards) in seeded random order into
    folder/NAME-000000.tar, ... of at most shard_bytes; returns the shards.

    Members are 000000042.flac and 000000042.json with the item's id and label; equal arguments give
    equal bytes. The shards appear in the folder when all of them are whole; run again after an
    interruption, it goes on where it stopped (an item changed meanwhile without changing its size
    is not noticed). ValueError counts items that are missing, empty, over 1 GiB, or without a
    usable suffix, and refuses a folder with other shards of that name.
    """
    items, folder = list(items), Path(folder)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(
            f"name={name!r}: 1 to 64 letters, digits, - and _ are allowed, as in 'train'"
        )
    if shard_bytes < 1:
        raise ValueError(
            f"shard_bytes={shard_bytes}; at least 1 is needed, and some 100 MB are usual"
        )
    check_unique(items, "items")
    records, sizes = _label_members(items), _sizes(items)
    order = np.random.default_rng(seed).permutation(len(items)).tolist()
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
    shards = [folder / f"{name}-{number:06d}.tar" for number in range(len(plan))]
    wanted = {
        shard: [(items[i].id, items[i].label, items[i].suffix, sizes[i]) for i in one]
        for shard, one in zip(shards, plan, strict=True)
    }
    there = {one for one in folder.glob(f"{name}-*.tar") if one.is_file()}
    others = sorted(one.name for one in there if one not in wanted or not _holds(one, wanted[one]))
    if others:
        raise ValueError(
            f"{folder} holds {len(others)} other shards ({name_first(others)}); choose another "
            "name or folder, or remove them"
        )
    unfinished = folder / f".{name}.unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    first = 0
    for shard, chosen in track(list(zip(shards, plan, strict=True)), "packing", show=progress):
        if shard not in there and not _holds(unfinished / shard.name, wanted[shard]):
            _pack(
                unfinished / shard.name, [(items[i], sizes[i], records[i]) for i in chosen], first
            )
        first += len(chosen)
    for shard in shards:
        if shard not in there:
            move(_index_of(unfinished / shard.name), _index_of(shard))
            move(unfinished / shard.name, shard)
    shutil.rmtree(
        unfinished
    )  # with what is left there of an earlier plan, or of a process that was killed
    return shards


def _sizes(items: Sequence[Item]) -> list[int]:
    """Bytes of every item."""
    sizes: list[int] = []
    bad: list[tuple[str, str]] = []  # name, reason
    for one in items:
        size = (
            one.span[1]
            if one.span is not None
            else one.path.stat().st_size
            if one.path.is_file()
            else -1
        )
        sizes.append(size)
        if size < 0:
            bad.append((one.name, "no such file"))
        elif not 0 < size <= MAX_SPAN:
            bad.append((one.name, f"{size} bytes; 1 to {MAX_SPAN} are allowed"))
        elif not re.fullmatch(r"\.[a-z0-9_]{1,16}", one.suffix) or one.suffix in LABEL_SUFFIXES:
            bad.append(
                (
                    one.name,
                    f"the suffix {one.suffix!r}; one such as '.flac' is needed, and "
                    f"{', '.join(LABEL_SUFFIXES)} are labels",
                )
            )
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(items)} items cannot be packed "
            f"({name_first(one for one, _ in bad)}): {bad[0][1]}"
        )
    if not items:
        raise ValueError("there are no items to pack")
    return sizes


def _label_members(items: Sequence[Item]) -> list[bytes]:
    bad = [
        one.id
        for one in items
        if not (is_name(one.id) and (one.label is None or is_name(one.label)))
    ]
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(items)} items have an id or label that is no line of 1 to "
            f"{MAX_NAME} printable characters ({name_first(bad)})"
        )
    return [
        json.dumps({"id": one.id, "label": one.label}, ensure_ascii=False).encode() for one in items
    ]


def _pack(shard: Path, chosen: list[tuple[Item, int, bytes]], first: int) -> None:
    """One shard and its index, the index last: where it is, the shard is whole."""
    packed: list[Item] = []
    _index_of(shard).unlink(missing_ok=True)
    with (
        atomic_path(shard) as temporary,
        temporary.open("wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for key, (item, size, record) in enumerate(chosen, first):
            with item.open() as source:
                held = source.read(size + 1)
            if len(held) != size:
                raise ValueError(
                    f"{item.name}: changed while it was packed, it had {size} bytes; run the "
                    "packing again when nothing writes to it"
                )
            packed.append(
                Item(item.id, shard, item.label, (file.tell() + _BLOCK, size), item.suffix)
            )
            for ending, content in ((item.suffix, held), (".json", record)):
                member = tarfile.TarInfo(f"{key:09d}{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    _write_index(shard, packed)


def _holds(shard: Path, wanted: Sequence[tuple[str, str | None, str, int]]) -> bool:
    """Whether a shard is whole and holds these items, as its index says."""
    try:
        return [
            (one.id, one.label, one.ending, one.span[1]) for one in _read_index(shard) if one.span
        ] == wanted
    except (ValueError, OSError):
        return False


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: it would go through all items again and again while millions of them
    are made, and take three quarters of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _find(data: Path, pattern: str) -> list[Path]:
    paths = (
        data.glob(pattern)
        if data.is_dir()
        else [data]
        if data.is_file()
        else map(Path, glob.glob(str(data)))
    )
    shards = sorted(one for one in paths if one.is_file() and not one.name.startswith("."))
    compressed = [one.name for one in shards if any(one.match(kind) for kind in _COMPRESSED)]
    if not shards and data.is_dir():
        compressed = sorted(one.name for kind in _COMPRESSED for one in data.glob(kind))
    if compressed:
        raise ValueError(
            f"{data}: {len(compressed)} compressed shards ({name_first(compressed)}); an item "
            "inside cannot be read without all before it: unpack them to .tar"
        )
    begun = [
        one
        for folder in {one.parent for one in shards} | {data}
        for one in folder.glob(".*.unfinished")
    ]  # a packing was interrupted
    if not shards:
        again = "; shards that are not finished lie there, pack again" if begun else ""
        raise FileNotFoundError(
            f"{data}: no tar shards{f' like {pattern!r}' if data.is_dir() else ''}; a folder, a "
            f"shard or a pattern is needed{again}"
        )
    partial = [
        one.name
        for one in shards
        if any(
            one.parent == part.parent and one.name.startswith(f"{part.stem[1:]}-") for part in begun
        )
    ]
    if partial:
        raise ValueError(
            f"{data}: {len(partial)} shards ({name_first(partial)}) are part of a packing that was "
            "interrupted; pack again, and it goes on from there"
        )
    return shards


def _listed(shard: Path) -> list[Item]:
    """The items of one shard, from its index or by scanning it once."""
    if _index_of(shard).is_file():
        return _read_index(shard)
    held = scan(shard)
    try:
        _write_index(shard, held)
    except OSError as error:
        warnings.warn(
            f"{shard}: its index cannot be written ({error}); the shard is scanned each time",
            stacklevel=3,
        )
    return held


def _index_of(shard: Path) -> Path:
    return shard.with_name(f"{shard.name}.index")


def _write_index(shard: Path, held: Sequence[Item]) -> None:
    header = {
        "likeness_index": _FORMAT,
        "shard": shard.name,
        "bytes": shard.stat().st_size,
        "items": len(held),
    }
    rows = ([one.id, one.label, one.ending, *(one.span or ())] for one in held)
    with atomic_path(_index_of(shard)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in (header, *rows))


def _read_index(shard: Path) -> list[Item]:
    """The items that the index states. ValueError if it is damaged or does not match the shard."""
    index, size = _index_of(shard), shard.stat().st_size
    remedy = "fetch the shard again, or delete the index to have it made anew"
    if index.stat().st_size > _MAX_INDEX:
        raise ValueError(
            f"{index}: over {_MAX_INDEX} bytes; this is no index of a shard: delete it"
        )
    try:
        header, *rows = json.loads(
            f"[{index.read_text(encoding='utf-8').strip().replace(chr(10), ',')}]"
        )
        stated = (header["likeness_index"], header["bytes"], header["items"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{index}: no index of a shard ({type(error).__name__}); {remedy}"
        ) from None
    if stated != (_FORMAT, size, len(rows)):
        raise ValueError(
            f"{index}: states format {stated[0]}, {stated[1]} bytes and {stated[2]} items, but "
            f"this reads format {_FORMAT}, the shard has {size} bytes"
            f" and {len(rows)} items are listed; {remedy}"
        )
    wrong = [str(line) for line, row in enumerate(rows, 2) if not _is_entry(row, size)]
    if wrong:
        raise ValueError(
            f"{index}: {len(wrong)} lines are no [id, label, suffix, offset, size] within the "
            f"shard (line {', '.join(wrong[:3])}); {remedy}"
        )
    return [
        Item(id, shard, label, (offset, length), ending)
        for id, label, ending, offset, length in rows
    ]


def _is_entry(row: object, shard_size: int) -> bool:
    if not isinstance(row, list) or len(row) != 5:
        return False
    id, label, ending, offset, size = row
    return (
        is_name(id)
        and (label is None or is_name(label))
        and is_name(ending)
        and type(offset) is int
        and type(size) is int
        and 0 <= size <= MAX_SPAN
        and _BLOCK <= offset <= shard_size - size
    )
