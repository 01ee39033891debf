"""Galleries: enrol subjects, search 1:N for the k most similar, reject who is not enrolled.

There is one class, and three stores behind it (store.py). A subject is one template, which
likeness.eval.scoring.templates.pool makes from the enrolments. Enrolments are kept raw, so that
norms keep their meaning. A gallery belongs to one model: it stores the model's digest and
similarity, and it refuses embeddings of another model. Scores are those of
likeness.eval.metrics.similarity.pairs, template first, in every store. Subjects are compared in
Unicode NFC.

The place of a gallery names its store:

    FOLDER                          a SQLite file, searched exactly
    faiss:FOLDER                    the same file, searched by an index of FAISS
    postgresql://USER@HOST/DATABASE a server of PostgreSQL with pgvector; it may end in #NAME, so
                                    that one server keeps several galleries
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics.similarity import matrix, pairs
from likeness.eval.metrics.unlabelled import subtract_centre
from likeness.eval.scoring.origin import contradictions
from likeness.eval.scoring.threshold_files import thresholds_of, thresholds_text
from likeness.eval.scoring.thresholds import Thresholds
from likeness.eval.types import Floats32, is_printable, nfc
from likeness.toolkit.gallery import media
from likeness.toolkit.gallery._search import PRODUCTS, angular_bias, as_asked, is_product
from likeness.toolkit.gallery.faiss import FaissStore
from likeness.toolkit.gallery.postgres import Address, PostgresStore, has_gallery, mask_passwords
from likeness.toolkit.gallery.sqlite import FILE, SqliteStore
from likeness.toolkit.gallery.store import (
    Candidates,
    Enrolments,
    Entry,
    several_templates,
    templates_of,
)

MAX_SUBJECT = 256  # characters of a name
By = Literal["subject", "item"]
PoolScores = Literal["best", "mean"]
_PROBES = 256  # compared with all enrolments at once
EXTRA = 8  # candidates beside k: rounding of products must not decide who is among the best
_KIND = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(.*)", re.DOTALL)  # one letter is a drive of Windows
# An @, / or ? of a password that is not written as an address needs it would make a part of the
# password the host, which messages name.
_SERVER = re.compile(r"(postgresql://(?:[^@/?#]*@)?[^@#]*)(?:#([a-z][a-z0-9_]{0,39}))?", re.DOTALL)


class Match(NamedTuple):
    """One subject that a search gives back.

    Attributes:
        subject: The name.
        score: The similarity of template and probe; a higher score means more similar.
        norm: The norm of the template, which measures its quality if the loss made it do so.
        item: The enrolled item, where items are searched.
    """

    subject: str
    score: float
    norm: float
    item: str = ""


class NotEnrolled(LikenessError):
    """A subject is not enrolled."""


class Gallery:
    """Enrolled subjects and the search among them; `open_gallery` makes it.

    A change is there whole, and kept, when the method returns; after a kill the gallery holds what
    it held before the change or after it. A gallery in a folder belongs to one process at a time;
    PostgreSQL has any number of them.

    Args:
        store: Where it lies. It is closed if the gallery is refused.
        expected: What the gallery has to agree with: model, settings, perhaps the similarity. None
            is for whatever it says.

    Raises:
        LikenessError: The gallery is of another model, or made with other settings.

    Attributes:
        meta: What the gallery says of the model and the settings that made its embeddings.
        thresholds: Those of the place whose mean it subtracts; None where it subtracts none.
        similarity: How embeddings are compared.
        shared: Whether several processes may change it at the same time.
        folder: The folder beside which media may be kept; None where the gallery has none.
    """

    def __init__(
        self, store: SqliteStore | PostgresStore, expected: Mapping[str, str] | None = None
    ):
        self._store = store
        self.meta = dict(store.meta)
        self.meta.pop("template_pooling", None)
        text = self.meta.pop("thresholds", None)
        self.similarity = self.meta.get("similarity", "cosine")
        self.shared, self.folder = store.shared, store.folder
        try:
            self.thresholds = thresholds_of(text) if text else None
            self._bias = angular_bias(self.similarity)
            self._refuse_other(self.meta, expected)
        except BaseException:
            store.close()
            raise

    def __len__(self) -> int:
        """How many subjects are enrolled."""
        return len(self._store)

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments to what subjects have.

        Args:
            embeddings: Raw embeddings (N, D).
            subjects: The subject of each, N names.

        Raises:
            LikenessError: They are of another model, or a name is not usable. Nothing is enrolled
                then.
        """
        self._write(embeddings, subjects, replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Puts enrolments in place of those that the subjects have, and erases these.

        Args:
            embeddings: Raw embeddings (N, D).
            subjects: The subject of each, N names.

        Raises:
            NotEnrolled: Some subjects are not enrolled. Nothing is changed then.
            LikenessError: As for `enrol`.
        """
        self._write(embeddings, subjects, replace=True)
        if subjects:
            self._store.erase()

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, from the disk too.

        Raises:
            NotEnrolled: Some are not enrolled, and nobody is removed.
        """
        leaving = list(dict.fromkeys(map(nfc, subjects)))
        with self._store.changing():
            _refuse_unknown(leaving, self._store.known(leaving))
            if not leaving:
                return
            with self._without_media(leaving):
                self._store.remove(leaving)
        self._store.erase()

    def search(
        self,
        probes: Embeddings,
        k: int = 5,
        threshold: float | None = None,
        *,
        by: By = "subject",
        num_templates: int = 1,
        pool: PoolScores = "best",
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects, or enrolled items, of every probe.

        Args:
            probes: Raw embeddings (Q, D) of the same model.
            k: How many subjects to give back at most. There are fewer where fewer are enrolled.
            threshold: Keeps only matches with score >= threshold. An empty tuple then rejects the
                probe: nobody who is enrolled is similar enough.
            by: "subject", or "item" for the enrolments themselves, of whomever they are.
            num_templates: How many templates a subject has at most. With more than one, the
                enrolments of a subject are grouped by k-means, so that somebody with and without a
                beard, say, is two templates. They are all compared, in every store.
            pool: Which score a subject with several templates gets: the "best" or the "mean".

        Returns:
            A tuple of matches for each probe, best first. Of equal scores, whoever was enrolled
            first comes first.

        Raises:
            LikenessError: The probes are of another model.
        """
        probes = self.as_enrolled(probes)
        if not probes.ids or not self._store.dim:
            return [()] * len(probes.ids)
        if by == "item" or num_templates > 1:
            return self._search_pieces(probes.matrix, k, threshold, by, num_templates, pool)
        asked = as_asked(probes.matrix, self._bias, self.similarity)
        return self._best(probes.matrix, self._store.nearest(asked, k + EXTRA), k, threshold)

    def as_enrolled(self, embeddings: Embeddings) -> Embeddings:
        """Gives embeddings of the gallery's model as it keeps them: without the mean of its place.

        Raises:
            LikenessError: They are of another model, or lack the mean of another place.
        """
        self._refuse_unlike(embeddings)
        if self.thresholds is None or "mean" in embeddings.meta:
            return embeddings
        rows = subtract_centre(embeddings.matrix, np.array(self.thresholds.centre))
        meta = {**embeddings.meta, "mean": self.meta["mean"]}
        return Embeddings(embeddings.ids, rows.astype(np.float32), meta)

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in the order of enrolment."""
        return self._store.entries()

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, in the order in which they were made.

        Raises:
            NotEnrolled: The subject is not enrolled.
        """
        made = self._store.enrolments([nfc(subject)])
        _refuse_unknown([nfc(subject)], made.subjects)
        return made.rows

    def items(self, subjects: Sequence[str]) -> set[str]:
        """Gives the ids of what some subjects were enrolled from; of none who is not enrolled."""
        return {*self._store.enrolments(list(dict.fromkeys(map(nfc, subjects)))).items}

    def everything(self) -> Enrolments:
        """Gives all raw enrolments with their subjects and items, in the order of enrolment."""
        return self._store.enrolments()

    def close(self) -> None:
        """Frees the folder for another process, or ends the connection."""
        self._store.close()

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments."""
        store = self._store
        embeddings = self.as_enrolled(embeddings)
        _refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        names = list(map(nfc, subjects))
        distinct = list(dict.fromkeys(names))
        with store.changing():
            known = store.known(distinct)
            if replace:
                _refuse_unknown(distinct, known)
            pooled, rows = names, embeddings.matrix
            if known and not replace:
                before = store.enrolments([name for name in distinct if name in known])
                pooled = [*before.subjects, *names]
                rows = np.concatenate([before.rows, rows])
            templates = templates_of(pooled, rows, store.meta)
            if not np.isfinite(templates.norms).all():
                raise LikenessError(
                    "the norm of an embedding is too large for float32; scale the embeddings down"
                )
            made = Enrolments(names, list(map(nfc, embeddings.ids)), embeddings.matrix)
            with self._without_media(distinct if replace else ()):
                store.write(made, templates, replace=replace)

    @contextmanager
    def _without_media(self, subjects: Sequence[str]) -> Iterator[None]:
        """Erases the media of subjects before a change, and says so if the change fails."""
        has_media = bool(subjects) and media.erase(self.folder, subjects)
        try:
            yield
        except OSError as error:
            lost = "; their pictures and sounds are erased already" if has_media else ""
            raise OSError(f"{error}{lost}") from error

    def _best(
        self, probes: Floats32, found: Candidates, k: int, threshold: float | None
    ) -> list[tuple[Match, ...]]:
        """Scores the candidates like trials, and keeps the k best of each probe."""
        scores = pairs(
            found.vectors[:, : probes.shape[1]], probes, found.places, found.asked, self.similarity
        )
        order = np.lexsort((found.places, -scores, found.asked))
        bounds = np.searchsorted(found.asked[order], np.arange(len(probes) + 1)).tolist()
        results = []
        for begin, end in pairwise(bounds):
            best = order[begin : min(end, begin + k)].tolist()
            results.append(
                tuple(
                    Match(found.subjects[place], float(scores[i]), float(found.norms[place]))
                    for i, place in zip(best, found.places[best].tolist(), strict=True)
                    if threshold is None or scores[i] >= threshold
                )
            )
        return results

    def _search_pieces(
        self,
        probes: Floats32,
        k: int,
        threshold: float | None,
        by: By,
        num_templates: int,
        pool: PoolScores,
    ) -> list[tuple[Match, ...]]:
        """Compares the probes with all enrolments, or with several templates of each subject."""
        made = self.everything()
        names, items, rows = made
        if by == "subject":
            names, rows = several_templates(made, num_templates, self._store.meta)
            items = [""] * len(names)
        norms = np.linalg.norm(rows, axis=1)
        is_first = [by == "item" or name != before for before, name in pairwise(["", *names])]
        starts = np.flatnonzero(is_first)
        sizes = np.diff([*starts, len(names)])[:, None]
        results = []
        for begin in range(0, len(probes), _PROBES):
            scores = matrix(rows, probes[begin : begin + _PROBES], self.similarity)
            joined = np.maximum.reduceat(scores, starts)
            if pool == "mean":
                joined = np.add.reduceat(scores, starts) / sizes
            for column in joined.T:
                best = np.argsort(-column, kind="stable")[:k]
                scored = zip(starts[best], column[best].tolist(), strict=True)
                matches = [Match(names[i], score, float(norms[i]), items[i]) for i, score in scored]
                results.append(
                    tuple(m for m in matches if threshold is None or m.score >= threshold)
                )
        return results

    def _refuse_unlike(self, embeddings: Embeddings) -> None:
        """Refuses embeddings of another model, other settings or another size."""
        size = embeddings.matrix.shape[1]
        mine: dict[str, object] = {**self.meta, "dimensions": self._store.dim or size}
        theirs: dict[str, object] = {"model": None, **embeddings.meta, "dimensions": size}
        for each in (mine, theirs):
            for free in ("modality", "similarity"):
                each.pop(free, None)
        self._refuse_other(mine, theirs)

    def _refuse_other(
        self, meta: Mapping[str, object], expected: Mapping[str, object] | None
    ) -> None:
        if self.thresholds is not None and expected is not None:  # the mean is subtracted here
            expected = {"mean": self.meta["mean"], **expected}
        if wrong := contradictions(meta, expected):
            models = [
                f"{of.get('modality', '')} {_shown(of.get('model'))}".strip()
                for of in map(dict, (meta, expected or {}))
            ]
            other = f"other settings: {'; '.join(wrong)}"
            if models[0] != models[1]:
                other = f"another model ({models[0]}, and this is {models[1]})"
            elif len(wrong) == 1 and meta.get("mean") != (expected or {}).get("mean"):
                places = [of.get("mean") or "no place" for of in (meta, expected or {})]
                other = f"the mean of {places[0]}, and not of {places[1]}"
            raise LikenessError(
                f"{self._store.name} was made with {other}; scores between the two would mean "
                "nothing: take the model and the options that it was made with, or enrol the files "
                "anew in another gallery"
            )


def _shown(model: object) -> str:
    """A model's name, or the first letters of its digest."""
    text = str(model or "unknown")
    return text[:16] if len(text) == 64 else text[:64]


def open_gallery(
    place: str | PathLike[str] | None,
    meta: Mapping[str, str] | None = None,
    *,
    similarity: str | None = None,
    pooling: Literal["mean", "norm_weighted"] = "mean",
    thresholds: Thresholds | None = None,
) -> Gallery:
    """Opens the gallery at a place, or makes one there.

    Args:
        place: Its folder, or an address that names another store: faiss:FOLDER or
            postgresql://USER@HOST/DATABASE. None keeps it in memory only.
        meta: The meta of the embeddings to come; may be None where there is a gallery.
        similarity: Any similarity of likeness.eval.metrics.similarity, in PostgreSQL cosine, dot or
            simple; by default what the meta says, else cosine.
        pooling: "mean" or "norm_weighted", see likeness.eval.scoring.templates; fixed when the
            gallery is made.
        thresholds: Those of `likeness threshold` for a place. A new gallery keeps them, and
            subtracts the mean of the place from all embeddings that come to it.

    Returns:
        The gallery.

    Raises:
        LikenessError: There is none and none is to be made, it is of another model, or used by
            another process; the thresholds are of another model; or the address names no store.
        OSError: The disk refuses it, it is damaged, or a server does not answer.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> people = Embeddings(("ann/1", "bob/1"), [[3, 4], [4, -3]], {"similarity": "cosine"})
        >>> with TemporaryDirectory() as folder:
        ...     gallery = open_gallery(folder, people.meta)
        ...     gallery.enrol(people, ["ann", "bob"])
        ...     (match,) = gallery.search(Embeddings(("who",), [[3, 3]]), k=1)[0]
        >>> match.subject, round(match.score, 2)
        ('ann', 0.99)
    """
    new, expected = None, None
    if own := {"template_pooling", "thresholds"} & (meta or {}).keys():
        raise LikenessError(
            f"the meta of the embeddings has {min(own)!r}, which only galleries have; leave it out"
        )
    if thresholds is not None:
        meta = _meta_with_mean(meta or {}, thresholds)
    if meta is not None or similarity:
        new = dict(meta or {}) | {"template_pooling": pooling}
        new["similarity"] = similarity or new.get("similarity", "cosine")
        if thresholds is not None:
            new["thresholds"] = thresholds_text(thresholds)
        angular_bias(new["similarity"])
        expected = {key: value for key, value in (meta or {}).items() if key != "similarity"}
        if similarity:
            expected["similarity"] = similarity
    if place is None:
        return Gallery(SqliteStore(None, new or {}), expected)
    if new is None:
        refuse_absent(place)
    kind, address = parse_place(place)
    if kind == "postgresql":
        if new and not is_product(new["similarity"]):
            raise LikenessError(
                f"similarity {new['similarity']!r}: PostgreSQL searches by {', '.join(PRODUCTS)}; "
                "use a gallery in a folder for the others"
            )
        return Gallery(PostgresStore(address, new), expected)
    folder = Path(address.place)
    return Gallery((FaissStore if kind == "faiss" else SqliteStore)(folder, new), expected)


def _meta_with_mean(meta: Mapping[str, str], thresholds: Thresholds) -> dict[str, str]:
    """The meta of embeddings without the mean of a place."""
    meta = {**thresholds.origin.meta, **meta, "similarity": "cosine"}
    if not thresholds.centre or contradictions(meta, thresholds.origin.meta):
        raise LikenessError(
            f"the thresholds of {thresholds.data} have no mean, or are of another model or other "
            "settings; estimate them by `likeness threshold` with this model and these settings"
        )
    return meta


def exists(place: str | PathLike[str]) -> bool:
    """Returns whether there is a gallery at a place.

    Args:
        place: A folder or an address, as for `open_gallery`.

    Raises:
        LikenessError: The address names no store.
        ConnectionError: A server does not answer.
    """
    kind, address = parse_place(place)
    if kind == "postgresql":
        return has_gallery(address)
    return (Path(address.place) / FILE).is_file()


def refuse_absent(place: str | PathLike[str]) -> None:
    """Raises LikenessError where there is no gallery; OSError where a server does not answer."""
    if not exists(place):
        raise LikenessError(
            f"{mask_passwords(place)} contains no gallery; make one with `likeness gallery enrol "
            f"FOLDER --gallery {mask_passwords(place)} --model MODEL`, or correct the path"
        )


def parse_place(place: str | PathLike[str]) -> tuple[str, Address]:
    """Reads where a gallery lies.

    Args:
        place: A folder or an address, as above. A Path is always a folder.

    Returns:
        "folder", "faiss" or "postgresql", and the address.

    Raises:
        LikenessError: The address names no store that there is, no folder, or a gallery whose name
            is no such name.

    Example:
        >>> parse_place("people"), parse_place("postgresql://ann@db/faces#staff")[1].gallery
        (('folder', Address(place='people', gallery='')), 'staff')
    """
    match = _KIND.fullmatch(place) if isinstance(place, str) else None
    if match is None:
        return "folder", Address(str(place))
    kind, rest = match.groups()
    if kind == "faiss" and rest and not rest.startswith("//"):
        return kind, Address(rest)
    server = _SERVER.fullmatch(str(place))
    if server is None:
        raise LikenessError(
            f"{mask_passwords(place)}: no gallery can lie there; write a folder (as ./NAME if its "
            "name has a colon), faiss:FOLDER or postgresql://USER@HOST/DATABASE#NAME, where #NAME, "
            "of small letters, digits and _, may be left out, and an @, /, ? or # in a password is "
            "written %40, %2F, %3F or %23"
        )
    return kind, Address(server[1], server[2] or "")


def _refuse_names(subjects: Sequence[str], rows: int) -> None:
    """Raises LikenessError unless there is one usable name for each row."""
    if len(subjects) != rows:
        raise LikenessError(f"{len(subjects)} subjects for {rows} embeddings; each needs one")
    for name in dict.fromkeys(subjects):
        if not 0 < len(name) <= MAX_SUBJECT or not is_printable(name) or name != name.strip():
            raise LikenessError(
                f"the subject {name[:40]!r} is no usable name; a name has 1 to {MAX_SUBJECT} "
                "printable characters, and no blanks at its ends"
            )


def _refuse_unknown(subjects: Collection[str], known: Collection[str]) -> None:
    """Raises NotEnrolled for subjects that are not enrolled."""
    absent = [name for name in subjects if name not in known]
    if absent:
        raise NotEnrolled(f"{absent[0]!r} is not enrolled; check the name")
