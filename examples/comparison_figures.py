"""Draws a metric of the variants of a `likeness compare`, as bars or over a setting.

    likeness compare image/nivmf:cub200 --variants cos,l2,nivmf,b_vmf,el_vmf,kl_vmf,elk_nivmf \\
             --seeds 5 --data DATA --out runs/cub200
    python examples/comparison_figures.py runs/cub200 --metric recall@1 --out nivmf_fig5.png

    likeness compare image/nivmf:cub200 --variants omega=0.01,omega=0.1,omega=1,omega=10 \\
             --data DATA --out runs/omega
    python examples/comparison_figures.py runs/omega --metric recall@1 --over omega \\
             --out nivmf_fig4.png

- Bars show the mean over seeds with its standard deviation (Kirchhof et al. 2022, Fig. 5). Folders
  of several data sets give a panel each.
- With --over NAME the variants called NAME=NUMBER stand over their number, on a logarithmic axis
  (Kirchhof et al. 2022, Fig. 4). The axis is linear from 0 to the smallest number above it, so that
  a variant NAME=0 is shown too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from likeness.eval.formats.files import json_object
from likeness.eval.writing import atomic_path
from likeness.recipe import one_sentence

mpl.use("Agg")
import matplotlib.pyplot as plt  # the back end comes first


def values_of(folder: Path, metric: str) -> dict[str, list[float]]:
    """Return the values of each variant of a comparison, one for each seed that has finished.

    Raises:
        ValueError: The folder has no comparison, or the metric was not measured.
    """
    stated = json_object(folder / "comparison.json")
    if metric not in stated["metrics"]:
        known = ", ".join(stated["metrics"])
        raise ValueError(f"{folder} has no {metric}; it has {known}")
    values: dict[str, list[float]] = {name: [] for name in stated["variants"]}
    for run in stated["runs"]:
        value = run["values"].get(metric)
        if value is not None and math.isfinite(value):
            values[run["variant"]].append(float(value))
    return values


def deviations(measured: Sequence[list[float]]) -> list[float]:
    """The standard deviation of each list of values; NaN, which is not drawn, of a single one."""
    return [float(np.std(each, ddof=1)) if len(each) > 1 else math.nan for each in measured]


def bars(folders: list[Path], metric: str, out: Path) -> None:
    """Draw a panel for each folder, with a bar for each variant that has a value.

    The axis begins below the smallest bar and its error, not at 0.
    """
    figure, panels = plt.subplots(
        1, len(folders), figsize=(1.5 + 5 * len(folders), 4), layout="constrained", squeeze=False
    )
    for panel, folder in zip(panels[0], folders, strict=True):
        measured = {name: each for name, each in values_of(folder, metric).items() if each}
        means = [float(np.mean(each)) for each in measured.values()]
        errors = deviations(list(measured.values()))
        panel.barh(list(measured), means, xerr=errors, capsize=3)
        panel.invert_yaxis()
        ends = [mean - np.nan_to_num(error) for mean, error in zip(means, errors, strict=True)]
        least, most = min(ends), max(means)
        panel.set_xlim(max(min(0.0, least), least - 0.5 * (most - least) - 0.01), None)
        panel.set(title=folder.name, xlabel=metric)
    save(figure, out)


def over(folder: Path, metric: str, setting: str, out: Path) -> None:
    """Draw the means of the variants called SETTING=NUMBER over it, with standard deviations.

    Raises:
        ValueError: Fewer than two variants have such a name.
    """
    measured: dict[float, list[float]] = {}
    for name, values in values_of(folder, metric).items():
        called, _, number = name.rpartition("=")
        if called.split(".")[-1] == setting and values:
            measured[float(number)] = values
    if len(measured) < 2:
        raise ValueError(f"{folder} has {len(measured)} variants called {setting}=NUMBER, of two")
    numbers = sorted(measured)
    means = [np.mean(measured[number]) for number in numbers]
    errors = deviations([measured[number] for number in numbers])
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.errorbar(numbers, means, errors, marker="o", capsize=3)
    axes.set(xlabel=setting, ylabel=metric, title=folder.name)
    if numbers[0] > 0:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=min(number for number in numbers if number > 0))
    save(figure, out)


def save(figure: mpl.figure.Figure, out: Path) -> Path:
    """Write a figure as a PNG file, whole or not at all; return the file."""
    with atomic_path(out) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    return out


def main(arguments: list[str] | None = None) -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the PNG file")
    parser.add_argument("--over", default="", help="variants called OVER=NUMBER stand over it")
    options = parser.parse_args(arguments)
    if options.over and len(options.folders) > 1:
        parser.error("--over takes one folder")
    if options.over:
        over(options.folders[0], options.metric, options.over, options.out)
    else:
        bars(options.folders, options.metric, options.out)
    print(options.out)


if __name__ == "__main__":
    with one_sentence("comparison_figures.py"):
        main()
