"""Tuning: what of a network is trained and at which rate, as one group of a recipe.

Parts are frozen or get rates by name, and adapters are added.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from likeness.eval.errors import LikenessError
from likeness.toolkit.models import adapter
from likeness.toolkit.models.embedder import TorchEmbedder

_BACKBONE = "backbone."


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters on some layers: W + alpha / rank * B A, where only A and B train.

    Source: Hu et al. 2021, arXiv 2106.09685. The layers are those of the package peft.

    Attributes:
        rank: The rows of A and columns of B in W + alpha / rank * B A, where only A and B train; 0
            adds no adapter.
        alpha: The numerator of this factor.
        targets: Names of linear layers and convolutions in the backbone, whole or their ends, such
            as "attn.qkv" or "fc1". Empty adapts the projections of queries and values.
        dropout: The share of an adapter's inputs dropped in training.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """Which parts of a network train, at which rates, and which average of the weights is saved.

    A part is named by the beginning of its parameters' names, up to a dot: "frontend",
    "backbone.network", "backbone.network.encoder.layer.0".

    Attributes:
        freeze: Parts that get no gradient and stay in evaluation mode, so batch norm keeps its
            statistics and dropout is off.
        freeze_until: The step at which these parts begin to train; 0 is never.
        rates: The rate of a part as a multiple of optim.lr. If several names match a parameter, the
            longest counts.
        lora: Adapters. With them only the adapters train, and parts that are new to the network.
        average_last: The model is the mean of the last N checkpoints (schedule.save_every); 0 takes
            the last weights.
    """

    freeze: tuple[str, ...] = ()
    freeze_until: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    lora: LoRA = field(default_factory=LoRA)
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
    fresh = fresh_parts(embedder)
    before = {
        name: parameter.requires_grad
        for name, parameter in embedder.named_parameters()
        if is_in(name, fresh)
    }
    adapter.add(embedder.backbone, **vars(tuning.lora))
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
    # peft holds the backbone still but for its adapters
    return [
        parameter
        for name, parameter in named.items()
        if parameter.requires_grad and not name.startswith(_BACKBONE)
    ]


def rate_multiples(embedder: TorchEmbedder, tuning: Tuning) -> dict[str, float]:
    """Return the rate of every trained parameter of a network, as a multiple of optim.lr.

    Args:
        embedder: The network.
        tuning: Its `rates`.

    Raises:
        LikenessError: A name of `rates` fits nothing that is trained.
    """
    trained = [name for name, value in embedder.named_parameters() if value.requires_grad]
    parts = sorted(tuning.rates, key=len)
    _refuse_unknown("tuning.rates", parts, trained)
    multiples = dict.fromkeys(trained, 1.0)
    for part in parts:  # the longest come last
        for name in trained:
            if is_under(name, part):
                multiples[name] = float(tuning.rates[part])
    return multiples


def recompute_for_gradient(network: nn.Module, *inputs: Any) -> Any:
    """Call a network, and call it again for the gradient."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _still(network)

    return checkpoint(network, *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _still(network: nn.Module) -> Iterator[None]:
    """While activations are computed a second time, running statistics must not move once more."""
    norms = [
        (norm, norm.momentum, norm.num_batches_tracked)
        for norm in network.modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm)
        and norm.num_batches_tracked is not None
    ]
    for norm, _, count in norms:  # a synced one needs a count, so it gets a copy
        norm.momentum, norm.num_batches_tracked = 0.0, count.clone()
    try:
        yield
    finally:
        for norm, momentum, count in norms:
            norm.momentum, norm.num_batches_tracked = momentum, count
