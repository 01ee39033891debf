"""Embedding files to identification results: the whole of `likeness identify` as one function, and
the results of any search with their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval import results as report
from eval.formats import embeddings
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping
from eval.identification import Protocol
from eval.protocols.search import identified, subjects_of, table
from eval.types import name_first


def identify_files(
    gallery: Path,
    probes: Path,
    *,
    gallery_subjects: Path | None = None,
    probe_subjects: Path | None = None,
    second_gallery: Path | None = None,
    fpirs: Sequence[float] = (1e-2, 1e-1),
    ranks: Sequence[int] = (1, 5, 10),
    similarity: str | None = None,
    protocol: Protocol = "open",
    num_resamples: int = 1000,
    json_file: Path | None = None,
) -> str:
    """Search every probe in the gallery; returns rank-k and TPIR@FPIR as a table.

    gallery, probes: embedding files. gallery_subjects, probe_subjects: `id subject` lines (else the
    first path component of the ids); several templates of one subject count by the best score.
    second_gallery: a gallery apart (IJB's G2), whose subjects gallery_subjects holds too: rank-k
    pools both, open-set TPIR is the mean of both, the closed protocol merges them. similarity: a
    name of eval.similarity (default: what the probes' file says, else cosine).
    protocol: see eval.identification.RULES. json_file: results in the schema of docs/protocols.md.
    Intervals: bootstrap over the subjects of the probes.
    ValueError: ids without a subject, no mated probe, and as for eval.identification. TPIR that
    needs non-mated probes where there are none, and ranks beyond the gallery's subjects, are left
    out with a note.
    """
    files = [gallery] + ([second_gallery] if second_gallery else [])
    enrolled, searched = [embeddings.read(file) for file in files], embeddings.read(probes)
    known = read_mapping(gallery_subjects) if gallery_subjects else None
    subjects = [subjects_of("gallery", one.ids, known) for one in enrolled]
    wanted = subjects_of(
        "probe", searched.ids, read_mapping(probe_subjects) if probe_subjects else None
    )
    stated = {one.meta["similarity"] for one in [searched, *enrolled] if one.meta.get("similarity")}
    if similarity is None and len(stated) > 1:
        raise ValueError(
            f"the embedding files ask for different similarities ({name_first(sorted(stated))}); "
            "embed both with one model, or name one"
        )
    name = similarity or next(iter(stated), "cosine")
    conventions: dict[str, str | float | int] = {
        "similarity": name,
        "subjects_from": "given mapping" if probe_subjects else "first path component of the ids",
        "probes_enrolled_themselves": len(
            set(searched.ids).intersection(*[set().union(*(one.ids for one in enrolled))])
        ),
    }
    found = identified(
        "probes",
        enrolled,
        subjects,
        searched,
        wanted,
        name,
        fpirs,
        ranks,
        protocol,
        conventions,
        num_resamples,
    )
    inputs = {
        str(path): sha256(path)
        for path in [*files, probes, *(one for one in (gallery_subjects, probe_subjects) if one)]
    }
    if json_file:
        report.write_json(json_file, found.results, inputs)
    return table(found)
