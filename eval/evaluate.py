"""Score files to results: the whole of `likeness evaluate` as one function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval import page, report, trials
from eval.files import atomic_path
from eval.provenance import likeness_version, sha256
from eval.subjects import read_mapping, subjects_of
from eval.types import Scores, Trials


def evaluate_files(
    score_files: Sequence[Path],
    *,
    trial_list: Path | None = None,
    subject_list: Path | None = None,
    switches: report.Switches | None = None,
    json_file: Path | None = None,
    report_folder: Path | None = None,
    command: str = "",
    audio_root: Path | None = None,
) -> str:
    """Evaluate score files side by side; returns the table as text.

    trial_list: labels for score files that hold none, matched by pair. subject_list: `id subject` lines for the intervals (else see subjects.subjects_of).
    json_file: results in the schema of docs/protocols.md. report_folder: one self-contained page, index.html. Errors are those of reading and of the metrics.
    """
    labels = trials.read_trials(trial_list) if trial_list else None
    subject_names = read_mapping(subject_list) if subject_list else None
    results: list[report.Result] = []
    scores: dict[str, Scores] = {}
    lists: dict[str, Trials] = {}
    for name, path in zip(_names(score_files), score_files, strict=True):
        listed, values = trials.read_scores(path, labels)
        if listed.target is None:
            raise ValueError(f"{path} holds no labels; give the trial list that has them with --trials")
        scores[name], lists[name] = Scores(values, listed.target), listed
        subjects, found = subjects_of(listed, subject_names)
        pairs = None if subjects is None else np.stack([subjects[0][listed.enrol], subjects[1][listed.probe]], axis=1)
        results += report.evaluate_scores(name, scores[name], pairs, subjects_from=found, switches=switches or report.Switches())
    inputs = {str(path): sha256(path) for path in [*score_files, *(one for one in (trial_list, subject_list) if one)]}
    if json_file:
        with atomic_path(json_file) as temporary:
            temporary.write_text(report.to_json(results, inputs, likeness_version()), encoding="utf-8")
    if report_folder:
        report_folder.mkdir(parents=True, exist_ok=True)
        file = report_folder / "index.html"
        page.html(file, results, scores, command=command, version=likeness_version(), inputs=inputs, trials=lists, audio_root=audio_root)
    return report.table(results)


def _names(paths: Sequence[Path]) -> list[str]:
    """A short distinct name for each file."""
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"the same score file is given twice: {', '.join(map(str, paths))}")
    return names
