"""Score a list of trials and fit a calibration, of files or of values in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import numpy as np

from eval.calibration import Calibration
from eval.scoring.score import Scored, lacking, with_spellings
from eval.scoring.score import calibrate as calibrate_values
from eval.scoring.score import score as score_values
from eval.scoring.settings import Scoring
from eval.types import Embeddings, Ints, Trials, name_first
from likeness.files import ColumnNames, File, Models, embeddings_of, models_of, trials_of

Missing = Literal["refuse", "skip"]


def score(
    trials: File | Trials,
    embeddings: File | Embeddings,
    scoring: Scoring | None = None,
    *,
    probe: File | Embeddings | None = None,
    models: Models | None = None,
    columns: ColumnNames = "",
    strip_extension: bool = False,
    missing: Missing = "refuse",
) -> Scored:
    """Score a list of trials.

    Args:
        trials: P pairs of ids, as a trial list file, as Trials, or as a table of pandas.
        embeddings: a file of embeddings, or what `Model.embed` gives.
        scoring: similarity, score normalisation, PLDA and calibration. By default the similarity
            that the embeddings name.
        probe: embeddings of the probe side, where they are apart.
        models: the items that enrol each model, as a file of `model item item ...` lines or as a
            mapping. The enrolment ids of the trials are then models.
        columns: which column of the trial list is which, where it does not say so itself:
            "enrol=file_x,probe=file_y,label=Decision", or by their numbers.
        strip_extension: whether ids of trials and embeddings may differ in the extension of a
            file, as ann/1.wav and ann/1 do.
        missing: what becomes of trials whose ids have no embedding: "refuse", or "skip", which
            leaves them out, with a warning that counts them.

    Returns:
        The scores (P,), higher for more similar pairs, with their trials.

    Raises:
        LikenessError: a file does not exist. Ids have no embedding and `missing` is "refuse", or no
            trial has any; all are counted. A file is of another kind, or two inputs contradict each
            other.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> scores = likeness.score("trials.txt", embeddings)
        >>> len(scores), scores.system.partition(",")[0]
        (28, 'cosine')
    """
    trials_read = trials_of(trials, columns)
    listed, sides, left_out = _read(
        trials_read, embeddings, probe, models, strip_extension, missing
    )
    scored = score_values(listed, scoring=scoring or Scoring(), **sides)
    name = str(trials) if isinstance(trials, str | PathLike) else ""
    return named(scored, name + left_out) if name or left_out else scored


def _read(
    listed: Trials,
    embeddings: File | Embeddings,
    probe: File | Embeddings | None,
    models: Models | None,
    strip_extension: bool,
    missing: Missing,
) -> tuple[Trials, dict[str, Any], str]:
    """The trials, what they are scored with, and words for the list's name where trials were left
    out.
    """
    of_models = models_of(models)
    sides = embeddings_of(embeddings), None if probe is None else embeddings_of(probe)
    if strip_extension:
        sides = _spelt_as(listed, *sides, of_models)
    left_out = ""
    if missing == "skip":
        listed, of_models, left_out = _with_embeddings(listed, *sides, of_models)
    return listed, {"embeddings": sides[0], "probe": sides[1], "models": of_models}, left_out


def named(scored: Scored, trials: str) -> Scored:
    """The scores with the name of their trial list, which their thresholds will state."""
    if scored.origin is None:
        return scored
    return replace(scored, origin=replace(scored.origin, trials=trials))


def _spelt_as(
    trials: Trials,
    embeddings: Embeddings,
    probe: Embeddings | None,
    models: Mapping[str, Sequence[str]] | None,
) -> tuple[Embeddings, Embeddings | None]:
    """The embeddings of both sides with the ids of the trials, whatever the extensions of files.

    Raises:
        LikenessError: Several embeddings have one id but for their extensions.
    """
    enrolled = list(trials.enrol_ids)
    if models is not None:
        enrolled = [item for items in models.values() for item in items]
    if probe is None:
        return with_spellings(embeddings, [*enrolled, *trials.probe_ids]), None
    return with_spellings(embeddings, enrolled), with_spellings(probe, trials.probe_ids)


def _with_embeddings(
    trials: Trials,
    embeddings: Embeddings,
    probe: Embeddings | None,
    models: Mapping[str, Sequence[str]] | None,
) -> tuple[Trials, Mapping[str, Sequence[str]] | None, str]:
    """Leave out the trials of which a side has no embedding, with a warning that counts them.

    Args:
        trials: P trials.
        embeddings: Of both sides, or of the enrolment side if `probe` has the other.
        probe: Of the probe side.
        models: The items of each model. One that lacks an item's embedding is left out.

    Returns:
        The other trials, the models that have all of their items, and words for the list's name,
        such as ", without 3 of 28 trials". All as they were where nothing is missing, and where
        nothing would be left.
    """
    probed = lacking(trials.probe_ids, embeddings if probe is None else probe)
    whole = models
    if models is None:
        enrolled = lacking(trials.enrol_ids, embeddings)
    else:
        items = dict.fromkeys(item for items in models.values() for item in items)
        no_item = set(lacking(items, embeddings))
        whole = {name: its for name, its in models.items() if no_item.isdisjoint(its)}
        enrolled = [name for name in trials.enrol_ids if name not in whole]
    sides = (trials.enrol_ids, trials.enrol, enrolled), (trials.probe_ids, trials.probe, probed)
    kept = np.ones(len(trials), dtype=np.bool_)
    for ids, rows, absent in sides:
        out = set(absent)
        kept &= np.array([name not in out for name in ids], dtype=np.bool_)[rows]
    if kept.all() or not kept.any():
        return trials, models, ""
    (enrol_ids, enrol), (probe_ids, probes) = (_used(ids, rows[kept]) for ids, rows, _ in sides)
    target = None if trials.target is None else trials.target[kept]
    count = f"{len(trials) - int(kept.sum())} of {len(trials)} trials"
    both = list(dict.fromkeys([*enrolled, *probed]))
    warnings.warn(
        f"{count} are left out, because {len(both)} ids have no embedding ({name_first(both)})",
        stacklevel=4,
    )
    return Trials(enrol_ids, probe_ids, enrol, probes, target), whole, f", without {count}"


def _used(ids: tuple[str, ...], rows: Ints) -> tuple[tuple[str, ...], Ints]:
    """The ids that rows refer to, and the rows as indices into these."""
    used, places = np.unique(rows, return_inverse=True)
    return tuple(ids[row] for row in used.tolist()), places.astype(np.int32)


def calibrate(
    trials: File | Trials,
    embeddings: File | Embeddings,
    scoring: Scoring | None = None,
    *,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    probe: File | Embeddings | None = None,
    models: Models | None = None,
    columns: ColumnNames = "",
    strip_extension: bool = False,
    missing: Missing = "refuse",
) -> Calibration:
    """Fit a calibration of the scores that `score` gives, as `likeness score --calibrate` does.

    It turns scores into natural log-likelihood ratios. `likeness.load(..., calibration=...)` and
    `Scoring(calibration=...)` take it, and its `save(path)` writes a file for the command line.

    Args:
        trials: P pairs of ids with labels, of other subjects than those to be scored.
        embeddings: as in `score`; so are `scoring`, `probe` and `models`.
        scoring: without a calibration.
        quality: measures that help the score: "log_norm", "log_duration", "cohort_mean".
            `Model.verify` can compute "log_norm" alone.
        p_target: the prior of a target trial at which the calibration is to be good.
        probe: embeddings of the probe side, where they are apart.
        models: the items that enrol each model.
        strip_extension: as in `score`.
        missing: as in `score`.

    Returns:
        The calibration.

    Raises:
        LikenessError: a file does not exist. Ids have no embedding; all are counted. The trials
            have no labels, the scores separate them without an error, or higher scores are less
            similar; and as `score`.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> fitted = likeness.calibrate("trials.txt", embeddings)
        >>> model = likeness.load("runs/voices", calibration=fitted)
        >>> 0 < model.verify("a.wav", "b.wav").probability < 1
        True
        >>> fitted.save("calibration.json")
        >>> likeness.load_calibration("calibration.json") == fitted
        True
    """
    trials_read = trials_of(trials, columns)
    listed, sides, _ = _read(trials_read, embeddings, probe, models, strip_extension, missing)
    return calibrate_values(
        listed,
        scoring=scoring or Scoring(),
        quality=(quality,) if isinstance(quality, str) else quality,
        p_target=p_target,
        **sides,
    )
