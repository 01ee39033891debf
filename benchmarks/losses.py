"""Measures every loss, forward and backward.

    python benchmarks/losses.py
        the rows of docs/reference/performance.md
    python benchmarks/losses.py --only ArcFace --batch 512 --classes 100

Measures: milliseconds of a forward and backward pass, D = 512. The losses of a row take turns,
    round after round, and the median of each counts, so that a busy machine hurts all alike.
    Losses are found by themselves. 10,000 classes, if no other number is asked for.
Peer: the loss of the same kind in pytorch-metric-learning (PML), where it has one; SupCon, one of
    ours, for the pair losses.
Limit: cross_entropy(scale * linear(unit z, unit W)); for four losses also the shortest program in
    torch that gives the same value, without a bank, blocks, checks and close rows.
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`; without it the cells of "x PML" stay empty.
    No data.
Takes: five minutes of one core.
Gives: the table "Losses" of docs/reference/performance.md.
"""

import gc
import importlib.util
import inspect
import pkgutil
import statistics
import time
from typing import Any

import torch
from performance import is_installed, parser_of, row, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize, softplus

import likeness.toolkit.losses
from likeness.losses import SupCon
from likeness.toolkit.losses.contract import has_proxies

DIM = 512
# Ours, whose peers have the same name and "Loss" behind it; and the others.
SAME_NAMES = (
    *("ArcFace", "CosFace", "SubCenterArcFace", "SphereFace", "ProxyAnchor", "SoftTriple"),
    *("Contrastive", "Angular", "TupletMargin", "NTXent", "SupCon", "LiftedStructure"),
    *("MultiSimilarity", "RankedList", "FastAP", "SmoothAP"),
)
PEERS = {name: f"{name}Loss" for name in SAME_NAMES}
PEERS |= {"NormFace": "NormalizedSoftmaxLoss", "LSoftmax": "LargeMarginSoftmaxLoss"}
PEERS |= {"ProxyNCAPlusPlus": "ProxyNCALoss", "Triplet": "TripletMarginLoss"}
PEERS |= {"MarginLoss": "MarginLoss", "NPair": "NPairsLoss", "CirclePair": "CircleLoss"}
PER_CLASS = 4  # rows of a class in a batch, for the pair losses
# RankedListLoss has no defaults for these.
EXTRA = {"RankedList": {"margin": 0.4, "Tn": 10, "Tp": 0}}
ROUNDS, SECONDS = 7, 2.0  # of a row: after the seconds it takes no further round


def loss_classes() -> dict[str, Any]:
    """Every loss of likeness.toolkit.losses by its name."""
    found = {}
    for entry in pkgutil.iter_modules(likeness.toolkit.losses.__path__):
        module = importlib.import_module(f"likeness.toolkit.losses.{entry.name}")
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and issubclass(cls, nn.Module):
                found[name] = cls
    return found


class Bare(nn.Module):
    """Cross-entropy of a linear classifier on unit rows: the limit."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, DIM) / DIM**0.5)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(64.0 * linear(normalize(z), normalize(self.proxies)), y)


def pairs_of(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows, and the masks of positive and negative pairs."""
    same = y[:, None] == y
    return normalize(z), same & ~torch.eye(len(y), dtype=torch.bool), ~same


def masked_lse(x: Tensor, mask: Tensor) -> Tensor:
    """The logarithm of the sum of exp over the cells of a mask, for each row."""
    return x.masked_fill(~mask, -torch.inf).logsumexp(1)


class ShortMultiSimilarity(nn.Module):
    """MultiSimilarity with its defaults."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x, same, other = pairs_of(z, y)
        s = x @ x.T
        least = s.masked_fill(~same, torch.inf).amin(1, keepdim=True)
        most = s.masked_fill(~other, -torch.inf).amax(1, keepdim=True)
        pull = softplus(masked_lse(-2 * (s - 0.5), same & (s - 0.1 < most))) / 2
        push = softplus(masked_lse(50 * (s - 0.5), other & (s + 0.1 > least))) / 50
        return (pull + push).mean()


class ShortLiftedStructure(nn.Module):
    """LiftedStructure with its defaults."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x, same, other = pairs_of(z, y)
        d = torch.cdist(x, x)
        push = masked_lse(1 - d, other)
        a, p = same.nonzero(as_tuple=True)
        return (d[a, p] + torch.logaddexp(push[a], push[p])).relu().square().mean() / 2


class ShortTriplet(nn.Module):
    """Triplet with its defaults."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        x, same, other = pairs_of(z, y)
        d = torch.cdist(x, x)
        a, p = same.nonzero(as_tuple=True)
        terms = (d[a, p][:, None] - d[a] + 0.2).relu().masked_fill(~other[a], 0.0)
        return terms.sum() / (terms > 0).sum()


class ShortSphereFace2(Bare):
    """SphereFace2 with its defaults, but for where its bias starts."""

    def __init__(self, num_classes: int):
        super().__init__(num_classes)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        cosine, own = linear(normalize(z), normalize(self.proxies)), y[:, None]
        bent = 40 * (2 * ((cosine + 1) / 2).clamp(min=0).pow(3) - 1) + self.bias
        others = softplus(bent + 16).scatter(1, own, 0.0).sum(1)
        return (0.7 * softplus(16 - bent.gather(1, own)[:, 0]) + 0.3 * others).mean()


SHORTEST: dict[str, Any] = {
    "MultiSimilarity": ShortMultiSimilarity,
    "LiftedStructure": ShortLiftedStructure,
    "Triplet": ShortTriplet,
    "SphereFace2": ShortSphereFace2,
}


def peer(cls: Any, num_classes: int) -> nn.Module | None:
    """The loss of that kind in pytorch-metric-learning; None where it has none or is missing."""
    name = cls.__name__
    if name not in PEERS or importlib.util.find_spec("pytorch_metric_learning") is None:
        return None
    from pytorch_metric_learning import losses

    arguments = {"num_classes": num_classes, "embedding_size": DIM} if has_proxies(cls) else {}
    loss: nn.Module = getattr(losses, PEERS[name])(**arguments, **EXTRA.get(name, {}))
    return loss


def medians(losses: dict[str, nn.Module], z: Tensor, y: Tensor) -> dict[str, float]:
    """Median milliseconds of a forward and backward pass of each loss; they take turns.

    Once the seconds are over there are no more rounds, but there is at least one. The first round
    warms up and is not timed.
    """
    clock = time.process_time
    times: dict[str, list[float]] = {name: [] for name in losses}
    until = clock() + SECONDS
    for turn in range(ROUNDS + 1):
        for name, loss in losses.items():
            z.grad = None
            loss.zero_grad(set_to_none=True)
            started = clock()
            loss(z, y).backward()
            if turn:
                times[name].append(1000 * (clock() - started))
        if turn and clock() > until:
            break
    return {name: statistics.median(milliseconds) for name, milliseconds in times.items()}


def print_row(cls: Any, size: int, num_classes: int) -> None:
    """Print the row of a loss: its milliseconds, and its ratios to the reference and the peer."""
    torch.manual_seed(0)
    reference: nn.Module = SupCon(DIM)
    if has_proxies(cls):
        y, z = torch.randint(num_classes, (size,)), torch.randn(size, DIM)
        reference = Bare(num_classes)
    else:
        num_classes = size // PER_CLASS
        y, z = torch.arange(size) % num_classes, torch.randn(size, DIM)
    made = {"ours": cls(DIM, num_classes), "reference": reference, "peer": peer(cls, num_classes)}
    if short := SHORTEST.get(cls.__name__):
        made["shortest"] = short(num_classes) if has_proxies(cls) else short()
    losses = {name: loss for name, loss in made.items() if loss is not None}
    took = medians(losses, z.requires_grad_(), y)
    others = [took.get(name) for name in ("reference", "peer", "shortest")]
    ratios = ["" if other is None else f"{took['ours'] / other:.2f}" for other in others]
    row(cls.__name__, f"{took['ours']:.1f}", *ratios)
    gc.collect()


def main() -> None:
    """Print both tables."""
    only = ("only", "", "names of losses, separated by commas")
    arguments = parser_of(__doc__, only, ("batch", 128), ("classes", 10_000)).parse_args()
    torch.set_num_threads(1)
    is_installed("pytorch_metric_learning", "pytorch-metric-learning")
    known = loss_classes()
    chosen = [known[name] for name in arguments.only.split(",") if name] or list(known.values())
    table("loss", "ms", "x linear + CE", "x PML", "x shortest torch")
    for cls in filter(has_proxies, chosen):
        print_row(cls, arguments.batch, arguments.classes)
    print()
    table("pair loss", "ms", "x SupCon", "x PML", "x shortest torch")
    for cls in chosen:
        if not has_proxies(cls):
            print_row(cls, arguments.batch, 0)


if __name__ == "__main__":
    main()
