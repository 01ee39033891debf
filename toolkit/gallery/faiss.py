"""A gallery of millions: an ExactGallery that is searched by way of a FAISS index.

It has the same methods but is approximate, so measure toolkit.gallery.open.recall before relying on
it.

The index proposes candidates, which are scored exactly. It is made at the first search, in seconds
to minutes, and made anew when a fifth of it is out of date. FAISS (Johnson, Douze, Jegou:
Billion-scale similarity search with GPUs, 2017; the extra "search") keeps a copy of the templates,
which takes twice the memory.

The index is kept in one file beside the SQLite file: a line of JSON, and what FAISS writes. The
line names the templates in the index by their number and a digest. So a file that is out of date,
for example after a kill, is known: the index is then made anew, or completed where subjects were
only added. When a subject is removed or replaced, the file is erased before the subject is.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats.writing import atomic_path
from eval.types import Embeddings, Floats32, first_line, nfc
from toolkit.gallery import media
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.rules import Entry, Match, refuse_other, refuse_unknown
from toolkit.gallery.search import PRODUCTS, as_asked

_SMALL = 20_000  # templates up to which the index is flat, which is exact and fast enough
_STALE = 0.2  # the share of the index that may be out of date
FILE = "gallery.faiss"
_MAX_HEAD = 4096  # bytes of the line of JSON


class FaissGallery:
    """An ExactGallery that FAISS searches; `exact` is that gallery.

    Args:
        folder: As of ExactGallery, and the same folder. An index of more than 20,000 templates is
            kept in it, in the file gallery.faiss. FAISS reads that file without checking it, so
            take no gallery from strangers.
        meta: As of ExactGallery.
        similarity: cosine, dot or simple; by default what the meta says, else cosine.
        pooling: As of ExactGallery.
        index: A description of faiss.index_factory, such as "HNSW32", "IVF4096,SQ8" or "Flat". By
            default there are 4 sqrt(G) inverted lists once there are more than 20,000 templates.
        effort: The lists that a search visits (nprobe), or HNSW's efSearch. More is slower and
            finds more.

    Raises:
        LikenessError: As for ExactGallery; also for another similarity and an index that FAISS does
            not know. The package FAISS is missing; the message names the extra to install.
    """

    shared = False

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
            raise LikenessError(
                "a FAISS gallery needs FAISS; run `pip install 'likeness[search]'`"
            ) from None
        self._faiss: Any = faiss
        if index:
            try:
                faiss.index_factory(8, index, faiss.METRIC_INNER_PRODUCT)
            except RuntimeError as error:
                if "could not parse" in str(error).lower():
                    raise LikenessError(
                        f"index {index!r}: FAISS does not know it; write for example IVF4096,Flat "
                        "or HNSW32"
                    ) from None
        self.exact = ExactGallery(folder, meta, similarity=similarity, pooling=pooling)
        if self.exact.similarity.partition(":")[0] not in PRODUCTS:
            self.exact.close()
            raise LikenessError(
                f"similarity {self.exact.similarity!r}: FAISS searches by {', '.join(PRODUCTS)}; "
                "use ExactGallery for the others"
            )
        self.folder = self.exact.folder
        self.meta, self.similarity = self.exact.meta, self.exact.similarity
        self.effort, self._description = effort, index
        self._index: Any = None
        self._loads = True  # whether the file of the index is still to be looked at
        self._saved = 0  # the number of templates in the file of the index
        self._trained = 0  # the number of templates when the index was made
        self._subjects: list[str | None] = []  # by number in the index; None where out of date
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.exact)

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments, as ExactGallery.enrol."""
        names = list(map(nfc, subjects))
        with self.exact.lock:
            if any(name in self.exact.row for name in names):
                self._erase()  # their templates will be others
            self.exact.enrol(embeddings, subjects)
            self._changed(names)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Replaces enrolments, as ExactGallery.update."""
        names = list(map(nfc, subjects))
        with self.exact.lock:
            refuse_other(self.meta, self.exact.dim, embeddings)
            refuse_unknown(dict.fromkeys(names), self.exact.row)
            self._erase()
            self.exact.update(embeddings, subjects)
            self._changed(names)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, as ExactGallery.remove."""
        names = list(map(nfc, subjects))
        with self.exact.lock:
            refuse_unknown(dict.fromkeys(names), self.exact.row)
            self._erase()
            self.exact.remove(subjects)
            self._forget(names)

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, as ExactGallery.search does.

        Whoever is found has the exact score, but somebody may be missed.
        """
        with self.exact.lock:
            dim = self.exact.dim if len(self) else probes.matrix.shape[1]
            refuse_other(self.meta, dim, probes, k)
            if not len(self):
                return [()] * len(probes.ids)
            self._make()
            asked = np.ascontiguousarray(
                as_asked(probes.matrix, self.exact.b_theta, self.similarity)
            )
            num_stale = len(self._subjects) - len(self._numbers)
            num_candidates = min(2 * k + 8 + num_stale, len(self._subjects))
            numbers = self._index.search(asked, num_candidates)[1]
            row = self.exact.row
            places = [
                [
                    -1 if number < 0 or (name := self._subjects[number]) is None else row[name]
                    for number in line
                ]
                for line in numbers.tolist()
            ]
            candidates = np.array(places, dtype=np.int64).reshape(len(asked), num_candidates)
            return self.exact.judged(probes.matrix, candidates, k, threshold)

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in the order of enrolment."""
        return self.exact.entries()

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, as ExactGallery.enrolments."""
        return self.exact.enrolments(subject)

    def close(self) -> None:
        """Frees the folder for another process, and keeps what was added to the index."""
        try:
            with self.exact.lock:
                stale = len(self._subjects) - len(self._numbers)
                if self._index is not None and not stale and len(self._subjects) > self._saved:
                    self._save()
        finally:
            self.exact.close()

    def _changed(self, subjects: Sequence[str]) -> None:
        """Adds the new templates of subjects to the index; what it had of them is out of date."""
        self._forget(subjects)
        if self._index is not None:
            names = list(dict.fromkeys(subjects))
            rows = self.exact.rows[[self.exact.row[name] for name in names]]
            self._index.add(np.ascontiguousarray(rows))
            self._number(names)

    def _forget(self, subjects: Sequence[str]) -> None:
        """Marks what the index has of these subjects as out of date."""
        for name in dict.fromkeys(subjects):
            number = self._numbers.pop(name, None)
            if number is not None:
                self._subjects[number] = None

    def _number(self, names: Sequence[str]) -> None:
        """Numbers the names in the order in which their templates were added to the index."""
        self._numbers |= {name: len(self._subjects) + i for i, name in enumerate(names)}
        self._subjects += names

    def _make(self) -> None:
        """Makes the index anew where there is none or it does not suit the gallery any more.

        That is when too much of it is out of date, or when the gallery has doubled since the
        inverted lists were trained.
        """
        num_vectors = len(self._subjects)
        num_stale = num_vectors - len(self._numbers)
        suits = num_stale <= _STALE * num_vectors and len(self) <= 2 * self._trained
        if self._index is not None and suits:
            return
        if not self._load():
            self._make_new()

    def _make_new(self) -> None:
        """Makes the index of all templates, and keeps it."""
        rows, faiss = self.exact.rows, self._faiss
        lists = round(4 * math.sqrt(len(rows)))
        description = self._description or ("Flat" if len(rows) <= _SMALL else f"IVF{lists},Flat")
        self._index = None
        try:
            index = faiss.index_factory(rows.shape[1], description, faiss.METRIC_INNER_PRODUCT)
            with suppress(RuntimeError):  # raised for an index without inverted lists
                clustering = faiss.extract_index_ivf(index).cp
                # These are a quarter of FAISS's own settings. For a million templates that saves
                # minutes and loses no recall.
                clustering.niter, clustering.max_points_per_centroid = 8, 64
            index.train(rows)
            index.add(rows)
        except RuntimeError as error:
            # FAISS knows the description, but cannot use it for so many templates or dimensions.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][-120:]
            size = f"{len(rows)} templates of {rows.shape[1]} dimensions"
            raise LikenessError(
                f"index {description!r}: FAISS cannot make it of {size} ({reason}); choose another "
                "index, such as Flat or HNSW32"
            ) from None
        self._use(index, self.exact.names, len(rows))
        self._save()

    def _use(self, index: Any, names: Sequence[str], trained: int) -> None:
        """Searches by this index from now on, which has the templates of these names."""
        # An index has one of these settings or none, also behind a transform (PCA, OPQ) or under a
        # refinement (RFlat).
        for setting in ("nprobe", "efSearch"):
            with suppress(RuntimeError):
                self._faiss.ParameterSpace().set_index_parameter(index, setting, self.effort)
        self._index, self._subjects, self._numbers, self._trained = index, [], {}, trained
        self._number(list(names))

    def _save(self) -> None:
        """Keeps the index in its file, where it is worth it; nothing in it is out of date."""
        self._saved = len(self._subjects)
        if self.folder is None or self._saved <= _SMALL:
            return
        head = {
            "format": 1,
            "description": self._description,
            "templates": self._saved,
            "trained": self._trained,
            "digest": self._digest(self._saved),
        }
        try:
            with atomic_path(self.folder / FILE) as temporary, temporary.open("wb") as file:
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
        if self.folder is None or not self._loads:
            return False
        self._loads = False
        path = self.folder / FILE
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            try:
                head = json.loads(file.readline(_MAX_HEAD))
                templates, trained = int(head["templates"]), int(head["trained"])
                if (
                    head["description"] != self._description
                    or not 0 < templates <= len(self)
                    or not templates <= len(self) <= 2 * trained
                    or head["digest"] != self._digest(templates)
                ):
                    return False
                index = self._faiss.read_index(self._faiss.PyCallbackIOReader(file.read))
            except (ValueError, KeyError, TypeError, RuntimeError):
                return False
        if index.ntotal != templates or index.d != self.exact.rows.shape[1]:
            return False
        self._saved = templates
        self._use(index, self.exact.names[:templates], trained)
        if more := self.exact.names[templates:]:
            self._index.add(np.ascontiguousarray(self.exact.rows[templates:]))
            self._number(more)
        return True

    def _digest(self, templates: int) -> str:
        """A digest of the first templates and their names."""
        digest = hashlib.sha256("\n".join(self.exact.names[:templates]).encode())
        digest.update(np.ascontiguousarray(self.exact.rows[:templates]).data)
        return digest.hexdigest()

    def _erase(self) -> None:
        """Overwrites and removes the file of the index, which has templates that go."""
        self._loads, self._saved = False, 0
        if self.folder is not None:
            media.erase_file(self.folder / FILE)
