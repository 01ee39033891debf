"""Every backbone: shapes, padding, parameter counts. Backbones are found by themselves."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from torch import nn

import toolkit.backbones
from toolkit.backbones.ecapa import ECAPA
from toolkit.backbones.pooling import frame_mask, statistics
from toolkit.backbones.resnet import ResNet34

SMALL: dict[str, dict[str, Any]] = {"ResNet34": {"width": 4, "dim": 16}, "ECAPA": {"channels": 16, "dim": 16, "attention_channels": 8, "se_channels": 8}}
BACKBONES = sorted(
    {
        found
        for module in pkgutil.iter_modules(toolkit.backbones.__path__)
        for name, found in inspect.getmembers(importlib.import_module(f"toolkit.backbones.{module.name}"), inspect.isclass)
        if issubclass(found, nn.Module) and found.__module__ == f"toolkit.backbones.{module.name}" and not name.startswith("_")
    },
    key=lambda found: found.__name__,
)


@pytest.mark.parametrize("make", BACKBONES, ids=lambda found: found.__name__)
class TestContract:
    def make(self, make: Any) -> Any:
        torch.manual_seed(0)
        backbone = make(20, **SMALL.get(make.__name__, {"dim": 16}))
        for module in backbone.modules():  # batch norms as after training: a fresh one hides errors of padding
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.normal_(module.running_mean, std=0.5)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        return backbone.eval()

    def test_gives_dim_raw_outputs_and_takes_gradients(self, make: Any) -> None:
        backbone = self.make(make).train()
        z = backbone(torch.randn(4, 60, 20))
        assert z.shape == (4, 16) == (4, backbone.dim)
        z.square().mean().backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in backbone.parameters())

    def test_full_lengths_equal_no_lengths(self, make: Any) -> None:
        backbone, x = self.make(make), torch.randn(3, 61, 20)
        torch.testing.assert_close(backbone(x, torch.ones(3)), backbone(x), rtol=1e-4, atol=1e-5)

    def test_padding_never_changes_an_embedding(self, make: Any) -> None:
        backbone = self.make(make)
        if not backbone.pads_exactly:
            pytest.skip("this backbone says that it needs equal lengths; toolkit.embed gives it those")
        for frames in (31, 40, 57, 60):
            x = torch.randn(1, frames, 20)
            padded = torch.zeros(2, 60, 20)
            padded[0, :frames] = x
            padded[1] = torch.randn(60, 20)
            together = backbone(padded, torch.tensor([frames / 60, 1.0]))
            torch.testing.assert_close(together[:1], backbone(x), rtol=1e-4, atol=1e-5)


def test_resnet34_has_the_field_s_size() -> None:
    assert sum(p.numel() for p in ResNet34(80, dim=256, width=32).parameters()) == pytest.approx(6.63e6, rel=1e-3)


def test_ecapa_has_the_field_s_size() -> None:
    assert sum(p.numel() for p in ECAPA(80, dim=192, channels=1024, mfa_channels=3072).parameters()) == pytest.approx(20.77e6, rel=1e-3)


def test_statistics_count_valid_frames_only() -> None:
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    mask = frame_mask(torch.tensor([5 / 9, 1.0]), 9)
    assert mask.sum(dim=1).tolist() == [5, 9]
    masked = statistics(x, mask)
    for row, frames in enumerate((5, 9)):
        part = x[row, :, :frames]
        expected = torch.cat([part.mean(dim=1), (part.var(dim=1) + 1e-7).sqrt()])
        torch.testing.assert_close(masked[row], expected)
    torch.testing.assert_close(statistics(x)[1], masked[1])
