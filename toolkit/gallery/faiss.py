"""A gallery of millions in one process, searched by FAISS.

FAISS (Johnson, Douze, Jegou: Billion-scale similarity search with GPUs, 2017; the extra "faiss")
proposes candidates, which are scored exactly. Somebody may be missed, so compare with a gallery in
the same folder, which compares all, before relying on it.
"""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.types import Floats32
from likeness.toolkit.gallery._search import is_product
from likeness.toolkit.gallery.sqlite import SqliteStore
from likeness.toolkit.gallery.store import Candidates, Enrolments, Templates

EFFORT = 64  # the inverted lists that a search visits
SMALL = 20_000  # subjects up to which all are compared, which is exact and fast enough
# These two are a quarter of FAISS's own settings. For a million templates that saves minutes and
# loses no recall.
_ROUNDS, _TRAINED = 8, 64  # rounds of k-means, and vectors for each inverted list


class FaissStore(SqliteStore):
    """A SqliteStore that FAISS searches, once it has more than 20,000 subjects.

    The index is made at the first search of a process, in seconds to minutes, and takes the memory
    of the templates a second time. It is made anew when the gallery has doubled since, or somebody
    was removed. No file keeps it: the centre of an inverted list may be the embedding of one
    person.

    Args:
        folder: As of SqliteStore, and the same folder; None for a gallery in memory.
        new: The meta of a new gallery; None if there has to be one.

    Raises:
        LikenessError: As for SqliteStore.
    """

    def __init__(self, folder: Path | None, new: Mapping[str, str] | None):
        self._faiss: Any = import_module("faiss")
        super().__init__(folder, new)
        self._index: Any = None
        self._largest = 0  # the number of templates up to which the index suits

    def write(self, made: Enrolments, templates: Templates, *, replace: bool) -> None:
        """Adds enrolments, on the disk, in memory and in the index."""
        super().write(made, templates, replace=replace)
        if self._index is not None:
            rows = np.array([self.row[name] for name in templates.subjects], dtype=np.int64)
            self._index.remove_ids(rows)
            self._index.add_with_ids(np.ascontiguousarray(templates.vectors), rows)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, on the disk and in memory; what the index calls by numbers moves."""
        super().remove(subjects)
        self._index = None

    def nearest(self, asked: Floats32, count: int) -> Candidates:
        """Whom the index proposes; all subjects are compared where they are few."""
        with self.changing():
            if len(self) <= SMALL or not is_product(self.meta.get("similarity", "cosine")):
                return super().nearest(asked, count)
            if self._index is None or len(self) > self._largest:
                self._make()
            # FAISS says -1 where it found no more, as `candidates` does.
            rows = self._index.search(np.ascontiguousarray(asked), min(2 * count, len(self)))[1]
            return self.candidates(rows)

    def _make(self) -> None:
        """Makes the index of all templates."""
        lists, width = round(4 * math.sqrt(len(self))), self.vectors.shape[1]
        kind = self._faiss.METRIC_INNER_PRODUCT
        self._index = self._faiss.index_factory(width, f"IVF{lists},Flat", kind)
        self._index.cp.niter, self._index.cp.max_points_per_centroid = _ROUNDS, _TRAINED
        self._index.nprobe = EFFORT
        self._index.train(self.vectors)
        self._largest = 2 * len(self)
        self._index.add_with_ids(self.vectors, np.arange(len(self)))
