"""Does a GPU give what the CPU gives? The sections of benchmarks/gpu.py that compare values.

Products are in float32 with TF32 off, so that only the order of sums differs, unless a row names
another precision. "relative" is the norm of the difference over the norm of the CPU's value.
Without a GPU the CPU is compared with itself: that shows only that the section runs.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_setting import Setting, Table
from losses import loss_classes
from torch import Tensor, nn
from torch.nn.functional import normalize

import likeness.backbones
from toolkit.backbones.iresnet import IResNet
from toolkit.data.batch import Batch
from toolkit.data.pixels import INSIGHTFACE
from toolkit.losses.margin import ArcFace
from toolkit.losses.simple import SimPLE
from toolkit.parallel import distributed, spread
from toolkit.training.build import build
from toolkit.training.memory import Bank, Memory
from toolkit.training.recipe import Compute, Optim, Parallel, Recipe
from toolkit.training.train import step
from toolkit.vmf.distribution import log_normalizer, mean_resultant
from toolkit.vmf.precision import full
from toolkit.vmf.sampling import FAMILIES, sample

ROOT = Path(__file__).parents[1]
DEMOS = {"speaker": "eer", "face": "eer", "image": "accuracy"}  # the metric of each
# They need a network or embeddings of somebody else, or other networks.
OTHERS = {"External", "HubImage", "HubSpeech", "Head", "ScoreNorm", "Beside"}
QUICK = ("OrderStatistics", "XVector", "SmallCNN", "MobileFaceNet")
IMAGE_SIDES = {
    **dict.fromkeys(("ImageResNet", "ViT", "BNInception"), 224),
    "GradientHistograms": 64,
    "SmallCNN": 28,
}
BANDS = {"ReDimNet": 72, "ReDimNet2": 72}  # where they are not 80
IMAGE_CHANNELS = {"SmallCNN": 1, "GradientHistograms": 1}


def relative(value: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of the expected value."""
    expected = expected.detach().double().cpu()
    difference = value.detach().double().cpu() - expected
    return float(difference.norm() / expected.norm().clamp(min=1e-30))


def gradients(module: nn.Module) -> Tensor:
    """Return all gradients of a module as one vector."""
    every = [value.grad.flatten() for value in module.parameters() if value.grad is not None]
    return torch.cat(every) if every else torch.zeros(1)


# ---------------------------------------------------------------- losses and networks


def losses(setting: Setting) -> Table:
    """Compare value and gradients of every loss, and its value for embeddings in bfloat16."""
    table = Table(
        [
            "loss",
            "value, relative",
            "gradient of z",
            "of its parameters",
            "z in bfloat16",
            "remark",
        ],
        "Batches of 64 embeddings of 32 classes. A loss that draws random numbers draws others on "
        "a GPU.",
    )
    torch.manual_seed(0)
    dim, num_classes = setting.size(256, 32), 32
    z, y = torch.randn(64, dim), torch.arange(64) % num_classes
    for name, make in loss_classes().items():
        try:
            torch.manual_seed(1)
            table.add(name, *_loss_cells(make(dim, num_classes), z, y, setting.device))
        except Exception as error:  # one loss must not cost the others their rows
            table.add_failed(name, error)
    return table


def _loss_cells(loss: nn.Module, z: Tensor, y: Tensor, device: torch.device) -> list[object]:
    """Return the cells of a loss, without its name."""

    def taken(loss: nn.Module, z: Tensor, device: torch.device, seed: int) -> list[Tensor]:
        here, given = copy.deepcopy(loss).to(device), z.detach().clone().to(device).requires_grad_()
        torch.manual_seed(seed)
        value = here(full(given), y.to(device))
        value.backward()
        assert given.grad is not None
        return [value, given.grad, gradients(here)]

    expected, again = (taken(loss, z, torch.device("cpu"), seed) for seed in (2, 3))
    draws = not torch.equal(expected[0], again[0])
    cells: list[object] = [
        relative(one, other) for one, other in zip(taken(loss, z, device, 2), expected, strict=True)
    ]
    half = taken(loss, z.bfloat16(), device, 2)[0]
    finite = bool(torch.isfinite(half))
    return [*cells, relative(half, expected[0]) if finite else "not finite", "draws" * draws]


def backbones(setting: Setting) -> Table:
    """Compare embeddings and gradients of every network, and its embeddings in half precision."""
    table = Table(
        ["network", "embeddings, relative", "gradients", "bfloat16, cosine", "float16, cosine"],
        "Four inputs: 2 s of features, or images. Embeddings in evaluation mode, gradients in "
        "training mode. The cosine distances are those to float32, the largest of the four.",
    )
    for name in QUICK if setting.small else dir(likeness.backbones):
        if name in OTHERS or name.startswith("_"):
            continue
        if setting.is_over:
            table.add(name, "no time left", "", "", "")
            continue
        try:
            table.add(name, *_backbone_cells(getattr(likeness.backbones, name), setting))
        except Exception as error:
            table.add_failed(name, error)
    return table


def _backbone_cells(make: Any, setting: Setting) -> list[object]:
    """Return the cells of a network, without its name."""
    torch.manual_seed(0)
    if getattr(make, "takes", "features") == "features":
        bands = BANDS.get(make.__name__, 80)
        network, inputs = make(bands), torch.randn(4, setting.size(200, 60), bands)
    else:
        side = IMAGE_SIDES.get(make.__name__, 112)
        channels = IMAGE_CHANNELS.get(make.__name__, 3)
        network, inputs = make(channels), torch.randn(4, channels, side, side)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # its statistics are those of the pass below
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        network.train()(inputs)
    here, given = copy.deepcopy(network).to(setting.device), inputs.to(setting.device)
    with torch.no_grad():
        expected, found = network.eval()(inputs), here.eval()(given)
    halves: list[object] = []
    for precision in (torch.bfloat16, torch.float16):
        with torch.no_grad(), torch.autocast(setting.device.type, dtype=precision):
            half = here(given).float().cpu()
        cosines = (normalize(half) * normalize(expected)).sum(1)
        halves.append(float(1 - cosines.min()) if torch.isfinite(cosines).all() else "not finite")
    slopes: list[Tensor] = []
    for module, x in ((network, inputs), (here, given)):
        torch.manual_seed(1)
        module.train()(x).square().mean().backward()
        slopes.append(gradients(module))
    return [relative(found, expected), relative(slopes[1], slopes[0]), *halves]


# ---------------------------------------------------------------- parts


def parts(setting: Setting) -> Table:
    """Compare the von Mises-Fisher functions, SimPLE's bank, and ways of computing a step."""
    table = Table(["part", "against", "difference", "how"])
    works = [_vmf, _sampler, _bank, _ways_of_a_step, _synchronisation, _two_processes]
    for work in works:
        try:
            for cells in work(setting):
                table.add(*cells)
        except Exception as error:
            table.add_failed(work.__name__.strip("_"), error)
    return table


def _vmf(setting: Setting) -> list[list[object]]:
    rows: list[list[object]] = []
    kappa = torch.logspace(-2, 4, 601, dtype=torch.float64)
    for dim in (3, 128, 512):
        for function in (log_normalizer, mean_resultant):
            found = function(kappa.float().to(setting.device), dim).cpu().double()
            expected = function(kappa, dim)
            worst = float(((found - expected).abs() / expected.abs().clamp(min=1.0)).max())
            how = "the largest, relative above 1; kappa .01 to 10,000"
            rows.append([f"{function.__name__}, {dim}", "float64 of the CPU", worst, how])
    return rows


def _sampler(setting: Setting) -> list[list[object]]:
    """The mean cosine of draws; for vMF it is known in closed form."""
    rows: list[list[object]] = []
    number, dim = setting.size(200_000, 20_000), 128
    for family in FAMILIES:
        for kappa in (1.0, 50.0, 2_000.0):
            mu = torch.zeros(1, dim, device=setting.device)
            mu[0, 0] = 1.0
            at = torch.full((1,), kappa, device=setting.device)
            cosines = sample(mu, at, number, family=family)[:, 0, 0].double()
            mean = kappa / (dim - 1 + kappa)
            if family == "vmf":
                mean = float(mean_resultant(torch.tensor(kappa, dtype=torch.float64), dim))
            errors = float((cosines.mean() - mean) / (cosines.std() / number**0.5))
            rows.append(
                [f"draws of {family}, kappa {kappa:g}", "the mean", errors, "in its errors"]
            )
    return rows


def _bank(setting: Setting) -> list[list[object]]:
    """The bank after it went round twice, and SimPLE's loss with it."""
    dim, size = 64, 512
    losses: list[Tensor] = []
    banks: list[Tensor] = []
    for device in (torch.device("cpu"), setting.device):
        torch.manual_seed(0)
        loss = SimPLE(dim, 100)
        loss.bank = Bank(size, dim)
        loss.to(device)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2 * size // 96 + 1):
            z, keys = (torch.randn(96, dim, generator=generator).to(device) for _ in range(2))
            y = torch.randint(100, (96,), generator=generator).to(device)
            value = loss(z, y, keys)
        losses.append(value)
        banks.append(torch.cat([loss.bank.keys.flatten(), loss.bank.labels.float()]))
    return [
        ["SimPLE's bank", "the CPU", relative(banks[1], banks[0]), "keys and labels"],
        ["SimPLE's loss with it", "the CPU", relative(losses[1], losses[0]), "relative"],
    ]


def _recipe(**changes: Any) -> Recipe:
    """A small recipe of faces; items and reading are not used."""
    recipe = Recipe(
        modality="face",
        frontend=INSIGHTFACE,
        backbone=partial(IResNet, depth=18, width=16, image_size=64),
        loss=partial(ArcFace, scale=16.0),
        items=list,
        read=np.load,
        optim=Optim(lr=0.05),
        compute=Compute(precision="float32"),
    )
    return replace(recipe, **changes)


def trained(recipe: Recipe, device: torch.device, steps: int = 4, size: int = 32) -> list[float]:
    """Return the losses of a few steps on one batch, of which this process takes its part."""
    run = build(recipe, 10, device)
    run.embedder.train()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(size, 3, 64, 64, generator=generator) * 255
    mine = slice(
        size * distributed.rank() // distributed.world(),
        size * (distributed.rank() + 1) // distributed.world(),
    )
    batch = Batch(inputs[mine].to(device), (torch.arange(size) % 10)[mine].to(device), None)
    if recipe.compute.channels_last:
        batch = batch._replace(inputs=batch.inputs.contiguous(memory_format=torch.channels_last))
    values: list[float] = []
    for run.step in range(steps):
        run.optimizer.zero_grad(set_to_none=True)
        loss = step(run, batch, recipe)
        loss.backward()  # type: ignore[no-untyped-call]
        spread.average_gradients(run.loss, run.layout)
        run.optimizer.step()
        values.append(float(loss.detach()))
    return values


def _ways_of_a_step(setting: Setting) -> list[list[object]]:
    """The loss after four steps, computed in other ways that must not change it."""
    expected = trained(_recipe(), torch.device("cpu"))
    here = trained(_recipe(), setting.device)
    ways = {
        "channels_last": Compute(precision="float32", channels_last=True),
        "recompute": Compute(precision="float32", recompute=True),
        "torch.compile": Compute(precision="float32", compile=True),
    }
    how = "relative, the loss after four steps"
    rows: list[list[object]] = [
        ["a step of IResNet", "the CPU", abs(here[-1] / expected[-1] - 1), how]
    ]
    for name, compute in ways.items():
        if setting.small and compute.compile:
            continue  # it would compile for a minute
        value = trained(_recipe(compute=compute), setting.device)[-1]
        rows.append([name, "the same without", abs(value / here[-1] - 1), how])
    return rows


def _synchronisation(setting: Setting) -> list[list[object]]:
    """How often a step waits for the GPU."""
    if setting.device.type != "cuda":
        return [["waiting for the GPU in a step", "none", "not measured: there is no GPU", ""]]
    import warnings

    rows: list[list[object]] = []
    makers: dict[str, dict[str, Any]] = {
        "ArcFace": {},
        "ArcFace, Partial FC": {"parallel": Parallel(class_rate=0.5)},
        "SimPLE": {"loss": SimPLE, "memory": Memory(64)},
    }
    for name, changes in makers.items():
        recipe = _recipe(**changes)
        run = build(recipe, 100, setting.device)
        run.embedder.train()
        batch = Batch(
            torch.rand(32, 3, 64, 64, device=setting.device),
            torch.arange(32, device=setting.device) // 2,
            None,
        )
        for _ in range(2):
            step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                step(run, batch, recipe).backward()  # type: ignore[no-untyped-call]
                run.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = [one for one in caught if "synchron" in str(one.message)]
        places = {f"{Path(one.filename).name}:{one.lineno}" for one in waits}
        rows.append([f"a step with {name}", "no waiting", len(waits), ", ".join(sorted(places))])
    return rows


def _two_processes(setting: Setting) -> list[list[object]]:
    """Two processes on one GPU, by gloo because NCCL refuses that, against one process."""
    alone = trained(_recipe(), setting.device)[-1]
    port = str(20_000 + os.getpid() % 20_000)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "two", setting.device.type],
            env={**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode:
            raise RuntimeError((errors.strip().splitlines() or ["ended without a word"])[-1])
    value = json.loads(said[0][0].splitlines()[-1])
    how = "relative, the loss after four steps; batch norm is synced, classes are spread"
    return [["two processes by gloo", "one process", abs(value / alone - 1), how]]


def _one_of_two(kind: str) -> None:
    """Take the steps as one of two processes, and print the last loss."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.distributed.init_process_group("gloo")
    recipe = _recipe(parallel=Parallel(spread_classes=True))
    values = trained(recipe, torch.device(kind))
    print(json.dumps(values[-1]), flush=True)
    torch.distributed.destroy_process_group()


# ---------------------------------------------------------------- whole runs


def training(setting: Setting) -> Table:
    """Train the three demos on the GPU and on the CPU, with the same seeds, and resume one."""
    table = Table(
        ["recipe", "metric", "GPU, each seed", "CPU, each seed", "seconds, GPU and CPU"],
        "300 steps in float32, on synthetic voices and faces, and on the digits of scikit-learn. "
        "The runs on the CPU go side by side.",
    )
    steps, seeds = setting.size(300, 12), (0,) if setting.small else (0, 1, 2)
    kinds = ("image",) if setting.small else tuple(DEMOS)
    jobs = {
        (kind, device, seed): (kind, device, seed, steps, setting.folder)
        for device in (setting.device.type, "cpu")
        for kind in kinds
        for seed in seeds
    }
    for kind in kinds:
        _write(kind, setting.folder / kind)
    processes = {key: _start(*job) for key, job in jobs.items() if key[1] == "cpu"}
    results: dict[tuple[str, str, int], dict[str, Any]] = {}
    for key, job in jobs.items():
        if key[1] != "cpu":
            results[key] = _result(_start(*job))
    results |= {key: _result(process) for key, process in processes.items()}
    for kind in kinds:
        cells: list[list[str]] = []
        seconds: list[str] = []
        for device in (setting.device.type, "cpu"):
            found = [results[kind, device, seed] for seed in seeds]
            cells.append([f"{one['value']:.4f}" for one in found])
            seconds.append(f"{np.mean([one['seconds'] for one in found]):.1f}")
        table.add(kind, DEMOS[kind], *map(", ".join, cells), ", ".join(seconds))
    return table


def _write(kind: str, folder: Path) -> None:
    """Write the synthetic data of a demo."""
    if kind == "speaker":
        from modalities.synthetic import write_voices

        write_voices(folder, num_speakers=60, num_utterances=10)
    elif kind == "face":
        from modalities.synthetic_faces import write_faces

        write_faces(folder, num_subjects=60, num_shots=10, size=64)
    else:
        from modalities.image.small_sets import write_digits

        write_digits(folder)


def _start(kind: str, device: str, seed: int, steps: int, folder: Path) -> subprocess.Popen[str]:
    """Start a run in a process of its own; on the CPU it sees no GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    command = [sys.executable, __file__, "fit", kind, device, str(seed), str(steps), str(folder)]
    return subprocess.Popen(
        command,
        env={**os.environ, **hidden, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError((errors.strip().splitlines() or ["ended without a word"])[-1])
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _fit(kind: str, device: str, seed: str, steps: str, folder: str) -> None:
    """Train a demo, and print its metric and the seconds as a JSON object."""
    import time

    from toolkit.training import recipe as recipes
    from toolkit.training.log import read_log
    from toolkit.training.train import fit

    recipe = recipes.load(str(ROOT / "recipes" / kind / "demo.py"))[0]
    schedule = replace(recipe.schedule, steps=int(steps), save_every=int(steps), warmup_steps=1)
    compute = replace(recipe.compute, precision="float32")
    recipe = replace(recipe, schedule=schedule, compute=compute, seed=int(seed))
    out = Path(folder) / f"run-{kind}-{device}-{seed}"
    started = time.perf_counter()
    fit(recipe, data=Path(folder) / kind, out=out)
    seconds = time.perf_counter() - started
    measured = [entry for entry in read_log(out) if DEMOS[kind] in entry]
    print(json.dumps({"value": measured[-1][DEMOS[kind]], "seconds": seconds}), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Be one of the processes that the sections start."""
    works: dict[str, Callable[..., None]] = {"two": _one_of_two, "fit": _fit}
    works[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
