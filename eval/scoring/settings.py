"""One value that says how trials are scored; `likeness.eval.scoring.score` applies it."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, read_embeddings, vectors_of
from likeness.eval.formats.subjects import names_of, read_durations
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.calibration import Fusion, load_fusion
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.option import Option
from likeness.eval.scoring.normalization import check_cohort
from likeness.eval.scoring.plda import ARRAYS, Plda, load_plda
from likeness.eval.types import check_choice, check_counts, item_keys, respell

Norm = Literal["as", "s", "z", "t"]
Pooling = Literal["mean", "norm_weighted"]

QUALITY = ("log_norm", "log_duration", "cohort_mean")
"""The measures of one side: the logarithm of the norm of the raw embedding (that of a model is the
norm of its pooled items), the logarithm of the seconds (that of a model is the sum of its items),
the mean score with the cohort."""

_READ_AS = ("flip", "crops", "chunks", "pauses")  # what a meta says of `likeness embed`'s options
_READERS: Mapping[str, Callable[[str | Path], Any]] = {  # of the fields that may be files
    "subtract_mean": vectors_of,
    "plda": load_plda,
    "cohort": read_embeddings,
    "calibration": load_fusion,
    "durations": read_durations,
}


def column_names(measures: Sequence[str]) -> tuple[str, ...]:
    """The names of the two columns of each measure.

    >>> column_names(["log_norm"])
    ('log_norm_low', 'log_norm_high')
    """
    return tuple(f"{measure}_{side}" for measure in measures for side in ("low", "high"))


def measures_of(names: Sequence[str]) -> list[str]:
    """The measures whose columns have these names.

    Raises:
        LikenessError: These are no columns of measures of `QUALITY`.

    >>> measures_of(["log_norm_low", "log_norm_high"])
    ['log_norm']
    """
    measures = list(dict.fromkeys(name.rpartition("_")[0] for name in names))
    if column_names(measures) != tuple(names) or not set(measures) <= set(QUALITY):
        known = ", ".join(QUALITY)
        raise LikenessError(f"calibration: quality measures {', '.join(names)}; known are {known}")
    return measures


@dataclass(frozen=True, eq=False)
class Scoring:
    """How trials are scored. It is checked on construction, then frozen.

    Every field is an option of `likeness score` of the same name. A file, as a path, stands for the
    embeddings, PLDA, mapping or calibration that is read from it.

    Attributes:
        similarity: How two embeddings are compared (default: as they name it, else cosine). It is
            a name of `likeness.eval.metrics.similarity`.
        pooling: How the items of a model become one embedding. See
            `likeness.eval.scoring.templates`.
        subtract_mean: Embeddings whose mean is subtracted from all others before they are pooled.
            An .npy needs no ids, and may be the mean itself.
        plda: Scores are the log-likelihood ratios of this PLDA, of the mean of a model as of one
            item. A PLDA is a similarity of its own, and its scores are not normalised.
        cohort: Embeddings of subjects that are not in the trials, by which scores are normalised.
        cohort_subjects: The subject of each id of the cohort, whose means are then the cohort.
        norm: With a cohort: `as` normalises by the top_n highest scores of each side with it, and
            `s`, `z` and `t` by all. See `likeness.eval.scoring.normalization`.
        top_n: How many scores `as` takes; those of the whole cohort, with a warning, where it is
            smaller.
        calibration: Turns the scores into log-likelihood ratios, as `likeness fit calibration`
            fits them. Its quality measures are computed from the embeddings, the cohort and the
            durations.
        durations: The seconds of each item, for the quality measure log_duration.

    Raises:
        LikenessError: A name is unknown, or two fields contradict each other, or a field would
            change nothing. An id of the cohort has no subject.

    >>> Scoring(similarity="cosine", norm="q")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown norm 'q'; choose one of as, s, z, t
    """

    similarity: str | None = None
    pooling: Pooling = "mean"
    subtract_mean: Annotated[Embeddings | None, Option(path="file")] = None
    plda: Annotated[Plda | None, Option(path="file")] = None
    cohort: Annotated[Embeddings | None, Option(path="file")] = None
    cohort_subjects: Annotated[Mapping[str, str] | None, Option(path="file")] = None
    norm: Norm = "as"
    top_n: Annotated[int, Option(least=1)] = 300
    calibration: Annotated[Fusion | None, Option(path="file")] = None
    durations: Annotated[Mapping[str, float] | None, Option(path="file")] = None

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
        if self.plda is not None and (self.similarity or self.cohort is not None):
            raise LikenessError("plda is a similarity of its own; leave out similarity and cohort")
        if self.cohort is None and self.cohort_subjects is not None:
            raise LikenessError("cohort_subjects without a cohort would change nothing; give both")
        self._check_cohort()
        if self.durations is not None:
            seconds = {str(id): float(value) for id, value in self.durations.items()}
            object.__setattr__(self, "durations", MappingProxyType(seconds))
        if self.calibration is not None:
            measures_of(self.calibration.names)  # refuses measures that are unknown

    def _check_cohort(self) -> None:
        if self.cohort is None:
            return
        size = len(self.cohort.ids)
        if (subject_of := names_of(self.cohort_subjects)) is not None:
            object.__setattr__(self, "cohort_subjects", MappingProxyType(dict(subject_of)))
            size = len(set(labels_of("cohort", self.cohort.ids, subject_of)))
        if self.norm == "as" and 2 <= size < self.top_n:
            text = f"the cohort has {size} members, and all are taken in place of the top"
            warnings.warn(f"{text} {self.top_n}", stacklevel=4)
            object.__setattr__(self, "top_n", size)
        check_cohort(size, self.num_cohort_scores)

    def similarity_of(self, meta: Mapping[str, str]) -> str:
        """The name of the similarity for embeddings with this meta; "plda" where a PLDA scores."""
        if self.plda is not None:
            return "plda"
        return self.similarity or meta.get("similarity") or "cosine"

    def system(self, meta: Mapping[str, str], *, of_models: bool = False) -> str:
        """What gives the scores, in words: two lists of scores with the same words compare.

        A calibration stores them, and serves scores of its own system only. A PLDA, a cohort and a
        mean have the first digits of a SHA-256 behind them.

        Args:
            meta: Of the embeddings of the enrolment side.
            of_models: The enrolment ids are models that are pooled from several items.

        >>> Scoring(cohort=Embeddings(("c", "d"), [[1], [2]]), top_n=2).system({"model": "ab12"})
        'cosine, as_norm over the top 2 of the cohort (f391f1e5), model ab12'
        """
        parts = [self.similarity_of(meta)]
        if self.plda is not None:
            parts[0] += _short_digest(*(getattr(self.plda, name) for name in ARRAYS))
        if of_models:
            parts.append(f"{self.pooling} of the enrolment items")
        if self.subtract_mean is not None:
            mean = self.subtract_mean.matrix.mean(axis=0, dtype=np.float64)
            parts.append(f"mean subtracted{_short_digest(mean.astype(np.float32))}")
        if meta.get("mean"):
            parts.append(f"mean of {meta['mean']} subtracted")
        if self.cohort is not None:
            over = f" over the top {self.top_n} of the cohort" if self.norm == "as" else ""
            parts.append(f"{self.norm}_norm{over}{self._cohort_digest()}")
        parts += [f"{name} {meta[name]}" for name in _READ_AS if meta.get(name)]
        if meta.get("model"):
            parts.append(f"model {meta['model'][:16]}")
        return ", ".join(parts)

    def _cohort_digest(self) -> str:
        """The digest of the cohort's rows and subjects, which their order does not change."""
        assert self.cohort is not None
        ids, subject_of = item_keys(self.cohort.ids), self.cohort_subjects or {}
        subject_of = respell(subject_of, ids)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        names = [(ids[row], subject_of.get(ids[row], "")) for row in order]
        return _short_digest(self.cohort.matrix[order], names=repr(names))

    @property
    def num_cohort_scores(self) -> int | None:
        """How many scores with the cohort are used of each side; None stands for all."""
        return self.top_n if self.norm == "as" else None


def _short_digest(*arrays: ArrayLike, names: str = "") -> str:
    """The first digits of the SHA-256 of numbers and names, in parentheses, for a text.

    >>> _short_digest([1.0, 2.0])
    ' (dc91ce9a)'
    """
    checksum = hashlib.sha256(names.encode())
    for array in arrays:
        checksum.update(np.ascontiguousarray(array).data)
    return f" ({checksum.hexdigest()[:8]})"
