"""Searches by FAISS: a gallery of millions in one process, and neighbours for retrieval.

FAISS (Johnson, Douze, Jegou: Billion-scale similarity search with GPUs, 2017; the extra "search")
proposes candidates, which are scored exactly. Somebody may be missed, so measure
toolkit.gallery.gallery.recall before relying on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.errors import LikenessError
from eval.formats.writing import atomic_path
from eval.progress import step, tracked
from eval.protocols.retrieval import Conventions
from eval.ranks import label_codes, prepared
from eval.tiles import TILE, Rows, as_rows, scorer
from eval.types import Floats, Floats32, first_line
from toolkit.gallery import media
from toolkit.gallery.sqlite import SqliteStore
from toolkit.gallery.store import Candidates, Entry, Templates, refuse_similarity

FILE = "gallery.faiss"
KINDS = ("ivf", "hnsw")
EFFORT = 64  # the inverted lists that a search visits, or the candidates of HNSW
SMALL = 20_000  # templates up to which the index is flat, which is exact and fast enough
_STALE = 0.2  # the share of the index that may be out of date
_MAX_HEAD = 4096  # bytes of the line of JSON
_ADDED = 1 << 14  # rows that the index takes at a time
_SEARCHED = 1 << 12  # queries at a time
# These two are a quarter of FAISS's own settings. For a million templates that saves minutes and
# loses no recall.
_ROUNDS, _TRAINED = 8, 64  # rounds of k-means, and vectors for each inverted list

Numbers = NDArray[np.int64]


class FaissStore:
    """A SqliteStore that FAISS searches; see Store for its methods.

    The index is made at the first search, in seconds to minutes, and made anew when a fifth of it
    is out of date. It takes the memory of the templates a second time.

    An index of more than 20,000 templates is kept in one file beside the SQLite file: a line of
    JSON, and what FAISS writes. The line names the templates in the index by their number and a
    digest. So a file that is out of date, for example after a kill, is known: the index is then
    made anew, or completed where subjects were only added. When a subject is removed or replaced,
    the file is erased before the subject is.

    Args:
        folder: As of SqliteStore, and the same folder; None for a gallery in memory.
        new: The meta of a new gallery; None if there has to be one.

    Raises:
        LikenessError: As for SqliteStore, or the similarity is not cosine, dot or simple.
        ImportError: FAISS is missing; the message names the extra to install.
    """

    shared = False

    def __init__(self, folder: Path | None, new: Mapping[str, str] | None):
        self._faiss = _package()
        if new is not None:
            refuse_similarity(new["similarity"], "FAISS")
        self._exact = SqliteStore(folder, new)
        self.name, self.folder, self.meta = self._exact.name, folder, self._exact.meta
        try:
            refuse_similarity(self.meta.get("similarity", "cosine"), "FAISS")
        except LikenessError:
            self._exact.close()
            raise
        self._index: Any = None
        self._loads = folder is not None  # whether the file of the index is still to be looked at
        self._saved = 0  # the number of templates in the file of the index
        self._trained = 0  # the number of templates when the index was made
        self._subjects: list[str | None] = []  # by number in the index; None where out of date
        self._numbers: dict[str, int] = {}

    @property
    def dim(self) -> int:
        """The size of embeddings; 0 before the first."""
        return self._exact.dim

    def __len__(self) -> int:
        return len(self._exact)

    def changing(self) -> AbstractContextManager[object]:
        """A block in which no other thread changes or searches the gallery."""
        return self._exact.changing()

    def known(self, subjects: Sequence[str]) -> set[str]:
        """Those of the subjects who are enrolled."""
        return self._exact.known(subjects)

    def enrolments(self, subjects: Sequence[str]) -> dict[str, Floats32]:
        """The raw enrolments (R, D) of those subjects who are enrolled."""
        return self._exact.enrolments(subjects)

    def entries(self) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        return self._exact.entries()

    def write(
        self, subjects: Sequence[str], rows: Floats32, templates: Templates, *, replace: bool
    ) -> None:
        """Adds an enrolment for each row, and its template to the index."""
        if self._exact.known(templates.subjects):
            self._erase_file()  # their templates will be others
        self._exact.write(subjects, rows, templates, replace=replace)
        self._forget(templates.subjects)
        if self._index is not None:
            self._index.add(np.ascontiguousarray(templates.vectors))
            self._number(templates.subjects)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects."""
        self._erase_file()
        self._exact.remove(subjects)
        self._forget(subjects)

    def erase(self) -> None:
        """Erases from all files what was removed or replaced."""
        self._exact.erase()

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """Whom the index proposes."""
        with self._exact.changing():
            self._make()
            num_stale = len(self._subjects) - len(self._numbers)
            num_asked = min(2 * count + num_stale, len(self._subjects))
            numbers = self._index.search(np.ascontiguousarray(asked), num_asked)[1]
            row, subjects = self._exact.row, self._subjects
            # FAISS says -1 where it found no more.
            rows = [
                [
                    -1 if number < 0 or (name := subjects[number]) is None else row[name]
                    for number in line
                ]
                for line in numbers.tolist()
            ]
            return self._exact.candidates(np.array(rows, dtype=np.int64).reshape(numbers.shape))

    def close(self) -> None:
        """Frees the folder for another process, and keeps what was added to the index."""
        try:
            with self._exact.changing():
                stale = len(self._subjects) - len(self._numbers)
                if self._index is not None and not stale and len(self._subjects) > self._saved:
                    self._save()
        finally:
            self._exact.close()

    def _forget(self, subjects: Sequence[str]) -> None:
        """Marks what the index has of these subjects as out of date."""
        for name in subjects:
            number = self._numbers.pop(name, None)
            if number is not None:
                self._subjects[number] = None

    def _number(self, names: Sequence[str]) -> None:
        """Numbers the names in the order in which their templates were added to the index."""
        self._numbers |= {name: len(self._subjects) + i for i, name in enumerate(names)}
        self._subjects += names

    def _make(self) -> None:
        """Makes the index where there is none or it does not suit the gallery any more.

        That is when too much of it is out of date, or when the gallery has doubled since the
        inverted lists were trained.
        """
        num_vectors = len(self._subjects)
        num_stale = num_vectors - len(self._numbers)
        suits = num_stale <= _STALE * num_vectors and len(self) <= 2 * self._trained
        if (self._index is not None and suits) or self._load():
            return
        vectors, lists = self._exact.vectors, round(4 * math.sqrt(len(self)))
        self._index = None
        index = _empty_index("Flat" if len(self) <= SMALL else f"IVF{lists},Flat", vectors.shape[1])
        index.train(vectors)
        index.add(vectors)
        self._use(index, self._exact.subjects, len(self))
        self._save()

    def _use(self, index: Any, names: Sequence[str], trained: int) -> None:
        """Searches by this index from now on, which has the templates of these names."""
        if hasattr(index, "nprobe"):
            index.nprobe = EFFORT
        self._index, self._subjects, self._numbers, self._trained = index, [], {}, trained
        self._number(list(names))

    def _save(self) -> None:
        """Keeps the index in its file, where it is worth it; nothing in it is out of date."""
        self._saved = len(self._subjects)
        if self.folder is None or self._saved <= SMALL:
            return
        head = {
            "templates": self._saved,
            "trained": self._trained,
            "digest": self._digest(self._saved),
        }
        try:
            with atomic_path(self.folder / FILE) as temporary, temporary.open("wb") as file:
                os.chmod(temporary, 0o600)
                file.write(json.dumps(head).encode() + b"\n")
                self._faiss.write_index(self._index, self._faiss.PyCallbackIOWriter(file.write))
        except (OSError, RuntimeError) as error:  # the file only saves time
            warnings.warn(
                f"{self.folder / FILE}: the index cannot be kept ({first_line(error)}), and the "
                "next process makes it anew; make room on the disk",
                stacklevel=2,
            )

    def _load(self) -> bool:
        """Takes the index from its file and completes it; False where the file is of no use."""
        path = (self.folder or Path()) / FILE
        if not self._loads or not path.is_file():
            return False
        self._loads = False
        with path.open("rb") as file:
            try:
                head = json.loads(file.readline(_MAX_HEAD))
                templates, trained = int(head["templates"]), int(head["trained"])
                suits = 0 < templates <= len(self) <= 2 * trained
                if not suits or head["digest"] != self._digest(templates):
                    return False
                index = self._faiss.read_index(self._faiss.PyCallbackIOReader(file.read))
            except (ValueError, KeyError, TypeError, RuntimeError):
                return False
        self._saved = templates
        self._use(index, self._exact.subjects[:templates], trained)
        if more := self._exact.subjects[templates:]:
            self._index.add(np.ascontiguousarray(self._exact.vectors[templates:]))
            self._number(more)
        return True

    def _digest(self, templates: int) -> str:
        """A digest of the first templates and their names."""
        digest = hashlib.sha256("\n".join(self._exact.subjects[:templates]).encode())
        digest.update(np.ascontiguousarray(self._exact.vectors[:templates]).data)
        return digest.hexdigest()

    def _erase_file(self) -> None:
        """Overwrites and removes the file of the index, which has templates that go."""
        self._loads, self._saved = False, 0
        if self.folder is not None:
            media.erase_file(self.folder / FILE)


def approximate_recall(
    kind: str, *, sample: int = 1000, seed: int = 0, advance: Callable[[int, int], object]
) -> Callable[..., tuple[dict[str, Floats], Conventions, dict[str, Conventions]]]:
    """Returns what `eval.protocols.retrieval.Search` takes as `approximate`.

    Args:
        kind: "ivf" for inverted lists, "hnsw" for a graph of neighbours.
        sample: So many queries, drawn at random, are searched exactly too.
        seed: Of the draw.
        advance: Is told how many queries are done, and how many there are.

    Raises:
        LikenessError: The kind is unknown.
        ImportError: FAISS is missing; the message names the extra to install.
    """
    if kind not in KINDS:
        raise LikenessError(f"approximate search {kind!r}: choose one of {', '.join(KINDS)}")
    _package()

    def recall(
        queries: ArrayLike,
        labels: ArrayLike,
        gallery: ArrayLike | None,
        gallery_labels: ArrayLike | None,
        ks: Sequence[int],
        similarity: str,
    ) -> tuple[dict[str, Floats], Conventions, dict[str, Conventions]]:
        if similarity not in ("cosine", "dot"):
            raise LikenessError(
                f"similarity {similarity!r}: an approximate search compares by cosine or dot; "
                "search exactly by the others"
            )
        x = as_rows(queries)
        y = x if gallery is None else as_rows(gallery)
        if x.shape[1] != y.shape[1]:
            raise LikenessError(
                f"similarity: embeddings of {x.shape[1]} and gallery of {y.shape[1]} dims; "
                "embeddings of two models do not compare"
            )
        codes, of_gallery = label_codes(labels, gallery_labels)
        alone = gallery is None
        most = min(max(ks) + alone, y.shape[0])
        index, text = _index_of(kind, y, similarity)
        neighbours = np.empty((codes.size, most), dtype=np.int64)
        for start in range(0, codes.size, _SEARCHED):
            part = slice(start, start + _SEARCHED)
            neighbours[part] = index.search(prepared(x[part], slice(None), similarity), most)[1]
            advance(min(start + _SEARCHED, codes.size), codes.size)
        drawn = np.random.default_rng(seed).permutation(codes.size)[:sample]
        drawn.sort()
        exact = _exact_neighbours(prepared(x[drawn], slice(None), similarity), y, most, similarity)
        relevant = np.bincount(of_gallery, minlength=int(codes.max()) + 1)[codes] - alone
        everything = np.arange(codes.size)
        values: dict[str, Floats] = {"relevant": relevant.astype(np.float64)}
        of_metric: dict[str, Conventions] = {}
        counted = relevant[drawn] > 0
        for k in ks:
            name = f"recall@{k}"
            hits = _hits(neighbours, everything, codes, of_gallery, k, alone)
            values[name] = np.where(relevant > 0, hits, np.nan)
            exactly = _hits(exact, drawn, codes[drawn], of_gallery, k, alone)
            of_metric[name] = {
                "on_sample": float(hits[drawn][counted].mean()) if counted.any() else 0.0,
                "exact_on_sample": float(exactly[counted].mean()) if counted.any() else 0.0,
            }
        conventions: Conventions = {"approximate": text, "sample": int(np.count_nonzero(counted))}
        return values, conventions | {"ties": "in the order of the index"}, of_metric

    return recall


@step("building the index")
def _index_of(kind: str, rows: Rows, similarity: str) -> tuple[Any, str]:
    """An index of the rows, and its description."""
    num_rows, dim = rows.shape
    lists = max(1, min(round(4 * math.sqrt(num_rows)), num_rows // 39))
    name = f"IVF{lists},Flat" if kind == "ivf" else "HNSW32"
    index = _empty_index(name, dim)
    if kind == "ivf":
        drawn = np.random.default_rng(0).permutation(num_rows)[: _TRAINED * lists]
        drawn.sort()
        index.train(prepared(rows[drawn], slice(None), similarity))
        index.nprobe = min(EFFORT, lists)
    else:
        index.hnsw.efSearch = EFFORT
    for start in range(0, num_rows, _ADDED):
        index.add(prepared(rows[start : start + _ADDED], slice(None), similarity))
    setting = f"nprobe {index.nprobe}" if kind == "ivf" else f"efSearch {EFFORT}"
    return index, f"FAISS {name}, {setting}"


def _package() -> Any:
    """The package faiss.

    Raises:
        ImportError: It is missing; the message names the extra to install.
    """
    try:
        import faiss
    except ImportError:
        raise ImportError("this search needs FAISS; run `pip install 'likeness[search]'`") from None
    return faiss


def _empty_index(description: str, dim: int) -> Any:
    """An index of faiss.index_factory, for inner products."""
    faiss = _package()
    index = faiss.index_factory(dim, description, faiss.METRIC_INNER_PRODUCT)
    if description.startswith("IVF"):
        index.cp.niter, index.cp.max_points_per_centroid = _ROUNDS, _TRAINED
    return index


def _exact_neighbours(queries: Floats32, rows: Rows, most: int, similarity: str) -> Numbers:
    """The numbers (Q, most) of the nearest rows, from the nearest on."""
    scores: Floats32 = np.empty((len(queries), 0), dtype=np.float32)
    numbers: Numbers = np.empty((len(queries), 0), dtype=np.int64)
    for start in tracked(range(0, rows.shape[0], TILE), "searching exactly"):
        tile = prepared(rows[start : start + TILE], slice(None), similarity)
        new = scorer(tile, np.zeros(len(tile), dtype=np.bool_), "dot")(queries)
        kept = np.argpartition(-new, min(most, len(tile)) - 1, axis=1)[:, :most]
        scores = np.concatenate([scores, np.take_along_axis(new, kept, axis=1)], axis=1)
        numbers = np.concatenate([numbers, kept + start], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        scores = np.take_along_axis(scores, order, axis=1)
        numbers = np.take_along_axis(numbers, order, axis=1)
    return numbers


def _hits(
    neighbours: Numbers, queries: Numbers, codes: Numbers, of_gallery: Numbers, k: int, alone: bool
) -> Floats:
    """(Q,) 1 where one of the first k neighbours, the query itself left out, is of its class."""
    right = (of_gallery[neighbours] == codes[:, None]) & (neighbours >= 0)
    if alone:
        itself = neighbours == queries[:, None]
        place = np.cumsum(~itself, axis=1)  # from 1, among the others
        right &= ~itself & (place <= k)
    hits: Floats = right[:, : None if alone else k].any(axis=1).astype(np.float64)
    return hits
