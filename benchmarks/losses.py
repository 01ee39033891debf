"""Every loss, forward and backward: proxy losses beside bare cross-entropy and pytorch-metric-learning, pair losses beside SupCon. Prints Markdown rows.

    python benchmarks/losses.py                         everything, on the GPU too where there is one
    python benchmarks/losses.py --quick                 ArcFace and CosFace at B 512, C 10,000 and the pair losses, three rounds
    python benchmarks/losses.py --only ArcFace --batch 128 --classes 100
    python benchmarks/losses.py --out runs/losses.jsonl keeps every row; what is there is printed and not run again

D = 512. Limits: cross_entropy(linear(z)), and cross_entropy(scale * linear(unit z, unit W)). A row's losses take turns, round after round, and the least
time of each counts, so that a busy machine hurts all alike. Losses are found by themselves; pytorch-metric-learning is compared with where it is installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import json
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

import toolkit.losses

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
}
LARGEST = {"SoftTriple": 10_000, "HUG": 10_000, "BroadFace": 10_000}  # classes: K centres each; C^2 distances; a queue of 32,768 rows


def find() -> list[Any]:
    """Every loss class of toolkit.losses."""
    modules = [importlib.import_module(f"toolkit.losses.{one.name}") for one in pkgutil.iter_modules(toolkit.losses.__path__)]
    found = [cls for module in modules for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return [cls for cls in found if issubclass(cls, nn.Module) and hasattr(cls, "PROXY")]


class Bare(nn.Module):
    """Cross-entropy of a linear classifier, on unit rows or not: the limit."""

    def __init__(self, num_classes: int, unit: bool):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, DIM) / DIM**0.5)
        self.unit = unit

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(64.0 * linear(normalize(z), normalize(self.proxies)) if self.unit else linear(z, self.proxies), y)


def peer(name: str, num_classes: int) -> nn.Module | None:
    """pytorch-metric-learning's loss of that kind."""
    try:
        from pytorch_metric_learning import losses
    except ImportError:
        return None
    made: nn.Module | None = getattr(losses, PEERS[name])(num_classes=num_classes, embedding_size=DIM) if name in PEERS else None
    return made


CLOCK = time.perf_counter


def least(losses: dict[str, Callable[..., Tensor]], z: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    """Least milliseconds of a forward and backward pass of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in losses}
    for turn in range(rounds + 1):
        for name, loss in losses.items():
            z.grad = None
            for parameter in loss.parameters() if isinstance(loss, nn.Module) else []:
                parameter.grad = None
            _wait(z)
            started = CLOCK()
            loss(z, y).backward()
            _wait(z)
            if turn:  # the first is warming up
                times[name].append(1000 * (CLOCK() - started))
    return {name: min(taken) for name, taken in times.items()}


def _wait(z: Tensor) -> None:
    if z.is_cuda:
        torch.cuda.synchronize()


def classification_row(cls: Any, size: int, classes: int, device: str, rounds: int) -> list[str]:
    """loss | device | B | C | ms | x bare linear | x bare normalised | x pytorch-metric-learning"""
    torch.manual_seed(0)
    y = torch.randint(classes, (size,), device=device)
    z = torch.randn(size, DIM, device=device).requires_grad_()
    losses: dict[str, Any] = {"ours": cls(DIM, classes), "linear": Bare(classes, False), "unit": Bare(classes, True)}
    theirs = peer(cls.__name__, classes)
    losses |= {"peer": theirs} if theirs is not None else {}
    took = least({name: loss.to(device) for name, loss in losses.items()}, z, y, rounds)
    ratios = [f"{took['ours'] / took[other]:.2f}" if other in took else "" for other in ("linear", "unit", "peer")]
    return [cls.__name__, device, str(size), f"{classes:,}", f"{took['ours']:.1f}", *ratios]


def pair_row(cls: Any, reference: Any, size: int, device: str, rounds: int) -> list[str]:
    """loss | device | B | ms | x SupCon; size / 4 classes of 4"""
    torch.manual_seed(0)
    y = torch.arange(size, device=device) % (size // 4)
    z = torch.randn(size, DIM, device=device).requires_grad_()
    took = least({"ours": cls(DIM, size // 4).to(device), "reference": reference(DIM, size // 4).to(device)}, z, y, rounds)
    return [cls.__name__, device, str(size), f"{took['ours']:.1f}", f"{took['ours'] / took['reference']:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ArcFace, CosFace and the pair losses at one size, three rounds")
    parser.add_argument("--only", default="", help="loss names, separated by commas")
    parser.add_argument("--batch", default="128,512")
    parser.add_argument("--classes", default="100,10000,100000")
    parser.add_argument("--devices", default="cpu,cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of wall time: for a machine with other work, with --threads 1")
    parser.add_argument("--no-pairs", action="store_true", help="proxy losses only")
    parser.add_argument("--out", type=Path, help="JSON lines file of the rows")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    global CLOCK
    CLOCK = time.process_time if given.cpu_time else time.perf_counter
    found = find()
    known = {cls.__name__: cls for cls in found}
    only = (
        given.only.split(",") if given.only else ["ArcFace", "CosFace", *(name for name, cls in known.items() if not cls.PROXY)] if given.quick else list(known)
    )
    unknown = sorted(set(only) - set(known))
    if unknown:
        parser.error(f"no loss {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    batches = [512] if given.quick else [int(size) for size in given.batch.split(",")]
    counts = [10_000] if given.quick else [int(count) for count in given.classes.split(",")]
    rounds = 3 if given.quick else given.rounds
    done = [json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()] if given.out and given.out.exists() else []
    kept = {tuple(one["key"]): one["row"] for one in done}

    def show(key: tuple[str, ...], make: Callable[[], list[str]]) -> None:
        row = kept.get(key)
        if row is None:
            try:
                row = make()
            except Exception as problem:  # one loss that fails must not cost the others their rows
                row = [*key, f"failed: {type(problem).__name__}: {str(problem).splitlines()[0][:100]}"]
            gc.collect()
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "row": row}) + "\n")
        print("| " + " | ".join(row) + " |", flush=True)

    print("| loss | device | B | C | ms | x linear + CE | x normalised linear + CE | x pytorch-metric-learning |\n|---|---|---|---|---|---|---|---|")
    for device in given.devices.split(","):
        for count in counts:
            for size in batches:
                for name in only:
                    if known[name].PROXY and count <= LARGEST.get(name, count):
                        show((name, device, str(size), f"{count:,}"), lambda n=name, s=size, c=count, d=device: classification_row(known[n], s, c, d, rounds))  # type: ignore[misc]
    pairs = [name for name in only if not known[name].PROXY]
    if given.no_pairs or not pairs or "SupCon" not in known:
        return
    print("\n| pair loss | device | B | ms | x SupCon |\n|---|---|---|---|---|")
    for device in given.devices.split(","):
        for name in pairs:
            show((name, device, "512"), lambda n=name, d=device: pair_row(known[n], known["SupCon"], 512, d, rounds))  # type: ignore[misc]


if __name__ == "__main__":
    main()
