"""What stands before every request of `likeness serve`: who may ask, how much, how often, how long;
what the answer's headers, the log and the metrics say.

    Host
        only the addresses that are served: a page elsewhere cannot reach the server by pointing its
        own name at it (DNS rebinding) -> 421
    Origin
        requests that change or upload must come from the page itself, or from no page (CSRF) -> 403
    token
        enrolling, replacing and removing need it; where other machines can connect, everything but
        the page, /health, /docs and /openapi.json -> 401
    rate
        a token bucket for each client address -> 429; wrong tokens have a smaller one, and where it
        is empty the right one waits too
    charset
        forms in another encoding than UTF-8, which the form's reader would decode by whatever
        Python has -> 415
    size, time
        bodies over the limit -> 413, that arrive too slowly -> 408
    memory
        the bodies of all requests together; beyond that, the one that has been arriving longest ->
        503
    queue
        so many uploads that have arrived, worked on or waiting -> 503

A refused request is answered at once; what its sender still sends is read and thrown away for a
while, since closing the connection at once would lose the answer.

The log names method, route, status and time: no addresses, file names, subjects or scores.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hmac
import ipaddress
import json
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds
OPEN = ("/", "/health", "/docs", "/openapi.json")  # tell nothing of anybody
_MAX_CLIENTS = 10_000
_WRONG_TOKENS = (0.1, 10.0)  # per second, and at once
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DRAIN = 2**26, 5.0  # bytes and seconds that a refused upload is still read for
_UTF_8 = re.compile(r';\s*charset="?utf-8"?\s*(?=;|$)')
_BUSY = "the server is busy; try again in a moment"
_log = logging.getLogger("likeness.serve")


@dataclass(eq=False)
class _Body:
    """One that is arriving, or has. timer: runs until it has arrived; None afterwards."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    timer: asyncio.Timeout | None = None
    evicted: bool = False


@dataclass(frozen=True)
class Limits:
    """rate: requests per second and client address, 0 = no limit; twice as many at once. waiting:
    uploads that may wait beside those worked on.
    """

    max_bytes: int = 16 * 2**20  # of one request
    body_seconds: float = 60.0  # for it to arrive
    body_rate: float = (
        8_000.0  # bytes per second that must arrive on the average, after the first seconds
    )
    grace_seconds: float = 5.0  # before that rate counts
    head_seconds: float = 10.0  # for the headers of a request to arrive
    max_held: int = (
        256 * 2**20
    )  # bytes of the bodies of all requests; at least two of the largest fit
    connections: int = 400  # open at once
    work_seconds: float = 120.0  # to wait, be embedded and compared
    rate: float = 200.0
    workers: int = 2
    waiting: int = 100
    max_seconds: float = 60.0  # of one recording
    max_values: int = (
        2**26
    )  # samples x channels of one recording: a minute of 23 channels at 48 kHz
    max_pixels: int = 2**25  # of one image: 33 megapixels


@dataclass
class Metrics:
    """Counts for GET /metrics, in Prometheus' text format."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    buckets: Counter[tuple[str, float]] = field(default_factory=Counter)
    busy: int = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]
        for bound in BUCKETS:
            self.buckets[route, bound] += seconds <= bound

    def text(self, gauges: Mapping[str, float]) -> str:
        lines = ["# TYPE likeness_requests_total counter"]
        lines += [
            f'likeness_requests_total{{method="{m}",route="{r}",status="{s}"}} {n}'
            for (m, r, s), n in sorted(self.requests.items())
        ]
        lines.append("# TYPE likeness_request_seconds histogram")
        for route in sorted(self.seconds):
            total = sum(n for (_, one, _), n in self.requests.items() if one == route)
            lines += [
                f'likeness_request_seconds_bucket{{route="{route}",le="{bound:g}"}} '
                f"{self.buckets[route, bound]}"
                for bound in BUCKETS
            ]
            lines.append(f'likeness_request_seconds_bucket{{route="{route}",le="+Inf"}} {total}')
            lines += [
                f'likeness_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}',
                f'likeness_request_seconds_count{{route="{route}"}} {total}',
            ]
        for name, value in {"likeness_uploads_in_progress": self.busy, **gauges}.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


class Guard:
    """ASGI middleware. hosts: names by which the server may be addressed, beside loopback's. local:
    whether only this machine can connect.
    """

    def __init__(
        self,
        app: Any,
        *,
        token: str,
        hosts: Iterable[str],
        local: bool,
        limits: Limits,
        metrics: Metrics,
        policy: str,
    ):
        self.app, self.token, self.local, self.limits, self.metrics = (
            app,
            token,
            local,
            limits,
            metrics,
        )
        self.hosts = {*_LOOPBACK, *(one.lower().strip("[]") for one in hosts)}
        self.headers = security_headers(policy)
        self._asked = _Rates(limits.rate, 2 * limits.rate)
        self._failed = _Rates(*_WRONG_TOKENS)
        self._arriving: dict[_Body, None] = {}  # the oldest first
        self._held = 0  # bytes of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets are served
        started, status = time.perf_counter(), 500
        uploads = scope["method"] not in ("GET", "HEAD")

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        try:
            body, arrived = _Body(), not uploads
            try:
                self._admit(scope)
                if uploads:
                    await self._receive(receive, body)
                    arrived = True
                    self._refuse_when_busy()
            except HTTPException as refused:
                self._forget(body)
                await _refuse(
                    answer, refused, None if arrived or not _sends_body(scope) else receive
                )
                return
            except _Gone:
                self._forget(body)
                return
            self.metrics.busy += uploads
            try:
                await self.app(scope, _replay(body, receive) if uploads else receive, answer)
            finally:
                self.metrics.busy -= uploads
                self._forget(body)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            taken = time.perf_counter() - started
            self.metrics.count(
                scope["method"]
                if scope["method"] in ("GET", "HEAD", "POST", "PUT", "DELETE")
                else "-",
                route,
                status,
                taken,
            )
            _log.info("%s %s %d %.1f ms", scope["method"], route, status, 1000 * taken)

    def _admit(self, scope: Scope) -> None:
        """HTTPException for a request that is not to be read any further."""
        method, path, client = scope["method"], scope["path"], (scope.get("client") or ("-",))[0]
        headers = [(key, value.decode("latin-1")) for key, value in scope["headers"]]
        named = [value for key, value in headers if key == b"host"]
        if len(named) != 1 or not self._serves(named[0]):
            raise HTTPException(
                421,
                "this server does not serve that host name; use the address that it printed at its "
                "start, or start it with --allow-host NAME",
            )
        given = dict(headers)
        if not self._asked.take(client):
            raise HTTPException(
                429,
                f"more than {self.limits.rate:g} requests per second; wait a moment",
                {"Retry-After": "1"},
            )
        if method not in ("GET", "HEAD"):
            origin, site = given.get(b"origin"), given.get(b"sec-fetch-site", "none")
            if (
                origin is not None and origin.lower().partition("://")[2] != named[0].lower()
            ) or site not in ("none", "same-origin"):
                raise HTTPException(
                    403,
                    "requests from other pages are refused; use the page of this server, or send "
                    "no Origin header",
                )
        if method in ("PUT", "DELETE") or path == "/enrol" or not (self.local or path in OPEN):
            # before the token is compared: who guessed too often is not told that a guess is right
            if not self._failed.has(client):
                raise HTTPException(
                    429, "too many wrong tokens; wait ten seconds", {"Retry-After": "10"}
                )
            kind, _, token = given.get(b"authorization", "").partition(" ")
            if (
                not hmac.compare_digest(token.strip().encode(), self.token.encode())
                or kind.lower() != "bearer"
            ):
                self._failed.take(client)
                raise HTTPException(
                    401,
                    "this needs the token that the server printed at its start: send "
                    "Authorization: Bearer TOKEN",
                    {"WWW-Authenticate": "Bearer"},
                )
        if method not in ("GET", "HEAD"):
            self._refuse_encoding([value for key, value in headers if key == b"content-type"])
            stated = given.get(b"content-length", "0")
            if not stated.isdecimal() or len(stated) > 18 or int(stated) > self.limits.max_bytes:
                raise HTTPException(413, self._too_large())
            self._refuse_when_busy()  # again when it has arrived: only then does it take a place

    def _refuse_encoding(self, types: list[str]) -> None:
        """HTTPException where the client chooses an encoding of Python's for the form's texts:
        punycode takes minutes for a megabyte, and all others wait.
        """
        if len(types) > 1 or any("charset" in _UTF_8.sub("", one.lower()) for one in types):
            raise HTTPException(
                415,
                "texts of a form are read as UTF-8; send one Content-Type without another charset",
            )

    def _serves(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host.lower()}").hostname or ""
        except ValueError:
            return False
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self.local  # a bare address cannot be rebound

    def _refuse_when_busy(self) -> None:
        if self.metrics.busy >= self.limits.workers + self.limits.waiting:
            raise HTTPException(503, _BUSY, {"Retry-After": "1"})

    async def _receive(self, receive: Receive, body: _Body) -> None:
        """The whole body into `body`.

        HTTPException where it is too large or too slow, or there is no room for it; _Gone where its
        sender has left.
        """
        limits, loop = self.limits, asyncio.get_running_loop()
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
                    raise _Gone
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                if body.size + len(chunk) > limits.max_bytes:
                    raise HTTPException(413, self._too_large())
                body.chunks.append(chunk)
                body.size += len(chunk)
                self._held += len(chunk)
                self._make_room()
                if body.evicted:
                    raise HTTPException(503, _BUSY, {"Retry-After": "1"})
        except TimeoutError:
            if body.evicted:
                raise HTTPException(503, _BUSY, {"Retry-After": "1"}) from None
            raise HTTPException(
                408,
                f"the upload was too slow: it may take {limits.body_seconds:g} s, at "
                f"{limits.body_rate:g} bytes per second or more",
            ) from None
        finally:
            self._arriving.pop(body, None)

    def _make_room(self) -> None:
        """Give up bodies that are still arriving, the oldest first, until those that remain fit."""
        while self._held > max(self.limits.max_held, 2 * self.limits.max_bytes) and self._arriving:
            body = next(iter(self._arriving))
            del self._arriving[body]
            self._forget(body)
            body.evicted = True
            if body.timer is not None and not body.timer.expired():
                # Wakes the one that waits for it; of the body that has just come, it is over
                # already.
                with contextlib.suppress(RuntimeError):
                    body.timer.reschedule(asyncio.get_running_loop().time())

    def _forget(self, body: _Body) -> None:
        self._held -= body.size
        body.chunks.clear()
        body.size = 0

    def _too_large(self) -> str:
        return (
            f"at most {self.limits.max_bytes / 2**20:g} MB are read in one request; "
            "send a shorter recording or a smaller photo"
        )


class _Gone(Exception):
    """The client closed its connection."""


def _sends_body(scope: Scope) -> bool:
    """Whether a body follows that nobody has asked for: one whose sender waits for "100 Continue"
    does not come.
    """
    headers = {key: value.lower() for key, value in scope["headers"]}
    return headers.get(b"expect") != b"100-continue" and (
        b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""
    )


def _replay(body: _Body, receive: Receive) -> Receive:
    """The body as the application asks for it; every part is let go when it was given."""
    parts = collections.deque(body.chunks)
    body.chunks.clear()
    ended = False

    async def given() -> MutableMapping[str, Any]:
        nonlocal ended
        if ended:
            return await receive()
        part = parts.popleft() if parts else b""
        ended = not parts
        return {"type": "http.request", "body": part, "more_body": not ended}

    return given


class _Rates:
    """A token bucket for each client. per_second = 0: no limit."""

    def __init__(self, per_second: float, burst: float):
        self.per_second, self.burst = per_second, max(1.0, burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, client: str) -> bool:
        """Whether `take` would give one now."""
        return not self.per_second or self._now(client)[0] >= 1

    def _now(self, client: str) -> tuple[float, float]:
        now = time.monotonic()
        left, before = self._left.get(client, (self.burst, now))
        return min(self.burst, left + (now - before) * self.per_second), now

    def take(self, client: str) -> bool:
        if not self.per_second:
            return True
        left, now = self._now(client)
        self._left.pop(client, None)
        self._left[client] = (left - (left >= 1), now)
        while len(self._left) > _MAX_CLIENTS:
            self._left.popitem(last=False)
        return left >= 1


def security_headers(policy: str) -> list[tuple[bytes, bytes]]:
    """policy: the Content-Security-Policy of pages."""
    said = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
        "cache-control": "no-store",
    }
    return [(key.encode(), value.encode()) for key, value in said.items()]


async def _refuse(send: Send, refused: HTTPException, unread: Receive | None) -> None:
    """Answer and close. unread: what is left of the request's body, which is thrown away after the
    answer and within bounds.
    """
    body = json.dumps({"error": refused.detail}).encode()
    extra = [
        (key.lower().encode(), value.encode()) for key, value in dict(refused.headers or {}).items()
    ]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": refused.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread is not None})
    if unread is None:
        return
    left, seconds = _DRAIN
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while left > 0:
                message = await unread()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b""})
