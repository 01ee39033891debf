"""Networks side by side."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from likeness.toolkit.backbones.beside import Beside
from likeness.toolkit.backbones.head import Head
from likeness.toolkit.backbones.statistics import OrderStatistics
from likeness.toolkit.models.parts import describe, restore

PARTS = [partial(OrderStatistics, dim=4), partial(OrderStatistics, dim=3, num_bins=2)]


def views(seed: int) -> tuple[Tensor, None, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(12, 40, 6, generator=generator), None, torch.arange(12) // 3


def test_it_gives_what_each_network_gives_after_learning_from_the_same_batches() -> None:
    torch.manual_seed(0)
    beside = Beside(6, networks=PARTS)
    torch.manual_seed(0)
    alone = [part(6) for part in PARTS]
    beside.estimate(iter([views(0), views(1)]))
    for network in alone:
        network.estimate(iter([views(0), views(1)]))
    x, lengths = views(2)[0], torch.linspace(0.4, 1, 12)
    z = beside.eval()(x, lengths)
    assert beside.dim == z.shape[1] == 7
    assert beside.pads_exactly
    expected = [network.eval()(x, lengths) for network in alone]
    torch.testing.assert_close(z, torch.cat(expected, dim=1))
    products = sum(part @ part.T for part in expected)
    torch.testing.assert_close(z @ z.T, products)


def test_a_checkpoint_can_describe_it() -> None:
    part = partial(Beside, networks=PARTS)
    again = restore(describe(part), "backbone", kind="module")
    assert describe(again) == describe(part)
    assert again(6).dim == 7


def test_networks_that_take_different_things_are_refused() -> None:
    with pytest.raises(ValueError, match="embeddings and features"):
        Beside(6, networks=[partial(Head), *PARTS])
    with pytest.raises(ValueError, match="empty"):
        Beside(6, networks=[])
    assert Beside(6, networks=PARTS[:1]).dim == 4
