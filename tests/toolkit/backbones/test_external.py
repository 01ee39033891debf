"""Networks of others, and several networks side by side."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from likeness.backbones import Beside, External, Head, OrderStatistics
from likeness.modalities.speaker.features import RawWave


class Waves(nn.Module):
    """(B, S) and lengths -> (B, 4); `form` says how the lengths are given."""

    def __init__(self, form: str = "none", exact: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 4)
        self.form, self.exact = form, exact
        self.seen: Any = None

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        assert waves.ndim == 2
        self.seen = lengths
        num = torch.full((len(waves),), waves.shape[1], device=waves.device)
        if lengths is not None and self.exact:
            num = lengths if self.form == "counts" else (lengths * waves.shape[1]).round()
        mask = torch.arange(waves.shape[1], device=waves.device) < num[:, None]
        x = torch.where(mask, waves, 0)
        return self.linear(torch.stack((x.abs().sum(1) / num, x.square().sum(1) / num), dim=1))


class Several(nn.Module):
    """What a network of somebody else gives: an embedding among other things."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.form, self.linear = form, nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Any:
        return self.form(self.linear(x.flatten(1)))


def in_object(z: Tensor) -> Any:
    return SimpleNamespace(embeddings=z)


def in_map(z: Tensor) -> Tensor:
    return z[:, :, None, None]


def external(form: Any, output: int | str = "", **others: Any) -> External:
    settings = {"network": partial(Several, form), "input_shape": (3, 2, 2), "output": output}
    return External(3, **{**settings, **others})


@pytest.mark.parametrize(
    ("form", "output"),
    [
        (lambda z: (7, z), 1),
        (lambda z: (7, z), "1"),
        (lambda z: (7, z), -1),
        (lambda z: {"features": 7, "embeddings": z}, "embeddings"),
        (in_object, "embeddings"),
        (in_map, ""),
    ],
)
def test_an_embedding_among_several_outputs(form, output):
    network, x = external(form, output), torch.randn(5, 3, 2, 2)
    assert (network.dim, network.image_size) == (4, (2, 2))
    assert torch.equal(network(x), network.network.linear(x.flatten(1)))
    assert [name for name, _ in network.named_children()] == ["network"]


@pytest.mark.parametrize(
    ("form", "settings", "keyword"),
    [
        (lambda z: (7, z), {}, "tuple of 2"),
        (lambda z: (7, z), {"output": 5}, "output=0"),
        (lambda z: {"features": z, "embeddings": z}, {"output": "z"}, "features, embeddings"),
        (in_object, {"output": "embedding"}, "SimpleNamespace"),
        (lambda z: z[:, None].expand(-1, 3, -1), {}, r"\(2, 3, 4\)"),
        (lambda z: None, {}, "gives None"),
        (lambda z: z[:1], {}, "1 rows"),
        (in_map, {"input_shape": (3, 5, 5)}, "RuntimeError"),
        (in_map, {"network": lambda: 7}, "a int"),
        (in_map, {"network": Several(in_map)}, "a Several"),
    ],
)
def test_what_is_no_embedding_is_refused(form, settings, keyword):
    with pytest.raises(ValueError, match=keyword):
        external(form, **settings)


def test_trying_a_network_draws_no_random_number_and_changes_no_statistics():
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 4))

    torch.manual_seed(0)
    before = network()
    expected = torch.rand(3)
    torch.manual_seed(0)
    tried = External(3, network=network, input_shape=(3, 2, 2))
    assert torch.equal(torch.rand(3), expected)
    assert tried.training
    state = tried.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in before.state_dict().items())


@pytest.mark.parametrize("form", ["relative", "counts"])
def test_lengths_are_given_as_the_network_takes_them(form):
    network = External(1, network=partial(Waves, form), input_shape=(100,), lengths=form)
    assert network.pads_exactly
    waves, lengths = torch.randn(2, 100), torch.tensor([0.4, 1.0])
    features, frames = RawWave()(waves, lengths)
    together = network(features, frames)
    expected = [40, 100] if form == "counts" else [0.4, 1.0]
    assert network.network.seen.tolist() == pytest.approx(expected)
    alone = network(RawWave()(waves[:1, :40], None)[0])
    torch.testing.assert_close(together[:1], alone)


def test_padding_that_a_network_sees_is_refused():
    with pytest.raises(ValueError, match="padding changes"):
        External(1, network=partial(Waves, exact=False), input_shape=(100,), lengths="relative")
    network = External(1, network=Waves, input_shape=(100,))
    assert not network.pads_exactly
    assert network(torch.randn(2, 100, 1), torch.ones(2)).shape == (2, 4)
    with pytest.raises(ValueError, match="padded"):
        network(torch.randn(2, 100, 1), torch.tensor([0.5, 1.0]))


PARTS = [partial(OrderStatistics, dim=4), partial(OrderStatistics, dim=3, differences=(2,))]


def views(seed: int) -> tuple[Tensor, None, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(12, 40, 6, generator=generator), None, torch.arange(12) // 3


def test_it_gives_what_each_network_gives_after_learning_from_the_same_batches():
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


def test_networks_that_take_different_things_are_refused():
    with pytest.raises(ValueError, match="embeddings and features"):
        Beside(6, networks=[partial(Head), *PARTS])
    with pytest.raises(ValueError, match="empty"):
        Beside(6, networks=[])
    assert Beside(6, networks=PARTS[:1]).dim == 4
