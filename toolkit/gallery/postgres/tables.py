"""The tables of a gallery in PostgreSQL, and all SQL that reads and writes them.

A schema has three tables. `gallery` has one row, which says what made the embeddings; who locks it
may change the gallery. `enrolment` has a row for each raw enrolment. `template` has one for each
subject, with the template as it is searched, and the index.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eval.errors import LikenessError
from eval.types import Floats32, first_line
from toolkit.gallery.postgres.connection import Connection
from toolkit.gallery.rules import Entry, storable

_MOST_EFFORT = 1000  # of pgvector
_MOST_DIMS = 2000  # of pgvector's index; longer rows are compared without it
_LINKS = 16  # of a row in the index (m), and
_CARE = 64  # candidates when a row is linked (ef_construction)
_MEMORY = (64, 4096)  # megabytes for making an index, at least and at most


class State(NamedTuple):
    """What the one row of a gallery says; dim is 0 before the first enrolment."""

    meta: dict[str, str]
    pooling: str
    dim: int
    subjects: int  # how many are enrolled; PostgreSQL would count a million in a second


class Template(NamedTuple):
    """A subject's row of the table that is searched; `vector` is its template as it is searched."""

    subject: str
    enrolments: int
    norm: float
    vector: Floats32


class Tables:
    """The tables of one gallery, in a schema of their own.

    Args:
        connection: To the database.
        name: Which of its galleries; "" for the one without a name.
    """

    def __init__(self, connection: Connection, name: str):
        self._connection, self.name = connection, connection.name
        self.schema = f"likeness_{name}" if name else "likeness"

    def has_gallery(self, cursor: Any) -> bool:
        """Whether the gallery is there."""
        # to_regclass would remember what it did not find before another process made it.
        cursor.execute(
            "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'gallery'",
            (self.schema,),
        )
        return cursor.fetchone() is not None

    def make(self, cursor: Any, entries: Mapping[str, str]) -> None:
        """Makes the gallery, unless another process was faster; its tables come with `make_tables`.

        Raises:
            LikenessError: The server has no pgvector, and does not let us add it.
        """
        # Two processes that make the same schema would see each other's only at the end.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.schema,))
        if self.has_gallery(cursor):
            return
        cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'")
        if cursor.fetchone() is None:
            try:
                cursor.execute("CREATE EXTENSION vector")
            except self._connection.errors.Error as error:
                raise LikenessError(
                    f"{self.name}: the database has no pgvector ({first_line(error)}); install "
                    "pgvector on the server, and let its administrator run CREATE EXTENSION vector "
                    "in this database"
                ) from None
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
        cursor.execute(
            f"CREATE TABLE {self.schema}.gallery (one boolean PRIMARY KEY DEFAULT true "
            "CHECK (one), meta json NOT NULL, dim integer NOT NULL, subjects integer NOT NULL)"
        )
        cursor.execute(
            f"INSERT INTO {self.schema}.gallery (meta, dim, subjects) VALUES (%s, 0, 0)",
            (json.dumps(dict(entries)),),
        )

    def make_tables(self, cursor: Any, dim: int, width: int) -> None:
        """Makes the tables of enrolments and templates.

        Args:
            cursor: Of a transaction that holds the gallery's row.
            dim: The size of embeddings.
            width: The size of templates as they are searched.
        """
        cursor.execute(
            f"CREATE TABLE {self.schema}.enrolment (id bigint GENERATED ALWAYS AS IDENTITY "
            "PRIMARY KEY, subject text NOT NULL, embedding bytea NOT NULL)"
        )
        cursor.execute(f"CREATE INDEX by_subject ON {self.schema}.enrolment (subject)")
        cursor.execute(
            f"CREATE TABLE {self.schema}.template (subject text PRIMARY KEY, number bigint "
            "GENERATED ALWAYS AS IDENTITY, enrolments integer NOT NULL, norm real NOT NULL, "
            f"vector vector({width}) NOT NULL)"
        )
        cursor.execute(f"UPDATE {self.schema}.gallery SET dim = %s", (dim,))

    def count(self, cursor: Any, subjects: int) -> None:
        """Writes down how many subjects are enrolled from now on."""
        cursor.execute(f"UPDATE {self.schema}.gallery SET subjects = %s", (subjects,))

    def make_index(self, cursor: Any, width: int, count: int) -> None:
        """Makes the index of `count` templates of size `width`, unless it is there."""
        if width > _MOST_DIMS or self.has_index(cursor):
            return
        needed = round(1.3 * count * (4 * width + 16 * _LINKS + 200) / 2**20)
        megabytes = min(max(needed, _MEMORY[0]), _MEMORY[1])
        cursor.execute(f"SET LOCAL maintenance_work_mem = '{megabytes}MB'")
        statement = (
            f"CREATE INDEX by_vector ON {self.schema}.template USING hnsw (vector vector_ip_ops) "
            f"WITH (m = {_LINKS}, ef_construction = {_CARE})"
        )
        try:
            with cursor.connection.transaction():
                cursor.execute(statement)
        except self._connection.errors.OperationalError:
            # Several workers share memory, of which a container may have too little.
            cursor.execute("SET LOCAL max_parallel_maintenance_workers = 0")
            cursor.execute(statement)

    def has_index(self, cursor: Any) -> bool:
        """Whether searches go by way of the index."""
        cursor.execute(
            "SELECT 1 FROM pg_indexes WHERE schemaname = %s AND indexname = 'by_vector'",
            (self.schema,),
        )
        return cursor.fetchone() is not None

    def state(self, cursor: Any, *, locks: bool = False) -> State:
        """What the gallery's one row says.

        Args:
            cursor: Of a transaction.
            locks: Whether others who want to change the gallery wait until the transaction ends.
        """
        cursor.execute(
            f"SELECT meta, dim, subjects FROM {self.schema}.gallery{' FOR UPDATE' if locks else ''}"
        )
        line = cursor.fetchone()
        if line is None or not isinstance(line[0], dict):
            raise LikenessError(
                f"{self.name}: its table does not say what it is of; it is damaged: restore a copy"
            )
        meta = {str(key): str(value) for key, value in line[0].items()}
        return State(meta, meta.pop("pooling", "mean"), int(line[1]), int(line[2]))

    def known(self, cursor: Any, state: State, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""
        if not state.dim:
            return set()
        cursor.execute(
            f"SELECT subject FROM {self.schema}.template WHERE subject = ANY(%s)",
            (storable(subjects),),
        )
        return {name for (name,) in cursor.fetchall()}

    def enrolments(self, cursor: Any, state: State, subjects: Sequence[str]) -> dict[str, Floats32]:
        """The raw enrolments (R, D) of those subjects who have some."""
        if not state.dim:
            return {}
        cursor.execute(
            f"SELECT subject, embedding FROM {self.schema}.enrolment "
            "WHERE subject = ANY(%s) ORDER BY id",
            (storable(subjects),),
        )
        blobs: dict[str, list[bytes]] = {}
        for name, blob in cursor.fetchall():
            blobs.setdefault(name, []).append(blob)
        return {
            name: np.frombuffer(b"".join(some), dtype="<f4")
            .reshape(-1, state.dim)
            .astype(np.float32)
            for name, some in blobs.items()
        }

    def delete(self, cursor: Any, table: str, subjects: Sequence[str]) -> None:
        """Deletes the rows of subjects from "enrolment" or "template"."""
        cursor.execute(
            f"DELETE FROM {self.schema}.{table} WHERE subject = ANY(%s)", (list(subjects),)
        )

    def add_enrolments(self, cursor: Any, subjects: Sequence[str], rows: Floats32) -> None:
        """Adds raw enrolments (R, D), each with its subject."""
        _copy(
            cursor,
            f"{self.schema}.enrolment (subject, embedding)",
            (
                (name.encode(), row.tobytes())
                for name, row in zip(subjects, rows.astype("<f4"), strict=True)
            ),
        )

    def put_templates(
        self, cursor: Any, templates: Sequence[Template], known: Collection[str]
    ) -> None:
        """Adds templates, or puts them in place of those of the subjects who are known."""
        cursor.executemany(
            f"UPDATE {self.schema}.template SET enrolments = %s, norm = %s, "
            "vector = %s::vector WHERE subject = %s",
            [
                (each.enrolments, each.norm, _text(each.vector), each.subject)
                for each in templates
                if each.subject in known
            ],
        )
        _copy(
            cursor,
            f"{self.schema}.template (subject, enrolments, norm, vector)",
            (
                (
                    each.subject.encode(),
                    struct.pack(">i", each.enrolments),
                    struct.pack(">f", each.norm),
                    struct.pack(">hh", len(each.vector), 0) + each.vector.astype(">f4").tobytes(),
                )
                for each in templates
                if each.subject not in known
            ),
        )

    def entries(self, cursor: Any) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        cursor.execute(
            f"SELECT subject, enrolments, norm FROM {self.schema}.template ORDER BY number"
        )
        return [Entry(*line) for line in cursor.fetchall()]

    def nearest(self, cursor: Any, asked: Floats32, num: int, effort: int) -> list[list[str]]:
        """The subjects whose templates have the largest products with each row.

        Args:
            cursor: Of a transaction.
            asked: Probes as they are searched for (Q, D).
            num: How many subjects for each.
            effort: How many candidates a search of the index keeps at least.

        Returns:
            Of each row the subjects in the order in which they were first enrolled.
        """
        if num * 2 > _MOST_EFFORT:
            cursor.execute("SET LOCAL enable_indexscan = off")
        else:
            cursor.execute(f"SET LOCAL hnsw.ef_search = {max(effort, num * 2)}")
        nearest: list[list[str]] = []
        for row in asked:
            cursor.execute(
                f"SELECT subject, number FROM {self.schema}.template "
                "ORDER BY vector <#> %s::vector LIMIT %s",
                (_text(row), num),
            )
            lines = sorted(cursor.fetchall(), key=lambda line: line[1])
            nearest.append([subject for subject, _ in lines])
        return nearest

    def erase(self) -> None:
        """Has PostgreSQL erase the rows that were removed or replaced, which it keeps until then.

        A small table is written anew. In a large one, which has an index, the rows are taken out of
        the index and their place is free; their bytes stay in the file until it is used again.
        """
        with self._connection.alone() as cursor:
            full = not self.has_index(cursor)
            for table in ("enrolment", "template"):
                self._vacuum(cursor, f"{self.schema}.{table}", full=full)
            if self._connection.is_own:  # the log of changes holds what was enrolled
                for statement in ("CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
                    cursor.execute(statement)

    def _vacuum(self, cursor: Any, table: str, *, full: bool) -> None:
        if full:
            cursor.execute("SET lock_timeout = '5s'")  # a backup may hold the table for hours
            try:
                cursor.execute(f"VACUUM (FULL) {table}")
                return
            except self._connection.errors.LockNotAvailable:
                pass
            finally:
                cursor.execute("RESET lock_timeout")
        cursor.execute(f"VACUUM (INDEX_CLEANUP ON) {table}")


def _text(vector: Floats32) -> str:
    """The vector as pgvector reads it; nine digits give back each float32."""
    return "[" + ",".join(f"{value:.9g}" for value in vector.tolist()) + "]"


def _copy(cursor: Any, table: str, rows: Iterable[Sequence[bytes]]) -> None:
    """Adds rows by PostgreSQL's binary COPY, which takes a million in seconds."""
    with cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
        for fields in rows:
            sized = (struct.pack(">i", len(field)) + field for field in fields)
            copy.write(struct.pack(">h", len(fields)) + b"".join(sized))
        copy.write(b"\xff\xff")
