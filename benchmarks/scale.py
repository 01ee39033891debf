"""Time and memory from ten thousand to ten million items, trials and templates.

    python benchmarks/scale.py
        runs every part and draws docs/scale.svg
    python benchmarks/scale.py items lists --most 1e6
        runs two parts, up to a million

Measures: each row in fresh processes of one thread, from 10^4 upwards in steps of ten. A part is a
    script scale_PART.py beside this one, which prints a line `row,n,seconds,peak MB` for every
    measurement. A row whose name ends in " (limit)" is the least that the work needs, such as one
    sort of the scores.
Needs: `pip install 'likeness[report,search]'`, 8 GB of memory and 8 GB in the temporary folder.
Takes: an hour.
Gives: CPU seconds and peak memory, and the exponent of the time. An exponent of 1 means that ten
    times as many items take ten times as long; n log n has 1.05 here, and n^2 has 2.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import performance
from performance import HERE, parser_of, row, table

PARTS = sorted(path.stem.removeprefix("scale_") for path in HERE.glob("scale_*.py"))
PICTURE = performance.PAGE.parent / "scale.svg"
LIMIT = " (limit)"


class Measured(NamedTuple):
    """One measurement: n items in so many CPU seconds, with this peak of memory."""

    n: int
    seconds: float
    megabytes: float


def measure(part: str, most: int) -> dict[str, list[Measured]]:
    """Run a part up to `most` items; returns its measurements by the name of the row."""
    command = [sys.executable, str(HERE / f"scale_{part}.py"), "--most", str(most)]
    process = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=performance.environment_of_one_thread(),
    )
    rows: dict[str, list[Measured]] = {}
    for name, n, seconds, megabytes in csv.reader(process.stdout.splitlines()):
        rows.setdefault(name, []).append(Measured(int(n), float(seconds), float(megabytes)))
    return rows


def exponent(measured: Sequence[Measured]) -> float:
    """The exponent of the time between the two largest sizes; NaN where there are no two.

    What every process needs before it begins counts in small sizes only, so the time of the
    smallest size is taken off the others.
    """
    if len(measured) < 3:
        return math.nan
    start = measured[0].seconds * (1 - measured[0].n / measured[-2].n)
    before, last = (max(one.seconds - start, 1e-3) for one in measured[-2:])
    return math.log(last / before) / math.log(measured[-1].n / measured[-2].n)


def text_of(number: float) -> str:
    """A number with two or three digits that count."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def print_table(rows: Mapping[str, Sequence[Measured]]) -> None:
    """Print a row for every work, with what its largest size took."""
    table("work", "n", "CPU s", "limit, CPU s", "ours/limit", "peak MB", "exponent")
    for name, measured in rows.items():
        if name.endswith(LIMIT):
            continue
        last = measured[-1]
        limits = {one.n: one.seconds for one in rows.get(name + LIMIT, ())}
        least = limits.get(last.n)
        row(
            name,
            f"{last.n:,}",
            text_of(last.seconds),
            "" if least is None else text_of(least),
            "" if least is None else f"{last.seconds / max(least, 1e-3):.1f}",
            text_of(last.megabytes),
            "" if math.isnan(exponent(measured)) else f"{exponent(measured):.2f}",
        )


def draw(rows: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Draw time and memory over the number of items, one panel below the other."""
    from matplotlib.figure import Figure

    from eval.reports.drawing import COLOURS, GREY, STYLES, svg

    lines = {name: each for name, each in rows.items() if len(each) > 1}
    lines = {name: each for name, each in lines.items() if not name.endswith(LIMIT)}
    figure = Figure(figsize=(9, 9), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, field, unit in zip(panels, ("seconds", "megabytes"), ("CPU s", "MB"), strict=True):
        for i, (name, measured) in enumerate(lines.items()):
            axes.loglog(
                [one.n for one in measured],
                [getattr(one, field) for one in measured],
                marker="o",
                markersize=3,
                linewidth=1.6,
                color=COLOURS[i % len(COLOURS)],
                linestyle=STYLES[i // len(COLOURS) % len(STYLES)],
                label=name,
            )
        axes.set_ylabel(unit, color=GREY)
        axes.tick_params(colors=GREY, which="both")
        axes.grid(color=GREY, alpha=0.22, linewidth=0.6)
        for spine in axes.spines.values():
            spine.set_color(GREY)
    panels[1].set_xlabel("items, trials or templates", color=GREY)
    panels[0].legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=GREY, fontsize=8
    )
    path.write_text(svg(figure, "scale") + "\n", encoding="utf-8")


def sizes(most: int) -> Iterable[int]:
    """10^4 and its tenfolds up to `most`."""
    n = 10_000
    while n <= most:
        yield n
        n *= 10


def main() -> None:
    """Measure the parts that the command names, print their table and draw the picture."""
    parser = parser_of(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--most", type=float, default=1e7, help="the largest number of items")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    rows: dict[str, list[Measured]] = {}
    for part in arguments.parts or PARTS:
        rows |= measure(part, int(arguments.most))
    print_table(rows)
    if not arguments.parts:
        draw(rows, PICTURE)


if __name__ == "__main__":
    main()
