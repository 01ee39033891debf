"""Galleries: enrol subjects, search 1:N for the k most similar, reject who is not enrolled.

Three stores, the same methods:

    ExactGallery
        every subject is compared: one matrix product, block by block, with partial selection (this
        file)
    FaissGallery
        an ExactGallery searched by way of a FAISS index: for millions of subjects, approximate
        (faiss.py)
    LanceGallery
        a LanceDB table, which need not fit into memory (lance.py)

    enrol(embeddings, subjects)
        one raw embedding per entry of subjects, in addition to what a subject has
    update(embeddings, subjects)
        the same in place of what they have
    remove(subjects)
    search(probes, k=5, threshold=None) -> one tuple of Matches per probe, best first
        with a threshold, an empty tuple says that it is nobody who is enrolled
    entries(), len(), close(), meta, similarity

A subject is one template, pooled from its enrolments by eval.templates.pool; enrolments are kept
raw, so norms keep their meaning. A gallery belongs to one
model: its digest and similarity are stored, and embeddings of another model are refused. Scores are
those of eval.similarity.pairs, template first, in every store. Every change is atomic and on disk
when the method returns; an ExactGallery's folder belongs to one process at a time, a LanceDB table
has one that writes and any number that read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from eval.similarity import matrix, pairs
from eval.types import Embeddings, Floats32, nfc
from toolkit.gallery.rules import (
    Entry,
    Match,
    pooled,
    refuse_names,
    refuse_other,
    refuse_unknown,
    stated,
)
from toolkit.gallery.search import PRODUCTS, angular_bias, as_asked, as_searched, top
from toolkit.gallery.store import Enrolments

_CELLS = (
    1 << 21
)  # scores held at once, 8 MB: what the product writes is still in the cache when it is compared
_QUERIES = 256
_WIDTH = (1 << 12, 1 << 16)
_EXTRA = 8  # candidates beside k: rounding of the product must not decide who is among the best


class ExactGallery:
    """The default store: exact, in memory, and on disk where `folder` is given (made if it does not
    exist).

    meta: that of the embeddings to come; may be None for a folder that holds a gallery. similarity:
    default what the meta says, else cosine.
    pooling: "mean" or "norm_weighted", see eval.templates; fixed when the gallery is made. Any
    similarity of eval.similarity will do.
    ValueError: the folder's gallery is of another model or similarity, damaged, or used by another
    process; unknown similarity.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
    ):
        self._store = Enrolments(
            None if folder is None else Path(folder),
            *stated(meta, similarity, pooling, folder is None),
        )
        self.meta: dict[str, str] = self._store.meta
        self.similarity = self.meta.get("similarity", "cosine")
        self.b_theta = angular_bias(self.similarity)
        self.lock = RLock()
        self.names: list[str] = []  # of the templates, row by row
        self.row: dict[str, int] = {}
        self._counts: list[int] = []
        self._norms = np.zeros(0, dtype=np.float32)
        self._held = np.zeros((0, 1), dtype=np.float32)  # with room to grow
        try:
            blocks = list(self._store.blocks())
        except BaseException:
            self._store.close()
            raise
        if blocks:
            self._put(
                [name for names, _ in blocks for name in names],
                np.concatenate([rows for _, rows in blocks]),
            )

    @property
    def rows(self) -> Floats32:
        """(G, D) templates as they are searched: of length 1 for the cosine, raw else; SimPLE's
        with its bias as column D + 1.
        """
        return self._held[: len(self.names)]

    @property
    def dim(self) -> int:
        """D of its embeddings; 0 before the first."""
        return self._store.dim

    def __len__(self) -> int:
        return len(self.names)

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Add enrolments: embeddings (N, D) raw, subjects (N,).

        Nothing is enrolled where one of them is refused: ValueError counts and names.
        """
        self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Put enrolments in place of those that the subjects have.

        KeyError for subjects that are not enrolled.
        """
        subjects = list(map(nfc, subjects))
        with self.lock:
            refuse_unknown(dict.fromkeys(subjects), self.row)
            self._write(embeddings, subjects, replace=True)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erase subjects, from the disk too.

        KeyError for those that are not enrolled: all counted, and nobody is removed.
        """
        with self.lock:
            wanted = list(dict.fromkeys(map(nfc, subjects)))
            refuse_unknown(wanted, self.row)
            self._store.remove(wanted)
            places = [self.row[one] for one in wanted]
            kept = np.delete(np.arange(len(self.names)), places)
            for start in range(
                min(places, default=0), len(kept), 1 << 14
            ):  # rows keep their order, and move up within the array
                part = kept[start : start + (1 << 14)]
                self._held[start : start + len(part)] = self._held[part]
            self._held[len(kept) : len(self.names)] = 0
            self._norms = self._norms[kept]
            self.names, self._counts = (
                [self.names[i] for i in kept],
                [self._counts[i] for i in kept],
            )
            self.row = {name: i for i, name in enumerate(self.names)}

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """The k most similar subjects of every probe, best first (ties: enrolled first); fewer
        where fewer are enrolled.

        threshold: only matches with score >= threshold, so an empty tuple rejects the probe: nobody
        enrolled is similar enough.
        ValueError: probes of another model, k below 1.
        """
        refuse_other(self.meta, self._store.dim, probes, k)
        with self.lock:
            count = len(self.names)
            if not count:
                return [()] * len(probes.ids)
            asked, wanted = (
                as_asked(probes.matrix, self.b_theta, self.similarity),
                min(k + _EXTRA, count),
            )
            product = self.similarity.partition(":")[0] in PRODUCTS
            places = np.concatenate(
                [
                    self._places(asked[i : i + _QUERIES], wanted, product)
                    for i in range(0, len(asked), _QUERIES)
                ]
            )
            return self.judged(probes.matrix, places, k, threshold)

    def judged(
        self, probes: Floats32, places: NDArray[np.int64], k: int, threshold: float | None
    ) -> list[tuple[Match, ...]]:
        """Candidates (Q, K) by their rows, -1 for none, scored like trials and cut to k."""
        asked, one = np.nonzero(places >= 0)
        rows = places[asked, one]
        distinct, index = np.unique(rows, return_inverse=True)
        scores = pairs(
            self.rows[distinct][:, : probes.shape[1]], probes, index, asked, self.similarity
        )
        order = np.lexsort((rows, -scores, asked))
        bounds = np.searchsorted(asked[order], np.arange(len(probes) + 1)).tolist()
        norms = self._norms[rows]
        found = []
        for begin, end in pairwise(bounds):
            best = order[begin : min(end, begin + k)].tolist()
            found.append(
                tuple(
                    Match(self.names[rows[i]], float(scores[i]), float(norms[i]))
                    for i in best
                    if threshold is None or scores[i] >= threshold
                )
            )
        return found

    def entries(self) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        with self.lock:
            return [
                Entry(*one)
                for one in zip(self.names, self._counts, self._norms.tolist(), strict=True)
            ]

    def close(self) -> None:
        """Give the folder free for another process."""
        self._store.close()

    def _places(self, asked: Floats32, wanted: int, product: bool) -> NDArray[np.int64]:
        width = max(min(max(_CELLS // len(asked), _WIDTH[0]), _WIDTH[1]), wanted)
        rows, buffer = self.rows, np.empty((len(asked), width), dtype=np.float32)

        def scores(begin: int, end: int) -> Floats32:
            if product:
                return np.matmul(
                    asked,
                    rows[begin:end].T,
                    out=buffer[:, : end - begin] if end - begin == width else None,
                )
            return np.ascontiguousarray(matrix(rows[begin:end], asked, self.similarity).T)

        return top(scores, len(rows), width, wanted)[1]

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        refuse_other(self.meta, self._store.dim, embeddings)
        refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        with self.lock:
            self._store.write(subjects, embeddings.matrix, replace=replace)
            more = [] if replace else [one for one in dict.fromkeys(subjects) if one in self.row]
            known = set(more)
            fresh = [i for i, one in enumerate(subjects) if one not in known]
            if fresh:
                self._put(
                    [subjects[i] for i in fresh],
                    embeddings.matrix if len(fresh) == len(subjects) else embeddings.matrix[fresh],
                )
            if more:
                self._put(*self._store.of(more))

    def _put(self, subjects: Sequence[str], rows: Floats32) -> None:
        """Templates of these, all their enrolments given, into the array."""
        templates = pooled(subjects, rows, self._store.pooling)
        places = [self.row.setdefault(one, len(self.row)) for one in templates.ids]
        total, counted = len(self.row), dict.fromkeys(templates.ids, 0)
        for one in subjects:
            counted[one] += 1
        made = as_searched(templates.matrix, self.b_theta, self.similarity)
        if total > len(self._held) or made.shape[1] != self._held.shape[1]:
            grown = np.zeros((max(total, 2 * len(self.names)), made.shape[1]), dtype=np.float32)
            if self.names:
                grown[: len(self.names)] = self.rows
            self._held = grown
        more = total - len(self.names)
        self.names += [""] * more
        self._counts += [0] * more
        self._norms = np.append(self._norms, np.zeros(more, dtype=np.float32))
        self._held[places] = made
        self._norms[places] = templates.norms
        for place, one in zip(places, templates.ids, strict=True):
            self.names[place], self._counts[place] = one, counted[one]
