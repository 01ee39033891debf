"""Embeddings of long lists: in shards that are finished one by one, by any number of processes, and
joined in the list's order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from eval.formats import embeddings as files
from eval.formats.files import atomic_path
from eval.formats.provenance import digest
from eval.types import Embeddings
from likeness.models.load import aligned_size
from modalities.face import ijb
from toolkit.console import console
from toolkit.data.batch import Bad, Item, check_unique
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import (
    NO_NUMBERS,
    Flip,
    TorchEmbedder,
    embed_where_readable,
    refuse_diverged,
)
from toolkit.parallel import distributed
from toolkit.training.lock import Busy, empty, only_writer

SHARD_ITEMS = 8192
_CLEAR = (
    1000  # embeddings that are no numbers: enough to stop for, if they are most of those so far
)


def extract(
    model: Loaded,
    items: Sequence[Item],
    out: Path,
    *,
    batch_size: int = 16,
    workers: int = 0,
    shard_items: int = SHARD_ITEMS,
    progress: bool = False,
) -> tuple[Embeddings, list[Bad]] | None:
    """Embed all readable items; the unreadable ones come back with their reasons.

    None in all processes but the first.

    Items are cut into shards of shard_items, whatever the number of processes, so that the result
    is the same for any number of them. Every finished shard is a file in the folder OUT.shards,
    where a run that was stopped finds it again if model and items are the same; others are refused.
    The caller writes the result and then calls `finish`. ValueError if no item can be read,
    Diverged if most embeddings are NaN or infinite, Busy while another process writes into the
    folder.
    """
    check_unique(items, "items to embed")  # before the work, not after it
    with ExitStack() as held:
        return _extract(
            model,
            items,
            _folder(out),
            held,
            batch_size=batch_size,
            workers=workers,
            shard_items=shard_items,
            progress=progress,
        )


def _extract(
    model: Loaded,
    items: Sequence[Item],
    folder: Path,
    held: ExitStack,
    *,
    batch_size: int,
    workers: int,
    shard_items: int,
    progress: bool,
) -> tuple[Embeddings, list[Bad]] | None:
    """held: gets the folder's lock, if there is a folder."""
    shards = [items[start : start + shard_items] for start in range(0, len(items), shard_items)]
    listed = digest([f"{item.id}\0{item.path}\0{item.span}" for item in items])
    plan: dict[str, str | int] = {
        "model": model.digest,
        "items": listed,
        "settings": json.dumps(dict(model.settings)),
        "shard_items": shard_items,
    }
    distributed.agree(**plan)

    def prepare() -> None:
        if len(shards) > 1 or distributed.world() > 1 or folder.is_dir():
            held.enter_context(only_writer(folder))
            _prepare(folder, plan, len(shards))

    distributed.on_main(prepare)
    num_finite, no_numbers = 0, list[Bad]()
    found: list[tuple[Embeddings | None, list[Bad]]] = []
    for number, shard in enumerate(shards):
        path = folder / f"{number:06d}.npz"
        if number % distributed.world() == distributed.rank() and not path.is_file():
            made = embed_where_readable(
                model.embedder,
                shard,
                model.read,
                batch_size=batch_size,
                workers=workers,
                progress=progress,
                part=True,
            )
            num_finite += 0 if made[0] is None else len(made[0].ids)
            no_numbers += [one for one in made[1] if one.reason == NO_NUMBERS]
            if len(no_numbers) >= _CLEAR:
                refuse_diverged(no_numbers, num_finite)
            if len(shards) == 1 and distributed.world() == 1:
                found.append(made)  # nothing that a next call could go on from
            else:
                _write(path, *made)
                if len(shards) > 1:
                    console.print(
                        f"shard {number + 1} of {len(shards)}: {len(shard) - len(made[1])} "
                        "embeddings"
                    )
    distributed.wait()
    if not distributed.is_main():
        return None
    found = found or [_read(folder / f"{number:06d}.npz") for number in range(len(shards))]
    bad = [one for _, unreadable in found for one in unreadable]
    parts = [part for part, _ in found if part is not None]
    refuse_diverged(bad, sum(len(part.ids) for part in parts))
    if not parts:
        raise ValueError(
            f"none of {len(items)} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    return Embeddings(
        tuple(id for part in parts for id in part.ids),
        np.concatenate([part.matrix for part in parts]),
        model.meta,
    ), bad


def with_flip(model: Loaded, flip: Flip) -> Loaded:
    """The model joining each image's embedding with that of its mirror image; the embeddings' meta
    says how ("flip"). ValueError: speech, unknown flip.
    """
    if flip not in get_args(Flip):
        raise ValueError(f"flip {flip!r}: choose one of {', '.join(get_args(Flip))}")
    if flip == "none":
        return model
    if model.modality == "speaker":
        raise ValueError(
            f"flip {flip!r} is for images; this is a model of modality {model.modality!r}: leave "
            "it out"
        )
    one = model.embedder
    embedder = TorchEmbedder(one.frontend, one.backbone, features=one.features, flip=flip)
    return replace(
        model, embedder=embedder.train(one.training), settings={**model.settings, "flip": flip}
    )


def ijb_pack(model: Loaded, root: Path) -> tuple[Loaded, list[Item]]:
    """The faces of an IJB pack (modalities/face/ijb.py), and the model reading them aligned by the
    pack's landmarks to the size that it takes.

    ValueError for a model of something else than faces, or of faces that cannot be aligned to its
    size; errors of modalities.face.ijb.pack.
    """
    if model.modality != "face":
        raise ValueError(
            f"--ijb is for models of faces; this is one of modality {model.modality!r}"
        )
    height, width = aligned_size(model)
    pack = ijb.pack(root)
    read = partial(ijb.read, landmarks=str(pack.landmarks), size=height, width=width)
    return replace(
        model,
        read=read,
        settings={
            **model.settings,
            "faces": f"aligned to {height} x {width} by the pack's 5 landmarks",
        },
    ), list(pack.items)


def finish(out: Path) -> None:
    """Remove the shards, after the result was written."""
    folder = _folder(out)
    if distributed.is_main() and folder.is_dir():
        with suppress(Busy), only_writer(folder):  # who works there now finishes by itself
            shutil.rmtree(folder, ignore_errors=True)


def _folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.shards")


def _prepare(folder: Path, plan: dict[str, str | int], num: int) -> None:
    """Make the folder, or go on in it."""
    file = folder / "plan.json"
    if file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != plan:
            differ = ", ".join(sorted(key for key in plan if before.get(key) != plan[key]))
            raise ValueError(
                f"{folder} holds shards of another extraction ({differ} differ); remove that "
                "folder or choose another --out"
            )
        done = len(list(folder.glob("??????.npz")))
        console.print(f"going on in {folder}: {done} of {num} shards are there")
        return
    empty(
        folder
    )  # without a plan nobody knows what the shards there are of: their removal was stopped
    with atomic_path(file) as partial_path:
        partial_path.write_text(json.dumps(plan) + "\n", encoding="utf-8")


def _write(path: Path, part: Embeddings | None, bad: list[Bad]) -> None:
    """One shard; without a readable item, an empty one."""
    kept = part or Embeddings((), np.zeros((0, 1), np.float32), {})
    files.write(path, Embeddings(kept.ids, kept.matrix, {"bad": json.dumps(bad)}))


def _read(path: Path) -> tuple[Embeddings | None, list[Bad]]:
    part = files.read(path)
    return part if part.ids else None, [Bad(*one) for one in json.loads(part.meta["bad"])]
