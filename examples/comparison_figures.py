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
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt  # the back end comes first


def values_of(folder: Path, metric: str) -> dict[str, list[float]]:
    """Return the values of each variant of a comparison, one for each seed that has finished.

    Raises:
        ValueError: The folder has no comparison, or the metric was not measured.
    """
    file = folder / "comparison.json"
    if not file.is_file():
        raise ValueError(f"{file} is not there; give a folder that `likeness compare` has finished")
    stated = json.loads(file.read_text(encoding="utf-8"))
    if metric not in stated["metrics"]:
        raise ValueError(f"{file} has no {metric}; it has {', '.join(stated['metrics'])}")
    values: dict[str, list[float]] = {name: [] for name in stated["variants"]}
    for run in stated["runs"]:
        if metric in run["values"]:
            values[run["variant"]].append(float(run["values"][metric]))
    return values


def bars(folders: list[Path], metric: str, out: Path) -> None:
    """Draw a panel for each folder, with a bar for each variant."""
    figure, panels = plt.subplots(
        1, len(folders), figsize=(1.5 + 5 * len(folders), 4), layout="constrained", squeeze=False
    )
    for panel, folder in zip(panels[0], folders, strict=True):
        measured = {name: each for name, each in values_of(folder, metric).items() if each}
        means = [np.mean(each) for each in measured.values()]
        errors = [np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in measured.values()]
        panel.barh(list(measured), means, xerr=errors, capsize=3)
        panel.invert_yaxis()
        least, most = min(means), max(means)
        panel.set_xlim(max(0.0, least - 0.5 * (most - least) - 0.01), None)
        panel.set(title=folder.name, xlabel=metric)
    figure.savefig(out, dpi=110)


def over(folder: Path, metric: str, setting: str, out: Path) -> None:
    """Draw the means of the variants called SETTING=NUMBER over it, with standard deviations.

    Raises:
        ValueError: Fewer than two variants have such a name, or a number is below 0.
    """
    measured: dict[float, list[float]] = {}
    for name, values in values_of(folder, metric).items():
        called, _, number = name.rpartition("=")
        if called.split(".")[-1] == setting and values:
            measured[float(number)] = values
    if len(measured) < 2:
        raise ValueError(f"{folder} has {len(measured)} variants called {setting}=NUMBER, not two")
    numbers = sorted(measured)
    if numbers[0] < 0:
        raise ValueError(f"{folder}: {setting}={numbers[0]:g} has no place on a logarithmic axis")
    means = [np.mean(measured[number]) for number in numbers]
    errors = [
        np.std(measured[number], ddof=1) if len(measured[number]) > 1 else 0.0 for number in numbers
    ]
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.errorbar(numbers, means, errors, marker="o", capsize=3)
    axes.set(xlabel=setting, ylabel=metric, title=folder.name)
    if numbers[0] > 0:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=min(number for number in numbers if number > 0))
    figure.savefig(out, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the PNG file")
    parser.add_argument("--over", default="", help="variants called OVER=NUMBER stand over it")
    given = parser.parse_args(arguments)
    if given.over and len(given.folders) > 1:
        parser.error("--over takes one folder")
    try:
        if given.over:
            over(given.folders[0], given.metric, given.over, given.out)
        else:
            bars(given.folders, given.metric, given.out)
    except ValueError as error:
        parser.error(str(error))
    print(given.out)


if __name__ == "__main__":
    main()
