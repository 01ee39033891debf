"""The page of `likeness evaluate`: metrics with intervals, curves, distributions, quality, the
space of the embeddings, the hardest trials, the conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from eval.errors import LikenessError
from eval.groups import Grouped
from eval.paired import Paired
from eval.progress import step
from eval.reports.curves import histogram_figure, reliability_figure, trade_off
from eval.reports.figures import Log, drawn, group_chart, training_curves
from eval.reports.hardest import hardest_trials
from eval.reports.map import embedding_map, space_3d
from eval.reports.media import SECONDS, Media
from eval.reports.metric_tables import (
    conventions_table,
    differences,
    grouped_table,
    metric_table,
    sizes,
)
from eval.reports.norms import coverage_figure, norm_grid, reject_curves, reject_figure
from eval.reports.operating import positions, slider
from eval.reports.page import EMPTY, block, folded, headed, joined, prose, recompute, write
from eval.reports.subjects import who_errs
from eval.results import Result, by_system, footnotes
from eval.types import Embeddings, Scores, Trials
from eval.uncertainty import errors_at, risk_coverage, trial_quality
from eval.verification import threshold_at_eer

if TYPE_CHECKING:
    from eval.protocols.side_by_side import Compared


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a page can show beside the results. Every part may be missing.

    Attributes:
        inputs: file -> its SHA-256.
        trials: system -> its trials, for the ids of the hardest; else these have numbers.
        embeddings: system -> those that it scored, for error-versus-reject, norm grids and maps.
        labels: id -> subject, for the colours of the maps.
        media: shows the hardest trials and the items of the norm grids.
        groups: error rates by group; they have a section of their own.
        paired: differences to one of the systems.
        log: the entries of a training's log.jsonl, for its curves.
        logged: the metrics that the training measured in between.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    trials: Mapping[str, Trials] = field(default_factory=dict)
    embeddings: Mapping[str, Embeddings] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None
    media: Media | None = None
    groups: Sequence[Grouped] = ()
    paired: Paired | None = None
    log: Log = ()
    logged: Sequence[str] = ()


@step("drawing the page")
def write_page(
    folder: str | Path,
    compared: Compared,
    *,
    command: str,
    inputs: Mapping[str, str] | None = None,
    embeddings: Mapping[str, Embeddings] | None = None,
    media: Media | None = None,
    log: Log = (),
    logged: Sequence[str] = (),
) -> Path:
    """Write the page of an evaluation, `index.html`, into a folder.

    Args:
        folder: where the page is written; it is made if it does not exist.
        compared: what was measured.
        command: makes the page again.
        inputs: file -> its SHA-256.
        embeddings: system -> the embeddings that were scored. The page then has
            error-versus-reject, norm grids and a map.
        media: the recordings or images that the ids name. The page then shows those of the hardest
            trials and of the norm grids.
        log: the entries of a training's log.jsonl, for its curves.
        logged: the metrics that the training measured in between.

    Returns:
        The path of the page.

    Raises:
        LikenessError: items of the trials have no embedding.
    """
    page = Path(folder) / "index.html"
    html(
        page,
        compared.results,
        compared.scores,
        command=command,
        evidence=Evidence(
            inputs=inputs or {},
            trials=compared.trials,
            embeddings=embeddings or {},
            labels=compared.subject_of or None,
            media=media,
            groups=compared.grouped,
            paired=compared.paired,
            log=log,
            logged=logged,
        ),
    )
    return page


def html(
    path: str | Path,
    results: Sequence[Result],
    scores: Mapping[str, Scores],
    *,
    command: str,
    evidence: Evidence | None = None,
    num_hardest: int = 10,
) -> None:
    """Write one self-contained HTML page. No network is used, now or when it is read.

    Args:
        path: of the page.
        results: of one system or several.
        scores: system -> its scores, for the systems in `results`.
        command: makes the page again.
        evidence: what else there is to show.
        num_hardest: trials at each end.

    Raises:
        LikenessError: the systems of the results, scores, trials and embeddings are not the same,
            or the trials and scores of a system are not equally many. Items of the trials have no
            embedding.
    """
    seen = evidence or Evidence()
    media = seen.media or Media(lambda _: None)
    systems, _, _ = by_system(results)
    _check(systems, scores, seen)
    sections = {
        "Results": metric_table(results) + block("lines", texts=footnotes(results)),
        "Differences" + (f" to {seen.paired.reference}" if seen.paired else ""): differences(
            seen.paired
        ),
        "Training": training_curves(seen.log, seen.logged),
        "Groups": folded(
            {
                f"{each.system} {each.by}".strip(): group_chart(each) + grouped_table(each)
                for each in seen.groups
            }
        ),
        "Errors and thresholds": joined(
            [
                _slider(results, scores),
                headed("Error trade-off", _trade_offs(results, scores)),
                headed("Score distributions", _distributions(results, scores)),
                headed("Hardest trials", hardest_trials(scores, seen.trials, num_hardest, media)),
            ]
        ),
        "Reliability": _reliability(results, scores),
        "Subjects": _subjects(scores, seen),
        "Quality": _quality(scores, seen, media),
        "Embedding map": _maps(scores, seen),
        # After the sections that show images and sound, so that it knows what is missing.
        "Images and sound": prose(media.note()),
        "Conventions": prose("Each number above depends on these choices.")
        + conventions_table(results),
        "Recompute": recompute(command, seen.inputs),
    }
    about = f"{', '.join(systems)} on {sizes(results, systems)}"
    write(Path(path), "Verification report", about, sections)


def _trade_offs(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    """The curves of systems on equal trials share axes; other trials have axes of their own."""
    alike: dict[tuple[str, str], list[str]] = {}
    for result in results:
        of = scores[result.system]
        trials = f"{of.target.size:,} trials, {int(of.target.sum()):,} of them target trials"
        names = alike.setdefault((result.protocol, trials), [])
        if result.system not in names:
            names.append(result.system)
    if len(alike) == 1:
        return trade_off(scores, movable=True)
    parts = {
        f"{', '.join(names)}: {protocol}, {trials}": trade_off(
            {name: scores[name] for name in names}, movable=True
        )
        for (protocol, trials), names in alike.items()
    }
    note = prose("These systems were measured on different trials, whose errors do not compare.")
    return note + joined(headed(heading, part) for heading, part in parts.items())


def _subjects(scores: Mapping[str, Scores], seen: Evidence) -> Markup:
    """Who the errors come from, of each system whose subjects are known."""
    parts = {}
    for name, trials in seen.trials.items():
        threshold = threshold_at_eer(scores[name].targets, scores[name].nontargets)
        if part := who_errs(trials, scores[name], seen.labels or {}, threshold):
            parts[name] = part
    return folded(parts) if parts else EMPTY


def _slider(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    """The thresholds of all results are among those of the slider."""
    made = {
        name: positions(
            of,
            [
                threshold_at_eer(of.targets, of.nontargets),
                *(
                    result.threshold
                    for result in results
                    if result.system == name and result.threshold is not None
                ),
            ],
        )
        for name, of in scores.items()
    }
    text = (
        "A trial is accepted if its score is at least the threshold. Moving it moves the dots on "
        "the curves, the lines in the histograms and the verdicts on the hardest trials."
    )
    return prose(text) + slider(results, scores, made)


def _check(systems: Sequence[str], scores: Mapping[str, Scores], seen: Evidence) -> None:
    if (
        set(systems) != set(scores)
        or not set(seen.trials) <= set(systems)
        or not set(seen.embeddings) <= set(seen.trials)
    ):
        raise LikenessError(
            f"report: results of {sorted(systems)}, scores of {sorted(scores)}, trials of "
            f"{sorted(seen.trials)}, embeddings of {sorted(seen.embeddings)}; "
            "give the same systems everywhere"
        )
    for name, trials in seen.trials.items():
        if len(trials) != scores[name].values.size:
            raise LikenessError(
                f"report: {name} has {len(trials)} trials and {scores[name].values.size} scores; "
                "they must pair up"
            )


def _distributions(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    thresholds = {result.system: result.threshold for result in results if result.metric == "eer"}
    figures = {
        name: drawn(
            histogram_figure, of, thresholds.get(name), name, alt=f"Score histogram of {name}"
        )
        for name, of in scores.items()
    }
    if not any(figures.values()):
        return EMPTY
    text = prose(
        "The less the two classes overlap, the better they can be told apart; every error lies in "
        "the overlap."
    )
    columns = [block("column", heading=name, part=figure) for name, figure in figures.items()]
    return text + block("two", parts=columns)


def _reliability(results: Sequence[Result], scores: Mapping[str, Scores]) -> Markup:
    """Of the systems whose scores were evaluated as log-likelihood ratios."""
    stated = {result.system: scores[result.system] for result in results if result.metric == "cllr"}
    if not stated:
        return EMPTY
    text = (
        "The scores are log-likelihood ratios: a trial of LLR 2.3 should be ten times likelier "
        "among targets. On the diagonal they are what they say; "
        "flatter means overconfident, steeper too timid. Bars: 95 % intervals over trials, which "
        "share subjects."
    )
    figure = drawn(reliability_figure, stated, alt="Reliability of the log-likelihood ratios")
    return prose(text) + figure


def _quality(scores: Mapping[str, Scores], seen: Evidence, media: Media) -> Markup:
    """What the norms are worth: error-versus-reject of all systems, then the items of lowest and
    highest norm of each set of embeddings.
    """
    if not seen.embeddings:
        return EMPTY
    measures, meanings = {}, []
    for name, embeddings in seen.embeddings.items():
        norms = dict(zip(embeddings.ids, embeddings.norms.tolist(), strict=True))
        measures[name], meaning = trial_quality(seen.trials[name], norms)
        meanings.append(meaning)
    text = (
        "The norm of an embedding as a measure of the quality of its input. Trials are rejected "
        f"by quality, {'; '.join(dict.fromkeys(meanings))}; "
        "the error of the rest falls if the measure is worth its name and stays at the dotted line "
        "if it says nothing."
    )
    curve = drawn(reject_figure, reject_curves(scores, measures), alt="Error versus reject")
    kept = {
        name: risk_coverage(
            measure,
            errors_at(
                scores[name], threshold_at_eer(scores[name].targets, scores[name].nontargets)
            ),
        )
        for name, measure in measures.items()
    }
    coverage = drawn(coverage_figure, kept, alt="Risk and coverage")
    if coverage:
        coverage = coverage + prose(
            "The error rate above sets a new threshold for the trials that remain. This curve "
            "keeps that of the EER of all trials, and shows how many of the decisions are wrong.",
            soft=True,
        )
    grids = {
        ", ".join(names): norm_grid(used.ids, used.norms, media) for names, used in _distinct(seen)
    }
    with_sound = 'class="shown sound"' in joined(grids.values())
    ends = "Below: the items at both ends, each with its norm" + (
        f"; of recordings the first {SECONDS:g} seconds." if with_sound else "."
    )
    return prose(text) + curve + coverage + prose(ends, soft=True) + folded(grids)


def _maps(scores: Mapping[str, Scores], seen: Evidence) -> Markup:
    columns = []
    for names, used in _distinct(seen):
        heading = ", ".join(names) if len(seen.embeddings) > len(names) else ""
        space = space_3d(used, seen.labels) if used.matrix.shape[1] == 3 else EMPTY
        trials = (seen.trials[names[0]], scores[names[0]])
        part = space + embedding_map(used, seen.labels, trials=trials)
        columns.append(block("column", heading=heading, part=part))
    return block("two", parts=columns) if columns else EMPTY


def _distinct(seen: Evidence) -> Iterator[tuple[list[str], Embeddings]]:
    """Each set of embeddings once: the systems that it is of, and those of its embeddings that
    their trials use.
    """
    groups: dict[int, list[str]] = {}
    for name, embeddings in seen.embeddings.items():
        groups.setdefault(id(embeddings), []).append(name)
    for names in groups.values():
        embeddings = seen.embeddings[names[0]]
        trials = [seen.trials[name] for name in names]
        in_trials = {
            id for each in trials for ids in (each.enrol_ids, each.probe_ids) for id in ids
        }
        kept = [id for id in embeddings.ids if id in in_trials]
        matrix = embeddings.matrix[embeddings.rows(kept)]
        yield names, Embeddings(tuple(kept), matrix, embeddings.meta)
