"""Fit a fusion of several systems on the scores of labelled trials, or apply one."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import read_durations
from likeness.eval.formats.trials import read_scores
from likeness.eval.metrics.calibration import Fusion, fit_fusion, fit_ratio_fusion, load_fusion
from likeness.eval.scoring.origin import read_origin
from likeness.eval.scoring.score import quality_of, sides_of
from likeness.eval.scoring.settings import Scoring, column_names, measures_of
from likeness.eval.types import Floats, Trials


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
        method: how one is fitted, see `likeness.eval.metrics.calibration`. With likelihood_ratio,
            which takes no quality, spoofs among the trials are a third class.

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
