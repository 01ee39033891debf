"""Inter-top-k: value and gradient against the formula as loops, its schedule and its limits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from likeness.toolkit.losses.intertopk import InterTopK


def batch(size: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(size) % 6
    return torch.randn(size, 5, generator=generator, dtype=torch.float64), y


def made(**settings: Any) -> Any:
    torch.manual_seed(1)
    return InterTopK(5, 6, **{"num_subcentres": 2, "hardest": 2, "scale": 8.0} | settings).double()


def by_loops(loss: Any, z: Tensor, y: Tensor) -> tuple[float, np.ndarray]:
    """The mean loss and its gradient by z, one embedding, one class, one sub-centre at a time.

    The gradient of every cosine is written out: that of a logit s cos(theta + m) by the cosine is
    s sin(theta + m) / sin(theta).
    """
    every = torch.cat([loss.proxies[None], loss.subcentres]).detach().numpy()
    total, gradient = 0.0, np.zeros(tuple(z.shape))
    for i, x in enumerate(z.detach().numpy()):
        length = float(np.linalg.norm(x))
        angles, slopes = [], []
        for j in range(6):
            units = [vector / np.linalg.norm(vector) for vector in every[:, j]]
            cosines = [float(x @ unit) / length for unit in units]
            k = int(np.argmax(cosines))
            angles.append(math.acos(max(-1.0, min(1.0, cosines[k]))))
            slopes.append((units[k] - cosines[k] * x / length) / length)  # of the cosine by x
        label = int(y[i])
        wrong = sorted((angle, j) for j, angle in enumerate(angles) if j != label)
        shifts = dict.fromkeys((j for _, j in wrong[: loss.hardest]), -loss.rising.now(False))
        shifts[label] = loss.moving.now(False)
        logits, rates = [], []
        for j, angle in enumerate(angles):
            moved = angle + shifts.get(j, 0.0)
            if moved > math.pi:  # WeSpeaker's rule: no step, and the slope of the cosine
                logits.append(loss.scale * (math.cos(angle) - 1 + math.cos(shifts[j])))
                rates.append(loss.scale)
            else:
                logits.append(loss.scale * math.cos(moved))
                rates.append(loss.scale * math.sin(moved) / math.sin(angle))
        sum_exp = sum(math.exp(value) for value in logits)
        total += math.log(sum_exp) - logits[label]
        for j in range(6):
            share = math.exp(logits[j]) / sum_exp - (j == label)
            gradient[i] += share * rates[j] * slopes[j] / len(z)
    return total / len(z), gradient


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"penalty": 0.3, "hardest": 4},
        {"margin": 1.2},  # some targets are beyond pi
        {"num_subcentres": 1, "hardest": 1},
        {"hardest": 99},  # all wrong classes
        {"hardest": 0},
    ],
)
def test_value_and_gradient_are_the_formula_s(settings: dict[str, Any]) -> None:
    z, y = batch()
    loss = made(**settings)
    z[0] = -10 * loss.proxies.detach()[0] - 9 * loss.subcentres.detach().sum(dim=0)[0]
    z.requires_grad_()
    value = loss(z, y)
    value.backward()
    expected, gradient = by_loops(loss, z, y)
    assert value.item() == pytest.approx(expected, rel=1e-10)
    assert z.grad is not None
    np.testing.assert_allclose(z.grad.numpy(), gradient, rtol=1e-8, atol=1e-10)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (z.detach().clone().requires_grad_(),))


def test_the_penalty_rises_with_the_margin() -> None:
    z, y = batch()
    loss = made(warmup_steps=(10, 30))
    for step, share in ((0, 0.0), (10, 0.0), (20, 0.5), (30, 1.0), (99, 1.0)):
        loss.at_step(step)
        other = made(margin=share * 0.2, penalty=share * 0.06)
        assert loss(z, y).item() == pytest.approx(other(z, y).item(), rel=1e-12)
    with pytest.raises(ValueError, match="at_step"):
        made(warmup_steps=5)(z, y)
