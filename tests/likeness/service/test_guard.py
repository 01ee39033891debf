"""What stands before every request: host, origin, token, size and the number of uploads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.middleware.exceptions import ExceptionMiddleware

from tests.likeness.service.serving import TOKEN


def ask(
    requests: int = 1,
    *,
    method: str = "POST",
    path: str = "/verify",
    headers: tuple[tuple[bytes, bytes], ...] = ((b"host", b"localhost"),),
    chunks: tuple[bytes, ...] = (b"x",),
    hosts: tuple[str, ...] = (),
    local: bool = True,
    **limits: Any,
) -> list[int]:
    """Statuses of requests at once to a Guard before an application that reads the body and lets
    all others come before it answers.
    """
    from likeness.service.guard import Guard, Limits

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        for _ in range(5 * requests):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(
        ExceptionMiddleware(application),
        token=TOKEN,
        hosts=hosts,
        local=local,
        limits=Limits(**limits),
        policy="",
    )
    statuses: list[int] = []

    async def one() -> None:
        left = list(chunks)

        async def receive() -> Any:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await guard(scope, receive, send)

    async def everyone() -> None:
        await asyncio.gather(*(one() for _ in range(requests)))

    asyncio.run(everyone())
    return sorted(statuses)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:99", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:99", 200),
        ("Proxy.Example:443", 200),
        ("[fe80::1]:8000", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("192.168.1.1", 421),
        ("[::1", 421),
        ("user@localhost", 421),
        ("", 421),
    ],
)
def test_only_the_names_that_are_served_are_answered(host: str, status: int) -> None:
    for method in ("GET", "POST"):
        served = ("proxy.example", "fe80::1")
        assert ask(method=method, hosts=served, headers=((b"host", host.encode()),)) == [status]


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("origin", "http://localhost", 200),
        ("origin", "https://LOCALHOST", 200),
        ("origin", "http://localhost:81", 403),
        ("origin", "http://localhost.evil.example", 403),
        ("origin", "http://[", 403),
        ("origin", "null", 403),
        ("origin", "", 403),
        ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
    ],
)
def test_uploads_come_from_the_page_itself(header: str, value: str, status: int) -> None:
    sent = ((b"host", b"localhost"), (header.encode(), value.encode()))
    assert ask(headers=sent) == [status]
    assert ask(headers=sent, method="GET") == [200]  # a link may lead to the page


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/enrol"), ("PUT", "/gallery/a"), ("DELETE", "/gallery/a")]
)
def test_who_changes_the_gallery_needs_the_token(method: str, path: str) -> None:
    for value, status in (
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Basic {TOKEN}", 401),
        ("Bearer wrong", 401),
        ("Bearer \xe9", 401),
        ("", 401),
    ):
        sent = ((b"host", b"localhost"), (b"authorization", value.encode("latin-1")))
        assert ask(method=method, path=path, headers=sent) == [status]


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/gallery", "", 401),
        ("/metrics", "", 401),
        ("/identify", "", 401),
        ("/verify", TOKEN, 200),
        ("/health", "", 200),
        ("/", "", 200),
    ],
)
def test_other_machines_need_the_token_for_everything(path: str, token: str, status: int) -> None:
    bearer = (b"authorization", f"Bearer {token}".encode())
    for host, expected in (
        (b"10.0.0.7:8000", status),
        (b"proxy.example", status),
        (b"rebound.example", 421),
    ):
        sent = ((b"host", host), bearer)
        assert ask(path=path, local=False, hosts=("proxy.example",), headers=sent) == [expected]


def test_bodies_are_bounded_in_size_and_number() -> None:
    stated = ((b"host", b"localhost"), (b"content-length", b"101"))
    assert ask(headers=stated, max_bytes=100) == [413]
    assert ask(chunks=(b"x" * 60, b"x" * 60), max_bytes=100) == [413]  # of no stated length
    assert ask(chunks=(b"x" * 60, b"x" * 40), max_bytes=100) == [200]
    assert ask(9, threads=1, waiting=2) == [200] * 3 + [503] * 6
    assert ask(9, method="GET", threads=1, waiting=2) == [200] * 9
    assert ask(9, chunks=(b"x" * 50,), max_bytes=100, max_held=200) == [200] * 4 + [503] * 5


def test_the_log_names_no_method_of_the_client_s_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="likeness.serve"):
        ask(method="EVIL" * 1_000, path="/health")
    assert "EVIL" not in caplog.text
    assert caplog.messages[0].startswith("- ")
