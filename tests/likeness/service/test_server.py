"""`likeness serve` as it runs: its processes, how it starts and ends, TLS."""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness import open_gallery
from tests.likeness.service.serving import TIMEOUT_SECONDS, TOKEN, WRITE, httpx, likeness_serve
from tests.scripts import ROOT, program, refused

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")


@pytest.fixture(scope="module")
def files(voices: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(voices.rglob("*.flac"))]


def children_of(process: int) -> list[int]:
    """The numbers of the processes that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text()
    return sorted(map(int, children.split()))


def client(url: str, **more: Any) -> Any:
    return httpx.Client(base_url=url, headers=WRITE, timeout=TIMEOUT_SECONDS, **more)


def ask_as_the_docs_do(url: str, file: Path) -> None:
    """By the client of the page on the service."""
    text = (ROOT / "docs" / "how-to" / "service.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# client\.py\n.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block[1], "client.py", "exec"), names)
    answer = names["verify"](file, file, url.strip("/"))
    assert np.isclose(answer["score"], 1)
    assert answer["accepted"] is True
    with pytest.raises(ValueError, match="the second file"):
        names["verify"](file, Path(__file__), url.strip("/"))
    assert TOKEN not in text


def test_a_server_answers_bounds_and_ends(run, voices, files, tmp_path):
    """One server: what it keeps and logs, how large a request may be, and SIGTERM."""
    options = ("--gallery", tmp_path / "people", "--threshold", 0.5)
    with likeness_serve(run, tmp_path, *options) as (url, process), client(url) as asked:
        two = {"first": ("secret.flac", files[0]), "second": files[0]}
        assert asked.post("verify", files=two).json()["score"] == pytest.approx(1)
        ask_as_the_docs_do(url, next(voices.rglob("*.flac")))
        enrolled = asked.post("enrol", data={"subject": "Quentin"}, files={"files": files[0]})
        assert enrolled.status_code == 201
        assert asked.get("gallery", headers={"Host": "evil.example"}).status_code == 421
        assert asked.delete("gallery/Quentin", headers={"Authorization": "x"}).status_code == 401
        form = {"content-type": "multipart/form-data; boundary=x"}
        begun = b'--x\r\nContent-Disposition: form-data; name="first"; filename="a"\r\n\r\n'
        parts = [begun, *[bytes(12 << 20)] * 3]
        for content in (b"".join(parts), iter(parts)):  # of a stated size, or none
            assert asked.post("verify", content=content, headers=form).status_code == 413
        host, port = url.removeprefix("http://").strip("/").split(":")
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):  # at another address of this machine
            socket.create_connection(("127.0.0.2", int(port)))
        assert asked.get("health").json()["gallery"] == 1
        assert list((tmp_path / "tmp").rglob("*.flac")) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    log = (tmp_path / "log").read_text()
    assert "POST /enrol 201" in log
    assert "DELETE - 401" in log
    assert not re.search(r"secret|Quentin|127\.0\.0\.1|Traceback|ranian", log)
    gallery = open_gallery(str(tmp_path / "people"))
    assert len(gallery) == 1
    gallery.close()


@pytest.mark.slow  # a server that starts a process anew: 30 seconds on a busy machine
def test_a_worker_that_was_killed_is_started_anew(run, tmp_path):
    with likeness_serve(run, tmp_path, "--workers", 2) as (url, process):
        before = children_of(process.pid)
        os.kill(before[0], signal.SIGKILL)
        while len(set(children_of(process.pid)) - {before[0]}) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        for _ in range(10):  # connections that waited at the killed one are lost, and no others
            with client(url) as asked:
                assert asked.get("health").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_processes_end_with_the_first_one(run, tmp_path):
    with likeness_serve(run, tmp_path, "--workers", 2) as (_, process):
        workers = children_of(process.pid)
        assert len(workers) == 2
        process.kill()
        while any(is_running(worker) for worker in workers):
            time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


ORDERS = [("SIGINT", "SIGTERM"), ("SIGTERM", "SIGTERM", "SIGINT"), ("SIGHUP", "SIGINT", "SIGHUP")]
ORDERS.append(("SIGINT", "SIGINT", "SIGINT", "SIGTERM", "SIGHUP"))


def tell(processes: list[int], order: tuple[str, ...]) -> None:
    """Send signals, each to all processes, as to a group; those that have ended miss them."""
    for name in order:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, getattr(signal, name))


@pytest.mark.parametrize(
    ("order", "to_all"),
    [
        (ORDERS[0], False),
        (ORDERS[1], True),
        *(
            pytest.param(order, to_all, marks=pytest.mark.slow)
            for order in ORDERS
            for to_all in (False, True)
        ),
    ],
)
def test_any_signals_end_an_idle_server(order, to_all, run, tmp_path):
    with likeness_serve(run, tmp_path) as (_, process):
        workers = children_of(process.pid)
        tell([process.pid, *workers] if to_all else [process.pid], order)
        assert process.wait() == 0
    assert not any(is_running(worker) for worker in workers)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow  # it waits the 15 s that a request has in which to be answered
def test_signals_end_a_server_under_load_and_while_it_stops(run, tmp_path):
    """A request whose body never comes holds the process that answers it."""
    with likeness_serve(run, tmp_path, "--workers", 2) as (url, process):
        workers = children_of(process.pid)
        host, port = url.removeprefix("http://").strip("/").split(":")
        with socket.create_connection((host, int(port))) as asked:
            head = f"POST /verify HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 1000\r\n"
            form = "Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
            asked.sendall(f"{head}{form}".encode())
            tell([process.pid], ("SIGTERM",))
            while process.poll() is None:
                tell([process.pid, *workers], ("SIGINT", "SIGTERM", "SIGHUP"))
                time.sleep(0.05)
    assert process.returncode == 0
    assert not any(is_running(worker) for worker in workers)


@pytest.mark.slow  # two servers
@pytest.mark.parametrize("order", ORDERS[:2])
def test_signals_end_a_server_that_starts(order, run, tmp_path):
    words = ("serve", "--model", str(run), "--port", "0", "--workers", "2")
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "likeness", *words], env=os.environ | own)
    while not (workers := children_of(process.pid)):
        time.sleep(0.001)
    tell([process.pid, *workers], order)
    assert process.wait() == 0
    assert not any(is_running(worker) for worker in workers)


def test_a_short_token_is_refused(run):
    assert "at least 16" in refused("serve", "--model", run, "--port", 0, "--token", "short")


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "app.example", "https://app.example/", "https://app.example/page"),
        *("https://*.example", "https://App.example", "https://app.example:443", "", "http://a:80"),
    ],
)
def test_an_origin_that_no_browser_writes_is_refused(run, origin):
    says = refused("serve", "--model", run, "--port", 0, "--allow-origin", origin)
    assert "https://app.example" in says
    assert says.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["gallery", "port", pytest.param("workers", marks=pytest.mark.slow)]
)
def test_what_cannot_be_served_is_refused_at_the_start(name, run, tmp_path):
    """With one sentence and exit code 2, whichever process finds it."""
    open_gallery(str(tmp_path / "other"), {"model": "b" * 64}).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = {
            "gallery": ("--port", 0, "--gallery", tmp_path / "other"),
            "port": ("--port", taken.getsockname()[1]),
            "workers": ("--port", 0, "--workers", 2, "--gallery", tmp_path / "people"),
        }
        words = ("serve", "--model", run, *options[name])
        ended = program("-m", "likeness", *words, code=2)
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert name in ended.stderr


def test_tls(run, files, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, to make a certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
    command += "subjectAltName=IP:127.0.0.1 -keyout"
    subprocess.run([*command.split(), key, "-out", certificate], check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=str(certificate))
    options = ("--tls-certificate", certificate, "--tls-key", key)
    with likeness_serve(run, tmp_path, *options) as (url, _):
        assert url.startswith("https://")
        both = {"first": files[0], "second": files[0]}
        with client(url, verify=trusted) as asked:
            assert asked.post("verify", files=both).json()["score"] == pytest.approx(1)
        with client(url) as asked, pytest.raises(httpx.ConnectError):
            asked.get("health")
