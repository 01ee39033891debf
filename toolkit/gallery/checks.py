"""Look for faults in a gallery, as `likeness gallery check` does; `gallery enrol` warns of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals.bootstrap import few_of
from likeness.eval.metrics.cleaning import Fit, fit_of, suspects, twins
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.similarity import matrix
from likeness.eval.types import Floats, Floats32, counted
from likeness.eval.writing import write_rows
from likeness.toolkit.gallery.gallery import Gallery

Finding = Literal["misfit", "low", "twins"]
_FINDINGS = {
    "misfit": "enrolments that may be damaged or of somebody else",
    "twins": "pairs of subjects that may be one",
    "low": "enrolments of low quality, which fit nobody well",
}


class Doubt(NamedTuple):
    """An enrolment, or a subject, of whom a gallery may be wrong.

    Attributes:
        finding: "misfit", "low" or "twins", see `check`.
        subject: Who it is said to be.
        item: The file that was enrolled; "" for twins.
        looks_like: The nearest other subject; of twins the second one.
        own: The score, by the gallery's similarity, with the mean of the subject's other
            enrolments; None for twins.
        other: That with the mean of the nearest other subject's enrolments; None for twins, and
            where there is no other subject.
    """

    finding: Finding
    subject: str
    item: str
    looks_like: str
    own: float | None = None
    other: float | None = None

    def text(self) -> str:
        """The doubt in a sentence."""
        if self.finding == "twins":
            return f"{self.subject} and {self.looks_like} may be one"
        fits = f"fits its others at {self.own:.4g}"
        if self.other is not None:
            fits += f", and {self.looks_like} at {self.other:.4g}"
        why = "may be damaged or of somebody else" if self.finding == "misfit" else "may be poor"
        return f"{self.subject}: {self.item} {why} ({fits})"


@dataclass(frozen=True)
class Checked:
    """What `check` found in a gallery.

    Attributes:
        doubts: Enrolments and subjects that may be wrong, the surest of each finding first.
        enrolments: How many enrolments the gallery has.
        subjects: Of how many subjects.
        alone: How many subjects have one enrolment, of which nothing says whether it fits.
        strangers: The score (N,) of each enrolment without a doubt with the best other subject, by
            the similarity of the gallery.
        threshold: The score from which on a search takes somebody for a subject, or None.
        source: Where a stored threshold comes from.
        mean_of: The items whose mean the gallery subtracts; "" where it subtracts none.
    """

    doubts: Sequence[Doubt]
    enrolments: int
    subjects: int
    alone: int
    strangers: Floats
    threshold: float | None = None
    source: str = ""
    mean_of: str = ""

    def summary(self) -> str:
        """What was found, and how often a stranger will pass for somebody, in a few lines."""
        of = counted(self.subjects, "subject")
        lines = [f"{counted(self.enrolments, 'enrolment')} of {of}, compared with each other"]
        if self.mean_of:
            lines[0] += f", after subtracting the mean of {self.mean_of}"
        for finding, sentence in _FINDINGS.items():
            count = sum(doubt.finding == finding for doubt in self.doubts)
            lines.append(f"{count:,} {sentence}" if count else f"no {sentence}")
        if self.alone:
            lines.append(
                f"{counted(self.alone, 'subject')} with one enrolment: nothing says if it fits"
            )
        among = f"among {self.subjects:,} subjects a stranger passes for somebody in"
        count = len(self.strangers)
        for share in (0.1, 0.01):
            if count * share >= 1:
                least = np.quantile(self.strangers, 1 - share, method="higher")
                rate = f"{100 * np.mean(self.strangers >= least):.3g} %"
                lines.append(f"{among} {rate} of searches at the threshold {least:.4g}")
        if self.threshold is not None and count:
            hits = int((self.strangers >= self.threshold).sum())
            rate = f"{100 * hits / count:.3g} % ({hits:,} of {count:,})"
            source = f" of {self.source}" if self.source else ""
            lines.append(f"{among} {rate} at the threshold {self.threshold:.4g}{source}")
        if count and (few := few_of(self.subjects)) and few not in lines[-1]:
            lines.append(f"{few}, say little of others")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Write the doubts to a .csv or .tsv file, whole or not at all."""
        write_rows(path, Doubt._fields, self.doubts)


def check(gallery: Gallery, threshold: float | None = None, source: str = "") -> Checked:
    """Look for enrolments that do not fit their subject, and for subjects who are one.

    An enrolment is a "misfit" where a tenth of the other subjects or more are as near to it as the
    other enrolments of its own subject (`likeness.eval.metrics.cleaning.suspects`). Two subjects
    are "twins" where two fifths of their enrolments, without misfits, are nearest to the other one.
    An enrolment is "low" where it fits its own subject best, but far worse than others fit theirs:
    by three times the distance of the quartiles below the lower one (Tukey's outer fence).

    Args:
        gallery: An open gallery.
        threshold: The score from which on a search takes somebody for a subject.
        source: Where a stored threshold comes from.

    Example:
        >>> from likeness import Embeddings, open_gallery
        >>> gallery = open_gallery(None, {"similarity": "cosine"})
        >>> rows = np.eye(3)[[0, 0, 1, 1, 1, 2, 2]]
        >>> people = Embeddings(("1", "2", "3", "4", "5", "6", "7"), rows)
        >>> gallery.enrol(people, ["ann", "ann", "ann", "bob", "bob", "cy", "cy"])
        >>> [(doubt.finding, doubt.item, doubt.looks_like) for doubt in check(gallery).doubts]
        [('misfit', '3', 'bob')]
    """
    made = gallery.everything()
    mean_of = gallery.thresholds.data if gallery.thresholds else ""
    if not made.items:
        return Checked([], 0, 0, 0, np.zeros(0), threshold, source, mean_of)
    names, numbers = np.unique(np.array(made.subjects, dtype=str), return_inverse=True)
    unit = Embeddings(tuple(map(str, range(len(numbers)))), made.rows).unit()
    rows_of = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])

    def doubts_of(finding: Finding, fit: Fit, rows: Counts, at: Counts) -> list[Doubt]:
        """The doubts, with scores in the unit of the thresholds in place of cosines."""
        found = []
        for row, place in zip(rows.tolist(), at.tolist(), strict=True):
            own = rows_of[numbers[place]]
            groups = [own[own != place], rows_of[fit.looks_like[row]]]
            means = [made.rows[of].mean(axis=0) for of in groups[: 1 + np.isfinite(fit.other[row])]]
            scores = matrix(means, made.rows[[place]], gallery.similarity)[:, 0].tolist()
            who = made.subjects[place], made.items[place], str(names[fit.looks_like[row]])
            found.append(Doubt(finding, *who, *scores))
        return found

    fit = fit_of(unit, numbers)
    wrong = suspects(fit)
    doubts = doubts_of("misfit", fit, wrong, wrong)
    good = np.delete(np.arange(len(numbers)), wrong)
    fit = fit_of(unit[good], numbers[good])
    pairs = names[twins(fit)].tolist()
    doubts += [Doubt("twins", first, "", second) for first, second in pairs]
    known = fit.own[~np.isnan(fit.own)]
    if known.size:
        low, high = np.quantile(known, (0.25, 0.75))
        rows = np.flatnonzero(fit.own < low - 3 * (high - low))
        doubts += doubts_of("low", fit, rows, good[rows])
    alone = int((np.bincount(numbers) == 1).sum())
    best = _strangers(gallery, [made.subjects[i] for i in good.tolist()], made.rows[good], pairs)
    return Checked(doubts, len(numbers), len(names), alone, best, threshold, source, mean_of)


def _strangers(
    gallery: Gallery, subjects: Sequence[str], rows: Floats32, pairs: Sequence[Sequence[str]]
) -> Floats:
    """The best score of each enrolment with another subject; pairs are one subject."""
    same = {frozenset(pair) for pair in [*pairs, *((who,) for who in subjects)]}
    most = max(Counter(chain(*pairs)).values(), default=0)  # twins of one subject
    probes = Embeddings(tuple(map(str, range(len(rows)))), rows, gallery.meta)
    best = []
    for who, matches in zip(subjects, gallery.search(probes, k=2 + most), strict=True):
        others = [m.score for m in matches if frozenset((who, m.subject)) not in same]
        best += others[:1]
    return np.array(best)
