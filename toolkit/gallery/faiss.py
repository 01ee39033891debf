"""Searches by FAISS: a gallery of millions in one process, and neighbours for retrieval.

FAISS (Johnson, Douze, Jegou: Billion-scale similarity search with GPUs, 2017; the extra "search")
proposes candidates, which are scored exactly. Somebody may be missed, so measure
toolkit.gallery.gallery.recall before relying on it.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.blocks import TILE, scorer
from eval.errors import LikenessError, first_line
from eval.formats.writing import atomic_path
from eval.progress import report, step
from eval.protocols.retrieval import Conventions
from eval.ranks import label_codes, prepared
from eval.types import Floats, Floats32
from toolkit.gallery.search import top
from toolkit.gallery.sqlite import INDEX, SqliteStore
from toolkit.gallery.store import Candidates, Templates, refuse_similarity

KINDS = ("ivf", "hnsw")
EFFORT = 64  # the inverted lists that a search visits, or the candidates of HNSW
SMALL = 20_000  # subjects up to which all are compared, which is exact and fast enough
_MOST_NUMBERS = 100  # for each subject: numbers of templates that were replaced are not used again
_ADDED = 1 << 14  # rows that the index takes at a time
_SEARCHED = 1 << 12  # queries at a time
# These two are a quarter of FAISS's own settings. For a million templates that saves minutes and
# loses no recall.
_ROUNDS, _TRAINED = 8, 64  # rounds of k-means, and vectors for each inverted list

Numbers = NDArray[np.int64]


class FaissStore(SqliteStore):
    """A SqliteStore that FAISS searches, once it has more than 20,000 subjects.

    The index is made at the first search, in seconds to minutes, and takes the memory of the
    templates a second time. It is made anew when the gallery has doubled since.

    When the gallery is closed, the index is kept in a file beside the SQLite file: a digest of the
    templates, their numbers in the index, and what FAISS writes. A file that is out of date, for
    example after a kill, has another digest and is not used. When a subject is removed or replaced,
    the file is erased before the subject is, and the index is not kept again before it is made
    anew: the centre of an inverted list may be the embedding of one person.

    Args:
        folder: As of SqliteStore, and the same folder; None for a gallery in memory.
        new: The meta of a new gallery; None if there has to be one.

    Raises:
        LikenessError: As for SqliteStore, or the similarity is not cosine, dot or simple.
        ImportError: FAISS is missing; the message names the extra to install.
    """

    def __init__(self, folder: Path | None, new: Mapping[str, str] | None):
        self._faiss = _package()
        if new is not None:
            refuse_similarity(new["similarity"], "FAISS")
        super().__init__(folder, new)
        try:
            refuse_similarity(self.meta.get("similarity", "cosine"), "FAISS")
        except LikenessError:
            super().close()
            raise
        self._file = folder / INDEX if folder else None
        self._index: Any = None
        self._is_saved = False  # whether the file has this index
        self._has_removed = False  # whether somebody who was removed has formed this index
        self._largest = 0  # the number of templates up to which the index suits
        self._numbers: dict[str, int] = {}  # of the subjects in the index
        self._names: list[str] = []  # of these numbers

    def write(
        self, subjects: Sequence[str], rows: Floats32, templates: Templates, *, replace: bool
    ) -> None:
        """Adds an enrolment for each row, on the disk, in memory and in the index."""
        known = list(self.known(templates.subjects))
        if known:
            self._erase_file(forever=replace)  # their templates will be others
        super().write(subjects, rows, templates, replace=replace)
        if self._index is not None:
            self._take_out(known)
            self._add(templates.subjects, templates.vectors)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, on the disk, in memory and in the index."""
        self._erase_file(forever=True)
        super().remove(subjects)
        if self._index is not None:
            self._take_out(subjects)

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """Whom the index proposes; all subjects are compared where they are few."""
        with self.changing():
            if len(self) <= SMALL:
                return super().nearest(asked, count)
            if self._index is None or len(self) > self._largest:
                self._make()
            numbers = self._index.search(np.ascontiguousarray(asked), min(2 * count, len(self)))[1]
            # FAISS says -1 where it found no more.
            rows = [
                [-1 if number < 0 else self.row[self._names[number]] for number in line]
                for line in numbers.tolist()
            ]
            return self.candidates(np.array(rows, dtype=np.int64).reshape(numbers.shape))

    def close(self) -> None:
        """Frees the folder for another process, and keeps the index."""
        try:
            worth_it = self._index is not None and not self._is_saved and not self._has_removed
            if worth_it and self._file is not None:
                self._save(self._file)
        finally:
            super().close()

    def _make(self) -> None:
        """Takes the index from its file, or makes it."""
        self._numbers, self._names, self._has_removed = {}, [], False
        if self._file is not None and self._load(self._file):
            return
        lists = round(4 * math.sqrt(len(self)))
        self._index = _empty_index(f"IVF{lists},Flat", self.vectors.shape[1])
        self._index.nprobe = EFFORT
        self._index.train(self.vectors)
        self._largest = 2 * len(self)
        self._add(self.subjects, self.vectors)

    def _add(self, subjects: Sequence[str], vectors: Floats32) -> None:
        """Adds templates to the index."""
        numbers = np.arange(len(self._names), len(self._names) + len(subjects))
        self._index.add_with_ids(np.ascontiguousarray(vectors), numbers)
        self._numbers |= zip(subjects, numbers.tolist(), strict=True)
        self._names += subjects
        self._is_saved = False

    def _take_out(self, subjects: Sequence[str]) -> None:
        """Removes the templates of subjects from the index."""
        numbers = [self._numbers.pop(name) for name in subjects]
        self._index.remove_ids(np.array(numbers, dtype=np.int64))

    def _save(self, path: Path) -> None:
        """Writes the file of the index, which only saves time."""
        numbers = np.array([self._numbers[name] for name in self.subjects])
        try:
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                os.chmod(temporary, 0o600)
                file.write(self._digest())
                np.save(file, np.append(numbers, self._largest))
                self._faiss.write_index(self._index, self._faiss.PyCallbackIOWriter(file.write))
        except (OSError, RuntimeError) as error:
            warnings.warn(
                f"{path}: the index cannot be kept ({first_line(error)}), and the next process "
                "makes it anew; make room on the disk",
                stacklevel=3,
            )

    def _load(self, path: Path) -> bool:
        """Takes the index from its file; False where the file is of no use."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                if file.read(hashlib.sha256().digest_size) != self._digest():
                    return False
                *numbers, largest = np.load(file, allow_pickle=False).tolist()
                if len(numbers) != len(self) or max(numbers) >= _MOST_NUMBERS * len(self):
                    return False
                self._index = self._faiss.read_index(self._faiss.PyCallbackIOReader(file.read))
        except (ValueError, EOFError, RuntimeError):  # it is damaged, and only saves time
            return False
        self._largest = largest
        self._numbers = dict(zip(self.subjects, numbers, strict=True))
        self._names = [""] * (max(numbers) + 1)
        for name, number in self._numbers.items():
            self._names[number] = name
        self._is_saved = True
        return True

    def _digest(self) -> bytes:
        """A digest of the templates and their names."""
        digest = hashlib.sha256("\n".join(self.subjects).encode())
        digest.update(np.ascontiguousarray(self.vectors).data)
        return digest.digest()

    def _erase_file(self, *, forever: bool) -> None:
        """Overwrites and removes the file; `forever` is until the index is made anew."""
        self._is_saved = False
        self._has_removed |= forever
        self.erase_index()


def approximate_recall(
    kind: str, *, sample: int = 1000, seed: int = 0
) -> Callable[..., tuple[dict[str, Floats], Conventions, dict[str, Conventions]]]:
    """Returns what `eval.protocols.retrieval.retrieve` takes as `approximate`.

    Args:
        kind: "ivf" for inverted lists, "hnsw" for a graph of neighbours.
        sample: So many queries, drawn at random, are searched exactly too.
        seed: Of the draw.

    Raises:
        LikenessError: FAISS is missing; the message names the extra to install.
    """
    assert kind in KINDS, kind
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
        x = np.ascontiguousarray(queries, dtype=np.float32)
        y = x if gallery is None else np.ascontiguousarray(gallery, dtype=np.float32)
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
            report("searching", min(start + _SEARCHED, codes.size), codes.size)
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
def _index_of(kind: str, rows: Floats32, similarity: str) -> tuple[Any, str]:
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
        raise LikenessError(
            "this search needs FAISS; run `pip install 'likeness[search]'`"
        ) from None
    return faiss


def _empty_index(description: str, dim: int) -> Any:
    """An index of faiss.index_factory, for inner products."""
    faiss = _package()
    index = faiss.index_factory(dim, description, faiss.METRIC_INNER_PRODUCT)
    if description.startswith("IVF"):
        index.cp.niter, index.cp.max_points_per_centroid = _ROUNDS, _TRAINED
    return index


def _exact_neighbours(queries: Floats32, rows: Floats32, most: int, similarity: str) -> Numbers:
    """The numbers (Q, most) of the nearest rows, from the nearest on."""

    def scores(begin: int, end: int) -> Floats32:
        tile = prepared(rows[begin:end], slice(None), similarity)
        return scorer(tile, np.zeros(len(tile), dtype=np.bool_), "dot")(queries)

    return top(scores, len(rows), max(TILE, most), most)[1]


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
