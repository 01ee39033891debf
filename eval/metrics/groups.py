"""Error rates by group of subjects (sex, age band, accent): `likeness evaluate --groups`.

A group's own trials have both sides in it; a trial across groups has its sides in two. Most systems
accept impostors of one's own group more easily than others (NIST IR 8280, 2019), so that the two
are never pooled here. Two questions are answered apart: what happens to each group at the one
threshold that a system runs with ("global": set on all trials), and how well each group could be
told apart at a threshold of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.bootstrap import (
    FEW_DRAWN,
    MIN_DRAWN,
    NOTHING_KNOWN,
    Bounds,
    Drawn,
    bounds,
    bounds_over_groups,
    drawn_from,
    drawn_groups,
    draws_of,
    few_of,
)
from likeness.eval.intervals.resampling import Cells, rank_trials
from likeness.eval.intervals.small_rates import NO_ERROR, add_exact_bounds, exact_bounds
from likeness.eval.metrics.differentials import MEASURES, Differential, differentials
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.metrics.verification import verification_metrics
from likeness.eval.results import (
    Conventions,
    aligned,
    bracketed,
    complement,
    metric_label,
    metric_text,
)
from likeness.eval.types import UNKNOWN, Bools, Floats, Ints, Scores, Trials, name_first, respell

MAX_GROUPS = 50  # more are ages, not age bands
# Doddington's rule of 30: with fewer, a rate is not known to within 30 % at 90 % confidence
MIN_ERRORS = 30
_BLOCK = 1 << 20  # draws held at once: 8 MB


@dataclass(frozen=True)
class Rate:
    """A fraction with its interval; None where the group has no such trials. note: why there is no
    interval, or why it is not to be relied on.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One group, or the trials across groups. subjects: those in its trials. flags: why its numbers
    are not to be relied on.

    rates: "eer" and "tar_at_far(FAR)" at its own threshold; "global_tar(AT)" and "global_far(AT)",
    AT = eer or a FAR, at the threshold of all trials.
    """

    group: str
    subjects: int
    targets: int
    nontargets: int
    flags: tuple[str, ...]
    rates: Mapping[str, Rate]


@dataclass(frozen=True)
class Grouped:
    """A system's rates by group. thresholds: AT -> the global threshold, None where it accepts
    nothing. by: what the groups are, such as "sex"; "" where a list names them. differentials: by
    ISO/IEC 19795-10, where its terms are asked for. fte: group -> the share of its items that could
    not be embedded, where failures are known.
    """

    system: str
    groups: tuple[Row, ...]
    across: Row
    thresholds: Mapping[str, float | None]
    conventions: Mapping[str, str | float | int]
    by: str = ""
    differentials: tuple[Differential, ...] = ()
    fte: Mapping[str, Rate] = field(default_factory=dict)


def group_sides(
    trials: Trials, group_of: Mapping[str, str], subject_of: Mapping[str, str]
) -> tuple[Ints, tuple[str, ...]]:
    """Group numbers (P, 2) of the enrol and probe side of each trial, and the groups' names in
    alphabetical order.

    An item's group is that of its id, else that of its subject. LikenessError: items without a
    group, one group only, more than 50.
    """
    ids = list(dict.fromkeys((*trials.enrol_ids, *trials.probe_ids)))
    subject_of = respell(subject_of, ids)
    group_of = respell(group_of, [*ids, *subject_of.values()])
    groups = {name: group_of.get(name) or group_of.get(subject_of.get(name, "")) for name in ids}
    missing = [name for name, group in groups.items() if group is None]
    if missing:
        raise LikenessError(f"groups: {missing[0]!r} has no group; add one, such as `unknown`")
    names = tuple(sorted({str(group) for group in groups.values()}))
    if not 2 <= len(names) <= MAX_GROUPS:
        raise LikenessError(f"groups: {len(names)} ({name_first(names)}); give 2 to {MAX_GROUPS}")
    enrol, probe = (
        np.array([names.index(str(groups[name])) for name in side], dtype=np.int32)
        for side in (trials.enrol_ids, trials.probe_ids)
    )
    return np.stack([enrol[trials.enrol], probe[trials.probe]], axis=1), names


def evaluate_groups(
    name: str,
    scores: Scores,
    subjects: Ints,
    sides: Ints,
    names: Sequence[str],
    *,
    settings: VerificationSettings,
) -> Grouped:
    """Rates of every group of one system at the global thresholds and at its own.

    subjects, sides: (P, 2) subject and group numbers of each trial's enrol and probe side; names:
    of the groups. settings: FARs, rules and resamples as for `measure_system`; the
    thresholds are strict. LikenessError: an empty class over all trials, labels that contradict the
    subjects.
    """
    classes = scores.targets, scores.nontargets
    measured = verification_metrics(*classes, p_targets=(), fars=settings.fars)
    thresholds = {
        at.removeprefix("tar_at_far(").removesuffix(")"): float(metric.threshold)
        for at, metric in measured.items()
    }

    def part(chosen: Bools) -> Part:
        return Part(Scores(scores.values[chosen], scores.target[chosen]), subjects[chosen])

    rows, draws = [], []
    for number, group in enumerate(names):
        own = part(np.all(sides == number, axis=1))
        of_group = replace(settings, seed=settings.seed + 1 + number)
        rates, values = rates_at(own, thresholds, of_group)
        rows.append(_row(group, own, own_rates(own, of_group)[0] | rates, settings))
        draws.append(values)
    across = part(sides[:, 0] != sides[:, 1])
    rates, _ = rates_at(across, thresholds, settings)
    limits = {at: limit if np.isfinite(limit) else None for at, limit in thresholds.items()}
    last = _row("across groups", across, rates, settings)
    grouped = Grouped(name, tuple(rows), last, limits, _conventions(settings))
    if settings.terms != "iso":
        return grouped
    known = [number for number, group in enumerate(names) if group != UNKNOWN]
    number_of = np.full(len(names), -1)
    number_of[known] = np.arange(len(known))
    apart = differentials(
        *(scores, subjects, number_of[sides], [names[number] for number in known]),
        *(thresholds, [draws[number] for number in known], settings),
    )
    return replace(grouped, differentials=apart)


def _conventions(settings: VerificationSettings) -> Conventions:
    conventions: Conventions = {
        "trials": "of a group: both sides in it; across groups: sides in two of them",
        "global_threshold": "set on all trials, strict, and held fixed while subjects are "
        "resampled",
        "eer_method": settings.eer_method,
        "tar_rule": settings.tar_rule,
        "flags": f"fewer than {FEW_DRAWN} subjects (no interval below {MIN_DRAWN}); fewer than "
        f"{MIN_ERRORS} false accepts to be expected at a FAR",
    }
    if settings.num_resamples:
        conventions["interval"] = "bootstrap over the group's subjects"
        conventions |= draws_of(settings)
    return conventions


class Part(NamedTuple):
    """Some of the trials: their scores, and (P, 2) the subjects of both sides."""

    scores: Scores
    subjects: Ints


_Draws = dict[str, Floats]
"""Rate -> its (R,) resampled values; those that rest on too few subjects are NaN or left out."""


def own_rates(part: Part, settings: VerificationSettings) -> tuple[dict[str, Rate], _Draws]:
    """The rates of a group at a threshold of its own."""
    metrics = ["eer", *(f"tar_at_far({far:g})" for far in settings.fars)]
    if not (part.scores.targets.size and part.scores.nontargets.size):
        return dict.fromkeys(metrics, Rate(None)), {}
    only_rates = replace(settings, p_targets=(), llr=False)
    results, resamples = measure_system(part.scores, only_rates, subjects=part.subjects)
    rates = {
        result.metric: Rate(
            result.value, result.interval, str(result.conventions.get("interval_note", ""))
        )
        for result in results
        if result.metric in metrics
    }
    return rates, dict(resamples or {})


def rates_at(
    part: Part, thresholds: Mapping[str, float], settings: VerificationSettings
) -> tuple[dict[str, Rate], _Draws]:
    """The rates at the thresholds of all trials."""
    classes = {"global_tar": part.scores.targets, "global_far": part.scores.nontargets}
    rates = {
        f"{name}({at})": float(np.mean(values >= threshold)) if values.size else None
        for at, threshold in thresholds.items()
        for name, values in classes.items()
    }
    intervals: dict[str, Bounds] = {}
    values: _Draws = {}
    if len(part.subjects) and settings.num_resamples:
        is_target = part.scores.target
        behind = {
            "global_tar": drawn_groups(part.subjects[is_target], "subjects with target trials"),
            "global_far": drawn_groups(part.subjects[~is_target], "subjects in nontarget trials"),
        }
        resampled = _resample_rates(*part, thresholds, settings)
        for metric, draws in resampled.items():
            drawn, value = behind[metric.partition("(")[0]], rates[metric]
            assert value is not None
            intervals[metric] = bounds(draws, value, settings.level, drawn)
            if drawn.number >= MIN_DRAWN:
                values[metric] = draws
        intervals = add_exact_bounds(intervals, rates, *part, settings.level)
    stated = {metric: Rate(rate, *intervals.get(metric, ())) for metric, rate in rates.items()}
    return stated, values


def _row(group: str, part: Part, rates: Mapping[str, Rate], settings: VerificationSettings) -> Row:
    """A row of the tables, with what is to be known of its size."""
    num_targets, num_nontargets = part.scores.targets.size, part.scores.nontargets.size
    count = int(np.unique(part.subjects).size)
    drawn = drawn_from(part.scores.target, part.subjects)
    fewest = drawn if drawn.number else Drawn(count, "subjects")
    flags = list(filter(None, [few_of(fewest.number, fewest.what)]))
    few = [f"{far:g}" for far in settings.fars if far * num_nontargets < MIN_ERRORS]
    if few:
        flags.append(f"fewer than {MIN_ERRORS} false accepts expected at FAR {', '.join(few)}")
    return Row(group, count, num_targets, num_nontargets, tuple(flags), rates)


def _resample_rates(
    scores: Scores, subjects: Ints, thresholds: Mapping[str, float], settings: VerificationSettings
) -> dict[str, Floats]:
    """Resampled rates at fixed thresholds: a target trial weighs c[s], a nontarget trial c[a] c[b],
    as in likeness.eval.intervals.bootstrap. NaN where a draw holds no such trial.
    """
    names, flat = np.unique(subjects, return_inverse=True)
    n, numbers = names.size, flat.reshape(subjects.shape)
    limits = np.array([-np.inf, *thresholds.values()])  # all trials, then those that are accepted
    cells = Cells(rank_trials(scores, (numbers, n)), limits)
    place = np.searchsorted(cells.starts, limits)
    num_resamples, rng = settings.num_resamples, np.random.default_rng(settings.seed)
    values = np.empty((2, limits.size - 1, num_resamples))
    step = max(1, _BLOCK // n)
    for start in range(0, num_resamples, step):
        size = min(step, num_resamples - start)
        draws = rng.multinomial(n, np.full(n, 1 / n), size=size).T.astype(np.float64)
        for kind, of_cells in enumerate(cells.sums(draws)):
            sums = np.cumsum(of_cells[:, ::-1], axis=1)[:, ::-1][:, place].T
            with np.errstate(invalid="ignore"):
                values[kind, :, start : start + size] = sums[1:] / sums[0]
    return {
        f"{name}({at})": row
        for name, of_kind in zip(("global_tar", "global_far"), values, strict=True)
        for at, row in zip(thresholds, of_kind, strict=True)
        if not np.isnan(row).all()
    }


def share_over_groups(flags: ArrayLike, groups: ArrayLike, settings: Any) -> Rate:
    """A share of items, with its interval over their groups such as subjects.

    Args:
        flags: (N,) which items count, 0 or 1.
        groups: (N,) the group of each item.
        settings: The draws, see `draws_of`.

    Returns:
        The share, with the exact bound by the number of groups where no item counts.
    """
    of_items, drawn = np.asarray(flags, dtype=np.float64), drawn_groups(groups, "subjects")
    share = float(of_items.mean())
    if not settings.num_resamples:
        return Rate(share)
    if not share:
        return Rate(share, *exact_bounds(share, settings.level, drawn))
    (ends,) = bounds_over_groups(
        lambda times: [times @ of_items / times.sum()], [share], groups, drawn, settings
    )
    return Rate(share, *ends)


def blocks(grouped: Grouped) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(caption, head, rows) of text: the sizes of the groups, then each operating point."""
    rows = (*grouped.groups, grouped.across)
    sizes = [
        [_mark(row), f"{row.subjects:,}", f"{row.targets:,}", f"{row.nontargets:,}"] for row in rows
    ]
    title = f"{grouped.system}: " + (f"by {grouped.by}, " if grouped.by else "")
    head = ["", "subjects", "targets", "nontargets"]
    yield f"{title}groups and their own trials", head, sizes
    for at, threshold in grouped.thresholds.items():
        own = "eer" if at == "eer" else f"tar_at_far({at})"
        columns = [own, f"global_tar({at})", f"global_far({at})"]
        point = "the EER" if at == "eer" else f"FAR {at}"
        body = [[_mark(row), *(_cell(row.rates.get(column)) for column in columns)] for row in rows]
        caption = f"{title}at {point} of all trials, threshold {_number(threshold)}"
        yield caption, ["", f"own threshold: {metric_label(own)}", "TAR (%)", "FAR (%)"], body
    for at in grouped.thresholds if grouped.differentials else ():
        body = []
        for row in grouped.groups:
            fnmr, fte = complement(row.rates[f"global_tar({at})"]), grouped.fte.get(row.group)
            cells = map(_cell, (row.rates[f"global_far({at})"], fnmr, fte))
            body.append([row.group, *cells])
        for measure, label in MEASURES.items():
            both = [of for of in grouped.differentials if (of.at, of.measure) == (at, measure)]
            body.append([label, *(_apart(of.value, of.interval) for of in both), ""])
            body.append(["  random groups, 95 %", *(_apart(of.by_chance) for of in both), ""])
        point = "the EER" if at == "eer" else f"FAR {at}"
        head = ["", "FMR (%)", "FNMR (%)", "FTE (%)"]
        yield f"{title}ISO/IEC 19795-10, at the threshold of {point}", head, body


def notes(grouped: Grouped) -> list[str]:
    """What the numbers are and which groups are small."""
    c = grouped.conventions
    drawn = (
        f"{100 * float(c['level']):g} % bootstrap over a group's subjects, "
        f"{int(c['num_resamples']):,} resamples"
        if "level" in c
        else "none were computed"
    )
    rows = (*grouped.groups, grouped.across)
    sentences = [
        "Groups: trials with both sides in the group; `across groups` has sides in two. "
        f"Intervals: {drawn}; the thresholds of all trials held fixed.",
        *(f"{_mark(row)} {'; '.join(row.flags)}." for row in rows if row.flags),
    ]
    noted = {rate.note for row in rows for rate in row.rates.values() if rate.interval is not None}
    if any(note.startswith(NO_ERROR) for note in noted):
        sentences.append("Where no error was seen, the interval is the exact bound over subjects.")
    if any(NOTHING_KNOWN in note for note in noted):
        sentences.append("Where an interval holds every possible value, nothing is known.")
    for row in rows:
        missing = [rate.note for rate in row.rates.values() if rate.interval is None]
        sentences += [f"{row.group}: {note}." for note in dict.fromkeys(missing) if note]
    apart = grouped.differentials  # the ratio and the Gini coefficient of each rate
    pairs = zip(apart[::2], apart[1::2], strict=True)
    shown = [other if of.value is None else of for of, other in pairs if of.value != 1]
    return sentences + [each.sentence() for each in shown]


def table(grouped: Sequence[Grouped]) -> str:
    """Aligned text of `blocks` and `notes` for every system."""
    lines: list[str] = []
    for system in grouped:
        for caption, head, rows in blocks(system):
            lines += ["", caption, *aligned([head, *rows])]
        lines += ["", *notes(system)]
    return "\n".join(lines) + "\n"


def _apart(value: float | None, ends: tuple[float, float] | None = None) -> str:
    brackets = "" if ends is None else f"  [{_number(ends[0])}, {_number(ends[1])}]"
    return f"{_number(value):>6}{brackets}"


def _mark(row: Row) -> str:
    return row.group + ("*" if row.flags else "")


def _cell(rate: Rate | None) -> str:
    if rate is None or rate.value is None:
        return f"{'-':>6}"
    ends = bracketed("far", rate.interval, rate.note, width=6)
    return f"{metric_text('far', rate.value):>6}  {ends}".rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
