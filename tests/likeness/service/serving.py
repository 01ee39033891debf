"""What the tests of `likeness serve` share: models, and three ways to ask a server."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from likeness import open_gallery
from likeness.modalities.face import images
from likeness.models.load import load_named
from likeness.models.verdicts import Comparer
from likeness.toolkit.backbones.sfnet import SFNet
from likeness.toolkit.data.images import encode
from likeness.toolkit.data.pixels import INSIGHTFACE
from likeness.toolkit.models.loaded import Loaded
from tests import tiny
from tests.tiny_yunet import network

httpx = pytest.importorskip("httpx")
for needed in ("fastapi", "granian", "python_multipart"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-for-the-tests"
WRITE = {"Authorization": f"Bearer {TOKEN}"}
TIMEOUT_SECONDS = 600  # a busy machine takes its time
FACE = replace(
    tiny.BASE,
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(SFNet, dim=8, depth=10, width=4, image_size=48, batch_norm=True),
    read=partial(images.read, size=(48, 48), fit="resize"),
)


def face_network(folder: Path, detector: Path | None = None) -> Loaded:
    """A network of faces in ONNX form, which reads photographs where it has a detector."""
    own = network(folder / "own.onnx", (112, 96))
    return load_named(f"insightface:{own}@size=112x96,mean=127.5,std=128", detector=detector)


def photograph(cells: tuple[tuple[int, int], ...] = ((3, 4), (8, 5), (12, 8))) -> bytes:
    """A photograph with red squares of 8 pixels, which tiny_yunet takes for faces, on blue."""
    pixels = np.zeros((96, 128, 3), dtype=np.uint8)
    blue = np.random.default_rng(0).integers(0, 255, (6, 8), dtype=np.uint8)
    pixels[..., 2] = np.kron(blue, np.ones((16, 16), np.uint8))
    for i, (x, y) in enumerate(cells):
        pixels[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] = (255, 20 * i, 40 * i)
    return encode(pixels)


def service_of(model, gallery=None, *, calibration=None, threshold=None, **offered):
    """What requests to a server of this model ask for."""
    from likeness.service._work import Service

    return Service(Comparer(model, calibration, threshold), gallery, **offered)


def asking(
    service: Any, *, local: bool = True, token: str = TOKEN, origins: Sequence[str] = ()
) -> Callable[..., Any]:
    """A function that asks the application around a service, without a server."""
    from starlette.testclient import TestClient

    from likeness.service._app import make_app

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    app = make_app(service, token=TOKEN, hosts=(), origins=origins, local=local)
    address = {"base_url": "http://localhost", "headers": headers}
    return TestClient(app, raise_server_exceptions=False, **address).request


@contextmanager
def serving(
    model: Loaded, folder: Path | None = None, *, origins: Sequence[str] = (), **rules: Any
) -> Iterator[str]:
    """The address of a server in a thread of this process, with a gallery in the folder, or in a
    temporary one.
    """
    from granian.constants import Interfaces
    from granian.server.embed import Server

    from likeness.service._app import make_app

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    servers: list[Server] = []
    temporary = TemporaryDirectory()

    async def serve() -> None:
        gallery = open_gallery(str(folder or Path(temporary.name) / "gallery"), model.meta)
        service = service_of(model, gallery, **rules)
        app = make_app(service, token=TOKEN, hosts=(), origins=origins, local=True)
        quiet = {"log_enabled": False, "websockets": False}
        servers.append(Server(app, port=port, interface=Interfaces.ASGI, **quiet))
        await servers[0].serve()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    while thread.is_alive():
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        loop = servers[0].main_loop_interrupt._loop  # type: ignore[attr-defined]
        loop.call_soon_threadsafe(servers[0].stop)
        thread.join()
        temporary.cleanup()


@contextmanager
def started(folder: Path, *words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`likeness serve` on a free port: its address and its process.

    Its temporary files go to `folder`/tmp, its log to `folder`/log.
    """
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    own = {"PYTHONPATH": str(ROOT), "TMPDIR": str((folder / "tmp").absolute())}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "likeness", "serve", *map(str, words), "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.PIPE, stderr=log, text=True
        )
    with closing(process.stdout):
        try:
            output = process.stdout.readline()
            address = re.search(r"https?://\S+/", output)
            assert address, output + (folder / "log").read_text()
            yield address[0], process
        finally:
            process.kill()
            process.wait()


def likeness_serve(model: Path, folder: Path, *more: object) -> Any:
    """A server of a model that knows the token of the tests."""
    return started(folder, "--model", model, "--token", TOKEN, *more)
