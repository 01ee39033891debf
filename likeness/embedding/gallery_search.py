"""Search a stored gallery for files, and group files that nobody has named.

This is what `likeness gallery search` and `likeness gallery cluster` do.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from likeness.embedding import galleries
from likeness.eval.errors import LikenessError, shorten
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.files import File
from likeness.eval.items.items import Item
from likeness.eval.items.listing import is_rttm
from likeness.eval.metrics import clustering
from likeness.eval.metrics.clustering import Clusters, Method
from likeness.eval.metrics.self_matches import itself_text
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.scoring import templates
from likeness.eval.scoring.threshold_files import Rule
from likeness.eval.scoring.thresholds import Thresholds
from likeness.eval.types import counted, name_first, same_items
from likeness.eval.writing import table_text, write_rows
from likeness.models.bundled import resolve_model
from likeness.models.inputs import items_of
from likeness.models.model import Model
from likeness.models.verdicts import no_decision
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.gallery.gallery import By, Gallery, PoolScores


class FoundRow(NamedTuple):
    """One of the subjects that are most similar to a file.

    Attributes:
        probe: The id of the file, or SPEAKER/RECORDING of an RTTM file.
        rank: 1 for the most similar subject.
        subject: The subject; "" where the file cannot be read.
        score: A higher score is more similar.
        accepted: Whether the score reaches the threshold; None without one.
        margin: Of rank 1, how much higher its score is than that of the next subject.
        item: The enrolled file, where items are searched.
        note: Why the file cannot be read; "" if it can.
    """

    probe: str
    rank: int | None = None
    subject: str = ""
    score: float | None = None
    accepted: bool | None = None
    margin: float | None = None
    item: str = ""
    note: str = ""


@dataclass(frozen=True)
class Found:
    """What a search gave.

    Attributes:
        rows: K for each probe, best first.
        similarity: How embeddings were compared.
        threshold: The score from which on a probe is taken for a subject, or None.
        source: Where the threshold comes from; without one, what would give a verdict.
        enrolled: How many subjects the gallery has.
        unit: What the probes are: files, segments or speakers.
    """

    rows: Sequence[FoundRow]
    similarity: str
    threshold: float | None
    source: str
    enrolled: int
    unit: str = "files"

    def __str__(self) -> str:
        """What was done and what it means, in a few lines."""
        probes = {row.probe for row in self.rows}
        bad = [row for row in self.rows if row.note]
        accepted = {row.probe for row in self.rows if row.accepted}
        searched = f"{self.unit} searched: {len(probes) - len(bad):,}; subjects: {self.enrolled:,}"
        if self.threshold is None:
            lines = [searched, f"no verdict: {self.source}"]
        else:
            at = f" at {self.source}" if self.source else ""
            lines = [
                f"{searched}: {len(accepted):,} reach the threshold of somebody, "
                f"{len(probes) - len(bad) - len(accepted):,} do not",
                f"threshold {self.threshold:.4g}{at}",
            ]
        if bad:
            first = name_first(row.probe for row in bad)
            lines.append(
                f"{self.unit} that cannot be read: {len(bad):,} ({first}); the first: {bad[0].note}"
            )
        return "\n".join(lines)

    def text(self) -> str:
        """The rows as a table of text with a head."""
        return table_text(FoundRow._fields, self.rows, ",")

    def save(self, path: Path) -> None:
        """Write the rows to a .csv or .tsv file, whole or not at all."""
        write_rows(path, FoundRow._fields, self.rows)


def search(
    gallery: galleries.Name,
    model: Model,
    data: galleries.Data,
    *,
    k: Annotated[int | None, Option("--k -k", least=1, most=1000)] = None,
    rule: Rule | None = None,
    each: bool = False,
    by: By = "subject",
    num_templates: Annotated[int, Option("--templates", least=1)] = 1,
    pool: PoolScores = "best",
    faces: galleries.Faces = "central",
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
) -> Found:
    """Find the subjects, or the enrolled files, that are most similar to each file.

    The segments of an RTTM file are pooled: what is searched is each speaker of a recording.

    Args:
        gallery: As in `likeness.embedding.galleries.enrol`.
        model: What embeds the files.
        data: As in `likeness.embedding.galleries.enrol`.
        k: How many subjects are found for each file at most (default: 5, or 1 for each speaker of
            an .rttm file).
        rule: What decides whether a file is taken for a subject.
        each: Search each segment of an .rttm file by itself, not each speaker.
        by: What is found: subjects, or the enrolled files one by one.
        num_templates: How many templates each subject has at most. See `Gallery.search`.
        pool: Which score a subject with several templates gets.
        faces: As in `embed`.
        root: As in `likeness.checking.lists.items`.
        columns: As in `likeness.embedding.galleries.enrol`.
        label: As in `likeness.checking.lists.items`.

    Raises:
        LikenessError: Nothing can be read, or there are no segments for `each`.
    """
    unit = "files"
    if is_rttm(data):
        unit = "segments" if each else "speakers"
    elif each:
        raise LikenessError(f"{data}: only an .rttm file has segments to search each; omit that")
    listing: Any = {"root": root, "columns": columns, "label": label}
    how: Any = {"by": by, "num_templates": num_templates, "pool": pool}
    with galleries.gallery_at(gallery, model.meta) as store:
        verdict = _decide(store, rule, resolve_model(model.source), model.thresholds)
        with items_of(data, modality=model.modality, **listing) as items:
            probes, bad = galleries.embed_readable(model.loaded, items, 0, faces)
            ids = probes.ids
            if unit == "speakers":
                probes, bad = _by_speaker(store.as_enrolled(probes), items, bad)
        k = k or (1 if unit == "speakers" else 5)
        rows = _rows_of(store, probes, k, verdict[0], how)
        _name_enrolled(store, ids, rows)
        rows += [FoundRow(each.id, note=each.reason) for each in bad]
        return Found(rows, store.similarity, *verdict, len(store), unit)


def search_embeddings(
    gallery: galleries.Name,
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    *,
    k: Annotated[int | None, Option("--k -k", least=1, most=1000)] = None,
    rule: Rule | None = None,
    by: By = "subject",
    num_templates: Annotated[int, Option("--templates", least=1)] = 1,
    pool: PoolScores = "best",
    columns: ColumnNames = "",
    model_name: str = "",
) -> Found:
    """Find the subjects, or the enrolled items, that are most similar to each embedding.

    Args:
        gallery: As in `likeness.embedding.galleries.enrol`.
        embeddings: As in `likeness.embedding.galleries.enrol_embeddings`.
        k: As in `search`.
        rule: As in `search`.
        by: As in `search`.
        num_templates: As in `search`.
        pool: As in `search`.
        columns: As in `likeness.embedding.galleries.enrol`.
        model_name: As in `likeness.embedding.galleries.enrol_embeddings`.

    Raises:
        LikenessError: The file is none of embeddings, or the gallery is of another model.
    """
    probes = galleries.named_embeddings(embeddings, columns, model_name)
    how: Any = {"by": by, "num_templates": num_templates, "pool": pool}
    with galleries.gallery_at(gallery, probes.meta) as store:
        verdict = _decide(store, rule)
        rows = _rows_of(store, probes, k or 5, verdict[0], how)
        _name_enrolled(store, probes.ids, rows)
        return Found(rows, store.similarity, *verdict, len(store), "embeddings")


def _decide(
    gallery: Gallery, rule: Rule | None, model: str = "", thresholds: Thresholds | None = None
) -> tuple[float | None, str]:
    """The threshold and where it comes from; without one, what would give a verdict."""
    stored = gallery.thresholds
    threshold, source = (rule or Rule()).decide(model, gallery.meta, stored)
    return threshold, no_decision(stored or thresholds) if threshold is None else source


def _rows_of(
    gallery: Gallery, probes: Embeddings, k: int, threshold: float | None, how: Mapping[str, Any]
) -> list[FoundRow]:
    """The rows of the K that are most similar to each probe; `how` is for `Gallery.search`."""
    with step("searching the gallery"):
        matches = gallery.search(probes, k + 1, **how)
    rows = []
    for probe, best in zip(probes.ids, matches, strict=True):
        others = [match.score for match in best if match.subject != best[0].subject]
        margin = best[0].score - others[0] if others else None
        for rank, match in enumerate(best[:k], 1):
            accepted = None if threshold is None else match.score >= threshold
            gap = margin if rank == 1 else None
            row = FoundRow(probe, rank, match.subject, match.score, accepted, gap, match.item)
            rows.append(row)
    return rows


def _by_speaker(
    segments: Embeddings, items: Sequence[Item], bad: Sequence[Bad]
) -> tuple[Embeddings, list[Bad]]:
    """Pool the segments of each speaker of a recording; one without a speaker stays alone.

    Returns:
        The speakers, and those of whom no segment can be read.
    """
    if bad:
        share = f"{len(bad):,} of {counted(len(items), 'segment')} cannot be read"
        first = f"{bad[0].id}: {bad[0].reason}"
        warnings.warn(f"{share} and are left out (first: {first})", stacklevel=3)
    of_item = {item.id: item.id.rpartition("@")[0] if item.label else item.id for item in items}
    names = [of_item[id] for id in segments.ids]
    speakers, read = templates.pool(segments, np.array(names, dtype=object)), {*names}
    lost = {of_item[each.id]: each.reason for each in bad if of_item[each.id] not in read}
    return speakers, [Bad(name, reason) for name, reason in lost.items()]


def _name_enrolled(gallery: Gallery, probes: Sequence[str], rows: Sequence[FoundRow]) -> None:
    """Warn of probes that are enrolled themselves and find themselves, as they were asked to."""
    found = {row.subject for row in rows if row.rank == 1}
    enrolled = gallery.items([*found]) if found else set()
    itself = np.unique(same_items(probes, [*enrolled])[0])
    if itself.size:
        first = shorten(probes[itself[0]])
        text = itself_text("searches", itself.size, len(probes), first, left_out=False)
        warnings.warn(text, stacklevel=3)


def embed(
    model: Model,
    data: galleries.Data,
    *,
    workers: Annotated[int, Option(least=0)] = 0,
    faces: galleries.Faces = "central",
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
) -> tuple[Embeddings, dict[str, Path], Sequence[Bad]]:
    """Embed files that nobody has named yet.

    Args:
        model: What embeds the files.
        data: As in `likeness.embedding.galleries.enrol`.
        workers: As in `likeness.embedding.galleries.enrol`.
        faces: As in `likeness.models.reading.Reading`.
        root: As in `likeness.checking.lists.items`.
        columns: As in `likeness.checking.lists.items`.
        label: As in `likeness.checking.lists.items`.

    Returns:
        The embeddings of what can be read, the path of each id, and what cannot be read.

    Raises:
        LikenessError: Nothing can be read.
    """
    listing: Any = {"root": root, "columns": columns, "label": label}
    with items_of(data, modality=model.modality, **listing) as items:
        embeddings, bad = galleries.embed_readable(model.loaded, items, workers, faces)
        paths = {item.id: item.path for item in items}
        path_of = {id: paths.get(id) or paths[id.rpartition("#")[0]] for id in embeddings.ids}
        return embeddings, path_of, bad


def cluster_items(
    embeddings: Embeddings,
    model: galleries.Text = "",
    *,
    rule: Rule | None = None,
    num_clusters: Annotated[int | None, Option(least=1)] = None,
    method: Method = "agglomerative",
) -> Clusters:
    """Group items by a number, or by a threshold that may be stored with their model.

    Args:
        embeddings: The items.
        model: As in `likeness.models.model.load`.
        rule: From which score on two are taken for one subject.
        num_clusters: As in `likeness.eval.metrics.clustering.cluster`.
        method: As in `likeness.eval.metrics.clustering.cluster`.
    """
    limit, source = (rule or Rule()).decide(resolve_model(model), embeddings.meta)
    return clustering.cluster(
        embeddings, threshold=limit, num_clusters=num_clusters, method=method, source=source
    )
