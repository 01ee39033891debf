"""Thresholds that were measured, with everything that they hold for: model, scoring and data.

A threshold is a number on the scale of one model's scores, of one way of scoring, and its error
rates are those of one kind of data. `measure` takes thresholds from scores with labels, and
`likeness.eval.scoring.threshold_files` keeps them with their model.

The rate of a threshold is the one that was measured, or one that is guaranteed with a confidence
over subjects (`likeness.eval.intervals.guarantee`).

Beside the few thresholds that were asked for stands a curve: up to 100 thresholds with both rates
at each. It says what any other threshold would mean, as far as the data support it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Date
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.bootstrap import few_of
from likeness.eval.intervals.guarantee import Guarantee, guaranteed_threshold
from likeness.eval.intervals.subjects import CONNECTED
from likeness.eval.metrics.verification import AnyFloats, measured_eer, measured_tar, sort_scores
from likeness.eval.scoring.origin import Origin
from likeness.eval.types import Scores, Trials, check_counts, counted, is_printable

LEAST_ERRORS = 10  # nontarget trials that a FAR has to amount to, or it says nothing
_BY_NONTARGETS, _BY_TARGETS = 60, 40  # points of a curve at scores of either kind of trial

Far = float | Literal["eer"]
# A confidence between 0 and 1, and (P, 2) the subjects of both sides of each trial.
OverSubjects = tuple[float, NDArray[np.integer[Any]]]


@dataclass(frozen=True)
class Threshold:
    """One operating point.

    Attributes:
        at: "eer" for the equal error rate, "far" for a false-accept rate that was asked for.
        far: The false-accept rate: the one that was asked for, or the one measured at the EER.
        frr: The share of target trials that it rejects, as measured; None where nobody knows it,
            because the threshold comes from unlabelled items.
        value: The threshold: accept if score >= value.
        guarantee: What stands behind a rate that is kept with a confidence over subjects; None for
            a rate that was measured only.
    """

    at: Literal["eer", "far"]
    far: float
    frr: float | None
    value: float
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        rates = 0 <= self.far <= 1 and 0 <= (self.frr or 0) <= 1
        if self.at not in ("eer", "far") or not rates or not math.isfinite(self.value):
            both = f"FAR {self.far}, FRR {self.frr}"
            raise LikenessError(f"threshold {self.value} ({both}) cannot be; measure it again")

    @property
    def name(self) -> str:
        """What it is called in a sentence.

        Example:
            >>> Threshold("far", 0.01, 0.2, 0.4).name, Threshold("eer", 0.035, 0.035, 0.3).name
            ('FAR 1 %', 'the EER (FAR 3.5 %)')
            >>> Threshold("far", 0.01, 0.2, 0.4, Guarantee(0.95, 299, 0, 0, 0.002)).name
            'FAR at most 1 % (95 % confidence over subjects)'
        """
        rate = f"{100 * self.far:.3g} %"
        if self.guarantee is not None:
            confidence = f"{100 * self.guarantee.confidence:g} % confidence over subjects"
            return f"FAR at most {rate} ({confidence})"
        return f"FAR {rate}" if self.at == "far" else f"the EER (FAR {rate})"


class CurvePoint(NamedTuple):
    """One threshold of a curve.

    A rate that fewer than ten trials stand behind is not stated: ten trials' share stands in its
    place, so that it reads "at most".

    Attributes:
        value: The threshold: accept if score >= value.
        far: The share of nontarget trials that it accepts, at least 10 / their number.
        frr: The share of target trials that it rejects, at least 10 / their number.
    """

    value: float
    far: float
    frr: float


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of one model and one way of scoring, as measured on one list of trials.

    Attributes:
        origin: The model and the scoring; the thresholds hold for such scores only.
        data: What they were measured on, in the words of whoever measured.
        subjects: How many subjects the trials are of; None where that is not known.
        targets: How many target trials there were.
        nontargets: How many nontarget trials there were.
        date: The day, as 2026-11-22.
        points: The thresholds, that of the EER first.
        curve: Further thresholds by rising value, whose FAR falls and whose FRR rises; empty
            where there are fewer than 20 trials of either kind.
        unlabelled: How many unlabelled items the thresholds were estimated from; 0 for those that
            were measured on trials.
        centre: The mean direction of these items, which is subtracted from all embeddings.

    Example:
        >>> scores = Scores([3, 2, 1, 0] * 10, [True, True, False, False] * 10)
        >>> found, left_out = measure(scores, Origin("dot"), data="demo", fars=[0.5, 0.01])
        >>> found.at(0.5).value, left_out
        (1.0, (0.01,))
        >>> found.curve[0]
        CurvePoint(value=1.0, far=0.5, frr=0.5)
    """

    origin: Origin
    data: str
    subjects: int | None
    targets: int
    nontargets: int
    date: str
    points: tuple[Threshold, ...]
    curve: tuple[CurvePoint, ...] = ()
    unlabelled: int = 0
    centre: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        Date.fromisoformat(self.date)
        subjects = () if self.subjects is None else (self.subjects,)
        counts = (self.unlabelled,) if self.unlabelled else (self.targets, self.nontargets)
        check_counts("trials and subjects", (*counts, *subjects))
        if not self.data or not is_printable(self.data):
            raise LikenessError(f"{self.data!r} is no name of data; give a printable one")
        if not all(map(math.isfinite, self.centre)):
            raise LikenessError(f"the mean of {self.data} is not finite; estimate it anew")

    def at(self, far: Far) -> Threshold:
        """The threshold of an operating point.

        Args:
            far: A false-accept rate that was measured, such as 0.01, or "eer".

        Raises:
            LikenessError: It was not measured; the message lists those that were.
        """
        for point in self.points:
            if point.at == "eer" if far == "eer" else is_rate(point, far):
                return point
        remedy = (
            f"measure that one by `likeness evaluate SCORES --far {far}`, on {LEAST_ERRORS} / FAR "
            "nontarget trials or more, and store it"
        )
        if self.unlabelled:
            remedy = "estimate another one by `likeness threshold --far RATE`"
        raise LikenessError(
            f"no threshold at FAR {far} was measured on {self.data}; there is {self.rates}: take "
            f"one of these, or {remedy}"
        )

    @property
    def rates(self) -> str:
        """What `at` takes, such as "eer, 0.1, 0.01"."""
        return ", ".join("eer" if p.at == "eer" else f"{p.far:g}" for p in self.points)

    @property
    def doubt(self) -> str:
        """That so few subjects say little of others; "" of enough."""
        few = few_of(self.subjects)
        return f"{few}, say little of others" if few else ""

    def __str__(self) -> str:
        """The operating points in a line, a line on each guaranteed rate, and that of few subjects.

        Example:
            >>> point = Threshold("far", 0.01, 0.125, 0.4, Guarantee(0.95, 299, 0, 0, 0.002))
            >>> stored = Thresholds(Origin("cosine"), "x", 598, 900, 9000, "2026-11-22", (point,))
            >>> print(stored)  # doctest: +ELLIPSIS
            thresholds at FAR at most 1 % (95 % confidence over subjects)
            FAR at most 1 % (95 % confidence over subjects): threshold 0.4, measured FAR 0.2 %, ...
        """
        lines = [f"thresholds at {', '.join(point.name for point in self.points)}"]
        lines += [
            f"{point.name}: threshold {point.value:.4g}, measured FAR "
            f"{100 * point.guarantee.measured_far:.3g} %, FRR {100 * (point.frr or 0):.3g} %; of "
            f"{point.guarantee.pairs:,} trials without a common subject "
            f"{point.guarantee.allowed:,} may pass"
            for point in self.points
            if point.guarantee is not None
        ]
        lines += [self.doubt] if self.doubt else []
        return "\n".join(lines)

    def source(self, point: Threshold) -> str:
        """Where a threshold comes from, such as "FAR 1 %, measured on X: 12 subjects, ..."."""
        if self.unlabelled:
            items = f"{self.unlabelled:,} unlabelled items of {self.data}"
            return f"{point.name}, estimated from {items}, {self.date}"
        sizes = [f"{self.targets + self.nontargets:,} trials", self.date]
        if self.subjects is not None:
            sizes.insert(0, counted(self.subjects, "subject"))
        doubt = f"; {self.doubt}" if self.doubt else ""
        return f"{point.name}, measured on {self.data}: {', '.join(sizes)}{doubt}"


def is_rate(point: Threshold, far: float | str) -> bool:
    """Whether a threshold is that of a false-accept rate."""
    return point.at == "far" and math.isclose(point.far, float(far), rel_tol=1e-9)


def measure(
    scores: Scores,
    origin: Origin,
    *,
    data: str,
    fars: Sequence[float],
    subjects: int | None = None,
    date: str | None = None,
    guarantee: OverSubjects | None = None,
) -> tuple[Thresholds, tuple[float, ...]]:
    """Take the thresholds at the EER and at false-accept rates.

    With a guarantee each rate is kept with its confidence, of each rate by itself. Without one a
    FAR below 10 / (number of nontarget trials) is left out: fewer than ten false accepts would
    stand behind its threshold. So is one at which every trial has to be rejected.

    Args:
        scores: P trials with labels.
        origin: What gave the scores.
        data: What the trials are called.
        fars: The false-accept rates.
        subjects: How many subjects the trials are of, where it is known.
        date: The day of the measurement; by default today.
        guarantee: With which confidence each rate is to be kept; None for measured rates.

    Returns:
        The thresholds, and the rates that were left out.

    Raises:
        LikenessError: There are too few subjects for a guarantee.
    """
    target, nontarget = scores.targets, scores.nontargets
    fars = list(dict.fromkeys(fars))
    ordered = sort_scores(target, nontarget)
    at_eer = measured_eer(ordered).threshold
    candidates: list[tuple[float | None, float, Guarantee | None]] = [(None, at_eer, None)]
    for far in fars:
        if guarantee is not None:
            confidence, pairs = guarantee
            sure = guaranteed_threshold(scores, pairs, far, confidence=confidence)
            candidates.append((far, *sure))
        elif far * nontarget.size >= LEAST_ERRORS * (1 - 1e-9):
            candidates.append((far, measured_tar(ordered, far).threshold, None))
    points = []
    for rate, value, behind in candidates:
        if math.isfinite(value):
            far = float(np.mean(nontarget >= value)) if rate is None else rate
            frr = float(np.mean(target < value))
            points.append(Threshold("eer" if rate is None else "far", far, frr, value, behind))
    kept = [point.far for point in points if point.at == "far"]
    thresholds = Thresholds(
        origin,
        data,
        subjects,
        int(target.size),
        int(nontarget.size),
        date or Date.today().isoformat(),
        tuple(points),
        _curve(target, nontarget),
    )
    return thresholds, tuple(far for far in fars if far not in kept)


def _curve(target: AnyFloats, nontarget: AnyFloats) -> tuple[CurvePoint, ...]:
    """Thresholds from a FAR of one half down to the strictest that the data support, and beyond as
    far as the FRR goes: scores of trials at ranks in equal ratios.
    """
    if min(target.size, nontarget.size) < 2 * LEAST_ERRORS:
        return ()
    targets, nontargets = np.sort(target), np.sort(nontarget)

    def ranks(size: int, number: int) -> NDArray[np.int64]:
        return np.unique(np.geomspace(LEAST_ERRORS, size / 2, number).astype(np.int64))

    # Of target trials the low scores are the errors, and the high ones say what is typical.
    errors = ranks(targets.size, _BY_TARGETS // 2)
    places = (nontargets[-ranks(nontargets.size, _BY_NONTARGETS)], targets[errors])
    values = np.unique(np.concatenate((*places, targets[-1 - errors])))
    accepted = nontargets.size - np.searchsorted(nontargets, values)
    refused = np.searchsorted(targets, values)
    fars = np.maximum(accepted, LEAST_ERRORS) / nontargets.size
    frrs = np.maximum(refused, LEAST_ERRORS) / targets.size
    return tuple(map(CurvePoint, values.tolist(), fars.tolist(), frrs.tolist()))


def subjects_for_guarantee(
    confidence: float | None,
    trials: Trials | None,
    subject_of: Mapping[str, str],
    *,
    source: object = "",
) -> OverSubjects | None:
    """What `measure` needs for rates that are kept with a confidence.

    Args:
        confidence: Between 0 and 1; None for no guarantee.
        trials: P trials; None where they are not known.
        subject_of: Id -> name of its subject.
        source: Where the subjects come from, as `subjects_of` and results say it.

    Raises:
        LikenessError: The subjects are not known. They are only supposed where they are the ids
            that target trials connect: one subject may be several such groups, and the trials of
            different groups are then not independent.

    Example:
        >>> trials = Trials(("b/1",), ("a/1", "b/2"), [0, 0], [0, 1])
        >>> subject_of = {"b/1": "b", "a/1": "a", "b/2": "b"}
        >>> subjects_for_guarantee(0.95, trials, subject_of)[1].tolist()
        [[1, 0], [1, 1]]
    """
    if confidence is None:
        return None
    ids = () if trials is None else sorted({*trials.enrol_ids, *trials.probe_ids})
    if trials is None or source == CONNECTED or any(id not in subject_of for id in ids):
        raise LikenessError("the subjects of the trials are not known; give an `id subject` list")
    # Numbers by the first id of each subject: the draw of pairs is then the same for any order of
    # rows, and whatever the subjects are called.
    number: dict[str, int] = {}
    of_id = {id: number.setdefault(subject_of[id], len(number)) for id in ids}
    enrol, probe = (
        np.array([of_id[id] for id in side], dtype=np.int32)
        for side in (trials.enrol_ids, trials.probe_ids)
    )
    return confidence, np.stack([enrol[trials.enrol], probe[trials.probe]], axis=1)
