"""An HTTP server of our own, and small archives for it to serve: what the tests of `likeness
prepare` fetch from.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """files: path -> bytes. breaks: how many answers to cut off after half of what they should
    send. requests: (path, Range) of each.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.breaks, self.ranges, self.tags, self.claim, self.busy = 0, True, True, 0, 0
        self.requests: list[tuple[str, str | None]] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server, expected = self.server, self.headers.get("Range")
        server.requests.append((self.path, expected))
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/x")
            self.end_headers()
            return
        if server.busy:
            server.busy -= 1
            self.send_error(503)
            return
        if self.path[1:] not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path[1:]]
        tag = '"' + hashlib.md5(body).hexdigest() + '"'
        start = 0
        if expected and server.ranges and self.headers.get("If-Range") in (None, tag):
            start = int(expected.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if server.tags:
            self.send_header("ETag", tag)
        body = body[start:]
        self.send_header("Content-Length", str(server.claim or len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Server]:
    """A server that answers in a thread of its own until the end of the block."""
    with Server() as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        yield server
        server.shutdown()


def packed(members: dict[str, bytes], kind: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=kind) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
