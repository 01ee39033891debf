"""Embed a list of items into a file: on one machine, on a cluster, or one part of a job array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eval.errors import LikenessError
from eval.formats import embeddings
from eval.types import Embeddings
from likeness import extraction
from likeness.extraction import Piece, Reading
from likeness.presence import NUM_NAMED, print_bad, refuse_missing_files
from modalities.folders import suffixes_of
from toolkit.console import say
from toolkit.data.items import Item
from toolkit.data.listing import list_items
from toolkit.models.embed import warn_if_alike
from toolkit.models.loaded import Loaded


@dataclass(frozen=True)
class Listing:
    """A list of items: where it is, where its paths start, and which column of it is which."""

    path: Path
    root: Path | None
    columns: str = ""


@dataclass(frozen=True)
class Sharing:
    """Who embeds what. The attributes are options of `likeness embed`."""

    ray: str | None
    part: str | None
    batch_size: int
    workers: int


def embed_files(
    model: str,
    listing: Listing | None,
    out: Path,
    reading: Reading,
    sharing: Sharing,
    *,
    skips_bad: bool,
) -> None:
    """Embed every item and write the embeddings. The first process says what was done.

    Args:
        model: A MODEL of `likeness.models.load`.
        listing: The items; None for the faces of `reading.ijb`.
        out: The file of embeddings.
        reading: How the model reads an item.
        sharing: On which machines the work is done, and which part of it here.
        skips_bad: Whether unreadable items are left out; otherwise they are refused.

    Raises:
        LikenessError: Items are refused; and as in reading, loading and
            `likeness.extraction.extract`. No embeddings are written then.
    """
    # Of what a folder holds, the model says what it can read. Other lists are checked before it is
    # loaded.
    waits = listing is not None and (
        listing.path.is_dir() or listing.path.suffix.lower() == ".rttm"
    )
    choose = partial(_chosen, out=out, part=sharing.part, skips_bad=skips_bad)
    early = None if listing is None or waits else choose(_items(listing, None))
    loaded, faces = extraction.load(model, reading)
    items, of_part = early or choose(faces if listing is None else _items(listing, loaded.modality))
    sizes = {"batch_size": sharing.batch_size, "workers": sharing.workers}
    if sharing.ray is not None:
        from likeness import ray_embedding

        load = partial(_load_only, model, reading)
        embedded = ray_embedding.embed(load, items, sharing.ray, **sizes)
        _write(embedded, out, {**loaded.meta, **of_part}, skips_bad=skips_bad)
        return
    with extraction.joined_processes() as device:
        loaded.embedder.to_device(device)
        extracted = extraction.extract(loaded, items, out, **sizes)
        if extracted is not None:  # the first process
            try:
                _write(extracted, out, {**loaded.meta, **of_part}, skips_bad=skips_bad)
            except LikenessError:  # items were refused, which may be repaired before the next try
                extraction.finish(out)
                raise
            extraction.finish(out)


def _load_only(model: str, reading: Reading) -> Loaded:
    """The model on a machine of a cluster."""
    return extraction.load(model, reading)[0]


def _items(listing: Listing, modality: str | None) -> Sequence[Item]:
    """The items of a list. modality: What the model takes; None where it is not known yet."""
    kinds = ("speaker", "image") if modality is None else (modality,)
    return list_items(
        listing.path,
        suffixes=[suffix for kind in kinds for suffix in suffixes_of(kind)],
        columns=listing.columns,
        root=listing.root,
        missing="leave",
    )


def _chosen(
    items: Sequence[Item], out: Path, part: str | None, skips_bad: bool
) -> tuple[Sequence[Item], dict[str, str]]:
    """The items to embed, checked without reading them, and what metadata say of their part."""
    of_part: dict[str, str] = {}
    if part is not None:
        items, of_part = extraction.take_part(items, part)
    embeddings.check_ids(out, [item.id for item in items])
    refuse_missing_files([item.path for item in items], allow_some=skips_bad)
    return items, of_part


def join_files(parts: Sequence[Path], out: Path, *, skips_bad: bool) -> None:
    """Join the files that the parts of a job array wrote."""
    _write(extraction.join_parts(parts), out, {}, skips_bad=skips_bad)


def _write(piece: Piece, out: Path, meta: dict[str, str], *, skips_bad: bool) -> None:
    """Write embeddings, and name the items that have none."""
    embedded, bad = piece
    num_items = len(bad) + (0 if embedded is None else len(embedded.ids))
    print_bad(bad, f"items; `embed` names the first {NUM_NAMED}")
    if bad and not skips_bad:
        raise LikenessError(
            f"{len(bad)} of {num_items} items cannot be read; nothing was written (--bad-items "
            "skip leaves them out)"
        )
    if "part" in meta:
        embedded = extraction.with_bad(embedded, bad)
    elif embedded is None:
        raise LikenessError(
            f"none of {num_items} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    warn_if_alike(embedded)
    embeddings.write(out, Embeddings(embedded.ids, embedded.matrix, {**embedded.meta, **meta}))
    say(
        f"{len(embedded.ids)} embeddings of {embedded.matrix.shape[1]} dimensions in {out}"
        + (f"; {len(bad)} unreadable items left out" if bad else "")
    )
