"""`likeness embed`: a model and a list of items become a file of embeddings."""

from __future__ import annotations

import os
from dataclasses import dataclass
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
    placed,
    print_bad,
)
from likeness.defaults import LEASE_MINUTES, PIECE_ITEMS
from likeness.missing import refuse_missing_files, refuse_missing_folder, refuse_missing_model
from toolkit.console import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.data.items import Item
    from toolkit.models.loaded import Loaded

app = typer.Typer()


@dataclass(frozen=True)
class Source:
    """What is embedded: the items of a list, or the faces of an IJB pack.

    Attributes:
        items: The list, table or folder.
        root: Where relative paths of the list start.
        ijb: The folder of the pack.
        columns: Which column of a table is which.
    """

    items: Path | None
    root: Path | None
    ijb: Path | None
    columns: str = ""


@dataclass(frozen=True)
class Reading:
    """How the model is loaded, and reads an item. Attributes are options of the same names."""

    frontend: Literal["wespeaker", "3dspeaker"]
    detector: Path | None
    flip: Literal["none", "sum", "mean", "concat"]
    crops: int
    crop_seconds: float
    chunk_seconds: float
    only_speech: bool
    trust: Sequence[str] = ()


@dataclass(frozen=True)
class Sharing:
    """How the work is shared with other machines.

    Attributes:
        place: The folder or bucket of the pieces.
        piece_items: How many items make a piece.
        lease_minutes: How long a worker may give no sign of life.
        batch_size: How many inputs pass through the network at once.
        workers: How many processes of this machine read files.
    """

    place: str
    piece_items: int
    lease_minutes: float
    batch_size: int
    workers: int


@app.command(
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out "
    "embeddings.npz; "
    "likeness embed --model runs/ms1mv2 --ijb IJBC --flip concat --workers 8 --batch-size 64 --out "
    "ijbc.npz; likeness embed --model runs/an4 --items list.txt --pieces s3://bucket/an4"
)
def embed(
    model: Annotated[
        str,
        typer.Option(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID, insightface:PATH, own.py[:NAME] or an .onnx file."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write: .npz, .ark (with .scp), .parquet or .h5, or a LanceDB table "
            "lancedb:DIR/TABLE. It may be left out with --pieces.",
            parser=placed,
            metavar="FILE",
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
    pieces: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="A folder that all machines see, or s3://BUCKET/NAME or gs://BUCKET/NAME. Any "
            "number of machines run this command with the same PLACE, model and items, and share "
            "the work in pieces that lie there. With --out the command waits for the others and "
            "writes the whole; without it, it ends when no piece is left to begin.",
        ),
    ] = None,
    piece_items: Annotated[
        int, typer.Option(min=1, help="With --pieces: how many items make a piece.")
    ] = PIECE_ITEMS,
    lease: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="MINUTES",
            help="With --pieces: after so long without a sign of life, the piece of a worker goes "
            "to another.",
        ),
    ] = LEASE_MINUTES,
    trust: Trust = None,
) -> None:
    """Embed every item of a list, and write raw vectors with their norms.

    `likeness score` and other systems read them. A long list is embedded in parts, and the same
    command goes on where it was stopped. Several processes share the work when the command is
    started by torchrun: torchrun --nproc-per-node N -m likeness embed ... Many machines without
    a common network share the work by --pieces.
    """
    source = Source(items, root, ijb, ",".join(columns or ()))
    _refuse_early(source, out, detector, bad_items, pieces)
    refuse_missing_model(model)
    parts = (crops, crop_seconds, chunk_seconds, only_speech)
    reading = Reading(frontend, detector, flip, *parts, trust=trust or ())
    skips_bad = bad_items == "skip"
    if pieces is not None:
        sharing = Sharing(pieces, piece_items, lease, batch_size, workers)
        share_files(model, source, out, reading, sharing, skips_bad=skips_bad)
        return
    assert out is not None
    embed_files(
        model,
        source,
        out,
        reading,
        skips_bad=skips_bad,
        batch_size=batch_size,
        workers=workers,
    )


def _refuse_early(
    source: Source, out: Path | None, detector: Path | None, bad_items: str, pieces: str | None
) -> None:
    """Refuse what can be refused without torch, before the work and not after it."""
    from eval.formats import embeddings

    if out is not None:
        embeddings.check_suffix(out)
        refuse_missing_folder(out)
    elif pieces is None:
        raise LikenessError("embed needs --out FILE, or --pieces PLACE where many machines work")
    if pieces is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise LikenessError(
            "--pieces needs no torchrun: start the command once for each GPU, with "
            "CUDA_VISIBLE_DEVICES"
        )
    if (source.items is None) == (source.ijb is None):
        raise LikenessError("embed needs --items LIST or --ijb FOLDER, one of them")
    if source.ijb is not None and detector is not None:
        raise LikenessError(
            "--detector finds faces in photographs, and --ijb aligns them by its own landmarks; "
            "leave one out"
        )


def embed_files(
    model: str,
    source: Source,
    out: Path,
    reading: Reading,
    *,
    skips_bad: bool,
    batch_size: int,
    workers: int,
) -> None:
    """Embed every item of a source and write the embeddings. The first process says what was done.

    Args:
        model: A MODEL of `likeness.models.load`.
        source: What is embedded.
        out: The file of embeddings.
        reading: How the model reads an item.
        skips_bad: Whether unreadable items are left out; otherwise they are refused.
        batch_size: How many inputs pass through the network at once.
        workers: How many processes read files.

    Raises:
        LikenessError: Items are refused; and as in reading, loading and `likeness.extract.extract`.
            No embeddings are written then.
    """
    # These are slow to import, so that what can be refused without them was refused before.
    from eval.formats import embeddings
    from likeness import extract
    from toolkit.parallel import processes

    loaded, items = _loaded(model, source, out, reading, skips_bad)
    loaded.embedder.to_device(processes.start())
    extracted = extract.extract(loaded, items, out, batch_size=batch_size, workers=workers)
    if extracted is None:  # another process than the first
        processes.end()
        return
    embedded, bad = extracted
    print_bad(bad, f"items; `embed` names the first {NUM_NAMED}")
    if bad and not skips_bad:
        extract.finish(out)
        raise LikenessError(
            f"{len(bad)} of {len(items)} items cannot be read; nothing was written (--bad-items "
            "skip leaves them out)"
        )
    embeddings.write(out, embedded)
    extract.finish(out)
    processes.end()
    say(
        f"{len(embedded.ids)} embeddings of {embedded.matrix.shape[1]} dimensions in {out}"
        + (f"; {len(bad)} unreadable items left out" if bad else "")
    )


def share_files(
    model: str,
    source: Source,
    out: Path | None,
    reading: Reading,
    sharing: Sharing,
    *,
    skips_bad: bool,
) -> None:
    """Make pieces beside other machines, and write the whole where there is a file for it.

    Args:
        model: A MODEL of `likeness.models.load`.
        source: What is embedded.
        out: The file of embeddings; None leaves the joining to another process.
        reading: How the model reads an item.
        sharing: How the work is shared.
        skips_bad: Whether unreadable items are left out; otherwise they are refused at the end.

    Raises:
        LikenessError: As in `embed_files` and `likeness.shared_pieces`.
    """
    from likeness import shared_pieces
    from likeness.commands.options import ending_at_sigterm
    from likeness.commands.pieces import write_joined
    from toolkit.parallel.claims import open_place

    place = open_place(sharing.place)
    loaded, items = _loaded(model, source, out, reading, skips_bad)
    loaded.embedder.to_device("")
    with ending_at_sigterm():
        while True:
            progress = shared_pieces.embed_pieces(
                loaded,
                items,
                place,
                batch_size=sharing.batch_size,
                workers=sharing.workers,
                piece_items=sharing.piece_items,
                lease_minutes=sharing.lease_minutes,
                waits=out is not None,
            )
            if out is None:
                say(f"{place}: {progress}")
                return
            try:
                write_joined(place, out, skips_bad=skips_bad)
                return
            except shared_pieces.Damaged as error:
                say(str(error), error=True)


def _loaded(
    model: str, source: Source, out: Path | None, reading: Reading, skips_bad: bool
) -> tuple[Loaded, Sequence[Item]]:
    """The model, reading as it is asked to, and the items. The list is checked first."""
    from eval.formats import embeddings
    from likeness import extract
    from likeness.models import load

    # Of what a folder holds, the model says what it can read.
    waits = source.items is not None and (
        source.items.is_dir() or source.items.suffix.lower() == ".rttm"
    )
    items: Sequence[Item] = []
    if source.items is not None and not waits:
        items = _items(source, out, None, skips_bad)
    # The faces of IJB are aligned by its landmarks, not by a detector.
    detector: Path | Literal[False] | None = False if source.ijb is not None else reading.detector
    loaded = load.in_parts(
        load.load_to_embed(
            model, detector=detector, frontend=reading.frontend, trust=reading.trust
        ),
        crops=reading.crops,
        crop_seconds=reading.crop_seconds,
        chunk_seconds=reading.chunk_seconds,
        only_speech=reading.only_speech,
    )
    if waits:
        items = _items(source, out, loaded.modality, skips_bad)
    if source.ijb is not None:
        loaded, items = extract.ijb_pack(loaded, source.ijb)
        if out is not None:
            embeddings.check_ids(out, [item.id for item in items])
    return extract.with_flip(loaded, reading.flip), items


def _items(
    source: Source, out: Path | None, modality: str | None, skips_bad: bool
) -> Sequence[Item]:
    """The items of the source, checked as far as they can be without reading them.

    modality: What the model takes; None where it is not known yet.
    """
    from eval.formats import embeddings
    from likeness.inputs import suffixes_of
    from toolkit.data.listing import list_items

    assert source.items is not None
    kinds = ("speaker", "image") if modality is None else (modality,)
    items = list_items(
        source.items,
        suffixes=[suffix for kind in kinds for suffix in suffixes_of(kind)],
        columns=source.columns,
        root=source.root,
        missing="leave",
    )
    if out is not None:
        embeddings.check_ids(out, [item.id for item in items])
    refuse_missing_files([item.path for item in items], allow_some=skips_bad)
    return items
