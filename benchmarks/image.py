"""Images: training views a second, an epoch of the MNIST recipe beside its bare network, and what a
retrieval test costs.

    OMP_NUM_THREADS=1 python benchmarks/image.py [--data ../shared/data] [--images 32] [--steps 50]
    [--rounds 3]

CPU seconds (process time) of one thread; all works of a row take turns, so that a busy machine hits
them alike; the least of the rounds counts, of MNIST's steps the median.
Views: images of smooth noise in memory, each once; ours from float32 (C, H, W) as `read` gives
them; the peer is albumentations' own pipeline of the same steps on uint8 (H, W, C), as users write
it, plus the conversion to float32 (C, H, W) (torchvision does not install here). Limit: what cannot
be left out: OpenCV's resize of a crop, NumPy's copy of a padded crop, OpenCV's warp. Files: JPEG of
500 x 375 decoded, shorter edge to 256, centre crop of 224; limit: Pillow's decoding alone.
MNIST: image/vmf:mnist without its evaluations, on its first batches: steps of fit() after the
first epoch, when all images are in memory, against the same network, loss and optimiser on one
tensor of all images from which batches are picked: one such step between any two of fit()'s. The
first epoch, which reads the files, is a column of its own. The limit of fit()/bare is 1.15.
Retrieval: what `test` does with 5,924 embeddings of 512 dims in 100 classes: all metrics of each
query, k-means for NMI, 1,000 draws of classes for the intervals; limit: the product of all with
all. At SOP's size, and beside pytorch-metric-learning: benchmarks/eval_retrieval.py.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from eval import per_item
from eval.per_item import PerItem
from eval.retrieval import clusters, query_metrics
from modalities.image import images, mnist
from modalities.image.transforms import REVISITING, VMF_CIFAR10, VMF_CUB, warp_view
from toolkit.data.batch import Batch, Item
from toolkit.data.images import to_floats
from toolkit.training.build import build
from toolkit.training.recipe import Recipe, of_group, read
from toolkit.training.run import Run
from toolkit.training.train import fit, step

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
Pixels = NDArray[np.uint8]
View = Callable[..., Any]


def in_turn(works: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Least CPU seconds of each."""
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):  # the first warms up
        for work, own in zip(works, seconds, strict=True):
            started = time.process_time()
            work()
            if number:
                own.append(time.process_time() - started)
    return [min(one) for one in seconds]


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def drawn(count: int, height: int, width: int, channels: int) -> list[Pixels]:
    """Smooth noise, as photographs are smooth: it decides how well JPEG decodes."""
    rng = np.random.default_rng(0)
    small = [
        rng.integers(256, size=(max(2, height // 8), max(2, width // 8), channels), dtype=np.uint8)
        for _ in range(count)
    ]
    large = [cv2.resize(one, (width, height), interpolation=cv2.INTER_CUBIC) for one in small]
    return [np.asarray(one, dtype=np.uint8).reshape(height, width, channels) for one in large]


def ours(view: View, held: Sequence[NDArray[np.float32]]) -> None:
    for number, one in enumerate(held):
        view(one, np.random.default_rng((0, 0, number)), np.random.default_rng((0, 0)))


def peers(pipeline: Any, held: Sequence[Pixels]) -> None:
    for one in held:
        to_floats(pipeline(image=one)["image"])


def pipelines() -> dict[str, Any]:
    """The same steps as a user of albumentations writes them."""
    import albumentations as a

    flip = a.HorizontalFlip(p=0.5)
    jitter = a.ColorJitter((0.75, 1.25), (0.75, 1.25), (0.75, 1.25), hue=(0.0, 0.0), p=1.0)
    hole = a.CoarseDropout(
        num_holes_range=(1, 1), hole_height_range=(8, 8), hole_width_range=(8, 8), p=1.0
    )
    return {
        "crop": a.Compose(
            [a.RandomResizedCrop((224, 224), area_for_downscale="image", p=1.0), flip]
        ),
        "jitter": a.Compose(
            [
                jitter,
                a.RandomResizedCrop(
                    (224, 224), scale=(0.16, 1.0), area_for_downscale="image", p=1.0
                ),
                flip,
            ]
        ),
        "shift": a.Compose(
            [a.Pad(4, border_mode=cv2.BORDER_REFLECT_101), a.RandomCrop(32, 32), flip, hole]
        ),
        "warp": a.Compose(
            [
                a.Affine(
                    scale=(0.9, 1.1),
                    rotate=(-10, 10),
                    shear=(-6, 6),
                    translate_percent=(-0.05, 0.05),
                    p=1.0,
                )
            ]
        ),
    }


def as_pixels(made: Any) -> Pixels:
    """What OpenCV made, for the type checker."""
    return np.asarray(made, dtype=np.uint8)


def resized(held: Sequence[Pixels]) -> None:
    """A crop of half the area, resized: nothing drawn, nothing flipped."""
    for one in held:
        height, width = one.shape[:2]
        edge = int((height * width / 2) ** 0.5)
        to_floats(
            as_pixels(
                cv2.resize(
                    one[:edge, :edge],
                    (224, 224),
                    interpolation=cv2.INTER_AREA if edge > 224 else cv2.INTER_LINEAR,
                )
            )
        )


def padded(held: Sequence[NDArray[np.float32]]) -> None:
    for one in held:
        np.pad(one, ((0, 0), (4, 4), (4, 4)), mode="reflect")[:, 2:34, 2:34].copy()


def warped(held: Sequence[Pixels]) -> None:
    matrix = np.array([[0.98, -0.1, 2.0], [0.1, 0.98, 1.0]])
    for one in held:
        to_floats(as_pixels(cv2.warpAffine(one, matrix, one.shape[1::-1], flags=cv2.INTER_LINEAR)))


def view_rows(count: int, rounds: int) -> None:
    print(
        "| training views, images/s of one core | ours | albumentations | limit | "
        "ours/albumentations | ours/limit |\n|---|---|---|---|---|---|"
    )
    made = pipelines()
    random.seed(0)
    photographs, small, characters = (
        drawn(count, 375, 500, 3),
        drawn(8 * count, 32, 32, 3),
        drawn(8 * count, 28, 28, 1),
    )
    for name, view, peer, limit, held in (
        ("crop_view, 375 x 500 to 224", REVISITING, "crop", resized, photographs),
        ("crop_view with colour jitter (vMF paper, CUB)", VMF_CUB, "jitter", resized, photographs),
        (
            "shift_view with a square painted over (vMF paper, CIFAR)",
            VMF_CIFAR10,
            "shift",
            padded,
            small,
        ),
        ("warp_view, 28 x 28", partial(warp_view), "warp", warped, characters),
    ):
        levels = [to_floats(one) for one in held]
        bare: Sequence[Any] = levels if limit is padded else held
        seconds = in_turn(
            [partial(ours, view, levels), partial(peers, made[peer], held), partial(limit, bare)],
            rounds,
        )
        rates = [len(held) / one for one in seconds]
        row(
            name,
            *(f"{one:.0f}" for one in rates),
            f"{rates[0] / rates[1]:.2f}",
            f"{rates[0] / rates[2]:.2f}",
        )


def file_row(count: int, rounds: int) -> None:
    print("\n| files, images/s of one core | ours | limit | ours/limit |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        items = []
        for number, one in enumerate(drawn(count, 375, 500, 3)):
            items.append(Item(str(number), Path(folder) / f"{number}.jpg"))
            Image.fromarray(one).save(items[-1].path, quality=90)
        seconds = in_turn([partial(read_all, items), partial(decode_all, items)], rounds)
    row(
        "JPEG 500 x 375 to 224 x 224",
        *(f"{len(items) / one:.0f}" for one in seconds),
        f"{seconds[1] / seconds[0]:.2f}",
    )


def read_all(items: Sequence[Item]) -> None:
    for one in items:
        images.read(one, short_edge=256, crop=224)


def decode_all(items: Sequence[Item]) -> None:
    for one in items:
        with Image.open(one.path) as image:
            image.load()


class Enough(Exception):
    """Raised by a step to end a run: a run of few steps would write a line of its log at each."""


def loop(
    recipe: Recipe, items: Sequence[Item], inputs: torch.Tensor, labels: torch.Tensor, steps: int
) -> tuple[float, float, float]:
    """Median CPU seconds of a step of fit(), in the first epoch and in the two after it, and of a
    bare step; one of these comes between any two of fit()'s.
    """
    recipe = replace(
        recipe,
        schedule=replace(
            recipe.schedule, eval_every=0, save_every=10**9, watch="", halve_after=0, stop_after=0
        ),
    )
    alone = build(recipe, 10, torch.device("cpu"))
    alone.embedder.train()
    picked = batches(len(labels), recipe.sampling.batch_size)
    taken: list[float] = []
    bare: list[float] = []
    left = 0.0

    def timed(run: Run, batch: Batch, recipe: Recipe) -> torch.Tensor:
        nonlocal left
        entered = time.process_time()
        taken.append(entered - left)
        if len(taken) > 3 * steps:
            raise Enough
        bare_step(alone, inputs, labels, next(picked))
        left = time.process_time()
        bare.append(left - entered)
        return step(run, batch, recipe)

    with tempfile.TemporaryDirectory() as out, suppress(Enough):
        fit(recipe, data=Path(), out=Path(out) / "run", items=items, step=timed)
    return (
        float(np.median(taken[1 : steps + 1])),
        float(np.median(taken[steps + 1 :])),
        float(np.median(bare[steps:])),
    )


def bare_step(run: Run, inputs: torch.Tensor, labels: torch.Tensor, picked: torch.Tensor) -> None:
    run.optimizer.zero_grad(set_to_none=True)
    x = inputs[picked].contiguous(memory_format=torch.channels_last)
    run.loss(run.embedder.backbone(run.embedder.frontend(x)[0]).float(), labels[picked]).backward()
    run.optimizer.step()


def batches(count: int, size: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(count, generator=generator)[: count // size * size].view(-1, size)


def mnist_rows(data: Path, steps: int) -> None:
    print(
        "\n| MNIST recipe, ms a step of 130 images | fit() | first epoch, from files | bare "
        "network | fit()/bare |\n|---|---|---|---|---|"
    )
    file = Path(__file__).parents[1] / "recipes" / "image" / "vmf.py"
    found = of_group(read(str(file))["RECIPES"], "mnist")
    every = mnist.items(data, split="train")
    items = every[: 130 * steps]
    inputs = torch.from_numpy(np.stack([images.read(one) for one in items]))
    labels = torch.tensor([int(str(one.label)) for one in items])
    for name in ("standard", "vmf"):
        recipe = replace(found[name], measure=None, compute=replace(found[name].compute, threads=1))
        first, later, alone = loop(recipe, items, inputs, labels, steps)
        row(name, *(f"{1000 * one:.2f}" for one in (later, first, alone)), f"{later / alone:.3f}")


def retrieval_row(rounds: int) -> None:
    print(
        "\n| a test of retrieval, CPU s | ours | limit: one product | ours/limit "
        "|\n|---|---|---|---|"
    )
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(100, size=5_924))
    rows = (
        rng.standard_normal((100, 512))[labels] + 3.5 * rng.standard_normal((5_924, 512))
    ).astype(np.float32)
    names = {name: partial(per_item.mean, column=name) for name in ("recall@1", "map@r")}

    def metrics() -> PerItem:
        return PerItem(
            tuple(map(str, range(5_924))),
            query_metrics(rows, labels),
            labels.astype(np.int32),
            "classes",
        )

    measured = metrics()
    works: list[Callable[[], Any]] = [
        metrics,
        partial(clusters, rows, 100),
        partial(per_item.resample, names, measured),
        lambda: rows @ rows.T,
    ]
    *parts, limit = in_turn(works, rounds)
    for name, seconds in zip(
        ("metrics of each query", "k-means for NMI", "1,000 draws of classes, two metrics"),
        parts,
        strict=True,
    ):
        row(
            f"5,924 x 512, 100 classes: {name}",
            f"{seconds:.3f}",
            f"{limit:.3f}",
            f"{seconds / limit:.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument(
        "--steps",
        type=int,
        default=50,
        help="of an epoch of MNIST, which is so many batches of its training images",
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "set OMP_NUM_THREADS=1 before Python starts: CPU time of many threads is not "
            "comparable",
            file=sys.stderr,
        )
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    view_rows(given.images, given.rounds)
    file_row(given.images, given.rounds)
    mnist_rows(given.data, given.steps)
    retrieval_row(given.rounds)


if __name__ == "__main__":
    main()
