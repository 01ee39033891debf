"""Embeddings of long lists: in pieces that are finished one by one, by any number of processes, and
joined in the list's order.

The folder of the pieces is OUT.shards, the name that version 0.1 gave it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from eval.errors import LikenessError
from eval.formats import embeddings as files
from eval.formats.files import atomic_path, json_object
from eval.formats.provenance import digest
from eval.progress import as_part
from eval.types import Embeddings
from likeness.models.load import aligned_size, refuse_other_reading
from toolkit.console import say
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Item
from toolkit.data.reading import Bad
from toolkit.models.embed import NO_NUMBERS, embed_where_readable, refuse_diverged
from toolkit.models.loaded import Flip, Loaded
from toolkit.parallel import processes
from toolkit.training.lock import Busy, empty, only_writer

PIECE_ITEMS = 8192
# So many embeddings that are no numbers are enough to stop for, if they are most of those so far.
MANY_NO_NUMBERS = 1000
Piece = tuple[Embeddings | None, list[Bad]]  # the readable items, and the others


def extract(
    model: Loaded,
    items: Sequence[Item],
    out: Path,
    *,
    batch_size: int = 16,
    workers: int = 0,
    piece_items: int = PIECE_ITEMS,
) -> tuple[Embeddings, list[Bad]] | None:
    """Embed all readable items, and name the unreadable ones with their reasons.

    The number of processes does not change where the list is cut, so the result is the same for any
    number of them. Every finished piece is a file in the folder OUT.shards. A run that goes on
    after a stop finds it there if model and items are the same, and is refused otherwise. The
    caller writes the result and then calls `finish`.

    Args:
        model: What embeds, and how it reads an item.
        items: N items with distinct ids.
        out: The file that the caller will write.
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read files.
        piece_items: How many items make a piece.

    Returns:
        The raw embeddings in the order of the items, and the items that cannot be read. None in all
        processes but the first.

    Raises:
        LikenessError: No item can be read, or the folder is of another extraction.
        Diverged: Most embeddings are NaN or infinite.
        Busy: Another process writes into the folder.
    """
    check_unique(items, "items to embed")  # before the work, not after it
    folder = _folder(out)
    pieces = [items[start : start + piece_items] for start in range(0, len(items), piece_items)]
    plan = plan_of(model, items, piece_items)
    processes.agree(**plan)
    embed = partial(
        embed_where_readable,
        model.embedder,
        read=model.read,
        batch_size=batch_size,
        workers=workers,
        part=True,
    )
    with ExitStack() as locked:

        def prepare() -> None:
            if len(pieces) > 1 or processes.world() > 1 or folder.is_dir():
                locked.enter_context(only_writer(folder))
                _prepare(folder, plan, len(pieces))

        processes.on_main(prepare)
        in_memory = _embed_pieces(pieces, folder, embed)
        processes.wait()
        if not processes.is_main():
            return None
        embedded = in_memory or [read_piece(_piece_path(folder, i))[:2] for i in range(len(pieces))]
    return joined(embedded, len(items), model.meta)


def plan_of(model: Loaded, items: Sequence[Item], piece_items: int) -> dict[str, str | int]:
    """What an extraction is of, by the names that version 0.1 wrote."""
    return {
        "model": model.digest,
        "items": digest(map(_stated, items)),
        "settings": json.dumps(dict(model.settings)),
        "shard_items": piece_items,
    }


def _stated(item: Item) -> str:
    """What an item is read from. That of whole files is what version 0.1 wrote."""
    stretch = f"\0{item.stretch}" if item.stretch else ""
    return f"{item.id}\0{item.path}\0{item.span}{stretch}"


def _embed_pieces(
    pieces: Sequence[Sequence[Item]], folder: Path, embed: Callable[[Sequence[Item]], Piece]
) -> list[Piece]:
    """Embed this process's pieces that are not in the folder yet, and write each into it.

    Returns:
        The piece, where there is one piece and one process: a next call could not go on from it,
        so it is not written. Otherwise nothing.
    """
    num_finite, no_numbers, num_done = 0, list[Bad](), 0
    mine = range(processes.rank(), len(pieces), processes.world())
    num_items = sum(len(pieces[number]) for number in mine)
    for number in mine:
        items, path = pieces[number], _piece_path(folder, number)
        if path.is_file():
            num_done += len(items)
            continue
        with as_part(num_done, num_items):
            embeddings, bad = embed(items)
        num_done += len(items)
        num_finite += 0 if embeddings is None else len(embeddings.ids)
        no_numbers += [item for item in bad if item.reason == NO_NUMBERS]
        if len(no_numbers) >= MANY_NO_NUMBERS:
            refuse_diverged(no_numbers, num_finite)
        if len(pieces) == 1 and processes.world() == 1:
            return [(embeddings, bad)]
        write_piece(path, embeddings, bad)
        if len(pieces) > 1:
            say(
                f"piece {number + 1} of {len(pieces)}: {len(items) - len(bad)} embeddings",
                error=True,
            )
    return []


def joined(
    pieces: Sequence[Piece], num_items: int, meta: Mapping[str, str]
) -> tuple[Embeddings, list[Bad]]:
    """The embeddings of all pieces in their order, and all unreadable items."""
    bad = [item for _, unreadable in pieces for item in unreadable]
    readable = [embeddings for embeddings, _ in pieces if embeddings is not None]
    refuse_diverged(bad, sum(len(embeddings.ids) for embeddings in readable))
    if not readable:
        raise LikenessError(
            f"none of {num_items} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    ids = tuple(name for embeddings in readable for name in embeddings.ids)
    matrix = np.concatenate([embeddings.matrix for embeddings in readable])
    return Embeddings(ids, matrix, meta), bad


def with_flip(model: Loaded, flip: Flip) -> Loaded:
    """Return the model joining each image's embedding with that of its mirror image.

    The metadata of the embeddings says how ("flip").

    Raises:
        LikenessError: The model is of speech, or there is no such way of joining.
    """
    if flip not in get_args(Flip):
        raise LikenessError(f"flip {flip!r}: choose one of {', '.join(get_args(Flip))}")
    if flip == "none":
        return model
    if model.modality == "speaker":
        raise LikenessError(
            f"flip {flip!r} is for images; this is a model of modality {model.modality!r}: leave "
            "it out"
        )
    settings = {**model.settings, "flip": flip}
    return replace(model, embedder=model.embedder.flipped(flip), settings=settings)


def ijb_pack(model: Loaded, root: Path) -> tuple[Loaded, list[Item]]:
    """Return the model reading the faces of an IJB pack, and these faces.

    They are aligned by the pack's landmarks to the size that the model takes
    (modalities/face/ijb.py).

    Raises:
        LikenessError: The model is of something else than faces, or of faces that cannot be aligned
            to its size; and as `modalities.face.ijb.pack`.
    """
    from modalities.face import ijb

    if model.modality != "face":
        raise LikenessError(
            f"--ijb is for models of faces; this is one of modality {model.modality!r}"
        )
    refuse_other_reading(model, "--ijb")
    height, width = aligned_size(model)
    pack = ijb.pack(root)
    read = partial(ijb.read, landmarks=str(pack.landmarks), size=height, width=width)
    faces = f"aligned to {height} x {width} by the pack's 5 landmarks"
    return replace(model, read=read, settings={**model.settings, "faces": faces}), list(pack.items)


def finish(out: Path) -> None:
    """Remove the pieces, after the result was written."""
    folder = _folder(out)
    if processes.is_main() and folder.is_dir():
        with suppress(Busy), only_writer(folder):  # who works there now finishes by itself
            shutil.rmtree(folder, ignore_errors=True)


def _folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.shards")


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _prepare(folder: Path, plan: dict[str, str | int], num_pieces: int) -> None:
    """Make the folder, or go on in it."""
    file = folder / "plan.json"
    if file.is_file():
        before = json_object(file)
        if before != plan:
            differ = ", ".join(sorted(key for key in plan if before.get(key) != plan[key]))
            raise LikenessError(
                f"{folder} holds pieces of another extraction ({differ} differ); remove that "
                "folder or choose another --out"
            )
        done = len(list(folder.glob("??????.npz")))
        say(f"going on in {folder}: {done} of {num_pieces} pieces are there", error=True)
        return
    # The removal of earlier pieces was stopped: without a plan nobody knows of what they are.
    empty(folder)
    with atomic_path(file) as partial_path:
        partial_path.write_text(json.dumps(plan) + "\n", encoding="utf-8")


def write_piece(path: Path, embeddings: Embeddings | None, bad: list[Bad], **further: str) -> None:
    """Write one piece; without a readable item, an empty one. `further` joins its metadata."""
    readable = embeddings or Embeddings((), np.zeros((0, 1), np.float32), {})
    meta = {"bad": json.dumps(bad), **further}
    files.write(path, Embeddings(readable.ids, readable.matrix, meta))


def read_piece(path: Path) -> tuple[Embeddings | None, list[Bad], Mapping[str, str]]:
    """Return one piece, and its metadata.

    Raises:
        LikenessError: It is damaged.
    """
    embeddings = files.read(path)
    try:
        bad = [Bad(*fields) for fields in json.loads(embeddings.meta["bad"])]
    except (KeyError, TypeError, ValueError) as error:
        raise LikenessError(f"{path}: it is no piece of an extraction ({error!r})") from None
    return embeddings if embeddings.ids else None, bad, embeddings.meta
