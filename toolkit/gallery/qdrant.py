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

import base64
import io
import json
import os
import pickle
import sqlite3
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from eval.types import Embeddings, Floats32, nfc
from toolkit.gallery import media
from toolkit.gallery.location import Location, masked
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
    storable,
)
from toolkit.gallery.search import angular_bias, as_asked, as_searched
from toolkit.gallery.store import refuse_contradictions, refuse_foreign

EFFORT = 256  # candidates that a search of a server's index keeps (hnsw_ef)
_BLOCK = 256  # points sent or asked for at once
_STATE = 1  # the id of the one point that says what the gallery is
# What the client's pickles name, and the one table that they lie in.
_PICKLED = ("qdrant_client.http.models.models", "PointStruct")
_TABLE = "CREATE TABLE points (id TEXT PRIMARY KEY, point BLOB)"


class _State(NamedTuple):
    """What the one point says.

    Attributes:
        meta: Of the embeddings, without the pooling.
        pooling: "mean" or "norm_weighted".
        dim: The size of embeddings; 0 before the first.
        change: The number of the last change that was made.
        number: How many subjects were enrolled so far, those who are gone included.
        gone: Points that the last change replaced or removed.
    """

    meta: dict[str, str]
    pooling: str
    dim: int = 0
    change: int = 0
    number: int = 0
    gone: tuple[str, ...] = ()


def holds(where: Location) -> bool:
    """Returns whether there is a gallery in the folder, or on the server.

    Raises:
        ConnectionError: The server does not answer.
    """
    if not where.is_server and not (Path(where.place) / "meta.json").is_file():
        return False
    collections = _Collections(where)
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
        ValueError: The gallery is of another model or similarity, its folder is used by another
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
        self._all = _Collections(where)
        try:
            state = self._all.state()
            if state is None and meta is None:
                raise ValueError(
                    f"{self._all.name} contains no gallery; give the meta of the embeddings to "
                    "make one"
                )
            agreed, defaults = stated(meta, similarity, pooling, state is None)
            if state is None:
                entries = {**defaults, **(agreed or {})}
                refuse_similarity(entries["similarity"], "Qdrant")
                state = _State(entries, entries.pop("pooling"))
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

    def _state(self) -> _State:
        """What the gallery says now; on a server another process may have made it anew."""
        state = self._all.state()
        if state is None:
            raise ValueError(f"{self._all.name}: the gallery is gone; enrol anew")
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
            points.append(_Point("", name, place, blocks[name], norm, vector))
        self._all.change(
            state._replace(number=number), points, [point.id for point in known.values()]
        )
        if known:
            self._all.erase()


class _Point(NamedTuple):
    """A subject as Qdrant has it; `vector` is its template as it is searched."""

    id: str
    subject: str
    number: int  # in the order of enrolment
    rows: Floats32
    norm: float
    vector: Floats32 | None = None


class _Collections:
    """The two collections of a gallery: its points, and the one point that says what it is.

    Args:
        where: A folder or a server.

    Raises:
        ValueError: Another process uses the folder.
        ConnectionError: The server does not answer.
        ImportError: Qdrant's client is missing.
    """

    def __init__(self, where: Location):
        try:
            import qdrant_client
            from qdrant_client import models
        except ImportError:
            raise ImportError(
                "a gallery in Qdrant needs its client; run `pip install 'likeness[qdrant]'`"
            ) from None
        self._models: Any = models
        self._folder = None if where.is_server else Path(where.place)
        self.name = f"qdrant:{masked(where.place)}" + (f"#{where.name}" if where.name else "")
        self._points = f"likeness_{where.name}" if where.name else "likeness"
        self._about = f"{self._points}.about"
        with self._plain_errors():
            if self._folder is None:
                self._client: Any = qdrant_client.QdrantClient(
                    url=where.place,
                    api_key=os.environ.get("QDRANT_API_KEY") or None,
                    timeout=60,
                    check_compatibility=False,
                )
            else:
                is_ours = (self._folder / "meta.json").is_file()
                if not is_ours and self._folder.is_dir() and any(self._folder.iterdir()):
                    raise ValueError(
                        f"{self.name}: the folder contains something else; choose an empty one"
                    )
                _refuse_hostile(self._folder)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._client = qdrant_client.QdrantClient(
                    path=str(self._folder), force_disable_check_same_thread=True
                )

    def close(self) -> None:
        """Frees the folder, or ends the connection."""
        self._client.close()

    def state(self) -> _State | None:
        """What the gallery says of itself; None where there is none."""
        with self._plain_errors():
            if not self._client.collection_exists(self._about):
                return None
            points = self._client.retrieve(self._about, [_STATE])
            if not points:
                return None
            fields = dict(points[0].payload)
            meta = {str(key): str(value) for key, value in fields.pop("meta").items()}
            return _State(meta, **{**fields, "gone": tuple(fields["gone"])})

    def note(self, state: _State) -> None:
        """Says what the gallery is from now on, in one step."""
        with self._plain_errors():
            if not self._client.collection_exists(self._about):
                self._make(self._about, 1)
            payload = {**state._asdict(), "gone": list(state.gone)}
            point = self._models.PointStruct(id=_STATE, vector=[1.0], payload=payload)
            self._client.upsert(self._about, [point], wait=True)

    def clear_up(self, state: _State) -> _State:
        """Deletes what a change has replaced, and what a change has left that was never made."""
        with self._plain_errors():
            if not self._client.collection_exists(self._points):
                return state
            if not state.dim:
                self._client.delete_collection(self._points)
                return state
            models = self._models
            later = models.FieldCondition(key="change", range=models.Range(gt=state.change))
            unmade = models.Filter(must=[later])
            if self._client.count(self._points, count_filter=unmade, exact=True).count:
                self._delete(models.FilterSelector(filter=unmade))
                self.erase()
            if not state.gone:
                return state
            for start in range(0, len(state.gone), _BLOCK):
                part = list(state.gone[start : start + _BLOCK])
                self._delete(models.PointIdsList(points=part))
        state = state._replace(gone=())
        self.note(state)
        return state

    def change(self, state: _State, points: Sequence[_Point], gone: Sequence[str]) -> None:
        """Puts points in place of others, whole or not at all.

        Args:
            state: What the gallery says; nothing is to be cleared up.
            points: What is new.
            gone: The ids of the points that go.
        """
        change = state.change + 1
        with self._plain_errors():
            if points and not self._client.collection_exists(self._points):
                assert points[0].vector is not None
                self._make(self._points, len(points[0].vector))
            for start in range(0, len(points), _BLOCK):
                part = [self._stored(point, change) for point in points[start : start + _BLOCK]]
                self._client.upsert(self._points, part, wait=True)
        state = state._replace(change=change, gone=tuple(gone))
        self.note(state)
        self.clear_up(state)

    def erase(self) -> None:
        """Overwrites what was deleted from the file of the local mode; a server does so itself."""
        if self._folder is None:
            return
        path = self._folder / "collection" / self._points / "storage.sqlite"
        with closing(sqlite3.connect(path, timeout=10)) as database:
            database.execute("PRAGMA secure_delete=ON")
            database.execute("VACUUM")

    def count(self, state: _State) -> int:
        """How many subjects there are."""
        with self._plain_errors():
            if not state.dim:
                return 0
            visible = self._visible(state)
            return int(self._client.count(self._points, count_filter=visible, exact=True).count)

    def of(self, state: _State, subjects: Sequence[str]) -> dict[str, _Point]:
        """Those of the subjects who are enrolled."""
        found: dict[str, _Point] = {}
        names = storable(subjects) if state.dim else []
        models = self._models
        for start in range(0, len(names), _BLOCK):
            part = names[start : start + _BLOCK]
            wanted = models.FieldCondition(key="subject", match=models.MatchAny(any=part))
            for point in self._scroll(state, wanted):
                read = self._read(state, point)
                found[read.subject] = read
        return found

    def entries(self, state: _State) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        if not state.dim:
            return []
        fields = ["subject", "number", "enrolments", "norm"]
        payloads = [point.payload for point in self._scroll(state, None, fields)]
        payloads.sort(key=lambda payload: payload["number"])
        return [Entry(some["subject"], some["enrolments"], some["norm"]) for some in payloads]

    def nearest(self, state: _State, asked: Floats32, num: int) -> list[list[_Point]]:
        """The points whose vectors have the largest products with each row, as first enrolled."""
        models = self._models
        requests = [
            models.QueryRequest(
                query=row.tolist(),
                limit=num,
                filter=self._visible(state),
                params=models.SearchParams(hnsw_ef=max(EFFORT, 2 * num)),
                with_payload=True,
            )
            for row in asked
        ]
        nearest: list[list[_Point]] = []
        with self._plain_errors():
            for start in range(0, len(requests), _BLOCK):
                part = requests[start : start + _BLOCK]
                for answer in self._client.query_batch_points(self._points, part):
                    points = [self._read(state, point) for point in answer.points]
                    nearest.append(sorted(points, key=lambda point: point.number))
        return nearest

    def _make(self, name: str, dim: int) -> None:
        models = self._models
        self._client.create_collection(
            name,
            vectors_config=models.VectorParams(size=dim, distance=models.Distance.DOT),
        )
        if name == self._points and self._folder is None:
            self._client.create_payload_index(name, "subject", models.PayloadSchemaType.KEYWORD)
            self._client.create_payload_index(name, "change", models.PayloadSchemaType.INTEGER)

    def _visible(self, state: _State, *conditions: Any) -> Any:
        """The filter of the points that count.

        In a folder nobody else makes a change, and all others are cleared up, so that all count.
        """
        models = self._models
        if self._folder is not None and not conditions:
            return None
        made = models.FieldCondition(key="change", range=models.Range(lte=state.change))
        gone = [models.HasIdCondition(has_id=list(state.gone))] if state.gone else None
        return models.Filter(must=[made, *conditions], must_not=gone)

    def _scroll(
        self, state: _State, condition: Any, fields: Sequence[str] | bool = True
    ) -> Iterator[Any]:
        """All points that count and meet the condition."""
        chosen = self._visible(state, *([] if condition is None else [condition]))
        offset = None
        while True:
            with self._plain_errors():
                points, offset = self._client.scroll(
                    self._points, chosen, limit=_BLOCK, offset=offset, with_payload=fields
                )
            yield from points
            if offset is None:
                return

    def _delete(self, which: Any) -> None:
        self._client.delete(self._points, points_selector=which, wait=True)

    def _stored(self, point: _Point, change: int) -> Any:
        assert point.vector is not None
        blob = np.ascontiguousarray(point.rows, dtype="<f4").tobytes()
        return self._models.PointStruct(
            id=str(uuid.uuid4()),
            vector=point.vector.tolist(),
            payload={
                "subject": point.subject,
                "number": point.number,
                "change": change,
                "enrolments": len(point.rows),
                "norm": point.norm,
                "rows": base64.b64encode(blob).decode(),
            },
        )

    def _read(self, state: _State, point: Any) -> _Point:
        payload = point.payload
        blob = base64.b64decode(payload["rows"])
        rows = np.frombuffer(blob, dtype="<f4").reshape(-1, state.dim).astype(np.float32)
        return _Point(str(point.id), payload["subject"], payload["number"], rows, payload["norm"])

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turns what Qdrant raises into one sentence.

        It is a ConnectionError where a server does not answer, and else a ValueError.
        """
        from qdrant_client.http.exceptions import ApiException, ResponseHandlingException

        try:
            with warnings.catch_warnings():
                # of the local mode above 20,000 points, which the documentation says and measures
                warnings.simplefilter("ignore", UserWarning)
                yield
        except ResponseHandlingException as error:
            raise ConnectionError(
                f"{self.name}: Qdrant does not answer ({_reason(error)}); see that it runs there"
            ) from None
        except ApiException as error:
            raise ValueError(f"{self.name}: Qdrant refuses this ({_reason(error)})") from None
        except RuntimeError as error:
            if "already accessed" in str(error):
                raise ValueError(
                    f"{self.name} is used by another process; Qdrant's local mode belongs to one "
                    "at a time: stop it, name a server, or choose another folder"
                ) from None
            raise self._unreadable(error) from None
        except (
            *(sqlite3.Error, KeyError, TypeError, AttributeError),
            *(json.JSONDecodeError, UnicodeDecodeError, pickle.UnpicklingError, RecursionError),
            *(EOFError, IndexError, OverflowError),  # of damaged pickles
        ) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.name}: not a gallery that can be read ({_reason(error)}); restore a copy, or "
            "choose another folder or name"
        )


def _refuse_hostile(folder: Path) -> None:
    """Raises what stands against giving a folder to Qdrant's local mode, which runs its pickles.

    A pickle may call any function. Here each is gone through with nothing that could be called, and
    only the class of a point may be named.

    Raises:
        ValueError: A file is a link, or a database of something else.
        pickle.UnpicklingError: A pickle is damaged, or names anything else.
    """
    for path in sorted(folder.glob("collection/**/storage.sqlite")):
        refuse_foreign(path)
        with closing(sqlite3.connect(path, timeout=10)) as database:
            database.execute("PRAGMA trusted_schema=OFF")
            made = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9")
            if any(text != _TABLE for (text,) in made.fetchall()):
                raise ValueError(
                    f"{path}: its tables are not those of a gallery; it is damaged or hostile: "
                    "restore a copy"
                )
            for (value,) in database.execute("SELECT point FROM points"):
                _Pickled(io.BytesIO(value)).load()


class _Pickled(pickle.Unpickler):
    """Goes through a pickle of Qdrant's client without importing or calling what it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Gives a stand-in for the class of a point.

        Raises:
            pickle.UnpicklingError: It is anything else.
        """
        if (module, name) == _PICKLED:
            return _StandIn
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:100] + ", as hostile files do")

    def persistent_load(self, pid: Any) -> Any:
        """Refuses a reference, which no point has."""
        raise pickle.UnpicklingError("it refers to something outside it")


class _StandIn:
    """In place of a point."""

    def __setstate__(self, state: Any) -> None:
        """Takes what a point has, and leaves it."""


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
