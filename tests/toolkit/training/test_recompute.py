"""Layers that are computed a second time for the gradient give the gradients of one pass."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.resnet import ResNet34
from toolkit.backbones.torchaudio_cpu import import_torchaudio
from toolkit.backbones.vit import ViT
from toolkit.training.build import Network
from toolkit.training.memory import momentum_encoder
from toolkit.training.tuning import recompute

NETWORKS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "ViT": (
        partial(ViT, 1, image_size=8, patch=4, width=8, depth=3, heads=2, dim=4),
        (4, 1, 8, 8),
        3,
    ),
    "ImageResNet": (
        partial(ImageResNet, 1, depth=18, width=4, dim=4, stem="3x3"),
        (4, 1, 16, 16),
        8,
    ),
    "ResNet34": (partial(ResNet34, 16, dim=4, width=2, blocks=(1, 2, 1, 1)), (4, 24, 16), 5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_the_same_to_the_bit(name: str) -> None:
    make, shape, num = NETWORKS[name]
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = []
    calls: list[int] = []
    for again in (False, True):
        torch.manual_seed(0)
        network = make().train()
        if again:
            assert recompute(network) == num
            for module in network.modules():
                if type(module).__name__ in ("_Block", "_BasicBlock"):
                    first = next(iter(module.children()))
                    first.register_forward_hook(lambda *_: calls.append(1))
        z = network(inputs)
        z.square().sum().backward()
        assert len(calls) == (2 * num if again else 0)  # forward, and for the gradient
        results.append(
            {key: value.grad for key, value in network.named_parameters()}
            | dict(network.named_buffers())
            | {"z": z.detach()}
        )
    for key, value in results[0].items():
        assert torch.equal(value, results[1][key]), key


def test_dropout_is_drawn_once() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        network = Dropped()
        if again:
            recompute(network)
        network(torch.ones(4, 8)).sum().backward()
        gradients.append([value.grad for value in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_copy_computes_with_its_own_weights() -> None:
    network = NETWORKS["ViT"][0]().eval()
    recompute(network)
    copied = momentum_encoder(network)
    inputs = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        before = copied(inputs)
        for value in network.parameters():
            value.zero_()
        assert torch.equal(copied(inputs), before)
    assert copied.get_submodule("blocks.0").forward.__self__ is copied.get_submodule("blocks.0")


def test_a_network_without_numbered_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks\.N"):
        recompute(nn.Sequential(nn.Linear(2, 2)))


def test_a_network_of_transformers_recomputes_in_its_own_way() -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import_torchaudio()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        network = nn.ModuleDict({"network": Wav2Vec2Model(config)}).train()
        if again:
            assert recompute(network) == 1
        calls: list[int] = []
        layer = network.get_submodule("network.encoder.layers.0.attention")
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        waves = torch.randn(2, 400, generator=torch.Generator().manual_seed(1))
        network["network"](waves).last_hidden_state.square().sum().backward()
        assert len(calls) == 1 + again
        gradients.append([value.grad for value in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_pieces_and_layers_are_computed_again_together() -> None:
    make, shape, _ = NETWORKS["ImageResNet"]
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = []
    for again in (False, True):
        torch.manual_seed(0)
        backbone = make().train()
        if again:
            recompute(backbone)
        Network(None, backbone, pieces=2)(inputs, None).square().sum().backward()
        gradients = {key: value.grad for key, value in backbone.named_parameters()}
        results.append(gradients | dict(backbone.named_buffers()))
    for key, value in results[0].items():
        assert torch.equal(value, results[1][key]), key
