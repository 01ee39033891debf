"""ProxyGML and the group loss against their formulas, one item and one class at a time."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.toolkit.losses.graph import GroupLoss, ProxyGML
from likeness.toolkit.training.recipe import Optim
from tests.toolkit.losses import drawn
from tests.toolkit.losses.drawn import cosine, gradcheck

DIM, CLASSES = 6, 4


# Unequal classes, of which the last is absent and the one before has a single item.
batch = partial(drawn.batch, size=9, dim=DIM, labels=(0, 1, 0, 1, 0, 0, 2, 1, 0))


def log_sum(values: Any) -> float:
    top = max(values)
    return float(top + math.log(sum(math.exp(value - top) for value in values)))


def proxy_gml_by_loops(loss: Any, z: Any, y: Any) -> float:
    vectors = [loss.proxies.detach().numpy(), *loss.centres.detach().numpy()]  # N of (C, D)
    proxies = [(j, layer[j]) for layer in vectors for j in range(CLASSES)]
    count = len(vectors)
    size = min(max(math.ceil(loss.ratio * len(proxies) - 1e-9), 2 * count), len(proxies))
    total = 0.0
    for x, label in zip(z.numpy(), y.tolist(), strict=True):
        similar = [(cosine(x, p), j) for j, p in proxies]
        # the own class first, then by similarity
        subgraph = sorted(similar, key=lambda pair: (pair[1] == label, pair[0]), reverse=True)
        scores: dict[int, float] = {}
        for s, j in subgraph[:size]:
            scores[j] = scores.get(j, 0.0) + loss.scale * s
        total += log_sum(list(scores.values())) - scores[label]
    own = 0.0
    for j, p in proxies:
        of_class = [sum(cosine(p, q) for i, q in proxies if i == c) for c in range(CLASSES)]
        own += log_sum(of_class) - of_class[j]
    return total / len(y) + loss.weight * own / len(proxies)


@given(
    seed=st.integers(0, 50),
    count=st.integers(1, 4),
    ratio=st.floats(0.05, 1.0),
    weight=st.sampled_from([0.0, 0.3]),
    scale=st.floats(0.5, 10.0),
)
@settings(max_examples=25, deadline=None)
def test_proxy_gml_is_its_formula(seed, count, ratio, weight, scale):
    torch.manual_seed(seed)
    z, y = batch(seed)
    settings = {"num_proxies": count, "ratio": ratio, "weight": weight, "scale": scale}
    loss = ProxyGML(DIM, CLASSES, **settings).double()
    assert float(loss(z, y).detach()) == pytest.approx(proxy_gml_by_loops(loss, z, y), rel=1e-9)


def test_a_share_that_is_whole_is_not_rounded_up() -> None:
    assert 0.07 * 100 > 7  # in floating point
    loss = ProxyGML(DIM, 100, num_proxies=1, ratio=0.07, weight=0.0).double()
    z = torch.randn(1, DIM, dtype=torch.float64)
    s = [cosine(z[0].numpy(), proxy) for proxy in loss.proxies.detach().numpy()]
    others = sorted(s[:3] + s[4:], reverse=True)
    expected = log_sum([s[3], *others[:6]]) - s[3]
    assert loss(z, torch.tensor([3])).item() == pytest.approx(expected, rel=1e-12)


def test_proxy_gml_with_the_whole_graph_is_softmax_of_the_summed_cosines() -> None:
    z, y = batch()
    loss = ProxyGML(DIM, CLASSES, num_proxies=2, ratio=1.0, weight=0.0, scale=5.0).double()
    expected = torch.nn.functional.cross_entropy(loss.logits(z), y)
    assert float(loss(z, y).detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    groups = loss.param_groups(Optim(lr=0.1, proxy_lr_scale=3.0))
    assert [len(group["params"]) for group in groups] == [2]
    assert groups[0]["lr"] == pytest.approx(0.3)


def anchors_by_loops(prior: Any, y: Any, count: int) -> set[int]:
    chosen = set()
    for label in set(y):
        items = [i for i in range(len(y)) if y[i] == label]
        best = sorted(items, key=lambda i: -prior[i][label])
        chosen |= set(best[: min(count, len(items) - 1)])
    return chosen


def group_loss_by_loops(loss: Any, z: Any, y: Any, chosen: Any = None) -> float:
    rows, labels = z.numpy(), y.tolist()
    weights, bias = loss.proxies.detach().numpy(), loss.bias.detach().numpy()
    logits = [[float(x @ w) + b for w, b in zip(weights, bias, strict=True)] for x in rows]
    x = []
    for row in logits:
        scaled = [value / loss.temperature for value in row]
        x.append([math.exp(value - log_sum(scaled)) for value in scaled])
    if chosen is None:
        chosen = anchors_by_loops(x, labels, loss.num_anchors)
    for i in chosen:
        x[i] = [float(c == labels[i]) for c in range(CLASSES)]
    size = len(labels)
    w = [[max(np.corrcoef(rows[i], rows[j])[0, 1], 0.0) for j in range(size)] for i in range(size)]
    for _ in range(loss.num_steps):
        products = [
            [x[i][c] * sum(w[i][j] * x[j][c] for j in range(size)) for c in range(CLASSES)]
            for i in range(size)
        ]
        x = [[product / sum(row) for product in row] for row in products]
    value = -sum(math.log(x[i][labels[i]]) for i in range(size)) / size
    plain = sum(log_sum(row) - row[label] for row, label in zip(logits, labels, strict=True)) / size
    return value + loss.classify * plain


@given(
    seed=st.integers(0, 50),
    steps=st.integers(0, 3),
    count=st.integers(0, 3),
    temperature=st.floats(0.5, 20.0),
    classify=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_group_loss_is_its_formula(seed, steps, count, temperature, classify):
    torch.manual_seed(seed)
    z, y = batch(seed)
    settings = {"temperature": temperature, "num_steps": steps, "num_anchors": count}
    loss = GroupLoss(DIM, CLASSES, classify=classify, **settings).double()
    assert loss.bias is not None
    torch.nn.init.normal_(loss.bias)
    assert float(loss(z, y).detach()) == pytest.approx(group_loss_by_loops(loss, z, y), rel=1e-9)


STEPS = ((1, 1), (3, 2), (2, 0))
LOSSES: list[Any] = [partial(ProxyGML, num_proxies=count, scale=3.0) for count in (1, 3)]
LOSSES += [partial(GroupLoss, temperature=2.0, num_steps=n, num_anchors=k) for n, k in STEPS]


@pytest.mark.parametrize("make", LOSSES)
def test_gradients_are_the_value_s(make):
    assert gradcheck(make(DIM, CLASSES).double(), *batch())


def test_random_anchors_follow_a_stored_number() -> None:
    """Every class leaves one item without a label, draws differ, and a resumed run draws on."""
    z, y = batch()
    loss = GroupLoss(DIM, CLASSES, temperature=2.0, num_anchors=2, anchors="random").double()
    assert loss.bias is not None
    values = set()
    for _ in range(6):
        state = {name: value.clone() for name, value in loss.state_dict().items()}
        value = float(loss(z, y).detach())
        loss.load_state_dict(state)
        chosen = loss._are_anchors(torch.zeros(len(y)), y)
        assert [int(chosen[y == c].sum()) for c in range(3)] == [2, 2, 0]
        places = chosen.nonzero()[:, 0].tolist()
        assert value == pytest.approx(group_loss_by_loops(loss, z, y, places), rel=1e-9)
        values.add(round(value, 9))
    assert len(values) > 1


def test_an_item_without_variance_keeps_its_prior() -> None:
    z, y = batch()
    z[4] = 0.7
    loss = GroupLoss(DIM, CLASSES, temperature=2.0, num_steps=2, num_anchors=0, classify=0.0)
    loss.double()
    others = torch.arange(9) != 4
    prior = -(loss.logits(z)[4] / 2.0).log_softmax(dim=0)[y[4]]
    expected = (8 * loss(z[others], y[others]) + prior) / 9
    assert float(loss(z, y).detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
