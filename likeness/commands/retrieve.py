"""The files of `likeness retrieve`: embeddings and labels become a table and JSON."""

from __future__ import annotations

from pathlib import Path

from eval.formats import embeddings as embedding_files
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping
from eval.protocols.retrieval import RetrievalSettings, retrieve
from eval.results import write_json


def retrieve_files(
    embeddings: Path,
    labels: Path | None = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: Path | None = None,
    gallery_labels: Path | None = None,
    json_file: Path | None = None,
) -> str:
    """Retrieval metrics of an embedding file with bootstrap intervals over classes.

    Args:
        embeddings: Of the queries.
        labels: Lines `id label`, else the first path component of the ids.
        settings: How queries search and what is measured.
        gallery: Embeddings that are searched instead of the queries themselves.
        gallery_labels: Lines `id label` of the gallery, by default `labels`.
        json_file: Results in schema "likeness.results/1".

    Returns:
        The table as text.

    Raises:
        ValueError: As in reading and in `eval.protocols.retrieval.retrieve`.
    """
    if gallery is None and gallery_labels is not None:
        raise ValueError(
            f"gallery labels {gallery_labels} without a gallery; give its embeddings too"
        )
    retrieved = retrieve(
        embedding_files.read(embeddings),
        read_mapping(labels) if labels else None,
        settings or RetrievalSettings(),
        gallery=embedding_files.read(gallery) if gallery else None,
        gallery_labels=read_mapping(gallery_labels) if gallery_labels else None,
        system=embeddings.stem,
        labels_from=labels.name if labels else "",
    )
    if json_file:
        files = [path for path in (embeddings, labels, gallery, gallery_labels) if path]
        write_json(json_file, retrieved.results, {str(path): sha256(path) for path in files})
    return retrieved.table()
