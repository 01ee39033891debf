"""`likeness embed`: a model and a list of items become a file. The work is in embed_lists.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    PACK,
    BadItems,
    Columns,
    Frontend,
    ModelDetector,
    ModelName,
    Trust,
    Workers,
    writes,
)

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
            help="The file to write: .npz, .ark (with .scp) or .parquet.",
            metavar="FILE",
            callback=writes(),
        ),
    ],
    model: ModelName = None,
    items: Annotated[
        Path | None,
        typer.Option(
            help="A folder, a list with lines `path` or `id path [label]`, a .csv, .tsv or "
            ".parquet file, a Kaldi folder or an .rttm file.",
            exists=True,
        ),
    ] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C, whose faces are aligned by its landmarks.",
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
        typer.Option(help="For images: how the embedding is joined with that of the mirror image."),
    ] = "none",
    detector: ModelDetector = None,
    workers: Workers = 0,
    frontend: Frontend = "wespeaker",
    crops: Annotated[
        int,
        typer.Option(
            min=0,
            help="For speech: take the mean of so many evenly spaced crops.",
        ),
    ] = 0,
    crop_seconds: Annotated[float, typer.Option(help="The length of a crop in seconds.")] = 4.0,
    chunk_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="For recordings of hours: take the mean of chunks of so many seconds, such as 60.",
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
            help="Embed on all machines of a Ray cluster: auto on one of its machines, otherwise "
            "the address of its head. Paths must be the same on all.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Embed only part I of N of the list, for job arrays. --join joins the files.",
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Join the files that --part wrote, all N of them.")
    ] = False,
    parts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PART...]", help="The files to --join.", exists=True, dir_okay=False
        ),
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
    if join or parts:
        if not (join and parts) or model is not None or items is not None or ijb is not None:
            raise LikenessError("--join takes the files of all parts and --out, and nothing else")
        from likeness.embed_lists import join_files

        join_files(parts, out, skips_bad=skips_bad)
        return
    if model is None or (items is None) == (ijb is None):
        raise LikenessError("embed needs --model, and --items LIST or --ijb FOLDER, one of them")

    # What is slow to import comes after what can be refused without it.
    from likeness.embed_lists import Listing, Sharing, embed_files
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
