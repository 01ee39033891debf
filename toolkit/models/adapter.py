"""Adapters of low rank (LoRA) on layers of a network, by the package peft; kept apart from its
weights in a model file, and merged into them when it is loaded.

In a model file, the weights are under the names that they have without adapters. Beside them are
"adapter.LAYER.A" (rank, ...) and "adapter.LAYER.B" (outputs, rank), which is already multiplied by
alpha / rank, so that the merged weight is W + B A.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.backbones.weights import first_names

ADAPTER = "adapter."
_NAME = "default"  # what peft calls the adapter of each layer
# What tells the layers of a block apart: "conv1" of layer1.0.conv1, "linear1.conv" of linear1.conv
_END = re.compile(r"(?:[^\W\d]\w*\.)?\w+$")
# The projections of queries and values as transformers, timm and DINO call them; qkv is all three.
_QUERIES_AND_VALUES = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("linear_q", "linear_v"),
    ("to_q", "to_v"),
    ("qkv",),
)


def add(
    network: nn.Module, *, rank: int, alpha: float, targets: Sequence[str] = (), dropout: float = 0
) -> list[str]:
    """Put an adapter on some layers of a network.

    Args:
        network: The network, which is changed in place.
        rank: The rank of each adapter.
        alpha: The adapter's factor, times the rank.
        targets: Names of layers, whole or their ends; none takes the projections of queries and
            values.
        dropout: The share of an adapter's inputs that is dropped in training.

    Returns:
        The names of the layers.

    Raises:
        LikenessError: No layer has such a name, or a layer is neither linear nor a plain
            convolution.
    """
    import_torchaudio()  # peft imports transformers, and that imports torchaudio
    import peft

    layers = choose(network, targets)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=cast(int, alpha),  # a float will do, whatever peft states
        lora_dropout=dropout,
        target_modules="|".join(re.escape(name) for name in layers),
    )
    peft.inject_adapter_in_model(config, network, _NAME)
    return layers


def choose(network: nn.Module, targets: Sequence[str] = ()) -> list[str]:
    """Return the names of the layers of a network that are meant by names or their ends.

    Args:
        network: The network.
        targets: The names; none takes the projections of queries and values.

    Raises:
        LikenessError: A name fits no layer, or one that can have no adapter.
    """
    layers = [name for name, module in network.named_modules() if _can_have(module)]
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
    if not targets:
        targets = next((each for each in _QUERIES_AND_VALUES if {*each} <= {*ends}), ())
    called = {
        target: [name for name in layers if f".{name}".endswith(f".{target}")] for target in targets
    }
    if not called or not all(called.values()):
        absent = next((target for target, names in called.items() if not names), "")
        layer = "linear layer or plain convolution called so" if absent else "queries and values"
        possible = list(dict.fromkeys(_END.search(name)[0] for name in layers))  # type: ignore[index]
        raise LikenessError(
            f"tuning.lora.targets names {absent or 'nothing'}, and this network has no {layer}; "
            "name some of these, with commas between: "
            f"{first_names(possible, 12) or 'none'}"
        )
    chosen = {name for names in called.values() for name in names}
    return [name for name in layers if name in chosen]


def _can_have(layer: nn.Module) -> bool:
    """Whether a layer can have an adapter: linear, or a convolution without groups and dilation."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        plain = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"
        return plain and type(layer) in (nn.Conv1d, nn.Conv2d)
    return type(layer) is nn.Linear


def layers_of(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and layers of a network that have an adapter."""
    for name, module in network.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def plain_names(network: nn.Module) -> dict[str, str]:
    """Return the names of a network's tensors -> the names that they have without adapters.

    The tensors of adapters are left out.
    """
    adapted = [name for name, _ in layers_of(network)]
    names: dict[str, str] = {}
    for name in network.state_dict():
        layer = next((layer for layer in adapted if name.startswith(f"{layer}.")), "")
        rest = name.removeprefix(f"{layer}.") if layer else name
        if not layer:
            names[name] = name
        elif rest.startswith("base_layer."):
            names[name] = f"{layer}.{rest.removeprefix('base_layer.')}"
    return names


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors by name, with its adapters as a model file keeps them."""
    state = network.state_dict()
    tensors = {plain: state[name] for name, plain in plain_names(network).items()}
    for name, layer in layers_of(network):
        tensors[f"{ADAPTER}{name}.A"] = layer.lora_A[_NAME].weight.detach()
        tensors[f"{ADAPTER}{name}.B"] = layer.lora_B[_NAME].weight.detach() * layer.scaling[_NAME]
    return tensors


def merge_adapters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model file with its adapters merged into the weights.

    An adapter without a layer of its shape stays among them, and is an unknown tensor to whatever
    loads them strictly.

    Args:
        tensors: Name -> tensor, perhaps with adapters among them.

    Example:
        >>> import torch
        >>> one, two = torch.ones(2, 1), torch.ones(1, 2)
        >>> adapted = {"fc.weight": torch.zeros(2, 2), "adapter.fc.A": two, "adapter.fc.B": one}
        >>> merge_adapters(adapted)
        {'fc.weight': tensor([[1., 1.],
                [1., 1.]])}
    """
    own = dict(tensors)
    layers = {
        name.removeprefix(ADAPTER).rpartition(".")[0]
        for name in tensors
        if name.startswith(ADAPTER)
    }
    for layer in sorted(layers):
        weight, *sides = f"{layer}.weight", f"{ADAPTER}{layer}.A", f"{ADAPTER}{layer}.B"
        with suppress(KeyError, RuntimeError, IndexError):
            a, b = (own[side].flatten(1).float() for side in sides)
            change = (b @ a).view(own[weight].shape)
            own[weight] = (own[weight].float() + change).to(own[weight].dtype)
            for side in sides:
                del own[side]
    return own
