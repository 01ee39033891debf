"""Measures time and memory from ten thousand to ten million items, trials and templates.

    python benchmarks/scale.py
        measures everything and draws docs/reference/scale.svg
    python benchmarks/scale.py items lists --most 1e6
        measures two parts, up to a million

Measures: what the scripts scale_items.py, scale_lists.py, scale_search.py and scale_feeding.py
    measure. Each of them prints a line `name,n,seconds,peak MB` for every measurement.
Limits: the least that the work needs: the bare reading of a file, the bare products, one sort.
Needs: `pip install 'likeness[report,search]'`, 8 GB of memory and 4 GB in the temporary folder.
Takes: half an hour of one core on a quiet machine.
Gives: CPU seconds, peak memory, and the exponent of the time. An exponent of 1 means that ten times
    as many items take ten times as long; n log n has 1.07 at a million, and n^2 has 2.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from performance import (
    HERE,
    PAGE,
    environment_of_one_thread,
    row,
    sizes_parser,
    table,
)

PICTURE = PAGE.parent / "scale.svg"
PARTS = ("items", "lists", "search", "feeding")

# What a row of the table is called: the line of a part, and the lines that are its limit.
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "items of a CSV": ("items_of_csv", ()),
    "items of a RecordIO index": ("items_of_records", ()),
    "items of the indexes of tar shards": ("items_of_shards", ()),
    "items of a folder tree": ("items_of_tree", ()),
    "items one by one": ("items_of_generator", ()),
    "CSV, unique ids, labels, digest, an epoch's order": ("items_planned", ()),
    "score, text": ("score .txt", ("limit read", "limit products")),
    "score, .npz": ("score .npz", ("limit products",)),
    "score, .parquet": ("score .parquet", ("limit products",)),
    "evaluate without intervals, text": ("evaluate .txt", ("limit read", "limit sort")),
    "evaluate without intervals, .npz": ("evaluate .npz", ("limit sort",)),
    "evaluate without intervals, .parquet": ("evaluate .parquet", ("limit sort",)),
    "evaluate, 1,000 resamples, text": (
        "evaluate with intervals .txt",
        ("limit read", "limit sort"),
    ),
    "evaluate, 1,000 resamples, .npz": ("evaluate with intervals .npz", ("limit sort",)),
    "identify, 2,000 probes x 512": ("identify", ("product",)),
    "retrieve, 2,000 probes x 512": ("retrieve", ("product",)),
    "IJB-C size, files to the 1:1 table": ("ijbc 1:1", ()),
    "IJB-C size, files to the 1:N table": ("ijbc 1:N", ()),
}
# The same for rates: ours, the peer, and the limit.
RATES: dict[str, tuple[str, str, str]] = {
    "JPEG 500 x 375 to a 224 x 224 view": ("image_view", "image_view_peer", "image_view_limit"),
    "the same, short edge 256 first": ("image_view_short_edge", "image_view_peer", ""),
    "the same, decoded for the crop": ("image_view_part", "image_view_peer", "image_view_limit"),
    "JPEG 2000 x 1500 to a 224 x 224 view": (
        "photograph_view",
        "photograph_view_peer",
        "photograph_view_limit",
    ),
    "the same, decoded at reduced size": ("photograph_view_part", "photograph_view_peer", ""),
    "JPEG to an aligned, augmented face": ("face_view", "face_view_peer", "face_view_limit"),
    "3 s of a FLAC of 60 s; peer: decoded whole": ("flac_60s_crop", "flac_60s_whole", ""),
    "3 s of a WAV of 60 s; peer: decoded whole": ("wav_60s_crop", "wav_60s_whole", ""),
}


class Measured(NamedTuple):
    """One measurement: n items in so many CPU seconds, with this peak of memory."""

    n: int
    seconds: float
    megabytes: float


Lines = dict[str, list[Measured]]


def measure(part: str, most: float) -> Lines:
    """Run a part up to `most` items; returns its measurements by the names of the lines."""
    command = [sys.executable, str(HERE / f"scale_{part}.py")]
    process = subprocess.run(
        [*command, *([] if part == "feeding" else ["--most", str(most)])],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of_one_thread(),
    )
    print(process.stdout, file=sys.stderr, flush=True)  # what is measured is worth keeping
    lines: Lines = {}
    for name, n, seconds, megabytes in csv.reader(process.stdout.splitlines()):
        lines.setdefault(name, []).append(Measured(int(n), float(seconds), float(megabytes)))
    return lines


def exponent(measured: Sequence[Measured]) -> float:
    """The exponent of the time between the two largest sizes; NaN where it cannot be told.

    What a process needs before it begins counts in small sizes only, so the time of the smallest
    size is taken off the others. That needs three sizes, and a second largest one that takes half
    as long again as the smallest.
    """
    if len(measured) < 3 or measured[-2].seconds < 1.5 * measured[0].seconds:
        return math.nan
    before, last = (point.seconds - measured[0].seconds for point in measured[-2:])
    return math.log(last / before) / math.log(measured[-1].n / measured[-2].n)


def limit(lines: Lines, names: Sequence[str], n: int) -> float | None:
    """The sum of the limits at n items; None where one of them was not measured."""
    seconds = [point.seconds for name in names for point in lines.get(name, ()) if point.n == n]
    return sum(seconds) if names and len(seconds) == len(names) else None


def text_of(number: float | None, digits: str = ".3g") -> str:
    """A number with three digits that count, or nothing."""
    if number is None or math.isnan(number):
        return ""
    return f"{number:,.0f}" if number >= 100 else f"{number:{digits}}"


def print_sizes(lines: Lines) -> None:
    """Print a row for every work, with what its largest size took."""
    table("work", "n", "CPU s", "limit, CPU s", "ours/limit", "peak MB", "exponent")
    for text, (name, names) in ROWS.items():
        if name in lines:
            last = lines[name][-1]
            least = limit(lines, names, last.n)
            row(
                text,
                f"{last.n:,}",
                text_of(last.seconds),
                text_of(least),
                text_of(None if least is None else last.seconds / max(least, 1e-3), ".1f"),
                text_of(last.megabytes),
                text_of(exponent(lines[name]), ".2f"),
            )


def print_memory(lines: Lines) -> None:
    """Print what the processes of a run take each for themselves."""
    owned = {name: each[-1] for name, each in lines.items() if name.endswith("_own_memory")}
    if owned:
        print()
        table("a loader of items", "n", "MB of its own")
        for name, last in owned.items():
            row(name.removesuffix("_own_memory"), f"{last.n:,}", text_of(last.megabytes))


def print_rates(lines: Lines) -> None:
    """Print how many images or recordings a core reads a second."""
    names = {name for of_row in RATES.values() for name in of_row} & lines.keys()
    rates = {name: lines[name][-1].n / lines[name][-1].seconds for name in names}
    if rates:
        print()
        table("items/s of one core", "ours", "peer", "limit", "ours/peer", "ours/limit")
        for text, (ours, peer, least) in RATES.items():
            row(
                text,
                text_of(rates[ours]),
                text_of(rates[peer]),
                text_of(rates.get(least)),
                f"{rates[ours] / rates[peer]:.2f}",
                f"{rates[ours] / rates[least]:.2f}" if least else "",
            )


def draw(rows: Mapping[str, Sequence[Measured]]) -> None:
    """Draw time and memory over the number of items, one panel below the other."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from eval.reports.figures import COLOURS, DASHES, GREY

    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.patch.set_alpha(0.0)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, field, unit in zip(
        panels, ("seconds", "megabytes"), ("CPU seconds", "peak MB"), strict=True
    ):
        for i, (name, measured) in enumerate(rows.items()):
            axes.loglog(
                [point.n for point in measured],
                [getattr(point, field) for point in measured],
                marker="o",
                markersize=3,
                linewidth=1.6,
                color=COLOURS[i % len(COLOURS)],
                linestyle=DASHES[i // len(COLOURS) % len(DASHES)].replace("dotdash", "dashdot"),
                label=name,
            )
        axes.patch.set_alpha(0.0)
        axes.set_ylabel(unit, color=GREY)
        axes.tick_params(colors=GREY, which="both")
        axes.grid(color=GREY, alpha=0.22, linewidth=0.6)
        for spine in axes.spines.values():
            spine.set_color(GREY)
    panels[1].set_xlabel("items, trials or templates", color=GREY)
    panels[0].legend(
        loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, labelcolor=GREY, fontsize=9
    )
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "scale"}):
        figure.savefig(PICTURE, transparent=True, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measure the parts that the command names, print their tables and draw the picture."""
    parser = sizes_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    lines: Lines = {}
    for part in arguments.parts or PARTS:
        lines |= measure(part, arguments.most)
    print_sizes(lines)
    print_memory(lines)
    print_rates(lines)
    if not arguments.parts:
        curves = {text: lines[name] for text, (name, _) in ROWS.items()}
        draw({text: each for text, each in curves.items() if len(each) > 1})


if __name__ == "__main__":
    main()
