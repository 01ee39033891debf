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


def with_host(host: str, *more: tuple[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    sent = (("host", host), *more)
    return tuple((name.encode(), value.encode("latin-1")) for name, value in sent)


SERVED = ("localhost:99", "LOCALHOST", "127.0.0.1:80", "[::1]:99", "Proxy.Example:443")
REFUSED = ("evil.example", "127.0.0.1.evil.example:80", "192.168.1.1", "[::1", "user@localhost", "")


@pytest.mark.parametrize("host", [*SERVED, "[fe80::1]:8000", *REFUSED])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_only_the_names_that_are_served_are_answered(host: str, method: str) -> None:
    hosts = ("proxy.example", "fe80::1")
    status = 421 if host in REFUSED else 200
    assert ask(method=method, hosts=hosts, headers=with_host(host)) == [status]


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("origin", ("http://localhost", "https://LOCALHOST"), 200),
        ("origin", ("http://localhost:81", "http://localhost.evil.example", "null", ""), 403),
        ("sec-fetch-site", ("same-origin",), 200),
        ("sec-fetch-site", ("cross-site", "same-site"), 403),
    ],
)
def test_uploads_come_from_the_page_itself(name: str, values: tuple[str, ...], status: int) -> None:
    for value in values:
        sent = with_host("localhost", (name, value))
        assert ask(headers=sent) == [status]
        assert ask(headers=sent, method="GET") == [200]  # a link may lead to the page


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/enrol"), ("PUT", "/gallery/a"), ("DELETE", "/gallery/a")]
)
def test_who_changes_the_gallery_needs_the_token(method: str, path: str) -> None:
    accepted = (f"Bearer {TOKEN}", f"bearer {TOKEN}")
    for value in (*accepted, f"Basic {TOKEN}", "Bearer wrong", "Bearer \xe9", ""):
        sent = with_host("localhost", ("authorization", value))
        assert ask(method=method, path=path, headers=sent) == [200 if value in accepted else 401]


def test_other_machines_need_the_token_for_everything() -> None:
    for path, token, status in (
        ("/gallery", "", 401),
        ("/metrics", "", 401),
        ("/identify", "", 401),
        ("/verify", TOKEN, 200),
        ("/health", "", 200),
        ("/", "", 200),
    ):
        for host, expected in (("10.0.0.7:8000", status), ("rebound.example", 421)):
            sent = with_host(host, ("authorization", f"Bearer {token}"))
            assert ask(path=path, local=False, headers=sent) == [expected]


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
