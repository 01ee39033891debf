"""What every face and image network promises: shapes, gradients, precision, memory layout,
refusals; and what only some of them do.
"""

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from likeness import backbones
from tests.toolkit.backbones.layers import networks, without_gradient

VIT = partial(backbones.ViT, width=24, depth=2, heads=3, patch=8, image_size=32)
RESNET18 = partial(backbones.ImageResNet, width=8, depth=18, blocks=(1, 1, 1, 1))
SFNET = partial(backbones.SFNet, dim=16, width=8, blocks=(1, 1, 0, 1), image_size=32)
IRESNET = partial(backbones.IResNet, dim=16, width=8, blocks=(1, 2, 1, 1), image_size=32)
MOBILE = partial(backbones.MobileFaceNet, dim=16, scale=1)
OF_FACES = {"dim": 16, "width": 32, "depth": 2, "heads": 4}
TINY: dict[str, Any] = {
    "SFNet": SFNET,
    "SFNet-BN": partial(SFNET, batch_norm=True),
    "SFNet-deprecated": partial(SFNET, deprecated=True),
    "IResNet": IRESNET,
    "IResNet-OpenSphere": partial(IRESNET, opensphere=True),
    "MobileFaceNet": partial(MOBILE, blocks=(1, 1, 1, 1), image_size=48),
    "FaceViT": partial(backbones.FaceViT, image_size=36, drop_path=0.0, **OF_FACES),
    "KPRPEViT": partial(backbones.KPRPEViT, image_size=32, **OF_FACES),
    "EdgeFace": partial(backbones.EdgeFace, dim=16, size="xxs"),
    "ViT": partial(VIT, dim=16, layer_scale=True, registers=1),
    "ImageResNet": partial(backbones.ImageResNet, dim=16, width=8, blocks=(1, 1, 1, 1)),
    "ImageResNet-frozen": partial(RESNET18, dim=16, batch_norm="frozen"),
    "BNInception": partial(backbones.BNInception, dim=16),
    "HubImage": partial(
        backbones.HubImage,
        config='{"model_type": "dinov2", "hidden_size": 24, "num_hidden_layers": 2, '
        '"num_attention_heads": 3, "image_size": 32, "patch_size": 8}',
        pooling="GeM",
        dim=16,
    ),
    "SmallCNN": partial(backbones.SmallCNN, dim=16),
    "GradientHistograms": partial(backbones.GradientHistograms, dim=16, image_size=32),
}
SIDES = {"MobileFaceNet": 48, "FaceViT": 36, "EdgeFace": 48, "ImageResNet": 64}
SIDES |= {"ImageResNet-frozen": 64, "BNInception": 64, "SmallCNN": 28}  # 32 of all others


def build(name: str) -> tuple[Any, Tensor]:
    """A small network in eval mode, its batch norms as after training, and a batch of four."""
    channels, side = 1 if name == "SmallCNN" else 3, SIDES.get(name, 32)
    torch.manual_seed(0)
    network = TINY[name](channels)
    # four that differ as images do, not as noise does
    x = nn.functional.interpolate(torch.randn(4, channels, 5, 5), (side, side), mode="bicubic")
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # statistics of all that is seen: of this batch
            # rectifiers mostly open: random deep networks without shortcuts magnify rounding,
            # trained ones do not
            nn.init.constant_(module.weight, 0.5)
            nn.init.constant_(module.bias, 1.0)
    with torch.no_grad():
        network.train()(x)
    return network.eval(), x


def test_no_image_network_is_left_out():
    assert {cls.__name__ for cls in networks("images")} == {name.partition("-")[0] for name in TINY}


@pytest.mark.parametrize("name", TINY)
class TestContract:
    def test_gives_dim_raw_outputs_and_every_parameter_a_gradient(self, name):
        network, x = build(name)
        z = network.train()(x, None)
        assert z.shape == (4, 16) == (4, network.dim)
        assert not without_gradient(network, z)
        still = {name for name, p in network.named_parameters() if not p.requires_grad}
        if name != "ImageResNet-frozen":
            assert still == ({"features.weight"} if name == "IResNet" else set())

    def test_an_image_alone_in_a_batch_in_any_layout_and_in_half_precision(self, name):
        network, x = build(name)
        with torch.no_grad():
            together = network(x)
            torch.testing.assert_close(network(x[2:3]), together[2:3], rtol=1e-4, atol=5e-5)
            network.to(memory_format=torch.channels_last)
            last = network(x.to(memory_format=torch.channels_last))
            torch.testing.assert_close(last, together, rtol=1e-4, atol=5e-5)
            assert (together[0] - together[1]).abs().max() > 1e-4, "blind to its input"
            with torch.autocast("cpu", dtype=torch.bfloat16):
                near = network(x)
        assert near.dtype == torch.float32
        assert torch.cosine_similarity(near, together).min() > 0.99

    def test_other_inputs_are_refused(self, name):
        network, x = build(name)
        with pytest.raises(ValueError, match=r"it takes images \(B, \d, H, W\)"):
            network(x[:, :1].expand(-1, 4, -1, -1))
        with pytest.raises(ValueError, match=r"it takes images"):
            network(x[0])
        if not name.startswith(("ImageResNet", "EdgeFace", "BNInception")):
            with pytest.raises(ValueError, match=r"images of \d+ x 42"):
                network(torch.randn(1, x.shape[1], x.shape[2], 42))


PARTS = ("running_mean", "running_var", "weight", "bias")
CHANGING = {"trained": {*PARTS}, "fixed": {"weight", "bias"}, "frozen": set()}


@pytest.mark.parametrize("batch_norm", CHANGING)
@pytest.mark.parametrize("make", [partial(RESNET18, dim=8), partial(backbones.BNInception, dim=8)])
def test_batch_norm_is_held_still(make, batch_norm):
    """Through train() of whatever holds the network, and through a copy."""
    torch.manual_seed(6)
    whole = nn.Sequential(copy.deepcopy(make(3, batch_norm=batch_norm))).train()
    norms = {name: m for name, m in whole.named_modules() if isinstance(m, nn.BatchNorm2d)}
    before = copy.deepcopy(whole.state_dict())
    assert whole[0].training
    assert {module.training for module in norms.values()} == {batch_norm == "trained"}
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    (whole(torch.randn(2, 3, 64, 64)) * torch.randn(2, 8)).sum().backward()
    optimizer.step()
    after = whole.state_dict()
    every = [f"{name}.{part}" for name in norms for part in PARTS]
    changed = [name for name in every if not torch.equal(before[name], after[name])]
    assert CHANGING[batch_norm] == {name.rpartition(".")[2] for name in changed}
    assert not any(module.training for _, module in whole.eval().named_modules())


def test_without_a_head_the_size_is_the_network_s():
    for make, dim, sides in (
        (partial(backbones.ImageResNet, width=4), 128, (64,)),
        (partial(backbones.ImageResNet, width=4, depth=18), 32, (64,)),
        (backbones.BNInception, 1024, (32, 224, 227, 256)),
        (partial(backbones.ViT, depth=0), 384, (64,)),
    ):
        with torch.device("meta"):
            network = make(3, dim=0)
            assert network.dim == dim
            assert {network(torch.empty(2, 3, side, side)).shape for side in sides} == {(2, dim)}


def test_zero_init_makes_every_block_its_shortcut():
    torch.manual_seed(7)
    tiny = partial(backbones.ImageResNet, 3, dim=8, width=4, blocks=(2, 1, 1, 1))
    network: Any = tiny(stem="3x3", zero_init=True).eval()
    x = torch.randn(1, 4, 8, 8).relu()
    y = network.layer1[0](x)
    torch.testing.assert_close(y, torch.relu(network.layer1[0].downsample(x)))
    assert torch.equal(network.layer1[1](y), y)


def cubic(t: float, a: float = -0.75) -> float:
    """Keys' kernel, as torch and OpenCV have it."""
    t = abs(t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def test_positions_of_other_image_sizes_are_dino_s():
    """Keys' bicubic interpolation written out, at the places that DINO's scale of (rows + 0.1) /
    grid gives, edges repeated.
    """
    torch.manual_seed(2)
    network = backbones.ViT(3, width=4, depth=0, heads=2, patch=4, image_size=20).double()
    inputs = network.pos_embed[0, 1:].detach().numpy().reshape(5, 5, 4)

    def weights(num: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        matrix = np.zeros((num, 5))
        for i in range(num):
            place = (i + 0.5) / ((num + 0.1) / 5) - 0.5
            for j in range(math.floor(place) - 1, math.floor(place) + 3):
                matrix[i, min(max(j, 0), 4)] += cubic(place - j)
        return matrix

    expected = np.einsum("ri,cj,ijd->rcd", weights(3), weights(7), inputs).reshape(21, 4)
    result = network._positions(3, 7)[0].detach().numpy()
    np.testing.assert_allclose(result[1:], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(result[0], network.pos_embed[0, 0].detach().numpy())
    assert network(torch.randn(1, 3, 12, 28, dtype=torch.float64)).shape == (1, 4)


def test_registers_change_how_positions_are_sampled():
    """dinov2_*_reg: no offset, but antialiasing: a constant stays constant, and columns that
    alternate are evened out where the grid is halved.
    """
    network = backbones.ViT(3, width=2, depth=0, heads=1, patch=4, image_size=32, registers=1)
    with torch.no_grad():
        network.pos_embed[0, 1:] = 3.0
        torch.testing.assert_close(network._positions(4, 4)[0, 1:], torch.full((16, 2), 3.0))
        # columns alternate: only antialiasing sees both
        network.pos_embed[0, 1:] = torch.tensor([1.0, -1.0]).repeat(32)[:, None]
        assert network._positions(4, 4)[0, 1:].abs().max() < 0.2


def test_masked_tokens_are_replaced_by_the_learned_one():
    """With no blocks the tokens pass the layer norm alone: of 16 places int(16 * 0.75) = 12 keep
    theirs, the others hold the mask token.
    """
    torch.manual_seed(3)
    make = partial(backbones.FaceViT, 3, dim=4, width=6, depth=0, heads=2, patch=4, drop_path=0.0)
    network = make(image_size=16, masked=0.25).double().train()
    seen: list[Tensor] = []
    network.feature.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].detach().view(-1, 16, 6))
    )
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    network(x)
    network.eval()(x)
    hidden, whole = seen
    token = (hidden == network.mask_token[0, 0]).all(dim=2)
    assert token.sum(dim=1).tolist() == [4] * 5
    assert torch.equal(hidden[~token], whole[~token])
    assert len({tuple(row.tolist()) for row in token}) > 1, "each image has its own places"


def test_stochastic_depth_leaves_out_whole_images_and_keeps_the_mean():
    network = backbones.FaceViT(3, width=4, depth=3, heads=2, patch=4, image_size=8, drop_path=0.5)
    assert [block.drop_path for block in network.blocks] == [0.0, 0.25, 0.5]
    torch.manual_seed(4)
    block: Any = network.blocks[2].train()
    y = block._branch(torch.ones(4000, 2, 3))
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    assert (y == y[:, :1, :1]).all()
    assert abs(float(y.mean()) - 1.0) < 0.1
    assert torch.equal(block.eval()._branch(torch.ones(3, 2, 3)), torch.ones(3, 2, 3))


def test_the_deprecated_form_and_its_random_start():
    """v0: xavier in the convolutions of stride 2, N(0, 0.01) in residual blocks, which so begin
    near the identity.
    """
    for of_simple in (IRESNET(3, opensphere=True), SFNET(3, batch_norm=True)):
        assert of_simple.features.weight.tolist() == pytest.approx([0.1] * 16)
    torch.manual_seed(5)
    make = partial(backbones.SFNet, 3, depth=10, dim=2)
    old, new = (make(deprecated=deprecated).state_dict() for deprecated in (True, False))
    for state, name, deviation in (
        (old, "layer3.0.conv.weight", math.sqrt(2 / (9 * (128 + 256)))),
        (old, "layer3.1.conv1.weight", 0.01),
        (new, "layer3.1.conv1.weight", math.sqrt(2 / (9 * 256))),  # kaiming over what goes out
    ):
        assert abs(float(state[name].std()) / deviation - 1) < 0.02, name
