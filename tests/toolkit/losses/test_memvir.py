"""MemVir against its formula, written as loops over a list of all steps."""

import json
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.memvir import MemVir
from likeness.toolkit.losses.proxy import ProxyAnchor
from likeness.toolkit.losses.softmax import NormFace
from tests.toolkit.losses.drawn import GOLDEN, gradcheck, rows

DIM, CLASSES = 5, 3


def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    z = torch.randn(size, DIM, generator=generator, dtype=torch.float64)
    return z, torch.randint(CLASSES, (size,), generator=generator)


def members(history: list[Any], now: Any, num_steps: int, gap: int) -> tuple[list[Any], list[Any]]:
    """All (embedding, class) and all proxies that step len(history) compares: whole history, no
    ring.
    """
    z, y, proxies = now
    pairs, vectors = list(zip(z, y, strict=True)), list(proxies)
    for k in range(1, num_steps + 1):
        step = len(history) - k * (gap + 1)
        if step >= 0:
            past, labels, old = history[step]
            pairs += [(row, label + k * CLASSES) for row, label in zip(past, labels, strict=True)]
            vectors += old
    return pairs, vectors


def softmax_by_loops(pairs: list[Any], vectors: list[Any], scale: float) -> float:
    total = 0.0
    for z, label in pairs:
        logits = [scale * float(z @ w) for w in vectors]
        top = max(logits)
        total += top + math.log(sum(math.exp(x - top) for x in logits)) - logits[label]
    return total / len(pairs)


def anchor_by_loops(pairs: list[Any], vectors: list[Any], scale: float, margin: float) -> float:
    pull, push = [], []
    for j, w in enumerate(vectors):
        own = [math.exp(-scale * (float(z @ w) - margin)) for z, label in pairs if label == j]
        other = [math.exp(scale * (float(z @ w) + margin)) for z, label in pairs if label != j]
        pull += [math.log1p(sum(own))] if own else []
        push.append(math.log1p(sum(other)))
    return float(np.mean(pull) + np.mean(push))


@pytest.mark.parametrize(("name", "factor"), [("softmax", 1.0), ("proxynca", 2.0)])
def test_memvir_equals_its_release(name: str, factor: float) -> None:
    """Seven steps with new proxies at each. ProxyNCA's scale is of |z - w|^2 = 2 - 2 cos."""
    with np.load(GOLDEN / f"memvir_{name}__memvir.npz", allow_pickle=False) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if "/" in key}
        h = json.loads(str(file["hparams"]))
    num_steps, gap = h["mem_num_step"], h["mem_step_gap"]
    memory = {"num_steps": num_steps, "step_gap": gap, "batch_size": 5}
    loss = MemVir(6, 4, scale=factor * h["scale"], **memory).double()
    for step in range(7):
        loss.proxies.data = arrays[f"step{step}/W"].T.contiguous()
        z = arrays[f"step{step}/embeddings"].requires_grad_()
        virtual = min(step // (gap + 1), num_steps)
        assert len(loss.virtual()[0]) == 4 * virtual
        value = loss(z, arrays[f"step{step}/labels"])
        torch.testing.assert_close(value, arrays[f"step{step}/loss"], rtol=1e-10, atol=0)
        gradients = torch.autograd.grad(value, (z, loss.proxies))
        expected = arrays[f"step{step}/grad_embeddings"], arrays[f"step{step}/grad_W"].T
        for ours, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@given(
    num_steps=st.integers(1, 3),
    gap=st.integers(0, 2),
    warmup=st.integers(0, 3),
    base=st.sampled_from(["softmax", "proxy_anchor"]),
)
@settings(max_examples=20, deadline=None)
def test_each_step_is_the_formula_over_the_whole_history(num_steps, gap, warmup, base):
    torch.manual_seed(0)
    memory = {"num_steps": num_steps, "step_gap": gap, "warmup_steps": warmup, "batch_size": 6}
    loss = MemVir(DIM, CLASSES, base=base, scale=4.0, margin=0.2, **memory).double()
    history: list[Any] = []
    for step in range(warmup + (num_steps + 1) * (gap + 1) + 2):  # the ring is used again
        z, y = batch(step, size=4 + step % 3)  # batches of unequal size
        with torch.no_grad():  # proxies move, as in training
            loss.proxies.add_(0.3 * torch.randn_like(loss.proxies))
        now = (rows(z), y.tolist(), rows(loss.proxies))
        pairs, vectors = members(history, now, num_steps, gap)
        loss.at_step(step)
        value = float(loss(z, y).detach())
        by_loops = softmax_by_loops if base == "softmax" else partial(anchor_by_loops, margin=0.2)
        expected = by_loops(pairs, vectors, 4.0)
        assert value == pytest.approx(expected, rel=1e-9)
        if step >= warmup:
            history.append(now)


@pytest.mark.parametrize("base", ["softmax", "proxy_anchor"])
def test_the_gradient_is_the_value_s_with_the_memory_held_fixed(base: Any) -> None:
    loss = MemVir(DIM, CLASSES, base=base, scale=4.0, num_steps=2, step_gap=0).double()
    for step in range(2):
        loss(*batch(step, 4))
    assert gradcheck(loss, *batch(2, 4), "proxies")


@pytest.mark.parametrize("base", ["softmax", "proxy_anchor"])
def test_in_evaluation_it_is_the_base_and_remembers_nothing(base: Any) -> None:
    make = {"softmax": NormFace, "proxy_anchor": ProxyAnchor}[base]
    plain, loss = make(DIM, CLASSES, scale=7.0).double(), MemVir(DIM, CLASSES, base=base, scale=7.0)
    plain.proxies.data = loss.double().proxies.data
    for step in range(3):
        loss(*batch(step, 6))
    remembered, (z, y) = int(loss.remembered), batch(0, 6)
    assert float(loss.eval()(z, y).detach()) == pytest.approx(float(plain(z, y)), rel=1e-12)
    assert int(loss.remembered) == remembered
    torch.testing.assert_close(loss.logits(z), plain.logits(z))


def test_a_resumed_run_goes_on_with_the_same_memory() -> None:
    first = MemVir(DIM, CLASSES, num_steps=2, step_gap=1)
    for step in range(5):
        first(batch(step, 4)[0].float(), batch(step, 4)[1])
    second = MemVir(DIM, CLASSES, num_steps=2, step_gap=1)
    second.load_state_dict(first.state_dict())
    z, y = batch(9, 4)
    assert torch.equal(first(z.float(), y), second(z.float(), y))
    assert len(second.virtual()[0]) == 2 * CLASSES


def test_no_step_waits_for_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the device meta cannot be read at all. It has no autocast."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    loss = MemVir(DIM, CLASSES, num_steps=2, step_gap=0, batch_size=6)
    for step in range(2):
        z, y = batch(step, 3 + 2 * step)
        loss(z.float(), y)
    loss.to("meta")
    z, y = torch.randn(4, DIM, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    assert [part.shape[0] for part in loss.virtual()] == [2 * CLASSES, 8, 8]
    assert loss(z, y).shape == ()
    assert (loss.sizes.tolist(), int(loss.remembered)) == ([4, 5], 3)


def test_a_batch_that_the_memory_cannot_hold_is_one_sentence() -> None:
    loss = MemVir(4, 3, batch_size=2)
    with pytest.raises(LikenessError, match="set loss"):
        loss(torch.randn(3, 4), torch.arange(3))
    assert torch.isfinite(loss.eval()(torch.randn(3, 4), torch.arange(3)))
