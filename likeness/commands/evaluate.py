"""Score files to results: the whole of `likeness evaluate` as one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eval import groups
from eval import results as report
from eval.bootstrap import Drawn, Resamples, drawn_from
from eval.formats import embeddings as embedding_files
from eval.formats import trials
from eval.formats.provenance import likeness_version, sha256
from eval.formats.subjects import read_mapping, subjects_of
from eval.reports import media as media_blocks
from eval.types import Ints, Scores, Trials

if TYPE_CHECKING:
    from eval.paired import Paired, Unpaired


def evaluate_files(
    score_files: Sequence[Path],
    *,
    reference: Path | None = None,
    trial_list: Path | None = None,
    subject_list: Path | None = None,
    group_list: Path | None = None,
    switches: report.Switches | None = None,
    json_file: Path | None = None,
    report_folder: Path | None = None,
    embeddings: Sequence[Path] = (),
    media: Path | None = None,
    command: str = "",
) -> str:
    """Evaluate score files side by side; returns the table as text.

    reference: the score file to which the others' differences are given (default: the first); those
    on the same trials are paired, see eval.paired.
    trial_list: labels for score files that hold none, matched by pair. subject_list: `id subject`
    lines for the intervals (else see subjects.subjects_of).
    group_list: `id group` or `subject group` lines: error rates by group as well, see eval.groups.
    json_file: results in the schema of docs/protocols.md. report_folder: one self-contained page,
    index.html.
    embeddings: what was scored, one file for all score files or one for each; the page then has
    error-versus-reject by their norms, norm grids and a map.
    media: folder of the images or recordings that the ids name, or a list `id path`; the page shows
    those of the hardest trials and of the norm grids. Errors are those of reading and of the
    metrics; KeyError if trial items have no embedding.
    """
    if len(embeddings) not in (0, 1, len(score_files)):
        raise ValueError(
            f"{len(embeddings)} embedding files for {len(score_files)} score files; give one for "
            "all or one for each, in their order"
        )
    if (embeddings or media) and not report_folder:
        raise ValueError(
            "embeddings and media are shown in the report; name a folder for it with --report"
        )
    if reference is not None and reference not in score_files:
        raise ValueError(
            f"the reference {reference} is none of the score files; give one of "
            f"{', '.join(map(str, score_files))}"
        )
    held = {path: embedding_files.read(path) for path in dict.fromkeys(embeddings)}
    of_each = [held[one] for one in embeddings] * (len(score_files) if len(embeddings) == 1 else 1)
    shown = media_blocks.media_of(media) if media else None
    labels = trials.read_trials(trial_list) if trial_list else None
    subject_names = read_mapping(subject_list) if subject_list else None
    group_names = read_mapping(group_list) if group_list else None
    results: list[report.Result] = []
    grouped: list[groups.Grouped] = []
    scores: dict[str, Scores] = {}
    lists: dict[str, Trials] = {}
    subject_of: dict[str, str] = dict(subject_names or {})
    names = dict(zip(_names(score_files), score_files, strict=True))
    for i, (name, path) in enumerate(names.items()):
        listed, values = trials.read_scores(path, labels)
        if listed.target is None:
            neither = (
                f"neither {path} nor {trial_list} holds labels; give a trial list that has them "
                "with --trials"
            )
            raise ValueError(
                neither
                if trial_list
                else f"{path} holds no labels; give the trial list that has them with --trials"
            )
        if listed.target.all() or not listed.target.any():
            kind = "target" if listed.target.all() else "nontarget"
            raise ValueError(
                f"{path}: all {len(listed)} trials are {kind} trials; verification metrics need at "
                "least one of each kind"
            )
        scores[name], lists[name] = Scores(values, listed.target), listed
        if of_each:
            from eval.reports.quality import embedded_sides  # slow to import, needed here only

            embedded_sides(listed, of_each[i])  # for its error, before the long work
    against = next((name for name, path in names.items() if path == reference), next(iter(names)))
    unpaired = _in_one_order(scores, lists, against)
    made: dict[str, Resamples] = {}
    drawn: dict[str, Drawn] = {}
    for name, path in names.items():
        listed = lists[name]
        subjects, found = subjects_of(listed, subject_names)
        pairs = (
            None
            if subjects is None
            else np.stack([subjects[0][listed.enrol], subjects[1][listed.probe]], axis=1)
        )
        if (held or group_names) and subjects is not None and not subject_names:
            subject_of |= _named(listed, subjects, found)
        if group_names is not None:
            if pairs is None:
                raise ValueError(
                    f"{path}: groups are compared by their subjects, and the ids do not name them; "
                    "give an `id subject` list with --subjects"
                )
            sides, group_labels = groups.sides_of(listed, group_names, subject_of)
            grouped.append(
                groups.evaluate_groups(
                    name,
                    scores[name],
                    pairs,
                    sides,
                    group_labels,
                    switches=switches or report.Switches(),
                )
            )
        evaluated = report.evaluate_resampled(
            name, scores[name], pairs, subjects_from=found, switches=switches or report.Switches()
        )
        results += evaluated.results
        drawn[name] = drawn_from(scores[name].target, pairs)
        if evaluated.resamples is not None:
            made[name] = evaluated.resamples
    compared: Paired | None = None
    if len(names) > 1 and (made or unpaired):
        from eval import paired  # slow to import, needed here only

        compared = paired.differences(against, results, made, drawn, unpaired)
    files = [
        *score_files,
        *(one for one in (trial_list, subject_list, group_list) if one),
        *embeddings,
        *([media] if media and media.is_file() else []),
    ]
    inputs = {str(path): sha256(path) for path in files}
    if json_file:
        more = {"groups": [asdict(one) for one in grouped]} if grouped else {}
        report.write_json(
            json_file, results, inputs, **more, **(paired.to_json(compared) if compared else {})
        )
    if report_folder:
        from eval.reports import verification  # slow to import, needed here only

        report_folder.mkdir(parents=True, exist_ok=True)
        verification.html(
            report_folder / "index.html",
            results,
            scores,
            command=command,
            version=likeness_version(),
            evidence=verification.Evidence(
                inputs=inputs,
                trials=lists,
                embeddings=dict(zip(scores, of_each, strict=True)) if of_each else {},
                labels=subject_of or None,
                media=shown,
                groups=grouped,
                paired=compared,
            ),
        )
    return (
        report.table(results)
        + (paired.table(compared) if compared else "")
        + (groups.table(grouped) if grouped else "")
    )


def _in_one_order(
    scores: dict[str, Scores], lists: dict[str, Trials], reference: str
) -> list[Unpaired]:
    """Brings the scores on the reference's trials into its order, so that all are measured on the
    same resamples; gives the systems on other trials.
    """
    if len(scores) == 1:
        return []
    from eval.paired import Unpaired, match_trials  # slow to import, needed here only

    unpaired = []
    for name in scores:
        if name == reference:
            continue
        matched = match_trials(lists[reference], lists[name])
        if matched.order is None:
            unpaired.append(
                Unpaired(name, matched.only_first, matched.only_second, matched.other_label)
            )
        else:
            scores[name], lists[name] = (
                Scores(scores[name].values[matched.order], scores[reference].target),
                lists[reference],
            )
    return unpaired


def _named(listed: Trials, subjects: tuple[Ints, Ints], found: str) -> Mapping[str, str]:
    """id -> subject, by the ids' first folder where that is what was found, else by the first of
    its ids: numbers begin anew in each list.
    """
    by_folder = found.startswith("first path component")
    sides = ((listed.enrol_ids, subjects[0]), (listed.probe_ids, subjects[1]))
    first: dict[int, str] = {}
    return {
        one: one.split("/", 1)[0] if by_folder else f"subject of {first.setdefault(number, one)}"
        for ids, numbers in sides
        for one, number in zip(ids, numbers.tolist(), strict=True)
    }


def _names(paths: Sequence[Path]) -> list[str]:
    """A short distinct name for each file."""
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"the same score file is given twice: {', '.join(map(str, paths))}")
    return names
