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
        A body over the limit is answered with 413.
    work
        So many uploads may arrive, wait or be worked on, with so many bytes together, else 503.

The log names method, route, status and time: no addresses, file names, subjects or scores.
"""

from __future__ import annotations

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
_log = logging.getLogger("likeness.serve")
disable_created_metrics()  # type: ignore[no-untyped-call]
_REGISTRY = CollectorRegistry()
_REQUESTS = Counter(
    "likeness_requests",
    "Requests that were answered.",
    ["method", "route", "status"],
    registry=_REGISTRY,
)
_SECONDS = Histogram(
    "likeness_request_seconds",
    "Time from a request's arrival to the end of its answer.",
    ["route"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    registry=_REGISTRY,
)
_UPLOADS = Gauge(
    "likeness_uploads_in_progress",
    "Uploads that arrive, wait or are worked on.",
    registry=_REGISTRY,
    multiprocess_mode="livesum",
)


@dataclass(frozen=True)
class Limits:
    """What requests can cost.

    Attributes:
        max_bytes: Of one request.
        max_held: Bytes of the bodies of all requests.
        threads: Uploads that a process works on at once.
        waiting: Uploads that may arrive or wait beside them.
        max_seconds: Of one recording.
        max_values: Samples x channels of one recording: a minute of 23 channels at 48 kHz.
    """

    max_bytes: int = 16 * 2**20
    max_held: int = 256 * 2**20
    threads: int = 2
    waiting: int = 100
    max_seconds: float = 60.0
    max_values: int = 2**26


def metrics_text() -> str:
    """What was counted in Prometheus' text format; of several processes, the sums of all."""
    registry = _REGISTRY
    if _METRICS_FOLDER in os.environ:
        for path in Path(os.environ[_METRICS_FOLDER]).glob("gauge_live*.db"):
            process = int(path.stem.rpartition("_")[2])
            if not Path(f"/proc/{process}").exists():  # it works on nothing any more
                mark_process_dead(process)  # type: ignore[no-untyped-call]
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
        policy: str,
    ):
        self.app, self.local = app, local
        self._token, self._limits = token.encode(), limits
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
            if (refusal := self._refusal(scope)) is not None:
                raise refusal
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
            _REQUESTS.labels(method, route, status).inc()
            _SECONDS.labels(route).observe(taken)
            _log.info("%s %s %d %.1f ms", method, route, status, 1000 * taken)

    def _refusal(self, scope: Message) -> HTTPException | None:
        """Why a request is refused before anything of it is read; None where it is admitted."""
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        method, path, host = scope["method"], scope["path"], headers.get(b"host", "")
        if not self._serves(host):
            return HTTPException(
                421,
                "this server does not serve that host name; use the address that it printed at its "
                "start, or start it with --allow-host NAME",
            )
        if method not in _READING and _is_of_another_page(headers, host):
            return HTTPException(
                403,
                "requests from other pages are refused; use the page of this server, or send no "
                "Origin header",
            )
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        knows = hmac.compare_digest(token.strip().encode(), self._token)
        is_guarded = changes_gallery(method, path) or not (self.local or path in OPEN)
        if is_guarded and not (knows and kind.lower() == "bearer"):
            return HTTPException(
                401,
                "this needs the token that the server printed at its start: send Authorization: "
                "Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        if int(headers.get(b"content-length", 0)) > self._limits.max_bytes:
            return self._too_large()
        if method not in _READING and self._uploads >= self._limits.threads + self._limits.waiting:
            return HTTPException(503, _BUSY, {"Retry-After": "1"})
        return None

    def _serves(self, host: str) -> bool:
        """Whether a Host header names this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if "@" in host:
                return False
            if name in self._hosts:
                return True
            # A page elsewhere cannot point an address at this server, only a name.
            return not self.local and bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    async def _upload(self, scope: Message, receive: Receive, answer: Send) -> None:
        """Pass a request on that has a body, within the bounds of one and of all of them."""
        limits, size = self._limits, 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += (arrived := len(message.get("body", b"")))
            self._held += arrived
            if size > limits.max_bytes:
                raise self._too_large()
            if self._held > max(limits.max_held, limits.max_bytes):
                raise HTTPException(503, _BUSY, {"Retry-After": "1"})
            return message

        self._uploads += 1
        try:
            with _UPLOADS.track_inprogress():
                await self.app(scope, counted, answer)
        finally:
            self._uploads -= 1
            self._held -= size

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413,
            f"at most {self._limits.max_bytes / 2**20:g} MB are read in one request; send a "
            "shorter recording or a smaller photo",
            {"connection": "close"},  # the rest of the body is not read
        )


def changes_gallery(method: str, path: str) -> bool:
    """Whether a request enrols, replaces or removes."""
    return method in ("PUT", "DELETE") or path == "/enrol"


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
