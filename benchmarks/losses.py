"""Every loss, forward and backward: proxy losses beside bare cross-entropy and
pytorch-metric-learning, pair losses beside SupCon. Prints Markdown rows.

    python benchmarks/losses.py
        the page's selection (docs/performance.md): about eight minutes of one core
    python benchmarks/losses.py --all
        every proxy loss at 100,000 classes too: more than an hour
    python benchmarks/losses.py --only ArcFace --batch 128 --classes 100
    python benchmarks/losses.py --out runs/losses.jsonl
        keeps every row; what is there is printed and not run again

D = 512. Limits: cross_entropy(linear(z)), and cross_entropy(scale * linear(unit z, unit W)). A
row's losses take turns, round after round, and the median time of each counts, so that a busy
machine hurts all alike: processor time on a CPU, wall time on a GPU. Losses are found by
themselves; those of pytorch-metric-learning are compared with where it is installed. Columns of a
device that is not there say "not measured".
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import json
import pkgutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

import toolkit.losses
from toolkit.losses.contract import has_proxies

DIM = 512
PEERS = {
    "NormFace": "NormalizedSoftmaxLoss",
    "ArcFace": "ArcFaceLoss",
    "CosFace": "CosFaceLoss",
    "SubCenterArcFace": "SubCenterArcFaceLoss",
    "LSoftmax": "LargeMarginSoftmaxLoss",
    "SphereFace": "SphereFaceLoss",
    "ProxyNCAPlusPlus": "ProxyNCALoss",
    "ProxyAnchor": "ProxyAnchorLoss",
    "SoftTriple": "SoftTripleLoss",
    "Contrastive": "ContrastiveLoss",
    "Triplet": "TripletMarginLoss",
    "MarginLoss": "MarginLoss",
    "Angular": "AngularLoss",
    "TupletMargin": "TupletMarginLoss",
    "NPair": "NPairsLoss",
    "NTXent": "NTXentLoss",
    "SupCon": "SupConLoss",
    "LiftedStructure": "LiftedStructureLoss",
    "MultiSimilarity": "MultiSimilarityLoss",
    "CirclePair": "CircleLoss",
    "RankedList": "RankedListLoss",
    "FastAP": "FastAPLoss",
    "SmoothAP": "SmoothAPLoss",
}
AT_MOST_128 = {
    "NTXent",
    "LiftedStructure",
    "TupletMargin",
    "SmoothAP",
}  # pytorch-metric-learning's take tens of seconds or gigabytes at 512
PRINCIPAL = ("ArcFace", "CosFace", "SphereFace2")  # also at 100,000 classes without --all
LARGEST = {
    "SoftTriple": 10_000,
    "HUG": 10_000,
    "BroadFace": 10_000,
}  # classes: K centres each; C^2 distances; a queue of 32,768 rows


def find() -> list[Any]:
    """Every loss class of toolkit.losses."""
    modules = [
        importlib.import_module(f"toolkit.losses.{one.name}")
        for one in pkgutil.iter_modules(toolkit.losses.__path__)
    ]
    found = [
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__
    ]
    return [cls for cls in found if issubclass(cls, nn.Module)]


class Bare(nn.Module):
    """Cross-entropy of a linear classifier, on unit rows or not: the limit."""

    def __init__(self, num_classes: int, unit: bool):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, DIM) / DIM**0.5)
        self.unit = unit

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(
            64.0 * linear(normalize(z), normalize(self.proxies))
            if self.unit
            else linear(z, self.proxies),
            y,
        )


def peer(cls: Any, num_classes: int, size: int) -> nn.Module | None:
    """pytorch-metric-learning's loss of that kind, None where there is none or its cost at that
    batch size forbids it.
    """
    try:
        from pytorch_metric_learning import losses
    except ImportError:
        return None
    name = cls.__name__
    if (
        name not in PEERS
        or not hasattr(losses, PEERS[name])
        or (name in AT_MOST_128 and size > 128)
    ):
        return None
    given = {"num_classes": num_classes, "embedding_size": DIM} if has_proxies(cls) else {}
    extra = (
        {"margin": 0.4, "Tn": 10, "Tp": 0} if name == "RankedList" else {}
    )  # which it has no defaults for
    made: nn.Module = getattr(losses, PEERS[name])(**given, **extra)
    return made


Row = list[str]


def medians(
    losses: dict[str, nn.Module], z: Tensor, y: Tensor, rounds: int, seconds: float
) -> dict[str, float]:
    """Median milliseconds of a forward and backward pass of each, in turns; fewer rounds, but one
    at least, once the seconds are over.
    """
    clock = time.perf_counter if z.is_cuda else time.process_time
    times: dict[str, list[float]] = {name: [] for name in losses}
    until = clock() + seconds
    for turn in range(rounds + 1):
        for name, loss in losses.items():
            z.grad = None
            for parameter in loss.parameters():
                parameter.grad = None
            _wait(z)
            started = clock()
            loss(z, y).backward()
            _wait(z)
            if turn:  # the first is warming up
                times[name].append(1000 * (clock() - started))
        if turn and clock() > until:
            break
    return {name: statistics.median(taken) for name, taken in times.items()}


def _wait(z: Tensor) -> None:
    if z.is_cuda:
        torch.cuda.synchronize()


def cells(
    losses: dict[str, nn.Module | None],
    z: Tensor,
    y: Tensor,
    devices: list[str],
    rounds: int,
    seconds: float,
) -> Row:
    """For the CPU, then for the GPU: ms of ours, and its ratio to each of the others."""
    made: Row = []
    for device in ("cpu", "cuda"):
        if device not in devices:
            made += ["not measured"] * len(losses)
            continue
        here = {name: loss.to(device) for name, loss in losses.items() if loss is not None}
        took = medians(here, z.to(device).requires_grad_(), y.to(device), rounds, seconds)
        made += [
            f"{took['ours']:.1f}",
            *(
                f"{took['ours'] / took[name]:.2f}" if name in took else ""
                for name in losses
                if name != "ours"
            ),
        ]
    return made


def classification_row(
    cls: Any, size: int, classes: int, devices: list[str], rounds: int, seconds: float
) -> Row:
    """loss | B | C | ms, x bare linear, x bare normalised, x pytorch-metric-learning; of the CPU
    and of the GPU
    """
    torch.manual_seed(0)
    y, z = torch.randint(classes, (size,)), torch.randn(size, DIM)
    losses = {
        "ours": cls(DIM, classes),
        "linear": Bare(classes, False),
        "unit": Bare(classes, True),
        "peer": peer(cls, classes, size),
    }
    return [cls.__name__, str(size), f"{classes:,}", *cells(losses, z, y, devices, rounds, seconds)]


def pair_row(
    cls: Any,
    reference: Any,
    size: int,
    per_class: int,
    devices: list[str],
    rounds: int,
    seconds: float,
) -> Row:
    """loss | B | rows per class | ms, x SupCon, x pytorch-metric-learning; of the CPU and of the
    GPU
    """
    torch.manual_seed(0)
    y, z = torch.arange(size) % (size // per_class), torch.randn(size, DIM)
    losses = {
        "ours": cls(DIM, size // per_class),
        "reference": reference(DIM),
        "peer": peer(cls, size // per_class, size),
    }
    return [cls.__name__, str(size), str(per_class), *cells(losses, z, y, devices, rounds, seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="every proxy loss at every number of classes"
    )
    parser.add_argument("--only", default="", help="loss names, separated by commas")
    parser.add_argument("--batch", default="128,512")
    parser.add_argument("--classes", default="100,10000,100000")
    parser.add_argument("--devices", default="cpu,cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="after which a row takes no further round"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON lines file of the rows")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    known = {cls.__name__: cls for cls in find()}
    only = given.only.split(",") if given.only else list(known)
    unknown = sorted(set(only) - set(known))
    if unknown:
        parser.error(f"no loss {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    batches, counts = (
        [int(size) for size in given.batch.split(",")],
        [int(count) for count in given.classes.split(",")],
    )
    how = (given.devices.split(","), given.rounds, given.seconds)
    done = (
        [json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()]
        if given.out and given.out.exists()
        else []
    )
    kept = {tuple(one["key"]): one["row"] for one in done}

    def show(key: tuple[str, ...], make: Callable[..., Row], *args: Any) -> None:
        row = kept.get(key)
        if row is None:
            try:
                row = make(*args, *how)
            except Exception as problem:  # one loss that fails must not cost the others their rows
                row = [
                    *key,
                    f"failed: {type(problem).__name__}: {str(problem).splitlines()[0][:100]}",
                ]
            gc.collect()
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "row": row}) + "\n")
        print("| " + " | ".join(row) + " |", flush=True)

    compared = "x linear + CE | x normalised linear + CE | x PML |"
    columns = "".join(f" {device} ms | {compared}" for device in ("CPU", "GPU"))
    print(f"| loss | B | C |{columns}\n|{'---|' * 11}")
    for count in counts:
        for size in batches:
            for name in only:
                listed = given.all or given.only or count <= 10_000 or name in PRINCIPAL
                if has_proxies(known[name]) and listed and count <= LARGEST.get(name, count):
                    show(
                        (name, str(size), f"{count:,}"),
                        classification_row,
                        known[name],
                        size,
                        count,
                    )
    pairs = [name for name in only if not has_proxies(known[name])]
    if not pairs or "SupCon" not in known:
        return
    print(
        "\n| pair loss | B | rows per class "
        f"|{''.join(f' {device} ms | x SupCon | x PML |' for device in ('CPU', 'GPU'))}\n|"
        f"{'---|' * 9}"
    )
    for size in batches:
        for per_class in (4, 32):
            for name in pairs:
                show(
                    (name, str(size), str(per_class)),
                    pair_row,
                    known[name],
                    known["SupCon"],
                    size,
                    per_class,
                )


if __name__ == "__main__":
    main()
