"""Losses of this version against reference implementations, value and gradient, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from toolkit.losses.margin import ArcFace
from toolkit.losses.simple import SimPLE
from toolkit.losses.softmax import Softmax

GOLDEN = Path(__file__).parents[2] / "golden"
SMOOTH_ROWS = [2, 6, 7, 9, 11]  # rows of the hard case without duplicates or antipodes, where gradients are comparable

CASES: dict[str, tuple[Any, str, float]] = {  # file -> (loss from hparams and weights, the weights' name, relative tolerance)
    "standard__vmf_embeddings": (lambda h, d, c: Softmax(d, c), "w", 1e-10),
    "arcface__pml": (lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"]), "W", 1e-10),
    "arcface__insightface": (lambda h, d, c: ArcFace(d, c, margin=0.5, scale=64.0, wrap="none", grad="detached"), "w", 1e-9),
    "combined_arc__insightface": (lambda h, d, c: ArcFace(d, c, margin=0.5, scale=64.0, wrap="none", grad="detached"), "w", 1e-9),
    "arcface_cgd__opensphere": (lambda h, d, c: ArcFace(d, c, margin=h["m"], scale=h["s"], wrap="clamp", grad="detached"), "w", 1e-6),  # it clamps at 3.14159
    "arcface__vmf_embeddings": (lambda h, d, c: ArcFace(d, c, margin=h["m"], scale=np.exp(h["tau"]), wrap="none"), "w", 1e-9),
    "aam_softmax__speechbrain": (lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"]), "w", 2e-5),
    "aam_softmax_easy__speechbrain": (lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"], wrap="easy"), "w", 2e-5),
}


def read(name: str, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key.split("/")[1]: file[key] for key in file.files if key.startswith(f"{case}/")}
        return arrays, json.loads(str(file["hparams"]))


def close(ours: Tensor, theirs: np.ndarray, tolerance: float, rows: Any = slice(None)) -> None:
    scale = max(float(np.abs(theirs[rows]).max()), 1.0)
    torch.testing.assert_close(ours.detach()[rows] / scale, torch.from_numpy(theirs.astype(np.float64))[rows] / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ["small0", "hard0"])
@pytest.mark.parametrize("name", CASES)
def test_proxy_losses_equal_their_reference(name: str, case: str) -> None:
    make, weights, tolerance = CASES[name]
    arrays, hparams = read(name, case)
    proxies = arrays[weights].astype(np.float64)
    proxies = proxies.T if weights == "W" else proxies
    loss = make(hparams, proxies.shape[1], proxies.shape[0]).double()
    loss.proxies = nn.Parameter(torch.from_numpy(proxies.copy()))
    z = torch.from_numpy(arrays["embeddings"].astype(np.float64)).requires_grad_()
    value = loss(z, torch.from_numpy(arrays["labels"]))
    value.backward()
    assert value.item() == pytest.approx(float(arrays["loss"]), rel=tolerance)
    rows: Any = slice(None) if case == "small0" else SMOOTH_ROWS
    assert z.grad is not None
    assert bool(torch.isfinite(z.grad).all())
    close(z.grad, arrays["grad_embeddings"], tolerance, rows)
    if case == "small0":
        theirs = arrays[f"grad_{weights}"].T if weights == "W" else arrays[f"grad_{weights}"]
        if name.endswith("opensphere"):  # it normalises w in place before the product, so its gradient lacks the tangent projection
            theirs = theirs - (theirs * proxies).sum(1, keepdims=True) * proxies
        assert loss.proxies.grad is not None
        close(loss.proxies.grad, theirs, tolerance)


def opensphere_simple(arrays: dict[str, Any], h: dict[str, Any]) -> tuple[Tensor, Tensor, SimPLE]:
    """SimPLE on OpenSphere's bank: its first B rows are the batch's own keys, which it excludes from the positives."""
    z = torch.from_numpy(arrays["embeddings"]).requires_grad_()
    loss = SimPLE(z.shape[1], b_theta=h["b_theta"], alpha=h["alpha"], r=h["r"], b=h["b"], margin=h["m"], weight=h["lw"]).double()
    loss.bank = GivenBank(torch.from_numpy(arrays["x_bank"]), torch.from_numpy(arrays["y_bank"]))
    return z, loss(z, torch.from_numpy(arrays["labels"]), z.detach()), loss


class GivenBank(nn.Module):
    """A bank with given content, whose first slots are the batch's."""

    def __init__(self, keys: Tensor, labels: Tensor):
        super().__init__()
        self.keys, self.labels = keys, labels

    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor:
        return torch.arange(len(y))


@pytest.mark.parametrize("case", ["small0", "hard0"])
def test_simple_equals_opensphere(case: str) -> None:
    arrays, hparams = read("simple__opensphere", case)
    z, value, loss = opensphere_simple(arrays, hparams)
    value.backward()
    assert value.item() == pytest.approx(float(arrays["loss"]), rel=1e-9)
    assert z.grad is not None
    assert loss.b.grad is not None
    close(z.grad, arrays["grad_embeddings"], 1e-9, slice(None) if case == "small0" else SMOOTH_ROWS)
    assert float(loss.b.grad) == pytest.approx(float(arrays["grad_bias"][0]), rel=1e-9)
