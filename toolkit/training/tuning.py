"""Tuning: what of a network is trained and at which rate, as one group of a recipe.

Parts are frozen or get rates by name, layers get rates by their depth, and adapters are added.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say
from likeness.toolkit.models import adapter
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.parallel import distributed

if TYPE_CHECKING:
    from likeness.toolkit.training.run import Run

_BACKBONE = "backbone."
# blocks.3, layers.3 and layer.3 are layers, and so is layer3.
_NUMBERED = re.compile(r"(?:^|\.)(?:(?:blocks|layers|layer)\.\d+|layer\d+)(?=\.|$)")


@dataclass(frozen=True)
class LoRA:
    """Adapters of low rank on some layers: W + alpha / rank * B A, of which A and B are trained.

    Source: Hu et al. 2021, arXiv 2106.09685. The layers are those of the package peft.

    Attributes:
        rank: The number of rows of A and of columns of B; 0 adds no adapter.
        alpha: The factor of the product B A, times the rank.
        targets: Names of layers in the backbone, whole or their ends, such as "attn.qkv" or "fc1".
            Linear layers and convolutions can be named. None named takes the projections of
            queries and values.
        dropout: The share of an adapter's inputs that is dropped in training.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """What of a network is trained, at which rates, and which average of its weights is kept.

    A part is named by the beginning of its parameters' names, up to a dot: "frontend",
    "backbone.network", "backbone.network.encoder.layer.0".

    Attributes:
        freeze: The parts that stand still: they take no gradient, and are in evaluation mode, so
            that batch norm keeps its statistics and dropout does nothing.
        freeze_until: The step from which on these parts are trained too; 0 is never.
        rates: The rate of a part as a multiple of optim.lr. Where several names fit a parameter,
            the longest counts.
        layer_decay: The rate of each layer of the backbone as a multiple of the next layer's. What
            comes after the last layer has the whole rate (likeness.toolkit.training.tuning.depths).
        lora: Adapters. With them the network stands still, but for parts that are new to it.
        ema: The decay of an exponential average of the weights, which is measured and saved as the
            model: average <- decay * average + (1 - decay) * weights after each step, where the
            decay is (1 + step) / (10 + step) while that is smaller. 0 keeps no average.
        average_last: The mean over the checkpoints of the last so many times that a run was saved
            (schedule.save_every) is measured and saved as the model. 0 takes no mean.
    """

    freeze: tuple[str, ...] = ()
    freeze_until: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    layer_decay: float = 1.0
    lora: LoRA = field(default_factory=LoRA)
    ema: float = 0.0
    average_last: int = 0


def is_under(name: str, part: str) -> bool:
    """Return whether a parameter or module is a part, or is in it.

    Example:
        >>> is_under("backbone.layer1.conv.weight", "backbone.layer1")
        True
        >>> is_under("backbone.layer10.weight", "backbone.layer1")
        False
    """
    part = part.rstrip(".")
    return name == part or name.startswith(f"{part}.")


def is_in(name: str, parts: Iterable[str]) -> bool:
    """Return whether a parameter or module lies in one of several parts."""
    return any(is_under(name, part) for part in parts)


def fresh_parts(embedder: TorchEmbedder) -> tuple[str, ...]:
    """Return the parts of an embedder that no pretrained model has, as its backbone states them.

    A backbone states them by `fresh`, the beginnings of the names of its tensors.
    """
    stated = getattr(embedder.backbone, "fresh", ())
    return tuple(f"{_BACKBONE}{part.rstrip('.')}" for part in stated)


def _refuse_unknown(setting: str, parts: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first name that is no part of a network, and name the closest parts."""
    words = [name.split(".") for name in known]
    names = {".".join(some[:end]) for some in words for end in range(1, len(some) + 1)}
    for part in parts:
        if part.rstrip(".") not in names:
            close = difflib.get_close_matches(part, names, n=3) or sorted(names, key=len)[:8]
            raise LikenessError(
                f"{setting}: {part!r} fits nothing in the network; choose among parts such as "
                f"{', '.join(close)}"
            )


def prepare(embedder: TorchEmbedder, tuning: Tuning) -> list[nn.Parameter]:
    """Add the adapters of a recipe to a network, and hold its frozen parts still.

    The parameters themselves are left as they are: an optimiser may want them at a later step.

    Args:
        embedder: The network, which is changed in place.
        tuning: The settings.

    Returns:
        The parameters that take no gradient as long as these parts stand still.

    Raises:
        LikenessError: A name of a part or of a layer fits nothing. Adapters are wanted, and peft is
            missing.
    """
    if tuning.lora.rank:
        return _adapt(embedder, tuning)
    modules = [name for name, _ in embedder.named_modules()]
    known = [*modules, *(name for name, _ in embedder.named_parameters())]
    _refuse_unknown("tuning.freeze", tuning.freeze, known)
    stripped = [part.rstrip(".") for part in tuning.freeze]
    embedder.still = tuple(part for part in stripped if part in modules)
    embedder.train(embedder.training)
    return [
        parameter
        for name, parameter in embedder.named_parameters()
        if parameter.requires_grad and is_in(name, tuning.freeze)
    ]


def _adapt(embedder: TorchEmbedder, tuning: Tuning) -> list[nn.Parameter]:
    """Add adapters; return the parameters of all that is neither one of them nor new."""
    lora, fresh = tuning.lora, fresh_parts(embedder)
    before = {
        name: parameter.requires_grad
        for name, parameter in embedder.named_parameters()
        if is_in(name, fresh)
    }
    layers = adapter.add(
        embedder.backbone,
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        dropout=lora.dropout,
    )
    embedder.to(next(embedder.backbone.parameters()).device)
    named = dict(embedder.named_parameters())
    for name, trained in before.items():  # peft lets everything stand still but its adapters
        named[name].requires_grad_(trained)
    embedder.still = tuple(
        name
        for name, module in embedder.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_in(name, fresh)
    )
    embedder.train(embedder.training)
    if distributed.is_main():
        say(
            f"adapters of rank {lora.rank} on {len(layers)} layers, the first {layers[0]}",
            error=True,
        )
    added = {
        id(parameter)
        for _, layer in adapter.layers_of(embedder)
        for name, parameter in layer.named_parameters()
        if not name.startswith("base_layer.")
    }
    return [
        parameter
        for name, parameter in named.items()
        if parameter.requires_grad and id(parameter) not in added and not is_in(name, fresh)
    ]


def rate_multiples(embedder: TorchEmbedder, tuning: Tuning) -> dict[str, float]:
    """Return the rate of every trained parameter of a network, as a multiple of optim.lr.

    Args:
        embedder: The network.
        tuning: `rates` and `layer_decay` of it, which are multiplied.

    Raises:
        LikenessError: A name of `rates` fits nothing that is trained, or `layer_decay` has no
            layers to go by.
    """
    named = dict(embedder.named_parameters())
    trained = [name for name, parameter in named.items() if parameter.requires_grad]
    parts = sorted(tuning.rates, key=len)
    _refuse_unknown("tuning.rates", parts, trained)
    multiples = dict.fromkeys(trained, 1.0)
    for part in parts:  # the longest come last
        for name in trained:
            if is_under(name, part):
                multiples[name] = float(tuning.rates[part])
    if tuning.layer_decay != 1:
        # Whether they are trained or not, all layers count.
        names = [name for name in named if name.startswith(_BACKBONE)]
        by_name, num_layers = depths(names), len({layer_of(name) for name in names} - {""})
        if not num_layers:
            raise LikenessError(
                f"tuning.layer_decay={tuning.layer_decay} needs layers that are called blocks.N, "
                f"layers.N, layer.N or layerN, and a {type(embedder.backbone).__name__} has none; "
                "set it to 1, and tuning.rates by name"
            )
        for name in trained:
            depth = by_name.get(name, 0)  # a front-end comes before the first layer
            multiples[name] *= tuning.layer_decay ** (num_layers + 1 - depth)
    return multiples


def overview(run: Run, until: int) -> str:
    """Return how many parameters are trained, of how many, or "" where all are.

    Args:
        run: The run.
        until: Tuning.freeze_until.
    """
    every = list(run.embedder.parameters())
    trained = sum(parameter.numel() for parameter in every if parameter.requires_grad)
    later = sum(parameter.numel() for parameter in run.frozen)
    of_loss = sum(value.numel() for value in run.loss.parameters() if value.requires_grad)
    text = f"{trained:,} of them trained, and {of_loss:,} of the loss"
    return f"{text}, {later:,} more from step {until} on" if later else text


def layer_of(name: str) -> str:
    """Return the outermost numbered layer that a parameter or module is in, or "".

    Example:
        >>> layer_of("network.encoder.layer.3.attention.query.weight")
        'network.encoder.layer.3'
        >>> layer_of("layer2.0.conv1.weight"), layer_of("norm.weight")
        ('layer2', '')
    """
    match = _NUMBERED.search(name)
    return name[: match.end()] if match else ""


def depths(names: list[str]) -> dict[str, int]:
    """Number parameters by the depth of their layer.

    Layers are those of `layer_of`, numbered 1, 2, ... in the order in which the network defines
    them. What is defined before the first layer has depth 0, what is defined between two layers has
    the depth of the one before, and what comes after the last has one more than the last.

    Args:
        names: The names of a network's parameters, in the network's order.

    Returns:
        Name -> depth. The largest depth is that of what comes after the last layer, if anything
        does.

    Example:
        >>> depths(["patch.weight", "blocks.0.fc.weight", "blocks.1.fc.weight", "head.weight"])
        {'patch.weight': 0, 'blocks.0.fc.weight': 1, 'blocks.1.fc.weight': 2, 'head.weight': 3}
    """
    layers = [layer_of(name) for name in names]
    order = {layer: place for place, layer in enumerate(dict.fromkeys(filter(None, layers)), 1)}
    after = max((i for i, layer in enumerate(layers) if layer), default=-1)
    by_name: dict[str, int] = {}
    depth = 0
    for i, (name, layer) in enumerate(zip(names, layers, strict=True)):
        depth = order[layer] if layer else depth
        by_name[name] = len(order) + 1 if i > after else depth
    return by_name


def recomputed(network: nn.Module, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call a function that applies a network, and call it again for the gradient."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _still(network)

    return checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextmanager
def _still(network: nn.Module) -> Iterator[None]:
    """While activations are computed a second time, running statistics must not move once more."""
    norms = [
        (norm, norm.momentum, norm.num_batches_tracked)
        for norm in network.modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.track_running_stats
    ]
    counts = [None if count is None else count.clone() for _, _, count in norms]
    for norm, _, _ in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for (norm, momentum, count), before in zip(norms, counts, strict=True):
            norm.momentum = momentum
            if count is not None and before is not None:
                count.copy_(before)
