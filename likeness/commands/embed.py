"""`likeness embed`: a model and a list of items become a file of embeddings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    EXISTING,
    NUM_NAMED,
    PACK,
    BadItems,
    Columns,
    Frontend,
    Trust,
    print_bad,
)
from likeness.missing import refuse_missing_files, refuse_missing_folder, refuse_missing_model
from toolkit.console import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from likeness.extraction import Piece, Reading
    from toolkit.data.items import Item
    from toolkit.models.loaded import Loaded

app = typer.Typer()


@app.command(
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out "
    "embeddings.npz; "
    "likeness embed --model runs/ms1mv2 --ijb IJBC --flip concat --workers 8 --batch-size 64 --out "
    "ijbc.npz; likeness embed --join part-*.npz --out embeddings.npz"
)
def embed(
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: .npz, .ark (with .scp), .parquet or .h5.",
            metavar="FILE",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID, insightface:PATH, own.py[:NAME] or an .onnx file."
        ),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            help="What is embedded: a folder, a list with one path per line or with lines `id path "
            "[label]`, a .csv, .tsv or .parquet file, a Kaldi folder or an .rttm file.",
            exists=True,
        ),
    ] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C (with meta and loose_crop), instead of a list. "
            "Its faces are aligned by its landmarks.",
            **PACK,
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="The folder that relative paths start from (default: the list's own)."),
    ] = None,
    columns: Columns = None,
    bad_items: BadItems = "skip",
    batch_size: Annotated[
        int, typer.Option(min=1, help="How many inputs make a batch; this changes no embedding.")
    ] = 16,
    flip: Annotated[
        Literal["none", "sum", "mean", "concat"],
        typer.Option(
            help="For images: how the embedding is joined with that of the mirror image. concat "
            "keeps both, which every IJB preset can use."
        ),
    ] = "none",
    detector: Annotated[
        Path | None,
        typer.Option(
            help="For faces: an SCRFD (with landmarks) or YuNet .onnx file. The items are then "
            "photographs, not aligned crops, and the largest face near the centre of each is "
            "aligned. By default the detector of insightface:FOLDER is taken; for aligned crops "
            "name the recognition file, insightface:FOLDER/FILE.onnx.",
            **EXISTING,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="How many processes read files.")] = 0,
    frontend: Frontend = "wespeaker",
    crops: Annotated[
        int,
        typer.Option(
            min=0,
            help="For speech: embed so many evenly spaced crops and take their mean. 0 takes the "
            "whole recording.",
        ),
    ] = 0,
    crop_seconds: Annotated[float, typer.Option(help="The length of a crop in seconds.")] = 4.0,
    chunk_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="For speech: the longest chunk in seconds, such as 60, for recordings of hours. "
            "The embedding is the mean of the chunks. 0 takes the recording whole.",
        ),
    ] = 0.0,
    only_speech: Annotated[
        bool,
        typer.Option(
            "--only-speech", help="For speech: leave out pauses, which are found by their energy."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|ADDRESS",
            help="Embed on all machines of a Ray cluster, which `ray start` made: auto on one of "
            "its machines, otherwise the address of its head. Paths must be the same on all.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Embed only part I of N of the list, 1/N to N/N, for job arrays. --join joins the "
            "files.",
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Join the files that --part wrote, all N of them.")
    ] = False,
    parts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PART...]", help="The files to --join.", **EXISTING),
    ] = None,
    trust: Trust = None,
) -> None:
    """Embed every item of a list, and write raw vectors with their norms.

    `likeness score` and other systems read them. A long list is embedded in pieces, and the same
    command goes on where it was stopped. Several processes of one machine share the work when the
    command is started by torchrun: torchrun --nproc-per-node N -m likeness embed ... Several
    machines share it by --ray, or as a job array by --part.
    """
    from eval.formats import embeddings

    skips_bad = bad_items == "skip"
    embeddings.check_suffix(out)
    refuse_missing_folder(out)
    if join or parts:
        if not (join and parts) or model is not None or items is not None or ijb is not None:
            raise LikenessError("--join takes the files of all parts and --out, and nothing else")
        _join(parts, out, skips_bad=skips_bad)
        return
    if model is None or (items is None) == (ijb is None):
        raise LikenessError("embed needs --model, and --items LIST or --ijb FOLDER, one of them")
    if ijb is not None and detector is not None:
        raise LikenessError(
            "--detector finds faces in photographs, and --ijb aligns them by its own landmarks; "
            "leave one out"
        )
    if ray is not None and (part is not None or int(os.environ.get("WORLD_SIZE", "1")) > 1):
        raise LikenessError("--ray shares the work by itself; leave out --part and torchrun")
    refuse_missing_model(model)

    # What is slow to import comes after what can be refused without it.
    from likeness.extraction import Reading

    ways = (crops, crop_seconds, chunk_seconds, only_speech)
    embed_files(
        model,
        None if items is None else Listing(items, root, ",".join(columns or ())),
        out,
        Reading(frontend, detector, flip, *ways, ijb=ijb, trust=trust or ()),
        Sharing(ray, part, batch_size, workers),
        skips_bad=skips_bad,
    )


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
    from likeness import extraction

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
        found = ray_embedding.embed(load, items, sharing.ray, **sizes)
        _write(found, out, {**loaded.meta, **of_part}, skips_bad=skips_bad)
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
    from likeness import extraction

    return extraction.load(model, reading)[0]


def _items(listing: Listing, modality: str | None) -> Sequence[Item]:
    """The items of a list. modality: What the model takes; None where it is not known yet."""
    from modalities.folders import suffixes_of
    from toolkit.data.listing import list_items

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
    from eval.formats import embeddings
    from likeness import extraction

    of_part: dict[str, str] = {}
    if part is not None:
        items, of_part = extraction.take_part(items, part)
    embeddings.check_ids(out, [item.id for item in items])
    refuse_missing_files([item.path for item in items], allow_some=skips_bad)
    return items, of_part


def _join(parts: Sequence[Path], out: Path, *, skips_bad: bool) -> None:
    """Join the parts of a job array."""
    from likeness.extraction import join_parts

    _write(join_parts(parts), out, {}, skips_bad=skips_bad)


def _write(piece: Piece, out: Path, meta: dict[str, str], *, skips_bad: bool) -> None:
    """Write embeddings, and name the items that have none."""
    from eval.formats import embeddings
    from eval.types import Embeddings
    from likeness.extraction import with_bad

    embedded, bad = piece
    num_items = len(bad) + (0 if embedded is None else len(embedded.ids))
    print_bad(bad, f"items; `embed` names the first {NUM_NAMED}")
    if bad and not skips_bad:
        raise LikenessError(
            f"{len(bad)} of {num_items} items cannot be read; nothing was written (--bad-items "
            "skip leaves them out)"
        )
    if "part" in meta:
        embedded = with_bad(embedded, bad)
    elif embedded is None:
        raise LikenessError(
            f"none of {num_items} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    embeddings.write(out, Embeddings(embedded.ids, embedded.matrix, {**embedded.meta, **meta}))
    say(
        f"{len(embedded.ids)} embeddings of {embedded.matrix.shape[1]} dimensions in {out}"
        + (f"; {len(bad)} unreadable items left out" if bad else "")
    )
