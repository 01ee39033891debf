"""Score a list of trials, fit a calibration, and fuse systems: of files or of values in memory."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.subjects import read_durations
from likeness.eval.formats.trials import read_scores, read_trials
from likeness.eval.formats.values import ColumnNames, File, Models, embeddings_of, models_of
from likeness.eval.scoring.fusion import Fusion, fit_fusion, fit_ratio_fusion, load_fusion
from likeness.eval.scoring.origin import read_origin
from likeness.eval.scoring.score import Scored, lacking, quality_of, sides_of, with_spellings
from likeness.eval.scoring.score import calibrate as calibrate_values
from likeness.eval.scoring.score import score as score_values
from likeness.eval.scoring.settings import Scoring, column_names, measures_of
from likeness.eval.types import Embeddings, Floats, Trials, name_first

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
        LikenessError: ids have no embedding and `missing` is "refuse", or no trial has any. A file
            is of another kind, or two inputs contradict each other.
        FileNotFoundError: a file does not exist.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> scores = likeness.score("trials.txt", embeddings)
        >>> len(scores), scores.system.partition(",")[0]
        (28, 'cosine')
    """
    given = {"embeddings": embeddings, "probe": probe, "models": models}
    listed, sides, left_out = _prepared(trials, columns, missing, given, strip_extension)
    name = (str(trials) if isinstance(trials, str | PathLike) else "") + left_out
    scored = score_values(listed, scoring=scoring or Scoring(), **sides)
    return named(scored, name) if name else scored


def named(scored: Scored, trials: str) -> Scored:
    """The scores with the name of their trial list, which their thresholds will state."""
    if scored.origin is None:
        return scored
    return replace(scored, origin=replace(scored.origin, trials=trials))


def _prepared(
    trials: File | Trials,
    columns: ColumnNames,
    missing: Missing,
    sides: Mapping[str, Any],
    strip_extension: bool,
) -> tuple[Trials, dict[str, Any], str]:
    """Read what trials are scored with.

    Args:
        trials: As for `score`; so are the others.
        columns: Which column of the list is which.
        missing: What becomes of trials whose ids have no embedding.
        sides: `embeddings`, `probe` and `models`, or their files.
        strip_extension: Whether ids may differ in an extension.

    Returns:
        The trials; the sides, read; and words on trials that are left out.

    Raises:
        LikenessError: Several embeddings have one id but for their extensions.
    """
    listed = trials if isinstance(trials, Trials) else read_trials(trials, columns=columns)
    enrol, models = embeddings_of(sides["embeddings"]), models_of(sides["models"])
    probe = None if sides["probe"] is None else embeddings_of(sides["probe"])
    if strip_extension:
        asked = [*listed.enrol_ids, *listed.probe_ids]
        asked += [item for items in (models or {}).values() for item in items]
        enrol = with_spellings(enrol, asked)
        probe = None if probe is None else with_spellings(probe, asked)
    left_out = ""
    if missing == "skip":
        listed, models, left_out = _with_embeddings(listed, enrol, probe, models)
    return listed, {"embeddings": enrol, "probe": probe, "models": models}, left_out


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
    whole = models
    if models is None:
        enrolled = lacking(trials.enrol_ids, embeddings)
    else:
        items = dict.fromkeys(item for items in models.values() for item in items)
        no_item = set(lacking(items, embeddings))
        whole = {name: its for name, its in models.items() if no_item.isdisjoint(its)}
        enrolled = [name for name in trials.enrol_ids if name not in whole]
    probed = lacking(trials.probe_ids, embeddings if probe is None else probe)
    kept = ~np.isin(trials.enrol_ids, enrolled)[trials.enrol]
    kept &= ~np.isin(trials.probe_ids, probed)[trials.probe]
    if kept.all() or not kept.any():
        return trials, models, ""
    both = list(dict.fromkeys([*enrolled, *probed]))
    count = f"{len(trials) - int(kept.sum())} of {len(trials)} trials"
    warnings.warn(
        f"{count} are left out, because {len(both)} ids have no embedding ({name_first(both)})",
        stacklevel=4,
    )
    return trials.rows(kept), whole, f", without {count}"


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
) -> Fusion:
    """Fit a calibration of the scores that `score` gives, as `likeness fit calibration` does.

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
        LikenessError: the trials have no labels, the scores separate them without an error, or
            higher scores are less similar.
        LikenessError, FileNotFoundError: as `score`.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> fitted = likeness.calibrate("trials.txt", embeddings)
        >>> model = likeness.load("runs/voices", calibration=fitted)
        >>> 0 < model.verify("a.wav", "b.wav").probability < 1
        True
        >>> fitted.save("calibration.json")
        >>> likeness.load_fusion("calibration.json") == fitted
        True
    """
    given = {"embeddings": embeddings, "probe": probe, "models": models}
    listed, sides, _ = _prepared(trials, columns, missing, given, strip_extension)
    return calibrate_values(
        listed,
        scoring=scoring or Scoring(),
        quality=(quality,) if isinstance(quality, str) else quality,
        p_target=p_target,
        **sides,
    )


def fuse(
    scores: Sequence[File],
    fusion: File | None = None,
    *,
    quality: Sequence[str] = (),
    embeddings: File | Embeddings | None = None,
    durations: File | None = None,
    method: Literal["logistic", "likelihood_ratio"] = "logistic",
) -> tuple[Trials, Fusion, Floats]:
    """Fit a fusion of several systems on labelled trials, or apply one.

    Args:
        scores: K score files of the same trials, whose rows may be in any order.
        fusion: the file of a fusion that is applied; None fits one.
        quality: measures that help a fusion that is fitted, "log_norm" or "log_duration".
        embeddings: of the items, for the measures.
        durations: a list `id seconds`, for "log_duration".
        method: how one is fitted, see `likeness.eval.scoring.fusion`. With likelihood_ratio, which
            takes no quality, spoofs among the trials are a third class.

    Returns:
        The P trials, the fusion, and the fused scores (P,), which are log-likelihood ratios.

    Raises:
        LikenessError: The files are of other trials, of other systems than the fusion, or without
            labels where one is fitted; or a measure lacks its embeddings or durations.
    """
    if len(scores) < 2:
        raise LikenessError(f"a fusion needs two score files or more, but got {len(scores)}")
    trials, values = read_scores(Path(scores[0]))
    columns = [values]
    for path in scores[1:]:
        trials, values = read_scores(Path(path), trials)
        columns.append(values)
    origins = [read_origin(Path(path)) for path in scores]
    systems = tuple("" if origin is None else origin.system for origin in origins)
    fitted = None if fusion is None else load_fusion(Path(fusion))
    measured = None
    if measures := quality if fitted is None else measures_of(fitted.names):
        if embeddings is None:
            raise LikenessError(
                f"the quality measures {', '.join(measures)} need the embeddings of the items; "
                "give --embeddings"
            )
        scoring = Scoring(durations=read_durations(Path(durations)) if durations else None)
        sides = sides_of(trials, embeddings_of(embeddings), scoring)
        measured = quality_of(sides, measures, scoring)
    values = np.stack(columns, axis=1)
    if fitted is None:
        if trials.target is None:
            raise LikenessError("a fusion is fitted on labelled trials, and no file has labels")
        names = column_names(measures)
        if method == "likelihood_ratio":
            spoof = trials.spoof
            fitted = fit_ratio_fusion(values, trials.target, systems=systems, spoof=spoof)
            return trials, fitted, fitted.apply(values)
        fitted = fit_fusion(values, trials.target, systems=systems, quality=measured, names=names)
    known = set(filter(None, fitted.systems))
    pairs = list(zip_longest(systems, fitted.systems))
    # What gave some scores may not be known; a known system has its own place.
    if any(
        None in pair or (pair[0] and pair[0] != pair[1] and (pair[1] or pair[0] in known))
        for pair in pairs
    ):
        raise LikenessError(
            f"the fusion was fitted for scores of {list(fitted.systems)}, but these are of "
            f"{list(systems)}; give the score files of its systems, in its order"
        )
    return trials, fitted, fitted.apply(values, measured)
