"""Results as JSON and as an aligned text table (likeness.eval.reports.page makes the HTML page of
them).

A result is a number with its interval, counts and every convention that it depends on. EER and TAR
are stored as fractions and shown in percent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

from likeness.eval.errors import likeness_version
from likeness.eval.intervals.bootstrap import Bounds, Ends
from likeness.eval.types import counted
from likeness.eval.writing import write_json

SCHEMA = "likeness.results/1"
NO_INTERVAL = "no interval"
Terms = Literal["likeness", "iso"]
Conventions = dict[str, str | float | int]
Cells = dict[tuple[str, str], "Result"]  # (metric, system) -> its result
_COMPLEMENTS = {"tar_at_far": "fnmr_at_fmr", "tpir_at_fpir": "fnir_at_fpir"}


@dataclass(frozen=True)
class Result:
    """One metric of one system (a score file). value and interval: fractions for rates; threshold:
    accept iff score >= it, None where none exists (also where rejecting every trial is best).
    counts: targets, nontargets, subjects (None if unknown). conventions: every switch behind the
    number.
    """

    system: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    threshold: float | None
    counts: Mapping[str, int | None]
    conventions: Mapping[str, str | float | int]
    protocol: str


def add_bounds(result: Result, bounds: Bounds | None) -> Result:
    """The result with an interval; why there is none, or why it is not to be relied on, becomes the
    convention "interval_note".
    """
    if bounds is None:
        return result
    note = {"interval_note": bounds.note} if bounds.note else {}
    return replace(result, interval=bounds.ends, conventions=dict(result.conventions) | note)


def add_iso_terms(results: Iterable[Result]) -> list[Result]:
    """The results, and behind each TAR its FNMR and behind each TPIR its FNIR, which is 1 less it.

    >>> tar = Result("a", "tar_at_far(0.1)", 0.75, (0.5, 1.0), 0.3, {}, {}, "")
    >>> [(each.metric, each.value, each.interval) for each in add_iso_terms([tar])]
    [('tar_at_far(0.1)', 0.75, (0.5, 1.0)), ('fnmr_at_fmr(0.1)', 0.25, (0.0, 0.5))]
    """
    more = []
    for result in results:
        more.append(result)
        kind, bracket, number = result.metric.partition("(")
        if name := _COMPLEMENTS.get(kind):
            more.append(replace(complement(result), metric=f"{name}{bracket}{number}"))
    return more


def complement(result: Any) -> Any:
    """A result or rate of 1 less its value, with its interval."""
    ends = result.interval and (1 - result.interval[1], 1 - result.interval[0])
    return replace(result, value=None if result.value is None else 1 - result.value, interval=ends)


def metric_beside(
    of: Result,
    metric: str,
    value: float,
    bounds: Bounds | None = None,
    limit: float = inf,
    **own: Any,
) -> Result:
    """A metric beside a result, of the same system and with the conventions that hold for both.

    Args:
        of: The result.
        metric: The name of the other metric.
        value: Its value.
        bounds: Its interval.
        limit: Its threshold, infinite for none.
        own: Its own conventions.
    """
    shared = {k: v for k, v in of.conventions.items() if k not in ("method", "interval_note")}
    threshold = limit if isfinite(limit) else None
    made = replace(of, metric=metric, value=value, interval=None, threshold=threshold)
    return add_bounds(replace(made, conventions=shared | own), bounds)


def write_results(
    path: Path, results: Sequence[Result], inputs: Mapping[str, str], **more: Any
) -> None:
    """Writes the results as JSON of schema "likeness.results/1" (docs/reference/formats.md), whole
    or not at all. inputs: name -> SHA-256 of every file read.
    """
    document = {
        "schema": SCHEMA,
        "version": likeness_version(),
        "inputs": dict(inputs),
        "results": [asdict(result) for result in results],
        **more,
    }
    write_json(path, document, allow_nan=False)


def metric_label(metric: str) -> str:
    """A metric's name for people: EER (%), minDCF (p = 0.01), TAR (%) at FAR 0.001, R@1 (%)."""
    kind, _, number = metric.rstrip(")").partition("(")
    at, _, depth = metric.partition("@")
    stored = {"": "", "eer": " at EER"}.get(number, f" at FAR {number}")
    names = {
        "eer": "EER (%)",
        "balanced_accuracy": "best balanced accuracy (%)",
        "min_dcf": f"minDCF (p = {number})",
        "actual_dcf": f"actual DCF (p = {number})",
        "tar_at_far": f"TAR (%) at FAR {number}",
        "fnmr_at_fmr": f"FNMR (%) at FMR {number}",
        **{name: f"{name.upper()} (%) at FMR {number}" for name in ("gfar", "gfrr")},
        **{name: f"{name.upper()} (%)" for name in ("fte", "fta")},
        "mean_score": "mean score",
        "median_score": "median score",
        "share_accepted": f"accepted (%){stored}",
        "far": "FAR (%)",
        "frr": "FRR (%)",
        "refused": "refused (%)",
        "eer_added": "EER added (%)",
        "eer_spoof": "EER against spoofs (%)",
        "sasv_eer": "SASV-EER (%)",
        **{f"{which}_a_dcf": f"{which} a-DCF" for which in ("min", "actual")},
        "min_t_dcf": "min t-DCF",
        "t_eer": "t-EER (%)",
        "cm_eer": "EER of the countermeasure (%)",
        "bpcer_at_apcer": f"BPCER (%) at APCER {number}",
        "cllr": "Cllr (bits)",
        "min_cllr": "minCllr (bits)",
        "dev_pav": "devPAV (powers of ten)",
        **{f"elub_{end}": f"ELUB {end} bound (power of ten)" for end in ("lower", "upper")},
        "rank_k": f"rank-{number} (%)",
        "tpir_at_fpir": f"TPIR (%) at FPIR {number}",
        "fnir_at_fpir": f"FNIR (%) at FPIR {number}",
        "r_precision": "R-precision (%)",
        "map@r": "MAP@R (%)",
        "map@1000": "MAP@1000 (%)",
        "r_auroc": "R-AUROC",
        "edc_pauc": f"EDC pAUC (%) at FNMR {number}",
        "quality_auroc": "AUROC of the quality",
    }
    depths = {"recall": f"R@{depth} (%)", "precision": f"P@{depth} (%)"}
    return names.get(kind) or depths.get(at, metric)


def metric_text(metric: str, value: float, sign: Literal["", "+"] = "") -> str:
    """A value as it is printed: rates in percent with two digits, costs with four; with "+" as a
    difference, which has a sign.
    """
    if "(%)" in metric_label(metric):
        return f"{100 * value:{sign}.2f}"
    return f"{value:{sign}.4f}"


def p_text(p: float | None, limit: float = 0.05) -> str:
    """A p as it is printed: with three digits, or as many as tell it from the limit.

    >>> p_text(0.0123), p_text(0.04996), p_text(1e-9), p_text(None)
    ('0.012', '0.04996', '<0.001', '-')
    """
    if p is None:
        return "-"
    digits = next(d for d in range(3, 18) if (round(p, d) < limit) == (p < limit))
    return f"{p:.{digits}f}" if p >= 0.001 else "<0.001"


def bracketed(
    metric: str,
    interval: Ends | None,
    note: object = "",
    *,
    sign: Literal["", "+"] = "",
    width: int = 0,
) -> str:
    """An interval as `[low, high]`, with a star where it is not to be relied on; why there is none,
    or "". sign: as of `metric_text`. width: of each end, at least.
    """
    if interval is None:
        return NO_INTERVAL if note else ""
    low, high = (metric_text(metric, end, sign) for end in interval)
    return f"[{low:>{width}}, {high:>{width}}]{' *' if note else ''}"


def value_text(result: Result) -> str:
    """A value and its interval, as they stand in a table."""
    note = result.conventions.get("interval_note")
    interval = bracketed(result.metric, result.interval, note, width=6)
    return f"{metric_text(result.metric, result.value):>6}  {interval}".rstrip()


def threshold_text(threshold: float | None) -> str:
    """The threshold of a metric as it is printed, with four digits; "" where it has none.

    It is the one at the EER, at the minimum of the DCF, and at the FAR of TAR@FAR.
    """
    return "" if threshold is None else f"{threshold:.4g}"


def by_system(results: Sequence[Result]) -> tuple[list[str], list[str], Cells]:
    """Systems and metrics in order of appearance, and the result of each pair."""
    cells = {(result.metric, result.system): result for result in results}
    systems = dict.fromkeys(result.system for result in results)
    metrics = dict.fromkeys(result.metric for result in results)
    return list(systems), list(metrics), cells


def _interval_note(counts: Mapping[str, int | None], source: Any, level: Any, draws: Any) -> str:
    """What the bracketed numbers are, in one sentence.

    Args:
        counts: Those of a result.
        source: Where its subjects or classes come from.
        level: The share of the resamples that its interval spans; None where it has none.
        draws: The number of resamples.
    """
    if level is None:
        return "No intervals were computed."
    over = f"over trials, hence optimistic ({source})"
    if classes := counts.get("classes"):
        over = f"over {classes:,} classes ({source})"
    elif (subjects := counts["subjects"]) is not None:
        over = f"over {counted(subjects, 'subject')} ({source})"
    return f"Intervals: {100 * float(level):g} % bootstrap {over}, {int(draws):,} resamples."


def footnotes(results: Sequence[Result]) -> list[str]:
    """What the intervals are, why some are missing or marked by a star, and which FARs the trials
    cannot resolve; a sentence each.
    """
    with_interval = {result.system for result in results if result.interval is not None}
    systems: dict[str, dict[str, None]] = {}
    for result in results:
        stated = result.conventions
        if result.system in with_interval or "level" not in stated:
            source = stated.get("subjects_from", stated.get("labels_from"))
            level, draws = stated.get("level"), stated.get("num_resamples")
            note = _interval_note(result.counts, source, level, draws)
            systems.setdefault(note, {})[result.system] = None
    notes = [
        note if len(systems) == 1 else f"{', '.join(names)}: {note}"
        for note, names in systems.items()
    ]
    several = len({result.system for result in results}) > 1
    of_system: dict[str, set[str]] = {}
    for result in results:
        note = str(result.conventions.get("interval_note", ""))
        if result.interval is not None or note:
            of_system.setdefault(result.system, set()).add(note)
    named = []
    remarks: dict[str, dict[str, None]] = {}
    for result in results:
        label, stated = metric_label(result.metric), result.conventions
        name, alike = label, len(of_system.get(result.system, ())) == 1
        if several:  # a system alone where the reason holds for all of its metrics
            name = result.system if alike else f"{result.system}, {label}"
        named.append((name, result.interval, str(stated.get("interval_note", ""))))
        texts = [str(stated["remark"])] if "remark" in stated else []
        if stated.get("nontargets_allowed") == 0:
            few = "too few nontarget trials to resolve this FAR; none may be accepted"
            texts.append(few if stated["far"] else "no nontarget trial may be accepted")
            label = f"{result.system}, {label}" if several else label
        for text in texts:
            remarks.setdefault(text, {})[label] = None
    notes += reasons(named)
    return notes + [f"{'; '.join(names)}: {text}." for text, names in remarks.items()]


def reasons(intervals: Sequence[tuple[str, Ends | None, str]]) -> list[str]:
    """Why intervals are missing or marked, a sentence for each reason.

    Args:
        intervals: What each is of, the interval, and the reason; "" where there is none. A sentence
            names what it is of where the reason does not hold for all of them.

    >>> reasons([("EER", None, "no interval: 2 subjects"), ("TAR", (0.1, 0.2), "")])
    ['EER: no interval: 2 subjects.']
    """
    noted: dict[str, list[str]] = {}
    for name, interval, note in intervals:
        if note:
            noted.setdefault(("* " if interval else "") + note, []).append(name)
    possible = sum(bool(interval or note) for _, interval, note in intervals)
    sentences = []
    for note, names in noted.items():
        star, text = ("* ", note[2:]) if note.startswith("* ") else ("", note)
        everywhere = len(names) == possible
        text = (
            text[0].upper() + text[1:]
            if everywhere
            else f"{'; '.join(dict.fromkeys(names))}: {text}"
        )
        sentences.append(f"{star}{text}.")
    return sentences


def table(results: Sequence[Result], notes: Iterable[str] = ()) -> str:
    """Aligned text: a row per metric, a column per system, each value with its interval; then the
    counts and one line on the intervals. Beside each value stands its threshold, where it has one.

    Args:
        results: Of all systems.
        notes: Sentences that stand below.
    """
    systems, metrics, cells = by_system(results)
    columns = 1 + any(result.threshold is not None for result in results)

    def row(label: str, cells: Sequence[tuple[str, str]]) -> list[str]:
        """A label, and the value of each system with its threshold, if any metric has one."""
        return [label, *(text for cell in cells for text in cell[:columns])]

    rows = [row("", [(system, "threshold") for system in systems])]
    for metric in metrics:
        texts = []
        for result in (cells.get((metric, system)) for system in systems):
            if result is None:
                texts.append((f"{'-':>6}", ""))
                continue
            texts.append((value_text(result), threshold_text(result.threshold)))
        rows.append(row(metric_label(metric), texts))
    counts = {result.system: result.counts for result in reversed(results)}
    kinds = dict.fromkeys(kind for sizes in counts.values() for kind in sizes)
    if "classes" in kinds:  # which are the subjects of a retrieval
        del kinds["subjects"]
    for kind in kinds:
        sizes = (counts[system].get(kind) for system in systems)
        texts = [(("-" if size is None else f"{size:,}").rjust(6), "") for size in sizes]
        rows.append(row(kind.replace("_", " "), texts))
    return "\n".join([*aligned(rows), "", *footnotes(results), *notes]) + "\n"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines of text whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
