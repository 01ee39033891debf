"""Embeddings of long lists as files: in pieces that are finished one by one and joined in the
list's order, by the processes of torchrun, by a cluster, or in parts of a job array.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.files import json_object
from likeness.eval.formats.provenance import digest
from likeness.eval.items.items import Item, check_unique
from likeness.eval.items.remote import refuse_missing_files
from likeness.eval.items.suffixes import suffixes_of
from likeness.eval.option import Option
from likeness.eval.progress import as_part
from likeness.eval.protocols.arguments import digests_of, files_read
from likeness.eval.writing import hidden_folders, write_json
from likeness.models.inputs import parse_listing
from likeness.models.load import every_face, reading_of
from likeness.models.reading import Reading, load_reading
from likeness.toolkit.console import say
from likeness.toolkit.data import shards
from likeness.toolkit.data.reading import Bad, print_bad, write_bad
from likeness.toolkit.models.embed import embed_where_readable, refuse_diverged, warn_if_alike
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import parts_in, version_of
from likeness.toolkit.sources import Source, is_source, source_of
from likeness.toolkit.training.lock import only_writer

PIECE_ITEMS = 8192
_PLAN, _SOURCES = "plan.json", "sources"  # a file of the folder, and an entry of a piece's metadata
Output = Annotated[Path, Option(path="output", endings=(".npz", ".ark", ".parquet"))]
Piece = tuple[Embeddings | None, list[Bad]]  # the readable items, and the others


def embed_files(
    model: str,
    out: Output,
    reading: Reading | None = None,
    *,
    items: Annotated[Path | None, Option(path="any")] = None,
    root: Path | None = None,
    columns: str | Mapping[str, str] = "",
    ray: str | None = None,
    part: Annotated[str | None, Option(metavar="I/N")] = None,
    batch_size: Annotated[int, Option(least=1)] = 16,
    workers: Annotated[int, Option(least=0)] = 0,
    bad_items: Literal["skip", "refuse"] = "skip",
) -> None:
    """Embed every item and write the embeddings. The first process says what was done.

    Args:
        model: As in `likeness.models.model.load`.
        out: The file to write: .npz, .ark (with .scp) or .parquet.
        reading: How the model reads an item.
        items: A folder, a list or a table of items, unless `--ijb` names faces.
        root: As in `likeness.checking.lists.items`.
        columns: As in `likeness.checking.lists.items`.
        ray: Embed on a Ray cluster: auto, or the address of its head.
        part: Embed part I of N of the list.
        batch_size: How many inputs make a batch; this changes no embedding.
        workers: How many processes read files; 0 reads them in this one.
        bad_items: Unreadable items are left out and named, or nothing is written.

    Raises:
        LikenessError: Items are refused; and as in reading, loading and `extract`. No embeddings
            are written then.
    """
    reading = reading or Reading()
    if (items is None) == (reading.ijb is None):
        raise LikenessError("embed needs --items LIST or --ijb FOLDER, one of them")
    parse_listing(*filter(None, [items]), columns=columns, root=root)
    if part is not None:
        _part_of(part)
    skips_bad = bad_items == "skip"
    loaded, listed = load_reading(model, reading)
    if items is not None:
        suffixes = suffixes_of(loaded.modality)
        of_list: Any = {"columns": columns, "root": root, "missing": "leave"}
        listed = shards.or_files(items, suffixes=suffixes, **of_list)
    meta = dict(loaded.meta)
    if part is not None:
        listed, of_part = take_part(listed, part)
        meta |= of_part | {"read_by": _read_by(loaded)}
    files.check_ids(out, [item.id for item in listed])
    refuse_missing_files([item.path for item in listed], allow_some=skips_bad)
    sizes = {"batch_size": batch_size, "workers": workers}
    if reading.faces == "all" and (ray or int(os.environ.get("WORLD_SIZE", "1")) > 1):
        raise LikenessError("--faces all takes one process; or use `likeness align --faces all`")
    with ExitStack() as stack:
        device = stack.enter_context(joined_processes())
        stack.enter_context(_only_extraction(out))
        lost = list[Bad]()
        if ray is not None:
            from likeness.embedding import _ray as ray_embedding

            load = partial(load_reading, model, reading)
            pieces = ray_embedding.embed(load, listed, ray, **sizes)
            write(joined(pieces, {}), out, meta, skips_bad=skips_bad)
            return
        if reading.faces == "all":
            loaded, listed, lost = stack.enter_context(every_face(loaded, listed))
            sizes["piece_items"] = max(1, len(listed))  # crops of a temporary folder are no resume
        loaded.embedder.to_device(device)
        extracted = extract(loaded, listed, out, **sizes)
        if extracted is not None:  # the first process
            extracted = extracted[0], [*lost, *extracted[1]]
            write(extracted, out, meta, skips_bad=skips_bad)
            remove_pieces(out)


@contextmanager
def _only_extraction(out: Path) -> Iterator[None]:
    """Hold the lock of the folder of pieces, in the first process.

    Raises:
        LikenessError: Another process embeds into the same file.
    """
    folder = _folder(out)
    try:
        with ExitStack() as locked:
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                locked.enter_context(only_writer(folder))
            else:
                from likeness.toolkit.parallel import distributed

                distributed.run_on_main(lambda: locked.enter_context(only_writer(folder)))
            yield
    finally:
        with suppress(OSError):  # it holds pieces to go on from, or something else
            folder.rmdir()


def join_files(
    parts: Annotated[Sequence[Path], Option("PARTS", path="file")],
    out: Output,
    *,
    bad_items: Literal["skip", "refuse"] = "skip",
) -> None:
    """Join the embeddings of all parts of a list.

    Args:
        parts: The files to --join.
        out: As in `embed_files`.
        bad_items: As in `embed_files`.

    Raises:
        LikenessError: They are not all parts of one list; and as in `embed_files`.
    """
    write(join_parts(parts), out, {}, skips_bad=bad_items == "skip")


def write(piece: Piece, out: Path, meta: Mapping[str, str], *, skips_bad: bool) -> None:
    """Write embeddings, and name the items that have none.

    Raises:
        LikenessError: Items cannot be read and are not to be left out, or none can be.
    """
    embedded, bad = piece
    print_bad(bad, "items")
    if "part" in meta and (skips_bad or not bad):
        embedded = name_bad_items(embedded, bad)
    if embedded is None or (bad and not skips_bad):
        num_items = len(bad) + (0 if embedded is None else len(embedded.ids))
        raise LikenessError(
            f"{len(bad)} of {num_items} items cannot be read; repair them, or --bad-items skip"
        )
    warn_if_alike(embedded)
    files.write_embeddings(
        out, Embeddings(embedded.ids, embedded.matrix, {**embedded.meta, **meta})
    )
    skipped = out.with_name(f"{out.name}.skipped.txt")
    skipped.unlink(missing_ok=True)
    text = f"{len(embedded.ids)} embeddings of {embedded.matrix.shape[1]} dimensions in {out}"
    if bad:
        write_bad(skipped, bad)
        text += f"; {len(bad)} unreadable items left out, listed in {skipped}"
        text += " (their trials: `score --missing skip`)"
    say(text)


def extract(
    model: Loaded,
    items: Sequence[Item],
    out: Path,
    *,
    batch_size: int = 16,
    workers: int = 0,
    piece_items: int = PIECE_ITEMS,
) -> Piece | None:
    """Embed all readable items, and name the unreadable ones with their reasons.

    The number of processes does not change where the list is cut, so the result is the same for any
    number of them. Every finished piece is a file in the folder OUT.pieces. A run that goes on
    after a stop finds it there if model, code and items are the same, and is refused otherwise. Of
    such a piece, the items whose files changed since, or which could not be read, are embedded
    again. The caller holds the lock of the folder, writes the result and then calls
    `remove_pieces`.

    Args:
        model: What embeds, and how it reads an item.
        items: N items with distinct ids.
        out: The file that the caller will write.
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read files.
        piece_items: How many items make a piece.

    Returns:
        The raw embeddings in the order of the items, or None where no item could be read; and the
        items that cannot be read. None in all processes but the first.

    Raises:
        LikenessError: The folder is of another extraction.
        Diverged: Most embeddings are NaN or infinite.
    """
    check_unique(items, "items to embed")  # before the work, not after it
    folder = _folder(out)
    pieces = [items[start : start + piece_items] for start in range(0, len(items), piece_items)]
    plan: dict[str, str | int] = {
        "model": model.digest,
        "items": list_digest(items),
        "settings": json.dumps(dict(model.settings)),
        "read_by": _read_by(model),
        "piece_items": piece_items,
    }
    embed = partial(
        embed_where_readable,
        model.embedder,
        read=model.read,
        batch_size=batch_size,
        workers=workers,
        part=True,
    )
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if is_alone and len(pieces) <= 1 and not (folder / _PLAN).is_file():
        # A next call could not go on from a single piece, so it is not written.
        return joined([embed(items)], model.meta)
    mine = range(len(pieces))
    if is_alone:
        _prepare(out, plan, len(pieces))
        _embed_pieces(pieces, folder, embed, mine)
    else:
        from likeness.toolkit.parallel import distributed

        distributed.agree(**plan)
        distributed.run_on_main(lambda: _prepare(out, plan, len(pieces)))
        mine = mine[distributed.rank() :: distributed.world()]
        _embed_pieces(pieces, folder, embed, mine)
        distributed.wait()
        if not distributed.is_main():
            return None
    there = [files.read_embeddings(_piece_path(folder, number)) for number in range(len(pieces))]
    return joined(list(map(_without_bad, there)), model.meta)


@contextmanager
def joined_processes() -> Iterator[str]:
    """Join the processes that torchrun started, and leave them at the end.

    Yields:
        The device of this one, such as "cuda:1"; "" where there is one process, which then needs
        no torch.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ""
        return
    from likeness.toolkit.parallel import distributed

    device = distributed.start()
    try:
        with distributed.lost_named("what is embedded is kept, start all again by the same line"):
            yield "" if device is None else str(device)
    finally:
        distributed.end()


def _read_by(model: Loaded) -> str:
    """The digest of the files that a model reads by, and of the code of others that it runs, as
    they are now.
    """
    read, arguments = reading_of(model)
    parts = {str(part["package"]) for part in parts_in(model.parts)}
    packages = {*parts, str(read.__module__).partition(".")[0]} - {"likeness"}
    versions = (f"{name} {version_of(name)}" for name in sorted(packages))
    return digest([*digests_of(files_read(*arguments.values())).values(), *versions])


def list_digest(items: Sequence[Item]) -> str:
    """The digest of what each item of a list is read from."""
    parts = ((item.id, item.path, item.span, item.stretch, item.channel) for item in items)
    return digest("\0".join(map(str, each)) for each in parts)


def _embed_pieces(
    pieces: Sequence[Sequence[Item]],
    folder: Path,
    embed: Callable[[Sequence[Item]], Piece],
    mine: range,
) -> None:
    """Embed those of this process's pieces that are not in the folder yet, and of the others the
    items of which the embedding is missing or of an earlier file.
    """
    num_done = num_again = 0
    num_items = sum(len(pieces[number]) for number in mine)
    for number in mine:
        items, path = pieces[number], _piece_path(folder, number)
        before = _piece_before(path)
        again = items if before is None else _outdated(before, items)
        if again:
            sources = _sources(again)  # before they are read, so that a later change shows
            with as_part(num_done, num_items):
                embedded, bad = embed(again)
            if len(again) == PIECE_ITEMS:  # enough to stop for, if most are no numbers
                refuse_diverged(bad, 0 if embedded is None else len(embedded.ids))
            piece = name_bad_items(embedded, bad, sources=json.dumps(sources))
            if before is not None:
                piece = _replaced(before, piece, items, again)
                num_again += len(again)
            files.write_embeddings(path, piece)
            say(f"piece {number + 1} of {len(pieces)}: {len(piece.ids)} embeddings", error=True)
        num_done += len(items)
    if num_again:
        say(f"{num_again} items of these pieces changed or failed: embedded again", error=True)


def _piece_before(path: Path) -> Embeddings | None:
    """A piece that is there and says what it was made of."""
    with suppress(FileNotFoundError):
        piece = files.read_embeddings(path)
        if _SOURCES in piece.meta:
            return piece
    return None


def _sources(items: Sequence[Item]) -> dict[str, Source]:
    """What each file of items is, as far as it is there. Those of object stores are not asked."""
    sources = {}
    for path in dict.fromkeys(item.path for item in items):
        with suppress(OSError):
            sources[str(path)] = source_of(path, with_digest=True)
    return sources


def _outdated(piece: Embeddings, items: Sequence[Item]) -> list[Item]:
    """The items of a piece that could not be read, or whose files are not what they were."""
    sources, failed = json.loads(piece.meta[_SOURCES]), {bad.id for bad in _without_bad(piece)[1]}
    changed = {path for path, source in sources.items() if not is_source(path, source)}
    return [item for item in items if item.id in failed or str(item.path) in changed]


def _replaced(
    before: Embeddings, new: Embeddings, items: Sequence[Item], again: Sequence[Item]
) -> Embeddings:
    """A piece in which the items that were embedded again are replaced."""
    rows = dict(zip(before.ids, before.matrix, strict=True))
    for item in again:
        rows.pop(item.id, None)
    rows |= dict(zip(new.ids, new.matrix, strict=True))
    reasons = {bad.id: bad for bad in _without_bad(new)[1]}
    ids = tuple(item.id for item in items if item.id in rows)
    embedded = Embeddings(ids, np.stack([rows[name] for name in ids])) if ids else None
    sources = json.loads(before.meta[_SOURCES]) | json.loads(new.meta[_SOURCES])
    bad = [reasons[item.id] for item in items if item.id in reasons]
    return name_bad_items(embedded, bad, sources=json.dumps(sources))


def joined(pieces: Sequence[Piece], meta: Mapping[str, str]) -> Piece:
    """The embeddings of all pieces in their order, with these metadata, and all unreadable items.

    Raises:
        Diverged: Most embeddings are NaN or infinite.
    """
    bad = [item for _, unreadable in pieces for item in unreadable]
    readable = [embeddings for embeddings, _ in pieces if embeddings is not None]
    refuse_diverged(bad, sum(len(embeddings.ids) for embeddings in readable))
    if not readable:
        return None, bad
    ids = tuple(name for embeddings in readable for name in embeddings.ids)
    return Embeddings(ids, np.concatenate([each.matrix for each in readable]), meta), bad


def name_bad_items(embeddings: Embeddings | None, bad: Sequence[Bad], **meta: str) -> Embeddings:
    """Return the embeddings of a piece or part, whose metadata name the unreadable items."""
    readable = embeddings or Embeddings((), np.zeros((0, 1), np.float32), {})
    meta = {**readable.meta, "bad": json.dumps(list(bad)), **meta}
    return Embeddings(readable.ids, readable.matrix, meta)


def _without_bad(embeddings: Embeddings) -> Piece:
    """What `name_bad_items` was given."""
    try:
        bad = [Bad(*map(str, fields)) for fields in json.loads(embeddings.meta["bad"])]
    except (ValueError, TypeError, RecursionError):
        raise LikenessError("a part does not say which items it lacks; embed it again") from None
    return embeddings if embeddings.ids else None, bad


def remove_pieces(out: Path) -> None:
    """Remove the pieces, after the result was written. What else is in their folder stays."""
    folder = _folder(out)
    # Without a plan nobody knows of what pieces are, should a kill come now.
    for pattern in (_PLAN, f"{6 * '[0-9]'}.npz"):
        for path in folder.glob(pattern):
            path.unlink()
    for left in hidden_folders(folder):
        shutil.rmtree(left, ignore_errors=True)


def _folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.pieces")


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _prepare(out: Path, plan: Mapping[str, str | int], num_pieces: int) -> None:
    """Make the folder, or go on in it."""
    folder = _folder(out)
    folder.mkdir(exist_ok=True)
    file = folder / _PLAN
    if file.is_file():
        before = json_object(file)
        if before != plan:
            differ = ", ".join(sorted(key for key in plan if before.get(key) != plan[key]))
            raise LikenessError(f"{folder} is of another extraction ({differ} differ); remove it")
        done = len(list(folder.glob("??????.npz")))
        say(f"going on in {folder}: {done} of {num_pieces} pieces are there", error=True)
        return
    remove_pieces(out)  # of which nobody knows what they are
    write_json(file, plan)


def take_part(items: Sequence[Item], part: str) -> tuple[Sequence[Item], dict[str, str]]:
    """Return one part of a list for a job array, and what its embeddings say of it.

    Args:
        items: The whole list, the same for all jobs.
        part: "I/N", the number of the part, from 1 on, and the number of parts.

    Raises:
        LikenessError: The text is something else.

    Example:
        >>> items = [Item(name, Path(name), "") for name in "abcde"]
        >>> [item.id for item in take_part(items, "2/2")[0]]
        ['c', 'd', 'e']
    """
    number, count = _part_of(part)
    first, stop = len(items) * (number - 1) // count, len(items) * number // count
    return items[first:stop], {"part": part, "list": list_digest(items)}


def _part_of(text: str) -> tuple[int, int]:
    """The number of a part and the number of parts that I/N says."""
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise LikenessError(f"part {text[:40]!r}: write I/N, such as 1/8 for the first of eight")
    return int(match[1]), int(match[2])


def join_parts(paths: Sequence[Path]) -> Piece:
    """Put the parts of a job array together, in the order of the list.

    Returns:
        The embeddings, with the metadata that one run would have given them, or None if no item
        could be read; and the items that could not be read.

    Raises:
        LikenessError: A file is no part, or a part is missing, there twice, or of another model,
            list or number of parts.
    """
    by_number: dict[int, Piece] = {}
    count, meta = 0, dict[str, str]()
    for path in paths:
        embeddings = files.read_embeddings(path)
        of_part = dict(embeddings.meta)
        if not {"part", "list", "read_by", "bad"} <= of_part.keys():
            raise LikenessError(f"{path} is no part; --join takes what `embed --part I/N` wrote")
        number, of_count = _part_of(of_part.pop("part"))
        del of_part["bad"]
        if by_number and (of_count, of_part) != (count, meta):
            raise LikenessError(f"{path} is of another model, list or number of parts than others")
        count, meta = of_count, of_part
        by_number[number] = _without_bad(embeddings)
    if not len(by_number) == len(paths) == count:
        there = ", ".join(map(str, sorted(by_number)))
        raise LikenessError(f"{len(paths)} files hold the parts {there} of {count}; give each once")
    del meta["list"], meta["read_by"]
    return joined([by_number[number] for number in sorted(by_number)], meta)
