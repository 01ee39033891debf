"""A gallery in PostgreSQL with pgvector: many processes, on many machines, may share it.

It has the same methods as ExactGallery. Every change is one transaction. Those who change a gallery
wait for each other at the one row that says what the gallery is (tables.py). Those who search see
the state before a change or after it, and wait for nobody, but for the moment in which a small
table is written anew because somebody was removed.

Up to 20,000 subjects PostgreSQL compares all of them, which is exact. Then an index (HNSW, Malkov
and Yashunin: Efficient and robust approximate nearest neighbor search, 2018) proposes candidates,
which are scored like trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.types import Embeddings, Floats32, nfc
from toolkit.gallery.location import Location
from toolkit.gallery.postgres.connection import Connection
from toolkit.gallery.postgres.tables import State, Tables, Template
from toolkit.gallery.rules import (
    EXTRA,
    Entry,
    Match,
    joined,
    ranked,
    refuse_names,
    refuse_other,
    refuse_similarity,
    refuse_unknown,
    stated,
)
from toolkit.gallery.search import angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions, refuse_no_gallery

INDEXED_FROM = 20_000  # subjects
EFFORT = 100  # candidates that a search of the index keeps (ef_search)


def holds(where: Location) -> bool:
    """Returns whether there is a gallery at the address, or in the folder.

    Raises:
        ConnectionError: The server does not answer.
    """
    if not where.is_server and not (Path(where.place) / "PG_VERSION").is_file():
        return False
    connection = Connection(where)
    try:
        with connection.transaction() as cursor:
            return Tables(connection, where.name).has_gallery(cursor)
    finally:
        connection.close()


class PostgresGallery:
    """A gallery in PostgreSQL.

    Args:
        where: A server, or a folder in which a PostgreSQL of our own runs while it is used.
        meta: As of ExactGallery.
        similarity: cosine, dot or simple; by default what the meta says, else cosine.
        pooling: As of ExactGallery.

    Raises:
        LikenessError: The gallery is of another model or similarity; there is none and no meta
            makes one; or the server refuses it, for example because it lacks pgvector. A package is
            missing; the message names the extra to install.
        ConnectionError: The server does not answer.
    """

    shared = True
    folder: Path | None = None

    def __init__(
        self,
        where: Location,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
    ):
        self._connection = connection = Connection(where)
        self._tables = tables = Tables(connection, where.name)
        self._effort = EFFORT
        try:
            with connection.transaction() as cursor:
                new = not tables.has_gallery(cursor)
                refuse_no_gallery(tables.name, meta, is_there=not new)
                agreed, defaults = stated(meta, similarity, pooling, new)
                if new:
                    entries = {**defaults, **(agreed or {})}
                    refuse_similarity(entries["similarity"], "PostgreSQL")
                    tables.make(cursor, entries)
                state = tables.state(cursor)
            refuse_contradictions(tables.name, state.meta, agreed)
            self._meta = state.meta
            self.similarity = state.meta.get("similarity", "cosine")
            refuse_similarity(self.similarity, "PostgreSQL")
            self.b_theta = angular_bias(self.similarity)
        except BaseException:
            connection.close()
            raise

    @property
    def meta(self) -> Mapping[str, str]:
        """What the gallery says of its embeddings."""
        return self._meta

    @property
    def dim(self) -> int:
        """The size D of its embeddings; 0 before the first."""
        with self._reading() as (_, state):
            return state.dim

    def __len__(self) -> int:
        with self._reading() as (_, state):
            return state.subjects

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments, as ExactGallery.enrol."""
        self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Replaces enrolments, as ExactGallery.update."""
        self._write(embeddings, list(map(nfc, subjects)), replace=True)
        if subjects:
            self._tables.erase()

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, as ExactGallery.remove.

        What PostgreSQL keeps of removed rows beyond its tables (its log, replicas, backups) is in
        the hands of who runs it.
        """
        leaving = list(dict.fromkeys(map(nfc, subjects)))
        with self._changing() as (cursor, state):
            refuse_unknown(leaving, self._tables.known(cursor, state, leaving))
            if not leaving:
                return
            self._tables.delete(cursor, "enrolment", leaving)
            self._tables.delete(cursor, "template", leaving)
            self._tables.count(cursor, state.subjects - len(leaving))
        self._tables.erase()

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, as ExactGallery.search."""
        with self._reading() as (cursor, state):
            refuse_other(state.meta, state.dim, probes, k)
            if not state.dim:
                return [()] * len(probes.ids)
            asked = as_asked(probes.matrix, self.b_theta, self.similarity)
            candidates = self._tables.nearest(cursor, asked, k + EXTRA, self._effort)
            names_of_all = list(dict.fromkeys(name for names in candidates for name in names))
            enrolments = self._tables.enrolments(cursor, state, names_of_all)
        return [
            ranked(
                {name: enrolments[name] for name in names},
                probe,
                k,
                threshold,
                pooling=state.pooling,
                similarity=self.similarity,
            )
            for names, probe in zip(candidates, probes.matrix, strict=True)
        ]

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in the order of enrolment."""
        with self._reading() as (cursor, state):
            return self._tables.entries(cursor) if state.dim else []

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, as ExactGallery.enrolments."""
        name = nfc(subject)
        with self._reading() as (cursor, state):
            rows = self._tables.enrolments(cursor, state, [name])
            refuse_unknown([name], rows)
            return rows[name]

    def close(self) -> None:
        """Ends the connection; a PostgreSQL of our own ends with the last process that uses it."""
        self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, State]]:
        """A transaction that sees one state of the gallery, which is the second value."""
        with self._connection.transaction() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield cursor, self._state(cursor)

    @contextmanager
    def _changing(self) -> Iterator[tuple[Any, State]]:
        """A transaction that changes the gallery, while nobody else does."""
        with self._connection.transaction() as cursor:
            yield cursor, self._state(cursor, locks=True)

    def _state(self, cursor: Any, *, locks: bool = False) -> State:
        """What the gallery says now; another process may have made it anew."""
        state = self._tables.state(cursor, locks=locks)
        refuse_contradictions(self._tables.name, state.meta, self._meta)
        return state

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments, in one transaction."""
        tables = self._tables
        with self._changing() as (cursor, state):
            refuse_other(state.meta, state.dim, embeddings)
            refuse_names(subjects, len(embeddings.ids))
            if not subjects:
                return
            names = list(dict.fromkeys(subjects))
            known = tables.known(cursor, state, names)
            if replace:
                refuse_unknown(names, known)
                tables.delete(cursor, "enrolment", names)
            before = {} if replace else tables.enrolments(cursor, state, list(known))
            blocks, templates = joined(embeddings, subjects, before, state.pooling)
            vectors = as_searched(templates.matrix, self.b_theta, self.similarity)
            if not state.dim:
                tables.make_tables(cursor, embeddings.matrix.shape[1], vectors.shape[1])
            tables.add_enrolments(cursor, subjects, embeddings.matrix)
            tables.put_templates(
                cursor,
                [
                    Template(name, len(blocks[name]), norm, vector)
                    for name, norm, vector in zip(
                        templates.ids, templates.norms.tolist(), vectors, strict=True
                    )
                ],
                known,
            )
            count = state.subjects + len(names) - len(known)
            tables.count(cursor, count)
            if count > INDEXED_FROM:
                tables.make_index(cursor, vectors.shape[1], count)
