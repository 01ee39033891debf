"""Measures `likeness serve` under load: requests per second of /verify.

    python benchmarks/use_serve.py [--seconds 60] [--clients 50] [--models tiny,resnet34]

Measures: 50 clients for a minute on this machine's cores. The server runs in a process of its own
    as `likeness serve` starts it, with its default limits except the rate, because all clients
    share one address. Clients are threads of this process, which share the cores with it. Every
    request uploads two recordings of 3 s (WAV, 96 kB each). Models are untrained, which costs the
    same: `tiny` is a ResNet of 2 channels and shows what the server itself costs; `resnet34` has 32
    channels, 6.6 M parameters and 80 bands. Errors are answers other than 200, and connections that
    broke.
Peer: none.
Limit: Model.verify in a process of its own that reads the same two files, one thread, times the
    number of workers.
Needs: `pip install likeness[serve]`. No data.
Takes: three minutes on all cores.
Gives: the table of section use_serve of docs/performance.md.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from performance import ROOT, environment, environment_of_one_thread, parser_of, row, table

BOUNDARY = "likeness-benchmark"
SIZES = {
    "tiny": {"num_mels": 16, "width": 2, "dim": 8},
    "resnet34": {"num_mels": 80, "width": 32, "dim": 256},
}


def prepare(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """Write an untrained model and two recordings."""
    import soundfile
    import torch

    from modalities.speaker.features import KaldiFbank
    from toolkit.backbones.resnet import ResNet34
    from toolkit.models.checkpoint import save_model
    from toolkit.models.embedder import TorchEmbedder
    from toolkit.training import recipe as recipes

    size = SIZES[name]
    demo, _ = recipes.load(str(ROOT / "recipes" / "speaker" / "demo.py"))
    blocks = {"blocks": (1, 1, 1, 1)} if name == "tiny" else {}
    backbone = partial(ResNet34, dim=size["dim"], width=size["width"], **blocks)
    frontend = partial(KaldiFbank, num_mels=size["num_mels"])
    torch.manual_seed(0)
    embedder = TorchEmbedder(frontend(), backbone(frontend().dim))
    recipe = replace(demo, frontend=frontend, backbone=backbone)
    path = folder / f"{name}.safetensors"
    save_model(path, embedder, recipe, similarity="cosine", step=0, metrics={})
    rng = np.random.default_rng(0)
    files = [folder / "a.wav", folder / "b.wav"]
    for file in files:
        soundfile.write(file, rng.standard_normal(48_000) * 0.1, 16_000, subtype="PCM_16")
    return path, files


@contextmanager
def server(model: Path) -> Iterator[tuple[str, int]]:
    """Start `likeness serve`; gives its address, and ends it afterwards."""
    options = ["--model", str(model), "--port", "0", "--rate", "0", "--threshold", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "likeness", "serve", *options],
        cwd=ROOT,
        env=environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://([\d.]+):(\d+)/", line)
        if address is None:
            raise RuntimeError(f"likeness serve began with {line!r}; an address was expected")
        yield address[1], int(address[2])
    finally:
        process.terminate()
        process.wait()


def load(
    address: tuple[str, int], files: list[Path], clients: int, seconds: float
) -> tuple[list[float], Counter[str]]:
    """Let clients ask for so many seconds.

    Returns:
        The seconds of every request, and how often each kind of error occurred.
    """
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"; '
        'filename="upload"\r\nContent-Type: application/octet-stream\r\n\r\n'
    )
    parts = [
        head.format(name).encode() + file.read_bytes() + b"\r\n"
        for name, file in zip(("first", "second"), files, strict=True)
    ]
    body = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    taken: list[float] = []
    errors: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection(*address, timeout=120)
        while time.monotonic() < end:
            started = time.perf_counter()
            try:
                connection.request("POST", "/verify", body, headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200 or "score" not in json.loads(content):
                    errors[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                errors[type(error).__name__] += 1
                connection.close()
            taken.append(time.perf_counter() - started)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken, errors


# Run by itself, with the model and the two files as its arguments.
ALONE = """
import sys, time, torch
import likeness
torch.set_num_threads(1)
model, files = likeness.load(sys.argv[1]), sys.argv[2:]
model.verify(*files)
count, started = 0, time.perf_counter()
while time.perf_counter() - started < 3:
    model.verify(*files)
    count += 1
print(count / (time.perf_counter() - started))
"""


def alone(model: Path, files: list[Path]) -> float:
    """Requests per second of the model's own `verify`, in one thread of a fresh process."""
    process = subprocess.run(
        [sys.executable, "-c", ALONE, str(model), *map(str, files)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of_one_thread(),
    )
    return float(process.stdout)


def serve_row(name: str, clients: int, seconds: float) -> None:
    """Measure a model alone and behind the server, and print its row."""
    with TemporaryDirectory() as folder:
        model, files = prepare(Path(folder), name)
        limit = alone(model, files) * min(4, os.cpu_count() or 1)
        with server(model) as address:
            started = time.perf_counter()
            taken, errors = load(address, files, clients, seconds)
            wall = time.perf_counter() - started
    median, late = np.quantile(taken, [0.5, 0.95])
    kinds = ", ".join(f"{count} x {kind}" for kind, count in errors.items())
    row(
        f"/verify, {name}, {clients} clients for {seconds:.0f} s",
        len(taken),
        f"{sum(errors.values())} ({kinds})" if errors else "0",
        f"{len(taken) / wall:.1f}",
        f"{median:.2f} s",
        f"{late:.2f} s",
        f"{limit:.1f} per s",
    )


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--models", default="tiny,resnet34", help="tiny or resnet34, or both")
    arguments = parser.parse_args()
    names = arguments.models.split(",")
    if unknown := sorted(set(names) - set(SIZES)):
        parser.error(f"--models has {', '.join(unknown)}; the models are {', '.join(SIZES)}")
    table("work", "requests", "errors", "requests/s", "median", "95 %", "model alone")
    for name in names:
        serve_row(name, arguments.clients, arguments.seconds)


if __name__ == "__main__":
    main()
