"""A gallery of millions: an ExactGallery searched by way of a FAISS index.

Same methods; approximate, so measure gallery.recall before relying on it.

The index proposes candidates, which are scored exactly; it is made when first searched (in seconds
to minutes) and made anew when a fifth of it is out of date. FAISS (Johnson, Douze, Jegou:
Billion-scale similarity search with GPUs, 2017; the extra "search") holds a copy of the templates:
twice the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from eval.types import Embeddings, nfc
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.rules import Entry, Match, refuse_other
from toolkit.gallery.search import PRODUCTS, as_asked

_SMALL = 20_000  # templates up to which the index is flat: exact, and fast enough
_STALE = 0.2


class FaissGallery:
    """Arguments as of ExactGallery, and the same folder; `exact` is that gallery.

    index: a description of faiss.index_factory, such as "HNSW32", "IVF4096,SQ8" or "Flat"; default:
    inverted lists, 4 sqrt(G) of them, once there are 20,000 templates. effort: lists visited by a
    search (nprobe), or HNSW's efSearch; more is slower and finds more. Similarities: cosine, dot
    and simple. ValueError as ExactGallery, for another similarity and an index that FAISS does not
    know; ImportError names the extra.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
        index: str = "",
        effort: int = 64,
    ):
        try:
            import faiss
        except ImportError:
            raise ImportError(
                "a FAISS gallery needs FAISS; run `pip install 'likeness[search]'`"
            ) from None
        self._faiss: Any = faiss
        if index:
            try:
                faiss.index_factory(8, index, faiss.METRIC_INNER_PRODUCT)
            except RuntimeError as error:
                if "could not parse" in str(error).lower():
                    raise ValueError(
                        f"index {index!r}: FAISS does not know it; write for example IVF4096,Flat "
                        "or HNSW32"
                    ) from None
        self.exact = ExactGallery(folder, meta, similarity=similarity, pooling=pooling)
        if self.exact.similarity.partition(":")[0] not in PRODUCTS:
            self.exact.close()
            raise ValueError(
                f"similarity {self.exact.similarity!r}: FAISS searches by {', '.join(PRODUCTS)}; "
                "use ExactGallery for the others"
            )
        self.meta, self.similarity, self.effort, self._description = (
            self.exact.meta,
            self.exact.similarity,
            effort,
            index,
        )
        self._index: Any = None
        self._trained = 0  # templates when it was made
        self._subjects: list[str | None] = []  # by their number in the index; None: out of date
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.exact)

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        with self.exact.lock:
            self.exact.enrol(embeddings, subjects)
            self._changed(list(map(nfc, subjects)))

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        with self.exact.lock:
            self.exact.update(embeddings, subjects)
            self._changed(list(map(nfc, subjects)))

    def remove(self, subjects: Sequence[str]) -> None:
        with self.exact.lock:
            self.exact.remove(subjects)
            self._forget(list(map(nfc, subjects)))

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """As ExactGallery.search; who is found is found with the exact score, but somebody may be
        missed.
        """
        with self.exact.lock:
            refuse_other(
                self.meta, probes.matrix.shape[1] if not len(self) else self.exact.dim, probes, k
            )
            if not len(self):
                return [()] * len(probes.ids)
            self._make()
            asked = np.ascontiguousarray(
                as_asked(probes.matrix, self.exact.b_theta, self.similarity)
            )
            wanted = min(2 * k + 8 + len(self._subjects) - len(self._numbers), len(self._subjects))
            numbers = self._index.search(asked, wanted)[1]
            row = self.exact.row
            places = [
                [
                    -1 if number < 0 or (name := self._subjects[number]) is None else row[name]
                    for number in line
                ]
                for line in numbers.tolist()
            ]
            return self.exact.judged(
                probes.matrix,
                np.array(places, dtype=np.int64).reshape(len(asked), wanted),
                k,
                threshold,
            )

    def entries(self) -> list[Entry]:
        return self.exact.entries()

    def close(self) -> None:
        self.exact.close()

    def _changed(self, subjects: Sequence[str]) -> None:
        """What the index holds of them is out of date; it learns of their new templates."""
        self._forget(subjects)
        if self._index is not None:
            names = list(dict.fromkeys(subjects))
            self._index.add(
                np.ascontiguousarray(self.exact.rows[[self.exact.row[one] for one in names]])
            )
            self._number(names)

    def _forget(self, subjects: Sequence[str]) -> None:
        for one in dict.fromkeys(subjects):
            number = self._numbers.pop(one, None)
            if number is not None:
                self._subjects[number] = None

    def _number(self, names: Sequence[str]) -> None:
        self._numbers |= {one: len(self._subjects) + i for i, one in enumerate(names)}
        self._subjects += names

    def _make(self) -> None:
        """The index anew where there is none, too much of it is out of date, or the gallery doubled
        since the lists were trained.
        """
        held = len(self._subjects)
        if (
            self._index is not None
            and held - len(self._numbers) <= _STALE * held
            and len(self) <= 2 * self._trained
        ):
            return
        rows, faiss = self.exact.rows, self._faiss
        lists = round(4 * math.sqrt(len(rows)))
        description = self._description or ("Flat" if len(rows) <= _SMALL else f"IVF{lists},Flat")
        self._index = None
        try:
            index = faiss.index_factory(rows.shape[1], description, faiss.METRIC_INNER_PRODUCT)
            with suppress(RuntimeError):  # an index without inverted lists
                clustering = faiss.extract_index_ivf(index).cp
                # a quarter of FAISS's own: of a million templates, minutes less and no recall lost
                clustering.niter, clustering.max_points_per_centroid = 8, 64
            index.train(rows)
            index.add(rows)
        except (
            RuntimeError
        ) as error:  # a description that is known, but not of so many templates or dimensions
            said, size = (
                str(error).splitlines()[0][-120:],
                f"{len(rows)} templates of {rows.shape[1]} dimensions",
            )
            raise ValueError(
                f"index {description!r}: FAISS cannot make it of {size} ({said}); choose another "
                "index, such as Flat or HNSW32"
            ) from None
        for setting in ("nprobe", "efSearch"):
            with suppress(
                RuntimeError
                # an index has one of them, or none, also behind a transform (PCA, OPQ) or under a
                # refinement (RFlat)
            ):
                faiss.ParameterSpace().set_index_parameter(index, setting, self.effort)
        self._index, self._subjects, self._numbers, self._trained = index, [], {}, len(rows)
        self._number(self.exact.names)
