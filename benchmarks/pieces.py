"""Measures what it costs to embed in pieces that many machines share.

    OMP_NUM_THREADS=1 python benchmarks/pieces.py [--items 256] [--piece-items 32] [--repeats 3]

Measures: CPU seconds of a process that embeds recordings of 3 s with an untrained ResNet34 of 8
    channels, from the loaded model to the last piece, the least of the repeats: in one plain run
    (`likeness.extract`), and with --pieces in a folder and in a bucket of an S3 server on this
    machine. The recordings lie in the folder; in the last row they are read from the bucket, too.
    Then two workers that start together: the CPU seconds of both over those of one, and the items
    that they make in a second by the wall clock, which two busy cores say little about. The
    pieces are 32 times smaller than those of the command, so that the cost of a piece shows.
Peer: none.
Limit: the plain run, with pieces of the same size, which are written to a folder.
Needs: `pip install likeness[s3] moto[server]`. The server is moto's, of which the CPU time does not
    count; a real store answers later than one on the same machine.
Takes: five minutes.
Gives: the tables of section pieces of docs/reference/performance.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import soundfile
from performance import parser_of, row, table, warn_of_many_threads

BUCKET = "likeness"
WIDTH = {"width": 8, "dim": 64}


class Took(NamedTuple):
    """CPU seconds of a process, and when it began and ended."""

    cpu: float
    began: float
    ended: float


def serve(sender: Any, voices: Path) -> None:
    """Serve a bucket with the recordings, in a process of its own, until it is ended."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket=BUCKET)
    for path in voices.iterdir():
        client.put_object(Bucket=BUCKET, Key=f"voices/{path.name}", Body=path.read_bytes())
    sender.send(f"http://{host}:{port}")
    time.sleep(24 * 3600)


@contextmanager
def object_store(voices: Path) -> Iterator[None]:
    """A server of S3 on this machine, to which the environment leads."""
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
    receiver, sender = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=serve, args=(sender, voices), daemon=True)
    process.start()
    try:
        os.environ["AWS_ENDPOINT_URL"] = receiver.recv()
        yield
    finally:
        process.terminate()
        process.join()


def work(
    root: str, num_items: int, size: int, places: list[str], barrier: Any, sender: Any
) -> None:
    """Embed once at each place; send how long each took. The place "OUT.npz" is a plain run."""
    from likeness import extract, shared_pieces
    from toolkit.data.items import Item
    from toolkit.models.loaded import Loaded
    from toolkit.parallel.claims import open_place

    loaded: Loaded = _model()
    items = [Item(f"{k}.wav", Path(root) / f"{k}.wav") for k in range(num_items)]
    extract.extract(loaded, items[:16], Path(os.devnull))  # warms up
    for place in places:
        barrier.wait()
        began, cpu = time.perf_counter(), time.process_time()
        if place.endswith(".npz"):
            extract.extract(loaded, items, Path(place), piece_items=size)
        else:
            shared_pieces.embed_pieces(loaded, items, open_place(place), piece_items=size)
        sender.send(Took(time.process_time() - cpu, began, time.perf_counter()))


def _model() -> Any:
    """An untrained network."""
    import torch

    from modalities.speaker import audio
    from modalities.speaker.features import KaldiFbank
    from toolkit.backbones.resnet import ResNet34
    from toolkit.models.embedder import TorchEmbedder
    from toolkit.models.loaded import Loaded

    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedder = TorchEmbedder(KaldiFbank(), ResNet34(80, **WIDTH)).eval()
    return Loaded(embedder, audio.read, "speaker", "cosine", "p" * 64, 0)


def measured(
    root: str, num_items: int, size: int, places: list[str], num_workers: int
) -> list[list[Took]]:
    """What each worker took at each place: [place][worker]."""
    context = get_context("spawn")
    barrier = context.Barrier(num_workers)
    pipes = [context.Pipe(duplex=False) for _ in range(num_workers)]
    running = [
        context.Process(target=work, args=(root, num_items, size, places, barrier, sender))
        for _, sender in pipes
    ]
    for process in running:
        process.start()
    took = [[receiver.recv() for receiver, _ in pipes] for _ in places]
    for process in running:
        process.join()
    return took


def main(num_items: int, size: int, repeats: int) -> None:
    warn_of_many_threads()
    with TemporaryDirectory() as folder:
        voices = Path(folder) / "voices"
        voices.mkdir()
        rng = np.random.default_rng(0)
        for k in range(num_items):
            wave = rng.standard_normal(48_000) * 0.1
            soundfile.write(voices / f"{k}.wav", wave, 16_000, subtype="PCM_16")
        with object_store(voices):
            tables(folder, str(voices), num_items, size, repeats)


def tables(folder: str, voices: str, num_items: int, size: int, repeats: int) -> None:
    """Measure, and print both tables."""
    kinds: dict[str, tuple[str, Callable[[str], str]]] = {
        "one plain run": (voices, lambda run: f"{folder}/{run}.npz"),
        "pieces in a folder": (voices, lambda run: f"{folder}/{run}"),
        "pieces in a bucket": (voices, lambda run: f"s3://{BUCKET}/{run}"),
        "the recordings in the bucket, too": (
            f"s3:/{BUCKET}/voices",
            lambda run: f"s3://{BUCKET}/of-{run}",
        ),
    }
    runs = range(repeats)
    one = {
        kind: measured(root, num_items, size, [place(f"one-{run}") for run in runs], 1)
        for kind, (root, place) in kinds.items()
    }
    least = {kind: min(took[0].cpu for took in all_runs) for kind, all_runs in one.items()}
    plain, num_pieces = least["one plain run"], -(-num_items // size)
    table("one worker", "CPU s", "items per CPU s", "over the plain run", "more, ms a piece")
    for kind, cpu in least.items():
        more = 1000 * (cpu - plain) / num_pieces
        row(kind, f"{cpu:.2f}", f"{num_items / cpu:.1f}", f"{cpu / plain:.3f}", f"{more:.0f}")
    print()
    table("two workers", "CPU s of both", "over one", "wall, items a second over one")
    for kind, (root, place) in list(kinds.items())[1:]:
        two = measured(root, num_items, size, [place(f"two-{run}") for run in runs], 2)
        cpu = min(sum(each.cpu for each in took) for took in two)
        faster = min(map(wall_of, one[kind])) / min(map(wall_of, two))
        row(kind, f"{cpu:.2f}", f"{cpu / least[kind]:.3f}", f"{faster:.2f}")


def wall_of(took: list[Took]) -> float:
    """Seconds from the first beginning to the last end."""
    return max(each.ended for each in took) - min(each.began for each in took)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--piece-items", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    main(arguments.items, arguments.piece_items, arguments.repeats)
