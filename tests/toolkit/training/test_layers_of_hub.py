"""Depths and adapters go by the names of layers; here, for every family of the hub.

What is expected is found without names: a parameter lies before whatever it changes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.hub import FAMILIES, HubImage, HubSpeech, configuration
from likeness.toolkit.models.adapter import choose
from likeness.toolkit.training.tuning import depths
from tests import tiny_hub

DEPTH = 5
NETWORKS = [
    name
    for name in (*tiny_hub.IMAGES, *tiny_hub.SPEECH)
    if not name.endswith(("towers", "classifier", "ctc"))
]
CONVOLUTIONS = ("convnext", "resnet")


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A backbone of five blocks with random weights, and its input."""
    stated = tiny_hub.network(name).config.to_dict()
    if name in CONVOLUTIONS:
        stated["depths"] = [2, 3]
    elif name == "whisper":
        stated |= {"encoder_layers": DEPTH, "max_source_positions": 30}
    else:
        stated["num_hidden_layers"] = DEPTH
    config = configuration(stated)
    torch.manual_seed(1)
    if name in tiny_hub.IMAGES:
        return HubImage(3, config=config, dim=6).eval(), torch.randn(1, 3, 32, 32)
    in_dim = {"w2v-bert": 160, "whisper": 80}.get(name, 1)
    backbone = HubSpeech(in_dim, config=config, pooling="MHFA", dim=6)
    return backbone.eval(), torch.randn(1, 4000 // in_dim, in_dim)


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """The largest modules of a class of which the network has as many as it has blocks."""
    by_class: dict[type, list[nn.Module]] = {}
    for module in backbone.get_submodule("network").modules():
        if not isinstance(module, nn.ModuleList):
            by_class.setdefault(type(module), []).append(module)
    return max(
        (modules for modules in by_class.values() if len(modules) == DEPTH),
        key=lambda modules: sum(value.numel() for value in modules[-1].parameters()),
    )


def first_of(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def found_depths(backbone: nn.Module, x: Tensor) -> dict[str, int]:
    """The depth of each trainable parameter by what it changes.

    What changes the input of block k + 1 and not that of block k is in block k or between the two,
    so it has the depth k. What changes the embedding alone has one more than the last block.
    """
    passed: list[Tensor] = []  # the input and the output of each block, in the order of their work
    for block in blocks_of(backbone):
        block.register_forward_pre_hook(
            lambda _, inputs, named: passed.append(inputs[0] if inputs else named["hidden_states"]),
            with_kwargs=True,
        )
        block.register_forward_hook(lambda _, inputs, output: passed.append(first_of(output)))
    z = backbone(x)
    assert len(passed) == 2 * DEPTH
    names = [name for name, value in backbone.named_parameters() if value.requires_grad]
    parameters = [backbone.get_parameter(name) for name in names]
    result = {}
    for place, value in enumerate((*passed, z)):
        gradients = torch.autograd.grad(
            value.sum(), parameters, allow_unused=True, retain_graph=True
        )
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                result.setdefault(name, (place + 1) // 2 + (place == 2 * DEPTH))
    return result


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_the_depth_of_its_block(name: str) -> None:
    backbone, x = build(name)
    expected = found_depths(backbone, x)
    # Where blocks normalise first, the norm at the end is defined before the blocks.
    if name.endswith("large"):
        late = {f"network.encoder.layer_norm.{part}" for part in ("weight", "bias")}
        assert {expected.pop(key) for key in late} == {DEPTH + 1}
    by_name = depths([key for key, _ in backbone.named_parameters()])
    assert {key: by_name[key] for key in expected} == expected
    assert set(expected.values()) == set(range(DEPTH + 2))


@pytest.mark.parametrize("name", NETWORKS)
def test_adapters_go_to_queries_and_values_of_every_block(name: str) -> None:
    backbone, x = build(name)
    if name in CONVOLUTIONS:
        with pytest.raises(ValueError, match="targets"):
            choose(backbone)
        return
    chosen = [backbone.get_submodule(layer) for layer in choose(backbone)]
    inner = [
        [layer for layer in chosen if layer in {*block.modules()}] for block in blocks_of(backbone)
    ]
    assert [len(found) for found in inner] == [2] * DEPTH
    assert len(chosen) == 2 * DEPTH
    with torch.no_grad():
        before = backbone(x)
        for layer in chosen:  # a constant that is added to all keys would change no attention
            layer.bias += torch.linspace(-3, 3, len(layer.bias))
            after = backbone(x)
            assert (after - before).abs().max() > 1e-6
            before = after


def test_every_family_of_the_table_is_here() -> None:
    types = {tiny_hub.network(name).config.model_type for name in NETWORKS}
    assert types == set(FAMILIES)
