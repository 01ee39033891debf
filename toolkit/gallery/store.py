"""Raw enrolment embeddings of a gallery in one SQLite file: every change is a transaction, so that
a kill or a power cut at any moment leaves old or new.

One row per enrolment: its subject and the raw float32 embedding, bit for bit. The file is held by
one process at a time. Removed embeddings are overwritten with zeros (secure_delete), since they are
biometric data. Nothing in the file is executed: SQLite runs no function of an untrusted schema,
sizes are checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from eval.types import Floats32, name_first, nfc

FILE = "gallery.sqlite"
MAX_SUBJECT = 256  # characters of a name
_APPLICATION = 0x4C4B4E53  # "LKNS", in the file's header
_MAX_META = 1 << 16  # characters
_MAX_DIM = 1 << 16
_MAX_NUMBER = 1e35  # of an embedding: the norm of the longest is a float32 then
_BLOCK = 1 << 14  # rows read at once
_ASKED = 500  # subjects named in one statement


_SCHEMA = {  # the whole of a gallery: name, and how it is made
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "sqlite_autoindex_meta_1": None,
    "enrolment": "CREATE TABLE enrolment (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, embedding "
    "BLOB NOT NULL)",
    "by_subject": "CREATE INDEX by_subject ON enrolment (subject)",
}
_JOURNAL_OF_SEVERAL = bytes.fromhex(
    "d9d505f920a163d7"
)  # what ends the journal of a transaction over several files


def contradictions(held: Mapping[str, str], wanted: Mapping[str, str] | None) -> list[str]:
    """In what a gallery's meta differs from what is wanted of it, entry by entry: `crops None and
    not '3 x 4 s, mean'`.

    Where a model is named, settings (crops, flip, faces) that only the gallery has count too:
    without them that model gives other embeddings.
    """
    stated = dict(wanted or {})
    more = (
        [key for key in held if key not in stated and key != "similarity"]
        if "model" in stated
        else []
    )
    return [
        f"{key} {held.get(key)!r} and not {stated.get(key)!r}"
        for key in (*stated, *more)
        if held.get(key) != stated.get(key)
    ]


def refuse_contradictions(
    name: object, held: Mapping[str, str], wanted: Mapping[str, str] | None
) -> None:
    """ValueError for a gallery, called `name`, that was made otherwise than is wanted of it."""
    if wrong := contradictions(held, wanted):
        raise ValueError(
            f"{name} was made with {'; '.join(wrong)}; embeddings of two models do not compare: "
            "enrol anew in another folder"
        )


def _refuse_foreign(path: Path) -> None:
    """ValueError for what no gallery is, before SQLite sees it.

    The journal of a killed change is played back, which is right. One that belongs to a transaction
    over several files names another file, which SQLite then removes, whatever it is; a gallery has
    none.
    """
    for one in (path, path.with_name(f"{FILE}-journal"), path.with_name(f"{FILE}-wal")):
        if one.is_symlink() or (one.exists() and not one.is_file()):
            raise ValueError(
                f"{one} is a link or a folder, which no gallery has; remove it or choose another "
                "folder"
            )
    journal = path.with_name(f"{FILE}-journal")
    if journal.is_file():
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - 8))
            if file.read(8) == _JOURNAL_OF_SEVERAL:
                raise ValueError(
                    f"{journal} would remove other files, which no gallery asks for; it is "
                    "hostile: remove it"
                )
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            head = file.read(20)
        if head[:16] == b"SQLite format 3\0" and head[18:] != b"\1\1":
            raise ValueError(
                f"{path} is a database with a write-ahead log, but no gallery of Likeness; choose "
                "another folder"
            )


class Enrolments:
    """The enrolments of a folder, or in memory where it is None.

    meta: model digest, similarity and the like, which a file that exists has to agree with; None:
    whatever it says. A new file says `defaults` and `meta`.
    ValueError: no gallery file of Likeness, damaged, used by another process, or `meta` contradicts
    what it holds.
    """

    def __init__(
        self, folder: Path | None, meta: Mapping[str, str] | None, defaults: Mapping[str, str]
    ):
        self.name = str(folder / FILE) if folder else "the gallery in memory"
        if folder:
            if meta is None and not (folder / FILE).is_file():
                raise ValueError(
                    f"{folder} holds no gallery ({FILE}); give the meta of the embeddings to make "
                    "one"
                )
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(folder / FILE)
        self._db = sqlite3.connect(
            folder / FILE if folder else ":memory:",
            timeout=1.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            with self._said():
                self._open(meta, defaults)
        except BaseException:
            self._db.close()
            raise

    def _open(self, meta: Mapping[str, str] | None, defaults: Mapping[str, str]) -> None:
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 24)
        for setting in (
            "trusted_schema=OFF", "writable_schema=OFF", "mmap_size=0", "cell_size_check=ON",
            "secure_delete=ON",
                "synchronous=FULL", "locking_mode=EXCLUSIVE", "journal_mode=TRUNCATE",
        ):  # fmt: skip
            self._db.execute(
                f"PRAGMA {setting}"
            )  # a journal left in place would keep what was removed
        self._db.execute("BEGIN EXCLUSIVE")  # and the lock stays until the file is closed
        found = self._db.execute("SELECT name, sql FROM sqlite_master LIMIT 20").fetchall()
        if not found:
            self._db.execute(f"PRAGMA application_id={_APPLICATION}")
            for text in _SCHEMA.values():
                if text:
                    self._db.execute(text)
            self._db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [(f"meta.{key}", value) for key, value in {**defaults, **(meta or {})}.items()],
            )
        elif self._db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise ValueError(
                f"{self.name} is a database, but no gallery of Likeness; choose another folder"
            )
        elif dict(found) != _SCHEMA or len(found) != len(_SCHEMA):
            # a view in place of a table may run for ever, a trigger brings back who was removed
            other = [
                str(name) for name, text in found if name not in _SCHEMA or _SCHEMA[name] != text
            ] or sorted(_SCHEMA.keys() - dict(found).keys())
            raise ValueError(
                f"{self.name}: its tables are not those of a gallery ({name_first(other)}); it is "
                "damaged or hostile: restore a copy"
            )
        else:
            wrong = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if wrong != "ok":
                raise ValueError(
                    f"{self.name}: no gallery that can be read ({str(wrong)[:200]}); restore a "
                    "copy or choose another folder"
                )
            # names that an earlier version stored in another Unicode form
            strange = self._db.execute(
                "SELECT DISTINCT subject FROM enrolment WHERE subject GLOB '*[^ -~]*'"
            ).fetchall()
            renamed = [
                (nfc(one), one) for (one,) in strange if isinstance(one, str) and nfc(one) != one
            ]
            self._db.executemany("UPDATE enrolment SET subject = ? WHERE subject = ?", renamed)
        self._db.execute("COMMIT")
        held = self._db.execute(
            f"SELECT key, value FROM meta WHERE length(key) + length(value) <= {_MAX_META} LIMIT "
            "100"
        ).fetchall()
        known = {str(key): str(value) for key, value in held}
        dim = known.pop("dim", "0")
        if not dim.isdecimal() or not int(dim) <= _MAX_DIM:
            raise ValueError(
                f"{self.name}: its embeddings have {dim[:20]!r} dimensions; at most {_MAX_DIM} are "
                "read; it is damaged"
            )
        self.dim = int(dim)
        self.meta = {key.removeprefix("meta."): value for key, value in known.items()}
        self.pooling = self.meta.pop("pooling", "mean")
        refuse_contradictions(self.name, self.meta, meta)

    def write(self, subjects: Sequence[str], matrix: Floats32, *, replace: bool) -> None:
        """Add one enrolment per subject entry and row, in one transaction; with `replace` what
        these subjects had before goes.
        """
        rows = np.ascontiguousarray(matrix, dtype="<f4")
        with self._said(), self._transaction():
            if replace:
                self._db.executemany(
                    "DELETE FROM enrolment WHERE subject = ?",
                    ((one,) for one in dict.fromkeys(subjects)),
                )
            self._db.executemany(
                "INSERT INTO enrolment (subject, embedding) VALUES (?, ?)",
                ((one, row.tobytes()) for one, row in zip(subjects, rows, strict=True)),
            )
            if not self.dim:
                self._db.execute("INSERT INTO meta VALUES ('dim', ?)", (str(rows.shape[1]),))
        self.dim = rows.shape[1]

    def remove(self, subjects: Sequence[str]) -> None:
        """Erase all enrolments of the subjects, in one transaction."""
        with self._said(), self._transaction():
            self._db.executemany(
                "DELETE FROM enrolment WHERE subject = ?", ((one,) for one in subjects)
            )

    def of(self, subjects: Sequence[str]) -> tuple[list[str], Floats32]:
        """All enrolments of the subjects: the subject of each (R,), and the raw rows (R, D)."""
        names: list[str] = []
        blobs: list[bytes] = []
        for start in range(0, len(subjects), _ASKED):
            part = subjects[start : start + _ASKED]
            marks = ",".join("?" * len(part))
            with self._said():
                for name, blob in self._db.execute(
                    f"SELECT subject, embedding FROM enrolment WHERE subject IN ({marks}) ORDER BY "
                    "id",
                    tuple(part),
                ):
                    names.append(name)
                    blobs.append(blob)
        return names, self._rows(names, blobs)

    def blocks(self) -> Iterator[tuple[list[str], Floats32]]:
        """Every enrolment in the order in which they were made, as in `of`, in blocks."""
        with self._said():
            found = self._db.execute("SELECT subject, embedding FROM enrolment ORDER BY id")
            while block := found.fetchmany(_BLOCK):
                names = [name for name, _ in block]
                yield names, self._rows(names, [blob for _, blob in block])

    def close(self) -> None:
        self._db.close()

    def _rows(self, names: Sequence[object], blobs: Sequence[object]) -> Floats32:
        wrong = [
            str(name)
            for name, blob in zip(names, blobs, strict=True)
            if not isinstance(blob, bytes) or len(blob) != 4 * self.dim
        ]
        unnamed = sum(
            not isinstance(name, str) or not 0 < len(name) <= MAX_SUBJECT for name in names
        )
        if wrong or unnamed:
            raise ValueError(
                f"{self.name}: {len(wrong)} enrolments are not of {self.dim} numbers "
                f"({name_first(wrong)}), {unnamed} lack a name; it is damaged"
            )
        rows = (
            np.frombuffer(b"".join(blobs), dtype="<f4")  # type: ignore[arg-type]
            .reshape(len(blobs), self.dim)
            .astype(np.float32)
        )
        if not np.isfinite(rows).all() or np.abs(rows).max(initial=0) > _MAX_NUMBER:
            raise ValueError(
                f"{self.name}: enrolments hold NaN, infinity or numbers beyond {_MAX_NUMBER:g}; it "
                "is damaged"
            )
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _said(self) -> Iterator[None]:
        """SQLite's errors as one sentence: OSError for what a disk does, ValueError for a file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" in str(error):
                raise ValueError(
                    f"{self.name}: its texts are no UTF-8; it is damaged: restore a copy or choose "
                    "another folder"
                ) from None
            if "locked" in str(error):
                raise ValueError(
                    f"{self.name} is used by another process; one at a time may hold a gallery: "
                    "stop it, or choose another folder"
                ) from None
            raise OSError(
                f"{self.name}: {error}; nothing was changed: make room on the disk, or see that it "
                "can be written to, and try again"
            ) from error
        except sqlite3.Error as error:
            raise ValueError(
                f"{self.name}: no gallery that can be read ({error}); restore a copy or choose "
                "another folder"
            ) from None
