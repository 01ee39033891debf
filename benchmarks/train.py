"""The training loop beside the bare forward and backward of the same network: what reading,
batching, logging and the rest cost.

    OMP_NUM_THREADS=1 python benchmarks/train.py [--steps 30] [--rounds 3]

Synthetic data in memory: 64 recordings of 2 s of noise in 16 classes, crops of 2 s, batch 8
(ResNet-34) and 64 (order statistics); 64 images of noise, 112 x 112, flipped (IResNet-18, face) or
shifted and flipped (ResNet-18, image), batch 16. CPU seconds of one thread. `loop`: median step of
fit(); `bare`: median of front-end, network, loss, backward and optimiser step on one batch that is
there already. Rounds alternate; the least median of each counts. SimPLE, with two encoders and a
bank of 65,536, is set against ArcFace's loop on the same backbone. Sharding: 200,000 classes x 512
in two processes, memory of each after three steps with momentum (resident, above that of the same
process before the loss was built), beside one process with all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from modalities.face import images as face_images
from modalities.face.augment import FLIP_VIEW
from modalities.image import images as image_images
from modalities.image.transforms import shift_view
from modalities.speaker import audio
from modalities.speaker.augment import train_view
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.resnet import ResNet34
from toolkit.backbones.statistics import OrderStatistics
from toolkit.data.batch import Batch, Floats, Item
from toolkit.data.pixels import IMAGENET, INSIGHTFACE
from toolkit.data.sampling import Sampling
from toolkit.losses.margin import ArcFace
from toolkit.losses.simple import SimPLE
from toolkit.parallel import distributed, spread
from toolkit.training.build import build
from toolkit.training.memory import Memory
from toolkit.training.recipe import Compute, Optim, Recipe, Schedule
from toolkit.training.run import Run
from toolkit.training.train import fit, step

SECONDS, NUM_ITEMS, CLASSES = 2.0, 64, 16


def items(data: Path, suffix: str) -> list[Item]:
    return [Item(f"{i}", data / f"{i}{suffix}", str(i % CLASSES)) for i in range(NUM_ITEMS)]


def pixels(item: Item, edge: int = 112) -> Floats:
    return (
        np.random.default_rng(int(item.id))
        .integers(0, 256, size=(3, edge, edge))
        .astype(np.float32)
    )


def noise(item: Item) -> Floats:
    return (
        np.random.default_rng(int(item.id)).normal(size=int(SECONDS * 16_000)).astype(np.float32)
        * 0.1
    )


RESNET = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80),
    backbone=partial(ResNet34, dim=256),
    loss=partial(ArcFace, margin=0.2, scale=32.0),
    # items are given to fit; a recipe has to name something that can be described
    items=audio.speed_copies,
    read=audio.read,
    augment=partial(train_view, seconds=(SECONDS, SECONDS)),
    sampling=Sampling(batch_size=8),
    optim=Optim(lr=0.01),
    compute=Compute(threads=torch.get_num_threads(), cache=True),
)
STATISTICS = replace(
    RESNET,
    frontend=partial(KaldiFbank, num_mels=80, cmn=False),
    backbone=partial(OrderStatistics, dim=128),
    sampling=Sampling(batch_size=64),
    optim=Optim(name="adamw", lr=1e-3),
)
FACE = replace(
    RESNET,
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(IResNet, depth=18),
    read=face_images.read,
    augment=FLIP_VIEW,
    sampling=Sampling(batch_size=16),
)
IMAGE = replace(
    FACE,
    modality="image",
    frontend=IMAGENET,
    backbone=partial(ImageResNet, depth=18, dim=128),
    read=image_images.read,
    augment=partial(shift_view, pad=4),
)
SIMPLE = replace(
    RESNET, loss=partial(SimPLE, r=3.0, alpha=0.001, b_theta=0.3), memory=Memory(65_536, 0.999)
)


def loop(recipe: Recipe, steps: int, data: Path) -> float:
    """CPU seconds of a step inside fit(): from one call of step() to the next."""
    recipe = replace(recipe, schedule=Schedule(steps=steps, save_every=steps))
    starts: list[float] = []

    def timed(run: Run, batch: Batch, recipe: Recipe) -> torch.Tensor:
        starts.append(time.process_time())
        return step(run, batch, recipe)

    with tempfile.TemporaryDirectory() as out:
        fit(
            recipe,
            data=data,
            out=Path(out) / "run",
            items=items(data, ".wav" if recipe.modality == "speaker" else ".png"),
            step=timed,
        )
    return float(np.median(np.diff(starts)[2:]))


def bare(recipe: Recipe, steps: int) -> float:
    """CPU seconds of front-end, network, loss, backward and optimiser step on one batch."""
    run = build(recipe, CLASSES, torch.device("cpu"))
    run.embedder.train()
    size = recipe.sampling.batch_size
    made = noise if recipe.modality == "speaker" else pixels
    inputs = np.stack([made(Item(str(i), Path())) for i in range(size)])
    batch = Batch(torch.from_numpy(inputs), torch.arange(size) % CLASSES, None)
    taken = []
    for _ in range(steps):
        started = time.process_time()
        run.optimizer.zero_grad(set_to_none=True)
        step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
        taken.append(time.process_time() - started)
    return statistics.median(taken[2:])


def alternating(works: list[Callable[[], float]], rounds: int) -> list[float]:
    return [
        min(times)
        for times in zip(*([work() for work in works] for _ in range(rounds)), strict=True)
    ]


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def shard_memory(num_classes: int = 200_000, dim: int = 512) -> None:
    """In a process of torchrun: print this process's memory after three steps."""
    distributed.start()
    before = resident_mb()
    part = partial(ArcFace, scale=32.0)
    torch.manual_seed(0)
    loss = part(dim, num_classes)
    layout = spread.cut(loss, spread.class_axes(part, dim))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9)
    share = 64 // distributed.world()
    for number in range(3):
        optimizer.zero_grad()
        z = torch.randn(
            share, dim, generator=torch.Generator().manual_seed(number), requires_grad=True
        )
        spread.loss_of(loss, z, torch.randint(num_classes, (share,)), layout=layout).backward()  # type: ignore[no-untyped-call]
        spread.average_gradients(loss, layout)
        optimizer.step()
    print(f"memory {resident_mb() - before}", flush=True)
    distributed.end()


def sharded(num: int) -> float:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(num),
        __file__,
        "--shard-memory",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(
        float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("memory")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard-memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.shard_memory:
        return shard_memory()
    torch.manual_seed(0)
    gpu = "a column of its own" if torch.cuda.is_available() else "not measured: no GPU here"
    print(f"Steps a round: {given.steps}, rounds: {given.rounds}. GPU: {gpu}.\n")
    print("| work | ours | limit | ours/limit | throughput |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write(data)
        seconds: dict[str, float] = {}
        for name, recipe in (
            ("ResNet-34, ArcFace", RESNET),
            ("order statistics, ArcFace", STATISTICS),
            ("IResNet-18, ArcFace, faces", FACE),
            ("ResNet-18, ArcFace, images", IMAGE),
            ("ResNet-34, SimPLE, bank 65,536", SIMPLE),
        ):
            steps = given.steps * (
                10 if recipe is STATISTICS else 1
            )  # what is printed ten times a run weighs on short steps
            ours, limit = alternating(
                [partial(loop, recipe, steps, data), partial(bare, recipe, steps)], given.rounds
            )
            seconds[name] = ours
            speech = recipe.modality == "speaker"
            rate = recipe.sampling.batch_size * (SECONDS if speech else 1) / ours
            unit = "s of audio a second" if speech else "images a second"
            print(
                f"| a step of {name}: loop; bare | {ours:.3f} s | {limit:.3f} s | "
                f"{ours / limit:.3f} | {rate:.0f} {unit} |",
                flush=True,
            )
        arcface, simple = alternating(
            [partial(loop, RESNET, given.steps, data), partial(loop, SIMPLE, given.steps, data)],
            given.rounds,
        )
        print(
            f"| a step of SimPLE, bank 65,536; ArcFace's | {simple:.3f} s | {arcface:.3f} s | "
            f"{simple / arcface:.2f} | |",
            flush=True,
        )
    two, one = sharded(2), sharded(1)
    print(
        f"| 200,000 proxies x 512, memory of each of two processes; of one | {two:.0f} MB | "
        f"{one:.0f} MB | {two / one:.2f} | |"
    )
    return None


def write(data: Path) -> None:
    """Recordings and images as files; fit keeps them in memory after it has read them once."""
    import soundfile
    from PIL import Image

    for item in items(data, ".wav"):
        soundfile.write(item.path, noise(item), 16_000)
    for item in items(data, ".png"):
        Image.fromarray(pixels(item).astype(np.uint8).transpose(1, 2, 0)).save(item.path)


if __name__ == "__main__":
    main()
