"""What stands before every request of `likeness serve`: who may ask, how much, how often, how long;
what the answer's headers, the log and the metrics say.

    Host
        Only the addresses that are served are answered, else 421. A page elsewhere so cannot reach
        the server by pointing its own name at it (DNS rebinding). Starlette's
        TrustedHostMiddleware decides.
    Origin
        Requests that change or upload must come from the page itself or from no page, else 403
        (CSRF).
    token
        Enrolling, replacing and removing need it, else 401. Where other machines can connect, so
        does everything but the page, /health, /thresholds, /docs and /openapi.json.
    rate
        Each client address has a token bucket, else 429. Wrong tokens have a smaller one; where
        that is empty, the right token waits too.
    charset
        Forms must be in UTF-8, else 415: the form's reader would decode others by whatever Python
        has.
    size, time
        Bodies over the limit are answered with 413, those that arrive too slowly with 408.
    memory
        The bodies of all requests have a limit together. Beyond it the one that has been arriving
        longest is answered with 503.
    queue
        So many uploads that have arrived may be worked on or wait, else 503.

A refused request is answered at once. What its sender still sends is read and thrown away for a
while, since closing the connection at once would lose the answer.

The log names method, route, status and time: no addresses, file names, subjects or scores.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from eval.errors import LikenessError
from likeness.service.batches import is_gone
from likeness.service.bodies import (
    BUSY,
    Bodies,
    Body,
    Gone,
    Receive,
    Scope,
    replay,
    sends_body,
    too_large,
)
from likeness.service.connections import GONE
from likeness.service.limits import Limits, Rates
from likeness.service.metrics import Metrics

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# These say nothing of anybody.
OPEN = ("/", "/health", "/thresholds", "/docs", "/openapi.json")
LINES = "application/x-ndjson"  # the type of an answer that is sent line by line
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_WRONG_TOKENS = (0.1, 10.0)  # per second, and at once
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PASSED = "likeness.passed"  # the message by which the host check says that it let a request pass
_DRAIN = 2**26, 5.0  # bytes and seconds that a refused upload is still read for
_PIECE = 2**16  # bytes of an answer that are sent together
_UTF_8 = re.compile(r';\s*charset="?utf-8"?\s*(?=;|$)')
_log = logging.getLogger("likeness.serve")


class Guard:
    """ASGI middleware around an application.

    Args:
        app: the application.
        token: what enrolling and the like need.
        hosts: names by which the server may be addressed, beside loopback's.
        local: whether only this machine can connect.
        limits: what one client can cost the others.
        metrics: counts what is answered.
        policy: the Content-Security-Policy of pages.

    Raises:
        LikenessError: a host has a *.
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
        self.app, self.token, self.local = app, token, local
        self.limits, self.metrics = limits, metrics
        allowed = [*_LOOPBACK, *(_in_header(host) for host in hosts)]
        if patterns := [host for host in allowed if "*" in host]:
            raise LikenessError(
                f"the host {patterns[0]} is a pattern; name each host by which the server is "
                "addressed"
            )
        self._trusted = TrustedHostMiddleware(_pass, allowed_hosts=allowed, www_redirect=False)
        self.headers = security_headers(policy)
        self._asked = Rates(limits.rate, 2 * limits.rate)
        self._failed = Rates(*_WRONG_TOKENS)
        self._bodies = Bodies(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets are served
        started, status = time.perf_counter(), 500
        uploads = scope["method"] not in ("GET", "HEAD")

        body, working = Body(), False

        def finish() -> None:
            """Give back what the request takes of what is bounded."""
            nonlocal working
            self.metrics.busy -= working
            working = False
            self._bodies.forget(body)

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                # Who reads the answer slowly keeps nobody else waiting. An answer in lines begins
                # before the work is done.
                if not _is_in_lines(message):
                    finish()
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *self.headers]
            # The server would hold the whole of a long answer in memory until it is read.
            content = message.get("body", b"")
            for begin in range(0, len(content) - _PIECE, _PIECE):
                piece = content[begin : begin + _PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if len(content) > _PIECE:
                message["body"] = content[(len(content) - 1) // _PIECE * _PIECE :]
            await send(message)

        try:
            arrived = not uploads
            try:
                await self._check_host(scope, receive)
                self._admit(scope)
                if uploads:
                    await self._bodies.receive(receive, body)
                    arrived = True
                    self._refuse_when_busy()
            except HTTPException as refused:
                await _refuse(
                    answer, refused, None if arrived or not sends_body(scope) else receive
                )
                return
            except Gone:
                return
            self.metrics.busy += uploads
            working = uploads
            is_gone.set(lambda: GONE in scope)
            await self.app(scope, replay(body, receive) if uploads else receive, answer)
        finally:
            finish()
            route = getattr(scope.get("route"), "path", "-")
            taken = time.perf_counter() - started
            # Whoever asks chooses the method, of any length.
            method = scope["method"] if scope["method"] in _METHODS else "-"
            self.metrics.count(method, route, status, taken)
            _log.info("%s %s %d %.1f ms", method, route, status, 1000 * taken)

    async def _check_host(self, scope: Scope, receive: Receive) -> None:
        """HTTPException for a request to another host.

        The middleware would answer in plain text, so that it is asked only whether it lets the
        request pass.
        """
        passed = False

        async def listen(message: MutableMapping[str, Any]) -> None:
            nonlocal passed
            passed = passed or message["type"] == _PASSED

        hosts = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
        if len(hosts) == 1:
            await self._trusted(scope, receive, listen)
            # Where other machines can connect, any address will do: a page elsewhere cannot point
            # an address at this server.
            passed = passed or (not self.local and _is_address(hosts[0]))
        if not passed:
            raise HTTPException(
                421,
                "this server does not serve that host name; use the address that it printed at its "
                "start, or start it with --allow-host NAME",
            )

    def _admit(self, scope: Scope) -> None:
        """HTTPException for a request that is not to be read any further."""
        method, path, client = scope["method"], scope["path"], (scope.get("client") or ("-",))[0]
        headers = [(key, value.decode("latin-1")) for key, value in scope["headers"]]
        sent = dict(headers)
        if not self._asked.take(client):
            raise HTTPException(
                429,
                f"more than {self.limits.rate:g} requests per second; wait a moment",
                {"Retry-After": "1"},
            )
        if method not in ("GET", "HEAD"):
            _refuse_other_pages(sent)
        if method in ("PUT", "DELETE") or path == "/enrol" or not (self.local or path in OPEN):
            self._check_token(client, sent.get(b"authorization", ""))
        if method not in ("GET", "HEAD"):
            self._refuse_encoding([value for key, value in headers if key == b"content-type"])
            stated = sent.get(b"content-length", "0")
            if not stated.isdecimal() or len(stated) > 18 or int(stated) > self.limits.max_bytes:
                raise HTTPException(413, too_large(self.limits))
            self._refuse_when_busy()  # again when it has arrived: only then does it take a place

    def _check_token(self, client: str, authorization: str) -> None:
        """HTTPException for a request without the token, and for who sent too many wrong ones."""
        # Before the token is compared: who guessed too often is not told that a guess is right.
        if not self._failed.has(client):
            raise HTTPException(
                429, "too many wrong tokens; wait ten seconds", {"Retry-After": "10"}
            )
        kind, _, token = authorization.partition(" ")
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

    def _refuse_encoding(self, types: list[str]) -> None:
        """HTTPException where the client chooses an encoding of Python's for the form's texts:
        punycode takes minutes for a megabyte, and all others wait.
        """
        if len(types) > 1 or any("charset" in _UTF_8.sub("", kind.lower()) for kind in types):
            raise HTTPException(
                415,
                "texts of a form are read as UTF-8; send one Content-Type without another charset",
            )

    def _refuse_when_busy(self) -> None:
        if self.metrics.busy >= self.limits.threads + self.limits.waiting:
            raise HTTPException(503, BUSY, {"Retry-After": "1"})


def _is_in_lines(message: MutableMapping[str, Any]) -> bool:
    """Whether an answer is sent while it is worked on."""
    return (b"content-type", LINES.encode()) in message.get("headers", ())


def _refuse_other_pages(sent: Mapping[bytes, str]) -> None:
    """HTTPException for a request that a page of another server has sent.

    Args:
        sent: the request's headers.
    """
    origin, site = sent.get(b"origin"), sent.get(b"sec-fetch-site", "none")
    if (
        origin is not None and origin.lower().partition("://")[2] != sent[b"host"].lower()
    ) or site not in ("none", "same-origin"):
        raise HTTPException(
            403,
            "requests from other pages are refused; use the page of this server, or send no "
            "Origin header",
        )


async def _pass(scope: Scope, receive: Receive, send: Send) -> None:
    """What the host check stands before: it only says that the request came through."""
    await send({"type": _PASSED})


def _in_header(host: str) -> str:
    """A host as a Host header has it, without its port: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_address(host: str) -> bool:
    """Whether a Host header has an IP address, with or without a port."""
    try:
        ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
    return True


def security_headers(policy: str) -> list[tuple[bytes, bytes]]:
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


async def _refuse(send: Send, refused: HTTPException, unread: Receive | None) -> None:
    """Answer and close the connection.

    unread: what is left of the request's body; it is thrown away after the answer, within bounds.
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
