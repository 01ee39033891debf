"""What stands before every request of `likeness serve`: who may ask, and how much; what the headers
of its answer and the log say.

    Host
        Where only this machine can connect, only the names that are served are answered, else 421.
        So a page elsewhere cannot reach the server by pointing its own name at it (DNS rebinding).
    Origin
        Requests that change or upload must come from the page itself, from a page whose origin was
        allowed, or from no page, else 403 (CSRF).
    token
        Enrolling and removing need it, else 401. Where other machines can connect, so
        does everything but the page, /health, /thresholds, /docs and /openapi.json.
    size
        A body over the limit is answered with 413.
    work
        So many uploads may arrive, wait or be worked on, with so many bytes together, else 503.

The log names method, route, status and time: no addresses, file names, subjects or scores.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from likeness.service._pages import content_policy

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BYTES = 32 * 2**20  # of one request
MAX_HELD = 256 * 2**20  # of the bodies of all requests
MAX_WAITING = 100  # uploads that may arrive or wait beside those that are worked on
OPEN = ("/", "/health", "/thresholds", "/docs", "/openapi.json")  # these say nothing of anybody
_READING = ("GET", "HEAD")
_METHODS = (*_READING, "POST", "DELETE")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
_BUSY = "the server is busy; try again in a moment"
_HEADERS = {
    "content-security-policy": content_policy(),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_log = logging.getLogger("likeness.serve")


class Guard:
    """ASGI middleware around an application.

    Args:
        app: The application.
        token: What enrolling and the like need.
        hosts: Names by which the server may be addressed, beside loopback's.
        origins: The origins of other pages that may ask, as browsers write them.
        local: Whether only this machine can connect.
        threads: Uploads that are worked on at once.
    """

    def __init__(
        self,
        app: Any,
        *,
        token: str,
        hosts: Iterable[str],
        local: bool,
        threads: int,
        origins: Iterable[str] = (),
    ):
        self.app, self.local, self._origins = app, local, frozenset(origins)
        self._token, self._max_uploads = token.encode(), threads + MAX_WAITING
        self._hosts = {host.lower() for host in (*_LOOPBACK, *hosts)}
        self._headers = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
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
            _log.info("%s %s %d %.1f ms", method, route, status, 1000 * taken)

    def _admit(self, scope: Message) -> None:
        """Refuse a request before anything of it is read, where there is a reason."""
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        method, path, host = scope["method"], scope["path"], headers.get(b"host", "")
        named = _HOST.fullmatch(host.lower())
        if self.local and (named is None or named[1] not in self._hosts):
            raise HTTPException(421, "this host name is not served; name it by --allow-host")
        is_allowed = headers.get(b"origin") in self._origins
        if method not in _READING and not is_allowed and _is_of_another_page(headers, host):
            reason = "other pages are refused; use the server's, or start it with --allow-origin"
            raise HTTPException(403, reason)
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        knows = hmac.compare_digest(token.strip().encode(), self._token)
        is_guarded = changes_gallery(method, path) or not (self.local or path in OPEN)
        if is_guarded and not (knows and kind.lower() == "bearer"):
            reason = "send Authorization: Bearer TOKEN, with the token that the server printed"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})
        if int(headers.get(b"content-length", 0)) > MAX_BYTES:
            raise _too_large()
        if method not in _READING and self._uploads >= self._max_uploads:
            raise HTTPException(503, _BUSY, {"Retry-After": "1"})

    async def _upload(self, scope: Message, receive: Receive, answer: Send) -> None:
        """Pass a request on that has a body, within the bounds of one and of all of them."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += (arrived := len(message.get("body", b"")))
            self._held += arrived
            if size > MAX_BYTES:
                raise _too_large()
            if self._held > MAX_HELD:
                raise HTTPException(503, _BUSY, {"Retry-After": "1"})
            return message

        self._uploads += 1
        try:
            await self.app(scope, counted, answer)
        finally:
            self._uploads -= 1
            self._held -= size


def _too_large() -> HTTPException:
    reason = f"at most {MAX_BYTES / 2**20:g} MB are read in one request; send a smaller file"
    return HTTPException(413, reason, {"connection": "close"})  # the rest of the body is not read


def changes_gallery(method: str, path: str) -> bool:
    """Whether a request enrols or removes."""
    return method == "DELETE" or path == "/enrol"


def _is_of_another_page(headers: MutableMapping[bytes, str], host: str) -> bool:
    """Whether a browser says that a page of another server sent the request."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "none")
    is_foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
    return is_foreign or site not in ("none", "same-origin")
