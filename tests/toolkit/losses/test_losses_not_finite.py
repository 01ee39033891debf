"""No loss hides an embedding that is NaN or infinite: its value is NaN, or it refuses. A loss that mined such rows away would let a run go on with NaN."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import pkgutil
from typing import Any

import pytest
import torch
from torch import nn

import toolkit.losses
from toolkit.memory import Bank

LOSSES = sorted(
    {
        found
        for module in pkgutil.iter_modules(toolkit.losses.__path__)
        for _, found in inspect.getmembers(importlib.import_module(f"toolkit.losses.{module.name}"), inspect.isclass)
        if issubclass(found, nn.Module) and found.__module__ == f"toolkit.losses.{module.name}"
    },
    key=lambda found: found.__name__,
)


@pytest.mark.parametrize("make", LOSSES, ids=lambda found: found.__name__)
def test_what_is_not_finite_is_not_hidden(make: Any) -> None:
    for number in (math.nan, math.inf, -math.inf):
        for rows in ([0], [0, 4], [*range(8)]):
            torch.manual_seed(0)
            loss = make(5, 4)
            z = torch.randn(8, 5)
            z[rows, 1] = number
            try:
                value = loss(z.requires_grad_(), torch.arange(8) % 4)
            except ValueError:  # of those that draw from distributions
                continue
            assert not bool(torch.isfinite(value)), (number, rows)


@pytest.mark.parametrize("make", [one for one in LOSSES if "bank" in getattr(one, "__annotations__", {})], ids=lambda found: found.__name__)
def test_what_is_not_finite_is_not_hidden_among_keys(make: Any) -> None:
    torch.manual_seed(0)
    loss = make(5, 4)
    loss.bank = Bank(16, 5)
    y = torch.arange(8) % 4
    loss(torch.randn(8, 5), y, torch.randn(8, 5))
    z = torch.randn(8, 5)
    z[3, 2] = math.nan
    with contextlib.suppress(ValueError):
        assert not bool(torch.isfinite(loss(z.requires_grad_(), y, z.detach())))


@pytest.mark.parametrize("make", LOSSES, ids=lambda found: found.__name__)
def test_a_loss_starts_from_finite_numbers(make: Any) -> None:
    """A run is not saved while a number of its state is NaN or infinite, so that no loss may keep such a number on purpose."""
    torch.manual_seed(0)
    assert all(bool(torch.isfinite(value).all()) for value in make(5, 4).state_dict().values())
