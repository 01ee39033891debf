"""`likeness identify`: embeddings and their subjects become a table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import options
from likeness.commands.options import input_file
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say


def measuring(
    fpirs: Annotated[
        list[float] | None,
        typer.Option("--fpir", help="A false-positive identification rate (default: .01 and .1)."),
    ] = None,
    ranks: Annotated[
        list[int] | None, typer.Option("--rank", help="A K of rank-K (default: 1, 5 and 10).")
    ] = None,
    similarity: options.Similarity = None,
    protocol: Annotated[
        Literal["open", "closed"],
        typer.Option(
            help="open takes the threshold from non-mated probes; closed is the variant of SimPLE "
            "and OpenSphere."
        ),
    ] = "open",
    terms: options.Terms = "likeness",
) -> None:
    """What is measured, and by which rule."""


@options.app.command(
    epilog="Examples: likeness identify --gallery gallery.npz --probes probes.npz --fpir 0.01 "
    "--json results.json; "
    "likeness identify --probes ijbc.npz --ijb IJBC --preset insightface"
)
@options.with_options(options.packing, measuring, options.reporting, options.showing)
def identify(
    context: typer.Context,
    probes: Annotated[
        Path, input_file("The embeddings to search for, or with --ijb those of all its faces.")
    ],
    gallery: Annotated[Path | None, input_file("The embeddings to search in.")] = None,
    gallery_subjects: options.SubjectLines = None,
    probe_subjects: options.SubjectLines = None,
) -> None:
    """Search every probe in a gallery, and measure rank-K and open-set TPIR@FPIR.

    The search takes about 150 MB beside the embeddings and their ids, whatever their number.
    """
    is_pack = context.params["ijb"] is not None
    if (gallery is None) != is_pack:
        raise LikenessError("identify needs --gallery FILE or --ijb FOLDER, one of them")
    options.refuse_beside_ijb(context, "probes", "fpirs", "ranks")
    import likeness

    settings = options.settings_of(context, likeness.IdentificationSettings)
    if is_pack:
        from likeness.eval.protocols.ijb_packs import identify_files, read_presets

        given = options.arguments_of(context, identify_files)
        presets = read_presets(**options.arguments_of(context, read_presets))
        say(identify_files(presets=presets, settings=settings, **given))
    else:
        given = options.arguments_of(context, likeness.identify)
        options.write_evaluation(context, likeness.identify(settings=settings, **given))
