"""Enrol files in a stored gallery, list, remove and check who is in it.

What `likeness gallery` does, but for search and cluster (gallery_search.py).
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from likeness.eval.errors import LikenessError, shorten
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.items.items import Item
from likeness.eval.items.levels import check_levels, labels_of_ids
from likeness.eval.items.listing import is_plain_folder
from likeness.eval.option import Option
from likeness.eval.scoring.threshold_files import Rule, find
from likeness.eval.scoring.thresholds import Thresholds
from likeness.eval.types import counted, item_id, name_first, nfc
from likeness.models.bundled import resolve_model
from likeness.models.inputs import items_of
from likeness.models.load import every_face
from likeness.models.model import Model
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.gallery.checks import Checked, Doubt, check
from likeness.toolkit.gallery.gallery import Gallery, exists, open_gallery, refuse_absent
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
        is_path = isinstance(data, str | os.PathLike)
        is_alone = len(items) == 1 and items[0].id == item_id(str(data))
        # An empty label in a table that has labels says nothing, and neither does its folder then.
        by_folder = not is_alone and not any(item.label for item in items)
        of_item = {item.id: subject or _subject(item, by_folder) for item in items}
        if not subject and (by_folder or (is_path and is_plain_folder(Path(data), label))):
            check_levels(of_item, data if is_path else "inputs")
        if unnamed := [id for id, who in of_item.items() if not who]:
            raise LikenessError(
                f"{len(unnamed)} of {len(items)} files have no subject ({name_first(unnamed)}): "
                "no folder or label names it; name the subject with --subject, or give a list or "
                "table with labels"
            )

        def embed_chosen(ids: Collection[str]) -> tuple[Embeddings, Sequence[Bad]]:
            return embed_readable(model.loaded, [item for item in items if item.id in ids], workers)

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
    if labels is not None and subject:
        raise LikenessError("labels and a subject both say who is enrolled; give one of them")
    rows = named_embeddings(embeddings, columns, model_name)
    where = "embeddings" if isinstance(embeddings, Embeddings) else str(embeddings)
    names = [subject] * len(rows) if subject else labels_of(where, rows.ids, names_of(labels))
    of_item = dict(zip(rows.ids, names, strict=True))

    def choose(ids: Collection[str]) -> tuple[Embeddings, Sequence[Bad]]:
        chosen = tuple(name for name in rows.ids if name in ids)
        return replace(rows, ids=chosen, matrix=rows.matrix[rows.rows(chosen)]), ()

    return _enrol(gallery, rows.meta, of_item, existing, choose)


def named_embeddings(
    embeddings: File | Embeddings, columns: ColumnNames, model_name: str
) -> Embeddings:
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
    of_item = {item: nfc(who) for item, who in of_item.items()}  # as the gallery names subjects
    known = set()
    if exists(gallery):
        with gallery_at(gallery, meta, makes=True) as store:
            known = {entry.subject for entry in store.entries()}
    before = [who for who in dict.fromkeys(of_item.values()) if who in known]
    if before and existing == "refuse":
        if _hold_all(gallery, meta, of_item, embedded):  # by a command that was killed
            return Enrolled(0, 0, tuple(before), (), len(known))
        raise LikenessError(
            f"enrolled already: {counted(len(before), 'subject')} ({name_first(before)}); nobody "
            "was enrolled now: --existing add adds to their enrolments, replace puts these files "
            "in their place, skip leaves them as they are"
        )
    left = set(before) if existing == "skip" else set()
    chosen = {item for item, who in of_item.items() if who not in left}
    if not chosen:
        return Enrolled(0, 0, tuple(before), (), len(known))
    embeddings, bad = embedded(chosen)
    skipped = tuple(before) if existing == "skip" else ()
    names = [of_item[id] for id in embeddings.ids]
    with gallery_at(gallery, meta, makes=True, thresholds=thresholds) as store:
        embeddings = store.as_enrolled(embeddings)
        _write(store, embeddings, names, set(before) if existing == "replace" else set())
        size = sum(entry.enrolments for entry in store.entries())
        doubts: Sequence[Doubt] = ()
        if size <= _CHECKED:
            doubts = [d for d in check(store).doubts if {d.subject, d.looks_like} & {*names}]
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
    return all((of_item[id], row.tobytes()) in have for id, row in made)


def _write(gallery: Gallery, rows: Embeddings, names: Sequence[str], replaced: set[str]) -> None:
    """Enrol rows; of subjects who are replaced in place of what they had."""
    for store, replaces in ((gallery.update, True), (gallery.enrol, False)):
        if chosen := [i for i, name in enumerate(names) if (name in replaced) is replaces]:
            part = Embeddings(tuple(rows.ids[i] for i in chosen), rows.matrix[chosen], rows.meta)
            store(part, [names[i] for i in chosen])


def _warn_of_copies(enrolled: Embeddings, gallery: Gallery) -> None:
    """Name files that hold the same as another enrolment."""
    times = Counter(row.tobytes() for row in gallery.everything().rows)
    rows = zip(enrolled.ids, enrolled.matrix, strict=True)
    if copies := [name for name, row in rows if times[row.tobytes()] > 1]:
        hold = "holds" if len(copies) == 1 else "hold"
        text = f"{len(copies):,} of {counted(len(enrolled), 'file')} {hold} the same as another "
        text += f"enrolment (first: {shorten(copies[0])}); each counts, so enrol one of each copy"
        warnings.warn(text, stacklevel=4)


def _subject(item: Item, by_folder: bool) -> str:
    # The first folder of a whole path is a drive, a store of URLs, or one of the system.
    if item.label or not by_folder or re.match(r"(\w+:)?/", item.id):
        return item.label or ""
    return labels_of_ids([item.id.rstrip("/")])[0]


def embed_readable(
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
            embeddings, bad = embed_readable(reading, crops, workers)
            return embeddings, [*lost, *bad]
    return embed_items(model.embedder, items, model.read, workers=workers, meta=model.meta)


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
            raise LikenessError("--far needs --model or --thresholds, which have its threshold")
        return check(store, *rule.decide(resolve_model(model), store.meta, stored))
