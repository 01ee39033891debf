"""`likeness identify`: embeddings and their subjects become a table and JSON.

With --ijb the work is done by likeness/ijb.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    PACK,
    PRESET,
    SWITCH,
    JsonFile,
    MediaFiles,
    ReportFolder,
    Resamples,
    Similarity,
    SubjectLines,
    input_file,
    refuse_beside_ijb,
    write_search,
)
from toolkit.console import say

app = typer.Typer()


@app.command(
    epilog="Examples: likeness identify --gallery gallery.npz --probes probes.npz --fpir 0.01 "
    "--json results.json; "
    "likeness identify --probes ijbc.npz --ijb IJBC --preset insightface"
)
def identify(
    context: typer.Context,
    probes: Annotated[
        Path, input_file("The embeddings to search for, or with --ijb those of all its faces.")
    ],
    gallery: Annotated[Path | None, input_file("The embeddings to search in.")] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(help="The folder of IJB-B or IJB-C, whose 1:N protocol is evaluated.", **PACK),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    gallery_subjects: SubjectLines = None,
    probe_subjects: SubjectLines = None,
    second_gallery: Annotated[
        Path | None,
        input_file("A second gallery, such as G2 of IJB. Open-set rates are the mean over both."),
    ] = None,
    fpir: Annotated[
        list[float] | None,
        typer.Option(help="A false-positive identification rate (default: .01 and .1)."),
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(help="A K of rank-K (default: 1, 5 and 10)."),
    ] = None,
    similarity: Similarity = None,
    protocol: Annotated[
        Literal["open", "closed"],
        typer.Option(
            help="open takes the threshold from non-mated probes; closed is the variant of SimPLE "
            "and OpenSphere."
        ),
    ] = "open",
    resamples: Resamples = 1000,
    json_file: JsonFile = None,
    report: ReportFolder = None,
    media: MediaFiles = None,
) -> None:
    """Search every probe in a gallery, and measure rank-K and open-set TPIR@FPIR.

    The search takes about 150 MB beside the embeddings and their ids, whatever their number.
    """
    if (gallery is None) == (ijb is None):
        raise LikenessError("identify needs --gallery FILE or --ijb FOLDER, one of them")
    refuse_beside_ijb(context, ijb, "probes", "fpir", "rank")
    from eval.protocols.identification import IdentificationSettings

    settings = IdentificationSettings(
        similarity=similarity,
        fpirs=tuple(fpir or (0.01, 0.1)),
        ranks=tuple(rank or (1, 5, 10)),
        protocol=protocol,
        num_resamples=resamples,
    )
    if ijb is not None:
        from likeness import ijb as pack

        presets = pack.read_presets(preset, switch)
        say(pack.identify_files(probes, ijb, presets, settings=settings, json_file=json_file))
        return
    from likeness.searching import identify as search

    assert gallery is not None
    evaluation = search(
        gallery,
        probes,
        settings,
        gallery_subjects=gallery_subjects,
        probe_subjects=probe_subjects,
        second_gallery=second_gallery,
    )
    write_search(context, evaluation)
