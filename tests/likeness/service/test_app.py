"""`likeness serve` as it runs: uvicorn in a process of its own, asked by real clients; a browser
test is in test_serve_page.py.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from eval.calibration import Calibration
from eval.scoring.origin import Origin
from eval.scoring.score import Scoring
from eval.thresholds import measure, save
from eval.types import Scores
from likeness.cli import main
from likeness.models import load
from likeness.verification import verify
from toolkit.gallery.exact import ExactGallery
from toolkit.models.checkpoint import save_model
from toolkit.models.embedder import TorchEmbedder
from toolkit.training import recipe

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[3]
TINY = Path(__file__).parents[2] / "tiny.py"
TOKEN = "a-token-for-the-tests"
WRITE = {"Authorization": f"Bearer {TOKEN}"}
TIMEOUT_SECONDS = 600  # httpx gives up after 5, which a busy machine may need
get, post, put, delete = (
    partial(ask, timeout=TIMEOUT_SECONDS)
    for ask in (httpx.get, httpx.post, httpx.put, httpx.delete)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model: what it thinks of voices does not matter here."""
    made = recipe.load(str(TINY))[0]
    torch.manual_seed(0)
    frontend = made.frontend()
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(
        path,
        TorchEmbedder(frontend, made.backbone(frontend.dim)),
        made,
        similarity="cosine",
        step=0,
        metrics={},
    )
    return path


@contextmanager
def serving(
    model: Path, folder: Path, *more: object
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on a free port: its address and its process.

    Its temporary files go to `folder`/tmp, its log to `folder`/log.
    """
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "likeness",
        "serve",
        "--model",
        model,
        "--port",
        0,
        "--token",
        TOKEN,
        *more,
    ]
    environment = {
        **os.environ,
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        output = process.stdout.readline()
        matches = re.search(r"http://\S+/", output)
        assert matches, output + (folder / "log").read_text()
        yield matches[0], process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def server(model: Path, place: Path) -> Iterator[str]:
    meta = load.load(str(model)).meta
    system = f"cosine, model {meta['model'][:16]}"
    Calibration(8.0, -3.0, p_target=0.2, system=system).save(place / "c.json")
    scores = Scores(np.linspace(-1, 1, 200), np.arange(200) % 2 == 0)
    origin = Origin(Scoring().system(meta), meta)
    save(place / "t.json", measure(scores, origin, data="a demo", fars=[0.1])[0])
    with serving(
        model,
        place,
        "--gallery",
        place / "gallery",
        "--calibration",
        place / "c.json",
        "--thresholds",
        place / "t.json",
        "--max-megabytes",
        1,
        "--rate",
        1000,
    ) as (url, _):
        yield url


@pytest.fixture(scope="module")
def files(voices: Path) -> list[Path]:
    return sorted(voices.rglob("*.flac"))


def uploads(*files: Path, name: str = "files") -> list[tuple[str, tuple[str, bytes]]]:
    return [(name, (f"secret-{file.name}", file.read_bytes())) for file in files]


def test_verify_says_what_the_command_says(
    server: str, model: Path, place: Path, files: list[Path]
) -> None:
    expected = verify(
        load.load(str(model)), files[0], files[9], calibration=Calibration(8.0, -3.0, p_target=0.2)
    )
    got = post(
        f"{server}verify", files={"first": files[0].read_bytes(), "second": files[9].read_bytes()}
    )
    assert got.status_code == 200
    message = got.json()
    assert message["score"] == pytest.approx(expected.score, abs=1e-6)
    assert message["norms"] == pytest.approx(expected.norms, rel=1e-5)
    assert message["probability"] == pytest.approx(expected.probability, abs=1e-5)
    assert (message["same"], message["similarity"], message["prior"], message["modality"]) == (
        expected.same,
        "cosine",
        0.2,
        "speaker",
    )
    assert get(f"{server}health").json()["calibrated"] is True


def test_a_file_of_thresholds_serves_the_slider_where_a_calibration_decides(server: str) -> None:
    assert get(f"{server}thresholds").json()["data"] == "a demo"
    assert get(f"{server}health").json()["threshold"] is None


def test_a_gallery_is_managed_and_searched(server: str, files: list[Path]) -> None:
    with httpx.Client(base_url=server, headers=WRITE, timeout=TIMEOUT_SECONDS) as client:
        assert client.get("gallery").json() == {"subjects": 0, "entries": []}
        for subject, some in (("Ann", files[:2]), ("O'Neil / 日本", files[4:5])):
            got = client.post("enrol", data={"subject": subject}, files=uploads(*some))
            assert (got.status_code, got.json()["added"]) == (201, len(some))
        assert [record["enrolments"] for record in client.get("gallery").json()["entries"]] == [
            2,
            1,
        ]
        got = client.post(
            "identify", files=uploads(files[4], name="file"), data={"k": 2, "threshold": 0.99}
        ).json()
        assert (got["identified"], got["matches"][0]["subject"], got["matches"][0]["accepted"]) == (
            "O'Neil / 日本",
            "O'Neil / 日本",
            True,
        )
        assert got["matches"][0]["score"] == pytest.approx(1, abs=1e-6)
        assert (
            client.post(
                "identify", files=uploads(files[4], name="file"), data={"threshold": 1.01}
            ).json()["identified"]
            is None
        )
        undecided = client.post("identify", files=uploads(files[4], name="file")).json()
        assert (undecided["decided"], undecided["identified"]) == (False, None)
        assert (
            client.put("gallery/O'Neil %2F 日本", files=uploads(files[9], files[10])).json()[
                "added"
            ]
            == 2
        )
        assert client.put("gallery/nobody", files=uploads(files[9])).status_code == 404
        bad = client.post(
            "enrol",
            data={"subject": "Eve"},
            files=[*uploads(files[0]), ("files", ("x.wav", b"RIFF????WAVEfmt "))],
        )
        assert bad.status_code == 422  # all or none
        assert "1 of 2 files cannot be read: the second file: " in bad.json()["error"]
        bad = client.post("identify", files={"file": b"no sound"})
        assert bad.json()["error"].startswith(
            "with this speaker model, 1 of 1 files cannot be read: the file: unreadable"
        )
        assert client.delete("gallery/Eve").status_code == 404
        assert client.delete("gallery/Ann").json() == {"subject": "Ann", "subjects": 1}
        assert (
            client.post("enrol", data={"subject": " a\n"}, files=uploads(files[0])).status_code
            == 422
        )
        assert (
            client.post("enrol", data={"subject": "b"}, files=uploads(*[files[0]] * 11)).status_code
            == 422
        )
    for refused in (
        post(f"{server}enrol", data={"subject": "Eve"}, files=uploads(files[0])),
        delete(f"{server}gallery/Ann", headers={"Authorization": "Bearer wrong"}),
        put(
            f"{server}gallery/Ann",
            files=uploads(files[0]),
            headers={"Authorization": f"Basic {TOKEN}"},
        ),
    ):
        assert refused.status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "192.168.1.1"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": "user@localhost"}, 421),
        ({"Host": "localhost:99"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:99"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Content-Length": "99999999"}, 413),
        ({"Content-Length": "-1"}, 413),
    ],
)
def test_who_may_ask(server: str, files: list[Path], headers: dict[str, str], status: int) -> None:
    body = httpx.Request(
        "POST", server, files={"first": files[0].read_bytes(), "second": files[0].read_bytes()}
    )
    content = body.read()
    address = server.removeprefix("http://").strip("/")
    inputs = {
        "Host": address,
        "Content-Length": str(len(content)),
        "Content-Type": body.headers["content-type"],
        "Connection": "close",
    } | headers
    with socket.create_connection(tuple(address.split(":"))) as raw:  # type: ignore[arg-type]
        raw.settimeout(TIMEOUT_SECONDS)
        head = (
            "POST /verify HTTP/1.1\r\n"
            + "".join(f"{key}: {value}\r\n" for key, value in inputs.items())
            + "\r\n"
        )
        raw.sendall(head.encode())
        if "Content-Length" not in headers:
            raw.sendall(content)
        answer = raw.recv(100)
    # uvicorn's parser refuses a negative length by itself
    assert int(answer.split()[1]) == (400 if headers.get("Content-Length") == "-1" else status)


def test_malformed_uploads_are_the_callers_fault(server: str, files: list[Path]) -> None:
    rng = np.random.default_rng(0)
    whole = files[0].read_bytes()
    sound = io.BytesIO()
    soundfile.write(
        sound, rng.standard_normal(8_000).astype(np.float32) * 0.1, 16_000, format="WAV"
    )
    kinds = [
        b"",
        b"\0",
        bytes(5000),
        b"\xff\xd8\xff\xe0" + bytes(100),
        b"RIFF\xff\xff\xff\xffWAVE" + bytes(99),
        b"....ftypM4A " + bytes(200),
        b"BM" + bytes(50),
    ]
    kinds += [
        b"%!PS-Adobe\n(x) run",
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>",
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ]
    for _ in range(25):
        broken = bytearray(whole if rng.random() < 0.5 else sound.getvalue())
        for spot in rng.integers(0, min(len(broken), 400), size=6):
            broken[spot] = rng.integers(256)
        kinds.append(bytes(broken[: rng.integers(1, len(broken))]))
    with httpx.Client(base_url=server, timeout=TIMEOUT_SECONDS) as client:
        seen = [
            client.post("verify", files={"first": kind, "second": whole}).status_code
            for kind in kinds
        ]
        assert set(seen) <= {200, 422}, seen
        assert seen[:10] == [422] * 10
        long = io.BytesIO()
        soundfile.write(
            long, np.tile(rng.standard_normal(8_000) * 0.1, 61), 8_000, format="OGG", subtype="OPUS"
        )
        got = client.post("verify", files={"first": long.getvalue(), "second": whole})
        assert "too long, 61.0 s; at most 60 s" in got.json()["error"]
        plain: list[dict[str, Any]] = [
            {"json": {}},
            {"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            {"data": {"first": "text"}},
        ]
        plain += [
            {"content": b"\0" * 500, "headers": {"content-type": "multipart/form-data"}},
            {"files": {"first": whole}},
        ]
        assert all(400 <= client.post("verify", **value).status_code < 500 for value in plain)
        # of no stated length
        begun = b'--x\r\nContent-Disposition: form-data; name="first"; filename="a"\r\n\r\n'
        endless = client.post(
            "verify",
            content=iter([begun, *[bytes(600_000)] * 3]),
            headers={"content-type": "multipart/form-data; boundary=x"},
        )
        assert endless.status_code == 413
        assert client.get("../../etc/passwd").status_code == 404
        assert client.get("health").status_code == 200


def test_nothing_is_kept_or_logged(server: str, place: Path, files: list[Path]) -> None:
    post(f"{server}enrol", data={"subject": "Quentin"}, files=uploads(files[0]), headers=WRITE)
    delete(f"{server}gallery/Quentin", headers=WRITE)
    assert list((place / "tmp").iterdir()) == []
    log = (place / "log").read_text()
    assert "DELETE /gallery/{subject:path} 200" in log
    assert "POST /enrol 201" in log
    assert not re.search("secret|Quentin|127.0.0.1|Traceback", log)
    assert "Quentin" not in get(f"{server}metrics").text


def test_metrics_are_read_by_prometheus(server: str, files: list[Path]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def read() -> dict[tuple[str, tuple[str, ...]], float]:
        answer = get(f"{server}metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    post(f"{server}enrol", data={"subject": "Eve"}, files=uploads(files[0]), headers=WRITE)
    before = read()
    post(f"{server}enrol", data={"subject": "Eve"}, files=uploads(files[0]), headers=WRITE)
    got = read()
    delete(f"{server}gallery/Eve", headers=WRITE)
    rose = {key: got[key] - before[key] for key in before if "/enrol" in key[1]}
    assert rose["likeness_requests_total", ("POST", "/enrol", "201")] == 1
    assert rose["likeness_request_seconds_count", ("/enrol",)] == 1
    assert rose["likeness_request_seconds_bucket", ("+Inf", "/enrol")] == 1
    assert rose["likeness_request_seconds_sum", ("/enrol",)] > 0
    assert got["likeness_uploads_in_progress", ()] == 0
    assert got["likeness_gallery_subjects", ()] == before["likeness_gallery_subjects", ()] >= 1
    assert {name for name, _ in got} == {
        "likeness_requests_total",
        "likeness_request_seconds_bucket",
        "likeness_request_seconds_count",
        "likeness_request_seconds_sum",
        "likeness_uploads_in_progress",
        "likeness_gallery_subjects",
    }


def test_applications_count_apart() -> None:
    from likeness.service.metrics import Metrics

    first, second = Metrics(), Metrics()
    first.count("GET", "/", 200, 0.02)
    assert b'route="/"' in first.text()
    assert b'route="/"' not in second.text()


def test_pages_ask_nothing_of_the_network(server: str) -> None:
    for path in ("", "docs"):
        got = get(server + path)
        assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", got.text)
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (got.headers["x-content-type-options"], got.headers["x-frame-options"]) == (
            "nosniff",
            "DENY",
        )
        assert "server" not in got.headers
    schema = get(f"{server}openapi.json").json()
    assert {
        "/verify",
        "/identify",
        "/enrol",
        "/gallery",
        "/gallery/{subject}",
        "/health",
        "/metrics",
    } <= schema["paths"].keys()
    for path in schema["paths"]:
        assert path in got.text


@pytest.mark.slow  # a hundred requests
def test_fifty_clients_at_once(server: str, files: list[Path]) -> None:
    """A little of what benchmarks/use_serve.py does for a minute."""
    statuses = list[int]()

    def ask() -> None:
        with httpx.Client(base_url=server, timeout=TIMEOUT_SECONDS) as client:
            for _ in range(2):
                statuses.append(
                    client.post(
                        "verify",
                        files={"first": files[0].read_bytes(), "second": files[1].read_bytes()},
                    ).status_code
                )

    clients = [threading.Thread(target=ask) for _ in range(50)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert statuses == [200] * 100


@pytest.mark.slow  # a server of its own
def test_the_packages_of_a_store_write_nothing_into_the_log(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    with serving(model, tmp_path, "--gallery", f"faiss:{tmp_path / 'people'}") as (url, process):
        assert get(f"{url}health").status_code == 200
        process.terminate()
        assert process.wait(60) == 0  # after the gallery is closed, and not by the signal
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "GET /health 200" in line


@pytest.mark.slow  # a server of its own; test_writes.py kills the gallery without one
def test_a_kill_in_the_midst_of_enrolment_leaves_old_or_new(
    model: Path, tmp_path: Path, files: list[Path]
) -> None:
    acknowledged: list[str] = []
    with serving(model, tmp_path, "--gallery", tmp_path / "g") as (url, process):

        def ask(client: int) -> None:
            for i in range(10_000):
                try:
                    got = post(
                        f"{url}enrol",
                        data={"subject": f"{client}-{i}"},
                        files=uploads(*files[:3]),
                        headers=WRITE,
                    )
                except httpx.HTTPError:
                    return
                if got.status_code == 201:
                    acknowledged.append(f"{client}-{i}")

        clients = [threading.Thread(target=ask, args=(client,)) for client in range(3)]
        for thread in clients:
            thread.start()
        while len(acknowledged) < 4:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        for thread in clients:
            thread.join()
    # no upload outlives the server
    assert not [
        path for path in (tmp_path / "tmp").rglob("*") if path.is_file() and not path.is_symlink()
    ]
    contents = {entry.subject: entry.enrolments for entry in ExactGallery(tmp_path / "g").entries()}
    assert set(contents.values()) == {3}
    assert set(acknowledged) <= contents.keys()
    assert len(contents) <= len(acknowledged) + 3


def likeness(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def test_what_cannot_be_served_is_refused_at_the_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ExactGallery(tmp_path / "other", {"model": "b" * 64}).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            "was made with model 'bbbb": ("--gallery", tmp_path / "other"),
            "at least 16 are needed": ("--token", "short"),
            "threshold nan": ("--threshold", "nan"),
            "choose another --port": ("--port", taken.getsockname()[1]),
        }
        for message, arguments in cases.items():
            assert likeness("serve", "--model", model, "--port", 0, *arguments) == 2
            shown = capsys.readouterr().err
            assert message in shown
            assert shown.count("\n") == 1


def test_the_server_closes_connections_on_which_nothing_comes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds of likeness/service/connections.py are those of `serve`.

    Its own tests start servers by themselves.
    """
    import uvicorn

    from likeness.service.address import Address
    from likeness.service.app import serve
    from likeness.service.limits import Limits
    from likeness.verification import Comparer

    real, answers, threads = uvicorn.Server.run, list[bytes](), torch.get_num_threads()

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        def ask() -> None:
            try:
                with socket.create_connection(sockets[0].getsockname()) as silent:
                    silent.settimeout(20)
                    answers.append(silent.recv(1))
            finally:
                server.should_exit = True

        client = threading.Thread(target=ask)
        client.start()
        real(server, sockets)
        client.join()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    try:
        serve(
            Comparer(load.load(str(model)), None, None, ""),
            address=Address(port=0),
            token=TOKEN,
            limits=Limits(head_seconds=0.1),
            say=lambda _: None,
        )
    finally:
        torch.set_num_threads(threads)
    assert answers == [b""]


def test_a_recording_of_many_channels_is_refused_by_its_header(model: Path) -> None:
    from likeness.service.limits import Limits
    from likeness.service.work import Service

    buffer = io.BytesIO()
    soundfile.write(
        buffer, np.random.default_rng(0).normal(0, 0.1, (2_000, 8)), 16_000, format="FLAC"
    )
    recordings = [buffer.getvalue()] * 2
    loaded = load.load(str(model))
    assert (
        Service(loaded, limits=Limits(max_values=16_000)).verify(*recordings).answer()["same"]
        is None
    )
    with pytest.raises(ValueError, match="too large"):
        Service(loaded, limits=Limits(max_values=15_999)).verify(*recordings).answer()


def ask_guard(
    requests: int = 1,
    *,
    chunks: tuple[bytes, ...] = (b"x",),
    pause: float = 0.0,
    answers: list[tuple[bytes, bytes]] | None = None,
    **settings: Any,
) -> list[int]:
    """Statuses of requests at once to a Guard before an application that reads the body and waits a
    little. tokens: one for each request; answers: the headers of answers that begin before it
    waits.
    """
    from likeness.service.guard import Guard
    from likeness.service.limits import Limits
    from likeness.service.metrics import Metrics

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        if answers is None:
            await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": answers or []})
        if answers is not None:
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})

    from starlette.middleware.exceptions import ExceptionMiddleware

    inputs: dict[str, Any] = {
        "local": True,
        "hosts": [],
        "method": "POST",
        "path": "/verify",
        "headers": [(b"host", b"localhost")],
    } | settings
    limits = Limits(
        **{key: value for key, value in inputs.items() if key in Limits.__dataclass_fields__}
    )
    guard = Guard(
        ExceptionMiddleware(application),
        token=TOKEN,
        hosts=inputs["hosts"],
        local=inputs["local"],
        limits=limits,
        metrics=Metrics(),
        policy="",
    )
    statuses: list[int] = []

    async def one(number: int) -> None:
        left, headers = list(chunks), [*inputs["headers"]]
        if "tokens" in inputs:
            headers.append((b"authorization", f"Bearer {inputs['tokens'][number]}".encode()))

        async def receive() -> Any:
            await asyncio.sleep(pause)
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await guard(
            {
                "type": "http",
                "method": inputs["method"],
                "path": inputs["path"],
                "headers": headers,
                "client": ("1.2.3.4", 5),
            },
            receive,
            send,
        )

    async def everyone() -> None:
        await asyncio.gather(*(one(number) for number in range(requests)))

    asyncio.run(everyone())
    return statuses


def test_rates_queues_and_times_are_bounded() -> None:
    # the next is due after 100 seconds, however long this takes
    assert sorted(ask_guard(9, rate=0.01)) == [200] + [429] * 8
    assert sorted(ask_guard(9, threads=1, waiting=2)) == [200] * 3 + [503] * 6
    assert ask_guard(chunks=(b"x",) * 9, pause=0.1, body_seconds=0.25) == [408]
    assert ask_guard(chunks=(b"x" * 60, b"x" * 60), max_bytes=100) == [413]
    bearer = (b"authorization", b"Bearer wrong")
    assert (
        sorted(ask_guard(12, path="/enrol", headers=[(b"host", b"localhost"), bearer]))
        == [401] * 10 + [429] * 2
    )


def test_an_answer_in_lines_keeps_its_place_until_its_end() -> None:
    """Its work goes on after its beginning, so that others wait for it or are refused."""
    from likeness.service.guard import LINES

    plain, lines = [(b"content-type", b"text/plain")], [(b"content-type", LINES.encode())]
    assert sorted(ask_guard(9, threads=1, waiting=2, answers=plain)) == [200] * 9
    assert sorted(ask_guard(9, threads=1, waiting=2, answers=lines)) == [200] * 3 + [503] * 6


def test_after_ten_wrong_tokens_even_the_right_token_is_refused() -> None:
    guesses = ["wrong"] * 10
    assert (
        sorted(ask_guard(12, path="/enrol", tokens=[*guesses, TOKEN, "wrong"]))
        == [401] * 10 + [429] * 2
    )
    # right ones cost nothing
    assert (
        sorted(ask_guard(20, path="/enrol", rate=0, tokens=[TOKEN] * 10 + guesses[:9] + [TOKEN]))
        == [200] * 11 + [401] * 9
    )


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://LOCALHOST", 200),
        ("http://localhost:81", 403),
        ("http://localhost.evil.example", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_uploads_come_from_the_page_itself(origin: str, status: int) -> None:
    assert ask_guard(headers=[(b"host", b"localhost"), (b"origin", origin.encode())]) == [status]


def of_app(service: Any, method: str, *paths: str, **request: Any) -> list[Any]:
    """Answers of an application around `service` to requests at once."""
    from likeness.service.app import make_app

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(
            app=make_app(service, token=TOKEN), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=WRITE
        ) as client:
            return await asyncio.gather(
                *(client.request(method, path, **request) for path in paths)
            )

    return asyncio.run(ask())


def test_work_that_takes_too_long_is_given_up() -> None:
    """What had begun goes on, and the answer says so; what had not never begins, and its upload is
    not kept.
    """
    from likeness.service.limits import Limits

    end, begun = threading.Event(), list[bytes]()

    class Slow:
        # A busy machine needs a while to begin the first work.
        limits, gallery = Limits(threads=1, work_seconds=1.0), None

        def verify(self, first: bytes, second: bytes, chosen: object = ()) -> None:
            begun.append(first)
            end.wait(60)

    service = Slow()
    try:
        answers = of_app(
            service, "POST", "/verify", "/verify", files={"first": b"a", "second": b"b"}
        )
        kept = [
            part
            for part in gc.get_objects()
            if type(part) is partial and part.func == service.verify
        ]
    finally:
        end.set()
    assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [
        (503, "5")
    ] * 2
    assert sorted("it goes on: " in answer.json()["error"] for answer in answers) == [False, True]
    assert sorted(
        "nothing was done: try again" in answer.json()["error"] for answer in answers
    ) == [
        False,
        True,
    ]
    assert len(kept) <= 1  # that of the one which had begun
    assert begun == [b"a"]


def test_large_uploads_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.formparsers import MultiPartParser

    from likeness.service.limits import Limits

    class Sizes:
        limits, gallery = Limits(max_bytes=6 << 20), None

        def verify(self, first: bytes, second: bytes, chosen: object = ()) -> dict[str, int]:
            return {"first": len(first), "second": len(second)}

    def on_disk(_: object) -> None:
        raise AssertionError("an upload went to the disk")

    # Starlette's own, whatever other tests made
    monkeypatch.setattr(MultiPartParser, "spool_max_size", 1 << 20)
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", on_disk)
    sizes = {"first": 4 << 20, "second": 1_500_000}
    (got,) = of_app(
        Sizes(), "POST", "/verify", files={key: bytes(size) for key, size in sizes.items()}
    )
    assert (got.status_code, got.json()) == (200, sizes)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "people/Quentin"),
        RuntimeError("lance error: IO, where subject IN ('Quentin')"),
    ],
)
def test_errors_of_the_operating_system_are_answered(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    from likeness.service.limits import Limits

    class Full:
        limits = Limits()

        @property
        def gallery(self) -> Any:
            return self

        people = gallery

        def __len__(self) -> int:
            raise error

        def entries(self) -> None:
            raise error

        def remove(self, subject: str) -> None:
            raise error

    for method, path in (("DELETE", "/gallery/Quentin"), ("GET", "/gallery"), ("GET", "/metrics")):
        (got,) = of_app(Full(), method, path)
        assert (got.status_code, got.headers["content-type"]) == (500, "application/json")
        assert "Quentin" not in got.json()["error"]
        assert got.json()["error"].startswith("the server could not do this")
    assert caplog.text.count(f"a request ended in {type(error).__name__}: ") == 3
    assert "Quentin" not in caplog.text


def test_metrics_wait_for_the_gallery_apart_and_do_without_it() -> None:
    """A database that is slow holds up no other answer, and one that is gone no other number."""
    from likeness.service.limits import Limits

    threads: list[threading.Thread] = []

    class Gone:
        limits = Limits()

        @property
        def gallery(self) -> Any:
            return self

        people = gallery

        def __len__(self) -> int:
            threads.append(threading.current_thread())
            raise ConnectionError("the database does not answer")

    (got,) = of_app(Gone(), "GET", "/metrics")
    assert got.status_code == 200
    assert "likeness_uploads_in_progress 0.0" in got.text
    assert "likeness_gallery_subjects" not in got.text
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("host", ["*", "*.example.org", "a*b"])
def test_a_pattern_of_hosts_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        ask_guard(hosts=[host])


@pytest.mark.parametrize("host", [b"[fe80::1]:8000", b"Proxy.Example:443", b"[::1]"])
def test_hosts_are_compared_without_port_and_case(host: bytes) -> None:
    hosts = ["fe80::1", "proxy.example"]
    assert ask_guard(hosts=hosts, path="/health", method="GET", headers=[(b"host", host)]) == [200]
    assert ask_guard(path="/health", method="GET", headers=[(b"host", host), (b"host", host)]) == [
        421
    ]


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/gallery", "", 401),
        ("/identify", "", 401),
        ("/verify", TOKEN, 200),
        ("/health", "", 200),
        ("/", "", 200),
    ],
)
def test_other_machines_need_the_token_for_everything(path: str, token: str, status: int) -> None:
    headers = [(b"host", b"10.0.0.7:8000"), (b"authorization", f"Bearer {token}".encode())]
    assert ask_guard(path=path, local=False, headers=headers) == [status]
    assert ask_guard(
        path=path, local=False, headers=[(b"host", b"rebound.example"), *headers[1:]]
    ) == [421]
    assert ask_guard(
        path=path,
        local=False,
        hosts=["proxy.example"],
        headers=[(b"host", b"proxy.example"), *headers[1:]],
    ) == [status]


def test_the_log_names_no_method_of_the_client_s_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="likeness.serve"):
        ask_guard(method="EVIL" * 1_000, path="/health")
    assert "EVIL" not in caplog.text
    assert caplog.messages[0].startswith("- ")
