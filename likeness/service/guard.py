"""What stands before every request of `likeness serve`: who may ask, and how much; what the headers
of its answer, the log and the metrics say.

    Host
        Only the addresses that are served are answered, else 421. So a page elsewhere cannot reach
        the server by pointing its own name at it (DNS rebinding).
    Origin
        Requests that change or upload must come from the page itself or from no page, else 403
        (CSRF).
    token
        Enrolling, replacing and removing need it, else 401. Where other machines can connect, so
        does everything but the page, /health, /thresholds, /docs and /openapi.json.
    size
        A body over the limit is answered with 413, one that takes too long with 408.
    work
        So many uploads may arrive, wait or be worked on, with so many bytes together, else 503.

The log names method, route, status and time: no addresses, file names, subjects or scores.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN = ("/", "/health", "/thresholds", "/docs", "/openapi.json")  # these say nothing of anybody
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the name that prometheus_client gives it
_READING = ("GET", "HEAD")
_METHODS = (*_READING, "POST", "PUT", "DELETE")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BUSY = "the server is busy; try again in a moment"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # the buckets of times
_log = logging.getLogger("likeness.serve")
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Limits:
    """What requests can cost.

    Attributes:
        max_bytes: Of one request.
        max_held: Bytes of the bodies of all requests.
        body_seconds: For a body to arrive.
        work_seconds: For an upload to wait, be embedded and be compared.
        threads: Uploads that a process works on at once.
        waiting: Uploads that may arrive or wait beside them.
        max_seconds: Of one recording.
        max_values: Samples x channels of one recording: a minute of 23 channels at 48 kHz.
        max_pixels: Of one image: 33 megapixels.
    """

    max_bytes: int = 16 * 2**20
    max_held: int = 256 * 2**20
    body_seconds: float = 60.0
    work_seconds: float = 120.0
    threads: int = 2
    waiting: int = 100
    max_seconds: float = 60.0
    max_values: int = 2**26
    max_pixels: int = 2**25


class Metrics:
    """What one application counts; of several processes at one address, the sums of all."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "likeness_requests",
            "Requests that were answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "likeness_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.uploads = Gauge(
            "likeness_uploads_in_progress",
            "Uploads that arrive, wait or are worked on.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        for path in Path(os.environ.get(_METRICS_FOLDER, "/dev/null")).glob("gauge_live*.db"):
            process = int(path.stem.rpartition("_")[2])
            if not Path(f"/proc/{process}").exists():  # it works on nothing any more
                mark_process_dead(process)  # type: ignore[no-untyped-call]

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> str:
        """What was counted, in Prometheus' text format."""
        registry = self._registry
        if _METRICS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode()


class Guard:
    """ASGI middleware around an application.

    Args:
        app: The application.
        token: What enrolling and the like need.
        hosts: Names by which the server may be addressed, beside loopback's.
        local: Whether only this machine can connect.
        limits: What requests can cost.
        metrics: Counts what is answered.
        policy: The Content-Security-Policy of pages.
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
        self.app, self.local = app, local
        self._token, self._limits, self._metrics = token.encode(), limits, metrics
        self._hosts = {host.strip("[]").lower() for host in (*_LOOPBACK, *hosts)}
        self._headers = _security_headers(policy)
        self._uploads = self._held = 0  # requests, and bytes of their bodies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        try:
            self._admit(scope)
            if scope["method"] in _READING:
                await self.app(scope, receive, answer)
            else:
                await self._upload(scope, receive, answer)
        except HTTPException as refused:
            body = JSONResponse({"error": refused.detail}, refused.status_code, refused.headers)
            await body(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            taken = time.perf_counter() - started
            # Whoever asks chooses the method, of any length.
            method = scope["method"] if scope["method"] in _METHODS else "-"
            self._metrics.count(method, route, status, taken)
            _log.info("%s %s %d %.1f ms", method, route, status, 1000 * taken)

    def _admit(self, scope: Message) -> None:
        """Refuse by an HTTPException who may not ask, before anything is read."""
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        method, path, host = scope["method"], scope["path"], headers.get(b"host", "")
        if not self._serves(host):
            raise HTTPException(
                421,
                "this server does not serve that host name; use the address that it printed at its "
                "start, or start it with --allow-host NAME",
            )
        if method not in _READING and _is_of_another_page(headers, host):
            raise HTTPException(
                403,
                "requests from other pages are refused; use the page of this server, or send no "
                "Origin header",
            )
        if method in ("PUT", "DELETE") or path == "/enrol" or not (self.local or path in OPEN):
            kind, _, token = headers.get(b"authorization", "").partition(" ")
            is_right = hmac.compare_digest(token.strip().encode(), self._token)
            if not is_right or kind.lower() != "bearer":
                raise HTTPException(
                    401,
                    "this needs the token that the server printed at its start: send "
                    "Authorization: Bearer TOKEN",
                    {"WWW-Authenticate": "Bearer"},
                )
        if int(headers.get(b"content-length", 0)) > self._limits.max_bytes:
            raise self._too_large()

    def _serves(self, host: str) -> bool:
        """Whether a Host header names this server."""
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
        except ValueError:
            return False
        if "@" in host:
            return False
        if name in self._hosts:
            return True
        try:
            # A page elsewhere cannot point an address at this server, only a name.
            return not self.local and bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    async def _upload(self, scope: Message, receive: Receive, answer: Send) -> None:
        """Pass a request on that has a body, within the bounds of one and of all of them."""
        limits, size = self._limits, 0
        if self._uploads >= limits.threads + limits.waiting:
            raise HTTPException(503, _BUSY, {"Retry-After": "1"})
        latest = asyncio.get_running_loop().time() + limits.body_seconds
        has_ended = False

        async def counted() -> Message:
            nonlocal size, has_ended
            if has_ended:
                return await receive()
            try:
                async with asyncio.timeout_at(latest):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the upload took longer than {limits.body_seconds:g} s"
                ) from None
            has_ended = not message.get("more_body")
            size += (arrived := len(message.get("body", b"")))
            self._held += arrived
            if size > limits.max_bytes:
                raise self._too_large()
            if self._held > max(limits.max_held, limits.max_bytes):
                raise HTTPException(503, _BUSY, {"Retry-After": "1"})
            return message

        self._uploads += 1
        self._metrics.uploads.set(self._uploads)
        try:
            await self.app(scope, counted, answer)
        finally:
            self._uploads -= 1
            self._held -= size
            self._metrics.uploads.set(self._uploads)

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413,
            f"at most {self._limits.max_bytes / 2**20:g} MB are read in one request; send a "
            "shorter recording or a smaller photo",
            {"connection": "close"},  # the rest of the body is not read
        )


def _is_of_another_page(headers: MutableMapping[bytes, str], host: str) -> bool:
    """Whether a browser says that a page of another server sent the request."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "none")
    is_foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
    return is_foreign or site not in ("none", "same-origin")


def _security_headers(policy: str) -> list[tuple[bytes, bytes]]:
    """The headers of every answer; policy: the Content-Security-Policy of pages."""
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
        "cache-control": "no-store",
    }
    return [(key.encode(), value.encode()) for key, value in headers.items()]
