"""The functions that a value passes through are no more than they were."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import loaded

# From the command and from Python: at most so many functions, in so many files.
BOUNDS = {
    "a wav path of `verify`": ((15, 8), (11, 5)),
    "a trial list of `score`": ((20, 10), (14, 6)),
    "`--far` of `evaluate`": ((25, 10), (15, 6)),
    "a batch to its loss": ((61, 24), (61, 24)),
    "an override of `train`": ((50, 25), (37, 18)),
}


ways = loaded(Path(__file__).parents[2] / "benchmarks" / "ways.py")


def test_ways_are_no_longer_than_they_were(tmp_path: Path) -> None:
    sizes = {
        value: tuple(map(ways.size_of, both)) for value, both in ways.measure(tmp_path).items()
    }
    assert sizes.keys() == BOUNDS.keys() == ways.WANTED.keys()
    for value, bounds in BOUNDS.items():
        for (functions, files), (most, most_files) in zip(sizes[value], bounds, strict=True):
            assert 0 < functions <= most, value
            assert files <= most_files, value
