"""Who the errors of a verification system come from: subjects and pairs of subjects.

Speakers differ in how easily they are recognised (Doddington et al. 1998). Sheep are the rule;
goats are hard to recognise, lambs are easy to imitate, wolves are good at imitating others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from eval.reports.figures import COLOURS, columns, drawn, plot, shortened
from eval.reports.page import EMPTY, MINUS, headed, joined, prose, table
from eval.types import Bools, Floats, Scores, Trials

Counts = NDArray[np.int64]

_TIMES = 2.0  # the overall rate: above it a subject is no sheep
_LEAST_ERRORS = 3  # so that one bad recording makes no goat
_NUM_HARDEST = 100  # trials of each kind, of which the subjects are counted
_NUM_ROWS = 1000  # subjects in the table
_NUM_ON_MAP = 40
_HEAD = (
    "Subject",
    "Kind",
    "Target trials",
    "FRR %",
    "Mean target score",
    "Nontarget trials",
    "FAR % as enrolled",
    "FAR % as probe",
    "Most often taken for",
)
_AS_ENROLLED = _HEAD.index("FAR % as enrolled")
_RULE = (
    "Subjects after Doddington et al. (1998), at the threshold of the equal error rate: a goat is "
    f"rejected more than {_TIMES:g} times as often as target trials are overall; others pass for a "
    f"lamb, as the enrolled side, or a wolf passes for others, as the probe, more than {_TIMES:g} "
    f"times as often as nontarget trials do overall; each with at least {_LEAST_ERRORS} errors. "
    "All others are sheep. Trials of one subject share recordings, so a kind is a hint and no test."
)
_EITHER = (
    " In this list items stand on either side, so that lambs and wolves cannot be told apart: "
    "the rate counts every nontarget trial of a subject."
)


@dataclass(frozen=True, eq=False)
class Zoo:
    """Errors by subject and by pair of subjects at one threshold, over the trials whose subjects
    are known.

    Attributes:
        names: (S,) subjects.
        num_targets: (S,) target trials of each.
        false_rejects: (S,) of them, those that are rejected.
        mean_target: (S,) mean score of them; NaN without any.
        num_enrolled: (S,) nontarget trials with the subject enrolled.
        enrolled_accepts: (S,) of them, those that are accepted.
        num_probe: (S,) nontarget trials with the subject as the probe.
        probe_accepts: (S,) of them, those that are accepted.
        pairs: (K, 2) subjects of each pair with nontarget trials, the lower number first.
        num_pair: (K,) its nontarget trials.
        pair_accepts: (K,) of them, those that are accepted.
        either_side: whether enrolment and probe are interchangeable: both counts are then those of
            both sides.
    """

    names: tuple[str, ...]
    num_targets: Counts
    false_rejects: Counts
    mean_target: Floats
    num_enrolled: Counts
    enrolled_accepts: Counts
    num_probe: Counts
    probe_accepts: Counts
    pairs: Counts
    num_pair: Counts
    pair_accepts: Counts
    either_side: bool

    def kinds(self) -> list[str]:
        """Goat, lamb, wolf or sheep, or several, of each subject."""
        rules = (
            ("goat", self.false_rejects, self.num_targets),
            ("lamb", self.enrolled_accepts, self.num_enrolled),
            ("wolf", self.probe_accepts, self.num_probe),
        )
        named = [np.full(len(self.names), "", dtype=object) for _ in rules]
        for of_rule, (name, errors, number) in zip(named, rules, strict=True):
            rate = errors.sum() / max(number.sum(), 1)
            often = (errors > _TIMES * rate * number) & (errors >= _LEAST_ERRORS)
            of_rule[often] = name
        if self.either_side:
            named = [named[0], np.where(named[1] == "lamb", "lamb or wolf", "")]
        return [", ".join(filter(None, each)) or "sheep" for each in zip(*named, strict=True)]


def zoo(
    trials: Trials, scores: Scores, subject_of: Mapping[str, str], threshold: float
) -> Zoo | None:
    """Count the errors of each subject and of each pair of subjects.

    Args:
        trials: P of them.
        scores: of the trials.
        subject_of: id -> subject.
        threshold: a trial is accepted if its score is at least this.

    Returns:
        The counts; None where the subjects of no trial are known.

    >>> trials = Trials(("a1", "b1"), ("a2", "b2"), [0, 0, 1, 1], [0, 1, 0, 1])
    >>> subject_of = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    >>> made = zoo(trials, Scores([0.9, 0.8, 0.1, 0.2], [1, 0, 0, 1]), subject_of, 0.5)
    >>> made.names, made.false_rejects.tolist(), made.probe_accepts.tolist()
    (('a', 'b'), [0, 1], [0, 1])
    """
    names = tuple(sorted(set(subject_of.values())))
    number = {name: i for i, name in enumerate(names)}
    enrolled, probe = (
        np.array([number.get(subject_of.get(id, ""), -1) for id in ids], dtype=np.int64)[index]
        for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    )
    known = (enrolled >= 0) & (probe >= 0)
    if not known.any():
        return None
    accepted: Bools = scores.values >= threshold
    target, nontarget = known & scores.target, known & ~scores.target

    def counted(side: Counts, chosen: Bools) -> Counts:
        return np.bincount(side[chosen], minlength=len(names)).astype(np.int64)

    num_targets = counted(probe, target)
    total = np.bincount(probe[target], scores.values[target], minlength=len(names))
    sides = [
        (counted(side, nontarget), counted(side, nontarget & accepted))
        for side in (enrolled, probe)
    ]
    both = set(trials.enrol_ids) & set(trials.probe_ids)
    either = 2 * len(both) > len(set(trials.enrol_ids) | set(trials.probe_ids))
    if either:
        sides = [(sides[0][0] + sides[1][0], sides[0][1] + sides[1][1])] * 2
    low, high = np.minimum(enrolled, probe)[nontarget], np.maximum(enrolled, probe)[nontarget]
    codes, of_trial = np.unique(low * len(names) + high, return_inverse=True)
    return Zoo(
        names,
        num_targets,
        counted(probe, target & ~accepted),
        np.divide(total, num_targets, out=np.full(len(names), np.nan), where=num_targets > 0),
        *sides[0],
        *sides[1],
        np.stack([codes // len(names), codes % len(names)], axis=1),
        np.bincount(of_trial, minlength=codes.size).astype(np.int64),
        np.bincount(of_trial, accepted[nontarget], minlength=codes.size).astype(np.int64),
        either,
    )


def who_errs(
    trials: Trials, scores: Scores, subject_of: Mapping[str, str], threshold: float
) -> Markup:
    """The hardest trials by subjects, a row for each subject, and a map of who is taken for whom.

    Args:
        trials: of one system.
        scores: of the trials.
        subject_of: id -> subject.
        threshold: of the counts.

    Returns:
        HTML, which is empty where no subjects are known.
    """
    by_subject = zoo(trials, scores, subject_of, threshold)
    if by_subject is None or len(by_subject.names) < 2:
        return EMPTY
    parts = [prose(text) for text in _sentences(trials, scores, subject_of)]
    parts.append(prose(_RULE + (_EITHER if by_subject.either_side else ""), soft=True))
    return joined([*parts, _table(by_subject), _confusion(by_subject)])


def _sentences(trials: Trials, scores: Scores, subject_of: Mapping[str, str]) -> list[str]:
    """Which subjects the hardest trials are of, where one or two have a fair share of them."""
    sentences = []
    for kind, chosen, sign in (
        ("nontarget", ~scores.target, -1),
        ("target", scores.target, 1),
    ):
        place = np.flatnonzero(chosen)
        num = min(_NUM_HARDEST, place.size)
        place = place[np.argpartition(sign * scores.values[place], num - 1)[:num]]
        sides = [
            [subject_of.get(ids[i], "unknown") for i in index[place].tolist()]
            for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
        ]
        together: dict[tuple[str, ...], int] = {}
        for pair in zip(*sides, strict=True):
            key = tuple(sorted(set(pair)))
            together[key] = together.get(key, 0) + 1
        most = sorted(together.items(), key=lambda each: (-each[1], each[0]))[:3]
        of = "subjects" if kind == "nontarget" else "subject"
        listed = "; ".join(f"{count} of {of} {' and '.join(pair)}" for pair, count in most)
        sentences.append(
            f"The {num} hardest {kind} trials are of {len(together)} "
            f"{'pairs of ' if kind == 'nontarget' else ''}subjects. Most often: {listed}."
        )
    return sentences


def _table(by_subject: Zoo) -> Markup:
    errors = by_subject.false_rejects + by_subject.enrolled_accepts + by_subject.probe_accepts
    rival = _rivals(by_subject)
    rows = [
        [
            by_subject.names[i],
            kind,
            f"{by_subject.num_targets[i]:,}",
            _percent(by_subject.false_rejects[i], by_subject.num_targets[i]),
            _score(by_subject.mean_target[i]),
            f"{by_subject.num_enrolled[i]:,}",
            _percent(by_subject.enrolled_accepts[i], by_subject.num_enrolled[i]),
            _percent(by_subject.probe_accepts[i], by_subject.num_probe[i]),
            rival.get(i, ""),
        ]
        for i, kind in enumerate(by_subject.kinds())
    ]
    head = list(_HEAD)
    if by_subject.either_side:  # both rates are the same
        head[_AS_ENROLLED : _AS_ENROLLED + 2] = ["FAR %"]
        for row in rows:
            del row[_AS_ENROLLED + 1]
    order = np.argsort(-errors, kind="stable")[:_NUM_ROWS].tolist()
    left_out = len(rows) - len(order)
    note = f"{left_out:,} subjects with fewer errors are left out." if left_out else ""
    return table(
        head,
        [rows[i] for i in order],
        kind="n",
        caption="Subjects",
        sortable=True,
        texts=(_HEAD[1], _HEAD[-1]),
    ) + prose(note, soft=True)


def _rivals(by_subject: Zoo) -> dict[int, str]:
    """Subject -> the other with which it has the most false accepts, and how many."""
    rival: dict[int, str] = {}
    for k in np.argsort(-by_subject.pair_accepts, kind="stable").tolist():
        if not by_subject.pair_accepts[k]:
            break
        a, b = by_subject.pairs[k].tolist()
        for own, other in ((a, b), (b, a)):
            rival.setdefault(own, f"{by_subject.names[other]} ({by_subject.pair_accepts[k]:,})")
    return rival


def _confusion(by_subject: Zoo) -> Markup:
    """A map of the subjects with the most false accepts."""
    accepts = np.bincount(
        by_subject.pairs.ravel(),
        np.repeat(by_subject.pair_accepts, 2),
        minlength=len(by_subject.names),
    )
    chosen = np.argsort(-accepts, kind="stable")[:_NUM_ON_MAP]
    if chosen.size < 2 or not accepts.any():
        return EMPTY
    text = (
        "Each cell is a pair of subjects; the stronger its colour, the more of its trials are "
        "false accepts."
    )
    if chosen.size < len(by_subject.names):
        text += f" The {chosen.size} subjects with the most of {len(by_subject.names):,} are shown."
    return headed("Who is taken for whom", prose(text)) + drawn(
        _confusion_figure, by_subject, chosen, alt="Map of false accepts between subjects"
    )


def _confusion_figure(by_subject: Zoo, chosen: Counts) -> Any:
    place = {int(subject): i for i, subject in enumerate(np.sort(chosen))}
    kept = [k for k, (a, b) in enumerate(by_subject.pairs.tolist()) if a in place and b in place]
    both = np.concatenate([by_subject.pairs[kept], by_subject.pairs[kept][:, ::-1]]).tolist()
    accepts, number = (
        np.concatenate([values[kept]] * 2)
        for values in (by_subject.pair_accepts, by_subject.num_pair)
    )
    rate = 100 * accepts / number
    figure = plot(
        "",
        "",
        height=120 + 14 * len(place),
        width=160 + 14 * len(place),
        tips={"subjects": "@first and @second", "false accepts": "@accepts of @number"},
        x_range=(-0.5, len(place) - 0.5),
        y_range=(len(place) - 0.5, -0.5),
    )
    source = columns(
        x=[place[b] for _, b in both],
        y=[place[a] for a, _ in both],
        first=[by_subject.names[a] for a, _ in both],
        second=[by_subject.names[b] for _, b in both],
        accepts=accepts,
        number=number,
        share=rate / max(float(rate.max()), 1e-9),
    )
    figure.rect(
        "x",
        "y",
        1,
        1,
        source=source,
        fill_color=COLOURS[0],
        fill_alpha="share",
        line_color=None,
        name="pairs",
    )
    names = {i: shortened(by_subject.names[subject]) for subject, i in place.items()}
    for axis in figure.axis:
        axis.ticker = list(range(len(place)))
        axis.major_label_overrides = names
        axis.major_label_text_font_size = "10px"
    figure.xaxis.major_label_orientation = "vertical"
    figure.grid.visible = False
    return figure


def _percent(part: Any, whole: Any) -> str:
    return f"{100 * part / whole:.2f}" if whole else "–"


def _score(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4f}".replace("-", MINUS)
