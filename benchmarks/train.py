"""Measures the training loop beside the bare forward and backward pass of the same network.

    OMP_NUM_THREADS=1 python benchmarks/train.py [--steps 16] [--rounds 3]

Measures: what reading, batching, logging and the rest of fit() cost. The data is synthetic and in
    memory: 64 synthetic voices of 2 s in 16 classes, crops of 2 s, batch 8 (ResNet-34) and 64
    (order statistics); 64 images of noise, 112 x 112, flipped (IResNet-18, face) or shifted and
    flipped (ResNet-18, image), batch 16. CPU seconds of one thread: the median step of fit().
    Rounds alternate, and the least median of each counts.
Peer: none.
Limit: the median of front-end, network, loss, backward and optimiser step on one batch that is
    there already.
Needs: nothing more than Likeness, and no data.
Takes: ten minutes of one core.
Gives: the table "Training on a CPU" of docs/reference/performance.md.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from performance import Clock, parser_of, row, table

from likeness import Item
from likeness.backbones import ImageResNet, IResNet, OrderStatistics, ResNet
from likeness.data import audio, faces, images, synthetic
from likeness.frontends import FLIP_VIEW, IMAGENET, INSIGHTFACE, KaldiFbank, shift_view, train_view
from likeness.losses import ArcFace, SimPLE
from likeness.recipe import Compute, Memory, Optim, Recipe, Sampling, Schedule, fit, step
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.reading import Floats
from likeness.toolkit.training.build import build
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.run import Run

SECONDS, NUM_ITEMS, CLASSES = 2.0, 64, 16


def items(data: Path, suffix: str) -> list[Item]:
    """The 64 items, in 16 classes by turns."""
    return [Item(f"{i}", data / f"{i}{suffix}", str(i % CLASSES)) for i in range(NUM_ITEMS)]


def pixels(item: Item, edge: int = 112) -> Floats:
    """An image of noise, float32 (3, edge, edge) of 0 to 255, always the same for an item."""
    rng = np.random.default_rng(int(item.id))
    return rng.integers(0, 256, size=(3, edge, edge)).astype(np.float32)


def voice(item: Item) -> Floats:
    """A synthetic voice, float32 (samples,) at 16 kHz, always the same for an item."""
    return synthetic.voice(int(item.label or 0), int(item.id), seconds=(SECONDS, SECONDS))


RESNET = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80),
    backbone=partial(ResNet, dim=256),
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
    read=faces.read,
    augment=FLIP_VIEW,
    sampling=Sampling(batch_size=16),
)
IMAGE = replace(
    FACE,
    modality="image",
    frontend=IMAGENET,
    backbone=partial(ImageResNet, depth=18, dim=128),
    read=images.read,
    augment=partial(shift_view, pad=4),
)
_SIMPLE = partial(SimPLE, r=3.0, alpha=0.001, b_theta=0.3)
SIMPLE = replace(RESNET, loss=_SIMPLE, memory=Memory(65_536, 0.999))


def steps_of(recipe: Recipe, steps: int, data: Path, clock: Clock) -> tuple[Floats, float]:
    """Seconds of the steps inside fit(), from one call of step() to the next, and the share of the
    last ones in which fit() waited for data.
    """
    recipe = replace(recipe, schedule=Schedule(steps=steps, save_every=steps))
    starts: list[float] = []

    def timed(run: Run, batch: Batch, recipe: Recipe) -> torch.Tensor:
        starts.append(clock())
        return step(run, batch, recipe)

    with tempfile.TemporaryDirectory() as out:
        suffix = ".wav" if recipe.modality == "speaker" else ".png"
        own = items(data, suffix)
        run = fit(recipe, data=data, out=Path(out) / "run", items=own, step=timed).parent
        logged = [line for line in read_log(run) if "step_seconds" in line][-1]
    return np.diff(starts), logged["data_seconds"] / logged["step_seconds"]


def loop(recipe: Recipe, steps: int, data: Path) -> float:
    """CPU seconds of a step inside fit()."""
    return float(np.median(steps_of(recipe, steps, data, time.process_time)[0][2:]))


def bare(recipe: Recipe, steps: int) -> float:
    """CPU seconds of front-end, network, loss, backward and optimiser step on one batch."""
    run = build(recipe, CLASSES, torch.device("cpu"))
    run.embedder.train()
    size = recipe.sampling.batch_size
    draw = voice if recipe.modality == "speaker" else pixels
    inputs = np.stack([draw(Item(str(i), Path())) for i in range(size)])
    batch = Batch(torch.from_numpy(inputs), torch.arange(size) % CLASSES, None)
    taken = []
    for _ in range(steps):
        started = time.process_time()
        run.optimizer.zero_grad(set_to_none=True)
        step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
        run.optimizer.step()
        taken.append(time.process_time() - started)
    return statistics.median(taken[2:])


def write(data: Path) -> None:
    """Recordings and images as files; fit keeps them in memory after it has read them once."""
    import soundfile
    from PIL import Image

    for item in items(data, ".wav"):
        soundfile.write(item.path, voice(item), 16_000)
    for item in items(data, ".png"):
        Image.fromarray(pixels(item).astype(np.uint8).transpose(1, 2, 0)).save(item.path)


RECIPES = {
    "ResNet-34, ArcFace": RESNET,
    "order statistics, ArcFace": STATISTICS,
    "IResNet-18, ArcFace, faces": FACE,
    "ResNet-18, ArcFace, images": IMAGE,
    "ResNet-34, SimPLE, bank 65,536": SIMPLE,
}


def loop_row(name: str, steps: int, rounds: int, data: Path) -> None:
    """Print the row of a recipe: its loop beside its bare step."""
    recipe = RECIPES[name]
    if recipe is STATISTICS:  # its steps are short, so what a run does ten times weighs on them
        steps *= 10
    # The least of each; they take turns.
    taken = [(loop(recipe, steps, data), bare(recipe, steps)) for _ in range(rounds)]
    ours, limit = np.min(taken, axis=0)
    row(name, f"{ours:.3f}", f"{limit:.3f}", f"{ours / limit:.3f}")


def main() -> None:
    """Print the table."""
    arguments = parser_of(__doc__, ("steps", 16), ("rounds", 3)).parse_args()
    torch.manual_seed(0)
    table("step", "ours, s", "limit, s", "ours/limit")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for name in RECIPES:
            loop_row(name, arguments.steps, arguments.rounds, Path(folder))


if __name__ == "__main__":
    main()
