"""Measures every loss, forward and backward.

    python benchmarks/losses.py
        the rows of docs/reference/performance.md
    python benchmarks/losses.py --all
        every proxy loss at 100,000 classes too
    python benchmarks/losses.py --only ArcFace --batch 512 --classes 100
    python benchmarks/losses.py --device cuda

Measures: milliseconds of a forward and backward pass, D = 512. The losses of a row take turns,
    round after round, and the median of each counts, so that a busy machine hurts all alike:
    processor time on a CPU, wall time on a GPU. Losses are found by themselves.
Peer: the loss of the same kind in pytorch-metric-learning (PML), where it has one; SupCon, one of
    ours, for the pair losses.
Limit: cross_entropy(scale * linear(unit z, unit W)).
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`; without it the cells of "x PML" stay empty.
    No data.
Takes: five minutes of one core, with --all half an hour.
Gives: the two tables of section losses of docs/reference/performance.md.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from performance import is_installed, parser_of, row, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

import toolkit.losses
from toolkit.losses.contract import has_proxies
from toolkit.losses.contrast import SupCon

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
# Those of pytorch-metric-learning take tens of seconds or gigabytes at a batch of 512.
AT_MOST_128 = {"NTXent", "LiftedStructure", "TupletMargin", "SmoothAP"}
PRINCIPAL = ("ArcFace", "CosFace", "SphereFace2")  # also at 100,000 classes without --all
# The most classes: K centres for each class, C^2 distances, and a queue of 32,768 rows.
LARGEST = {"SoftTriple": 10_000, "HUG": 10_000, "BroadFace": 10_000}
PER_CLASS = 4  # rows of a class in a batch, for the pair losses
# RankedListLoss has no defaults for these.
EXTRA = {"RankedList": {"margin": 0.4, "Tn": 10, "Tp": 0}}


class How(NamedTuple):
    """How a row is measured."""

    device: str  # "cpu" or "cuda"
    rounds: int
    seconds: float  # after which a row takes no further round


def loss_classes() -> dict[str, Any]:
    """Every loss of toolkit.losses by its name."""
    modules = [
        importlib.import_module(f"toolkit.losses.{module.name}")
        for module in pkgutil.iter_modules(toolkit.losses.__path__)
    ]
    return {
        cls.__name__: cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and issubclass(cls, nn.Module)
    }


class Bare(nn.Module):
    """Cross-entropy of a linear classifier on unit rows: the limit."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, DIM) / DIM**0.5)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(64.0 * linear(normalize(z), normalize(self.proxies)), y)


def peer(cls: Any, num_classes: int, size: int) -> nn.Module | None:
    """The loss of that kind in pytorch-metric-learning.

    Returns:
        None where it has none, where its cost at that batch size forbids it, and where the package
        is not installed.
    """
    try:
        from pytorch_metric_learning import losses
    except ImportError:
        return None
    name = cls.__name__
    if name not in PEERS or not hasattr(losses, PEERS[name]):
        return None
    if name in AT_MOST_128 and size > 128:
        return None
    arguments = {"num_classes": num_classes, "embedding_size": DIM} if has_proxies(cls) else {}
    loss: nn.Module = getattr(losses, PEERS[name])(**arguments, **EXTRA.get(name, {}))
    return loss


Row = list[str]


def medians(losses: dict[str, nn.Module], z: Tensor, y: Tensor, how: How) -> dict[str, float]:
    """Median milliseconds of a forward and backward pass of each loss; they take turns.

    Once the seconds are over there are no more rounds, but there is at least one. The first round
    warms up and is not timed.
    """
    clock = time.perf_counter if z.is_cuda else time.process_time
    times: dict[str, list[float]] = {name: [] for name in losses}
    until = clock() + how.seconds
    for turn in range(how.rounds + 1):
        for name, loss in losses.items():
            z.grad = None
            for parameter in loss.parameters():
                parameter.grad = None
            _wait(z)
            started = clock()
            loss(z, y).backward()
            _wait(z)
            if turn:
                times[name].append(1000 * (clock() - started))
        if turn and clock() > until:
            break
    return {name: statistics.median(milliseconds) for name, milliseconds in times.items()}


def _wait(z: Tensor) -> None:
    """Wait until the GPU is done, where the tensor is on one."""
    if z.is_cuda:
        torch.cuda.synchronize()


def cells(losses: dict[str, nn.Module | None], z: Tensor, y: Tensor, how: How) -> Row:
    """Milliseconds of ours, and its ratio to each of the others."""
    here = {name: loss.to(how.device) for name, loss in losses.items() if loss is not None}
    took = medians(here, z.to(how.device).requires_grad_(), y.to(how.device), how)
    others = [name for name in losses if name != "ours"]
    ratios = [f"{took['ours'] / took[name]:.2f}" if name in took else "" for name in others]
    return [f"{took['ours']:.1f}", *ratios]


def classification_row(cls: Any, size: int, num_classes: int, how: How) -> Row:
    """The cells of a proxy loss.

    Returns:
        loss | C | ms, x linear + CE, x PML
    """
    torch.manual_seed(0)
    y, z = torch.randint(num_classes, (size,)), torch.randn(size, DIM)
    losses = {
        "ours": cls(DIM, num_classes),
        "linear": Bare(num_classes),
        "peer": peer(cls, num_classes, size),
    }
    return [cls.__name__, f"{num_classes:,}", *cells(losses, z, y, how)]


def pair_row(cls: Any, size: int, how: How) -> Row:
    """The cells of a pair loss; the reference is SupCon.

    Returns:
        loss | ms, x SupCon, x PML
    """
    torch.manual_seed(0)
    y, z = torch.arange(size) % (size // PER_CLASS), torch.randn(size, DIM)
    losses = {
        "ours": cls(DIM, size // PER_CLASS),
        "reference": SupCon(DIM),
        "peer": peer(cls, size // PER_CLASS, size),
    }
    return [cls.__name__, *cells(losses, z, y, how)]


def show(key: list[str], measure: Callable[[], Row]) -> None:
    """Print a row. One loss that fails must not cost the others their rows."""
    try:
        row(*measure())
    except Exception as problem:
        message = (str(problem).splitlines() or [""])[0][:100]
        row(*key, f"failed: {type(problem).__name__}: {message}")
    gc.collect()


def classification_table(
    losses: dict[str, Any],
    size: int,
    counts: list[int],
    everything: bool,
    how: How,
) -> None:
    """Print the table of the losses with class vectors.

    Above 10,000 classes only the principal losses are measured, unless everything is.
    """
    table("loss", "C", "ms", "x linear + CE", "x PML")
    for count in counts:
        for name, cls in losses.items():
            chosen = everything or count <= 10_000 or name in PRINCIPAL
            if chosen and count <= LARGEST.get(name, count):
                measure = partial(classification_row, cls, size, count, how)
                show([name, f"{count:,}"], measure)


def pair_table(losses: dict[str, Any], size: int, how: How) -> None:
    """Print the table of the losses without class vectors."""
    print()
    table("pair loss", "ms", "x SupCon", "x PML")
    for name, cls in losses.items():
        show([name], partial(pair_row, cls, size, how))


def main() -> None:
    """Print both tables."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--all", action="store_true", help="every proxy loss at every number of classes"
    )
    parser.add_argument("--only", default="", help="names of losses, separated by commas")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--classes", default="100,10000,100000")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="after which a row takes no further round"
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    known = loss_classes()
    names = arguments.only.split(",") if arguments.only else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there is no loss {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    is_installed("pytorch_metric_learning", "pytorch-metric-learning")
    how = How(arguments.device, arguments.rounds, arguments.seconds)
    proxy_losses = {name: known[name] for name in names if has_proxies(known[name])}
    pair_losses = {name: known[name] for name in names if not has_proxies(known[name])}
    if proxy_losses:
        counts = [int(count) for count in arguments.classes.split(",")]
        everything = arguments.all or bool(arguments.only)
        classification_table(proxy_losses, arguments.batch, counts, everything, how)
    if pair_losses:
        pair_table(pair_losses, arguments.batch, how)


if __name__ == "__main__":
    main()
