"""The store in one SQLite file: enrolments on the disk, templates in memory, all of them compared.

Every change is a transaction, so that a kill or a power cut at any moment leaves the old or the
new. One process at a time has the file open, and only its owner can read it. What is removed is
biometric data: SQLite overwrites it with zeros, and then writes the file anew, because parts of
pages that it moved earlier would still hold a copy.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.similarity import matrix
from likeness.eval.types import Floats32
from likeness.toolkit.gallery._search import is_product, top
from likeness.toolkit.gallery.store import Candidates, Enrolments, Entry, Templates, templates_of

FILE = "gallery.sqlite"
_SETTINGS = (
    "trusted_schema=OFF",
    "secure_delete=ON",
    "synchronous=FULL",
    "locking_mode=EXCLUSIVE",
    "journal_mode=TRUNCATE",  # a journal left in place would keep what was removed
)
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE enrolment (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, item TEXT NOT NULL, "
    "embedding BLOB NOT NULL)",
    "CREATE INDEX by_subject ON enrolment (subject)",
)
# The number of scores in memory at once. They take 8 MB, so that what the product writes is still
# in the cache when it is compared.
CELLS = 1 << 21
WIDTH = (1 << 12, 1 << 16)  # least and most templates in a block
_QUERIES = 256  # probes searched at once


class SqliteStore:
    """A gallery in a folder, or in memory where the folder is None.

    Each change is there whole, and kept, when the method returns.

    Args:
        folder: Made if it does not exist.
        new: The meta of a new gallery; None if there has to be one.

    Raises:
        LikenessError: The file is not a gallery, or another process uses it.
        OSError: The folder or the disk refuses it.

    Attributes:
        name: What messages call it.
        shared: Whether several processes may change it at the same time.
        folder: The folder beside which media may be kept; None where there is none.
        meta: What it says of the model, the similarity and the pooling.
        dim: The size of embeddings; 0 before the first.
        row: The row of the template of each subject, in the order of enrolment.
    """

    shared = False

    def __init__(self, folder: Path | None, new: Mapping[str, str] | None):
        self.folder, file = folder, folder / FILE if folder else ":memory:"
        self.name = str(file) if folder else "the gallery in memory"
        if isinstance(file, Path):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.chmod(0o600)  # SQLite gives its journal the mode of the file
        self._lock = RLock()
        self.row: dict[str, int] = {}
        self._entries: list[Entry] = []  # of these rows
        self._vectors = np.zeros((0, 1), dtype=np.float32)  # with room to grow
        self._db = sqlite3.connect(file, timeout=1.0, isolation_level=None, check_same_thread=False)
        # The file stays locked while it is open, also after an error here.
        try:
            with self._plain_errors():
                self.meta = self._opened(new)
                subjects, _, rows = self.enrolments()
            self.dim = rows.shape[1]
            if subjects:
                self._put(templates_of(subjects, rows, self.meta))
        except BaseException:
            self._db.close()
            raise

    def _opened(self, new: Mapping[str, str] | None) -> dict[str, str]:
        """Makes the tables where there are none; returns the meta."""
        for setting in _SETTINGS:
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute("BEGIN EXCLUSIVE")  # and the lock stays until the file is closed
        if new is not None and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", list(new.items()))
        self._db.execute("COMMIT")
        if self._db.execute("PRAGMA user_version").fetchone()[0]:  # a kill came before `erase`
            self.erase()
        return dict(self._db.execute("SELECT key, value FROM meta"))

    @property
    def vectors(self) -> Floats32:
        """The templates (G, W) as they are searched, row by row."""
        return self._vectors[: len(self)]

    def __len__(self) -> int:
        """How many subjects are enrolled."""
        return len(self.row)

    def changing(self) -> AbstractContextManager[object]:
        """A block in which nobody else changes the gallery."""
        return self._lock

    def known(self, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""
        return self.row.keys() & set(subjects)

    def enrolments(self, subjects: Sequence[str] | None = None) -> Enrolments:
        """The raw enrolments of those subjects who are enrolled; by default of everybody."""
        statement, values = "SELECT subject, item, embedding FROM enrolment", []
        if subjects is not None:
            statement += " WHERE subject IN (SELECT value FROM json_each(?))"
            values = [json.dumps(list(subjects))]
        with self._lock, self._plain_errors():
            lines = self._db.execute(statement + " ORDER BY id", values).fetchall()
            kinds = {tuple(map(type, line)) for line in lines} or {(str, str, bytes)}
            if kinds != {(str, str, bytes)} or len({len(line[2]) for line in lines}) > 1:
                raise sqlite3.DatabaseError("malformed enrolments")
        names, items, blobs = zip(*lines, strict=True) if lines else ((), (), ())
        dim = len(blobs[0]) // 4 if blobs else 0
        rows = np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), dim)
        return Enrolments(names, items, rows.astype(np.float32))

    def write(self, made: Enrolments, templates: Templates, *, replace: bool) -> None:
        """Adds enrolments, and puts the templates of their subjects.

        Args:
            made: The enrolments.
            templates: Of these subjects, in the order in which they first appear.
            replace: Whether what the subjects had goes.
        """
        raw = np.ascontiguousarray(made.rows, dtype="<f4")
        with self._transaction():
            if replace:
                self._delete(templates.subjects)
            self._db.executemany(
                "INSERT INTO enrolment (subject, item, embedding) VALUES (?, ?, ?)",
                zip(made.subjects, made.items, (row.tobytes() for row in raw), strict=True),
            )
        self.dim = raw.shape[1]
        self._put(templates)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects who are enrolled."""
        with self._transaction():
            self._delete(subjects)
        places = [self.row[name] for name in subjects]
        self._vectors = np.delete(self.vectors, places, axis=0)
        self._entries = [self._entries[i] for i in np.delete(np.arange(len(self)), places)]
        self.row = {entry.subject: i for i, entry in enumerate(self._entries)}

    def erase(self) -> None:
        """Writes the file anew, without what was removed or replaced; called after such a change.

        Raises:
            OSError: There is no room for a second file. What was removed is out of the gallery all
                the same, and the next start tries again.
        """
        done = "the change was made, but the file may still hold a copy of what was removed"
        with self._lock, self._plain_errors(done):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA user_version=0")

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """The subjects whose templates are most similar to each probe.

        Args:
            asked: Probes (Q, W) as they are searched for, see `as_asked`.
            count: How many candidates each probe gets at most.
        """
        with self._lock:
            count = min(count, len(self))
            if not count:
                return self.candidates(np.zeros((len(asked), 0), dtype=np.int64))
            parts = [
                self._nearest_rows(asked[start : start + _QUERIES], count)
                for start in range(0, len(asked), _QUERIES)
            ]
            return self.candidates(np.concatenate(parts))

    def candidates(self, rows: NDArray[np.int64]) -> Candidates:
        """The candidates in rows (Q, K) of templates; -1 stands for none."""
        asked, column = np.nonzero(rows >= 0)
        distinct, places = np.unique(rows[asked, column], return_inverse=True)
        entries = [self._entries[row] for row in distinct.tolist()]
        norms = np.array([entry.norm for entry in entries], dtype=np.float32)
        names = [entry.subject for entry in entries]
        return Candidates(names, norms, self.vectors[distinct], asked, places)

    def entries(self) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        with self._lock:
            return list(self._entries)

    def close(self) -> None:
        """Frees what the store holds, and the file for another process."""
        self._db.close()

    def _nearest_rows(self, asked: Floats32, count: int) -> NDArray[np.int64]:
        """The rows (Q, count) of the templates with the best scores."""
        width = max(min(max(CELLS // len(asked), WIDTH[0]), WIDTH[1]), count)
        vectors, buffer = self.vectors, np.empty((len(asked), width), dtype=np.float32)
        similarity = self.meta.get("similarity", "cosine")

        def scores(begin: int, end: int) -> Floats32:
            """The scores of the templates begin to end - 1."""
            if is_product(similarity):
                out = buffer if end - begin == width else None
                return np.matmul(asked, vectors[begin:end].T, out=out)
            return np.ascontiguousarray(matrix(vectors[begin:end], asked, similarity).T)

        return top(scores, len(vectors), width, count)[1]

    def _put(self, templates: Templates) -> None:
        """Writes templates into the array."""
        before = len(self)
        places = [self.row.setdefault(name, len(self.row)) for name in templates.subjects]
        if len(self) > len(self._vectors):
            shape = max(len(self), 2 * before), templates.vectors.shape[1]
            grown = np.zeros(shape, dtype=np.float32)
            if before:
                grown[:before] = self._vectors[:before]
            self._vectors = grown
        self._vectors[places] = templates.vectors
        entries = map(Entry, templates.subjects, templates.counts, templates.norms.tolist())
        for place, entry in zip(places, entries, strict=True):
            self._entries[place : place + 1] = [entry]  # or appended, behind the last

    def _delete(self, subjects: Sequence[str]) -> None:
        """Deletes the enrolments of subjects, and notes that the file has to be written anew."""
        self._db.executemany("DELETE FROM enrolment WHERE subject = ?", ((n,) for n in subjects))
        self._db.execute("PRAGMA user_version=1")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Runs the block as one transaction, which is undone if the block raises."""
        with self._plain_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _plain_errors(self, left: str = "no enrolment was changed") -> Iterator[None]:
        """Turns SQLite's errors into one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise LikenessError(
                    f"{self.name} is used by another process; a gallery belongs to one at a time: "
                    "stop it, or choose another folder"
                ) from None
            remedy = "make room on the disk, or see that the file can be written to"
            if re.search("malformed|not a database|no such table|decode to UTF-8", str(error)):
                remedy = "no gallery, or damaged: restore a copy, or delete it and enrol anew"
            raise OSError(f"{self.name}: {error}; {left}: {remedy}") from error
