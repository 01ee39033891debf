"""`likeness retrieve`: a file of embeddings and its labels become a table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    EMBEDDINGS,
    EXISTING,
    JsonFile,
    MediaFiles,
    QualityMeasured,
    ReportFolder,
    Resamples,
    SearchPage,
    Similarity,
    refuse_input_as_output,
    search_page,
    write_search,
)
from toolkit.console import say

if TYPE_CHECKING:
    from eval.protocols.retrieval import RetrievalSettings

app = typer.Typer()


@app.command(
    epilog="Example: likeness retrieve --embeddings embeddings.npz --labels labels.txt --json "
    "results.json"
)
def retrieve(
    context: typer.Context,
    embeddings: Annotated[
        Path,
        typer.Option(
            help="The embeddings of the queries. Each searches all others, or --gallery.",
            **EMBEDDINGS,
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="Lines `id label` (default: the first folder of the ids).", **EXISTING),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="The embeddings to search in.", **EMBEDDINGS)
    ] = None,
    gallery_labels: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id label` of the gallery (default: those of --labels).", **EXISTING
        ),
    ] = None,
    similarity: Similarity = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k", help="The K of recall@K. It may be given several times (default: 1, 2, 4 and 8)."
        ),
    ] = None,
    lone: Annotated[
        Literal["exclude", "zero", "error"],
        typer.Option(
            help="What becomes of queries without any relevant item: they are left out, count as "
            "0, or are an error."
        ),
    ] = "exclude",
    approximate: Annotated[
        Literal["ivf", "hnsw"] | None,
        typer.Option(
            help="Measure recall@K alone from approximate neighbours of FAISS: inverted lists or "
            "a graph. The error is measured on 1,000 queries, and printed."
        ),
    ] = None,
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

    refuse_input_as_output(context, "json_file")
    settings = RetrievalSettings(
        similarity=similarity,
        ks=tuple(k or (1, 2, 4, 8)),
        lone=lone,
        num_resamples=resamples,
        quality=None if quality is None else quality_of(quality),
    )
    say(
        retrieve_files(
            embeddings,
            labels,
            settings,
            gallery=gallery,
            gallery_labels=gallery_labels,
            approximate=approximate,
            json_file=json_file,
            page=search_page(report, media, str(context.obj)),
        )
    )


def retrieve_files(
    embeddings: Path,
    labels: Path | None = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: Path | None = None,
    gallery_labels: Path | None = None,
    approximate: str | None = None,
    json_file: Path | None = None,
    page: SearchPage | None = None,
) -> str:
    """Measure retrieval in a file of embeddings, with bootstrap intervals over classes.

    Args:
        embeddings: Of the queries.
        labels: Lines `id label`. By default the label is the first path component of the id.
        settings: How queries search and what is measured.
        gallery: Embeddings that are searched instead of the queries themselves.
        gallery_labels: Lines `id label` of the gallery, by default `labels`.
        approximate: Neighbours come from an index of FAISS, a name of
            `toolkit.gallery.faiss.KINDS`.
        json_file: Results in schema "likeness.results/1".
        page: The page to write, if any.

    Returns:
        The table as text.

    Raises:
        LikenessError: As in reading and in `eval.protocols.retrieval.retrieve`.
    """
    from eval.formats.embeddings import read
    from eval.formats.subjects import read_mapping
    from eval.protocols import retrieval
    from likeness.searching import SearchEvaluation

    if gallery is None and gallery_labels is not None:
        raise LikenessError(
            f"gallery labels {gallery_labels} without a gallery; give its embeddings too"
        )
    neighbours = None
    if approximate is not None:
        from toolkit.gallery.faiss import approximate_recall

        neighbours = approximate_recall(approximate)
    queries, searched = read(embeddings), read(gallery) if gallery else None
    of_queries = read_mapping(labels) if labels else None
    of_gallery = read_mapping(gallery_labels) if gallery_labels else None
    retrieved = retrieval.retrieve(
        queries,
        of_queries,
        settings or retrieval.RetrievalSettings(),
        gallery=searched,
        gallery_labels=of_gallery,
        system=embeddings.stem,
        labels_from=labels.name if labels else "",
        approximate=neighbours,
    )
    side = None if searched is None else (searched, of_gallery or of_queries)
    evaluation = SearchEvaluation(retrieved, (queries, of_queries), side)
    return write_search(evaluation, [embeddings, labels, gallery, gallery_labels], json_file, page)
