"""How a list of trials is scored: one value that says it, and the functions that do it.

`Scoring` holds everything that a score depends on beside the two embeddings: the similarity, how
the items of a model are pooled, the mean that is subtracted, the cohort that normalises the scores,
a PLDA, a calibration. `score` applies it and `calibrate` fits the calibration for it. All of them
take and give values; `likeness score` reads and writes the files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from eval.calibration import Calibration, fit_calibration, load_calibration
from eval.errors import LikenessError
from eval.formats.embeddings import read as read_embeddings
from eval.formats.subjects import read_durations, read_mapping
from eval.formats.trials import write_scores
from eval.scoring import normalization
from eval.scoring.origin import Origin, digest_of, write_origin
from eval.scoring.plda import Plda, ScoringLength, load_plda
from eval.scoring.sides import (
    QUALITY,
    Models,
    Sides,
    column_names,
    measures_of,
    quality_of,
    sides_of,
)
from eval.similarity import check_similarity, pairs
from eval.types import (
    Embeddings,
    Floats,
    Scores,
    Trials,
    check_choice,
    check_counts,
    name_first,
)

Norm = Literal["as", "s", "z", "t"]
Pooling = Literal["mean", "norm_weighted"]


_READERS: Mapping[str, Callable[[str | Path], Any]] = {  # of the fields that may be files
    "subtract_mean": read_embeddings,
    "plda": load_plda,
    "cohort": read_embeddings,
    "cohort_subjects": read_mapping,
    "calibration": load_calibration,
    "durations": read_durations,
}


@dataclass(frozen=True, eq=False)
class Scoring:
    """How trials are scored. It is checked on construction, then frozen.

    Every field is an option of `likeness score` of the same name. A file, as a path, stands for the
    embeddings, PLDA, mapping or calibration that is read from it.

    Attributes:
        similarity: A name of `eval.similarity`. None stands for the similarity that the meta of the
            embeddings names, or for cosine where it names none.
        pooling: How the items of a model become one embedding, see `eval.scoring.templates`.
        subtract_mean: Embeddings whose mean is subtracted from all others before they are pooled.
        plda: Scores are its log-likelihood ratios, of the mean of a model as of one item. A PLDA is
            a similarity of its own, and its scores are not normalised.
        scoring_length: Another length at scoring than `plda` has, a name of
            `eval.scoring.plda.SCORING_LENGTHS`.
        cohort: Embeddings of subjects that are not in the trials. The scores are then normalised.
        cohort_subjects: The subject of each id of the cohort. The mean embeddings of the subjects
            are then the cohort.
        norm: `as` normalises by the top_n highest scores of each side with the cohort; `s`, `z` and
            `t` by the scores with the whole cohort. See `eval.scoring.normalization`.
        top_n: How many scores `as` takes; those of the whole cohort, with a warning, where it is
            smaller.
        calibration: Turns the scores into log-likelihood ratios. Its quality measures are computed
            from the embeddings, the cohort and the durations.
        durations: The seconds of each item, for the quality measure `log_duration`.

    Raises:
        LikenessError: A name is unknown, or two fields contradict each other, or a field would
            change nothing. Ids of the cohort have no subject. All are counted, the first are named.

    >>> Scoring(similarity="cosine", norm="q")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown norm 'q'; choose one of as, s, z, t
    """

    similarity: str | None = None
    pooling: Pooling = "mean"
    subtract_mean: Embeddings | None = None
    plda: Plda | None = None
    scoring_length: ScoringLength | None = None
    cohort: Embeddings | None = None
    cohort_subjects: Mapping[str, str] | None = None
    norm: Norm = "as"
    top_n: int = 300
    calibration: Calibration | None = None
    durations: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if isinstance(value, str | PathLike):
                object.__setattr__(self, name, read(Path(value)))
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("pooling", self.pooling, get_args(Pooling))
        check_counts("top_n", [self.top_n], least=2)
        if self.similarity is not None:
            check_similarity(self.similarity)
        self._check_plda()
        self._check_cohort()
        if self.durations is not None:
            seconds = {name: float(value) for name, value in self.durations.items()}
            object.__setattr__(self, "durations", MappingProxyType(seconds))
        if self.calibration is not None:
            measures_of(self.calibration)  # refuses measures that are unknown

    def _check_plda(self) -> None:
        if self.plda is None and self.scoring_length:
            raise LikenessError(
                f"scoring_length {self.scoring_length!r} without a PLDA would change nothing; give "
                "plda too, or leave it out"
            )
        if self.plda is not None and (self.similarity or self.cohort is not None):
            raise LikenessError(
                "plda is a similarity of its own, which is not normalised: leave out "
                f"{'similarity' if self.similarity else 'cohort'}"
            )
        if self.plda is not None and self.scoring_length:
            replace(self.plda, scoring_length=self.scoring_length)  # refuses an unknown name

    def _check_cohort(self) -> None:
        if self.cohort is None:
            if self.cohort_subjects is not None:
                raise LikenessError(
                    "cohort_subjects without a cohort would change nothing; give cohort too, or "
                    "leave it out"
                )
            return
        rows = set(self.cohort.ids)
        if self.cohort_subjects is not None:
            subject_of = MappingProxyType(dict(self.cohort_subjects))
            missing = [name for name in self.cohort.ids if name not in subject_of]
            if missing:
                raise LikenessError(
                    f"cohort_subjects: {len(missing)} of {len(self.cohort.ids)} cohort ids have no "
                    f"subject ({name_first(missing)}); add them"
                )
            object.__setattr__(self, "cohort_subjects", subject_of)
            rows = {subject_of[name] for name in self.cohort.ids}
        if self.norm == "as" and 2 <= len(rows) < self.top_n:
            warnings.warn(
                f"the cohort has {len(rows)} members, and all of them are taken in place of the "
                f"top {self.top_n}",
                stacklevel=4,
            )
            object.__setattr__(self, "top_n", len(rows))
        normalization.check_cohort(len(rows), self._num_cohort_scores)

    def similarity_of(self, meta: Mapping[str, str]) -> str:
        """The name of the similarity for embeddings with this meta; "plda" where a PLDA scores."""
        if self.plda is not None:
            return "plda"
        return self.similarity or meta.get("similarity") or "cosine"

    def system(self, meta: Mapping[str, str], *, of_models: bool = False) -> str:
        """What gives the scores, in words: two lists of scores with the same words compare.

        A calibration stores them, and serves scores of its own system only.

        Args:
            meta: Of the embeddings of the enrolment side.
            of_models: The enrolment ids are models that are pooled from several items.

        >>> Scoring(cohort=Embeddings(("c", "d"), [[1], [2]]), top_n=2).system({"model": "ab12"})
        'cosine, as_norm over the top 2 of the cohort, model ab12'
        """
        parts = [self.similarity_of(meta)]
        if of_models:
            parts.append(f"{self.pooling} of the enrolment items")
        if self.subtract_mean is not None:
            parts.append("mean subtracted")
        if self.cohort is not None:
            over = f" over the top {self.top_n} of the cohort" if self.norm == "as" else ""
            parts.append(f"{self.norm}_norm{over}")
        if meta.get("model"):
            parts.append(f"model {meta['model'][:16]}")
        plda = self._plda_at_scoring
        if plda is not None and plda.scoring_length != "none":
            parts.append(f"scoring length {plda.scoring_length}")
        return ", ".join(parts)

    @property
    def _num_cohort_scores(self) -> int | None:
        """How many scores with the cohort are used of each side; None stands for all."""
        return self.top_n if self.norm == "as" else None

    @cached_property
    def _plda_at_scoring(self) -> Plda | None:
        if self.plda is None or not self.scoring_length:
            return self.plda
        return replace(self.plda, scoring_length=self.scoring_length)


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


def score(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = Scoring(),
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
        LikenessError: Ids have no embedding, no model or no duration. All are counted, the first
            named. The embeddings, the cohort and the mean differ in D, the calibration is of
            another system, or the cohort or the durations that it needs are missing.

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
    if calibration is not None and calibration.system and calibration.system != system:
        raise LikenessError(
            f"the calibration was fitted for [{calibration.system}], but these scores are "
            f"[{system}]; fit one for this system"
        )
    sides = _sides(trials, embeddings, scoring, probe, models)
    name = scoring.similarity_of(embeddings.meta)
    values = _values(sides, scoring, name)
    if calibration is not None and calibration.names:
        values = calibration.apply(values, _quality(sides, measures_of(calibration), scoring, name))
    elif calibration is not None:
        values = calibration.apply(values)
    origin = None
    if probe is None or dict(probe.meta) == dict(embeddings.meta):
        origin = Origin(system, embeddings.meta, digest_of(calibration))
    return Scored(trials, values, system, origin)


def calibrate(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring = Scoring(),
    *,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    probe: Embeddings | None = None,
    models: Models | None = None,
) -> Calibration:
    """Fits a calibration of the scores that `score` gives with the same arguments.

    The scores become log-likelihood ratios with `dataclasses.replace(scoring, calibration=...)`.

    Args:
        trials: P trials with labels, of other subjects than those to be scored.
        embeddings: As in `score`; so are `scoring`, `probe` and `models`.
        quality: Measures of `eval.scoring.sides.QUALITY` that help the score.
        p_target: The prior of a target trial at which the calibration is to be good.

    Raises:
        LikenessError: The trials have no labels, `scoring` has a calibration already, a measure is
            unknown or lacks its cohort or durations; and as `calibration.fit_calibration`. As
            `score`.

    >>> import numpy as np
    >>> subjects = np.repeat([[0.5], [-0.5]], 4, axis=0)
    >>> noise = np.random.default_rng(0).standard_normal((8, 3))
    >>> embeddings = Embeddings(tuple("abcdefgh"), subjects + noise)
    >>> i, j = np.triu_indices(8, k=1)
    >>> trials = Trials(embeddings.ids, embeddings.ids, i, j, (i < 4) == (j < 4))
    >>> fitted = calibrate(trials, embeddings, Scoring("dot"))
    >>> fitted.slope > 0, fitted.system
    (True, 'dot')
    """
    unknown = [name for name in quality if name not in QUALITY]
    if unknown:
        raise LikenessError(
            f"unknown quality measures {name_first(unknown)}; choose from {', '.join(QUALITY)}"
        )
    if scoring.calibration is not None:
        raise LikenessError(
            "the scoring has a calibration already, and a calibration is fitted on scores without; "
            "leave calibration out"
        )
    if trials.target is None:
        raise LikenessError(
            f"the list of {len(trials)} trials has no labels; a calibration is fitted on a "
            "labelled list"
        )
    sides = _sides(trials, embeddings, scoring, probe, models)
    name = scoring.similarity_of(embeddings.meta)
    return fit_calibration(
        _values(sides, scoring, name),
        trials.target,
        quality=_quality(sides, quality, scoring, name) if quality else None,
        names=column_names(quality),
        p_target=p_target,
        system=scoring.system(embeddings.meta, of_models=models is not None),
    )


def _sides(
    trials: Trials,
    embeddings: Embeddings,
    scoring: Scoring,
    probe: Embeddings | None,
    models: Models | None,
) -> Sides:
    _warn_of_other_models(embeddings, probe, scoring)
    return sides_of(
        trials,
        embeddings,
        probe=probe,
        models=models,
        pooling=scoring.pooling,
        subtract_mean=scoring.subtract_mean,
        cohort=scoring.cohort,
        cohort_subjects=scoring.cohort_subjects,
    )


def _values(sides: Sides, scoring: Scoring, similarity: str) -> Floats:
    """(P,) scores, normalised where there is a cohort, before any calibration."""
    left, right, i, j = sides.left, sides.right, sides.i, sides.j
    if scoring._plda_at_scoring is not None:
        return scoring._plda_at_scoring.score(left, right, i, j)
    values = pairs(left, right, i, j, similarity)
    if sides.cohort is None:
        return values
    if scoring.norm == "z":
        return normalization.z_norm(values, left, sides.cohort, i=i, similarity=similarity)
    if scoring.norm == "t":
        return normalization.t_norm(values, right, sides.cohort, j=j, similarity=similarity)
    top_n = scoring._num_cohort_scores
    return normalization.s_norm(
        values, left, right, sides.cohort, top_n=top_n, i=i, j=j, similarity=similarity
    )


def _quality(sides: Sides, measures: Sequence[str], scoring: Scoring, similarity: str) -> Floats:
    return quality_of(
        sides,
        measures,
        similarity=similarity,
        top_n=scoring._num_cohort_scores,
        durations=scoring.durations,
    )


def _warn_of_other_models(
    embeddings: Embeddings, probe: Embeddings | None, scoring: Scoring
) -> None:
    """Warns of what was made by another network than the embeddings of the enrolment side."""
    model = embeddings.meta.get("model")
    if not model:
        return
    for name, rows in (
        ("probe embeddings", probe),
        ("embeddings of the cohort", scoring.cohort),
        ("embeddings whose mean is subtracted", scoring.subtract_mean),
    ):
        other = rows.meta.get("model") if rows is not None else None
        if other and other != model:
            warnings.warn(
                f"the {name} say they are of another model ({other[:16]}) than the embeddings "
                f"({model[:16]}); they do not compare",
                stacklevel=4,
            )
    if scoring.plda is not None and scoring.plda.model and scoring.plda.model != model:
        warnings.warn(
            f"the PLDA was fitted on embeddings of another model ({scoring.plda.model[:16]}) than "
            f"these ({model[:16]})",
            stacklevel=4,
        )
