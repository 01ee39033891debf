"""DCML against its formula, composed one item at a time."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from likeness.toolkit.losses.compositional import DCML
from likeness.toolkit.losses.triplet import MarginLoss
from tests.toolkit.losses import drawn

batch = partial(drawn.batch, size=9, dim=6)


def composed(loss: Any, z: Any) -> tuple[Any, float]:
    """The composites (K, B, d), and the mean of -log of the largest weight."""
    weights, bias = (given.detach().numpy() for given in loss.compositors.parameters())
    length = -(-z.shape[1] // loss.num_parts)
    made: Any = [[] for _ in range(loss.num_composites)]
    sure = []
    for row in z:
        padded = [*row, *[0.0] * (length * loss.num_parts - len(row))]
        parts = [np.array(padded[e * length : (e + 1) * length]) for e in range(loss.num_parts)]
        for k in range(loss.num_composites):
            own = range(k * loss.num_parts, (k + 1) * loss.num_parts)
            logits = [float(weights[i] @ row) + bias[i] for i in own]
            total = sum(math.exp(value) for value in logits)
            share = [math.exp(value) / total for value in logits]
            made[k].append(sum(a * part for a, part in zip(share, parts, strict=True)))
            sure.append(-math.log(max(share)))
    return torch.tensor(np.array(made)), float(np.mean(sure))


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize(("parts", "composites"), [(1, 1), (2, 3), (4, 2), (6, 1)])
def test_dcml_is_the_margin_loss_of_its_composites(parts, composites, crossed):
    torch.manual_seed(0)
    loss = DCML(6, num_parts=parts, num_composites=composites, reinforce=0.7, beta=0.9).double()
    z, y = batch(1)
    z_key = batch(2)[0] if crossed else None
    rows, sure = composed(loss, z.numpy())
    keys = None if z_key is None else composed(loss, z_key.numpy())[0]
    margin = MarginLoss(rows.shape[2], beta=0.9).double()
    margin.load_state_dict(loss.base.state_dict())
    values = [
        margin(rows[k], y, None if keys is None else keys[k]).item() for k in range(composites)
    ]
    assert loss(z, y, z_key).item() == pytest.approx(np.mean(values) + 0.7 * sure, rel=1e-9)


def test_dcml_equals_its_release() -> None:
    """The release sums over its four compositors where this takes the mean."""
    arrays = drawn.tensors("dcml__dcml", "small0")
    loss = DCML(16, num_parts=4, num_composites=4, margin=0.2, beta=1.2).double()
    weight, bias = loss.compositors.parameters()
    weight.data, bias.data = arrays["weights"].flatten(0, 1), arrays["biases"].flatten()
    z = arrays["embeddings"].requires_grad_()
    value = loss(z, arrays["labels"])
    # it adds 1e-8 to squared distances
    torch.testing.assert_close(4 * value, arrays["loss"], rtol=1e-7, atol=0)
    gradients = torch.autograd.grad(4 * value, (z, weight, bias, loss.base.beta))
    names = ("embeddings", "weights", "biases", "beta")
    for ours, theirs in zip(gradients, names, strict=True):
        expected = arrays[f"grad_{theirs}"].view_as(ours)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)
