"""The bodies of requests of `likeness serve` on their way into memory, within bounds."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from likeness.service.limits import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
BUSY = "the server is busy; try again in a moment"


class Gone(Exception):
    """The client closed its connection."""


@dataclass(eq=False)
class Body:
    """The body of a request. timer: runs until all of it has arrived; None afterwards."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    timer: asyncio.Timeout | None = None
    evicted: bool = False


class Bodies:
    """The bodies of all requests of an application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._arriving: dict[Body, None] = {}  # the oldest first
        self._held = 0  # bytes of all bodies

    async def receive(self, receive: Receive, body: Body) -> None:
        """Read the whole body.

        Raises:
            HTTPException: the body is too large or too slow, or there is no room for it.
            Gone: its sender has left.
        """
        limits, loop = self._limits, asyncio.get_running_loop()
        started = loop.time()
        self._arriving[body] = None
        try:
            more = True
            while more:
                slowest = limits.grace_seconds + body.size / limits.body_rate
                async with asyncio.timeout_at(
                    started + min(limits.body_seconds, slowest)
                ) as body.timer:
                    message = await receive()
                if message["type"] != "http.request":
                    raise Gone
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                if body.size + len(chunk) > limits.max_bytes:
                    raise HTTPException(413, too_large(limits))
                body.chunks.append(chunk)
                body.size += len(chunk)
                self._held += len(chunk)
                self._make_room()
                if body.evicted:
                    raise HTTPException(503, BUSY, {"Retry-After": "1"})
        except TimeoutError:
            if body.evicted:
                raise HTTPException(503, BUSY, {"Retry-After": "1"}) from None
            raise HTTPException(
                408,
                f"the upload was too slow: it may take {limits.body_seconds:g} s, at "
                f"{limits.body_rate:g} bytes per second or more",
            ) from None
        finally:
            self._arriving.pop(body, None)

    def _make_room(self) -> None:
        """Give up bodies that are still arriving, the oldest first, until those that remain fit."""
        most = max(self._limits.max_held, 2 * self._limits.max_bytes)
        while self._held > most and self._arriving:
            body = next(iter(self._arriving))
            del self._arriving[body]
            self.forget(body)
            body.evicted = True
            if body.timer is not None and not body.timer.expired():
                # This wakes who waits for the body. Of the body that has just come the timer is
                # over already.
                with contextlib.suppress(RuntimeError):
                    body.timer.reschedule(asyncio.get_running_loop().time())

    def forget(self, body: Body) -> None:
        """Let go of a body, whether it has arrived or not."""
        self._held -= body.size
        body.chunks.clear()
        body.size = 0


def too_large(limits: Limits) -> str:
    """What the sender of a body over the limit is told."""
    return (
        f"at most {limits.max_bytes / 2**20:g} MB are read in one request; "
        "send a shorter recording or a smaller photo"
    )


def sends_body(scope: Scope) -> bool:
    """Whether a body follows that nobody has asked for: one whose sender waits for "100 Continue"
    does not come.
    """
    headers = {key: value.lower() for key, value in scope["headers"]}
    return headers.get(b"expect") != b"100-continue" and (
        b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""
    )


def replay(body: Body, receive: Receive) -> Receive:
    """The body as the application asks for it. Every part is forgotten when it was handed over."""
    parts = collections.deque(body.chunks)
    body.chunks.clear()
    ended = False

    async def part_by_part() -> MutableMapping[str, Any]:
        nonlocal ended
        if ended:
            return await receive()
        part = parts.popleft() if parts else b""
        ended = not parts
        return {"type": "http.request", "body": part, "more_body": not ended}

    return part_by_part
