"""The page of `likeness evaluate`: a sentence and two pictures, metrics with intervals, the slider,
distributions and the hardest trials, subjects, quality, the map of embeddings, the conventions.

templates/threshold.js moves the slider: its table, the dots on the DET curves, the line in the
histogram and the verdicts on the hardest trials follow it. The page holds exact counts at a few
thousand real scores, never the scores of all trials. Without scripts, and on paper before it was
moved, all of them stand at the threshold of the equal error rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup
from scipy.special import ndtri

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals.paired import Paired
from likeness.eval.intervals.paired import notes as paired_notes
from likeness.eval.intervals.paired import rows as paired_rows
from likeness.eval.intervals.uncertainty import errors_at, risk_coverage, trial_quality
from likeness.eval.metrics.groups import Grouped, blocks, notes
from likeness.eval.metrics.verification import measured_eer, sort_scores
from likeness.eval.progress import step
from likeness.eval.reports._map import embedding_map
from likeness.eval.reports._subjects import who_errs
from likeness.eval.reports.figures import (
    coverage_figure,
    det_figure,
    drawn,
    group_figure,
    histogram_figure,
    tippett_figure,
)
from likeness.eval.reports.media import Media
from likeness.eval.reports.page import (
    EMPTY,
    block,
    conventions_table,
    folded,
    headed,
    metric_table,
    number,
    prose,
    recompute,
    table,
    write,
)
from likeness.eval.results import Result, by_system, footnotes, metric_label, metric_text
from likeness.eval.types import Floats, Ints, Scores, Trials, respell, same_items

if TYPE_CHECKING:
    from likeness.eval.protocols.side_by_side import Compared


@step("drawing the page")
def write_page(
    folder: str | Path,
    compared: Compared,
    *,
    command: str,
    inputs: Mapping[str, str] | None = None,
    embeddings: Mapping[str, Embeddings] | None = None,
    media: Media | None = None,
    test_report: Mapping[str, str] | None = None,
    training: Markup = EMPTY,
) -> Path:
    """Write the page of an evaluation, `index.html`, into a folder, and give its path.

    Args:
        folder: made if it does not exist.
        compared: what was measured.
        command: makes the page again.
        inputs: file -> its SHA-256.
        embeddings: system -> the embeddings that were scored, for a map and the worth of norms.
        media: the recordings or images that the ids name, for the hardest trials.
        test_report: what a test report has to say beside the results.
        training: the curves of a training, as `training_curves` draws them.
    """
    results, scores, paired = compared.results, compared.scores, compared.paired
    systems, _, _ = by_system(results)
    shown, used = media or Media(lambda _: None), embeddings or {}
    assert set(used) <= set(compared.trials)
    together = _on_the_same_trials(results, scores)
    groups = {
        f"{each.system} {each.by}".strip(): drawn(group_figure, each, alt=_GROUPS)
        + grouped_table(each)
        for each in compared.grouped
    }
    hardest = {
        name: _hardest(name, of, compared.trials.get(name), shown) for name, of in scores.items()
    }
    sections = {
        "At a glance": _by_trials(together, lambda names: glance(results, scores, names)),
        "Results": _by_trials(
            together, lambda names: metric_table([each for each in results if each.system in names])
        )
        + block("lines", texts=footnotes(results)),
        "Differences" + (f" to {paired.reference}" if paired else ""): differences(paired),
        "Training": training,
        "Groups": folded(groups),
        "Errors and thresholds": slider(results, scores)
        + headed("Hardest trials", prose(_HARDEST) + folded(hardest)),
        "Subjects": _subjects(compared),
        "Quality": _quality(compared, used),
        "Evidence": _evidence(results, scores),
        "Embedding map": _maps(compared, used),
        # After the sections that show images and sound, so that it knows what is missing.
        "Images and sound": prose(shown.note()),
        "Test report": table([], test_report.items()) if test_report else EMPTY,
        "Conventions": conventions_table(results),
        "Recompute": recompute(command, inputs or {}),
    }
    about = f"{', '.join(systems)} on {sizes(results)}"
    return write(Path(folder) / "index.html", "Verification report", about, sections)


def _on_the_same_trials(
    results: Sequence[Result], scores: Mapping[str, Scores]
) -> dict[str, list[str]]:
    """What the trials are, in words -> the systems on them, which share tables and axes."""
    alike: dict[str, dict[str, None]] = {}
    for result in results:
        target = scores[result.system].target
        trials = f"{target.size:,} trials, {int(target.sum()):,} of them target trials"
        alike.setdefault(f"{result.protocol}, {trials}", {})[result.system] = None
    return {trials: list(names) for trials, names in alike.items()}


def _by_trials(
    together: Mapping[str, Sequence[str]], make: Callable[[Sequence[str]], Markup]
) -> Markup:
    """A part for each group of systems on the same trials, under its heading if there are several.

    Systems on different trials never stand side by side, because their errors do not compare.
    """
    if len(together) == 1:
        return make(*together.values())
    return EMPTY.join(
        headed(f"{', '.join(names)}: {trials}", make(names)) for trials, names in together.items()
    )


def glance(results: Sequence[Result], scores: Mapping[str, Scores], names: Sequence[str]) -> Markup:
    """What people look for first: how many comparisons are wrong, the scores with the threshold,
    and the DET curve.

    Args:
        results: of the systems, and perhaps of others.
        scores: system -> its scores.
        names: systems on the same trials; the scores of the first are drawn.

    Returns:
        HTML.
    """
    at_eer = {each.system: each for each in results if each.metric == "eer"}
    sentences = [_error_sentence(at_eer[name]) for name in names if name in at_eer]
    first = names[0]
    threshold = at_eer[first].threshold if first in at_eer else None
    pictures = [
        drawn(histogram_figure, scores[first], threshold, first, alt=f"Score histogram of {first}"),
        drawn(det_figure, {name: scores[name] for name in names}, alt=" ".join(sentences)),
    ]
    text = (
        f"Left: the scores of {first}. What lies right of the dashed line is accepted; the errors "
        "lie where the two classes overlap. Right: the DET curve, which errors a threshold trades "
        "for which. Nearer to the lower left is better, and the dot is the equal error rate."
    )
    shown = block("two", parts=pictures) + prose(text, soft=True)
    return EMPTY.join(map(prose, sentences)) + shown


def _error_sentence(result: Result) -> str:
    """How many comparisons are wrong at the equal error rate, as a sentence."""
    sentence = (
        f"{result.system}: {metric_text('eer', result.value)} % of comparisons are wrong at the "
        "equal error rate"
    )
    if result.interval is not None:
        low, high = (metric_text("eer", end) for end in result.interval)
        level = 100 * float(result.conventions["level"])
        sentence += f", {low} to {high} % with {level:g} % confidence"
    return f"{sentence}; {sizes([result])}."


def _subjects(compared: Compared) -> Markup:
    """Who the errors come from, of each system whose subjects are known."""
    parts = {
        name: part
        for name, trials in compared.trials.items()
        if (part := who_errs(trials, compared.scores[name], compared.subject_of))
    }
    return folded(parts) if parts else EMPTY


def _quality(compared: Compared, embeddings: Mapping[str, Embeddings]) -> Markup:
    """What the norms are worth: the decisions that are wrong among those of the highest norms."""
    if not embeddings:
        return EMPTY
    curves, meanings = {}, []
    for name, of_system in embeddings.items():
        norms = dict(zip(of_system.ids, of_system.norms.tolist(), strict=True))
        quality, meaning = trial_quality(compared.trials[name], norms)
        scores = compared.scores[name]
        threshold = measured_eer(sort_scores(scores.targets, scores.nontargets)).threshold
        curves[name] = risk_coverage(quality, errors_at(scores, threshold))
        meanings.append(meaning)
    text = (
        "The norm of an embedding as a measure of quality. Trials are left out by quality, "
        f"{'; '.join(dict.fromkeys(meanings))}, and decided at the threshold of the EER of all: "
        "the share of wrong ones falls if the norm tells them, and else stays at the dotted line."
    )
    return prose(text) + drawn(coverage_figure, curves, alt="Risk and coverage")


def _evidence(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    """The Tippett plot of the systems whose scores are log-likelihood ratios."""
    ratios = {each.system: scores[each.system] for each in results if each.metric == "cllr"}
    text = (
        "The Tippett plot: the share of trials of each class whose likelihood ratio is at least x. "
        "What lies right of 0 among nontargets, and left of it among targets, misleads."
    )
    return prose(text) + drawn(tippett_figure, ratios, alt="Tippett plot") if ratios else EMPTY


def _maps(compared: Compared, embeddings: Mapping[str, Embeddings]) -> Markup:
    """A map of each set of embeddings, with the items that the trials of its systems use."""
    systems: dict[int, list[str]] = {}
    for name, of_system in embeddings.items():
        systems.setdefault(id(of_system), []).append(name)
    columns = []
    for names in systems.values():
        of_system = embeddings[names[0]]
        lists = [compared.trials[name] for name in names]
        used = [id for trials in lists for id in (*trials.enrol_ids, *trials.probe_ids)]
        rows = np.unique(same_items(of_system.ids, used)[0])
        ids = tuple(of_system.ids[row] for row in rows.tolist())
        part = Embeddings(ids, of_system.matrix[rows], of_system.meta)
        shown = embedding_map(part, respell(compared.subject_of, ids) or None)
        heading = ", ".join(names) if len(systems) > 1 else ""
        columns.append(block("column", heading=heading, part=shown))
    return block("two", parts=columns) if columns else EMPTY


_GROUPS = "EER by group, at a threshold of its own"
_HARDEST = "Look and listen here first: wrong labels and broken files collect at both ends."
_NUM_HARDEST = 10  # trials of each kind
_NUM_EACH = 500  # thresholds of each of four kinds, see `positions`


class Positions(NamedTuple):
    """What is accepted at some thresholds: a trial is, if its score is at least the threshold.

    Attributes:
        thresholds: (K,) rising; the last accepts nothing.
        false_accepts: (K,) nontarget trials that are accepted.
        false_rejects: (K,) target trials that are rejected.
    """

    thresholds: Floats
    false_accepts: Ints
    false_rejects: Ints


def positions(scores: Scores, wanted: Iterable[float] = ()) -> Positions:
    """Thresholds at real scores, close together where errors are counted: evenly over the targets
    and over the nontargets, and evenly over the powers of ten at the low ends of FAR and FRR.

    Args:
        scores: of one system.
        wanted: thresholds that have to be among them, such as that of the equal error rate.

    Returns:
        At most about 2,000 positions, with exact counts.

    >>> made = positions(Scores([0.9, 0.2, 0.4, 0.1], [True, True, False, False]))
    >>> made.thresholds.round(2).tolist(), made.false_accepts.tolist(), made.false_rejects.tolist()
    ([0.1, 0.2, 0.4, 0.9, 0.9], [2, 1, 1, 0, 0], [0, 0, 1, 1, 2])
    """
    s = sort_scores(scores.targets, scores.nontargets)
    num_targets, num_nontargets = s.target.size, s.nontarget.size
    some = [
        s.target[_spread(num_targets)],
        s.nontarget[num_nontargets - 1 - _ends(num_nontargets)],
        s.nontarget[_spread(num_nontargets)],
        s.target[_ends(num_targets)],
    ]
    top = max(s.target[-1], s.nontarget[-1])
    rejecting_all = np.nextafter(top, np.inf)
    chosen = np.unique(np.concatenate([*some, [rejecting_all], np.array([*wanted], top.dtype)]))
    chosen = chosen[np.isfinite(chosen) & (chosen <= rejecting_all)]
    return Positions(
        chosen.astype(np.float64),
        (num_nontargets - np.searchsorted(s.nontarget, chosen)).astype(np.int32),
        np.searchsorted(s.target, chosen).astype(np.int32),
    )


def _spread(size: int) -> Ints:
    """At most _NUM_EACH places of an array of `size`, evenly."""
    return np.unique(np.linspace(0, size - 1, min(size, _NUM_EACH)).astype(np.int32))


def _ends(size: int) -> Ints:
    """At most _NUM_EACH places of an array of `size`, the closer the nearer to its beginning."""
    return np.unique(np.geomspace(1, size, min(size, _NUM_EACH)).astype(np.int32)) - 1


def slider(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    """The sliders of the systems, and the table that they move.

    Args:
        results: of the systems; their thresholds become buttons.
        scores: system -> its scores.
    """
    systems, most = [], 0
    for name, of_system in scores.items():
        sizes_of = of_system.targets.size, of_system.nontargets.size
        ordered = sort_scores(of_system.targets, of_system.nontargets)
        thresholds = {"": measured_eer(ordered).threshold} | {
            metric_label(result.metric).replace(" (%)", ""): result.threshold
            for result in results
            if result.system == name and result.threshold is not None
        }
        each = positions(of_system, thresholds.values())
        stops = {
            label: int(np.argmin(np.abs(each.thresholds - value)))
            for label, value in thresholds.items()
        }
        with np.errstate(divide="ignore"):
            deviates = ndtri([each.false_accepts / sizes_of[1], each.false_rejects / sizes_of[0]])
        # On the axes of the DET curve; beyond its edges where a rate is 0 or 1.
        x, y = np.clip(deviates, -9, 9).round(3).tolist()
        data = {"system": name, "start": stops.pop(""), "x": x, "y": y}
        data |= dict(zip(("targets", "nontargets"), sizes_of, strict=True))
        data |= {key: values.tolist() for key, values in each._asdict().items()}
        systems.append({"data": data, "points": stops})
        if max(sizes_of) > _NUM_EACH:  # else every distinct score is among the thresholds
            most = max(most, each.thresholds.size)
    text = (
        "A trial is accepted if its score is at least the threshold. Moving it moves the dots on "
        "the DET curves, the line in the histogram and the verdicts on the hardest trials."
    )
    note = "Every number is counted over all trials at the threshold that is shown."
    if most:
        note += f" The slider stops at {most:,} of the scores."
    return prose(text) + block("operating", systems=systems, note=note)


def _hardest(system: str, scores: Scores, trials: Trials | None, media: Media) -> Markup:
    """Two tables: the target trials with the lowest and the nontarget trials with the highest
    scores (file order among ties).
    """
    threshold = measured_eer(sort_scores(scores.targets, scores.nontargets)).threshold
    tables = []
    for caption, chosen, sign in (
        ("Lowest target scores", scores.target, 1),
        ("Highest nontarget scores", ~scores.target, -1),
    ):
        index, ease = np.flatnonzero(chosen), sign * scores.values[chosen]
        last = min(_NUM_HARDEST, ease.size) - 1
        near = np.flatnonzero(ease <= np.partition(ease, last)[last])
        rows = []
        for i in index[near[np.argsort(ease[near], kind="stable")[:_NUM_HARDEST]]].tolist():
            value, target = float(scores.values[i]), bool(scores.target[i])
            sides: tuple[str, ...] = ()
            if trials is not None:
                sides = trials.enrol_ids[trials.enrol[i]], trials.probe_ids[trials.probe[i]]
            row = {
                "system": system,
                "value": repr(value),
                "target": target,
                "accepted": value >= threshold,
                "score": number(value),
                "sides": [(media.show(id), id) for id in sides],
                "number": f"{i + 1:,}",
            }
            rows.append(row)
        head = "Trial" if trials is None else "Enrol, probe"
        tables.append(block("trials", caption=caption, head=head, rows=rows))
    return block("two", parts=tables)


def sizes(results: Sequence[Result]) -> str:
    """How many trials of how many subjects the systems were measured on, as text."""
    texts = set()
    for counts in {result.system: result.counts for result in results}.values():
        text = f"{counts['targets']:,} target and {counts['nontargets']:,} nontarget trials"
        of = "" if counts["subjects"] is None else f" of {counts['subjects']:,} subjects"
        texts.add(text + of)
    return texts.pop() if len(texts) == 1 else "different trial lists"


def differences(paired: Paired | None) -> Markup:
    """The paired differences to the reference, and what they are; empty without any."""
    if paired is None:
        return EMPTY
    rows = paired_rows(paired)
    shown = table(rows[0], rows[1:], kind="t") if rows else EMPTY
    return shown + EMPTY.join(prose(note, soft=True) for note in paired_notes(paired))


def grouped_table(grouped: Grouped) -> Markup:
    """Sizes and rates of the groups, then what they are."""
    tables = [
        headed(caption.removeprefix(f"{grouped.system}: "), table(head, rows, kind="t"))
        for caption, head, rows in blocks(grouped)
    ]
    return EMPTY.join(tables) + EMPTY.join(prose(note, soft=True) for note in notes(grouped))
