"""What of a network is trained, and at which rate: its adapters, frozen parts, rates by name and by
depth.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from eval.errors import LikenessError
from toolkit.console import say
from toolkit.models import adapter
from toolkit.models.embedder import TorchEmbedder
from toolkit.parallel import distributed
from toolkit.training.fine_tuning import Tuning, is_under, refuse_unknown
from toolkit.training.layers import depths, layer_of

if TYPE_CHECKING:
    from toolkit.training.run import Run

_BACKBONE = "backbone."


def fresh_parts(embedder: TorchEmbedder) -> tuple[str, ...]:
    """Return the parts of an embedder that no pretrained model has, as its backbone states them.

    A backbone states them by `fresh`, the beginnings of the names of its tensors.
    """
    stated = getattr(embedder.backbone, "fresh", ())
    return tuple(f"{_BACKBONE}{part.rstrip('.')}" for part in stated)


def is_in(name: str, parts: Iterable[str]) -> bool:
    """Return whether a parameter or module lies in one of several parts."""
    return any(is_under(name, part) for part in parts)


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
    known = [name for name, _ in embedder.named_modules()]
    modules = {*known}
    known += [name for name, _ in embedder.named_parameters()]
    refuse_unknown("tuning.freeze", tuning.freeze, known)
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
    added = {id(parameter) for _, layer in adapter.layers_of(embedder) for parameter in _own(layer)}
    return [
        parameter
        for name, parameter in named.items()
        if parameter.requires_grad and id(parameter) not in added and not is_in(name, fresh)
    ]


def _own(layer: nn.Module) -> Iterable[nn.Parameter]:
    """The parameters of a layer's adapter, without those of the layer below it."""
    return (
        parameter
        for name, parameter in layer.named_parameters()
        if not name.startswith("base_layer.")
    )


def rates(embedder: TorchEmbedder, tuning: Tuning) -> dict[str, float]:
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
    if parts:
        refuse_unknown("tuning.rates", parts, [*trained, *_parents(trained)])
    multiples = dict.fromkeys(trained, 1.0)
    for part in parts:  # the longest come last
        for name in trained:
            if is_under(name, part):
                multiples[name] = float(tuning.rates[part])
    if tuning.layer_decay < 1:
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


def _parents(names: Iterable[str]) -> dict[str, None]:
    """The names of all modules around some parameters."""
    return {
        ".".join(words[:end]): None
        for words in (name.split(".") for name in names)
        for end in range(1, len(words))
    }


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
