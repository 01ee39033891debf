"""Draws the figures of the three papers that need no data and no training.

This takes seconds:

    python examples/paper_figures.py --out figures

- vmf_fig2.png shows the ratio of Bessel functions A_n(kappa), and where the vMF paper's
  initialisation puts kappa (Scott et al. 2021, Fig. 2).
- nivmf_fig2.png shows the densities of a vMF and of a non-isotropic vMF distribution on the sphere
  in three dimensions (Kirchhof et al. 2022, Fig. 2).
- nivmf_fig3.png shows three distances of an embedding to a proxy of norm 10, over their cosine and
  the norm of the embedding (Kirchhof et al. 2022, Fig. 3).
- nivmf_fig8.png shows approximations of log C_n beside the exact one, for n = 512 (Kirchhof et al.
  2022, Fig. 8).
- simple_fig4.png shows SimPLE's loss of a positive and of a negative pair over their similarity,
  and its slope, for several r (Wen et al. 2023, Fig. 4).

Figures of trained models: run_figures.py and comparison_figures.py beside this file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from comparison_figures import plt, save
from torch.nn.functional import softplus

from likeness.toolkit.vmf.distances import d_b_vmf, d_cos, d_l2
from likeness.toolkit.vmf.distribution import (
    Normalizer,
    log_density_nivmf,
    log_normalizer,
    mean_resultant,
)


def resultants(out: Path, points: int) -> Path:
    """Draws Fig. 2 of the vMF paper.

    A perfect initialiser puts every point on its curve at the height of the dashed line.
    """
    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    target = 0.4
    kappa = torch.logspace(-1, 4, points, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for i, dim in enumerate((3, 8, 16, 32, 64, 128, 256, 512)):
        color = plt.get_cmap("viridis")(i / 7.5)
        axes.plot(kappa, mean_resultant(kappa, dim), color=color, label=f"n = {dim}")
        std = target * (dim - 1) / (1 - target**2) / dim**0.5  # Eq 19
        start = std * torch.randn(2000, dim, generator=generator, dtype=torch.float64)
        norm = start.norm(dim=1).mean()
        axes.plot(norm, mean_resultant(norm, dim), "o", color=color, markeredgecolor="black")
    axes.axhline(target, color="grey", linestyle="--", linewidth=1)
    axes.set(
        xscale="log",
        xlabel="concentration κ",
        ylabel="mean resultant length $A_n(κ)$",
        title="Initial concentrations for λ = 0.4 (points)",
    )
    axes.legend(fontsize=8, frameon=False)
    return save(figure, out / "vmf_fig2.png")


def densities(out: Path, points: int) -> Path:
    """Draws Fig. 2 of the nivMF paper.

    The density of the vMF distribution depends on the angle to its direction only. The
    non-isotropic one falls faster along the axis of the larger concentration. The paper's does not
    integrate to 1, and its mode is its direction. The one that does has a Jacobian, which moves the
    mode towards the axis of the smallest concentration.
    """
    azimuth, height = np.meshgrid(
        np.linspace(0, 2 * np.pi, 2 * points), np.linspace(0, np.pi, points)
    )
    across = np.sin(height)
    sides = [across * np.cos(azimuth), across * np.sin(azimuth), np.cos(height)]
    x = torch.from_numpy(np.stack(sides, axis=-1))
    mu = torch.tensor([[0.3, -0.6, 0.74]], dtype=torch.float64)
    mu = mu / mu.norm()
    isotropic = torch.full((1, 3), 10.0, dtype=torch.float64)
    apart = torch.tensor([[5.0, 10.0, 20.0]], dtype=torch.float64)
    panels: dict[str, tuple[torch.Tensor, Normalizer]] = {
        "(a) vMF, κ = 10": (isotropic, "jacobian"),
        "(b) nivMF, κ = (5, 10, 20), paper": (apart, "paper"),
        "(c) the same, with integral 1": (apart, "jacobian"),
    }
    figure = plt.figure(figsize=(11, 4), layout="constrained")
    for number, (title, (kappas, normalizer)) in enumerate(panels.items()):
        density = log_density_nivmf(x, mu, kappas, normalizer=normalizer)[..., 0].exp().numpy()
        panel = figure.add_subplot(1, 3, number + 1, projection="3d")
        colours = plt.get_cmap("viridis")(density / density.max())
        panel.plot_surface(  # type: ignore[attr-defined]
            *x.numpy().transpose(2, 0, 1), facecolors=colours, rstride=1, cstride=1, shade=False
        )
        panel.set_box_aspect((1, 1, 1), zoom=1.3)  # type: ignore[arg-type]
        panel.view_init(elev=45, azim=-64)  # type: ignore[attr-defined]
        panel.set_axis_off()
        panel.set_title(title, y=0.97)
    return save(figure, out / "nivmf_fig2.png")


def distances(out: Path, points: int) -> Path:
    """Draws Fig. 3 of the nivMF paper.

    Only the last two distances become steeper with the norm of the embedding, which is its
    certainty.
    """
    dim, proxy_norm = 512, 10.0
    cosine, norm = np.linspace(-1, 1, points), np.linspace(0.5, 20, points)
    across = np.sqrt(1 - cosine**2)
    z = torch.zeros(points, points, dim, dtype=torch.float64)
    z[..., 0] = torch.from_numpy(norm[:, None] * cosine)
    z[..., 1] = torch.from_numpy(norm[:, None] * across)
    proxy = proxy_norm * torch.eye(1, dim, dtype=torch.float64)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained", sharey=True)
    distances_of = (("(a) $d_{Cos}$", d_cos), ("(b) $d_{L2}$", d_l2), ("(c) $d_{B-vMF}$", d_b_vmf))
    for panel, (name, distance) in zip(axes, distances_of, strict=True):
        values = distance(z.flatten(0, 1), proxy).reshape(points, points)
        contours = panel.contourf(cosine, norm, values, levels=20)
        panel.contour(cosine, norm, values, levels=10, colors="white", linewidths=0.4)
        panel.set(title=name, xlabel="cosine to the proxy")
        figure.colorbar(contours, ax=panel)
    axes[0].set_ylabel("norm of the embedding, $κ_z$")
    figure.suptitle(f"Distance to a vMF proxy with $κ_p$ = 10, n = {dim}")
    return save(figure, out / "nivmf_fig3.png")


def normalizers(out: Path, points: int) -> Path:
    """Draws Fig. 8 of the nivMF paper.

    Bounds give the shape up to an unknown constant. The quadratic approximation is good where it
    was fitted, at kappa 10 to 50.
    """
    dim = 512
    kappa = torch.linspace(0, 200, points, dtype=torch.float64)
    true = log_normalizer(kappa, dim)
    bounds = log_normalizer(kappa, dim, method="bounds")
    shape = kumar(kappa, dim)
    shapes = {
        "(a) exact (Debye series)": (true, "-"),
        "(b) quadratic, nivMF paper Eq 13": (log_normalizer(kappa, dim, method="quadratic"), "--"),
        "(c) Kumar & Tsvetkov 2019": (shape + (true - shape)[0], "-."),
        "(d) mean of bounds, vMF paper Eq 12": (bounds + (true - bounds)[0], ":"),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, (values, style) in shapes.items():
        left.plot(kappa, values, style, label=name)
        right.plot(kappa, (values - true).abs().clamp(min=1e-14), style, label=name)
    left.axvspan(10, 50, color="grey", alpha=0.15, label="where (b) was fitted")
    left.set(xlabel="κ", ylabel="log $C_{512}(κ)$", title="(c), (d): shifted to agree at κ = 0")
    right.set(
        xlabel="κ",
        ylabel="absolute error",
        yscale="log",
        ylim=(1e-4, 1e3),
        title="difference from the exact value",
    )
    left.legend(fontsize=8, frameon=False)
    return save(figure, out / "nivmf_fig8.png")


def mining(out: Path, points: int) -> Path:
    """Draws Fig. 4 of the SimPLE paper, and the slopes that the paper speaks of.

    With a larger r the slope of positive pairs is spread over easy ones too, and that of negative
    pairs lies on the hard ones.
    """
    similarity = torch.linspace(-4, 4, points, dtype=torch.float64)
    figure, panels = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex=True)
    for r in (0.5, 1.0, 2.0, 4.0):
        curves = {
            "$Q_1$, a positive pair": lambda s, r=r: softplus(-s / r),
            "$Q_2$, a negative pair": lambda s, r=r: softplus(r * s),
        }
        for column, (name, curve) in enumerate(curves.items()):
            at = similarity.clone().requires_grad_()
            values = curve(at)
            values.sum().backward()
            assert at.grad is not None
            panels[0, column].plot(similarity, values.detach(), label=f"r = {r:g}")
            panels[1, column].plot(similarity, at.grad / at.grad.abs().max(), label=f"r = {r:g}")
            panels[0, column].set_title(name)
    panels[0, 0].set_ylabel("loss")
    panels[1, 0].set_ylabel("slope, of its largest")
    for panel in panels[1]:
        panel.set_xlabel("similarity with its bias, S + b")
    panels[0, 0].legend(fontsize=8, frameon=False)
    return save(figure, out / "simple_fig4.png")


def kumar(kappa: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns log C_n of Kumar & Tsvetkov 2019, supplement 8.2, up to a constant.

    The comments of the nivMF release have it with the opposite sign, so that it rises.
    """
    half = (dim**2 / 4 + kappa**2).sqrt()
    return (dim / 2 - 2) * torch.log(dim / 2 - 2 + half) - half


def main(arguments: list[str] | None = None) -> list[Path]:
    """Draws all figures, and returns their files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the PNG files")
    parser.add_argument("--points", type=int, default=120, help="points along every axis")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    makers = (resultants, densities, distances, normalizers, mining)
    written = [make(options.out, options.points) for make in makers]
    print(*written, sep="\n")
    return written


if __name__ == "__main__":
    main()
