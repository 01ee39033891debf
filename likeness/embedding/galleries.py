"""Enrol files in a stored gallery and search it for files: what `likeness gallery` does."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError, shorten
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import Names, labels_of, names_of
from likeness.eval.formats.writing import table_text, write_rows
from likeness.eval.items.items import Item
from likeness.eval.items.levels import check_levels, labels_of_ids
from likeness.eval.items.listing import is_plain_folder, is_rttm
from likeness.eval.items.self_matches import itself_text
from likeness.eval.metrics import clustering
from likeness.eval.metrics.clustering import Clusters, Method
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.scoring import templates
from likeness.eval.scoring.threshold_files import Rule, find
from likeness.eval.scoring.thresholds import Thresholds
from likeness.eval.types import counted, name_first, nfc, same_items
from likeness.models.bundled import resolve_model
from likeness.models.inputs import items_of
from likeness.models.load import every_face
from likeness.models.model import Model
from likeness.models.verdicts import no_decision
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.gallery.checks import Checked, Doubt, check
from likeness.toolkit.gallery.gallery import (
    By,
    Gallery,
    Match,
    PoolScores,
    exists,
    open_gallery,
    refuse_absent,
)
from likeness.toolkit.gallery.store import Entry
from likeness.toolkit.models.embed import embed as embed_items
from likeness.toolkit.models.loaded import Loaded

Faces = Literal["central", "all"]
Existing = Literal["refuse", "add", "replace", "skip"]
Name = Annotated[str | Path, Option("--gallery", metavar="PLACE")]
Data = Annotated[Any, Option("DATA", path="any")]
Text = Annotated[str, Option(metavar="TEXT")]
ELSEWHERE = "embeddings from elsewhere"  # the model of those whose file names none
_Embed = Callable[[Collection[str]], tuple[Embeddings, Sequence[Bad]]]  # the items of these ids
_CHECKED = 5_000  # enrolments up to which a gallery is checked at each enrolment


def gallery_at(
    name: str | Path,
    meta: Mapping[str, str] | None = None,
    *,
    makes: bool = False,
    thresholds: Thresholds | None = None,
) -> closing[Gallery]:
    """Open a gallery for a block, at whose end it is closed.

    Args:
        name: Its folder, or an address such as postgresql://USER@HOST/DATABASE; see
            `likeness.toolkit.gallery.gallery.open_gallery`.
        meta: Of the model's embeddings; None for whatever the gallery says.
        makes: Whether a gallery is made where there is none.
        thresholds: Of the place whose mean a new gallery subtracts.

    Raises:
        LikenessError: There is none, and none is to be made. It is of another model, or used by
            another process.
        OSError: It is damaged, or a server does not answer.
    """
    if not makes:
        refuse_absent(name)
    return closing(open_gallery(name, meta, thresholds=thresholds))


def unlabelled_thresholds(model: Model) -> Thresholds | None:
    """The thresholds whose mean a model subtracts; None where it subtracts none."""
    if "mean" not in model.meta:
        return None
    return find(model.source, model.thresholds_file)[0]


class Enrolled(NamedTuple):
    """What an enrolment did.

    Attributes:
        files: How many files were enrolled.
        subjects: Of how many subjects.
        skipped: Subjects who were enrolled before and stay as they are.
        bad: Files that cannot be read, with the reasons.
        size: How many subjects the gallery has now.
        doubts: What `check` finds of the subjects who were enrolled now.
        mean_of: The items whose mean the gallery subtracts; "" where it subtracts none.
    """

    files: int
    subjects: int
    skipped: tuple[str, ...]
    bad: Sequence[Bad]
    size: int
    doubts: Sequence[Doubt] = ()
    mean_of: str = ""


def enrol(
    gallery: Name,
    model: Model,
    data: Data,
    *,
    subject: str | None = None,
    existing: Existing = "refuse",
    workers: Annotated[int, Option(least=0)] = 0,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
) -> Enrolled:
    """Embed files and enrol those that can be read; the gallery is made where there is none.

    The subject of a file is `subject`, else the label that a list or table has; where there are no
    labels at all it is the first folder of its id. A file that is given alone has none.

    Args:
        gallery: The folder of the gallery, which is a SQLite file in it, or another store:
            faiss:DIR or postgresql://USER@HOST/DATABASE.
        model: What embeds the files. Where it was loaded with the thresholds of a place, a new
            gallery keeps these, and subtracts the mean of the place from all that comes to it.
        data: A folder, a file, a list of paths, a .csv, .tsv or .parquet table, a Kaldi folder, or
            an .rttm file. See `likeness.models.inputs.items_of`.
        subject: Who all files are of (default: the label of a list or table, else the first folder
            of each file below DATA).
        existing: What becomes of subjects who are enrolled already: refuse enrols nobody, add adds
            to their enrolments, replace puts the files in their place, skip leaves them.
        workers: How many processes read files; 0 reads them in this one.
        root: As in `likeness.checking.lists.items`.
        columns: Which column is which, where names do not say it, as in label=spk,path=wav; of
            embeddings, as in id=utt,vector=xvec.
        label: As in `likeness.checking.lists.items`.

    Raises:
        LikenessError: Files have no subject, subjects are enrolled already, nothing can be read, or
            the gallery is of another model.
    """
    listing: Any = {"root": root, "columns": columns, "label": label}
    with items_of(data, modality=model.modality, **listing) as items:
        # An empty label in a table that has labels says nothing, and neither does its folder then.
        by_folder = not any(item.label for item in items)
        of_item = {item.id: subject or _subject(item, by_folder) for item in items}
        if not subject and str(data) in of_item and len(items) == 1:
            of_item = {items[0].id: items[0].label or ""}
        if not subject and (by_folder or is_plain_folder(Path(data), label)):
            check_levels(of_item, data)
        unnamed = [item_id for item_id, who in of_item.items() if not who]
        if unnamed:
            raise LikenessError(
                f"{len(unnamed)} of {len(items)} files have no subject ({name_first(unnamed)}): "
                "no folder or label names it; name the subject with --subject, or give a list or "
                "table with labels"
            )

        def embed_chosen(ids: Collection[str]) -> tuple[Embeddings, Sequence[Bad]]:
            return _embed(model.loaded, [item for item in items if item.id in ids], workers)

        thresholds = unlabelled_thresholds(model)
        return _enrol(gallery, model.meta, of_item, existing, embed_chosen, thresholds)


def enrol_embeddings(
    gallery: Name,
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    *,
    labels: Annotated[Names | None, Option(path="file")] = None,
    subject: str | None = None,
    existing: Existing = "refuse",
    columns: ColumnNames = "",
    model_name: str = "",
) -> Enrolled:
    """Enrol embeddings of Likeness or of another program, as `enrol` does with files.

    Args:
        gallery: As in `enrol`.
        embeddings: A file of embeddings, of which no model is loaded.
        labels: Lines `id subject` for embeddings (default: the first folder of the ids).
        subject: As in `enrol`.
        existing: As in `enrol`.
        columns: As in `enrol`.
        model_name: What made embeddings whose file does not say it; the gallery refuses those of
            another name.

    Raises:
        LikenessError: As `enrol`, or the file is none of embeddings.
    """
    rows = _named(embeddings, columns, model_name)
    where = "embeddings" if isinstance(embeddings, Embeddings) else str(embeddings)
    names = [subject] * len(rows) if subject else labels_of(where, rows.ids, names_of(labels))
    of_item = dict(zip(rows.ids, names, strict=True))

    def choose(ids: Collection[str]) -> tuple[Embeddings, Sequence[Bad]]:
        chosen = tuple(name for name in rows.ids if name in ids)
        return replace(rows, ids=chosen, matrix=rows.matrix[rows.rows(chosen)]), ()

    return _enrol(gallery, rows.meta, of_item, existing, choose)


def _named(embeddings: File | Embeddings, columns: ColumnNames, model_name: str) -> Embeddings:
    """Embeddings with the model that they name, else with the name that is given to it."""
    rows = embeddings_of(embeddings, columns)
    if (model := rows.meta.get("model")) and model_name:
        raise LikenessError(
            f"model name {model_name!r}: the embeddings name their model themselves "
            f"({model[:16]}); leave the name out"
        )
    return rows if model else replace(rows, meta={**rows.meta, "model": model_name or ELSEWHERE})


def _enrol(
    gallery: Name,
    meta: Mapping[str, str],
    of_item: Mapping[str, str],
    existing: Existing,
    embedded: _Embed,
    thresholds: Thresholds | None = None,
) -> Enrolled:
    """Enrol items under their subjects.

    Args:
        gallery: As in `enrol`.
        meta: Of the embeddings.
        of_item: The subject of each item.
        existing: As in `enrol`.
        embedded: Gives the embeddings of items.
        thresholds: Those of a place, which a new gallery keeps with its mean.
    """
    known = set()
    if exists(gallery):
        with gallery_at(gallery, meta, makes=True) as store:
            known = {entry.subject for entry in store.entries()}
    before = [who for who in dict.fromkeys(of_item.values()) if who in known]
    if before and existing == "refuse":
        if _hold_all(gallery, meta, of_item, embedded):  # by a command that was killed
            return Enrolled(0, 0, tuple(before), (), len(known))
        raise LikenessError(
            f"{len(before)} subjects are enrolled already ({name_first(before)}), and nobody "
            "was enrolled; --existing add adds to their enrolments, replace puts these files "
            "in their place, skip leaves them as they are"
        )
    left = set(before) if existing == "skip" else set()
    chosen = {item for item, who in of_item.items() if who not in left}
    if not chosen:
        return Enrolled(0, 0, tuple(before), (), len(known))
    embeddings, bad = embedded(chosen)
    skipped = tuple(before) if existing == "skip" else ()
    names = [of_item[item_id] for item_id in embeddings.ids]
    with gallery_at(gallery, meta, makes=True, thresholds=thresholds) as store:
        embeddings = store.as_enrolled(embeddings)
        _write(store, embeddings, names, set(before) if existing == "replace" else set())
        size = sum(entry.enrolments for entry in store.entries())
        doubts: Sequence[Doubt] = ()
        if size <= _CHECKED:
            here = set(map(nfc, names))
            doubts = [d for d in check(store).doubts if {d.subject, d.looks_like} & here]
            _warn_of_copies(embeddings, store)
        mean_of = store.thresholds.data if store.thresholds else ""
        return Enrolled(len(names), len(set(names)), skipped, bad, len(store), doubts, mean_of)


def _hold_all(
    gallery: Name, meta: Mapping[str, str], of_item: Mapping[str, str], embedded: _Embed
) -> bool:
    """Whether a gallery has the very embeddings that these items give, under their subjects."""
    with gallery_at(gallery, meta) as store:
        if not store.items([*of_item.values()]) & of_item.keys():
            return False  # nothing has to be embedded to see it
        embeddings = store.as_enrolled(embedded(of_item)[0])
        stored = store.everything()
    have = {(who, row.tobytes()) for who, row in zip(stored.subjects, stored.rows, strict=True)}
    made = zip(embeddings.ids, embeddings.matrix, strict=True)
    return all((nfc(of_item[item_id]), row.tobytes()) in have for item_id, row in made)


def _write(gallery: Gallery, rows: Embeddings, names: Sequence[str], replaced: set[str]) -> None:
    """Enrol rows; of subjects who are replaced in place of what they had."""
    for chosen, store in (
        ([i for i, name in enumerate(names) if name in replaced], gallery.update),
        ([i for i, name in enumerate(names) if name not in replaced], gallery.enrol),
    ):
        if chosen:
            part = Embeddings(tuple(rows.ids[i] for i in chosen), rows.matrix[chosen], rows.meta)
            store(part, [names[i] for i in chosen])


def _warn_of_copies(enrolled: Embeddings, gallery: Gallery) -> None:
    """Name files that hold the same as another enrolment."""
    times = Counter(row.tobytes() for row in gallery.everything().rows)
    rows = zip(enrolled.ids, enrolled.matrix, strict=True)
    if copies := [name for name, row in rows if times[row.tobytes()] > 1]:
        hold = "holds" if len(copies) == 1 else "hold"
        warnings.warn(
            f"{len(copies):,} of {counted(len(enrolled), 'file')} {hold} the same as another "
            f"enrolment (first: {shorten(copies[0])}); each counts, so enrol one of each copy",
            stacklevel=4,
        )


def _subject(item: Item, by_folder: bool) -> str:
    if item.label or not by_folder:
        return item.label or ""
    is_whole = item.id.startswith("/")  # its first folder is one of the system
    return "" if is_whole else labels_of_ids([item.id.rstrip("/")])[0]


def _embed(
    model: Loaded, items: Sequence[Item], workers: int, faces: Faces = "central"
) -> tuple[Embeddings, Sequence[Bad]]:
    """The embeddings of what can be read, and what cannot.

    Raises:
        LikenessError: None can be read.
    """
    if faces == "all":
        with every_face(model, items) as (reading, crops, lost):
            if not crops:
                raise LikenessError(f"{lost[0].id}: {lost[0].reason}")
            embeddings, bad = _embed(reading, crops, workers)
            return embeddings, [*lost, *bad]
    return embed_items(model.embedder, items, model.read, workers=workers, meta=model.meta)


def embed(
    model: Model,
    data: Data,
    *,
    workers: Annotated[int, Option(least=0)] = 0,
    faces: Faces = "central",
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
) -> tuple[Embeddings, dict[str, Path], Sequence[Bad]]:
    """Embed files that nobody has named yet.

    Args:
        model: What embeds the files.
        data: As in `enrol`.
        workers: As in `enrol`.
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
        embeddings, bad = _embed(model.loaded, items, workers, faces)
        paths = {item.id: item.path for item in items}
        path_of = {id: paths.get(id) or paths[id.rpartition("#")[0]] for id in embeddings.ids}
        return embeddings, path_of, bad


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
                f"{len(bad):,} {self.unit} cannot be read ({first}); the first: {bad[0].note}"
            )
        return "\n".join(lines)

    def text(self) -> str:
        """The rows as a table of text with a head."""
        return table_text(FoundRow._fields, self.rows, ",")

    def save(self, path: Path) -> None:
        """Write the rows to a .csv or .tsv file, whole or not at all."""
        write_rows(path, FoundRow._fields, self.rows)


def search(
    gallery: Name,
    model: Model,
    data: Data,
    *,
    k: Annotated[int | None, Option("--k -k", least=1, most=1000)] = None,
    rule: Rule | None = None,
    each: bool = False,
    by: By = "subject",
    num_templates: Annotated[int, Option("--templates", least=1)] = 1,
    pool: PoolScores = "best",
    faces: Faces = "central",
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
) -> Found:
    """Find the subjects, or the enrolled files, that are most similar to each file.

    The segments of an RTTM file are pooled: what is searched is each speaker of a recording.

    Args:
        gallery: As in `enrol`.
        model: What embeds the files.
        data: As in `enrol`.
        k: How many subjects are found for each file at most (default: 5, or 1 for each speaker of
            an .rttm file).
        rule: What decides whether a file is taken for a subject.
        each: Search each segment of an .rttm file by itself, not each speaker.
        by: What is found: subjects, or the enrolled files one by one.
        num_templates: How many templates each subject has at most. See `Gallery.search`.
        pool: Which score a subject with several templates gets.
        faces: As in `embed`.
        root: As in `likeness.checking.lists.items`.
        columns: As in `enrol`.
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

    def embed_probes(store: Gallery) -> _Probes:
        with items_of(data, modality=model.modality, **listing) as items:
            embeddings, bad = _embed(model.loaded, items, 0, faces)
            if unit != "speakers":
                return _Probes(embeddings, bad, embeddings.ids)
            pooled, lost = _by_speaker(store.as_enrolled(embeddings), items, bad)
            return _Probes(pooled, lost, embeddings.ids)

    decide = partial(_decide, rule or Rule(), resolve_model(model.source), model.thresholds)
    k = k or (1 if unit == "speakers" else 5)
    return _search(gallery, model.meta, embed_probes, k, how, decide, unit)


def search_embeddings(
    gallery: Name,
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
        gallery: As in `enrol`.
        embeddings: As in `enrol_embeddings`.
        k: As in `search`.
        rule: As in `search`.
        by: As in `search`.
        num_templates: As in `search`.
        pool: As in `search`.
        columns: As in `enrol`.
        model_name: As in `enrol_embeddings`.

    Raises:
        LikenessError: The file is none of embeddings, or the gallery is of another model.
    """
    rows = _named(embeddings, columns, model_name)
    how: Any = {"by": by, "num_templates": num_templates, "pool": pool}
    probes = _Probes(rows, (), rows.ids)
    decide = partial(_decide, rule or Rule(), "", None)
    return _search(gallery, rows.meta, lambda store: probes, k or 5, how, decide, "embeddings")


def _decide(
    rule: Rule,
    model: str,
    thresholds: Thresholds | None,
    meta: Mapping[str, str],
    stored: Thresholds | None,
) -> tuple[float | None, str]:
    """The threshold and where it comes from; without one, what would give a verdict."""
    threshold, source = rule.decide(model, meta, stored)
    return threshold, no_decision(stored or thresholds) if threshold is None else source


class _Probes(NamedTuple):
    """What is searched for: embeddings, what cannot be read, and the items that were embedded."""

    embeddings: Embeddings
    bad: Sequence[Bad]
    ids: Sequence[str]


def _search(
    gallery: Name,
    meta: Mapping[str, str],
    probes_for: Callable[[Gallery], _Probes],
    k: int,
    how: Mapping[str, Any],
    decide: Callable[..., tuple[float | None, str]],
    unit: str,
) -> Found:
    """Search for embeddings.

    Args:
        gallery: As in `enrol`.
        meta: Of the embeddings.
        probes_for: Gives the probes, once the gallery is open.
        k: As in `search`.
        how: Further arguments of `Gallery.search`.
        decide: Gives the threshold, and where it comes from, for what the gallery states.
        unit: What the probes are.
    """
    with gallery_at(gallery, meta) as store:
        threshold, source = decide(store.meta, store.thresholds)
        embeddings, bad, ids = probes_for(store)
        with step("searching the gallery"):
            hits = store.search(embeddings, k + 1, **how)
        matches = dict(zip(embeddings.ids, hits, strict=True))
        found = [best[0].subject for best in hits if best]
        _name_enrolled(ids, store.items(found) if found else set())
        similarity, size = store.similarity, len(store)
    rows = [
        *_rows_of(matches, k, threshold),
        *(FoundRow(each.id, note=each.reason) for each in bad),
    ]
    return Found(rows, similarity, threshold, source, size, unit)


def _rows_of(
    matches: Mapping[str, Sequence[Match]], k: int, threshold: float | None
) -> Iterator[FoundRow]:
    """The rows of K of the matches of each probe."""
    for probe, best in matches.items():
        others = [match.score for match in best if match.subject != best[0].subject]
        margin = best[0].score - others[0] if others else None
        for rank, match in enumerate(best[:k], 1):
            accepted = None if threshold is None else match.score >= threshold
            gap = margin if rank == 1 else None
            yield FoundRow(probe, rank, match.subject, match.score, accepted, gap, match.item)


def _by_speaker(
    segments: Embeddings, items: Sequence[Item], bad: Sequence[Bad]
) -> tuple[Embeddings, list[Bad]]:
    """Pool the segments of each speaker of a recording; one without a speaker stays alone.

    Returns:
        The speakers, and those of whom no segment can be read.
    """
    if bad:
        warnings.warn(
            f"{len(bad):,} of {counted(len(items), 'segment')} cannot be read and are left out "
            f"(first: {bad[0].id}: {bad[0].reason})",
            stacklevel=3,
        )
    of_item = {item.id: item.id.rpartition("@")[0] if item.label else item.id for item in items}
    names = [of_item[id] for id in segments.ids]
    speakers, read = templates.pool(segments, np.array(names, dtype=object)), {*names}
    lost = {of_item[each.id]: each.reason for each in bad if of_item[each.id] not in read}
    return speakers, [Bad(name, reason) for name, reason in lost.items()]


def _name_enrolled(probes: Sequence[str], enrolled: set[str]) -> None:
    """Name the probes that are enrolled themselves and find themselves, as they were asked to."""
    itself = np.unique(same_items(probes, [*enrolled])[0])
    if itself.size:
        first = shorten(probes[itself[0]])
        text = itself_text("searches", itself.size, len(probes), first, left_out=False)
        warnings.warn(text, stacklevel=4)


def list_subjects(gallery: Name) -> Sequence[Entry]:
    """The subjects of a gallery.

    Args:
        gallery: As in `enrol`.
    """
    with gallery_at(gallery) as store:
        return store.entries()


def remove(subjects: Annotated[Sequence[str], Option("SUBJECT")], gallery: Name) -> int:
    """Erase subjects, from the disk too.

    Args:
        subjects: Whom to erase.
        gallery: As in `enrol`.

    Returns:
        How many subjects are left.
    """
    with gallery_at(gallery) as store:
        store.remove(subjects)
        return len(store)


def check_gallery(gallery: Name, model: Text = "", *, rule: Rule | None = None) -> Checked:
    """Find enrolments that do not fit their subject, and subjects that may be one.

    Args:
        gallery: As in `enrol`.
        model: As in `likeness.models.model.load`.
        rule: From which score on two are taken for one subject.
    """
    rule = rule or Rule()
    with gallery_at(gallery) as store:
        stored = store.thresholds
        if rule.far is not None and not (model or rule.file or stored):
            raise LikenessError(
                "--far needs --model, whose stored threshold is meant, or --thresholds"
            )
        return check(store, *rule.decide(resolve_model(model), store.meta, stored))


def cluster_items(
    embeddings: Embeddings,
    model: Text = "",
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
