"""Draws the pictures of docs/explanation and prints the numbers that its pages quote.

    python docs/make_explanations.py

- eer.png shows two systems of the same EER, whose other errors differ.
- intervals.png shows how often an interval over trials, and one over subjects, has the true EER.
- vmf.png shows what the length of an embedding means to a von Mises-Fisher distribution.
- norms.png shows the norms of images that blur or noise makes unreadable.

It takes a minute of one CPU core. It needs matplotlib, and no data: the digits of
norms.png come with scikit-learn, and the scores and people of the others are drawn at random.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.optimize import brentq
from scipy.stats import norm

import likeness
from likeness.eval.intervals.bootstrap import interval
from likeness.eval.intervals.uncertainty import quality_auroc, risk_coverage
from likeness.eval.metrics.verification import eer
from likeness.eval.types import Scores
from likeness.modalities.image import small_sets
from likeness.toolkit.vmf.distances import d_el_vmf
from likeness.toolkit.vmf.distribution import mean_resultant
from likeness.toolkit.vmf.sampling import sample

mpl.use("Agg")
import matplotlib.pyplot as plt  # the back end comes first

Floats = NDArray[np.float64]
OUT = Path(__file__).parent / "explanation"
BLURS = (0, 1, 2, 3, 4)  # standard deviations in pixels, of images of 16 x 16
NOISES = (0, 40, 80, 120, 160)  # standard deviations, where a pixel is between 0 and 255


def save(figure: Figure, path: Path) -> None:
    """Save a picture of the same bytes wherever the same version of matplotlib draws it."""
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def same_eer(out: Path) -> None:
    """Two systems with an EER of 5 %: normal scores, of which B's targets vary less."""
    t = norm.isf(0.05)  # of the EER
    systems = {"A": (2 * t, 1.0), "B": (1.4 * t, 0.4)}
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    x = np.linspace(-4, 7, 400)
    for panel, (name, (mean, deviation)) in zip(axes, systems.items(), strict=False):
        panel.fill_between(x, norm.pdf(x), alpha=0.5, label="two people")
        panel.fill_between(x, norm.pdf(x, mean, deviation), alpha=0.5, label="one person")
        panel.axvline(t, color="black", linewidth=1)
        panel.axvline(norm.isf(0.001), color="black", linewidth=1, linestyle=":")
        panel.set(title=f"System {name}", xlabel="score", yticks=[])
        panel.legend(frameon=False)
    far = np.logspace(-4, -0.05, 200)
    for name, (mean, deviation) in systems.items():
        frr = norm.cdf(norm.isf(far), mean, deviation)
        axes[2].plot(norm.ppf(far), norm.ppf(np.clip(frr, 1e-6, 1 - 1e-6)), label=name)
        for rate in (0.05, 0.001):
            tar = norm.sf(norm.isf(rate), mean, deviation)
            print(f"eer: system {name}, FAR {rate:.1%}: {tar:.1%} of one person accepted")
    ticks = np.array([0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9])
    axes[2].set_xticks(norm.ppf(ticks), [f"{100 * tick:g}" for tick in ticks])
    axes[2].set_yticks(norm.ppf(ticks), [f"{100 * tick:g}" for tick in ticks])
    axes[2].plot(norm.ppf(ticks), norm.ppf(ticks), color="grey", linewidth=0.8)
    axes[2].set(
        xlabel="two people accepted, %",
        ylabel="one person refused, %",
        title="Both, DET curve",
        ylim=norm.ppf([0.0001, 0.98]),
        xlim=norm.ppf([0.0001, 0.9]),
    )
    axes[2].legend(frameon=False)
    save(figure, out / "eer.png")


def measured(rng: np.random.Generator, people: int, files: int) -> tuple[Scores, Floats]:
    """Score all pairs of the files of so many people; some people vary more than others."""
    of = np.repeat(np.arange(people), files)
    spread = np.exp(0.4 * rng.normal(size=people))[of, None]
    vectors = rng.normal(size=(people, 16))[of] + spread * rng.normal(size=(len(of), 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.triu_indices(len(of), 1)
    target = of[first] == of[second]
    values = (vectors @ vectors.T)[first, second]
    return Scores(values, target), np.stack([of[first], of[second]], axis=1)


def of_subjects(out: Path, repeats: int) -> None:
    """Intervals of 95 % of 20 people with 10 files each, over trials and over people."""
    rng = np.random.default_rng(0)
    whole = [measured(rng, 400, 10)[0] for _ in range(3)]
    true = float(np.mean([eer(s.targets, s.nontargets) for s in whole]))
    ends: dict[str, list[tuple[float, float]]] = {"over trials": [], "over people": []}
    for seed in range(repeats):
        scores, subjects = measured(rng, 20, 10)
        for name, drawn in (("over trials", None), ("over people", subjects)):
            made = interval(eer, scores, drawn, num_resamples=200, seed=seed)
            assert made is not None
            ends[name].append(made)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for panel, (name, rows) in zip(axes, ends.items(), strict=True):
        has = [low <= true <= high for low, high in rows]
        share = float(np.mean(has))
        print(f"intervals: {name}: {share:.1%} of {repeats} hold the true EER of {true:.1%}")
        for i, (low, high) in enumerate(rows[:50]):
            color = "tab:blue" if has[i] else "tab:red"
            panel.plot([i, i], [100 * low, 100 * high], color=color)
        panel.axhline(100 * true, color="black", linewidth=1)
        panel.set(title=f"{name}: {share:.0%} are right", xlabel="fifty tests", xticks=[])
    axes[0].set_ylabel("EER, %")
    save(figure, out / "intervals.png")


def von_mises_fisher(out: Path) -> None:
    """Draws on a sphere, their agreement, and the distance of two embeddings by their norms."""
    figure = plt.figure(figsize=(13, 6.4), layout="constrained")
    generator = torch.Generator().manual_seed(0)
    up = torch.tensor([0.0, -0.8, 0.6], dtype=torch.float64)
    for i, kappa in enumerate((1.0, 10.0, 100.0)):
        panel = figure.add_subplot(2, 3, i + 1, projection="3d")
        kappas = torch.tensor([kappa], dtype=torch.float64)
        draws = sample(up[None], kappas, 400, generator=generator).reshape(-1, 3)
        u, v = np.mgrid[0 : 2 * np.pi : 40j, 0 : np.pi : 20j]
        ball = (np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v))
        panel.plot_wireframe(*ball, color="lightgrey", linewidth=0.4)
        panel.scatter(*draws.T.numpy(), s=4, color="tab:blue")
        panel.quiver(0, 0, 0, *(1.3 * up).tolist(), color="black")
        panel.set(title=f"norm {kappa:g}: draws agree by {agreement(kappa, 3):.2f}")
        panel.set_axis_off()
        panel.set_box_aspect((1, 1, 1), zoom=1.6)
    panel = figure.add_subplot(2, 3, 4)
    norms = torch.logspace(-1, 4, 300, dtype=torch.float64)
    for dim in (3, 32, 128, 512):
        panel.plot(norms, mean_resultant(norms, dim), label=f"{dim} dimensions")
        half = brentq(lambda kappa, dim: agreement(kappa, dim) - 0.5, 0.1, 1e4, args=(dim,))
        print(f"vmf: {dim} dimensions: draws agree by one half from a norm of {half:.3g}")
    panel.set(xscale="log", xlabel="norm of the embedding", ylabel="how much draws agree")
    panel.legend(frameon=False)
    panel = figure.add_subplot(2, 3, 5)
    angles = torch.linspace(0, 180, 181, dtype=torch.float64)
    turn = torch.deg2rad(angles)
    direction = torch.zeros(181, 32, dtype=torch.float64)
    direction[:, 0], direction[:, 1] = turn.cos(), turn.sin()
    for length in (5.0, 30.0, 100.0):
        d = d_el_vmf(length * direction, length * direction[:1])[:, 0]
        panel.plot(angles, d, label=f"both of norm {length:g}")
    panel.set(xlabel="degrees between two embeddings", ylabel="distance (EL)")
    panel.legend(frameon=False)
    panel = figure.add_subplot(2, 3, 6)
    for length in (5.0, 30.0, 100.0):
        d = d_el_vmf(length * direction, 100.0 * direction[:1])[:, 0]
        panel.plot(angles, d - d[0], label=f"norms 100 and {length:g}")
    panel.set(xlabel="degrees between two embeddings", ylabel="distance beyond that at 0 degrees")
    panel.legend(frameon=False)
    save(figure, out / "vmf.png")


def agreement(kappa: float, dim: int) -> float:
    """How much draws of a concentration agree: the length of their mean."""
    return float(mean_resultant(torch.tensor(kappa, dtype=torch.float64), dim))


def norms_of_digits(out: Path) -> None:
    """The norms of blurred and of noisy digits, of a network that was trained with the vMF loss."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = likeness.train("image/digits:vmf", folder, Path(folder) / "run")
    read = partial(small_sets.read, edge=16)
    rng = np.random.default_rng(0)
    train, test = small_sets.digits_items(split="train"), small_sets.digits_items(split="test")
    known = unit(embedded(model, np.stack([read(item) for item in train])))
    names = np.array([item.label for item in train])
    truth = np.array([item.label for item in test])
    images = np.stack([read(item) for item in test])
    changed: dict[str, list[NDArray[Any]]] = {
        "blur": [gaussian_filter(images, (0, 0, sigma, sigma)) for sigma in BLURS],
        "noise": [images + noise * rng.normal(size=images.shape) for noise in NOISES],
    }
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")
    for column, (name, made) in enumerate(changed.items()):
        z = [embedded(model, each) for each in made]
        lengths = [np.linalg.norm(rows, axis=1) for rows in z]
        wrong = [names[(unit(rows) @ known.T).argmax(1)] != truth for rows in z]
        ticks = [f"{100 * part.mean():.0f}" for part in wrong]
        for step, (part, norm_of) in enumerate(zip(wrong, lengths, strict=True)):
            says = f"median norm {np.median(norm_of):.1f}, {part.mean():.1%} wrong"
            print(f"norms: {name} {(BLURS, NOISES)[column][step]:g}: {says}")
        axes[2 * column].boxplot(lengths, tick_labels=ticks, showfliers=False)
        axes[2 * column].set(xlabel=f"wrong, %, as {name} grows", ylabel="norm of the embedding")
        quality, risk = np.concatenate(lengths), np.concatenate(wrong).astype(float)
        print(f"norms: {name}: AUROC of the norm {quality_auroc(quality, risk):.2f}")
        curve = risk_coverage(quality, risk)
        panel = axes[2 * column + 1]
        panel.plot(100 * curve.coverage, 100 * curve.risk, label="by the norm")
        panel.axhline(100 * risk.mean(), color="grey", linestyle=":", label="at random")
        panel.set(xlabel="images that are kept, %", ylabel="wrong among them, %", ylim=(0, None))
        panel.set_title(name)
        panel.legend(frameon=False)
    save(figure, out / "norms.png")


def embedded(model: likeness.Model, images: NDArray[Any]) -> Floats:
    """Embed images (N, D), whose pixels are cut to 0 to 255."""
    pixels = images.clip(0, 255).astype(np.float32)
    return np.asarray(model.loaded.embedder.embed_batch(pixels), dtype=np.float64)


def unit(rows: Floats) -> Floats:
    """Rows of length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the pictures")
    parser.add_argument("--repeats", type=int, default=300, help="tests for intervals.png")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    same_eer(options.out)
    of_subjects(options.out, options.repeats)
    von_mises_fisher(options.out)
    norms_of_digits(options.out)


if __name__ == "__main__":
    main()
