"""Identify and retrieve: search one set of embeddings in another, of files or in memory."""

from __future__ import annotations

from pathlib import Path

from eval.protocols.identification import IdentificationSettings, Identified
from eval.protocols.identification import identify as identify_values
from eval.protocols.retrieval import RetrievalSettings, Retrieved
from eval.protocols.retrieval import retrieve as retrieve_values
from eval.types import Embeddings
from likeness.files import File, Names, embeddings_of, names_of, settings_of


def identify(
    gallery: File | Embeddings,
    probes: File | Embeddings,
    settings: IdentificationSettings | None = None,
    *,
    gallery_subjects: Names | None = None,
    probe_subjects: Names | None = None,
) -> Identified:
    """Search every probe in a gallery: rank-K and open-set TPIR@FPIR.

    Args:
        gallery: embeddings to search in, or a file of them.
        probes: embeddings to search for.
        settings: what is measured and by which rule.
        gallery_subjects: the subject of each id, as an `id subject` list or a mapping. By default
            the first folder of the ids.
        probe_subjects: the same of the probes.

    Returns:
        The results; `.table()` gives them as text.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: ids have no subject, or no probe has a mate.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.identify(embeddings, embeddings).results[0].metric
        'rank_k(1)'
    """
    return identify_values(
        embeddings_of(gallery),
        embeddings_of(probes),
        settings_of(settings, IdentificationSettings),
        gallery_subjects=names_of(gallery_subjects, "gallery_subjects"),
        probe_subjects=names_of(probe_subjects, "probe_subjects"),
    )


def retrieve(
    embeddings: File | Embeddings,
    labels: Names | None = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: File | Embeddings | None = None,
    gallery_labels: Names | None = None,
) -> Retrieved:
    """Search every item among all others: recall@K, R-precision and MAP@R.

    Args:
        embeddings: the queries, or a file of them.
        labels: the class of each id, as an `id label` list or a mapping. By default the first
            folder of the ids.
        settings: what is measured and by which rule.
        gallery: embeddings that are searched instead of the queries themselves.
        gallery_labels: the class of each id of the gallery; by default `labels`.

    Returns:
        The results; `.table()` gives them as text.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: ids have no class, or no query has a relevant item.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.retrieve(embeddings).results[0].metric
        'recall@1'
    """
    return retrieve_values(
        embeddings_of(embeddings),
        names_of(labels, "labels"),
        settings_of(settings, RetrievalSettings),
        gallery=None if gallery is None else embeddings_of(gallery),
        gallery_labels=names_of(gallery_labels, "gallery_labels"),
        system="queries" if isinstance(embeddings, Embeddings) else Path(embeddings).stem,
    )
