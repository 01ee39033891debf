"""An HTTP server of our own, and small archives for it to serve: what the tests of `likeness
prepare` fetch from.
"""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """files: path -> bytes. breaks: how many answers to cut off after half of what they should
    send. requests: the path of each.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.breaks = 0
        self.requests: list[str] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        if self.path[1:] not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path[1:]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
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


def packed(members: dict[str, bytes]) -> bytes:
    """The bytes of a .tar.gz with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    """The bytes of a .zip with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
