"""The layers of a network that are numbered: how deep they are, and computing them once more."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from eval.errors import LikenessError

# blocks.3, layers.3 and layer.3 are layers, and so is layer3.
_NUMBERED = re.compile(r"(?:^|\.)(?:(?:blocks|layers|layer)\.\d+|layer\d+)(?=\.|$)")


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


def recompute(network: nn.Module) -> int:
    """Let a network keep what goes into its layers only, and compute the rest again for gradients.

    A network of transformers does it in its own way. In every other network the numbered layers do
    it one by one, and where a layer is a list of blocks, its blocks do.

    Args:
        network: The network, which is changed in place.

    Returns:
        The number of modules that compute again.

    Raises:
        LikenessError: The network has no numbered layers.
    """
    own = [name for name, module in network.named_modules() if _recomputes_itself(module)]
    for name in own:
        # of several, those inside others are reached through these
        module: Any = network.get_submodule(name)
        own_way = {"use_reentrant": False}
        if hasattr(module, "activation_checkpointing_enable"):  # its newer name
            module.activation_checkpointing_enable(activation_checkpointing_kwargs=own_way)
        else:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=own_way)
    layers = [module for module in _layers(network, own) if list(module.parameters())]
    for layer in layers:
        # bound to the module, so that a deep copy of the network computes with its own weights
        layer.forward = types.MethodType(_forward, layer)
    if not own and not layers:
        children = ", ".join(name for name, _ in network.named_children())
        raise LikenessError(
            "compute.recompute=True needs layers that are called blocks.N, layers.N, layer.N or "
            f"layerN; this {type(network).__name__} has {children}: leave it false, or set "
            "compute.accumulate"
        )
    return len(own) + len(layers)


def _recomputes_itself(module: nn.Module) -> bool:
    """Whether it is a network of transformers that can, and whose statistics do not move by it."""
    norms = nn.modules.batchnorm._BatchNorm
    return bool(
        getattr(module, "supports_gradient_checkpointing", False)
        and hasattr(module, "gradient_checkpointing_enable")
        and not any(isinstance(inner, norms) for inner in module.modules())
    )


def _layers(network: nn.Module, without: list[str]) -> Iterator[nn.Module]:
    """Yield the numbered layers, and the blocks of those that are lists, outside some modules."""
    for name, module in network.named_modules():
        inside = any(f"{name}.".startswith(f"{outer}." if outer else "") for outer in without)
        if name and layer_of(name) == name and not inside:
            listed = isinstance(module, (nn.Sequential, nn.ModuleList))
            yield from module.children() if listed else [module]


def _forward(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    """Run a layer as its class does, and keep nothing but its inputs."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), still(layer)

    if not torch.is_grad_enabled():
        return type(layer).forward(layer, *inputs, **named)
    return recomputed(
        type(layer).forward, layer, *inputs, use_reentrant=False, context_fn=contexts, **named
    )


@contextmanager
def still(network: nn.Module) -> Iterator[None]:
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
