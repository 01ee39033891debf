"""`likeness embed`: a model and a list of items become a file of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import options
from likeness.commands.options import output_file
from likeness.eval.errors import LikenessError


def reading(
    flip: Annotated[
        Literal["none", "sum", "mean", "concat"],
        typer.Option(help="For images: how the embedding is joined with that of the mirror image."),
    ] = "none",
    faces: options.FacesTaken = "central",
    crops: Annotated[
        int, typer.Option(min=0, help="For speech: the mean of so many crops of 4 s.")
    ] = 0,
    chunk_seconds: Annotated[
        float, typer.Option(min=0, help="For speech: the mean of chunks of so many seconds.")
    ] = 0.0,
    only_speech: Annotated[
        bool, typer.Option("--only-speech", help="For speech: leave out pauses, by their energy.")
    ] = False,
) -> None:
    """How a model reads an item."""


def sharing(
    batch_size: Annotated[
        int, typer.Option(min=1, help="How many inputs make a batch; this changes no embedding.")
    ] = 16,
    workers: options.Workers = 0,
    ray: Annotated[
        str | None, typer.Option(help="Embed on a Ray cluster: auto, or the address of its head.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="I/N", help="Embed part I of N of the list.")
    ] = None,
) -> None:
    """How the work is divided."""


@options.app.command(
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out "
    "embeddings.npz; likeness embed --join part-*.npz --out embeddings.npz"
)
@options.with_options(options.listing, reading, options.loading, sharing)
def embed(
    context: typer.Context,
    out: Annotated[Path, output_file("The file to write: .npz, .ark (with .scp) or .parquet.")],
    model: options.ModelName = None,
    items: Annotated[
        Path | None, typer.Option(help="A folder, a list or a table of items.", exists=True)
    ] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(help="Embed the faces of IJB-B or IJB-C in this folder.", **options.PACK),
    ] = None,
    bad_items: Annotated[
        Literal["skip", "refuse"],
        typer.Option(help="Unreadable items are left out and named, or nothing is written."),
    ] = "skip",
    join: Annotated[bool, typer.Option("--join", help="Join what --part wrote.")] = False,
    parts: Annotated[
        list[Path] | None, typer.Argument(help="The files to --join.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Embed every item of a list, and write raw vectors with their norms.

    `likeness score` and other systems read them. A long list is embedded in pieces, and the same
    command goes on where it was stopped. Several processes of one machine share the work when the
    command is started by torchrun: torchrun --nproc-per-node N -m likeness embed ... Several
    machines share it by --ray, or as a job array by --part.
    """
    from likeness.eval.formats import embeddings

    embeddings.check_suffix(out)
    skips_bad = bad_items == "skip"
    if join or parts:
        if not (join and parts) or model is not None or items is not None or ijb is not None:
            raise LikenessError("--join takes the files of all parts and --out, and nothing else")
        from likeness.embedding.extraction import join_parts, write

        write(join_parts(parts), out, {}, skips_bad=skips_bad)
        return
    if model is None or (items is None) == (ijb is None):
        raise LikenessError("embed needs --model, and --items LIST or --ijb FOLDER, one of them")
    from likeness.embedding.extraction import embed_files
    from likeness.models.reading import Reading

    given = options.arguments_of(context, embed_files)
    embed_files(reading=options.settings_of(context, Reading), skips_bad=skips_bad, **given)
