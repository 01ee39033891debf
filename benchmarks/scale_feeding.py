"""Measures how fast images and waves reach a batch, beside peers and the bare limits.

    OMP_NUM_THREADS=1 python benchmarks/scale_feeding.py [--images 48] [--rounds 3]

Measures: CPU seconds of one thread for n items, the least of the rounds; works that are compared
    take turns. Of the two loaders the wall clock, with two worker processes.
Gives: lines `name,n,seconds,peak_mb`, from which scale.py makes a table; the peak is that of this
    process up to there.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import image
import numpy as np
import soundfile
import torch
from face import whole_way
from performance import in_turn, parser_of, warn_of_many_threads

from modalities.image import images
from modalities.image.transforms import REVISITING
from modalities.speaker import audio
from modalities.speaker.augment import train_view
from toolkit.data.batch import Draw, Views, collate_views
from toolkit.data.items import Item
from toolkit.data.reading import reading_for

Works = dict[str, Callable[[], Any]]


def line(name: str, count: int, seconds: float) -> None:
    """Print a result."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name},{count},{seconds:.4f},{peak:.0f}", flush=True)


def lines(works: Works, count: int, rounds: int) -> None:
    """Print the results of works of the same n, which take turns."""
    for name, seconds in zip(works, in_turn(list(works.values()), rounds), strict=True):
        line(name, count, seconds)


def image_lines(folder: Path, count: int, rounds: int) -> None:
    """JPEG of 500 x 375 to a training view of 224, and of 2000 x 1500."""
    short = partial(images.read, short_edge=256)
    for name, height, width, share in (("image", 375, 500, 1), ("photograph", 1500, 2000, 8)):
        (folder / name).mkdir()
        items = image.jpegs(folder / name, max(1, count // share), height, width)
        works: Works = {
            f"{name}_view": partial(image.our_views, items, images.read),
            f"{name}_view_short_edge": partial(image.our_views, items, short),
            f"{name}_view_part": partial(
                image.our_views, items, partial(images.read, decoded=False)
            ),
            f"{name}_view_peer": partial(image.peer_views, items),
            f"{name}_view_limit": partial(image.decode_all, items, crop=True),
        }
        lines(works, len(items), rounds)


def face_lines(count: int, rounds: int) -> None:
    """JPEG of 160 x 160 to an aligned, augmented face."""
    ours, peer, limit = whole_way(count)
    lines({"face_view": ours, "face_view_peer": peer, "face_view_limit": limit}, count, rounds)


def loader_lines(folder: Path, count: int, rounds: int) -> None:
    """A training view of every image through two workers, in batches of 32."""
    items = image.jpegs(folder, count)
    labels = np.zeros(count, np.int64)

    def load(read: Callable[..., Any]) -> None:
        views = Views(items, labels, read, REVISITING, seed=0)
        loader: Any = torch.utils.data.DataLoader(
            views, batch_sampler=list(batches(count)), collate_fn=collate_views, num_workers=2
        )
        for batch, _ in loader:
            batch.inputs.float()  # what the device does

    works = {
        "loader_uint8": partial(load, reading_for(images.read, REVISITING)),
        "loader_float32": partial(load, partial(images.read, dtype="float32")),
    }
    seconds = in_turn(list(works.values()), rounds, clock=time.perf_counter)
    for name, value in zip(works, seconds, strict=True):
        line(name, count, value)


def batches(count: int) -> Iterator[list[Draw]]:
    """Every image once."""
    draws = [Draw(number, 0, number) for number in range(count)]
    for start in range(0, count, 32):
        yield draws[start : start + 32]


def audio_lines(folder: Path, rounds: int) -> None:
    """A crop of 3 s of a recording of 60 s."""
    wave = np.random.default_rng(0).normal(0, 0.1, 60 * 16_000)
    for suffix in ("flac", "wav"):
        item = Item(suffix, folder / f"a.{suffix}")
        soundfile.write(item.path, wave, 16_000)
        whole, part = audio.read, reading_for(audio.read, train_view)
        works: Works = {
            f"{suffix}_60s_whole": partial(crops, item, whole),
            f"{suffix}_60s_crop": partial(crops, item, part),
        }
        lines(works, 10, rounds)


def crops(item: Item, read: Callable[..., Any]) -> None:
    """Ten training views of a recording."""
    for number in range(10):
        train_view(read(item), np.random.default_rng(number), np.random.default_rng(0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all lines."""
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    warn_of_many_threads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image_lines(folder, chosen.images, chosen.rounds)
        face_lines(4 * chosen.images, chosen.rounds)
        (folder / "loader").mkdir()
        loader_lines(folder / "loader", 8 * chosen.images, chosen.rounds)
        audio_lines(folder, chosen.rounds)


if __name__ == "__main__":
    main()
