"""Poolings against loops over utterances with the releases' formulas; masks."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from likeness.toolkit.backbones.ecapa import WeSpeakerECAPA
from likeness.toolkit.backbones.pooling import Pooling, attend, frame_mask, keep, pool, statistics
from likeness.toolkit.backbones.resnet import ResNet

NAMES: tuple[Any, ...] = get_args(Pooling)


def test_frame_mask_counts_frames() -> None:
    # never none
    assert frame_mask(torch.tensor([0.0, 0.29, 0.5, 1.0]), 7).sum(dim=1).tolist() == [1, 2, 4, 7]


def test_keep_zeroes_whatever_lies_in_the_padding() -> None:
    x = torch.full((1, 2, 3), torch.nan)
    x[..., 0] = 1.0
    assert keep(x, torch.tensor([[[True, False, False]]])).tolist() == [[[1.0, 0.0, 0.0]] * 2]


def test_statistics_count_valid_frames_only() -> None:
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    masked = statistics(x, frame_mask(torch.tensor([5 / 9, 1.0]), 9))
    for row, frames in enumerate((5, 9)):
        part = x[row, :, :frames]
        torch.testing.assert_close(
            masked[row], torch.cat([part.mean(dim=1), (part.var(dim=1) + 1e-7).sqrt()])
        )
    torch.testing.assert_close(statistics(x)[1], masked[1])


def conv(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """A convolution of size 1 over (C, T), as a product."""
    return p[f"{name}.weight"][:, :, 0] @ x + p[f"{name}.bias"][:, None]


def weighted(x: Tensor, scores: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    alpha = torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)
    mean = (alpha * x).sum(dim=1)
    return mean, ((alpha * x**2).sum(dim=1) - mean**2).clamp(min=floor).sqrt()


def expected(name: str, p: dict[str, Tensor], x: Tensor, global_context: bool) -> Tensor:
    """One utterance (C, T), by the formulas of WeSpeaker's pooling_layers.py."""
    mean, deviation = x.mean(dim=1), (x.var(dim=1) + 1e-7).sqrt()
    if name == "TAP":
        return mean
    if name == "TSDP":
        return deviation
    if name == "TSTP":
        return torch.cat([mean, deviation])
    if name == "ASTP":
        seen = (
            torch.cat([x, mean[:, None].expand_as(x), deviation[:, None].expand_as(x)])
            if global_context
            else x
        )
        return torch.cat(weighted(x, conv(p, "linear2", conv(p, "linear1", seen).tanh()), 1e-7))
    if name == "ASP":
        hidden = conv(p, "attention.0", x).relu()
        scale = p["attention.2.weight"] / (p["attention.2.running_var"] + 1e-5).sqrt()
        hidden = (hidden - p["attention.2.running_mean"][:, None]) * scale[:, None] + p[
            "attention.2.bias"
        ][:, None]
        return torch.cat(weighted(x, conv(p, "attention.3", hidden), 1e-5))
    rows: list[Tensor] = []
    prefixes, heads = (("",), 2) if name == "MHASTP" else (("n_query.0.", "n_query.1."), 8)
    for prefix in prefixes:
        for head in range(heads):
            part = x[head * len(x) // heads : (head + 1) * len(x) // heads]
            names = [f"{prefix}heads_att_trans.{head}.att_{i}" for i in (0, 1)]
            scores = conv(p, names[1], conv(p, names[0], part).tanh())
            assert len(scores) == (1 if name == "MHASTP" else len(part))
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
def test_poolings_are_those_of_the_release(
    name: Any, global_context: bool, frames: list[int], seed: int, same: bool
) -> None:
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
        torch.testing.assert_close(
            pooled[row],
            expected(name, state, x[row, :, :num], global_context),
            rtol=1e-6,
            atol=2e-7,
        )


@pytest.mark.parametrize("name", NAMES)
def test_poolings_serve_every_network_and_train(name: Any) -> None:
    for backbone in (
        ResNet(16, dim=4, width=2, depth=18, pooling=name),
        WeSpeakerECAPA(16, dim=4, channels=16, pooled=16, global_context=False, pooling=name),
    ):
        backbone(torch.randn(4, 30, 16), torch.tensor([1.0, 0.5, 0.7, 1.0])).mul(
            torch.randn(4, 4)
        ).sum().backward()
        assert all(
            p.grad is not None and torch.isfinite(p.grad).all() for p in backbone.parameters()
        )


def test_attention_survives_large_offsets_where_the_release_s_formula_does_not() -> None:
    x = 4000 + torch.randn(1, 1, 50, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(1, 1, 50)
    deviation = float(attend(x, scores, None)[0, 1])
    assert deviation == pytest.approx(float(x.double().std(correction=0)), rel=1e-3)
    release = math.sqrt(max(float((x**2).mean() - x.mean() ** 2), 1e-7))
    assert abs(release - deviation) > 1e-3
