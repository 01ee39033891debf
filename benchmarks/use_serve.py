"""`likeness serve` under load: 50 clients for a minute on this machine's cores, requests per second
of /verify, and what the model alone can do.

    python benchmarks/use_serve.py [--seconds 60] [--clients 50] [--models tiny,resnet34]

The server runs in a process of its own as `likeness serve` starts it, with its default limits
except the rate (all clients share one address); clients are threads of this process, which share
the cores with it. Every request uploads two recordings of 3 s (WAV, 96 kB each). Models are
untrained, which costs the same: `tiny` (a ResNet of 2 channels: what the server itself costs) and
`resnet34` (32 channels, 6.6 M parameters, 80 bands). Limit: likeness.verification in a process of
its own that reads the same two files, one thread, times the number of workers. Errors are answers
other than 200, and connections that broke.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).parents[1]
BOUNDARY = "likeness-benchmark"
SIZES = {
    "tiny": {"num_mels": 16, "width": 2, "dim": 8},
    "resnet34": {"num_mels": 80, "width": 32, "dim": 256},
}


def prepare(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """An untrained model and two recordings."""
    import soundfile
    import torch

    from modalities.speaker.features import KaldiFbank
    from toolkit.backbones.resnet import ResNet34
    from toolkit.models.checkpoint import save_model
    from toolkit.models.embed import TorchEmbedder
    from toolkit.training import recipe

    size = SIZES[name]
    made = recipe.load(str(ROOT / "recipes" / "speaker" / "demo.py"))[0]
    blocks = {"blocks": (1, 1, 1, 1)} if name == "tiny" else {}
    backbone = partial(ResNet34, dim=size["dim"], width=size["width"], **blocks)
    made = replace(made, frontend=partial(KaldiFbank, num_mels=size["num_mels"]), backbone=backbone)
    torch.manual_seed(0)
    frontend = made.frontend()
    save_model(
        folder / f"{name}.safetensors",
        TorchEmbedder(frontend, backbone(frontend.dim)),
        made,
        similarity="cosine",
        step=0,
        metrics={},
    )
    rng = np.random.default_rng(0)
    files = [folder / "a.wav", folder / "b.wav"]
    for file in files:
        soundfile.write(file, rng.standard_normal(48_000) * 0.1, 16_000, subtype="PCM_16")
    return folder / f"{name}.safetensors", files


@contextmanager
def server(model: Path) -> Iterator[tuple[str, int]]:
    """The address of `likeness serve`."""
    command = [
        sys.executable,
        "-m",
        "likeness.cli",
        "serve",
        "--model",
        str(model),
        "--port",
        "0",
        "--rate",
        "0",
        "--threshold",
        "0.5",
    ]
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://([\d.]+):(\d+)/", process.stdout.readline())
        assert found
        yield found[1], int(found[2])
    finally:
        process.terminate()
        process.wait()


def load(
    address: tuple[str, int], files: list[Path], clients: int, seconds: float
) -> tuple[list[float], Counter[str]]:
    """Seconds of every answered request, and how often there was which error."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"; '
        'filename="upload"\r\nContent-Type: application/octet-stream\r\n\r\n'
    )
    parts = [
        head.format(name).encode() + file.read_bytes() + b"\r\n"
        for name, file in zip(("first", "second"), files, strict=True)
    ]
    body = b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    taken: list[float] = []
    errors: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection(*address, timeout=120)
        while time.monotonic() < end:
            started = time.perf_counter()
            try:
                connection.request(
                    "POST",
                    "/verify",
                    body,
                    {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"},
                )
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != 200 or "score" not in json.loads(said):
                    errors[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                errors[type(error).__name__] += 1
                connection.close()
            taken.append(time.perf_counter() - started)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return taken, errors


def alone(model: Path, files: list[Path]) -> float:
    """Requests per second of likeness.verification in one thread of a fresh process."""
    script = f"""
import time, torch
from pathlib import Path
from likeness.models import load as backends
from likeness.verification import verify
torch.set_num_threads(1)
model, files = backends.load({str(model)!r}), [Path(one) for one in {[str(one) for one in files]!r}]
verify(model, *files)
count, started = 0, time.perf_counter()
while time.perf_counter() - started < 3:
    verify(model, *files)
    count += 1
print(count / (time.perf_counter() - started))
"""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    return float(
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ).stdout
    )


def serve_rows(clients: int, seconds: float, models: list[str]) -> list[str]:
    """The table's rows: | work | requests | errors | requests/s | median | 95 % | model alone |."""
    made = []
    for name in models:
        with TemporaryDirectory() as held:
            model, files = prepare(Path(held), name)
            limit = alone(model, files) * min(4, os.cpu_count() or 1)
            with server(model) as address:
                started = time.perf_counter()
                taken, errors = load(address, files, clients, seconds)
                wall = time.perf_counter() - started
        median, late = np.quantile(taken, [0.5, 0.95])
        failed = sum(errors.values())
        said = (
            f"{failed} ({', '.join(f'{n} x {what}' for what, n in errors.items())})"
            if failed
            else "0"
        )
        work = f"/verify, {name}, {clients} clients for {seconds:.0f} s"
        made.append(
            f"| {work} | {len(taken)} | {said} | {len(taken) / wall:.1f} | {median:.2f} s | "
            f"{late:.2f} s | {limit:.1f} per s |"
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--models", default="tiny,resnet34")
    args = parser.parse_args()
    print(
        "| work | requests | errors | requests/s | median | 95 % | model alone "
        "|\n|---|---|---|---|---|---|---|"
    )
    print("\n".join(serve_rows(args.clients, args.seconds, args.models.split(","))), flush=True)


if __name__ == "__main__":
    main()
