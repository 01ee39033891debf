"""Measures time and memory from ten thousand to ten million items, trials and templates.

    python benchmarks/scale.py
        measures everything
    python benchmarks/scale.py items lists --most 1e6
        measures two parts, up to a million

Measures: what the scripts scale_items.py, scale_lists.py and scale_search.py measure. Each of them
    prints a line `name,n,seconds,peak MB` for every measurement.
Limits: the least that the work needs: the bare reading of a file, the bare products, one sort.
Needs: `pip install 'likeness[search]'`, 8 GB of memory and 4 GB in the temporary folder.
Takes: half an hour of one core on a quiet machine.
Gives: CPU seconds, peak memory, and the exponent of the time. An exponent of 1 means that ten times
    as many items take ten times as long; n log n has 1.07 at a million, and n^2 has 2.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from performance import (
    HERE,
    environment_of_one_thread,
    row,
    sizes_parser,
    table,
)

PARTS = ("items", "lists", "search")

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
        [*command, "--most", str(most)],
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


def main() -> None:
    """Measure the parts that the command names, and print their table."""
    parser = sizes_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    lines: Lines = {}
    for part in arguments.parts or PARTS:
        lines |= measure(part, arguments.most)
    print_sizes(lines)


if __name__ == "__main__":
    main()
