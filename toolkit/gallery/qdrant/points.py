"""The points of a gallery in Qdrant, and all that is asked of its client.

gallery.py beside this file says how a change of several points is made in one step.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sqlite3
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.errors import LikenessError
from eval.types import Floats32, first_line
from toolkit.gallery.location import Location, masked
from toolkit.gallery.qdrant.pickles import refuse_hostile
from toolkit.gallery.rules import Entry, storable

EFFORT = 256  # candidates that a search of a server's index keeps (hnsw_ef)
_BLOCK = 256  # points sent or asked for at once
_STATE = 1  # the id of the one point that says what the gallery is


class State(NamedTuple):
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


class Point(NamedTuple):
    """A subject as Qdrant has it; `vector` is its template as it is searched."""

    id: str
    subject: str
    number: int  # in the order of enrolment
    rows: Floats32
    norm: float
    vector: Floats32 | None = None


class Collections:
    """The two collections of a gallery: its points, and the one point that says what it is.

    Args:
        where: A folder or a server.

    Raises:
        LikenessError: Another process uses the folder.
        ConnectionError: The server does not answer.
        ImportError: Qdrant's client is missing.
    """

    def __init__(self, where: Location):
        try:
            import qdrant_client
            from qdrant_client import models
        except ImportError:
            raise LikenessError(
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
                    raise LikenessError(
                        f"{self.name}: the folder contains something else; choose an empty one"
                    )
                refuse_hostile(self._folder)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._client = qdrant_client.QdrantClient(
                    path=str(self._folder), force_disable_check_same_thread=True
                )

    def close(self) -> None:
        """Frees the folder, or ends the connection."""
        self._client.close()

    def state(self) -> State | None:
        """What the gallery says of itself; None where there is none."""
        with self._plain_errors():
            if not self._client.collection_exists(self._about):
                return None
            points = self._client.retrieve(self._about, [_STATE])
            if not points:
                return None
            fields = dict(points[0].payload)
            meta = {str(key): str(value) for key, value in fields.pop("meta").items()}
            return State(meta, **{**fields, "gone": tuple(fields["gone"])})

    def note(self, state: State) -> None:
        """Says what the gallery is from now on, in one step."""
        with self._plain_errors():
            if not self._client.collection_exists(self._about):
                self._make(self._about, 1)
            payload = {**state._asdict(), "gone": list(state.gone)}
            point = self._models.PointStruct(id=_STATE, vector=[1.0], payload=payload)
            self._client.upsert(self._about, [point], wait=True)

    def clear_up(self, state: State) -> State:
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

    def change(self, state: State, points: Sequence[Point], gone: Sequence[str]) -> None:
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
        """Overwrites what was deleted from the file of the local mode; a server does so itself.

        Raises:
            OSError: The file cannot be written, for example because the disk is full.
        """
        if self._folder is None:
            return
        path = self._folder / "collection" / self._points / "storage.sqlite"
        try:
            with closing(sqlite3.connect(path, timeout=10)) as database:
                database.execute("PRAGMA secure_delete=ON")
                database.execute("VACUUM")
        except sqlite3.Error as error:
            raise LikenessError(
                f"{self.name}: the change was made, but what it removed is not overwritten in "
                f"{path} ({first_line(error)}); make room, and remove or replace somebody again"
            ) from None

    def count(self, state: State) -> int:
        """How many subjects there are."""
        with self._plain_errors():
            if not state.dim:
                return 0
            visible = self._visible(state)
            return int(self._client.count(self._points, count_filter=visible, exact=True).count)

    def of(self, state: State, subjects: Sequence[str]) -> dict[str, Point]:
        """Those of the subjects who are enrolled."""
        found: dict[str, Point] = {}
        names = storable(subjects) if state.dim else []
        models = self._models
        for start in range(0, len(names), _BLOCK):
            part = names[start : start + _BLOCK]
            wanted = models.FieldCondition(key="subject", match=models.MatchAny(any=part))
            for point in self._scroll(state, wanted):
                read = self._read(state, point)
                found[read.subject] = read
        return found

    def entries(self, state: State) -> list[Entry]:
        """Who is enrolled, in the order of enrolment."""
        if not state.dim:
            return []
        fields = ["subject", "number", "enrolments", "norm"]
        payloads = [point.payload for point in self._scroll(state, None, fields)]
        payloads.sort(key=lambda payload: payload["number"])
        return [Entry(some["subject"], some["enrolments"], some["norm"]) for some in payloads]

    def nearest(self, state: State, asked: Floats32, num: int) -> list[list[Point]]:
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
        nearest: list[list[Point]] = []
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

    def _visible(self, state: State, *conditions: Any) -> Any:
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
        self, state: State, condition: Any, fields: Sequence[str] | bool = True
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

    def _stored(self, point: Point, change: int) -> Any:
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

    def _read(self, state: State, point: Any) -> Point:
        payload = point.payload
        blob = base64.b64decode(payload["rows"])
        rows = np.frombuffer(blob, dtype="<f4").reshape(-1, state.dim).astype(np.float32)
        return Point(str(point.id), payload["subject"], payload["number"], rows, payload["norm"])

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
            raise LikenessError(
                f"{self.name}: Qdrant does not answer ({first_line(error)}); see that it runs there"
            ) from None
        except ApiException as error:
            raise LikenessError(f"{self.name}: Qdrant refuses this ({first_line(error)})") from None
        except RuntimeError as error:
            if "already accessed" in str(error):
                raise LikenessError(
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

    def _unreadable(self, error: Exception) -> LikenessError:
        return LikenessError(
            f"{self.name}: not a gallery that can be read ({first_line(error)}); restore a copy, "
            "or choose another folder or name"
        )
