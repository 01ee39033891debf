"""The systems that an evaluation sets side by side: their names, their scores and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats.trials import is_bare, read_bare_scores, read_scores
from eval.protocols.side_by_side import Compared, check_labels
from eval.protocols.verification import VerificationSettings
from eval.protocols.verification import evaluate as evaluate_values
from eval.results import Result
from eval.scoring.score import Scored
from eval.types import Scores, Trials, name_first
from likeness.files import ColumnNames, File, names_of_files

System = File | Scored | Scores


def measure_alone(systems: Mapping[str, Scores], settings: VerificationSettings) -> Compared:
    """Measure each system whose scores have no ids: neither subjects nor differences are known.

    Raises:
        LikenessError: The trials of a system are all of one kind.
    """
    results: list[Result] = []
    for name, scores in systems.items():
        check_labels(name, scores.target)
        results += evaluate_values(
            scores, settings, system=name, subjects_from="unknown: bare scores have no ids"
        ).results
    return Compared(results, systems, {})


def systems_of(scores: Any) -> dict[str, System]:
    """Name -> scores of each system.

    Raises:
        LikenessError: There are none, their types are not known, or two have one name.
    """
    if isinstance(scores, Mapping):
        systems = {str(name): system for name, system in scores.items()}
    elif isinstance(scores, Scored | Scores):
        systems = {"scores": scores}
    else:
        listed = [scores] if isinstance(scores, str | PathLike) else list(scores)
        systems = dict(zip(_names_in(listed), listed, strict=True))
    if not systems:
        raise LikenessError("there are no scores to evaluate; give at least one system")
    for system in systems.values():
        if not isinstance(system, Scored | Scores | str | PathLike):
            raise LikenessError(
                f"scores of type {type(system).__name__} cannot be evaluated; give what "
                "likeness.score gives, a score file, or likeness.Scores(values, target)"
            )
    return systems


def _names_in(listed: Sequence[Any]) -> list[str]:
    """A distinct name for each system of a sequence."""
    files = [Path(system) for system in listed if isinstance(system, str | PathLike)]
    of_files = iter(names_of_files(files, "score"))
    names = [
        next(of_files) if isinstance(system, str | PathLike) else getattr(system, "system", "")
        for system in listed
    ]
    if len(set(names)) < len(names):
        raise LikenessError(
            "several systems have one name, or none; give a mapping from names of your own to "
            "scores"
        )
    return names


def with_bare(systems: Mapping[str, System]) -> dict[str, System]:
    """The systems, with the Scores of files that have no ids.

    Raises:
        LikenessError: Some systems have ids and others have not.
    """
    read: dict[str, System] = {}
    for name, system in systems.items():
        if not isinstance(system, Scored | Scores) and is_bare(Path(system)):
            read[name] = read_bare_scores(Path(system))
        else:
            read[name] = system
    bare = [name for name, system in read.items() if isinstance(system, Scores)]
    if bare and len(bare) < len(read):
        raise LikenessError(
            f"{len(bare)} of {len(read)} systems are Scores, which have no ids "
            f"({name_first(bare)}), and cannot be set beside the others; give all with ids, or none"
        )
    return read


def _with_labels(trials: Trials, labels: Trials | None) -> Trials:
    """The trials with the labels of the same list, where they have none of their own."""
    if trials.target is not None or labels is None:
        return trials
    same = (
        trials.enrol_ids == labels.enrol_ids
        and trials.probe_ids == labels.probe_ids
        and np.array_equal(trials.enrol, labels.enrol)
        and np.array_equal(trials.probe, labels.probe)
    )
    if not same:
        raise LikenessError(
            "the scores are those of another list than `trials`; score the list with the labels"
        )
    return labels


def labelled_systems(
    systems: Mapping[str, System], labels: Trials | None, columns: ColumnNames = ""
) -> dict[str, tuple[Trials, Scores]]:
    """The trials and the scores of systems that have ids, with the labels of the trials.

    Args:
        systems: Name -> scores with ids.
        labels: The trials with labels, for scores that have none.
        columns: Which column of the score files is which.

    Raises:
        LikenessError: The trials of a system have no labels, or labels of one kind only.
    """
    with_labels = {}
    for name, system in systems.items():
        assert not isinstance(system, Scores)
        if isinstance(system, Scored):
            called, trials, values = name, _with_labels(system.trials, labels), system.values
        else:
            called = str(system)
            trials, values = read_scores(Path(system), labels, columns=columns)
        check_labels(called, trials.target)
        assert trials.target is not None
        with_labels[name] = trials, Scores(values, trials.target)
    return with_labels
