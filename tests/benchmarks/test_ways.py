"""The functions that a value passes through are no more than they were."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import loaded

# From the command and from Python: at most so many functions, in so many files.
BOUNDS = {
    "a wav path of `verify`": ((17, 10), (13, 7)),
    "a trial list of `score`": ((21, 10), (14, 6)),
    "`--far` of `evaluate`": ((29, 11), (19, 7)),
    "a batch to its loss": ((53, 24), (53, 24)),
    "an override of `train`": ((47, 25), (35, 18)),
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
