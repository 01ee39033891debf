"""`likeness retrieve`: a file of embeddings and its labels become a table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import (
    JsonFile,
    MediaFiles,
    QualityMeasured,
    ReportFolder,
    Resamples,
    Similarity,
    input_file,
    write_search,
)

app = typer.Typer()


@app.command(
    epilog="Example: likeness retrieve --embeddings embeddings.npz --labels labels.txt --json "
    "results.json"
)
def retrieve(
    context: typer.Context,
    embeddings: Annotated[
        Path, input_file("The embeddings of the queries. Each searches all others, or --gallery.")
    ],
    labels: Annotated[
        Path | None, input_file("Lines `id label` (default: the first folder of the ids).")
    ] = None,
    gallery: Annotated[Path | None, input_file("The embeddings to search in.")] = None,
    similarity: Similarity = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", help="A K of recall@K (default: 1, 2, 4 and 8)."),
    ] = None,
    lone: Annotated[
        Literal["exclude", "zero", "error"],
        typer.Option(
            help="Queries without any relevant item are left out, count as 0, or are an error."
        ),
    ] = "exclude",
    quality: QualityMeasured = None,
    resamples: Resamples = 1000,
    json_file: JsonFile = None,
    report: ReportFolder = None,
    media: MediaFiles = None,
) -> None:
    """Measure recall@K, R-precision and MAP@R of retrieval, with intervals over classes.

    The search takes about 250 MB beside the embeddings and their ids, whatever their number.
    """
    from eval.protocols.retrieval import RetrievalSettings
    from likeness.files import quality_of
    from likeness.searching import retrieve as search

    settings = RetrievalSettings(
        similarity=similarity,
        ks=tuple(k or (1, 2, 4, 8)),
        lone=lone,
        num_resamples=resamples,
        quality=None if quality is None else quality_of(quality),
    )
    evaluation = search(
        embeddings,
        labels,
        settings,
        gallery=gallery,
    )
    write_search(context, evaluation)
