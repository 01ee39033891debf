"""How fast is a GPU? The sections of benchmarks/gpu.py that take times, and where they run.

Networks run in bfloat16, losses in float32, as `likeness train` does on such a GPU. Inputs are
random and lie on the GPU already, except in `loops` and `extraction`.
"""

import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import train as cpu_train
from performance import row, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

from likeness import Item
from likeness.backbones import IResNet, ReDimNet, ResNet
from likeness.losses import ArcFace, SimPLE
from likeness.modalities.speaker.features import KaldiFbank
from likeness.recipe import Compute, Memory, Parallel, Recipe, step
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.reading import Array
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training.build import build, half
from likeness.toolkit.training.run import Run

RATE_HZ = 16_000


@dataclass(frozen=True)
class Setting:
    """Where a section runs.

    Attributes:
        device: A GPU, or the CPU where there is none.
        small: Whether sizes are tiny.
    """

    device: torch.device
    small: bool

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def size(self, full: int, small: int) -> int:
        """Return a size: `full`, or `small` where sizes are tiny."""
        return small if self.small else full

    def wait(self) -> None:
        """Wait until the GPU has done what it was asked."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median seconds of a call: of at least three, and of two seconds of calls."""
        warm_up, budget = (1, 0.0) if self.small else (3, 2.0)
        for _ in range(warm_up):
            work()
        self.wait()
        times: list[float] = []
        until = time.perf_counter() + budget
        while len(times) < 3 or (time.perf_counter() < until and len(times) < 200):
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def waits(self, work: Callable[[], object]) -> int | None:
        """Return how often a call waits for the GPU; None on a CPU."""
        if not self.on_gpu:
            return None
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchron" in str(warning.message) for warning in caught)

    def row(self, name: str, work: Callable[[], Sequence[object]]) -> None:
        """Print the row of a work. What goes wrong in it must not cost the others their rows.

        Numbers get four digits, and None is a dash.
        """
        try:
            cells = work()
        except Exception as error:
            traceback.print_exc()
            cells = [f"failed: {type(error).__name__}"]
        texts = (f"{cell:.4g}" if isinstance(cell, float) else cell for cell in cells)
        row(name, *("-" if text is None else text for text in texts))
        if self.on_gpu:
            torch.cuda.empty_cache()


_LOSS, _LAST = partial(ArcFace, scale=64.0), Compute(channels_last=True)
FACE = replace(cpu_train.FACE, backbone=IResNet, loss=_LOSS, compute=_LAST)
SPEECH = replace(cpu_train.RESNET, compute=Compute())
MS1MV2, WEBFACE, VOXCELEB = 93_431, 617_970, 17_982  # classes; VoxCeleb2 at three speeds
# Name, recipe, classes, items in a batch.
PARTIAL_FC = replace(FACE, parallel=Parallel(class_rate=0.1))
REDIMNET = replace(SPEECH, backbone=ReDimNet, frontend=partial(KaldiFbank, num_mels=72))
KEYS = replace(FACE, loss=SimPLE, memory=Memory(65_536))
STEPS: list[tuple[str, Recipe, int, int]] = [
    ("IResNet-50, ArcFace", FACE, MS1MV2, 256),
    ("IResNet-100, ArcFace", replace(FACE, backbone=partial(IResNet, depth=100)), MS1MV2, 256),
    ("IResNet-50, ArcFace, Partial FC .1", PARTIAL_FC, WEBFACE, 256),
    ("ResNet34, ArcFace, 2 s", SPEECH, VOXCELEB, 256),
    ("ReDimNet, ArcFace, 2 s", REDIMNET, VOXCELEB, 128),
    ("IResNet-50, SimPLE, 65,536 keys", KEYS, MS1MV2, 256),
]


def inputs_of(recipe: Recipe, number: int, setting: Setting) -> Tensor:
    """Return random inputs on the device: crops of 2 s, or images of 112 x 112."""
    if recipe.modality == "speaker":
        samples = setting.size(2 * RATE_HZ, RATE_HZ // 2)
        return torch.randn(number, samples, device=setting.device) * 0.1
    images = torch.rand(number, 3, 112, 112, device=setting.device) * 255
    return images.contiguous(memory_format=torch.channels_last)


def _steps(setting: Setting) -> list[tuple[str, Recipe, int, int]]:
    """Return STEPS, or in a small run the one of voices with a small network."""
    if not setting.small:
        return STEPS
    name, recipe, _, _ = STEPS[3]
    return [(name, replace(recipe, backbone=partial(ResNet, dim=16, width=4)), 20, 8)]


def steps(setting: Setting) -> None:
    """Measure a training step beside the bare network, and beside arcface_torch's own step.

    One batch that lies on the GPU already: front-end, network, loss, backward pass, optimiser. The
    bare loop has the same network, one linear layer on unit vectors of all classes, cross-entropy
    and SGD. "waits" is how often a step waits for the GPU.
    """
    headings = ("of the bare loop", "of arcface_torch", "waits")
    table("network and loss", "classes", "items/s", *headings)
    for name, *sizes in _steps(setting):
        setting.row(name, partial(_step_cells, *sizes, setting))


def _autocast(recipe: Recipe, device: torch.device) -> Callable[[], Any]:
    """Return what runs the network in the precision that training takes on the device."""
    precision = half(recipe.compute, device)
    enabled = precision is not torch.float32
    return partial(torch.autocast, device.type, dtype=precision, enabled=enabled)


def _take_step(run: Run, batch: Batch, recipe: Recipe) -> None:
    """Take a training step on a batch that lies on the device, as the training loop does."""
    run.optimizer.zero_grad(set_to_none=True)
    with _autocast(recipe, run.device)():
        loss = step(run, batch, recipe)
    run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.step += 1


def _ready(recipe: Recipe, size: int, num_classes: int, setting: Setting) -> tuple[Run, Batch]:
    """Return a run, and a batch for it that lies on the device."""
    run = build(recipe, num_classes, setting.device)
    run.embedder.train()
    labels = torch.randint(num_classes, (size,), device=setting.device)
    return run, Batch(inputs_of(recipe, size, setting), labels, None)


def _step_cells(recipe: Recipe, num_classes: int, size: int, setting: Setting) -> list[object]:
    """Return the classes, items a second, the ratios and waits."""
    autocast = _autocast(recipe, setting.device)
    run, batch = _ready(recipe, size, num_classes, setting)
    ours = partial(_take_step, run, batch, recipe)
    seconds = setting.seconds(ours)
    waits = setting.waits(ours)
    network = run.embedder
    dim = int(network.backbone.dim)
    torch.manual_seed(0)
    proxies = nn.Parameter(torch.randn(num_classes, dim, device=setting.device) * 0.01)
    optimizer = torch.optim.SGD([*network.parameters(), proxies], lr=0.02, momentum=0.9)

    def bare() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            z = network(batch.inputs)
            logits = linear(normalize(z), normalize(proxies))
        cross_entropy(64.0 * logits.float(), batch.labels).backward()
        optimizer.step()

    theirs = partial(_arcface_torch, network, proxies, optimizer, batch, recipe)
    ratios: list[object] = []
    for work in (bare, theirs if recipe.modality == "face" else None):
        try:
            ratios.append(setting.seconds(work) / seconds if work else None)
        except torch.OutOfMemoryError:
            ratios.append("out of memory")
    return [f"{num_classes:,}", size / seconds, *ratios, waits]


def _arcface_torch(
    network: nn.Module, proxies: Tensor, optimizer: torch.optim.SGD, batch: Batch, recipe: Recipe
) -> None:
    """Take a step as insightface's arcface_torch does (partial_fc_v2.py, losses.py, train_v2.py).

    Partial FC draws by a sort of random numbers; logits lose the margin's part by arccos and cos of
    all of them; softmax and its gradient are those of cross_entropy here. Gradients of the network
    are clipped to the norm 5.
    """
    optimizer.zero_grad(set_to_none=True)
    weights, labels, count = proxies, batch.labels, len(proxies)
    rate = recipe.parallel.class_rate
    if rate < 1:
        with torch.no_grad():
            positive = torch.unique(labels, sorted=True)
            order = torch.rand(count, device=labels.device)
            order[positive] = 2.0
            index = torch.topk(order, k=int(rate * count))[1].sort()[0]
            labels = torch.searchsorted(index, labels)
        weights = proxies[index]
    with _autocast(recipe, labels.device)():
        z = network(batch.inputs)
        logits = linear(normalize(z), normalize(weights))
    logits = logits.float().clamp(-1, 1)
    rows = torch.arange(len(labels), device=labels.device)
    with torch.no_grad():
        angles = logits[rows, labels].arccos() + 0.5
        logits.arccos_()
        logits[rows, labels] = angles
        logits.cos_()
    cross_entropy(64.0 * logits, labels).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 5)
    optimizer.step()


def extraction(setting: Setting) -> None:
    """Measure `embed` over the bare forward pass, in batches of 256.

    Inputs are in memory on the CPU, so that nothing is decoded. The bare pass gets one batch of
    float32 that lies on the GPU. Both are in float32, with TF32 off as `likeness embed` leaves it.
    """
    table("items/s", "embedding", "of the bare pass")
    makers = {"IResNet-50": (FACE, (3, 112, 112)), "ResNet34": (SPEECH, (3 * RATE_HZ,))}
    if setting.small:
        makers = {"ResNet34": (replace(SPEECH, backbone=partial(ResNet, width=4)), (RATE_HZ,))}
    for name, (recipe, shape) in makers.items():
        setting.row(name, partial(_extraction_cells, recipe, shape, setting))


def _extraction_cells(recipe: Recipe, shape: tuple[int, ...], setting: Setting) -> list[object]:
    """Return items a second, and their ratio to the bare pass."""
    frontend, size = recipe.frontend(), setting.size(256, 4)
    embedder = TorchEmbedder(frontend, recipe.backbone(frontend.dim)).eval().to(setting.device)
    number = setting.size(4_096, 8)
    items = [Item(str(place), Path(), "") for place in range(number)]
    rng = np.random.default_rng(0)
    levels = rng.random((64, *shape), dtype=np.float32)
    kept = levels if recipe.modality == "speaker" else (256 * levels).astype(np.uint8)

    def read(item: Item) -> Array:
        return kept[int(item.id) % 64]

    embed(embedder, items[:size], read, batch_size=size)
    setting.wait()
    started = time.perf_counter()
    embed(embedder, items, read, batch_size=size)
    seconds = (time.perf_counter() - started) / number
    inputs = torch.rand(size, *shape, device=setting.device)

    def bare() -> None:
        with torch.inference_mode():
            embedder(inputs, None)

    return [1 / seconds, setting.seconds(bare) / size / seconds]


SETTINGS: dict[str, dict[str, Any]] = {
    "training without channels_last": {"channels_last": False},
    "with": {},
    "compiled too": {"compile": True},
    "with graphs too": {"compile": "graphs"},
}


def settings(setting: Setting) -> None:
    """Measure the training step of `steps` with other settings of `compute`."""
    table("items/s", *SETTINGS)
    chosen = ("IResNet-50, ArcFace", "ResNet34, ArcFace, 2 s", "ReDimNet, ArcFace, 2 s")
    for name, *sizes in _steps(setting):
        if name in chosen:
            network = name.partition(",")[0]
            setting.row(network, partial(_settings_cells, *sizes, setting))


def _settings_cells(recipe: Recipe, num_classes: int, size: int, setting: Setting) -> list[object]:
    """Return the items a second with each of SETTINGS; a small run compiles nothing."""
    cells: list[object] = []
    for changes in SETTINGS.values():
        own = replace(recipe, compute=Compute(**changes))
        seconds = None
        if not (setting.small and own.compute.compile):
            take = partial(_take_step, *_ready(own, size, num_classes, setting), own)
            seconds = setting.seconds(take)
        cells.append(seconds and size / seconds)
    return cells


def loops(setting: Setting) -> None:
    """Measure fit() as a whole beside its bare step: reading, batching, logging, saving.

    64 synthetic items that the loader keeps in memory, as in benchmarks/train.py; larger batches
    here, four processes read. "waiting" is the share of fit()'s time in which it waits for them:
    where it is large, the loop is as fast as the reading.
    """
    table("recipe", "ms of the bare step", "items/s of fit()", "of the bare step", "waiting")
    recipes = dict(cpu_train.RECIPES)
    graphs = Compute(compile="graphs")
    recipes["ResNet-18, ArcFace, images, graphs"] = replace(cpu_train.IMAGE, compute=graphs)
    if setting.small:
        recipes = {"order statistics, ArcFace": cpu_train.STATISTICS}
    with tempfile.TemporaryDirectory() as folder:
        cpu_train.write(Path(folder))
        for name, recipe in recipes.items():
            setting.row(name, partial(_loop_cells, recipe, Path(folder), setting))


def _loop_cells(base: Recipe, data: Path, setting: Setting) -> list[object]:
    """Return the bare step's milliseconds, items a second of fit(), and their ratio."""
    number, size = setting.size(400, 6), setting.size(64, 8)
    how: dict[str, Any] = {"cache": True, "workers": setting.size(4, 0)}
    how |= {"channels_last": base.modality != "speaker", "compile": base.compute.compile}
    sampling = replace(base.sampling, batch_size=size)
    recipe = replace(base, sampling=sampling, compute=Compute(**how))
    taken, waiting = cpu_train.steps_of(recipe, number, data, time.perf_counter)
    seconds = float(taken[number // 3 :].mean())
    run, batch = _ready(recipe, size, cpu_train.CLASSES, replace(setting, small=False))
    limit = setting.seconds(partial(_take_step, run, batch, recipe))
    return [1000 * limit, size / seconds, limit / seconds, waiting]
