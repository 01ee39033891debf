"""Losses of this version against reference implementations, value and gradient, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from likeness.toolkit.losses.adaptive import AdaFace, CircleSoftmax, CurricularFace, MagFace
from likeness.toolkit.losses.graph import GroupLoss, ProxyGML
from likeness.toolkit.losses.hyperbolic import Hyperbolic, exp_map
from likeness.toolkit.losses.intertopk import InterTopK
from likeness.toolkit.losses.margin import ArcFace, CosFace, SubCenterArcFace
from likeness.toolkit.losses.proxy import (
    CenterLoss,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
    SoftTriple,
)
from likeness.toolkit.losses.simple import SimPLE
from likeness.toolkit.losses.softmax import Cosine, NormFace, NormSoft, Softmax
from likeness.toolkit.losses.sphereface import LSoftmax, SphereFace, SphereFace2, SphereFaceR
from tests.toolkit.losses.drawn import read

GOLDEN = Path(__file__).parents[2] / "golden"
# rows of the hard case without duplicates or antipodes, where gradients are comparable
SMOOTH_ROWS = [2, 6, 7, 9, 11]

# file -> (loss from hparams and weights, the weights' name, relative tolerance)
CASES: dict[str, tuple[Any, str, float]] = {
    "standard__vmf_embeddings": (lambda h, d, c: Softmax(d, c), "w", 1e-10),
    "arcface__pml": (
        lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"]),
        "W",
        1e-10,
    ),
    "arcface__insightface": (
        lambda h, d, c: ArcFace(d, c, margin=0.5, scale=64.0, wrap="none", grad="detached"),
        "w",
        1e-9,
    ),
    "combined_arc__insightface": (
        lambda h, d, c: ArcFace(d, c, margin=0.5, scale=64.0, wrap="none", grad="detached"),
        "w",
        1e-9,
    ),
    # it clamps at 3.14159
    "arcface_cgd__opensphere": (
        lambda h, d, c: ArcFace(d, c, margin=h["m"], scale=h["s"], wrap="clamp", grad="detached"),
        "w",
        1e-6,
    ),
    "arcface__vmf_embeddings": (
        lambda h, d, c: ArcFace(d, c, margin=h["m"], wrap="none", learn_scale=True),
        "w",
        1e-9,
    ),
    "aam_softmax__speechbrain": (
        lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"]),
        "w",
        2e-5,
    ),
    "aam_softmax_easy__speechbrain": (
        lambda h, d, c: ArcFace(d, c, margin=h["margin"], scale=h["scale"], wrap="easy"),
        "w",
        2e-5,
    ),
    "cosine__vmf_embeddings": (lambda h, d, c: Cosine(d, c), "w", 1e-10),
    "normalized_softmax__pml": (
        lambda h, d, c: NormFace(d, c, scale=1 / h["temperature"]),
        "W",
        1e-10,
    ),
    "norm_soft__azgo14": (
        lambda h, d, c: NormSoft(d, c, temperature=h["temperature"]),
        "W",
        1e-9,
    ),
    "hyperbolic_c1e-05__vmf_embeddings": (
        lambda h, d, c: Hyperbolic(d, c, c=h["c"], riemannian=True, epsilon=1e-5),
        "p_vals",
        1e-8,
    ),
    "hyperbolic_c0.1__vmf_embeddings": (
        lambda h, d, c: Hyperbolic(d, c, c=h["c"], riemannian=True, epsilon=1e-5),
        "p_vals",
        1e-8,
    ),
    "hyperbolic_c1__vmf_embeddings": (
        lambda h, d, c: Hyperbolic(d, c, c=h["c"], riemannian=True, epsilon=1e-5),
        "p_vals",
        1e-8,
    ),
    "cosface__pml": (
        lambda h, d, c: CosFace(d, c, margin=h["margin"], scale=h["scale"]),
        "W",
        1e-10,
    ),
    "cosface__insightface": (lambda h, d, c: CosFace(d, c, margin=h["m"], scale=h["s"]), "w", 1e-9),
    "cosface_cgd__opensphere": (
        lambda h, d, c: CosFace(d, c, margin=h["m"], scale=h["s"]),
        "w",
        1e-9,
    ),
    "am_softmax__speechbrain": (
        lambda h, d, c: CosFace(d, c, margin=h["margin"], scale=h["scale"]),
        "w",
        2e-5,
    ),
    "subcenter_arcface__pml": (
        lambda h, d, c: SubCenterArcFace(
            d, c, margin=h["margin"], scale=h["scale"], num_subcentres=h["sub_centers"]
        ),
        "W",
        1e-10,
    ),
    "intertopk_subcenter__wespeaker": (
        lambda h, d, c: InterTopK(
            d,
            c,
            margin=h["margin"],
            penalty=h["mp"] * h["margin"] / 0.2,
            hardest=h["k_top"],
            scale=h["scale"],
            num_subcentres=h["K"],
        ),
        "weight",
        1e-9,
    ),
    "lsoftmax__pml": (lambda h, d, c: LSoftmax(d, c, margin=h["margin"]), "W", 1e-10),
    "sphereface_pml__pml": (
        lambda h, d, c: SphereFace(d, c, margin=h["margin"], lam_start=0.0, lam_min=0.0),
        "W",
        1e-10,
    ),
    "asoftmax__wespeaker": (
        lambda h, d, c: at_step(SphereFace(d, c, margin=h["margin"]), 0),
        "weight",
        1e-8,
    ),
    "sphereface_r__opensphere": (
        lambda h, d, c: SphereFaceR(d, c, margin=h["m"], scale=h["s"]),
        "w",
        1e-9,
    ),
    "sphereface2_c__opensphere": (
        lambda h, d, c: SphereFace2(
            d,
            c,
            alpha=h["alpha"],
            scale=h["r"],
            margin=h["m"],
            t=h["t"],
            weight=h["lw"] / h["r"],
            grad="detached",
        ),
        "w",
        1e-9,
    ),
    "sphereface2_c__wespeaker": (
        lambda h, d, c: SphereFace2(d, c, alpha=h["lam"], scale=h["s"], margin=h["m"], t=h["t"]),
        "weight",
        1e-8,
    ),
    "sphereface2_a__wespeaker": (
        lambda h, d, c: SphereFace2(
            d, c, kind="A", alpha=h["lam"], scale=h["s"], margin=h["m"], t=h["t"]
        ),
        "weight",
        1e-8,
    ),
    "circle_class__own": (
        lambda h, d, c: CircleSoftmax(d, c, margin=h["m"], scale=h["gamma"]),
        "w",
        1e-9,
    ),
    "curricularface__curricularface": (
        lambda h, d, c: CurricularFace(d, c, margin=h["m"], scale=h["s"], debias=False),
        "kernel",
        1e-9,
    ),
    "magface__magface": (lambda h, d, c: MagFace(d, c), "weight", 1e-9),
    "magface_easy__magface": (lambda h, d, c: MagFace(d, c, wrap="easy"), "weight", 1e-9),
    "adaface__adaface": (
        lambda h, d, c: AdaFace(
            d, c, margin=h["m"], h=h["h"], scale=h["s"], momentum=1 - h["t_alpha"]
        ),
        "kernel",
        1e-9,
    ),
    "center__own": (
        lambda h, d, c: CenterLoss(d, c, weight=1.0, classify=False, centre_grad="loss"),
        "centers",
        1e-9,
    ),
    "proxynca__official": (lambda h, d, c: ProxyNCA(d, c, scale=h["scale"]), "proxies", 1e-9),
    "proxyncapp__official": (
        lambda h, d, c: ProxyNCAPlusPlus(d, c, temperature=1 / h["scale"] ** 2),
        "proxies",
        1e-9,
    ),
    "proxynca__pml": (
        lambda h, d, c: ProxyNCAPlusPlus(d, c, temperature=1 / h["softmax_scale"]),
        "proxies",
        1e-10,
    ),
    "proxynca_s9__pml": (
        lambda h, d, c: ProxyNCAPlusPlus(d, c, temperature=1 / h["softmax_scale"]),
        "proxies",
        1e-10,
    ),
    "proxyanchor__pml": (
        lambda h, d, c: ProxyAnchor(d, c, margin=h["margin"], scale=h["alpha"]),
        "proxies",
        1e-10,
    ),
    "proxyanchor__official": (
        lambda h, d, c: ProxyAnchor(d, c, margin=h["m"], scale=h["alpha"], epsilon=1e-12),
        "proxies",
        1e-9,
    ),
    "softtriple__pml": (
        lambda h, d, c: SoftTriple(
            d,
            c,
            scale=h["la"],
            gamma=1 / h["gamma"],
            margin=h["margin"],
            num_centres=h["centers_per_class"],
            tau=0.0,
        ),
        "fc",
        1e-10,
    ),
    # it adds 1e-8 to the softmax's denominator
    "proxy_gml__proxygml": (
        lambda h, d, c: ProxyGML(
            d, c, num_proxies=h["N"], ratio=h["r"], weight=h["weight_lambda"], scale=1.0
        ),
        "Proxies",
        1e-8,
    ),
    # it adds 1e-12 to a probability before its logarithm
    "group_loss__grouploss": (
        lambda h, d, c: GroupLoss(
            d,
            c,
            temperature=h["temperature"],
            num_steps=h["num_iter_gtg"],
            num_anchors=h["num_labeled_points_class"],
        ),
        "w",
        1e-8,
    ),
}
TRANSPOSED = {"W", "fc", "kernel", "Proxies"}  # stored (D, C)
# further parameters: ours, and its sign
OTHERS = {
    "temp": ("tau", -1.0),
    "b": ("bias", 1.0),
    "bias": ("bias", 1.0),
    "a_vals": ("normals", 1.0),
}


def at_step(loss: Any, step: int) -> Any:
    loss.at_step(step)
    return loss


def by_class(weights: np.ndarray, name: str, file: str) -> np.ndarray:
    """(C, D), or (C, K, D) where a class has several."""
    weights = weights.astype(np.float64)
    rows = (
        weights.T
        if name in TRANSPOSED or (name == "weight" and file.startswith("magface"))
        else weights
    )
    return rows.reshape(5, 3, -1) if len(rows) == 15 else rows


def close(ours: Tensor, theirs: np.ndarray, tolerance: float, rows: Any = slice(None)) -> None:
    scale = max(float(np.abs(theirs[rows]).max()), 1.0)
    torch.testing.assert_close(
        ours.detach()[rows] / scale,
        torch.from_numpy(theirs.astype(np.float64))[rows] / scale,
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.parametrize("case", ["small0", "hard0"])
@pytest.mark.parametrize("name", CASES)
def test_proxy_losses_equal_their_reference(name: str, case: str) -> None:
    make, weights, tolerance = CASES[name]
    arrays, hparams = read(name, case)
    proxies = by_class(arrays[weights], weights, name)
    loss = make(hparams, proxies.shape[-1], proxies.shape[0]).double()
    main = "centres" if weights == "centers" else "proxies"
    several = next(
        (name for name in ("subcentres", "centres") if hasattr(loss, name) and proxies.ndim == 3),
        "",
    )
    setattr(
        loss, main, nn.Parameter(torch.from_numpy((proxies[:, 0] if several else proxies).copy()))
    )
    if several:
        setattr(
            loss, several, nn.Parameter(torch.from_numpy(proxies[:, 1:].transpose(1, 0, 2).copy()))
        )
    others = {
        theirs: getattr(loss, ours)
        for theirs, (ours, _) in OTHERS.items()
        if theirs in arrays and getattr(loss, ours, None) is not None
    }
    for theirs, parameter in others.items():
        parameter.data = OTHERS[theirs][1] * torch.from_numpy(arrays[theirs]).reshape(
            parameter.shape
        )
    z = torch.from_numpy(arrays["embeddings"].astype(np.float64)).requires_grad_()
    value = loss(z, torch.from_numpy(arrays["labels"]))
    value.backward()
    assert value.item() == pytest.approx(float(arrays["loss"]), rel=tolerance)
    rows: Any = slice(None) if case == "small0" else SMOOTH_ROWS
    assert z.grad is not None
    assert bool(torch.isfinite(z.grad).all())
    close(z.grad, arrays["grad_embeddings"], tolerance, rows)
    for theirs, parameter in others.items():
        if case == "small0" or parameter.numel() == 1:
            close(
                parameter.grad.flatten(),
                OTHERS[theirs][1] * arrays[f"grad_{theirs}"].flatten(),
                tolerance,
            )
    if case == "small0":
        theirs = by_class(arrays[f"grad_{weights}"], weights, name)
        # it normalises w in place before the product, so its gradient lacks the tangent projection
        if name.endswith("opensphere"):
            theirs = theirs - (theirs * proxies).sum(1, keepdims=True) * proxies
        ours = getattr(loss, main).grad
        if several:
            ours = torch.cat([ours[:, None], getattr(loss, several).grad.transpose(0, 1)], dim=1)
        close(ours, theirs, tolerance)


def test_states_after_one_step_equal_their_reference() -> None:
    arrays, _ = read("curricularface__curricularface", "small0")
    loss = CurricularFace(16, 5, debias=False).double()
    loss.proxies = nn.Parameter(torch.from_numpy(arrays["kernel"].T.copy()))
    loss(torch.from_numpy(arrays["embeddings"]), torch.from_numpy(arrays["labels"]))
    assert float(loss.t) == pytest.approx(float(arrays["t_after"][0]), rel=1e-9)
    arrays, _ = read("adaface__adaface", "hard0")
    ada = AdaFace(16, 5, momentum=0.0).double()
    ada(torch.from_numpy(arrays["embeddings"]), torch.from_numpy(arrays["labels"]))
    np.testing.assert_allclose(
        ada.ema.numpy(), [arrays["batch_mean"][0], arrays["batch_std"][0]], rtol=1e-9
    )


@pytest.mark.parametrize("c", ["1e-05", "0.1", "1"])
def test_points_of_the_ball_equal_the_release_s(c: str) -> None:
    """Their distances: tests/eval/test_similarity.py."""
    with np.load(GOLDEN / "poincare__vmf_embeddings.npz", allow_pickle=False) as file:
        x, points = torch.from_numpy(file["x"]), file[f"expmap0_c{c}"]
    np.testing.assert_allclose(exp_map(x, float(c)).numpy(), points, rtol=1e-9, atol=1e-12)


def opensphere_simple(arrays: dict[str, Any], h: dict[str, Any]) -> tuple[Tensor, Tensor, SimPLE]:
    """SimPLE on OpenSphere's bank: its first B rows are the batch's own keys, which it excludes
    from the positives.
    """
    z = torch.from_numpy(arrays["embeddings"]).requires_grad_()
    loss = SimPLE(
        z.shape[1],
        b_theta=h["b_theta"],
        alpha=h["alpha"],
        r=h["r"],
        b=h["b"],
        margin=h["m"],
        weight=h["lw"],
    ).double()
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
