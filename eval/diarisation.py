"""The diarisation error rate (DER): how much of who speaks when a system gets wrong.

At each instant let R be the number of speakers of the reference who speak, S that of the system's,
and C the number of those speakers of the reference whose own counterpart of the system speaks too.
Then max(0, R - S) of the speech is missed, max(0, S - R) is a false alarm, and min(R, S) - C is
confused. Each is integrated over the scored time, and the rate is their sum over the integral of R.
It may exceed 1. Counterparts are one to one, and chosen so that the integral of C is largest.

Source: NIST, The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.rttm import MAX_SECONDS, Turn

_MOST_CELLS = 2**25  # speakers x intervals of one recording, 8 bytes each
_MOST_PAIRS = 2**22  # speakers of one recording, reference x system: counterparts take seconds
_Times = NDArray[np.float64]


class DiarisationErrors(NamedTuple):
    """The parts of a diarisation error rate, in seconds of speech.

    Where two people of the reference speak at once, a second counts twice.

    Attributes:
        speech: Of the reference, in the scored time.
        missed: Of the reference, when the system had fewer speakers.
        false_alarm: Of the system, when the reference had fewer speakers.
        confusion: Speech that the system gave to somebody else.
        mapping: The speaker of the reference -> the counterpart of the system, by recording.
    """

    speech: float
    missed: float
    false_alarm: float
    confusion: float
    mapping: Mapping[str, Mapping[str, str]]

    @property
    def rate(self) -> float:
        """The diarisation error rate; NaN where the reference has no speech that is scored."""
        wrong = self.missed + self.false_alarm + self.confusion
        return wrong / self.speech if self.speech else float("nan")


def diarisation_errors(
    reference: Iterable[Turn],
    system: Iterable[Turn],
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarisationErrors:
    """Compute the diarisation error rate and its parts.

    Recordings are scored one by one and their seconds are added. A recording that only one side has
    is missed, or a false alarm, as a whole. All time is scored from the first turn of either side
    to the last. Turns of one speaker that overlap or touch are one turn.

    Args:
        reference: Who speaks when.
        system: What a system says.
        collar: So many seconds on each side of the start and the end of every turn of the
            reference are not scored. `pyannote.metrics` calls twice this number its collar. Times
            that agree to a nanosecond are taken for equal.
        skip_overlap: Whether times in which several people of the reference speak are left out.

    Returns:
        The parts. Counterparts are found in the time that is scored, as pyannote.metrics finds
        them.

    Raises:
        LikenessError: The collar is negative or no number, a time is not below 1e10, or a recording
            has so many turns and speakers that they would take over a quarter of a gigabyte, or
            over four million pairs of speakers.

    Example:
        >>> reference = [Turn("talk", 0, 4, "ann"), Turn("talk", 4, 8, "bob")]
        >>> system = [Turn("talk", 0, 5, "1"), Turn("talk", 5, 9, "2")]
        >>> errors = diarisation_errors(reference, system)
        >>> errors.speech, errors.missed, errors.false_alarm, errors.confusion
        (8.0, 0.0, 1.0, 1.0)
        >>> errors.rate, dict(errors.mapping["talk"])
        (0.25, {'ann': '1', 'bob': '2'})
    """
    if not 0 <= collar < np.inf:
        raise LikenessError(f"collar {collar}: give 0 or more seconds, such as 0.25")
    sides = _by_file(merged(reference)), _by_file(system)
    total, mapping = np.zeros(4), dict[str, dict[str, str]]()
    for file in dict.fromkeys((*sides[0], *sides[1])):
        turns = [side.get(file, []) for side in sides]
        parts, mapping[file] = _of_file(file, turns[0], turns[1], collar, skip_overlap)
        total += parts
    speech, missed, false_alarm, confusion = total.tolist()
    return DiarisationErrors(speech, missed, false_alarm, confusion, mapping)


def _by_file(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    files: dict[str, list[Turn]] = {}
    for turn in turns:
        files.setdefault(turn.file, []).append(turn)
    return files


def _of_file(
    file: str, reference: Sequence[Turn], system: Sequence[Turn], collar: float, skip_overlap: bool
) -> tuple[_Times, dict[str, str]]:
    """The four parts of one recording, and its counterparts."""
    times = [
        np.array([turn[1:3] for turn in side], dtype=np.float64).reshape(-1, 2)
        for side in (reference, system)
    ]
    if not all((np.abs(part) < MAX_SECONDS).all() for part in times):  # which also refuses NaN
        raise LikenessError(
            f"{file}: a turn starts or ends at a time that is no number below 1e10 s; correct it"
        )
    edges = times[0].reshape(-1, 1)
    # Whoever adds a start to a duration gets a number that differs in its last digits.
    collars = np.array([-collar, collar], dtype=np.float64)
    without: _Times = np.round(edges + collars, 9)
    times = [np.round(part, 9) for part in times]
    instants = np.unique(np.concatenate([part.reshape(-1) for part in (*times, without)]))
    names = [list(dict.fromkeys(turn.speaker for turn in side)) for side in (reference, system)]
    if (len(names[0]) + len(names[1])) * len(instants) > _MOST_CELLS:
        raise LikenessError(
            f"{file}: {len(names[0])} and {len(names[1])} speakers in {len(instants)} intervals "
            "are too many to be compared; divide the recording"
        )
    if len(names[0]) * len(names[1]) > _MOST_PAIRS:
        raise LikenessError(
            f"{file}: {len(names[0])} speakers of the reference against {len(names[1])} of the "
            f"system are {len(names[0]) * len(names[1]):,} pairs, and at most {_MOST_PAIRS:,} are "
            "compared; correct the names, or divide the recording"
        )
    lengths = np.diff(instants)
    speaks = [
        _activity(side, own, spans, instants)
        for side, own, spans in zip((reference, system), names, times, strict=True)
    ]
    counts = [part.sum(axis=0) for part in speaks]
    scored = ~_covered(without, instants) if collar else np.ones(len(lengths), dtype=np.bool_)
    if skip_overlap:
        scored &= counts[0] <= 1
    lengths = np.where(scored, lengths, 0.0)
    together = (speaks[0] * lengths) @ speaks[1].T.astype(np.float64)
    from scipy.optimize import linear_sum_assignment  # slow to import, needed here only

    rows, columns = linear_sum_assignment(together, maximize=True)
    mapping = {
        names[0][row]: names[1][column]
        for row, column in zip(rows, columns, strict=True)
        if together[row, column] > 0
    }
    correct = float(together[rows, columns].sum())
    least = float(lengths @ np.minimum(*counts))
    parts = (
        float(lengths @ counts[0]),
        float(lengths @ np.maximum(counts[0] - counts[1], 0)),
        float(lengths @ np.maximum(counts[1] - counts[0], 0)),
        max(0.0, least - correct),
    )
    return np.array(parts), mapping


def _activity(
    turns: Sequence[Turn], names: Sequence[str], spans: _Times, instants: _Times
) -> NDArray[np.bool_]:
    """Who speaks in which of the intervals between the instants, (speakers, intervals)."""
    number = {name: i for i, name in enumerate(names)}
    own = np.array([number[turn.speaker] for turn in turns], dtype=np.int64)
    active = np.zeros((len(names), max(0, len(instants) - 1)), dtype=np.bool_)
    order = np.argsort(own, kind="stable")
    firsts = np.searchsorted(own[order], np.arange(1, len(names)))
    for i, mine in enumerate(np.split(spans[order], firsts) if names else ()):
        active[i] = _covered(mine, instants)
    return active


def _covered(spans: _Times, instants: _Times) -> NDArray[np.bool_]:
    """In which of the intervals between the instants any of the spans lies."""
    places = np.searchsorted(instants, spans)
    change = np.zeros(max(1, len(instants)), dtype=np.int64)
    np.add.at(change, places[:, 0], 1)
    np.add.at(change, places[:, 1], -1)
    covered: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
    return covered


def merged(turns: Iterable[Turn], gap: float = 0.0) -> list[Turn]:
    """Join the turns of one speaker that overlap, or with at most a gap between them.

    Args:
        turns: Of any recordings.
        gap: In seconds.

    Returns:
        The turns, in the order of recordings, then of their starts.

    Example:
        >>> [turn[1:3] for turn in merged([Turn("a", 0, 1, "x"), Turn("a", 1.2, 2, "x")], 0.3)]
        [(0, 2)]
    """
    ordered = sorted(turns, key=lambda turn: (turn.file, turn.channel, turn.speaker, turn.start))
    ends: list[Turn] = ordered[:1]
    for before, turn in pairwise(ordered):
        last = ends[-1]
        same = (before.file, before.channel, before.speaker) == (
            turn.file,
            turn.channel,
            turn.speaker,
        )
        if same and turn.start <= last.end + gap:
            ends[-1] = last._replace(end=max(last.end, turn.end))
        else:
            ends.append(turn)
    return sorted(ends, key=lambda turn: (turn.file, turn.start, turn.end, turn.speaker))
