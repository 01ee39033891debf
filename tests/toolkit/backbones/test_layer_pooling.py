"""Poolings over layers and places, against loops over utterances, layers, heads and places."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from likeness.toolkit.backbones.layer_pooling import (
    LayerPooling,
    masked_mean,
    pool_layers,
    pool_places,
)
from likeness.toolkit.backbones.pooling import frame_mask

NAMES: tuple[Any, ...] = get_args(LayerPooling)
LAYERS, CHANNELS, FRAMES = 4, 6, 9


def drawn(name: Any) -> Any:
    """A pooling with random parameters, in float64."""
    torch.manual_seed(1)
    module, _ = pool_layers(name, LAYERS, CHANNELS, heads=3, compressed=5)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        for buffer in module.buffers():
            if buffer.dtype == torch.float64:
                buffer.uniform_(0.5, 2.0)
    return module


def attentive(p: dict[str, Tensor], x: Tensor) -> Tensor:
    """Mean and deviation of one utterance (C, T) under channel-wise attention."""
    hidden = p["attentive.linear1.weight"][:, :, 0] @ x + p["attentive.linear1.bias"][:, None]
    scores = p["attentive.linear2.weight"][:, :, 0] @ hidden.tanh()
    scores = scores + p["attentive.linear2.bias"][:, None]
    alpha = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    mean = (alpha * x).sum(dim=1)
    variance = (alpha * x**2).sum(dim=1) - mean**2
    return torch.cat([mean, variance.clamp(min=1e-7).sqrt()])


def mixed(weights: Tensor, layers: list[Tensor], t: int) -> Tensor:
    """The weighted sum of the layers in one frame."""
    shares = weights.exp() / weights.exp().sum()
    return sum((shares[i] * layers[i][t] for i in range(LAYERS)), torch.zeros(CHANNELS).double())


def expected(name: str, p: dict[str, Tensor], layers: list[Tensor]) -> Tensor:
    """What one utterance gives, its layers (T, C), by the equations."""
    frames = len(layers[0])
    if name == "mean":
        return torch.stack([layers[-1][t] for t in range(frames)]).mean(dim=0)
    if name == "weighted":
        x = torch.stack([mixed(p["weights"], layers, t) for t in range(frames)], dim=1)
        return attentive(p, x)
    if name == "MFA":
        columns = []
        for t in range(frames):
            joined = torch.cat([layer[t] for layer in layers[1:]])
            centred = joined - joined.mean()
            normed = centred / (centred.square().mean() + 1e-5).sqrt()
            columns.append(normed * p["norm.weight"] + p["norm.bias"])
        z = attentive(p, torch.stack(columns, dim=1))
        z = (z - p["normalise.running_mean"]) / (p["normalise.running_var"] + 1e-5).sqrt()
        return z * p["normalise.weight"] + p["normalise.bias"]
    heads = []
    for head in range(3):
        scores, values = [], []
        for t in range(frames):
            key = p["cmp_linear_k.weight"] @ mixed(p["weights_k"], layers, t)
            key = key + p["cmp_linear_k.bias"]
            scores.append(p["att_head.weight"][head] @ key + p["att_head.bias"][head])
            value = p["cmp_linear_v.weight"] @ mixed(p["weights_v"], layers, t)
            values.append(value + p["cmp_linear_v.bias"])
        alpha = torch.stack(scores).exp()
        alpha = alpha / alpha.sum()
        heads.append(sum(alpha[t] * values[t] for t in range(frames)))
    return torch.cat([torch.as_tensor(head) for head in heads])


@pytest.mark.parametrize("name", NAMES)
def test_poolings_over_layers_equal_a_loop_and_leave_padding_out(name: str) -> None:
    module = drawn(name)
    parameters = dict(module.state_dict())
    layers = [torch.randn(3, FRAMES, CHANNELS).double() for _ in range(LAYERS)]
    counts = (FRAMES, 5, 1)
    mask = frame_mask(torch.tensor(counts) / FRAMES, FRAMES)
    for row, count in enumerate(counts):
        for layer in layers:
            layer[row, count:] = 1e3
    together = module(layers, mask)
    for row, count in enumerate(counts):
        one = [layer[row, :count] for layer in layers]
        result = expected(name, parameters, one)
        torch.testing.assert_close(together[row], result, rtol=1e-9, atol=1e-9)
        alone = module([layer[None] for layer in one], None)[0]
        torch.testing.assert_close(alone, result, rtol=1e-9, atol=1e-9)
    assert together.shape[1] == pool_layers(name, LAYERS, CHANNELS, heads=3, compressed=5)[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mean"])
def test_every_layer_and_parameter_of_a_pooling_gets_a_gradient(name: Any) -> None:
    module, _ = pool_layers(name, LAYERS, CHANNELS, heads=3, compressed=5)
    layers = [torch.randn(4, FRAMES, CHANNELS, requires_grad=True) for _ in range(LAYERS)]
    z = module.train()(layers, None)
    (z * torch.randn_like(z)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    seen = layers[1:] if name == "MFA" else layers  # MFA leaves out the input of the first block
    assert all(layer.grad is not None and layer.grad.any() for layer in seen)


@pytest.mark.parametrize("power", [1.0, 2.5, 7.0])
def test_gem_is_a_loop_over_places(power: float) -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    for learned in (False, True):
        module = pool_places("GeM", power, learned=learned)
        z = module.double()(x)
        assert len(list(module.parameters())) == learned
        for row in range(2):
            for channel in range(3):
                raised = [max(float(v), 1e-6) ** power for v in x[row, :, channel]]
                assert float(z[row, channel]) == pytest.approx((sum(raised) / 5) ** (1 / power))


def test_a_learned_power_is_learned() -> None:
    module: Any = pool_places("GeM", 3.0, learned=True)
    module(torch.rand(2, 4, 3)).sum().backward()
    assert module.power.grad.abs().item() > 0
    assert [name for name, _ in module.named_parameters()] == ["power"]


def test_masked_mean_and_mean_of_places() -> None:
    x = torch.tensor([[[1.0], [3.0], [99.0]], [[1.0], [2.0], [6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert masked_mean(x, mask).flatten().tolist() == [2.0, 3.0]
    assert pool_places("mean", 1.0, learned=False)(x)[1].tolist() == [3.0]
