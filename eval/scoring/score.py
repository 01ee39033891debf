"""Scores of a list of trials.

`score` applies a `Scoring`, and `calibrate` fits the calibration for it. Both take files or values.

Each measure of quality enters a calibration as the lower and the higher of the two sides of a
trial. Differences, and ratios of what stands under the logarithm, are linear in these: WeSpeaker's
QMF.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import EMBEDDINGS, TRIALS, ColumnNames, split_columns
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.formats.trials import read_trials, write_scores
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.calibration import Fusion, by_side, fit_fusion, log_measure
from likeness.eval.metrics.self_matches import (
    enrolled_itself,
    warn_of_copied_trials,
    without_self_trials,
)
from likeness.eval.metrics.similarity import pairs, warn_of_zeros
from likeness.eval.option import Option, if_option
from likeness.eval.scoring import normalization, templates
from likeness.eval.scoring.origin import Origin, digest_of, write_origin
from likeness.eval.scoring.settings import QUALITY, Scoring, column_names, measures_of
from likeness.eval.types import (
    Floats,
    Floats32,
    Scores,
    Trials,
    check_choice,
    counted,
    item_keys,
    lacking,
    name_first,
    respell,
    same_items,
)

Models = File | Mapping[str, Sequence[str]]
Missing = Literal["refuse", "skip"]
_EXTENSION = re.compile(r"(?<=[^/\\])\.[A-Za-z][A-Za-z0-9]{1,4}\Z")


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a list of trials, and what gave them.

    Attributes:
        trials: The list, with or without labels.
        values: (P,) float64. HIGHER = MORE SIMILAR; log-likelihood ratios after a calibration.
        system: What gave the scores before any calibration, in words, see `Scoring.system`.
        origin: The model and the scoring, which thresholds of these scores state; None where the
            two sides were embedded by different models.

    >>> from tempfile import TemporaryDirectory
    >>> embeddings = Embeddings(("ann/1", "ann/2", "bob/1"), [[3, 4], [6, 8], [4, -3]])
    >>> trials = Trials(("ann/1",), ("ann/2", "bob/1"), [0, 0], [0, 1], [True, False])
    >>> scored = score(trials, embeddings, Scoring("dot"))
    >>> len(scored), scored.scores.targets.tolist()
    (2, [50.0])
    >>> with TemporaryDirectory() as folder:
    ...     scored.save(f"{folder}/scores.txt")
    ...     print(Path(f"{folder}/scores.txt").read_text(), end="")
    ann/1 ann/2 50.0 1
    ann/1 bob/1 0.0 0
    """

    trials: Trials
    values: Floats
    system: str
    origin: Origin | None = None

    def __len__(self) -> int:
        return len(self.trials)

    def __repr__(self) -> str:
        return f"<Scored: {counted(len(self), 'trial')} by {self.system}>"

    def of_list(self, name: str) -> Scored:
        """The same scores with a name for their list, which their thresholds will state."""
        return replace(self, origin=self.origin and replace(self.origin, trials=name))

    def save(self, path: str | Path) -> None:
        """Writes the score file that `likeness score` writes, whole or not at all.

        Its lines are `enrol probe score label`, without the label if the list has none. The numbers
        come back bit for bit. The origin is written beside it, as `PATH.origin.json`.

        Args:
            path: The file; one that ends in .gz is compressed.

        Raises:
            LikenessError: An id holds white space or another character that no list can hold.
        """
        write_scores(path, self.trials, self.values)
        if self.origin is not None:
            write_origin(path, self.origin)

    @property
    def scores(self) -> Scores:
        """The scores with the labels of the list, as the metrics take them.

        Raises:
            LikenessError: The list has no labels.
        """
        if self.trials.target is None:
            count = counted(len(self), "trial")
            raise LikenessError(f"the list of {count} has no labels; add them")
        return Scores(self.values, self.trials.target)


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of P trials.

    Attributes:
        enrol: Raw embeddings of the enrolment ids, in the order of the trials. Quality measures and
            warnings are of these.
        probe: Raw embeddings of the probe ids; the same object where one matrix serves both sides.
        left: (N, D) rows of the enrolment side after the mean was subtracted.
        right: (M, D) rows of the probe side; the same object where one matrix serves both sides, so
            that the cohort is scored once.
        i: (P,) the row of `left` of each trial.
        j: (P,) the row of `right` of each trial.
        cohort: (C, D) after the mean was subtracted, or None.
        models: The items of each enrolment id, or None where the ids are items.
        similarity: The name of the similarity; "plda" where a PLDA scores.
    """

    enrol: Embeddings
    probe: Embeddings
    left: Floats32
    right: Floats32
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    cohort: Floats32 | None
    models: Mapping[str, Sequence[str]] | None
    similarity: str


def score(
    trials: Annotated[File | Trials, Option(path="file")],
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    scoring: Scoring | None = None,
    *,
    probe: Annotated[File | Embeddings | None, Option(path="file")] = None,
    models: Annotated[Models | None, Option("--enrolment", path="file")] = None,
    columns: ColumnNames = "",
    strip_extension: bool = False,
    missing: Missing = "refuse",
) -> Scored:
    """Score a list of trials.

    Args:
        trials: the trial list. Its P pairs of ids may be a file, Trials, or a table of pandas.
        embeddings: the embeddings of both sides. They may be a file, or what `Model.embed` gives.
        scoring: similarity, score normalisation, PLDA and calibration. By default the similarity
            that the embeddings name.
        probe: embeddings of the probe side, where they are apart.
        models: lines `model item item ...`, where several items enrol a model. They may be a
            mapping. The enrolment ids of the trials are then models.
        columns: which column of the trial list and of embeddings from elsewhere is which, where
            they do not say so, as in "enrol=file_x,probe=file_y" and "id=utt,vector=xvec", or by
            number. See `likeness.eval.formats.embeddings.read_embeddings`.
        strip_extension: ids of trials and embeddings may differ in the extension of a file, as
            ann/1.wav and ann/1 do.
        missing: what becomes of trials whose ids have no embedding; skip leaves them out, with a
            warning that counts them.

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
    scoring = scoring or Scoring()
    sources = trials, embeddings, scoring, probe, models
    listed, sides, name = _read(*sources, columns, strip_extension, missing)
    meta, calibration = dict(sides.enrol.meta), scoring.calibration
    system = scoring.system(meta, of_models=models is not None)
    if calibration is not None and calibration.systems not in (("",), (system,)):
        problem = calibration.mismatch([system])
        raise LikenessError(f"the calibration {problem}; fit one by `likeness fit calibration`")
    measured = quality_of(sides, measures_of(calibration.names) if calibration else (), scoring)
    values = _values(sides, scoring)
    if calibration is not None:
        values = calibration.apply(values, measured)
    origin = None
    if dict(sides.probe.meta) == meta:
        origin = Origin(system, meta, digest_of(calibration), name)
    return Scored(listed, values, system, origin)


def calibrate(
    trials: Annotated[File | Trials, Option(path="file")],
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    scoring: Scoring | None = None,
    *,
    quality: Annotated[Sequence[str], Option(metavar="NAME")] = (),
    p_target: float = 0.5,
    probe: Annotated[File | Embeddings | None, Option(path="file")] = None,
    models: Annotated[Models | None, Option("--enrolment", path="file")] = None,
    columns: ColumnNames = "",
    strip_extension: bool = False,
    missing: Missing = "refuse",
) -> Fusion:
    """Fit a calibration of the scores that `score` gives, as `likeness fit calibration` does.

    It turns scores into natural log-likelihood ratios. `likeness.load(..., calibration=...)` and
    `Scoring(calibration=...)` take it, and its `save(path)` writes a file for the command line.

    Args:
        trials: Labelled pairs of ids, of other subjects than those to be scored.
        embeddings: as in `score`.
        scoring: without a calibration.
        quality: measures that help the score: log_norm, log_duration or cohort_mean.
            `Model.verify` can compute log_norm alone.
        p_target: the prior of a target trial at which the calibration is to be good.
        probe: as in `score`.
        models: as in `score`.
        columns: as in `score`.
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
    scoring = scoring or Scoring()
    measures = (quality,) if isinstance(quality, str) else quality
    for measure in measures:
        check_choice("quality measure", measure, QUALITY)
    sources = trials, embeddings, scoring, probe, models
    listed, sides, _ = _read(*sources, columns, strip_extension, missing)
    target = listed.target
    if scoring.calibration is not None or target is None:
        lacks = "a list with labels" if target is None else "a scoring without calibration"
        raise LikenessError(f"a calibration is fitted on {lacks}; give such a one")
    measured = quality_of(sides, measures, scoring)
    return fit_fusion(
        _values(sides, scoring),
        target,
        quality=measured,
        names=column_names(measures),
        p_target=p_target,
        systems=(scoring.system(sides.enrol.meta, of_models=models is not None),),
    )


def _read(
    trials: File | Trials,
    embeddings: File | Embeddings,
    scoring: Scoring,
    probe: File | Embeddings | None,
    models: Models | None,
    columns: ColumnNames,
    strip_extension: bool,
    missing: Missing,
) -> tuple[Trials, Sides, str]:
    """Read what is a file, and give the ids the spelling of the embeddings. As for `score`.

    Returns:
        The trials, both of their sides, and the name of their list, where it is a file.
    """
    name = str(trials) if isinstance(trials, str | PathLike) else ""
    of_list, of_rows = split_columns(columns, TRIALS, EMBEDDINGS)
    listed = trials if isinstance(trials, Trials) else read_trials(trials, columns=of_list)
    enrol = embeddings_of(embeddings, of_rows)
    items_of = read_enrolment(Path(models)) if isinstance(models, str | PathLike) else models
    items_of = items_of and {str(model): items for model, items in items_of.items()}
    other = None if probe is None else embeddings_of(probe, of_rows)
    if strip_extension:
        asked = [*listed.enrol_ids, *listed.probe_ids]
        asked += [item for items in (items_of or {}).values() for item in items]
        enrol = add_spellings(enrol, asked)
        other = None if other is None else add_spellings(other, asked)
    if missing == "skip":
        listed, items_of, left_out = _with_embeddings(listed, enrol, other, items_of)
        name += left_out
    # A blind list is scored whole, because whoever has its labels expects all of its scores.
    itself, is_blind = _itself(listed, items_of, strip_extension), listed.target is None
    listed, _ = without_self_trials(listed, itself, left_out=not is_blind)
    return listed, sides_of(listed, enrol, scoring, probe=other, models=items_of), name


def _itself(
    trials: Trials, models: Mapping[str, Sequence[str]] | None, strip_extension: bool
) -> NDArray[np.int64]:
    """The rows of the trials of an item with itself, or with a model that it enrols."""
    if not strip_extension:
        return trials.itself if models is None else enrolled_itself(trials, models)
    enrol, probe = (tuple(map(drop_extension, ids)) for ids in (trials.enrol_ids, trials.probe_ids))
    if models is None:
        return replace(trials, enrol_ids=enrol, probe_ids=probe).itself
    bare = {model: tuple(map(drop_extension, items)) for model, items in models.items()}
    return enrolled_itself(replace(trials, probe_ids=probe), bare)


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
        enrolled = lacking(trials.enrol_ids, embeddings.ids)
    else:
        items = dict.fromkeys(item for items in models.values() for item in items)
        no_item = set(lacking(items, embeddings.ids))
        whole = {name: its for name, its in models.items() if no_item.isdisjoint(its)}
        enrolled = [name for name in trials.enrol_ids if name not in whole]
    probed = lacking(trials.probe_ids, (embeddings if probe is None else probe).ids)
    kept = ~np.isin(trials.enrol_ids, enrolled)[trials.enrol]
    kept &= ~np.isin(trials.probe_ids, probed)[trials.probe]
    if kept.all() or not kept.any():
        return trials, models, ""
    both = list(dict.fromkeys([*enrolled, *probed]))
    count = f"{len(trials) - int(kept.sum())} of {counted(len(trials), 'trial')}"
    text = f"{count} are left out: {len(both)} ids have no embedding ({name_first(both)})"
    warnings.warn(text, stacklevel=4)
    return trials.rows(kept), whole, f", without {count}"


def sides_of(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring,
    *,
    probe: Embeddings | None = None,
    models: Mapping[str, Sequence[str]] | None = None,
) -> Sides:
    """Both sides of the trials as they are compared: pooled, and with the mean subtracted.

    The arguments, errors and warnings are those of `score`.
    """
    _warn_of_others(embeddings, probe, scoring)
    subtract_mean = scoring.subtract_mean
    apart = embeddings if probe is None else probe
    items, kind = trials.enrol_ids, "enrolment"
    if models is not None:
        if absent := [model for model in items if not models.get(model)]:
            raise LikenessError(f"{absent[0]!r} has no items in the enrolment list; add them")
        models = {model: tuple(models[model]) for model in items}
        items = tuple(dict.fromkeys(item for listed in models.values() for item in listed))
        kind = "enrolment item"
    _refuse_missing(kind, items, embeddings)
    _refuse_missing("probe", trials.probe_ids, apart)
    others = _cohort(scoring, {*items, *trials.probe_ids})

    def pooled(rows: Embeddings) -> Embeddings:
        return rows if models is None else templates.enrol(rows, models, method=scoring.pooling)

    is_shared = models is None and apart is embeddings  # then one matrix serves both sides
    if is_shared:
        ids = tuple(dict.fromkeys(trials.enrol_ids + trials.probe_ids))
        enrol = probe = _only(embeddings, ids)
    else:
        enrol, probe = _only(pooled(embeddings), trials.enrol_ids), _only(apart, trials.probe_ids)
    warn_of_copied_trials(trials, enrol, probe)
    warn_of_zeros(*((rows, np.arange(len(rows.ids))) for rows in (enrol, probe)))
    left = _centred(enrol, subtract_mean)
    if models is not None:  # the mean is subtracted from the items, before they are pooled
        left = _only(pooled(_centred(embeddings, subtract_mean)), trials.enrol_ids)
    right = left if is_shared else _centred(probe, subtract_mean)
    return Sides(
        enrol,
        probe,
        left.matrix,
        right.matrix,
        enrol.rows(trials.enrol_ids)[trials.enrol],
        probe.rows(trials.probe_ids)[trials.probe],
        None if others is None else _centred(others, subtract_mean).matrix,
        models,
        scoring.similarity_of(embeddings.meta),
    )


def _values(sides: Sides, scoring: Scoring) -> Floats:
    """(P,) scores, normalised where there is a cohort, before any calibration."""
    left, right, i, j, similarity = sides.left, sides.right, sides.i, sides.j, sides.similarity
    if scoring.plda is not None:
        return scoring.plda.score(left, right, i, j)
    values = pairs(left, right, i, j, similarity)
    if sides.cohort is None:
        return values
    how: dict[str, Any] = {"top_n": scoring.num_cohort_scores, "similarity": similarity}
    if scoring.norm == "z":
        return normalization.z_norm(values, left, sides.cohort, i=i, **how)
    if scoring.norm == "t":
        return normalization.t_norm(values, right, sides.cohort, j=j, **how)
    return normalization.as_norm(values, left, right, sides.cohort, i=i, j=j, **how)


def quality_of(sides: Sides, measures: Sequence[str], scoring: Scoring) -> Floats | None:
    """The quality measures of the trials.

    Args:
        sides: Both sides of P trials.
        measures: K names of `QUALITY`.
        scoring: Has the cohort, the similarity and the durations.

    Returns:
        (P, 2 K): the lower and the higher value of each measure; None without measures.

    Raises:
        LikenessError: The cohort or the durations that a measure needs are missing, or no measure
            needs the durations. An item has no duration.
    """
    if scoring.durations is not None and "log_duration" not in measures:
        raise LikenessError("durations change nothing without the measure log_duration; omit them")
    columns = []
    for measure in measures:
        if measure == "log_norm":
            enrol = log_measure("the norm", sides.enrol.norms)
            probe = log_measure("the norm", sides.probe.norms)
        elif measure == "log_duration":
            enrol, probe = _log_durations(sides, scoring.durations)
        elif sides.cohort is None:
            raise LikenessError("the quality measure cohort_mean needs a cohort; give one")
        else:
            enrol, probe = (
                normalization.cohort_mean(
                    rows, sides.cohort, top_n=scoring.num_cohort_scores, similarity=sides.similarity
                )
                for rows in (sides.left, sides.right)
            )
        columns.append(by_side(enrol, probe, sides.i, sides.j))
    return np.concatenate(columns, axis=1) if columns else None


def _log_durations(sides: Sides, durations: Mapping[str, float] | None) -> tuple[Floats, Floats]:
    """(N,) and (M,) logarithms of the seconds of each side."""
    items = [(name,) if sides.models is None else sides.models[name] for name in sides.enrol.ids]
    durations = respell(durations or {}, [*chain(*items), *sides.probe.ids])
    try:
        enrol = [sum(durations[name] for name in group) for group in items]
        probe = [durations[name] for name in sides.probe.ids]
    except KeyError as error:
        raise LikenessError(f"durations: {error} has none; add it for log_duration") from None
    return log_measure("the durations", enrol), log_measure("the durations", probe)


def drop_extension(id: str) -> str:
    """Returns an id without an ending such as .wav or .jpeg: a dot, a letter and one to four more
    letters or digits.

    Example:
        >>> drop_extension("ann/1.wav"), drop_extension("v1.0/2"), drop_extension("a.mp3")
        ('ann/1', 'v1.0/2', 'a')
    """
    return _EXTENSION.sub("", id)


def add_spellings(embeddings: Embeddings, asked: Sequence[str]) -> Embeddings:
    """Returns embeddings that have the ids that are asked for, too, whatever their extensions.

    Args:
        embeddings: N embeddings.
        asked: Ids, some of which differ from those of the embeddings in their extension alone.

    Returns:
        The embeddings, with a further row for each such id. An id that is there, and one that is
        not there without its extension either, adds none.

    Raises:
        LikenessError: Several embeddings have one id but for their extensions.

    Example:
        >>> embeddings = Embeddings(("ann/1", "bob/1"), [[1, 0], [0, 1]])
        >>> add_spellings(embeddings, ["ann/1.wav", "bob/1", "cid/1"]).ids
        ('ann/1', 'bob/1', 'ann/1.wav')
    """
    others = lacking(dict.fromkeys(asked), embeddings.ids)
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(item_keys([drop_extension(id) for id in embeddings.ids])):
        rows.setdefault(key, []).append(row)
    keys = item_keys([drop_extension(id) for id in others])
    added = {id: rows[key] for id, key in zip(others, keys, strict=True) if key in rows}
    for id, fitting in added.items():
        if len(fitting) > 1:
            names = [embeddings.ids[row] for row in fitting[:2]]
            raise LikenessError(f"{id!r} fits {' and '.join(names)}; write it as one of these")
    if not added:
        return embeddings
    chosen = np.array([fitting[0] for fitting in added.values()])
    matrix = np.concatenate((embeddings.matrix, embeddings.matrix[chosen]))
    return Embeddings((*embeddings.ids, *added), matrix, embeddings.meta)


def _refuse_missing(side: str, ids: Sequence[str], embeddings: Embeddings) -> None:
    """Refuses ids of a side without an embedding, and says how they can be found or left out."""
    if missing := lacking(ids, embeddings.ids):
        by_option = if_option(", or leave their trials out by --missing skip")
        remedy = f"embed these items too{by_option}"
        if not lacking(map(drop_extension, missing), map(drop_extension, embeddings.ids)):
            by_option = if_option("add --strip-extension (in Python strip_extension=True)")
            remedy = by_option or "write the ids of both alike"
        raise LikenessError(
            f"no embedding for {len(missing)} of {len(ids)} {side} ids ({name_first(missing)}; the "
            f"embeddings have {name_first(embeddings.ids[:2])}); {remedy}"
        )


def _centred(rows: Embeddings, mean_of: Embeddings | None) -> Embeddings:
    if mean_of is None:
        return rows
    return Embeddings(rows.ids, normalization.subtract_mean(rows.matrix, mean_of.matrix), rows.meta)


def _cohort(scoring: Scoring, ids: set[str]) -> Embeddings | None:
    """The cohort, of one row per subject where the subjects are known. ids: of the trials."""
    cohort, subject_of = scoring.cohort, scoring.cohort_subjects
    if cohort is None:
        return None
    shared = [cohort.ids[row] for row in np.unique(same_items(cohort.ids, [*ids])[0])]
    if shared:
        text = f"{len(shared)} of {len(cohort.ids)} cohort ids are also in the trials"
        warnings.warn(f"{text} ({name_first(shared)}); take other subjects", stacklevel=4)
    if subject_of is None:
        return cohort
    return templates.pool(cohort, labels_of("cohort", cohort.ids, subject_of))


def _only(embeddings: Embeddings, ids: tuple[str, ...]) -> Embeddings:
    """The embeddings of these ids in this order: rows then go by the numbers of the trials."""
    if ids == embeddings.ids:
        return embeddings
    return Embeddings(ids, embeddings.matrix[embeddings.rows(ids)], embeddings.meta)


def _warn_of_others(embeddings: Embeddings, probe: Embeddings | None, scoring: Scoring) -> None:
    """Warns of what was made by another network than the embeddings of the enrolment side."""
    model = embeddings.meta.get("model")
    named = {"probe embeddings": probe, "cohort": scoring.cohort, "mean": scoring.subtract_mean}
    others = {what: rows.meta.get("model") for what, rows in named.items() if rows is not None}
    others |= {} if scoring.plda is None else {"PLDA": scoring.plda.model}
    for what, other in others.items():
        if model and other and other != model:
            text = f"the {what} says that it is of another model ({other[:16]}) than the embeddings"
            warnings.warn(f"{text} ({model[:16]}); they do not compare", stacklevel=4)
