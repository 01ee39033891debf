"""Connections of `likeness serve`, below HTTP: how long each may keep the server waiting, and who
has to go where there are too many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Read and thrown away after a request that is no HTTP, so that its answer is not lost.
_DRAIN_BYTES = 2**20
# Set in the scope of a request whose client has closed the connection.
GONE = "likeness.gone"
_LATE = b"the request's headers took too long"


class _Bounded(H11Protocol):
    """uvicorn's HTTP protocol with the bounds of `protocol`, which makes classes of this one."""

    max_connections: ClassVar[int]
    max_head_seconds: ClassVar[float]
    max_stall_seconds: ClassVar[float]
    _stalled: asyncio.TimerHandle | None = None  # runs while the client does not read its answer
    _timer: asyncio.TimerHandle | None = None
    _since = 0.0
    _drained: int | None = None  # bytes thrown away after a malformed request; None before one

    @property
    def keeps_waiting(self) -> bool:
        """Whether the client has to send or to read something before the server can go on."""
        cycle = self.cycle
        if self._stalled is not None:
            return True
        return cycle is None or bool(cycle.response_complete) or bool(cycle.more_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self.max_connections:
            waiting = [each for each in cast(set[_Bounded], self.connections) if each.keeps_waiting]
            counts = Counter(each.address for each in waiting)
            # This connection is among them, the newest.
            last = max(waiting, key=lambda each: (counts[each.address], -each._since))
            self.connections.discard(last)
            last.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._end_stall()
        if self.cycle is not None:
            cast(dict[str, Any], self.cycle.scope)[GONE] = True
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.max_stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    @property
    def address(self) -> str:
        return self.client[0] if self.client else "-"

    def data_received(self, data: bytes) -> None:
        if self._drained is not None:
            self._drained += len(data)
            if self._drained > _DRAIN_BYTES:
                self.transport.abort()
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()

    def on_response_complete(self) -> None:
        # This comes first: what follows may begin the next request, which was sent already.
        self._wait_for_head()
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's, but the rest of the request is read for a while: closing at once would
        reset the connection before the answer is read.
        """
        self._refuse(400, msg.encode())
        self._wait_for_head()

    def _refuse(self, status: int, text: bytes) -> None:
        headers: Any = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            (b"connection", b"close"),
        ]
        events = [
            h11.Response(
                status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()
            ),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.write_eof()
        self._drained = 0

    def _wait_for_head(self) -> None:
        self._stop_timer()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self.max_head_seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self._stalled is not None:
            self._wait_for_head()  # a slow reader has the time of max_stall_seconds for each part
        elif (
            self._drained is not None
            or self.transport.get_write_buffer_size()
            or self.transport.is_closing()
        ):
            self.transport.abort()  # a close would wait for a client that does not read
        elif self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, _LATE)
            self._timer = self.loop.call_later(1.0, self.transport.abort)
        else:
            self.transport.close()


def protocol(
    *, connections: int, head_seconds: float, stall_seconds: float = 60.0
) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with three bounds that it lacks.

    Args:
        connections: how many may be open. Beyond that, one that keeps the server waiting is closed:
            of the address that has most of them, the one that has waited longest. So nobody is
            locked out by connections on which nothing happens.
        head_seconds: time for the headers of a request, from the connection or the last answer on.
        stall_seconds: time in which a client that is sent a long answer reads a part of it.

    Returns:
        The class, for `uvicorn.Config(http=...)`.
    """

    class Bounded(_Bounded):
        max_connections = connections
        max_head_seconds = head_seconds
        max_stall_seconds = stall_seconds

    return Bounded
