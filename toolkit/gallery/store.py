"""Raw enrolment embeddings of a gallery in one SQLite file.

Every change is a transaction, so that a kill or a power cut at any moment leaves the old or the
new. There is one row per enrolment: its subject and the raw float32 embedding, bit for bit. One
process at a time has the file open. Removed embeddings are overwritten with zeros (secure_delete),
because they are biometric data. Nothing in the file is executed: SQLite runs no function of an
untrusted schema, and sizes are checked.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from eval.errors import LikenessError
from eval.types import Floats32, name_first, nfc

FILE = "gallery.sqlite"
MAX_SUBJECT = 256  # characters of a name
_APPLICATION = 0x4C4B4E53  # "LKNS", in the file's header
_MAX_META = 1 << 16  # characters
_MAX_DIM = 1 << 16
MAX_NUMBER = 1e35  # in an embedding, so that the norm of the longest is a float32
_BLOCK = 1 << 14  # rows read at once
_ASKED = 500  # subjects named in one statement
# SQLite's errors that say something of the disk. All others say something of the file.
_OF_THE_DISK = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}

# Everything that a gallery's file contains: its name, and the statement that makes it.
_SCHEMA = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "sqlite_autoindex_meta_1": None,
    "enrolment": "CREATE TABLE enrolment (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, embedding "
    "BLOB NOT NULL)",
    "by_subject": "CREATE INDEX by_subject ON enrolment (subject)",
}
# The bytes that end the journal of a transaction over several files.
_JOURNAL_OF_SEVERAL = bytes.fromhex("d9d505f920a163d7")


def contradictions(meta: Mapping[str, str], expected: Mapping[str, str] | None) -> list[str]:
    """Lists in what the meta of a gallery differs from what is expected of it.

    Where the expected meta names a model, settings (crops, flip, faces) that only the gallery has
    count too, because without them that model gives other embeddings. The similarity is the
    exception.

    Args:
        meta: What the gallery says.
        expected: What it should say; None for whatever it says.

    Returns:
        A text for each entry that differs.

    Example:
        >>> contradictions({"model": "a"}, {"model": "b"})
        ["model 'a' and not 'b'"]
    """
    stated = dict(expected or {})
    more = []
    if "model" in stated:
        more = [key for key in meta if key not in stated and key != "similarity"]
    return [
        f"{key} {meta.get(key)!r} and not {stated.get(key)!r}"
        for key in (*stated, *more)
        if meta.get(key) != stated.get(key)
    ]


def refuse_no_gallery(
    where: str, meta: Mapping[str, str] | None, *, is_there: bool, of: str = ""
) -> None:
    """Refuses a place without a gallery where nothing says what to make one of.

    Args:
        where: The place.
        meta: The meta of the embeddings to come; None if the gallery decides.
        is_there: Whether there is a gallery.
        of: What a gallery there would be, in brackets.

    Raises:
        LikenessError: There is no gallery, and no meta.
    """
    if meta is None and not is_there:
        raise LikenessError(
            f"{where} contains no gallery{of and f' ({of})'}; give the meta of the embeddings to "
            "make one"
        )


def refuse_contradictions(
    name: object, meta: Mapping[str, str], expected: Mapping[str, str] | None
) -> None:
    """Refuses a gallery that was made otherwise than is expected of it.

    Args:
        name: What the message calls the gallery.
        meta: What the gallery says.
        expected: What it should say; None for whatever it says.

    Raises:
        LikenessError: They differ, as `contradictions` lists.
    """
    if wrong := contradictions(meta, expected):
        raise LikenessError(
            f"{name} was made with {'; '.join(wrong)}; embeddings of two models do not compare: "
            "enrol anew in another folder"
        )


def refuse_foreign(path: Path) -> None:
    """Raises ValueError for what cannot belong to a gallery, before SQLite sees it.

    Args:
        path: The file of a database.

    SQLite plays back the journal of a change that was killed, which is right. But a journal of a
    transaction over several files names another file, and SQLite then removes that file, whatever
    it is. No gallery has such a journal.
    """
    journal = path.with_name(f"{path.name}-journal")
    for file_path in (path, journal, path.with_name(f"{path.name}-wal")):
        if file_path.is_symlink() or (file_path.exists() and not file_path.is_file()):
            raise LikenessError(
                f"{file_path} is a link or a folder, which no gallery has; remove it or choose "
                "another folder"
            )
    if journal.is_file():
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - 8))
            if file.read(8) == _JOURNAL_OF_SEVERAL:
                raise LikenessError(
                    f"{journal} would remove other files, which no gallery asks for; it is "
                    "hostile: remove it"
                )
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            head = file.read(20)
        if head[:16] == b"SQLite format 3\0" and head[18:] != b"\1\1":
            raise LikenessError(
                f"{path} is a database with a write-ahead log, but not a gallery of Likeness; "
                "choose another folder"
            )


class Enrolments:
    """The enrolments in a folder, or in memory where the folder is None.

    Args:
        folder: The folder; made if it does not exist.
        meta: Model digest, similarity and the like, which a file that exists has to agree with.
            None accepts whatever it says.
        defaults: Entries that a new file gets beside `meta`.

    Raises:
        LikenessError: The file is not a gallery of Likeness, damaged, or used by another process;
            or `meta` contradicts what it says.
        OSError: The folder or the disk refuses it.
    """

    def __init__(
        self, folder: Path | None, meta: Mapping[str, str] | None, defaults: Mapping[str, str]
    ):
        self.name = str(folder / FILE) if folder else "the gallery in memory"
        if folder:
            is_there = (folder / FILE).is_file()
            refuse_no_gallery(str(folder), meta, is_there=is_there, of=FILE)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign(folder / FILE)
        self._db = sqlite3.connect(
            folder / FILE if folder else ":memory:",
            timeout=1.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            with self._plain_errors():
                self._open(meta, defaults)
        except BaseException:
            self._db.close()
            raise

    def _open(self, meta: Mapping[str, str] | None, defaults: Mapping[str, str]) -> None:
        """Makes the tables, or checks those that are there, and reads the meta."""
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 24)
        for setting in (
            "trusted_schema=OFF",
            "writable_schema=OFF",
            "mmap_size=0",
            "cell_size_check=ON",
            "secure_delete=ON",
            "synchronous=FULL",
            "locking_mode=EXCLUSIVE",
            "journal_mode=TRUNCATE",  # a journal left in place would keep what was removed
        ):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute("BEGIN EXCLUSIVE")  # and the lock stays until the file is closed
        tables = self._db.execute("SELECT name, sql FROM sqlite_master LIMIT 20").fetchall()
        if tables:
            self._check(tables)
            self._normalise_names()
        else:
            self._create({**defaults, **(meta or {})})
        self._db.execute("COMMIT")
        rows = self._db.execute(
            f"SELECT key, value FROM meta WHERE length(key) + length(value) <= {_MAX_META} LIMIT "
            "100"
        ).fetchall()
        known = {str(key): str(value) for key, value in rows}
        dim = known.pop("dim", "0")
        if not dim.isdecimal() or not int(dim) <= _MAX_DIM:
            raise LikenessError(
                f"{self.name}: its embeddings have {dim[:20]!r} dimensions; at most {_MAX_DIM} are "
                "read; it is damaged"
            )
        self.dim = int(dim)
        self.meta = {key.removeprefix("meta."): value for key, value in known.items()}
        self.pooling = self.meta.pop("pooling", "mean")
        refuse_contradictions(self.name, self.meta, meta)

    def _create(self, meta: Mapping[str, str]) -> None:
        """Makes the tables of a new gallery."""
        self._db.execute(f"PRAGMA application_id={_APPLICATION}")
        for text in _SCHEMA.values():
            if text:
                self._db.execute(text)
        self._db.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [(f"meta.{key}", value) for key, value in meta.items()],
        )

    def _check(self, tables: Sequence[tuple[object, object]]) -> None:
        """Raises ValueError unless the file is a whole gallery. tables: names and statements."""
        if self._db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise LikenessError(
                f"{self.name} is a database, but not a gallery of Likeness; choose another folder"
            )
        if dict(tables) != _SCHEMA or len(tables) != len(_SCHEMA):
            # A view in place of a table may run for ever. A trigger could bring back subjects that
            # were removed.
            other = [
                str(name)
                for name, text in tables
                if str(name) not in _SCHEMA or _SCHEMA[str(name)] != text
            ] or sorted(_SCHEMA.keys() - dict(tables).keys())
            raise LikenessError(
                f"{self.name}: its tables are not those of a gallery ({name_first(other)}); it is "
                "damaged or hostile: restore a copy"
            )
        wrong = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if wrong != "ok":
            raise LikenessError(
                f"{self.name}: not a gallery that can be read ({str(wrong)[:200]}); restore a "
                "copy or choose another folder"
            )

    def _normalise_names(self) -> None:
        """Puts names into Unicode NFC that an earlier version stored in another form."""
        strange = self._db.execute(
            "SELECT DISTINCT subject FROM enrolment WHERE subject GLOB '*[^ -~]*'"
        ).fetchall()
        names = [name for (name,) in strange if isinstance(name, str)]
        renamed = [(nfc(name), name) for name in names if nfc(name) != name]
        self._db.executemany("UPDATE enrolment SET subject = ? WHERE subject = ?", renamed)

    def write(self, subjects: Sequence[str], matrix: Floats32, *, replace: bool) -> None:
        """Adds one enrolment per row, in one transaction.

        Args:
            subjects: The subject of each row, R names.
            matrix: Raw embeddings (R, D).
            replace: Removes what these subjects had before.
        """
        rows = np.ascontiguousarray(matrix, dtype="<f4")
        with self._plain_errors(), self._transaction():
            if replace:
                self._db.executemany(
                    "DELETE FROM enrolment WHERE subject = ?",
                    ((subject,) for subject in dict.fromkeys(subjects)),
                )
            self._db.executemany(
                "INSERT INTO enrolment (subject, embedding) VALUES (?, ?)",
                ((subject, row.tobytes()) for subject, row in zip(subjects, rows, strict=True)),
            )
            if not self.dim:
                self._db.execute("INSERT INTO meta VALUES ('dim', ?)", (str(rows.shape[1]),))
        self.dim = rows.shape[1]

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases all enrolments of the subjects, in one transaction."""
        with self._plain_errors(), self._transaction():
            self._db.executemany(
                "DELETE FROM enrolment WHERE subject = ?", ((subject,) for subject in subjects)
            )

    def of(self, subjects: Sequence[str]) -> tuple[list[str], Floats32]:
        """Reads all enrolments of subjects.

        Returns:
            The subject of each row, R names, and the raw rows (R, D).
        """
        names: list[str] = []
        blobs: list[bytes] = []
        for start in range(0, len(subjects), _ASKED):
            part = subjects[start : start + _ASKED]
            marks = ",".join("?" * len(part))
            with self._plain_errors():
                for name, blob in self._db.execute(
                    f"SELECT subject, embedding FROM enrolment WHERE subject IN ({marks}) ORDER BY "
                    "id",
                    tuple(part),
                ):
                    names.append(name)
                    blobs.append(blob)
        return names, self._rows(names, blobs)

    def blocks(self) -> Iterator[tuple[list[str], Floats32]]:
        """Yields every enrolment in the order in which they were made, in blocks.

        Yields:
            Subjects and rows, as `of` returns them.
        """
        with self._plain_errors():
            cursor = self._db.execute("SELECT subject, embedding FROM enrolment ORDER BY id")
            while block := cursor.fetchmany(_BLOCK):
                names = [name for name, _ in block]
                yield names, self._rows(names, [blob for _, blob in block])

    def close(self) -> None:
        """Closes the file, which ends the lock on it."""
        self._db.close()

    def _rows(self, names: Sequence[object], blobs: Sequence[object]) -> Floats32:
        """The embeddings in the stored bytes, checked: (R, D)."""
        wrong = [
            str(name)
            for name, blob in zip(names, blobs, strict=True)
            if not isinstance(blob, bytes) or len(blob) != 4 * self.dim
        ]
        unnamed = sum(
            not isinstance(name, str) or not 0 < len(name) <= MAX_SUBJECT for name in names
        )
        if wrong or unnamed:
            raise LikenessError(
                f"{self.name}: {len(wrong)} enrolments are not of {self.dim} numbers "
                f"({name_first(wrong)}), {unnamed} lack a name; it is damaged"
            )
        rows = (
            np.frombuffer(b"".join(blobs), dtype="<f4")  # type: ignore[arg-type]
            .reshape(len(blobs), self.dim)
            .astype(np.float32)
        )
        if not np.isfinite(rows).all() or np.abs(rows).max(initial=0) > MAX_NUMBER:
            raise LikenessError(
                f"{self.name}: enrolments hold NaN, infinity or numbers beyond {MAX_NUMBER:g}; it "
                "is damaged"
            )
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Runs the block as one transaction, which is undone if the block raises."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turns SQLite's errors into one sentence: OSError for the disk, ValueError for a file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" in str(error):
                raise LikenessError(
                    f"{self.name}: its texts are not UTF-8; it is damaged: restore a copy or "
                    "choose another folder"
                ) from None
            if "locked" in str(error):
                raise LikenessError(
                    f"{self.name} is used by another process; a gallery belongs to one at a time: "
                    "stop it, or choose another folder"
                ) from None
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
                reason = (
                    f"{error}; nothing was changed: make room on the disk, or see that it can be "
                    "written to, and try again"
                )
                raise OSError(errno.EIO, reason, self.name) from error
            raise self._unreadable(error) from None
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: sqlite3.Error) -> LikenessError:
        """What is said of a file that SQLite cannot read."""
        return LikenessError(
            f"{self.name}: not a gallery that can be read ({error}); restore a copy or choose "
            "another folder"
        )
