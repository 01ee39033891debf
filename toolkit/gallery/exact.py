"""Galleries: enrol subjects, search 1:N for the k most similar, reject who is not enrolled.

There are five stores with the same methods (Gallery in rules.py); this file has the first:

    ExactGallery
        compares every subject: one matrix product, block by block, with partial selection (this
        file)
    FaissGallery
        an ExactGallery that is searched by way of a FAISS index; approximate, for millions of
        subjects (faiss.py)
    LanceGallery
        a LanceDB table, which need not fit into memory (lance.py)
    QdrantGallery
        Qdrant, in a folder or on a server (qdrant/)
    PostgresGallery
        PostgreSQL with pgvector, which many processes share (postgres/)

These are the methods:

    enrol(embeddings, subjects)
        adds one raw embedding per entry of subjects to what a subject has
    update(embeddings, subjects)
        puts them in place of what the subjects have
    remove(subjects)
        erases the subjects
    search(probes, k=5, threshold=None)
        gives one tuple of Matches per probe, best first; with a threshold, an empty tuple says that
        the probe is nobody who is enrolled
    enrolments(subject)
        gives the raw enrolments of a subject
    entries(), len(), close(), meta, similarity

A subject is one template, which eval.scoring.templates.pool makes from the enrolments. Enrolments
are kept raw, so that norms keep their meaning. A gallery belongs to one model: it stores the
model's digest and similarity, and it refuses embeddings of another model. Scores are those of
eval.similarity.pairs, template first, in every store.

Every change is atomic, and on disk when the method returns. The folder of an ExactGallery belongs
to one process at a time. A LanceDB table and a server of Qdrant have one process that writes and
any number that read. PostgreSQL has any number of both.
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
from toolkit.gallery import media
from toolkit.gallery.rules import (
    EXTRA,
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

# The number of scores in memory at once. They take 8 MB, so that what the product writes is still
# in the cache when it is compared.
_CELLS = 1 << 21
_QUERIES = 256  # probes searched at once
_WIDTH = (1 << 12, 1 << 16)  # least and most templates in a block


class ExactGallery:
    """The default store: exact, in memory, and on disk where a folder is given.

    Args:
        folder: Where it lies on disk; made if it does not exist. None keeps it in memory only.
        meta: The meta of the embeddings to come. It may be None for a folder that contains a
            gallery.
        similarity: Any similarity of eval.similarity; by default what the meta says, else cosine.
        pooling: "mean" or "norm_weighted", see eval.scoring.templates; fixed when the gallery is
            made.

    Raises:
        LikenessError: The gallery in the folder is of another model or similarity, damaged, or used
            by another process; or the similarity is unknown.

    Example:
        >>> gallery = ExactGallery(meta={"model": "m"})
        >>> voices = Embeddings(("1", "2"), np.eye(2, dtype=np.float32), {"model": "m"})
        >>> gallery.enrol(voices, ["ann", "bob"])
        >>> [match.subject for match in gallery.search(voices, k=1)[1]]
        ['bob']
    """

    shared = False

    def __init__(
        self,
        folder: str | Path | None = None,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
    ):
        self.folder = None if folder is None else Path(folder)
        self._store = Enrolments(
            self.folder,
            *stated(meta, similarity, pooling, folder is None),
        )
        # The file stays locked while the store is open, also after an error here.
        try:
            self.meta: dict[str, str] = self._store.meta
            self.similarity = self.meta.get("similarity", "cosine")
            self.b_theta = angular_bias(self.similarity)
            self.lock = RLock()
            self.names: list[str] = []  # of the templates, row by row
            self.row: dict[str, int] = {}
            self._counts: list[int] = []
            self._norms = np.zeros(0, dtype=np.float32)
            # The templates, in an array with room to grow.
            self._templates = np.zeros((0, 1), dtype=np.float32)
            blocks = list(self._store.blocks())
            if blocks:
                self._put(
                    [name for names, _ in blocks for name in names],
                    np.concatenate([rows for _, rows in blocks]),
                )
        except BaseException:
            self._store.close()
            raise

    @property
    def rows(self) -> Floats32:
        """The templates (G, D) as they are searched.

        They have length 1 for the cosine and are raw otherwise. SimPLE's have their bias as column
        D + 1.
        """
        return self._templates[: len(self.names)]

    @property
    def dim(self) -> int:
        """The size D of its embeddings; 0 before the first."""
        return self._store.dim

    def __len__(self) -> int:
        return len(self.names)

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments.

        Args:
            embeddings: Raw embeddings (N, D).
            subjects: The subject of each, N names.

        Raises:
            LikenessError: Some are refused; the message counts and names them. Nothing is enrolled
                then.
        """
        self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Puts enrolments in place of those that the subjects have.

        Args:
            embeddings: Raw embeddings (N, D).
            subjects: The subject of each, N names.

        Raises:
            LikenessError: Some subjects are not enrolled. Nothing is changed then. As for `enrol`.
        """
        subjects = list(map(nfc, subjects))
        with self.lock:
            refuse_unknown(dict.fromkeys(subjects), self.row)
            self._write(embeddings, subjects, replace=True)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, from the disk too.

        Raises:
            LikenessError: Some are not enrolled. All of these are counted, and nobody is removed.
        """
        with self.lock:
            leaving = list(dict.fromkeys(map(nfc, subjects)))
            refuse_unknown(leaving, self.row)
            media.erase(self.folder, leaving)
            self._store.remove(leaving)
            places = [self.row[name] for name in leaving]
            kept = np.delete(np.arange(len(self.names)), places)
            # The rows keep their order and move up within the array.
            for start in range(min(places, default=0), len(kept), 1 << 14):
                part = kept[start : start + (1 << 14)]
                self._templates[start : start + len(part)] = self._templates[part]
            self._templates[len(kept) : len(self.names)] = 0
            self._norms = self._norms[kept]
            self.names = [self.names[i] for i in kept]
            self._counts = [self._counts[i] for i in kept]
            self.row = {name: i for i, name in enumerate(self.names)}

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe.

        Args:
            probes: Raw embeddings (Q, D) of the same model.
            k: How many subjects to give back at most. There are fewer where fewer are enrolled.
            threshold: Keeps only matches with score >= threshold. An empty tuple then rejects the
                probe: nobody who is enrolled is similar enough.

        Returns:
            A tuple of matches for each probe, best first. Of equal scores, whoever was enrolled
            first comes first.

        Raises:
            LikenessError: The probes are of another model, or k is below 1.
        """
        refuse_other(self.meta, self._store.dim, probes, k)
        with self.lock:
            count = len(self.names)
            if not count or not probes.ids:
                return [()] * len(probes.ids)
            asked = as_asked(probes.matrix, self.b_theta, self.similarity)
            num_candidates = min(k + EXTRA, count)
            product = self.similarity.partition(":")[0] in PRODUCTS
            places = np.concatenate(
                [
                    self._places(asked[i : i + _QUERIES], num_candidates, product)
                    for i in range(0, len(asked), _QUERIES)
                ]
            )
            return self.judged(probes.matrix, places, k, threshold)

    def judged(
        self, probes: Floats32, places: NDArray[np.int64], k: int, threshold: float | None
    ) -> list[tuple[Match, ...]]:
        """Scores candidates like trials and keeps the k best of each probe.

        Args:
            probes: Raw probes (Q, D).
            places: The rows of the candidates of each probe (Q, K); -1 stands for none.
            k: How many matches to give back at most.
            threshold: Keeps only matches with score >= threshold.

        Returns:
            A tuple of matches for each probe, best first.
        """
        asked, column = np.nonzero(places >= 0)
        rows = places[asked, column]
        distinct, index = np.unique(rows, return_inverse=True)
        scores = pairs(
            self.rows[distinct][:, : probes.shape[1]], probes, index, asked, self.similarity
        )
        order = np.lexsort((rows, -scores, asked))
        bounds = np.searchsorted(asked[order], np.arange(len(probes) + 1)).tolist()
        norms = self._norms[rows]
        results = []
        for begin, end in pairwise(bounds):
            best = order[begin : min(end, begin + k)].tolist()
            results.append(
                tuple(
                    Match(self.names[rows[i]], float(scores[i]), float(norms[i]))
                    for i in best
                    if threshold is None or scores[i] >= threshold
                )
            )
        return results

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in the order of enrolment."""
        with self.lock:
            return [
                Entry(*values)
                for values in zip(self.names, self._counts, self._norms.tolist(), strict=True)
            ]

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, in the order in which they were made.

        Raises:
            LikenessError: The subject is not enrolled.
        """
        with self.lock:
            refuse_unknown([nfc(subject)], self.row)
            return self._store.of([nfc(subject)])[1]

    def close(self) -> None:
        """Frees the folder for another process."""
        self._store.close()

    def _places(self, asked: Floats32, num_candidates: int, product: bool) -> NDArray[np.int64]:
        """The rows of the templates that score best by float32, (Q, num_candidates)."""
        width = max(min(max(_CELLS // len(asked), _WIDTH[0]), _WIDTH[1]), num_candidates)
        rows, buffer = self.rows, np.empty((len(asked), width), dtype=np.float32)

        def scores(begin: int, end: int) -> Floats32:
            """The scores of the templates begin to end - 1."""
            if product:
                out = buffer if end - begin == width else None
                return np.matmul(asked, rows[begin:end].T, out=out)
            return np.ascontiguousarray(matrix(rows[begin:end], asked, self.similarity).T)

        return top(scores, len(rows), width, num_candidates)[1]

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments, on disk first."""
        refuse_other(self.meta, self._store.dim, embeddings)
        refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        with self.lock:
            if replace:
                media.erase(self.folder, dict.fromkeys(subjects))
            self._store.write(subjects, embeddings.matrix, replace=replace)
            more = [] if replace else [name for name in dict.fromkeys(subjects) if name in self.row]
            known = set(more)
            fresh = [i for i, name in enumerate(subjects) if name not in known]
            if fresh:
                self._put(
                    [subjects[i] for i in fresh],
                    embeddings.matrix if len(fresh) == len(subjects) else embeddings.matrix[fresh],
                )
            if more:
                self._put(*self._store.of(more))

    def _put(self, subjects: Sequence[str], rows: Floats32) -> None:
        """Writes the templates of subjects into the array, given all enrolments of each."""
        templates = pooled(subjects, rows, self._store.pooling)
        places = [self.row.setdefault(name, len(self.row)) for name in templates.ids]
        total, counted = len(self.row), dict.fromkeys(templates.ids, 0)
        for name in subjects:
            counted[name] += 1
        made = as_searched(templates.matrix, self.b_theta, self.similarity)
        if total > len(self._templates) or made.shape[1] != self._templates.shape[1]:
            grown = np.zeros((max(total, 2 * len(self.names)), made.shape[1]), dtype=np.float32)
            if self.names:
                grown[: len(self.names)] = self.rows
            self._templates = grown
        more = total - len(self.names)
        self.names += [""] * more
        self._counts += [0] * more
        self._norms = np.append(self._norms, np.zeros(more, dtype=np.float32))
        self._templates[places] = made
        self._norms[places] = templates.norms
        for place, name in zip(places, templates.ids, strict=True):
            self.names[place], self._counts[place] = name, counted[name]
