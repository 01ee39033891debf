"""The diarisation error rate against a count of whole instants and all ways to pair speakers, and
against pyannote.metrics where it is installed; and RTTM files.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from eval.diarisation import diarisation_errors
from eval.formats.rttm import Turn, read_turns, rttm_text, write_turns


def drawn(rng: np.random.Generator, speakers: str, turns: int, length: int = 30) -> list[Turn]:
    """Turns at whole instants, which may overlap, also those of one speaker."""
    starts = rng.integers(length - 1, size=turns)
    ends = [int(rng.integers(start + 1, length + 1)) for start in starts]
    names = rng.choice(list(speakers), turns)
    return [Turn("t", int(a), b, str(who)) for a, b, who in zip(starts, ends, names, strict=True)]


def by_counting(
    reference: list[Turn], system: list[Turn], collar: int, skip_overlap: bool, length: int = 30
) -> list[int]:
    """Speech, missed, false alarm and confusion of instants, for the best of all mappings."""
    instants = []

    def speaking(side: list[Turn], t: int) -> set[str]:
        return {turn.speaker for turn in side if turn.start <= t < turn.end}

    # a turn begins or ends where somebody starts or stops to speak
    edges = [t for t in range(length + 1) if speaking(reference, t - 1) != speaking(reference, t)]
    for t in range(length):
        who = [speaking(side, t) for side in (reference, system)]
        if any(edge - collar <= t < edge + collar for edge in edges):
            continue
        if not (skip_overlap and len(who[0]) > 1):
            instants.append(who)
    names = sorted({turn.speaker for turn in reference})
    others = sorted({turn.speaker for turn in system})
    others += [f"nobody {i}" for i in range(len(names))]
    correct = max(
        sum(len({pairing[name] for name in r} & s) for r, s in instants)
        for order in permutations(others, len(names))
        for pairing in [dict(zip(names, order, strict=True))]
    )
    return [
        sum(len(r) for r, _ in instants),
        sum(max(0, len(r) - len(s)) for r, s in instants),
        sum(max(0, len(s) - len(r)) for r, s in instants),
        sum(min(len(r), len(s)) for r, s in instants) - correct,
    ]


CASES = [(seed, collar, skip) for seed in range(12) for collar in (0, 1) for skip in (False, True)]


@pytest.mark.parametrize(("seed", "collar", "skip"), CASES)
def test_every_part_is_that_of_a_count(seed: int, collar: int, skip: bool) -> None:
    rng = np.random.default_rng(seed)
    reference, system = drawn(rng, "abc", 5), drawn(rng, "wxyz", 1 + seed)
    got = diarisation_errors(reference, system, collar=collar, skip_overlap=skip)
    assert list(got[:4]) == by_counting(reference, system, collar, skip)


@pytest.mark.parametrize(("seed", "collar", "skip"), CASES[::3])
def test_every_part_is_that_of_pyannote(seed: int, collar: float, skip: bool) -> None:
    metrics = pytest.importorskip("pyannote.metrics.diarization")
    core = pytest.importorskip("pyannote.core")
    rng = np.random.default_rng(seed)
    sides = [
        [t._replace(start=t.start + 0.25, end=t.end + rng.uniform(0.3, 2)) for t in side]
        for side in (drawn(rng, "abc", 5), drawn(rng, "wxyz", 6))
    ]
    # pyannote counts overlapping turns of one speaker twice, and we once
    annotations = []
    for side in sides:
        made = core.Annotation()
        for i, turn in enumerate(side):
            made[core.Segment(turn.start, turn.end), i] = turn.speaker
        annotations.append(made.support())
    whole = core.Timeline([core.Segment(0, 40)])
    theirs = metrics.DiarizationErrorRate(collar=2 * collar, skip_overlap=skip)(
        *annotations, uem=whole, detailed=True
    )
    ours = diarisation_errors(*sides, collar=collar, skip_overlap=skip)
    parts = [theirs[name] for name in ("total", "missed detection", "false alarm", "confusion")]
    assert list(ours[:4]) == pytest.approx(parts, abs=1e-6)


def test_recordings_are_added_and_what_one_side_lacks_counts() -> None:
    reference = [Turn("a", 0, 2, "x"), Turn("b", 0, 3, "x")]
    got = diarisation_errors(reference, [Turn("a", 0, 2, "1"), Turn("c", 5, 6, "1")])
    assert got[:4] == (5, 3, 1, 0)
    assert got.rate == pytest.approx(4 / 5)
    assert got.mapping == {"a": {"x": "1"}, "b": {}, "c": {}}
    assert np.isnan(diarisation_errors([], [Turn("a", 0, 1, "1")]).rate)


@pytest.mark.parametrize("collar", [-1.0, float("nan"), float("inf")])
def test_a_wrong_collar_is_refused(collar: float) -> None:
    with pytest.raises(ValueError, match="collar"):
        diarisation_errors([Turn("a", 0, 1, "x")], [], collar=collar)


def test_what_would_take_all_memory_is_refused() -> None:
    many = [Turn("a", i, i + 1, f"x{i}") for i in range(6000)]
    with pytest.raises(ValueError, match="6000"):
        diarisation_errors(many, [])


def test_pairs_of_speakers_are_bounded() -> None:
    many = [Turn("a", 0, 1, f"x{i}") for i in range(2049)]
    with pytest.raises(ValueError, match="2049 speakers of the reference against 2049"):
        diarisation_errors(many, many)
    assert diarisation_errors(many, many[:2]).missed == 2047


@pytest.mark.parametrize("time", [1e10, float("inf"), float("nan")])
def test_absurd_times_are_refused(time: float) -> None:
    with pytest.raises(ValueError, match="a: a turn starts or ends at a time"):
        diarisation_errors([Turn("a", 0, time, "x")], [])


def test_turns_are_written_and_read_again(tmp_path: Path) -> None:
    turns = [Turn("talk", 0.5, 2.25, "ann"), Turn("talk", 2.25, 2.2504, "x"), Turn("b", 1, 2, "é")]
    write_turns(tmp_path / "a.rttm", turns)
    assert read_turns(tmp_path / "a.rttm") == [turns[0], turns[2]]
    assert rttm_text([Turn("my talk", 0, 1, " ")]).split() == (
        ["SPEAKER", "my_talk", "1", "0.000", "1.000", "<NA>", "<NA>", "_", "<NA>", "<NA>"]
    )


def test_odd_lines_are_skipped_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "odd.rttm"
    good = "SPEAKER t 1 0 1 <NA> <NA> ann <NA> <NA>\n"
    path.write_text(f";; by hand\n\n# so\nSPKR-INFO t 1 <NA> <NA> <NA> adult ann\n{good}")
    assert len(read_turns(path)) == 1
    times = [f"SPEAKER t 1 {time} . . ann" for time in ("nan 1", "0 inf", "-5 1", "0 1e300", "0 0")]
    for bad in ("t 1 0 1", *times, "SPEAKER t"):
        path.write_text(f"{good}{bad}\n{good}")
        with pytest.raises(ValueError, match=r"1 lines .*'line 2'"):
            read_turns(path)
    path.write_text(";; nothing\n")
    with pytest.raises(ValueError, match="no turns"):
        read_turns(path)
