"""Adapters go by the names of layers; here, for every family of the hub."""

import pytest
from torch import nn

from likeness.toolkit.backbones.hub_networks import FAMILIES, HubImage, HubSpeech, configuration
from likeness.toolkit.models.adapter import choose
from tests import tiny_hub

DEPTH = 5
EVERY = (*tiny_hub.IMAGES, *tiny_hub.SPEECH)
NETWORKS = [name for name in EVERY if not name.endswith(("towers", "classifier", "ctc"))]
CONVOLUTIONS = ("convnext", "resnet")


def build(name: str) -> nn.Module:
    """A backbone of five blocks with random weights."""
    stated = tiny_hub.network(name).config.to_dict()
    if name in CONVOLUTIONS:
        stated["depths"] = [2, 3]
    elif name == "whisper":
        stated |= {"encoder_layers": DEPTH, "max_source_positions": 30}
    else:
        stated["num_hidden_layers"] = DEPTH
    config = configuration(stated)
    if name in tiny_hub.IMAGES:
        return HubImage(3, config=config, dim=6)
    in_dim = {"w2v-bert": 160, "whisper": 80}.get(name, 1)
    return HubSpeech(in_dim, config=config, pooling="MFA", dim=6)


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


@pytest.mark.parametrize("name", NETWORKS)
def test_adapters_go_to_queries_and_values_of_every_block(name):
    backbone = build(name)
    if name in CONVOLUTIONS:
        with pytest.raises(ValueError, match="targets"):
            choose(backbone)
        return
    chosen = [backbone.get_submodule(layer) for layer in choose(backbone)]
    inner = [{*block.modules()} for block in blocks_of(backbone)]
    assert [sum(layer in block for layer in chosen) for block in inner] == [2] * DEPTH
    assert len(chosen) == 2 * DEPTH


def test_every_family_of_the_table_is_here():
    types = {tiny_hub.network(name).config.model_type for name in NETWORKS}
    assert types == set(FAMILIES)
