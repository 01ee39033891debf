"""A gallery in a LanceDB table: embedded, on disk, larger than memory if it must be.

It has the same methods as ExactGallery. One process writes, and any number read.

There is one row per subject, with its raw enrolments and its template. LanceDB commits a change of
any number of rows of one table as a new version in one step, and a kill leaves the version before.
Removing erases the older versions too, and what an index has of them.

Up to 20,000 subjects LanceDB compares all of them, which is exact. Then an index of inverted lists
proposes candidates, which are scored like trials. Rows that were added since are compared one by
one, until they are so many that the index takes them in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats.tables import create_lance, has_version, remove_older_versions
from eval.formats.writing import added
from eval.types import Embeddings, Floats32, first_line, name_first, nfc
from toolkit.gallery import media
from toolkit.gallery.rules import (
    EXTRA,
    Entry,
    Match,
    joined,
    pooled,
    ranked,
    refuse_names,
    refuse_other,
    refuse_similarity,
    refuse_unknown,
    stated,
)
from toolkit.gallery.search import angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions, refuse_no_gallery

TABLE = "gallery"
INDEXED_FROM = 20_000  # subjects, and rows beside an index
SHARE = 0.08  # of the lists of the index that a search visits
_PER_LIST = 256  # rows of a list
_INDEX = "by_vector"
_BLOCK = 1 << 14


def holds(folder: Path) -> bool:
    """Returns whether a LanceGallery lies in the folder."""
    return has_version(folder / f"{TABLE}.lance")


class LanceGallery:
    """A gallery in a table of LanceDB.

    Args:
        folder: The folder of the database; made if it does not exist.
        meta: As of ExactGallery.
        similarity: cosine, dot or simple; by default what the meta says, else cosine.
        pooling: As of ExactGallery.

    Raises:
        LikenessError: The table is of another model or similarity, or is not one of Likeness.
        ImportError: LanceDB is missing; the message names the extra to install.
    """

    shared = False

    def __init__(
        self,
        folder: str | Path,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
    ):
        try:
            import lancedb
        except ImportError:
            raise ImportError(
                "a LanceDB gallery needs LanceDB; run `pip install 'likeness[search]'`"
            ) from None
        self.folder = Path(folder)
        refuse_no_gallery(str(folder), meta, is_there=holds(self.folder), of="a LanceDB table")
        agreed, defaults = stated(meta, similarity, pooling, not holds(self.folder))
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self.folder / f"{TABLE}.lance"
        self._db: Any = lancedb.connect(str(self.folder))
        self._table: Any = None
        self._lock = RLock()
        self.meta = {**defaults, **(agreed or {})}
        self.pooling, self.dim = self.meta.pop("pooling"), 0
        if holds(self.folder):
            self._open(agreed)
        self.similarity = self.meta["similarity"]
        refuse_similarity(self.similarity, "LanceDB")
        self.b_theta = angular_bias(self.similarity)

    def _open(self, agreed: Mapping[str, str] | None) -> None:
        """Opens the table that is there and reads its meta."""
        try:
            with self._readable():
                table = self._db.open_table(TABLE)
                schema = table.schema
            entries = json.loads((schema.metadata or {})[b"likeness"])
            dim = int(entries.pop("dim"))
            meta = {str(key): str(value) for key, value in entries.items()}
            pooling = meta.pop("pooling")
            if "similarity" not in meta or schema.names != ["subject", "enrolments", "vector"]:
                raise LikenessError("columns or meta are missing")
        except (KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
            raise LikenessError(
                f"{self.folder}: not a gallery of Likeness ({str(error)[:120]}); choose another "
                "folder"
            ) from None
        refuse_contradictions(self.folder, meta, agreed)
        # The table comes last: where it is set, the other three belong to it.
        self.meta, self.pooling, self.dim = meta, pooling, dim
        self._table = table

    def __len__(self) -> int:
        table = self._latest()
        with self._readable():
            return 0 if table is None else int(table.count_rows())

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments, as ExactGallery.enrol."""
        with self._lock, self._readable():
            self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Replaces enrolments, as ExactGallery.update."""
        subjects = list(map(nfc, subjects))
        with self._lock, self._readable():
            refuse_unknown(list(dict.fromkeys(subjects)), set(self._enrolments(subjects)))
            self._write(embeddings, subjects, replace=True)
            if subjects:
                self._erase_older()

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, as ExactGallery.remove."""
        leaving = list(dict.fromkeys(map(nfc, subjects)))
        with self._lock, self._readable():
            refuse_unknown(leaving, set(self._enrolments(leaving)))
            if leaving:
                media.erase(self.folder, leaving)
                with added(self._path):
                    self._table.delete(_among(leaving))
                self._erase_older()

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, as ExactGallery.search."""
        count = len(self)
        refuse_other(self.meta, self.dim, probes, k)
        if not count:
            return [()] * len(probes.ids)
        asked = as_asked(probes.matrix, self.b_theta, self.similarity)
        lists = math.ceil(self._num_indexed() / _PER_LIST)
        with self._readable():
            return [
                self._nearest(row, probe, lists, min(k, count), threshold)
                for row, probe in zip(asked, probes.matrix, strict=True)
            ]

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in no particular order."""
        table = self._latest()
        if table is None:
            return []
        with self._readable():
            result = table.search().select(["subject", "enrolments"]).limit(len(self)).to_arrow()
            names = result["subject"].to_pylist()
            blobs = result["enrolments"].to_pylist()
            entries = []
            for name, rows in zip(names, map(self._matrix, blobs), strict=True):
                template = pooled([name] * len(rows), rows, self.pooling)
                entries.append(Entry(name, len(rows), float(template.norms[0])))
            return entries

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, as ExactGallery.enrolments."""
        name = nfc(subject)
        with self._readable():
            rows = self._enrolments([name])
            refuse_unknown([name], rows)
            return rows[name]

    def close(self) -> None:
        """Does nothing, since nothing is kept open."""

    def _latest(self) -> Any:
        """The table as it is now, or None before the first enrolment.

        Another process may have written it, or made it.
        """
        if self._table is not None:
            with self._readable():
                self._table.checkout_latest()
        elif holds(self.folder):
            self._open(self.meta)
        return self._table

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turns what LanceDB raises on a damaged table into one sentence that names the folder.

        Panics of its Rust code are among these exceptions.
        """
        try:
            yield
        except (
            ValueError,
            KeyError,
            OSError,
            ImportError,
            MemoryError,
            KeyboardInterrupt,
            SystemExit,
            GeneratorExit,
        ):
            raise
        except BaseException as error:  # a panic of Rust is not an Exception
            raise LikenessError(
                f"{self.folder}: its table cannot be read or changed ({first_line(error)}); if it "
                "is damaged, restore a copy or use another folder"
            ) from None

    def _nearest(
        self, asked: Floats32, probe: Floats32, lists: int, k: int, threshold: float | None
    ) -> tuple[Match, ...]:
        """The k best matches of one probe. `asked` is its row of `as_asked`."""
        query = (
            self._table.search(asked, vector_column_name="vector")
            .distance_type("dot")
            .limit(k + EXTRA)
        )
        if lists:
            query = query.nprobes(math.ceil(SHARE * lists))
        result = query.select(["subject", "enrolments", "_distance"]).to_arrow()
        names = result["subject"].to_pylist()
        rows = [self._matrix(blob) for blob in result["enrolments"].to_pylist()]
        return ranked(
            dict(zip(names, rows, strict=True)),
            probe,
            k,
            threshold,
            pooling=self.pooling,
            similarity=self.similarity,
        )

    def _num_indexed(self) -> int:
        """How many rows the index has taken in; 0 where there is none."""
        with self._readable():
            known = [index for index in self._table.list_indices() if index.name == _INDEX]
        return int(known[0].num_indexed_rows or 0) if known else 0

    def _make_index(self) -> None:
        """Makes the index where there are enough rows, or has it take in those that were added."""
        from lancedb.index import IvfFlat

        count, indexed = int(self._table.count_rows()), self._num_indexed()
        if count - indexed <= INDEXED_FROM:
            return
        with added(self._path):
            if indexed:
                self._table.optimize()
                return
            lists = max(1, count // _PER_LIST)
            kind = IvfFlat(distance_type="dot", num_partitions=lists)
            self._table.create_index("vector", config=kind, name=_INDEX)

    def _erase_older(self) -> None:
        """Erases removed and replaced rows from the files of the table and of its index.

        LanceDB marks rows as deleted, and rewrites a file only where these are a tenth of it. Where
        marks are left, the table is written anew, which is one change like any other.
        """
        remove_older_versions(self._path, self._table)
        if not any((self._path / "_deletions").glob("*")):
            return
        table, count = self._table, int(self._table.count_rows())
        reader = table.search().limit(count).to_batches(_BLOCK)
        with added(self._path):
            self._table = self._db.create_table(
                TABLE, reader, schema=table.schema, mode="overwrite"
            )
        self._make_index()
        remove_older_versions(self._path, self._table)

    def _enrolments(self, subjects: Sequence[str]) -> dict[str, Floats32]:
        """The enrolments (K, D) of those subjects who have some."""
        table = self._latest()
        if table is None:
            return {}
        enrolments: dict[str, Floats32] = {}
        names = list(dict.fromkeys(subjects))
        for start in range(0, len(names), _BLOCK):
            part = names[start : start + _BLOCK]
            result = (
                table.search()
                .where(_among(part))
                .select(["subject", "enrolments"])
                .limit(len(part))
                .to_arrow()
            )
            blobs = result["enrolments"].to_pylist()
            for name, blob in zip(result["subject"].to_pylist(), blobs, strict=True):
                enrolments[name] = self._matrix(blob)
        return enrolments

    def _matrix(self, blob: bytes) -> Floats32:
        """The raw enrolments (K, D) in the bytes of one row."""
        return np.frombuffer(blob, dtype="<f4").reshape(-1, self.dim).astype(np.float32)

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments."""
        self._latest()
        refuse_other(self.meta, self.dim, embeddings)
        refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        if replace:
            media.erase(self.folder, dict.fromkeys(subjects))
        self.dim = embeddings.matrix.shape[1]
        before = {} if replace else self._enrolments(subjects)
        blocks, templates = joined(embeddings, subjects, before, self.pooling)
        data = self._rows(
            list(blocks),
            list(blocks.values()),
            as_searched(templates.matrix, self.b_theta, self.similarity),
        )
        if self._table is not None:
            with added(self._path):
                self._table.merge_insert(
                    "subject"
                ).when_matched_update_all().when_not_matched_insert_all().execute(data)
        else:
            create_lance(self._path, data)
            self._table = self._db.open_table(TABLE)
        self._make_index()

    def _rows(self, names: list[str], blocks: list[Floats32], vectors: Floats32) -> Any:
        """The rows of the table for some subjects, with the meta."""
        import pyarrow as pa

        entries = {**self.meta, "pooling": self.pooling, "dim": str(self.dim)}
        vector = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel(), pa.float32()), vectors.shape[1]
        )
        blobs = pa.array([block.astype("<f4").tobytes() for block in blocks], pa.large_binary())
        table = pa.table(
            {"subject": pa.array(names, pa.string()), "enrolments": blobs, "vector": vector}
        )
        return table.replace_schema_metadata({"likeness": json.dumps(entries)})


def _among(subjects: Sequence[str]) -> str:
    """The SQL condition that the subject is one of these.

    Names are checked when they are enrolled; a quote in one is doubled here.
    """
    unusable = [name for name in subjects if not name.isprintable()]
    if unusable:
        raise KeyError(
            f"{len(unusable)} of {len(subjects)} subjects are not enrolled ({name_first(unusable)})"
        )
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in subjects)
    return f"subject IN ({quoted})"
