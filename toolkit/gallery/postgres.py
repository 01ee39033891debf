"""The store in PostgreSQL with pgvector: many processes, on many machines, may share it.

Every change is one transaction. Those who change a gallery wait for each other at the one row that
says what the gallery is. Those who search see the state before a change or after it, and wait for
nobody, but for the moment in which a table is written anew because somebody was removed.

Up to 20,000 subjects PostgreSQL compares all of them, which is exact. Then an index (HNSW, Malkov
and Yashunin: Efficient and robust approximate nearest neighbor search, 2018) proposes candidates.

A schema has three tables. `gallery` has one row with the meta, in which those who remove somebody
leave a mark until the other tables are written anew. `enrolment` has a row for each raw
enrolment. `template` has one for each subject, with the template as it is searched, and the index.
PostgreSQL keeps no statistics of them, in which names would outlive a removal.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats32
from likeness.toolkit.gallery.store import Candidates, Enrolments, Entry, Templates

INDEXED_FROM = 20_000  # subjects
EFFORT = 100  # candidates that a search of the index keeps (ef_search), and
_MOST_EFFORT = 1000  # the most of pgvector
_MOST_DIMS = 2000  # of pgvector's index; longer rows are compared without it
_LINKS = 16  # of a row in the index (m), and
_CARE = 64  # candidates when a row is linked (ef_construction)
_MEMORY = (64, 4096)  # megabytes for making an index, at least and at most
_MARK = "to_erase"  # in the meta, where somebody was removed who is still in the files
_TABLES = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE SCHEMA IF NOT EXISTS {0};
CREATE TABLE {0}.gallery (one boolean PRIMARY KEY DEFAULT true CHECK (one), meta json NOT NULL);
CREATE TABLE {0}.enrolment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text NOT NULL, item text NOT NULL, embedding bytea NOT NULL);
CREATE INDEX by_subject ON {0}.enrolment (subject);
CREATE TABLE {0}.template (subject text PRIMARY KEY, number bigint GENERATED ALWAYS AS IDENTITY,
    enrolments integer NOT NULL, norm real NOT NULL, vector vector NOT NULL);
ALTER TABLE {0}.enrolment ALTER subject SET STATISTICS 0, ALTER embedding SET STATISTICS 0;
ALTER TABLE {0}.template ALTER subject SET STATISTICS 0, ALTER norm SET STATISTICS 0,
    ALTER vector SET STATISTICS 0;
"""
# All between the first colon behind the slashes and the last @: a password that was written without
# %40 for its own @ is hidden whole.
_PASSWORD = re.compile(r"(//[^/?#:@]*:)(.*)@", re.DOTALL)
_SECRET = re.compile(r"([?&](?:password|sslpassword)=).*", re.IGNORECASE | re.DOTALL)


class Address(NamedTuple):
    """Where a gallery is: a folder, or the address of a database and which of its galleries."""

    place: str
    gallery: str = ""

    @property
    def schema(self) -> str:
        """The schema with the tables of the gallery."""
        return f"likeness_{self.gallery}" if self.gallery else "likeness"


def mask_passwords(text: str | PathLike[str]) -> str:
    """The text of a gallery's place without passwords, as messages show it.

    Example:
        >>> mask_passwords("postgresql://ann:secret@db/faces?sslmode=require")
        'postgresql://ann:***@db/faces?sslmode=require'
    """
    return _PASSWORD.sub(r"\1***@", _SECRET.sub(r"\1***", str(text)))


def has_gallery(address: Address) -> bool:
    """Returns whether there is a gallery at the address.

    Raises:
        ConnectionError: The server does not answer.
    """
    with closing(_Connection(address)) as connection, connection.transaction() as cursor:
        return _is_there(cursor, address.schema, "gallery")


class PostgresStore:
    """A gallery in PostgreSQL; SqliteStore says what the attributes and methods are.

    Args:
        address: That of a server.
        new: The meta of a new gallery; None if there has to be one.

    Raises:
        LikenessError: The server refuses it, for example because it lacks pgvector.
        ConnectionError: The server does not answer.
    """

    shared = True
    folder: Path | None = None

    def __init__(self, address: Address, new: Mapping[str, str] | None):
        self._connection = _Connection(address)
        self.name, self._schema, self._dim = self._connection.name, address.schema, 0
        try:
            with self._connection.transaction() as cursor:
                if new is not None:
                    self._make(cursor, new)
                cursor.execute(f"SELECT meta FROM {self._schema}.gallery")
                self.meta: dict[str, str] = dict(cursor.fetchone()[0])
            if self.meta.pop(_MARK, None):  # a kill came before `erase`
                with suppress(LikenessError):  # of somebody who may only search
                    self.erase()
        except BaseException:
            self.close()
            raise

    @property
    def dim(self) -> int:
        """The size of embeddings; 0 before the first."""
        if not self._dim:
            sizes = self._ask("SELECT length(embedding) / 4 FROM {}.enrolment LIMIT 1")
            self._dim = int(sizes[0][0]) if sizes else 0
        return self._dim

    def __len__(self) -> int:
        return int(self._ask("SELECT count(*) FROM {}.template")[0][0])

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A transaction in which nobody else changes the gallery."""
        with self._connection.transaction() as cursor:
            cursor.execute(f"SELECT 1 FROM {self._schema}.gallery FOR UPDATE")
            yield

    def known(self, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""
        statement = "SELECT subject FROM {}.template WHERE subject = ANY(%s)"
        return {name for (name,) in self._ask(statement, list(subjects))}

    def enrolments(self, subjects: Sequence[str] | None = None) -> Enrolments:
        """The raw enrolments of those subjects who are enrolled; by default of everybody."""
        statement, values = "SELECT subject, item, embedding FROM {}.enrolment", []
        if subjects is not None:
            statement, values = statement + " WHERE subject = ANY(%s)", [list(subjects)]
        lines = self._ask(statement + " ORDER BY id", *values)
        names, items, blobs = zip(*lines, strict=True) if lines else ((), (), ())
        rows = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), self.dim)
        return Enrolments(names, items, rows.astype(np.float32))

    def write(self, made: Enrolments, templates: Templates, *, replace: bool) -> None:
        """Adds enrolments, and puts the templates of their subjects."""
        schema = self._schema
        with self._connection.transaction() as cursor:
            known = self.known(templates.subjects)
            if replace:
                self._delete(cursor, "enrolment", templates.subjects)
            named = f"{schema}.enrolment (subject, item, embedding)"
            with cursor.copy(f"COPY {named} FROM STDIN") as copy:
                raw = np.ascontiguousarray(made.rows, dtype="<f4")
                for name, item, row in zip(made.subjects, made.items, raw, strict=True):
                    copy.write_row((name, item, row.tobytes()))
            columns = "enrolments, norm, vector, subject"
            lines = [
                (count, float(norm), _text(vector), name)
                for name, count, norm, vector in zip(*templates, strict=True)
            ]
            cursor.executemany(
                f"UPDATE {schema}.template SET enrolments = %s, norm = %s, vector = %s::vector "
                "WHERE subject = %s",
                [line for line in lines if line[-1] in known],
            )
            with cursor.copy(f"COPY {schema}.template ({columns}) FROM STDIN") as copy:
                for line in lines:
                    if line[-1] not in known:
                        copy.write_row(line)
            if not _is_there(cursor, schema, "by_vector") and (count := len(self)) > INDEXED_FROM:
                self._make_index(cursor, templates.vectors.shape[1], count)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects who are enrolled."""
        with self._connection.transaction() as cursor:
            for table in ("enrolment", "template"):
                self._delete(cursor, table, subjects)

    def erase(self) -> None:
        """Has PostgreSQL write the tables anew, which hold what was removed until then.

        A large table, which has an index, is not written anew: that would stop others for minutes.
        The place of its rows is free then, and their bytes stay until it is used.
        """
        gallery = f"{self._schema}.gallery"
        with self._connection.alone() as cursor:
            cursor.execute(f"SELECT meta ->> '{_MARK}' FROM {gallery}")
            mark = cursor.fetchone()[0]
            full = not _is_there(cursor, self._schema, "by_vector")
            for table in ("enrolment", "template"):
                self._vacuum(cursor, f"{self._schema}.{table}", full=full)
            # Somebody who was removed meanwhile has another mark.
            cursor.execute(
                f"UPDATE {gallery} SET meta = %s WHERE meta ->> '{_MARK}' = %s",
                (json.dumps(self.meta), mark),
            )

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """The subjects whose templates have the largest products with each probe."""
        lines_of: dict[int, tuple[str, float, bytes]] = {}
        numbers: list[list[int]] = []
        with self._connection.transaction() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if count * 2 > _MOST_EFFORT:
                cursor.execute("SET LOCAL enable_indexscan = off")
            else:
                cursor.execute(f"SET LOCAL hnsw.ef_search = {max(EFFORT, count * 2)}")
            for probe in asked:
                cursor.execute(
                    f"SELECT number, subject, norm, vector FROM {self._schema}.template "
                    f"ORDER BY (vector::vector({asked.shape[1]})) <#> %s::vector LIMIT %s",
                    (_text(probe), count),
                )
                lines = cursor.fetchall()
                numbers.append([line[0] for line in lines])
                lines_of |= {number: line for number, *line in lines}
        # in the order of enrolment
        place = {number: i for i, number in enumerate(sorted(lines_of))}
        lines = [lines_of[number] for number in place]
        vectors = np.frombuffer(b"".join(blob[4:] for *_, blob in lines), dtype=">f4")
        return Candidates(
            [name for name, _, _ in lines],
            np.array([norm for _, norm, _ in lines], dtype=np.float32),
            vectors.reshape(-1, asked.shape[1]).astype(np.float32),
            np.repeat(np.arange(len(asked)), list(map(len, numbers))),
            np.array([place[number] for some in numbers for number in some], dtype=np.int64),
        )

    def entries(self) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        statement = "SELECT subject, enrolments, norm FROM {}.template ORDER BY number"
        return [Entry(*line) for line in self._ask(statement)]

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        """The rows of one question, in which {} stands for the schema."""
        with self._connection.transaction() as cursor:
            cursor.execute(statement.format(self._schema), values)
            rows: list[Any] = cursor.fetchall()
            return rows

    def _make(self, cursor: Any, meta: Mapping[str, str]) -> None:
        """Makes the gallery where there is none."""
        # Two processes that make the same schema would see each other's only at the end.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._schema,))
        if _is_there(cursor, self._schema, "gallery"):
            return
        # Not by this cursor, which asks for bytes: then PostgreSQL takes one statement at a time.
        cursor.connection.execute(_TABLES.format(self._schema))
        cursor.execute(
            f"INSERT INTO {self._schema}.gallery (meta) VALUES (%s)", (json.dumps(dict(meta)),)
        )

    def _make_index(self, cursor: Any, width: int, count: int) -> None:
        """Makes the index of `count` templates of size `width`."""
        if width > _MOST_DIMS:
            return
        needed = round(1.3 * count * (4 * width + 16 * _LINKS + 200) / 2**20)
        megabytes = min(max(needed, _MEMORY[0]), _MEMORY[1])
        cursor.execute(f"SET LOCAL maintenance_work_mem = '{megabytes}MB'")
        statement = (
            f"CREATE INDEX by_vector ON {self._schema}.template USING hnsw "
            f"((vector::vector({width})) vector_ip_ops) "
            f"WITH (m = {_LINKS}, ef_construction = {_CARE})"
        )
        try:
            with cursor.connection.transaction():
                cursor.execute(statement)
        except self._connection.errors.OperationalError:
            # Several workers share memory, of which a container may have too little.
            cursor.execute("SET LOCAL max_parallel_maintenance_workers = 0")
            cursor.execute(statement)

    def _delete(self, cursor: Any, table: str, subjects: Sequence[str]) -> None:
        """Deletes the rows of subjects from "enrolment" or "template", and notes that these have
        to be written anew.
        """
        cursor.execute(
            f"DELETE FROM {self._schema}.{table} WHERE subject = ANY(%s)", (list(subjects),)
        )
        marked = json.dumps(self.meta | {_MARK: uuid4().hex})
        cursor.execute(f"UPDATE {self._schema}.gallery SET meta = %s", (marked,))

    def _vacuum(self, cursor: Any, table: str, *, full: bool) -> None:
        """Writes a table anew, or frees the place of its removed rows."""
        if full:
            # A backup may hold the table for hours. The index is made anew in memory of this
            # process, because a container may have too little that several could share.
            cursor.execute(
                f"SET lock_timeout = '5s'; SET maintenance_work_mem = '{_MEMORY[1]}MB'; "
                "SET max_parallel_maintenance_workers = 0"
            )
            try:
                cursor.execute(f"VACUUM (FULL) {table}")
                return
            except self._connection.errors.LockNotAvailable:
                pass
            finally:
                cursor.execute("RESET ALL")
        cursor.execute(f"VACUUM (INDEX_CLEANUP ON) {table}")


class _Connection:
    """A connection to PostgreSQL, which is made anew where the server has ended it.

    Attributes:
        name: What errors call it; no password stands in it.
        errors: The exceptions of psycopg by their names.
    """

    def __init__(self, address: Address):
        self._psycopg = psycopg = import_module("psycopg")
        self.errors: Any = psycopg.errors
        self._lock = RLock()
        self._connection: Any = None
        self.name, self._url = mask_passwords(address.place), address.place
        try:
            self._password = psycopg.conninfo.conninfo_to_dict(self._url).get("password")
        except psycopg.Error:  # whose text may quote any part of it
            raise LikenessError(
                f"{self.name}: PostgreSQL cannot read this address; see its host and port"
            ) from None
        if address.gallery:
            self.name += f"#{address.gallery}"
        with self._plain_errors():
            self._connected()

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Runs the block as one transaction, which is undone if the block raises.

        Yields:
            A cursor. Values come as PostgreSQL's own bytes where psycopg knows no type.
        """
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """Runs each statement of the block for itself, for those that no transaction takes.

        Yields:
            A cursor.
        """
        with self._lock, self._plain_errors(), self._connected().cursor() as cursor:
            yield cursor

    def _connected(self) -> Any:
        """The connection; made anew where the server has ended it."""
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=10,
                application_name="likeness",
                client_encoding="utf8",
                # A pooler between us and the server may give each transaction another connection.
                prepare_threshold=None,
            )
        return self._connection

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turns PostgreSQL's errors into one sentence, in which no password stands.

        It is a ConnectionError where the server does not answer, else a LikenessError.
        """
        try:
            yield
        except self._psycopg.OperationalError as error:
            raise ConnectionError(
                f"{self.name}: the database does not answer, or broke off ({self._reason(error)}); "
                "see that it runs and takes this user, and what the gallery has before you try "
                "again"
            ) from None
        except self._psycopg.Error as error:
            raise LikenessError(
                f"{self.name}: the database refuses this ({self._reason(error)}); see that it is a "
                "gallery of Likeness, what this user may do, and that pgvector is installed, whose "
                "CREATE EXTENSION vector may need an administrator"
            ) from None

    def _reason(self, error: Exception) -> str:
        """The first line of an error, without what the address keeps secret."""
        text = str(error).strip() or type(error).__name__
        if self._password:
            text = text.replace(self._password, "***")
        return text.splitlines()[0][:200]  # cut last, or it might hold half a secret


def _is_there(cursor: Any, schema: str, name: str) -> bool:
    """Whether a schema has a table or an index of this name."""
    # to_regclass would remember what it did not find before another process made it.
    cursor.execute(
        "SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s",
        (schema, name),
    )
    return cursor.fetchone() is not None


def _text(vector: Floats32) -> str:
    """The vector as pgvector reads it; nine digits give back each float32."""
    return "[" + ",".join(f"{value:.9g}" for value in vector.tolist()) + "]"
