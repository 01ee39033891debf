"""The service under clients that are slow, too many or too large, over real sockets on 127.0.0.1.

Clients wait for answers, never for a time.
"""

from __future__ import annotations

import asyncio
import gc
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(needed)

FILES = {"first": b"a" * 1000, "second": b"b"}
BODY_BEGUN = (
    b"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: %d\r\n\r\n"
    % 100_000
    + b"--x"
)
HEAD_BEGUN = b"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "

# What a sound begins with, and more than the buffers of the system hold.
LONG = b"RIFF\x00\x00\x00\x00WAVE" + bytes(range(256)) * 100_000
ASK_LONG = b"GET /examples/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@contextmanager
def serving(**rules: Any) -> Iterator[int]:
    """The port of a server that counts the bytes of its uploads.

    Limits of time are long unless a test is about them.
    """
    import uvicorn

    from likeness.service.app import make_app
    from likeness.service.connections import protocol
    from likeness.service.examples import Example
    from likeness.service.limits import Limits
    from likeness.service.work import Extras

    class Sizes:
        limits = Limits(
            **(
                {"rate": 0.0, "head_seconds": 600.0, "body_seconds": 600.0, "grace_seconds": 600.0}
                | rules
            )
        )
        gallery = None
        extras = Extras(examples=[Example("long.wav", LONG)])

        def verify(self, first: bytes, second: bytes, chosen: object = ()) -> dict[str, int]:
            return {"first": len(first), "second": len(second)}

    http = protocol(
        connections=Sizes.limits.connections,
        head_seconds=Sizes.limits.head_seconds,
        stall_seconds=Sizes.limits.body_seconds,
    )
    app = make_app(Sizes(), token="a-token-for-the-tests")  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="critical", lifespan="off", http=http, timeout_graceful_shutdown=1
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connect(port: int) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port))
    opened.settimeout(60)
    return opened


def read_all(opened: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    parts = []
    while part := opened.recv(65536):
        parts.append(part)
    return b"".join(parts)


def verify(port: int, **request: Any) -> Any:
    with httpx.Client(timeout=60, trust_env=False) as client:
        return client.post(f"http://127.0.0.1:{port}/verify", **({"files": FILES} | request))


@pytest.mark.parametrize(
    "charset",
    [
        "charset=punycode",
        'charset="idna"',
        "CHARSET=utf-7",
        "charset*=utf-8''punycode",
        "charset*0=puny; charset*1=code",
    ],
)
def test_a_client_chooses_no_encoding_of_the_form_s_texts(charset: str) -> None:
    """Python's punycode takes minutes for a megabyte, in the thread that serves everybody."""
    text = "\r\n".join(
        (
            "--x",
            'Content-Disposition: form-data; name="first"',
            "",
            "a" * 2**15 + "-" + "b" * 2**13,
            "--x--",
            "",
        )
    ).encode()
    with serving() as port:
        answer = verify(
            port,
            files=None,
            content=text,
            headers={"Content-Type": f"multipart/form-data; {charset}; boundary=x"},
        )
        assert answer.status_code == 415
        assert "UTF-8" in answer.json()["error"]
        plain = ("Content-Type", "multipart/form-data; boundary=x")
        # which of them counts?
        assert verify(port, files=None, content=text, headers=[plain, plain]).status_code == 415
        body = httpx.Request("POST", "http://127.0.0.1", files=FILES)
        kind = body.headers["content-type"].replace(";", "; charset=UTF-8;")
        assert verify(
            port, files=None, content=body.read(), headers={"Content-Type": kind}
        ).json() == {"first": 1000, "second": 1}


@pytest.mark.parametrize("begun", [b"", HEAD_BEGUN, BODY_BEGUN])
def test_connections_on_which_nothing_happens_lock_nobody_out(begun: bytes) -> None:
    with serving(connections=20) as port, ExitStack() as stack:
        opened = [stack.enter_context(connect(port)) for _ in range(60)]
        for entry in opened:
            try:
                entry.sendall(begun)
            except OSError:  # one that was closed already
                continue
        assert verify(port).status_code == 200


def test_no_more_connections_are_open_than_are_allowed() -> None:
    with (
        serving(connections=20) as port,
        ExitStack() as stack,
        selectors.DefaultSelector() as waiting,
    ):
        for _ in range(60):
            waiting.register(stack.enter_context(connect(port)), selectors.EVENT_READ)
        ended = 0
        while ended < 40 and (ready := waiting.select(60)):  # to read: their end
            for key, _ in ready:
                waiting.unregister(key.fileobj)
                ended += 1
        assert ended == 40


def exchange(sent: bytes, app: Any, *, head_seconds: float) -> bytes:
    """All that one connection answers to what lay there when it was opened.

    No time passes before that is read.
    """
    import uvicorn
    from uvicorn.server import ServerState

    from likeness.service.connections import protocol

    async def run() -> bytes:
        config = uvicorn.Config(app, log_level="critical", lifespan="off")
        config.load()
        theirs, ours = socket.socketpair()
        with ours:
            ours.sendall(sent)
            ours.setblocking(False)
            kind: Any = protocol(connections=10, head_seconds=head_seconds)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(
                lambda: kind(config=config, server_state=ServerState(), app_state={}), theirs
            )
            got = b""
            async with asyncio.timeout(60):
                while part := await loop.sock_recv(ours, 65536):
                    got += part
            return got

    return asyncio.run(run())


def test_the_time_for_headers_ends_with_the_headers_and_begins_again_after_the_answer() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.15)  # three times as long as headers may take
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    whole = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for requests in (1, 2):  # the second was sent before the first was answered
        got = exchange(whole * requests + b"GET / HT", slow, head_seconds=0.05)
        assert re.findall(rb"HTTP/1\.1 (\d+)", got) == [b"200"] * requests + [b"408"]


def test_who_opens_many_connections_loses_one_of_its_own() -> None:
    with serving(connections=20) as port, ExitStack() as stack:
        mine = stack.enter_context(connect(port))  # waits longer than all that come
        try:
            for _ in range(60):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
                )
        except OSError:
            pytest.skip("this machine has one loopback address")
        assert verify(port).status_code == 200
        mine.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_all(mine).startswith(b"HTTP/1.1 200 ")


def test_slow_bodies_take_no_place() -> None:
    with serving(threads=1, waiting=1) as port, ExitStack() as stack:
        opened = [stack.enter_context(connect(port)) for _ in range(10)]
        for entry in opened:
            entry.sendall(BODY_BEGUN)
        assert [verify(port).status_code for _ in range(3)] == [200] * 3


def test_the_body_that_has_been_arriving_longest_gives_way() -> None:
    with (
        serving(max_bytes=100_100, max_held=1) as port,
        connect(port) as first,
        connect(port) as second,
        connect(port) as third,
    ):
        for connection in (first, second, third):
            connection.sendall(BODY_BEGUN + bytes(99_000))
            # An answer to another request: what was sent before it has arrived.
            assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200
        assert read_until_answer(first).startswith(b"HTTP/1.1 503 ")
        second.sendall(bytes(997))
        # it was read to its end, and is no form
        assert read_until_answer(second).startswith(b"HTTP/1.1 400 ")


def test_the_room_of_a_body_is_free_again_after_its_answer() -> None:
    with serving(max_bytes=2_000, max_held=1) as port:  # room for two of the largest
        assert [verify(port).status_code for _ in range(6)] == [200] * 6


def read_until_answer(opened: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        part = opened.recv(65536)
        assert part
        got += part
    return got


def test_headers_and_bodies_have_their_time() -> None:
    # Half a second, so that the first bytes are there in time on a busy machine.
    with serving(head_seconds=0.5) as port, connect(port) as silent, connect(port) as slow:
        slow.sendall(HEAD_BEGUN)
        assert read_all(silent) == b""
        assert read_all(slow).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    with serving(grace_seconds=0.1, body_rate=1e9) as port, connect(port) as slow:
        slow.sendall(BODY_BEGUN)
        assert read_until_answer(slow).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_that_is_too_large_is_answered(chunked: bool) -> None:
    """Twice, since whether a reset connection loses the answer is a matter of luck."""
    size = 8 << 20
    with serving(max_bytes=100_000) as port:
        for _ in range(2):
            body = (bytes(65536) for _ in range(size // 65536)) if chunked else bytes(size)
            got = verify(
                port,
                files=None,
                content=body,
                headers={"content-type": "multipart/form-data; boundary=x"},
            )
            assert (got.status_code, got.headers["connection"]) == (413, "close")
            assert "at most 0.0953674 MB" in got.json()["error"]
        with connect(port) as raw:  # a client that reads only when it has sent everything
            raw.sendall(
                b"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % size
            )
            for _ in range(size // 65536):
                raw.sendall(bytes(65536))
            assert read_all(raw).startswith(b"HTTP/1.1 413 ")


def test_a_large_body_is_refused_when_the_client_asks_to_continue() -> None:
    head = (
        b"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    )
    with serving(max_bytes=100_000) as port:
        with connect(port) as raw:
            raw.sendall(head % 10**9)
            assert read_all(raw).startswith(b"HTTP/1.1 413 ")
        with connect(port) as raw:
            raw.sendall(head % 9)
            assert read_until_answer(raw).startswith(b"HTTP/1.1 100 ")


def test_bytes_that_are_no_request_get_an_answer() -> None:
    with serving() as port, connect(port) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000)
        assert read_all(raw).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        # what is still sent is read: a closed connection would be reset, and a slower reader would
        # lose the answer
        for _ in range(3):
            assert (
                httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=60).status_code
                == 200
            )
            raw.sendall(bytes(65536))


def test_a_long_answer_waits_for_its_reader_outside_of_memory() -> None:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    with serving(head_seconds=0.5) as port, connect(port) as slow:
        slow.sendall(ASK_LONG)
        head = slow.recv(10)
        # Time for headers that are not due while the answer is on its way.
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200
            time.sleep(0.3)
        held = [
            each.transport.get_write_buffer_size()
            for each in gc.get_objects()
            if issubclass(type(each), H11Protocol) and not each.transport.is_closing()
        ]
        assert max(held) < 1 << 20
        got = head + read_all(slow)
    assert got.partition(b"\r\n\r\n")[2] == LONG


def test_who_does_not_read_an_answer_keeps_nobody_out_and_is_cut_off() -> None:
    with serving(connections=1) as port, connect(port) as slow:
        slow.sendall(ASK_LONG)
        assert slow.recv(10)
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 200
        assert len(rest_of(slow)) < len(LONG)
    with serving(body_seconds=0.2) as port, connect(port) as slow:
        slow.sendall(ASK_LONG)
        assert slow.recv(10)
        time.sleep(1)
        assert len(rest_of(slow)) < len(LONG)


def rest_of(opened: socket.socket) -> bytes:
    """What still comes, until the server ends or resets the connection."""
    parts = []
    with suppress(ConnectionError):
        while part := opened.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_several_requests_on_one_connection() -> None:
    with serving() as port, httpx.Client(timeout=60, trust_env=False) as client:
        assert [
            client.post(f"http://127.0.0.1:{port}/verify", files=FILES).json() for _ in range(3)
        ] == [{"first": 1000, "second": 1}] * 3
