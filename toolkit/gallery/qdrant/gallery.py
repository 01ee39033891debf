"""A gallery in Qdrant: in its local mode, which is a folder, or on a server that the address names.

It has the same methods as ExactGallery. One process changes a gallery; on a server any number
search it. The local mode compares all subjects in Python and NumPy, which takes a while above
20,000 of them, and belongs to one process.

A subject is one point, with its template as the vector and its raw enrolments beside it. Qdrant
has no transactions over several points. So new points carry the number of their change, and count
once a second collection, of a single point, says that the change was made. What the change replaces
is named there too, and counts no more. Then it is deleted. A process that is killed leaves points
of a change that was never made, or points that are yet to be deleted; the next change clears up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import RLock

from eval.errors import LikenessError
from eval.types import Embeddings, Floats32, nfc
from toolkit.gallery import media
from toolkit.gallery.location import Location
from toolkit.gallery.qdrant.points import Collections, Point, State
from toolkit.gallery.rules import (
    EXTRA,
    Entry,
    Match,
    joined,
    ranked,
    refuse_names,
    refuse_other,
    refuse_similarity,
    refuse_unknown,
    stated,
)
from toolkit.gallery.search import angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions, refuse_no_gallery


def holds(where: Location) -> bool:
    """Returns whether there is a gallery in the folder, or on the server.

    Raises:
        ConnectionError: The server does not answer.
    """
    if not where.is_server and not (Path(where.place) / "meta.json").is_file():
        return False
    collections = Collections(where)
    try:
        return collections.state() is not None
    finally:
        collections.close()


class QdrantGallery:
    """A gallery in Qdrant.

    Args:
        where: A folder or a server.
        meta: As of ExactGallery.
        similarity: cosine, dot or simple; by default what the meta says, else cosine.
        pooling: As of ExactGallery.

    Raises:
        LikenessError: The gallery is of another model or similarity, its folder is used by another
            process, or there is none and no meta makes one.
        ConnectionError: The server does not answer.
        ImportError: Qdrant's client is missing; the message names the extra to install.
    """

    shared = False

    def __init__(
        self,
        where: Location,
        meta: Mapping[str, str] | None = None,
        *,
        similarity: str | None = None,
        pooling: str = "mean",
    ):
        self.folder = None if where.is_server else Path(where.place)
        self._lock = RLock()
        self._all = Collections(where)
        try:
            state = self._all.state()
            refuse_no_gallery(self._all.name, meta, is_there=state is not None)
            agreed, defaults = stated(meta, similarity, pooling, state is None)
            if state is None:
                entries = {**defaults, **(agreed or {})}
                refuse_similarity(entries["similarity"], "Qdrant")
                state = State(entries, entries.pop("pooling"))
                self._all.note(state)
            refuse_contradictions(self._all.name, state.meta, agreed)
            self._meta = state.meta
            self.similarity = state.meta.get("similarity", "cosine")
            refuse_similarity(self.similarity, "Qdrant")
            self.b_theta = angular_bias(self.similarity)
            if self.folder is not None:
                self._all.clear_up(state)
        except BaseException:
            self._all.close()
            raise

    @property
    def meta(self) -> Mapping[str, str]:
        """What the gallery says of its embeddings."""
        return self._meta

    @property
    def dim(self) -> int:
        """The size D of its embeddings; 0 before the first."""
        return self._state().dim

    def __len__(self) -> int:
        with self._lock:
            return self._all.count(self._state())

    def enrol(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Adds enrolments, as ExactGallery.enrol."""
        with self._lock:
            self._write(embeddings, list(map(nfc, subjects)), replace=False)

    def update(self, embeddings: Embeddings, subjects: Sequence[str]) -> None:
        """Replaces enrolments, as ExactGallery.update."""
        with self._lock:
            self._write(embeddings, list(map(nfc, subjects)), replace=True)

    def remove(self, subjects: Sequence[str]) -> None:
        """Erases subjects, as ExactGallery.remove."""
        leaving = list(dict.fromkeys(map(nfc, subjects)))
        with self._lock:
            state = self._all.clear_up(self._state())
            known = self._all.of(state, leaving)
            refuse_unknown(leaving, known)
            if leaving:
                media.erase(self.folder, leaving)
                self._all.change(state, [], [known[name].id for name in leaving])
                self._all.erase()

    def search(
        self, probes: Embeddings, k: int = 5, threshold: float | None = None
    ) -> list[tuple[Match, ...]]:
        """Finds the k most similar subjects of every probe, as ExactGallery.search."""
        with self._lock:
            state = self._state()
            refuse_other(state.meta, state.dim, probes, k)
            if not state.dim:
                return [()] * len(probes.ids)
            asked = as_asked(probes.matrix, self.b_theta, self.similarity)
            return [
                ranked(
                    {point.subject: point.rows for point in candidates},
                    probe,
                    k,
                    threshold,
                    pooling=state.pooling,
                    similarity=self.similarity,
                )
                for probe, candidates in zip(
                    probes.matrix, self._all.nearest(state, asked, k + EXTRA), strict=True
                )
            ]

    def entries(self) -> list[Entry]:
        """Lists who is enrolled, in the order of enrolment."""
        with self._lock:
            return self._all.entries(self._state())

    def enrolments(self, subject: str) -> Floats32:
        """Gives the raw enrolments (R, D) of a subject, as ExactGallery.enrolments."""
        name = nfc(subject)
        with self._lock:
            known = self._all.of(self._state(), [name])
            refuse_unknown([name], known)
            return known[name].rows

    def close(self) -> None:
        """Frees the folder for another process, or ends the connection."""
        self._all.close()

    def _state(self) -> State:
        """What the gallery says now; on a server another process may have made it anew."""
        state = self._all.state()
        if state is None:
            raise LikenessError(f"{self._all.name}: the gallery is gone; enrol anew")
        refuse_contradictions(self._all.name, state.meta, self._meta)
        return state

    def _write(self, embeddings: Embeddings, subjects: Sequence[str], *, replace: bool) -> None:
        """Adds or replaces enrolments."""
        state = self._all.clear_up(self._state())
        refuse_other(state.meta, state.dim, embeddings)
        refuse_names(subjects, len(embeddings.ids))
        if not subjects:
            return
        names = list(dict.fromkeys(subjects))
        known = self._all.of(state, names)
        if replace:
            refuse_unknown(names, known)
            media.erase(self.folder, names)
        before = {} if replace else {name: point.rows for name, point in known.items()}
        blocks, templates = joined(embeddings, subjects, before, state.pooling)
        vectors = as_searched(templates.matrix, self.b_theta, self.similarity)
        state = state._replace(dim=embeddings.matrix.shape[1])
        number = state.number
        points = []
        for name, norm, vector in zip(
            templates.ids, templates.norms.tolist(), vectors, strict=True
        ):
            if name not in known:
                number += 1
            place = known[name].number if name in known else number
            points.append(Point("", name, place, blocks[name], norm, vector))
        self._all.change(
            state._replace(number=number), points, [point.id for point in known.values()]
        )
        if known:
            self._all.erase()
