"""The files of `likeness identify`: embeddings and subjects become a table and JSON."""

from __future__ import annotations

from pathlib import Path

from eval import results as report
from eval.formats import embeddings
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping
from eval.protocols.identification import IdentificationSettings, identify


def identify_files(
    gallery: Path,
    probes: Path,
    settings: IdentificationSettings | None = None,
    *,
    gallery_subjects: Path | None = None,
    probe_subjects: Path | None = None,
    second_gallery: Path | None = None,
    json_file: Path | None = None,
) -> str:
    """Searches every probe in the gallery.

    Args:
        gallery: Embeddings to search in.
        probes: Embeddings to search for.
        settings: How they are searched and what is measured.
        gallery_subjects: `id subject` lines, else the first path component of the ids; several
            templates of one subject count by the best score.
        probe_subjects: The same of the probes.
        second_gallery: A gallery apart (G2 of IJB), whose subjects `gallery_subjects` has too.
        json_file: Results in the schema of docs/protocols.md.

    Returns:
        Rank-k and TPIR@FPIR as a table.

    Raises:
        ValueError: As in reading and in `eval.protocols.identification.identify`.
    """
    galleries = [gallery, *([second_gallery] if second_gallery else [])]
    identified = identify(
        [embeddings.read(path) for path in galleries],
        embeddings.read(probes),
        settings or IdentificationSettings(),
        gallery_subjects=read_mapping(gallery_subjects) if gallery_subjects else None,
        probe_subjects=read_mapping(probe_subjects) if probe_subjects else None,
    )
    if json_file:
        lists = [path for path in (gallery_subjects, probe_subjects) if path]
        inputs = {str(path): sha256(path) for path in [*galleries, probes, *lists]}
        report.write_json(json_file, identified.results, inputs)
    return identified.table()
