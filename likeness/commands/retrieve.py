"""`likeness retrieve`: a file of embeddings and its labels become a table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file


@options.app.command(
    epilog="Example: likeness retrieve --embeddings embeddings.npz --labels labels.txt --json "
    "results.json"
)
@options.with_options(options.reporting, options.showing)
def retrieve(
    context: typer.Context,
    embeddings: Annotated[
        Path, input_file("The embeddings of the queries. Each searches all others, or --gallery.")
    ],
    labels: Annotated[
        Path | None, input_file("Lines `id label` (default: the first folder of the ids).")
    ] = None,
    gallery: Annotated[Path | None, input_file("The embeddings to search in.")] = None,
    similarity: options.Similarity = None,
    ks: Annotated[
        list[int] | None,
        typer.Option("--k", help="A K of recall@K (default: 1, 2, 4 and 8)."),
    ] = None,
    quality: options.QualityMeasured = None,
) -> None:
    """Measure recall@K, R-precision and MAP@R of retrieval, with intervals over classes.

    The search takes about 250 MB beside the embeddings and their ids, whatever their number.
    """
    import likeness
    from likeness.eval.formats.subjects import quality_by_id

    measured = None if quality is None else quality_by_id(quality)
    settings = options.settings_of(context, likeness.RetrievalSettings, quality=measured)
    evaluation = likeness.retrieve(embeddings, labels, settings, gallery=gallery)
    options.write_evaluation(context, evaluation)
