"""Measures `likeness serve` under load: requests per second of /verify, p50 and p99.

    python benchmarks/use_serve.py [--seconds 12] [--clients 10]

Measures: clients that ask again as soon as they have their answer, for so long. The load generator
    is wrk, in one thread that shares the cores with the server. The server runs as `likeness serve`
    starts it, with its default limits, in one process. Every request uploads two
    recordings of 3 s (WAV, 96 kB each). Models are untrained, which costs the same: `tiny` is a
    ResNet of 2 channels and shows what the server itself costs; `resnet34` has 32 channels, 6.6 M
    parameters and 80 bands. Errors are answers other than 2xx, and connections that broke or timed
    out. "CPU" is processor time for a request, of the server with all its processes: on a busy
    machine it is steadier than requests per second.
Peer: none.
Limit: the model alone, on the same two files and as many processes of one thread as there are
    cores, just before the load: Model.verify in a loop.
Needs: the extra `serve` and wrk (`apt-get install wrk`). No data.
Takes: three minutes on all cores.
Gives: the table of section Serving of docs/reference/performance.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from performance import ROOT, environment, parser_of, row, table
from urllib3.filepost import encode_multipart_formdata

BOUNDARY = "likeness-benchmark"
SIZES = {
    "tiny": {"num_mels": 16, "width": 2, "dim": 8},
    "resnet34": {"num_mels": 80, "width": 32, "dim": 256},
}


def prepare(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """Write an untrained model and two recordings."""
    import soundfile
    import torch

    from likeness.modalities import synthetic
    from likeness.modalities.speaker.features import KaldiFbank
    from likeness.toolkit.backbones.resnet import ResNet
    from likeness.toolkit.models.checkpoint import save_model
    from likeness.toolkit.models.embedder import TorchEmbedder
    from likeness.toolkit.training import recipe as recipes

    size = SIZES[name]
    demo, _ = recipes.load(str(ROOT / "recipes" / "speaker" / "demo.py"))
    blocks = {"blocks": (1, 1, 1, 1)} if name == "tiny" else {}
    backbone = partial(ResNet, dim=size["dim"], width=size["width"], **blocks)
    frontend = partial(KaldiFbank, num_mels=size["num_mels"])
    torch.manual_seed(0)
    embedder = TorchEmbedder(frontend(), backbone(frontend().dim))
    recipe = replace(demo, frontend=frontend, backbone=backbone)
    path = folder / f"{name}.safetensors"
    save_model(path, embedder, recipe, similarity="cosine", step=0, metrics={})
    files = [folder / "a.wav", folder / "b.wav"]
    for number, file in enumerate(files):
        wave = synthetic.voice(0, number, seconds=(3, 3))
        soundfile.write(file, wave, 16_000, subtype="PCM_16")
    return path, files


@contextmanager
def server(model: Path) -> Iterator[tuple[str, int]]:
    """Start `likeness serve`; gives its address and its process id, and ends it afterwards."""
    options = ["--model", str(model), "--port", "0", "--threshold", "0.5"]
    command = [sys.executable, "-m", "likeness", "serve", *options]
    variables = environment(one_thread=False) | {"PYTHONUNBUFFERED": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=variables, **streams)
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+?/", line)
        assert address is not None, line
        yield address[0], process.pid
    finally:
        process.terminate()
        process.wait()


# Run by wrk, with the file of the body in BODY. Its last line is a JSON object.
LOAD = """
local file = io.open(os.getenv("BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "multipart/form-data; boundary=likeness-benchmark"
function done(summary, latency, requests)
  local wrong = summary.errors
  io.write(string.format('{"requests": %d, "errors": %d, "wall": %f, "p50": %f, "p99": %f}\\n',
    summary.requests,
    wrong.connect + wrong.read + wrong.write + wrong.status + wrong.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
"""


def load(url: str, files: list[Path], clients: int, seconds: float) -> dict[str, float]:
    """Let clients ask for so many seconds; gives what LOAD writes."""
    sides = zip(("first", "second"), files, strict=True)
    fields = {side: ("upload", file.read_bytes()) for side, file in sides}
    folder = files[0].parent
    body, script = folder / "body", folder / "load.lua"
    body.write_bytes(encode_multipart_formdata(fields, BOUNDARY)[0])
    script.write_text(LOAD)
    options = ["-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--timeout", "300s", "-s", str(script)]
    command, variables = ["wrk", *options, f"{url}verify"], {**os.environ, "BODY": str(body)}
    output = subprocess.check_output(command, text=True, env=variables)
    return json.loads(output.splitlines()[-1])


def processor_seconds(process: int) -> float:
    """What a process and its children have used so far."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


# Run by itself, with the model and the two files as its arguments.
ALONE = """
import sys, time, torch, likeness
torch.set_num_threads(1)
model, files = likeness.load(sys.argv[1]), sys.argv[2:]
model.verify(*files)
count, started, used = 0, time.perf_counter(), time.process_time()
while time.perf_counter() - started < 3:
    model.verify(*files)
    count += 1
print(count / (time.perf_counter() - started), (time.process_time() - used) / count)
"""


def alone(model: Path, files: list[Path]) -> tuple[float, float]:
    """Requests per second, and processor seconds for each, without a server.

    One process of one thread for each core at the same time.
    """
    command = [sys.executable, "-c", ALONE, str(model), *map(str, files)]
    how = {"stdout": subprocess.PIPE, "text": True, "env": environment()}
    number = min(4, os.cpu_count() or 1)
    processes = [subprocess.Popen(command, **how) for _ in range(number)]
    measured = [map(float, process.communicate()[0].split()) for process in processes]
    rates, seconds = zip(*measured, strict=True)
    return sum(rates), sum(seconds) / len(seconds)


def print_row(name: str, clients: int, seconds: float) -> None:
    """Measure a model alone and behind the server, and print its row."""
    with TemporaryDirectory() as folder:
        model, files = prepare(Path(folder), name)
        fast, cpu = alone(model, files)
        with server(model) as (url, process):
            load(url, files, 1, 2)
            used = processor_seconds(process)
            measured = load(url, files, clients, seconds)
            used = processor_seconds(process) - used
    count = max(1.0, measured["requests"])
    rate, spent = count / measured["wall"], used / count
    times = f"{measured['p50']:.3f}", f"{measured['p99']:.3f}", f"{1000 * spent:.1f}"
    ratios = f"{rate / fast:.2f}", f"{cpu / spent:.2f}"
    row(f"{name}, 1, {clients}", f"{measured['errors']:.0f}", f"{rate:.1f}", *times, *ratios)


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__, ("seconds", 12.0), ("clients", 10))
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk makes the load, and is not installed; run `apt-get install wrk`")
    times = ("requests/s", "p50 s", "p99 s", "CPU ms", "of Model.verify: requests/s", "CPU")
    table("model, processes, clients", "errors", *times)
    for name in SIZES:
        print_row(name, arguments.clients, arguments.seconds)


if __name__ == "__main__":
    main()
