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
    chunks: tuple[bytes, ...] = (b"x",),
    local: bool = True,
    **headers: str,
) -> list[int]:
    """Statuses of requests at once to a Guard before an application that reads the body and lets
    all others come before it answers.
    """
    from likeness.service._guard import Guard

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        for _ in range(5 * requests):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    asked = ExceptionMiddleware(application)
    guard = Guard(asked, token=TOKEN, hosts=["proxy.example"], local=local, threads=1)
    sent = {"host": "localhost", **headers}.items()
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in sent]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    statuses: list[int] = []

    async def one() -> None:
        left = list(chunks)

        async def receive() -> Any:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await guard(dict(scope), receive, send)

    async def everyone() -> None:
        await asyncio.gather(*(one() for _ in range(requests)))

    asyncio.run(everyone())
    return sorted(statuses)


SERVED = ("localhost:99", "LOCALHOST", "127.0.0.1:80", "[::1]:99", "Proxy.Example:443")
REFUSED = ("evil.example", "127.0.0.1.evil.example:80", "192.168.1.1", "[::1", "user@localhost", "")


def test_only_the_names_that_are_served_are_answered() -> None:
    for method in ("GET", "POST"):
        for host in (*SERVED, *REFUSED):
            assert ask(method=method, host=host) == [421 if host in REFUSED else 200]


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("origin", ("http://localhost", "https://LOCALHOST"), 200),
        ("origin", ("http://localhost:81", "http://localhost.evil.example", "null", ""), 403),
        ("sec_fetch_site", ("same-origin",), 200),
        ("sec_fetch_site", ("cross-site", "same-site"), 403),
    ],
)
def test_uploads_come_from_the_page_itself(name: str, values: tuple[str, ...], status: int) -> None:
    for value in values:
        assert ask(**{name: value}) == [status]  # type: ignore[arg-type]
        assert ask(method="GET", **{name: value}) == [200]  # a link may lead to the page


def test_who_changes_the_gallery_needs_the_token() -> None:
    accepted = (f"Bearer {TOKEN}", f"bearer {TOKEN}")
    for method, path in (("POST", "/enrol"), ("DELETE", "/gallery/a")):
        for value in (*accepted, f"Basic {TOKEN}", "Bearer wrong", "Bearer \xe9", ""):
            expected = [200 if value in accepted else 401]
            assert ask(method=method, path=path, authorization=value) == expected


def test_other_machines_need_the_token_for_everything() -> None:
    for path, token, status in (
        ("/gallery", "", 401),
        ("/identify", "", 401),
        ("/verify", TOKEN, 200),
        ("/health", "", 200),
        ("/", "", 200),
    ):
        sent = {"host": "10.0.0.7:8000", "authorization": f"Bearer {token}"}
        assert ask(path=path, local=False, **sent) == [status]


def test_bodies_are_bounded_in_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from likeness.service import _guard as guard

    for name, value in (("MAX_BYTES", 100), ("MAX_HELD", 200), ("MAX_WAITING", 4)):
        monkeypatch.setattr(guard, name, value)
    assert ask(content_length="101") == [413]
    assert ask(chunks=(b"x" * 60, b"x" * 60)) == [413]  # of no stated length
    assert ask(chunks=(b"x" * 60, b"x" * 40)) == [200]
    assert ask(9) == [200] * 5 + [503] * 4
    assert ask(9, method="GET") == [200] * 9
    assert ask(5, chunks=(b"x" * 50,)) == [200] * 4 + [503]


def test_the_log_names_no_method_of_the_client_s_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="likeness.serve"):
        ask(method="EVIL" * 1_000, path="/health")
    assert "EVIL" not in caplog.text
    assert caplog.messages[0].startswith("- ")
