"""A gallery in a LanceDB table: embedded, on disk, larger than memory if it must be.

Same methods as ExactGallery; one process writes, any number read.

One row per subject with its raw enrolments and its template: LanceDB commits a change of any number
of rows of one table as a new version in one step, and a kill leaves the version before. Removing
erases the older versions too. LanceDB scans all rows of the table: exact; candidates are scored
like trials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from eval.formats.tables import create_lance, has_version, remove_older_versions
from eval.formats.writing import added
from eval.similarity import pairs
from eval.types import Embeddings, Floats32, name_first, nfc
from toolkit.gallery.rules import (
    Entry,
    Match,
    pooled,
    refuse_names,
    refuse_other,
    refuse_unknown,
    stated,
)
from toolkit.gallery.search import PRODUCTS, angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions

TABLE = "gallery"
_EXTRA = 8  # candidates beside k: rounding must not decide who is among the best
_BLOCK = 1 << 14


def holds(folder: Path) -> bool:
    """Whether a LanceGallery lies in the folder."""
    return has_version(folder / f"{TABLE}.lance")


class LanceGallery:
    """folder: made if it does not exist. meta, similarity, pooling: as of ExactGallery;
    similarities: cosine, dot and simple.

    ValueError: the table is of another model or similarity, or none of Likeness; ImportError names
    the extra.
    """

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
        self._folder = Path(folder)
        agreed, defaults = stated(meta, similarity, pooling, not holds(self._folder))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = self._folder / f"{TABLE}.lance"
        self._db: Any = lancedb.connect(str(self._folder))
        self._table: Any = None
        self._lock = RLock()
        self.meta = {**defaults, **(agreed or {})}
        self.pooling, self.dim = self.meta.pop("pooling"), 0
        if holds(self._folder):
            self._open(agreed)
        self.similarity = self.meta["similarity"]
        if self.similarity.partition(":")[0] not in PRODUCTS:
            raise ValueError(
                f"similarity {self.similarity!r}: LanceDB searches by {', '.join(PRODUCTS)}; use "
                "ExactGallery for the others"
            )
        self.b_theta = angular_bias(self.similarity)

    def _open(self, agreed: Mapping[str, str] | None) -> None:
        try:
            with self._readable():
                table = self._db.open_table(TABLE)
                schema = table.schema
            held = json.loads((schema.metadata or {})[b"likeness"])
            dim = int(held.pop("dim"))
            meta = {str(key): str(value) for key, value in held.items()}
            pooling = meta.pop("pooling")
            if "similarity" not in meta or schema.names != ["subject", "enrolments", "vector"]:
                raise ValueError("columns or meta are missing")
        except (KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
            raise ValueError(
                f"{self._folder}: no gallery of Likeness ({str(error)[:120]}); choose another "
                "folder"
            ) from None
        refuse_contradictions(self._folder, meta, agreed)
        self.meta, self.pooling, self.dim, self._table = (
            meta,
            pooling,
            dim,
            table,
        )  # the table last: where it is, the others are its own

    def __len__(self) -> int:
        table = self._latest()
        with self._readable():
            return 0 if table is None else int(table.count_rows())

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """As ExactGallery.enrol."""
        with self._lock, self._readable():
            self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """As ExactGallery.update."""
        subjects = list(map(nfc, subjects))
        with self._lock, self._readable():
            refuse_unknown(
                list(dict.fromkeys(subjects)), dict.fromkeys(self._enrolments(subjects), 0)
            )
            self._write(embeddings, subjects, replace=True)
            remove_older_versions(self._path, self._table)

    def remove(self, subjects: Sequence[str]) -> None:
        """As ExactGallery.remove."""
        wanted = list(dict.fromkeys(map(nfc, subjects)))
        with self._lock, self._readable():
            refuse_unknown(wanted, dict.fromkeys(self._enrolments(wanted), 0))
            if wanted:
                with added(self._path):
                    self._table.delete(_among(wanted))
                remove_older_versions(self._path, self._table)

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """As ExactGallery.search."""
        count = len(self)
        refuse_other(self.meta, self.dim, probes, k)
        if not count:
            return [()] * len(probes.ids)
        asked = as_asked(probes.matrix, self.b_theta, self.similarity)
        with self._readable():
            return [
                self._nearest(row, probe, min(k + _EXTRA, count), k, threshold)
                for row, probe in zip(asked, probes.matrix, strict=True)
            ]

    def entries(self) -> list[Entry]:
        """Who is enrolled, in no particular order."""
        table = self._latest()
        if table is None:
            return []
        with self._readable():
            found = table.search().select(["subject", "enrolments"]).limit(len(self)).to_arrow()
            return [
                Entry(one, len(rows), float(pooled([one] * len(rows), rows, self.pooling).norms[0]))
                for one, rows in zip(
                    found["subject"].to_pylist(),
                    map(self._matrix, found["enrolments"].to_pylist()),
                    strict=True,
                )
            ]

    def close(self) -> None:
        """Nothing is held open."""

    def _latest(self) -> Any:
        """The table as it is now, None before the first enrolment: another process may have written
        it, or made it.
        """
        if self._table is not None:
            with self._readable():
                self._table.checkout_latest()
        elif holds(self._folder):
            self._open(self.meta)
        return self._table

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What LanceDB raises on a damaged table, panics of its Rust among it, as one sentence that
        names the folder.
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
        except BaseException as error:  # a panic is no Exception
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise ValueError(
                f"{self._folder}: its table cannot be read or changed ({reason}); if it is "
                "damaged, restore a copy or use another folder"
            ) from None

    def _nearest(
        self, asked: Floats32, probe: Floats32, wanted: int, k: int, threshold: float | None
    ) -> tuple[Match, ...]:
        query = (
            self._table.search(asked, vector_column_name="vector")
            .distance_type("dot")
            .limit(wanted)
        )
        found = query.select(["subject", "enrolments", "_distance"]).to_arrow()
        names = found["subject"].to_pylist()
        rows = [self._matrix(one) for one in found["enrolments"].to_pylist()]
        templates = pooled(
            [name for name, some in zip(names, rows, strict=True) for _ in some],
            np.concatenate(rows),
            self.pooling,
        )
        scores = pairs(
            templates.matrix,
            probe[None],
            np.arange(len(names)),
            np.zeros(len(names), dtype=np.int64),
            self.similarity,
        )
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        return tuple(
            Match(names[i], float(scores[i]), float(templates.norms[i]))
            for i in best
            if threshold is None or scores[i] >= threshold
        )

    def _enrolments(self, subjects: Sequence[str]) -> dict[str, Floats32]:
        """The enrolments (K, D) of those subjects who have some."""
        table = self._latest()
        if table is None:
            return {}
        held: dict[str, Floats32] = {}
        wanted = list(dict.fromkeys(subjects))
        for start in range(0, len(wanted), _BLOCK):
            part = wanted[start : start + _BLOCK]
            found = (
                table.search()
                .where(_among(part))
                .select(["subject", "enrolments"])
                .limit(len(part))
                .to_arrow()
            )
            held |= {
                name: self._matrix(blob)
                for name, blob in zip(
                    found["subject"].to_pylist(), found["enrolments"].to_pylist(), strict=True
                )
            }
        return held

    def _matrix(self, blob: bytes) -> Floats32:
        return np.frombuffer(blob, dtype="<f4").reshape(-1, self.dim).astype(np.float32)

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        self._latest()
        refuse_other(self.meta, self.dim, embeddings)
        refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        self.dim = embeddings.matrix.shape[1]
        before = {} if replace else self._enrolments(subjects)
        mine: dict[str, list[int]] = {}
        for i, one in enumerate(subjects):
            mine.setdefault(one, []).append(i)
        blocks = [
            np.concatenate([*([before[one]] if one in before else []), embeddings.matrix[places]])
            for one, places in mine.items()
        ]
        names = [name for name, block in zip(mine, blocks, strict=True) for _ in block]
        templates = pooled(names, np.concatenate(blocks), self.pooling)
        data = self._rows(
            list(mine), blocks, as_searched(templates.matrix, self.b_theta, self.similarity)
        )
        if self._table is not None:
            with added(self._path):
                self._table.merge_insert(
                    "subject"
                ).when_matched_update_all().when_not_matched_insert_all().execute(data)
            return
        create_lance(self._path, data)
        self._table = self._db.open_table(TABLE)

    def _rows(self, names: list[str], blocks: list[Floats32], vectors: Floats32) -> Any:
        import pyarrow as pa

        held = {**self.meta, "pooling": self.pooling, "dim": str(self.dim)}
        vector = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel(), pa.float32()), vectors.shape[1]
        )
        blobs = pa.array([block.astype("<f4").tobytes() for block in blocks], pa.large_binary())
        table = pa.table(
            {"subject": pa.array(names, pa.string()), "enrolments": blobs, "vector": vector}
        )
        return table.replace_schema_metadata({"likeness": json.dumps(held)})


def _among(subjects: Sequence[str]) -> str:
    """SQL: the subject is one of these.

    Names are checked when they are enrolled; a quote in one is doubled.
    """
    unusable = [one for one in subjects if not one.isprintable()]
    if unusable:
        raise KeyError(
            f"{len(unusable)} of {len(subjects)} subjects are not enrolled ({name_first(unusable)})"
        )
    quoted = ", ".join("'" + one.replace("'", "''") + "'" for one in subjects)
    return f"subject IN ({quoted})"
