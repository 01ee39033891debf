"""Scores of a list of trials.

`score` applies a `Scoring`, and `calibrate` fits the calibration for it. Both take and give values;
`likeness score` reads and writes the files.

Each measure of quality enters a calibration as the lower and the higher of the two sides of a
trial. Differences, and ratios of what stands under the logarithm, are linear in these: WeSpeaker's
QMF.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import write_scores
from likeness.eval.metrics.similarity import pairs, warn_of_zeros
from likeness.eval.scoring import normalization, templates
from likeness.eval.scoring.fusion import Fusion, by_side, fit_fusion, log_measure
from likeness.eval.scoring.origin import Origin, digest_of, write_origin
from likeness.eval.scoring.settings import QUALITY, Scoring, column_names, measures_of
from likeness.eval.types import (
    Embeddings,
    Floats,
    Floats32,
    Scores,
    Trials,
    check_choice,
    name_first,
)

Models = Mapping[str, Sequence[str]]
_EXTENSION = re.compile(r"(?<=[^/\\])\.[A-Za-z][A-Za-z0-9]{1,4}\Z")
PLAIN = Scoring()


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
        return f"<Scored: {len(self)} trials by {self.system}>"

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
            raise LikenessError(
                f"the list of {len(self)} trials has no labels, which metrics need; give a list "
                "with labels"
            )
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
    models: Models | None
    similarity: str


def score(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = PLAIN,
    *,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Scored:
    """Scores a list of trials.

    Args:
        trials: P trials between enrolment ids and probe ids.
        embeddings: Of both sides, or of the enrolment side if `probe` has the other.
        scoring: How the trials are scored.
        probe: Embeddings of the probe side, where they are apart.
        models: The items that enrol each model, as `templates.read_enrolment` gives them. The
            enrolment ids of the trials are then models.

    Returns:
        The scores (P,), with the trials and what gave them.

    Raises:
        LikenessError: Ids have no embedding, no model or no duration. The embeddings, the cohort
            and the mean differ in D, the calibration is of another system, or the cohort or the
            durations that it needs are missing.

    Warns:
        UserWarning: Embeddings are zero vectors, or of another model than the rest; or the cohort
            has ids of the trials.

    >>> embeddings = Embeddings(("ann/1", "ann/2", "bob/1"), [[3, 4], [6, 8], [4, -3]])
    >>> trials = Trials(("ann/1",), ("ann/2", "bob/1"), [0, 0], [0, 1], [True, False])
    >>> score(trials, embeddings, Scoring(similarity="dot")).values.tolist()
    [50.0, 0.0]
    """
    calibration = scoring.calibration
    system = scoring.system(embeddings.meta, of_models=models is not None)
    if calibration is not None and calibration.systems not in (("",), (system,)):
        raise LikenessError(
            f"the calibration was fitted for [{', '.join(calibration.systems)}], but these scores "
            f"are [{system}]; fit one for this system"
        )
    sides = sides_of(trials, embeddings, scoring, probe=probe, models=models)
    values = _values(sides, scoring)
    if calibration is not None:
        values = calibration.apply(
            values, quality_of(sides, measures_of(calibration.names), scoring)
        )
    origin = None
    if probe is None or dict(probe.meta) == dict(embeddings.meta):
        origin = Origin(system, embeddings.meta, digest_of(calibration))
    return Scored(trials, values, system, origin)


def calibrate(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = PLAIN,
    *,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Fusion:
    """Fits a calibration of the scores that `score` gives with the same arguments.

    The scores become log-likelihood ratios with `dataclasses.replace(scoring, calibration=...)`.

    Args:
        trials: P trials with labels, of other subjects than those to be scored.
        embeddings: As in `score`; so are `scoring`, `probe` and `models`.
        quality: Measures of `likeness.eval.scoring.settings.QUALITY` that help the score.
        p_target: The prior of a target trial at which the calibration is to be good.

    Raises:
        LikenessError: The trials have no labels, `scoring` has a calibration already, a measure is
            unknown or lacks its cohort or durations; and as `calibration.fit_fusion`. As
            `score`.

    >>> import numpy as np
    >>> subjects = np.repeat([[0.5], [-0.5]], 4, axis=0)
    >>> noise = np.random.default_rng(0).standard_normal((8, 3))
    >>> embeddings = Embeddings(tuple("abcdefgh"), subjects + noise)
    >>> i, j = np.triu_indices(8, k=1)
    >>> trials = Trials(embeddings.ids, embeddings.ids, i, j, (i < 4) == (j < 4))
    >>> fitted = calibrate(trials, embeddings, Scoring("dot"))
    >>> fitted.weights[0] > 0, fitted.systems
    (True, ('dot',))
    """
    for measure in quality:
        check_choice("quality measure", measure, QUALITY)
    if scoring.calibration is not None or trials.target is None:
        lacks = "a list with labels" if trials.target is None else "a scoring without calibration"
        raise LikenessError(f"a calibration is fitted on {lacks}; give such a one")
    sides = sides_of(trials, embeddings, scoring, probe=probe, models=models)
    return fit_fusion(
        _values(sides, scoring),
        trials.target,
        quality=quality_of(sides, quality, scoring),
        names=column_names(quality),
        p_target=p_target,
        systems=(scoring.system(embeddings.meta, of_models=models is not None),),
    )


def sides_of(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring,
    *,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Sides:
    """Both sides of the trials as they are compared: pooled, and with the mean subtracted.

    The arguments, errors and warnings are those of `score`.
    """
    _warn_of_other_models(embeddings, probe, scoring)
    subtract_mean = scoring.subtract_mean
    apart = embeddings if probe is None else probe
    models = None if models is None else _models_of(trials, models)
    items = trials.enrol_ids
    if models is not None:
        items = tuple(dict.fromkeys(item for listed in models.values() for item in listed))
    kind = "enrolment" if models is None else "enrolment item"
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
        LikenessError: The cohort or the durations that a measure needs are missing. An item has no
            duration.
    """
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
    durations = durations or {}
    items = [(name,) if sides.models is None else sides.models[name] for name in sides.enrol.ids]
    used = [name for group in items for name in group]
    missing = [name for name in (*used, *sides.probe.ids) if name not in durations]
    if missing:
        raise LikenessError(
            f"durations: the quality measure log_duration needs the seconds of each item, and "
            f"{missing[0]!r} has none; give them by --durations"
        )
    enrol = [sum(durations[name] for name in group) for group in items]
    probe = [durations[name] for name in sides.probe.ids]
    return log_measure("the durations", enrol), log_measure("the durations", probe)


def without_extension(id: str) -> str:
    """Returns an id without an ending such as .wav or .jpeg: a dot, a letter and one to four more
    letters or digits.

    Example:
        >>> without_extension("ann/1.wav"), without_extension("v1.0/2"), without_extension("a.mp3")
        ('ann/1', 'v1.0/2', 'a')
    """
    return _EXTENSION.sub("", id)


def with_spellings(embeddings: Embeddings, asked: Sequence[str]) -> Embeddings:
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
        >>> with_spellings(embeddings, ["ann/1.wav", "bob/1", "cid/1"]).ids
        ('ann/1', 'bob/1', 'ann/1.wav')
    """
    known = set(embeddings.ids)
    others = [id for id in dict.fromkeys(asked) if id not in known]
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(embeddings.ids):
        rows.setdefault(without_extension(id), []).append(row)
    added = {id: rows[without_extension(id)] for id in others if without_extension(id) in rows}
    for id, fitting in added.items():
        if len(fitting) > 1:
            names = [embeddings.ids[row] for row in fitting[:2]]
            raise LikenessError(
                f"{id!r} fits several embeddings without its extension ({' and '.join(names)}); "
                "write the ids as in the embeddings"
            )
    if not added:
        return embeddings
    chosen = np.array([fitting[0] for fitting in added.values()])
    matrix = np.concatenate((embeddings.matrix, embeddings.matrix[chosen]))
    return Embeddings((*embeddings.ids, *added), matrix, embeddings.meta)


def lacking(ids: Iterable[str], embeddings: Embeddings) -> list[str]:
    """The ids that have no embedding, in their order."""
    known = set(embeddings.ids)
    return [name for name in ids if name not in known]


def _refuse_missing(side: str, ids: Sequence[str], embeddings: Embeddings) -> None:
    """Refuses ids of a side without an embedding, and says how they can be found or left out."""
    if missing := lacking(ids, embeddings):
        bare = set(map(without_extension, embeddings.ids))
        remedy = "embed these items too, or leave their trials out by --missing skip"
        if len(missing) == len(ids):
            remedy = "the list is of other items than the embeddings"
        if all(without_extension(name) in bare for name in missing):
            remedy = "add --strip-extension (in Python strip_extension=True)"
        raise LikenessError(
            f"no embedding for {len(missing)} of {len(ids)} {side} ids ({name_first(missing)}; the "
            f"embeddings have ids such as {name_first(embeddings.ids[:2])}); {remedy}"
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
    shared = [name for name in cohort.ids if name in ids]
    if shared:
        warnings.warn(
            f"{len(shared)} of {len(cohort.ids)} cohort ids are also in the trials "
            f"({name_first(shared)}); a cohort holds other subjects",
            stacklevel=4,
        )
    if subject_of is None:
        return cohort
    return templates.pool(cohort, [subject_of[name] for name in cohort.ids])


def _models_of(trials: Trials, models: Models) -> dict[str, tuple[str, ...]]:
    """The models of the trials, in their order, with their items."""
    absent = [model for model in trials.enrol_ids if not models.get(model)]
    if absent:
        raise LikenessError(
            f"{absent[0]!r} is an enrolment id of the trials, but no model of the enrolment list, "
            "or one without items; add its items to it"
        )
    return {model: tuple(models[model]) for model in trials.enrol_ids}


def _only(embeddings: Embeddings, ids: tuple[str, ...]) -> Embeddings:
    """The embeddings of these ids in this order: rows then go by the numbers of the trials."""
    if ids == embeddings.ids:
        return embeddings
    return Embeddings(ids, embeddings.matrix[embeddings.rows(ids)], embeddings.meta)


def _warn_of_other_models(
    embeddings: Embeddings, probe: Embeddings | None, scoring: Scoring
) -> None:
    """Warns of what was made by another network than the embeddings of the enrolment side."""
    model = embeddings.meta.get("model")
    named = {"probe embeddings": probe, "cohort": scoring.cohort, "mean": scoring.subtract_mean}
    others = {what: rows.meta.get("model") for what, rows in named.items() if rows is not None}
    others |= {} if scoring.plda is None else {"PLDA": scoring.plda.model}
    for what, other in others.items():
        if model and other and other != model:
            warnings.warn(
                f"the {what} says that it is of another model ({other[:16]}) than the embeddings "
                f"({model[:16]}); they do not compare",
                stacklevel=4,
            )
