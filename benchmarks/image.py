"""Measures images: training views from memory and from files.

    OMP_NUM_THREADS=1 python benchmarks/image.py [--images 32] [--rounds 3]

Measures: CPU seconds of one thread. All works of a row take turns, so that a busy machine hurts
    them alike; the least of the rounds counts.
    Views: images of smooth noise in memory, each once, from uint8 as `read` gives them to uint8
    (C, H, W), which a batch takes; the device turns it into float32.
    Files: JPEG of 500 x 375 decoded, shorter edge to 256, centre crop of 224; and to a training
    view of 224, from the whole image, after its shorter edge is resized to 256, and with
    train_read.decoded=false.
Peer: of the views albumentations' own pipeline of the same steps on uint8 (H, W, C), as its users
    write it, and the conversion to (C, H, W). Of training views from files OpenCV's decoding and
    the same pipeline, from the whole image.
Limits: what cannot be left out: OpenCV's resize of a crop, NumPy's copy of a padded crop, OpenCV's
    warp; of the files OpenCV's decoding, and for training views the resize of a crop as well.
Needs: albumentations, which comes with Likeness. No data.
Takes: a minute of one core.
Gives: the two tables of section image of docs/reference/performance.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from performance import in_turn, parser_of, row, table, warn_of_many_threads
from PIL import Image

from modalities.image import images
from modalities.image.transforms import REVISITING, VMF_CIFAR10, VMF_CUB, warp_view
from toolkit.data.images import to_levels
from toolkit.data.items import Item
from toolkit.data.reading import reading_for

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
Pixels = NDArray[np.uint8]
View = Callable[..., Any]


def drawn(count: int, height: int, width: int, channels: int) -> list[Pixels]:
    """Images of smooth noise: as with photographs, smoothness decides how fast JPEG decodes."""
    rng = np.random.default_rng(0)
    small = [
        rng.integers(256, size=(max(2, height // 8), max(2, width // 8), channels), dtype=np.uint8)
        for _ in range(count)
    ]
    large = [cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC) for image in small]
    return [as_pixels(image).reshape(height, width, channels) for image in large]


def ours(view: View, images: Sequence[Pixels]) -> None:
    """Our view of every image, from uint8 (H, W, C) to uint8 (C, H, W)."""
    for number, image in enumerate(images):
        one_view(view, to_levels(image), number)


def one_view(view: View, image: Any, number: int) -> Any:
    """Our view of an image, as a batch takes it."""
    rngs = np.random.default_rng((0, 0, number)), np.random.default_rng((0, 0))
    return np.ascontiguousarray(view(image, *rngs))


def peers(pipeline: Any, images: Sequence[Pixels]) -> None:
    """albumentations' view of every image, from uint8 (H, W, C) to uint8 (C, H, W)."""
    pipeline.set_random_seed(0)  # the same crops in every round
    for image in images:
        np.ascontiguousarray(to_levels(pipeline(image=image)["image"]))


def pipelines() -> dict[str, Any]:
    """The same steps as a user of albumentations writes them."""
    import albumentations as a

    flip = a.HorizontalFlip(p=0.5)
    jitter = a.ColorJitter((0.75, 1.25), (0.75, 1.25), (0.75, 1.25), hue=(0.0, 0.0), p=1.0)
    crop = partial(a.RandomResizedCrop, (224, 224), area_for_downscale="image", p=1.0)
    hole = a.CoarseDropout(
        num_holes_range=(1, 1), hole_height_range=(8, 8), hole_width_range=(8, 8), p=1.0
    )
    affine = a.Affine(
        scale=(0.9, 1.1),
        rotate=(-10, 10),
        shear=(-6, 6),
        translate_percent=(-0.05, 0.05),
        p=1.0,
    )
    padded_crop = [a.Pad(4, border_mode=cv2.BORDER_REFLECT_101), a.RandomCrop(32, 32)]
    return {
        "crop": a.Compose([crop(), flip]),
        "jitter": a.Compose([jitter, crop(scale=(0.16, 1.0)), flip]),
        "shift": a.Compose([*padded_crop, flip, hole]),
        "warp": a.Compose([affine]),
    }


def as_pixels(image: Any) -> Pixels:
    """An image that OpenCV made, with the type that the checker of types expects."""
    return np.asarray(image, dtype=np.uint8)


def resized(images: Sequence[Pixels]) -> None:
    """A crop of half the area of every image, resized: nothing drawn, nothing flipped."""
    for image in images:
        height, width = image.shape[:2]
        edge = int((height * width / 2) ** 0.5)
        how = cv2.INTER_AREA if edge > 224 else cv2.INTER_LINEAR
        view = as_pixels(cv2.resize(image[:edge, :edge], (224, 224), interpolation=how))
        np.ascontiguousarray(to_levels(view))


def padded(images: Sequence[Pixels]) -> None:
    """A crop of every image after it was padded by four pixels."""
    for image in images:
        np.pad(to_levels(image), ((0, 0), (4, 4), (4, 4)), mode="reflect")[:, 2:34, 2:34].copy()


def warped(images: Sequence[Pixels]) -> None:
    """Every image warped by the same matrix."""
    matrix = np.array([[0.98, -0.1, 2.0], [0.1, 0.98, 1.0]])
    for image in images:
        size = image.shape[1::-1]
        to_levels(as_pixels(cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR)))


class ViewRow(NamedTuple):
    """A row of the table of views."""

    name: str
    view: View  # ours
    peer: str  # the name of the pipeline
    limit: Callable[[Sequence[Any]], None]
    pictures: list[Pixels]


def view_rows(count: int, rounds: int) -> None:
    """Print the table of training views."""
    table(
        "training views, images/s of one core",
        "ours",
        "albumentations",
        "limit",
        "ours/albumentations",
        "ours/limit",
    )
    pipeline = pipelines()
    # Crops differ in size, and so in their cost, so that every image gets several.
    photographs = 6 * drawn(count, 375, 500, 3)
    small, characters = drawn(8 * count, 32, 32, 3), drawn(8 * count, 28, 28, 1)
    shift = "shift_view with a square painted over (vMF paper, CIFAR)"
    jitter = "crop_view with colour jitter (vMF paper, CUB)"
    for name, view, peer, limit, pictures in (
        ViewRow("crop_view, 375 x 500 to 224", REVISITING, "crop", resized, photographs),
        ViewRow(jitter, VMF_CUB, "jitter", resized, photographs),
        ViewRow(shift, VMF_CIFAR10, "shift", padded, small),
        ViewRow("warp_view, 28 x 28", partial(warp_view), "warp", warped, characters),
    ):
        works = [
            partial(ours, view, pictures),
            partial(peers, pipeline[peer], pictures),
            partial(limit, pictures),
        ]
        own, other, least = (len(pictures) / seconds for seconds in in_turn(works, rounds))
        rates = (f"{rate:.0f}" for rate in (own, other, least))
        row(name, *rates, f"{own / other:.2f}", f"{own / least:.2f}")


def jpegs(folder: Path, count: int, height: int = 375, width: int = 500) -> list[Item]:
    """Files of smooth noise."""
    items = []
    for number, image in enumerate(drawn(count, height, width, 3)):
        items.append(Item(str(number), folder / f"{number}.jpg"))
        Image.fromarray(image).save(items[-1].path, quality=90)
    return items


def file_rows(count: int, rounds: int) -> None:
    """Print the tables of decoding."""
    print()
    table("files, images/s of one core", "ours", "peer", "limit", "ours/peer", "ours/limit")
    short = partial(images.read, short_edge=256)
    with tempfile.TemporaryDirectory() as folder:
        items = jpegs(Path(folder), count)
        limit, peer = partial(decode_all, items, crop=True), partial(peer_views, items)
        rows: dict[str, list[Callable[[], Any]]] = {
            "JPEG 500 x 375 to 224 x 224, for a test": [
                partial(read_all, items),
                partial(decode_all, items),
            ],
            "JPEG 500 x 375 to a training view": [
                partial(our_views, items, images.read),
                peer,
                limit,
            ],
            "the same, after short_edge=256": [partial(our_views, items, short), peer, limit],
            "the same, train_read.decoded=false": [
                partial(our_views, items, partial(short, decoded=False)),
                peer,
                limit,
            ],
        }
        for name, works in rows.items():
            seconds = in_turn(works, rounds)
            rates = [f"{len(items) / spent:.0f}" for spent in seconds]
            ratios = [f"{spent / seconds[0]:.2f}" for spent in seconds[1:]]
            missing = [""] * (3 - len(works))
            row(name, rates[0], *missing, *rates[1:], *missing, *ratios)


def read_all(items: Sequence[Item]) -> None:
    """Read every file as the recipes do for a test."""
    read = reading_for(partial(images.read, short_edge=256, crop=224))
    for item in items:
        read(item)


def our_views(items: Sequence[Item], read: Callable[..., Any]) -> None:
    """A training view of every file, as a batch takes it."""
    read = reading_for(read, REVISITING)
    for number, item in enumerate(items):
        one_view(REVISITING, read(item), number)


def peer_views(items: Sequence[Item]) -> None:
    """The same views by OpenCV and albumentations."""
    pipeline = pipelines()["crop"]
    peers(pipeline, [decoded(item) for item in items])


def decode_all(items: Sequence[Item], *, crop: bool = False) -> None:
    """Decode every file with OpenCV, resize a crop if asked, and do nothing else."""
    pixels = [decoded(item) for item in items]
    if crop:
        resized(pixels)


def decoded(item: Item) -> Pixels:
    """The pixels of a file by OpenCV."""
    content = np.frombuffer(item.path.read_bytes(), np.uint8)
    return as_pixels(cv2.imdecode(content, cv2.IMREAD_COLOR_RGB))


def main() -> None:
    """Print both tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warn_of_many_threads()
    cv2.setNumThreads(1)
    view_rows(arguments.images, arguments.rounds)
    file_rows(arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
