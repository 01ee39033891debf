"""Pooling over time, over layers and over places, against loops."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from likeness.toolkit.backbones._layer_pooling import LayerPooling, pool_layers, pool_places
from likeness.toolkit.backbones.pooling import Pooling, attend, frame_mask, pool

NAMES: tuple[Any, ...] = get_args(Pooling)


def test_frame_mask_counts_frames():
    # never none
    assert frame_mask(torch.tensor([0.0, 0.29, 0.5, 1.0]), 7).sum(dim=1).tolist() == [1, 2, 4, 7]


def conv(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A convolution of size 1 over (C, T), as a product."""
    return p[f"{name}.weight"][:, :, 0] @ x + p[f"{name}.bias"][:, None]


def weighted(x: Tensor, scores: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    alpha = torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)
    mean = (alpha * x).sum(dim=1)
    return mean, ((alpha * x**2).sum(dim=1) - mean**2).clamp(min=floor).sqrt()


def expected(name: str, p: dict[str, Tensor], x: Tensor, global_context: bool) -> Tensor:
    """One utterance (C, T), by the formulas of WeSpeaker's pooling_layers.py."""
    if name == "ASP":
        hidden = conv(p, "attention.0", x).relu()
        scale = p["attention.2.weight"] / (p["attention.2.running_var"] + 1e-5).sqrt()
        hidden = (hidden - p["attention.2.running_mean"][:, None]) * scale[:, None]
        hidden = hidden + p["attention.2.bias"][:, None]
        return torch.cat(weighted(x, conv(p, "attention.3", hidden), 1e-5))
    mean, deviation = x.mean(dim=1), (x.var(dim=1) + 1e-7).sqrt()
    if name == "TAP":
        return mean
    if name == "TSTP":
        return torch.cat([mean, deviation])
    if name == "ASTP":
        context = [mean[:, None].expand_as(x), deviation[:, None].expand_as(x)]
        seen = torch.cat([x, *context]) if global_context else x
        return torch.cat(weighted(x, conv(p, "linear2", conv(p, "linear1", seen).tanh()), 1e-7))
    rows: list[Tensor] = []
    for prefix in ("n_query.0.", "n_query.1."):
        for head in range(8):
            part = x[head * len(x) // 8 : (head + 1) * len(x) // 8]
            names = [f"{prefix}heads_att_trans.{head}.att_{i}" for i in (0, 1)]
            scores = conv(p, names[1], conv(p, names[0], part).tanh())
            assert len(scores) == len(part)
            rows += weighted(part, scores, 1e-7)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("name", "global_context"), [*((name, False) for name in NAMES), ("ASTP", True)]
)
@settings(max_examples=25)
@given(
    frames=st.lists(st.integers(2, 12), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    same=st.booleans(),
)
def test_poolings_are_those_of_the_release(name, global_context, frames, seed, same):
    torch.manual_seed(seed)
    module, size = pool(name, 16, global_context=global_context)
    module.double().eval()
    state = {key: value.detach() for key, value in module.state_dict().items()}
    total = max(frames)
    x = torch.randn(len(frames), 16, total, dtype=torch.float64)
    if same:
        # an utterance that never changes: its deviation is the floor
        x = x[..., :1].expand(-1, -1, total)
    pooled = module(x, frame_mask(torch.tensor(frames, dtype=torch.float64) / total, total))
    assert pooled.shape == (len(frames), size)
    for row, num in enumerate(frames):
        by_formula = expected(name, state, x[row, :, :num], global_context)
        torch.testing.assert_close(pooled[row], by_formula, rtol=1e-6, atol=2e-7)


def test_attention_survives_large_offsets_where_the_release_s_formula_does_not():
    x = 4000 + torch.randn(1, 1, 50, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(1, 1, 50)
    deviation = float(attend(x, scores, None)[0, 1])
    assert deviation == pytest.approx(float(x.double().std(correction=0)), rel=1e-3)
    release = math.sqrt(max(float((x**2).mean() - x.mean() ** 2), 1e-7))
    assert abs(release - deviation) > 1e-3


LAYER_POOLINGS: tuple[Any, ...] = get_args(LayerPooling)
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
    hidden = conv(p, "attentive.linear1", x).tanh()
    return torch.cat(weighted(x, conv(p, "attentive.linear2", hidden), 1e-7))


def mixed(weights: Tensor, layers: list[Tensor], t: int) -> Tensor:
    """The weighted sum of the layers in one frame."""
    shares = weights.exp() / weights.exp().sum()
    return sum((shares[i] * layers[i][t] for i in range(LAYERS)), torch.zeros(CHANNELS).double())


def by_loops(name: str, p: dict[str, Tensor], layers: list[Tensor]) -> Tensor:
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
    if name == "AdapterMFA":
        columns = []
        for t in range(frames):
            adapted = []
            for i, layer in enumerate(layers):
                one = f"adapter_layers.{i}"
                x = p[f"{one}.0.weight"] @ layer[t] + p[f"{one}.0.bias"]
                x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
                x = (x * p[f"{one}.1.weight"] + p[f"{one}.1.bias"]).clamp(min=0)
                adapted.append(p[f"{one}.3.weight"] @ x + p[f"{one}.3.bias"])
            columns.append(torch.cat(adapted))
        inner = {key.removeprefix("pooling."): value for key, value in p.items()}
        return expected("ASP", inner, torch.stack(columns, dim=1), False)
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


@pytest.mark.parametrize("name", LAYER_POOLINGS)
def test_poolings_over_layers_equal_a_loop_and_leave_padding_out(name):
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
        result = by_loops(name, parameters, one)
        torch.testing.assert_close(together[row], result, rtol=1e-9, atol=1e-9)
        alone = module([layer[None] for layer in one], None)[0]
        torch.testing.assert_close(alone, result, rtol=1e-9, atol=1e-9)
    assert together.shape[1] == pool_layers(name, LAYERS, CHANNELS, heads=3, compressed=5)[1]  # type: ignore[arg-type]


def test_the_adapters_have_the_parameters_that_their_authors_state():
    """6.2 M beside the 580 M of w2v-BERT 2.0 (ZXHY-82/w2v-BERT-2.0_SV, README.md)."""
    module, size = pool_layers("AdapterMFA", 25, 1024, compressed=128)
    count = sum(parameter.numel() for parameter in module.parameters()) + (size + 1) * 256
    assert (size, count) == (6400, 6_160_640)


@pytest.mark.parametrize("power", [1.0, 3.0, 7.0])
def test_gem_is_a_loop_over_places_and_its_power_is_learned(power):
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    module: Any = pool_places("GeM")
    assert module.power.tolist() == [3.0]
    module.power.data.fill_(power)
    z = module.double()(x)
    for row in range(2):
        for channel in range(3):
            raised = [max(float(v), 1e-6) ** power for v in x[row, :, channel]]
            assert z[row, channel].item() == pytest.approx((sum(raised) / 5) ** (1 / power))
    z.sum().backward()
    assert module.power.grad.abs().item() > 0
