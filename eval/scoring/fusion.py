"""Score files of several systems become one: a fusion is fitted on them, or applied to them."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.provenance import names_of_files
from likeness.eval.formats.subjects import read_durations
from likeness.eval.formats.trials import read_scores
from likeness.eval.metrics.calibration import Fusion, fit_fusion, fit_ratio_fusion, load_fusion
from likeness.eval.metrics.self_matches import warn_of_two_scores, without_self_trials
from likeness.eval.option import Option, only_options
from likeness.eval.scoring.origin import read_origin
from likeness.eval.scoring.score import quality_of, sides_of
from likeness.eval.scoring.settings import Scoring, column_names, measures_of
from likeness.eval.types import Floats, Trials, check_choice


class Fused(NamedTuple):
    """The fused scores of P trials.

    Attributes:
        trials: The trials.
        fusion: What gave the scores.
        values: (P,) log-likelihood ratios.
    """

    trials: Trials
    fusion: Fusion
    values: Floats


def fuse(
    scores: Annotated[Sequence[File], Option("SCORES", path="any")],
    fusion: Annotated[File, Option(path="file")],
    *,
    embeddings: Annotated[File | Embeddings | None, Option(path="file")] = None,
    durations: Annotated[File | None, Option(path="file")] = None,
) -> Fused:
    """Apply a fusion to the scores of its systems.

    Args:
        scores: Score files of several systems, of the same trials. Their rows may be in any order.
        fusion: Fuse SCORES by this file of `likeness fit fusion`.
        embeddings: As in `likeness.eval.scoring.score.score`.
        durations: As in `likeness.eval.scoring.settings.Scoring`.

    Raises:
        LikenessError: The files are of other trials, or of other systems than the fusion; or a
            measure of quality lacks its embeddings or durations.
    """
    trials, values, systems = _read(scores)
    fitted = load_fusion(Path(fusion))
    measured = _measured(trials, measures_of(fitted.names), embeddings, durations)
    known = set(filter(None, fitted.systems))
    pairs = list(zip_longest(systems, fitted.systems))
    # What gave some scores may not be known; a known system has its own place.
    if any(
        None in pair or (pair[0] and pair[0] != pair[1] and (pair[1] or pair[0] in known))
        for pair in pairs
    ):
        problem = fitted.mismatch(systems)
        raise LikenessError(f"the fusion {problem}; give its scores, or fit one on these")
    return Fused(trials, fitted, fitted.apply(values, measured))


def fit(
    scores: Annotated[Sequence[File], Option("SCORES", path="any")],
    *,
    quality: Annotated[Sequence[str], Option(metavar="NAME")] = (),
    embeddings: Annotated[File | Embeddings | None, Option(path="file")] = None,
    durations: Annotated[File | None, Option(path="file")] = None,
    method: Literal["logistic", "likelihood_ratio"] = "logistic",
) -> Fused:
    """Fit a fusion of several systems on labelled trials.

    Args:
        scores: As in `fuse`.
        quality: A measure that helps the fusion, "log_norm" or "log_duration".
        embeddings: Of the items, for --quality.
        durations: As in `fuse`.
        method: A weighted sum, or the ratio of densities, also with label spoof. See
            `likeness.eval.metrics.calibration`. With likelihood_ratio, which takes no quality,
            spoofs among the trials are a third class.

    Raises:
        LikenessError: The files are of other trials or have no labels. A measure is unknown, lacks
            its embeddings or durations, or is given beside likelihood_ratio.
    """
    for measure in quality:
        check_choice("quality measure", measure, ("log_norm", "log_duration"))
    if quality and method == "likelihood_ratio":
        raise LikenessError(f"likelihood_ratio takes no quality; leave {', '.join(quality)} out")
    trials, values, systems = _read(scores)
    measured = _measured(trials, quality, embeddings, durations)
    if trials.target is None:
        raise LikenessError("a fusion is fitted on labelled trials, and no file has labels")
    if method == "likelihood_ratio":
        fitted = fit_ratio_fusion(values, trials.target, systems=systems, spoof=trials.spoof)
        return Fused(trials, fitted, fitted.apply(values))
    names = column_names(quality)
    fitted = fit_fusion(values, trials.target, systems=systems, quality=measured, names=names)
    return Fused(trials, fitted, fitted.apply(values, measured))


def _read(scores: Sequence[File]) -> tuple[Trials, Floats, tuple[str, ...]]:
    """The P trials, the scores (P, K) of K files, and what gave each."""
    if len(scores) < 2:
        raise LikenessError(f"a fusion needs two score files or more, but got {len(scores)}")
    names_of_files([Path(path) for path in scores], "score")  # refuses one that is there twice
    trials, values = read_scores(Path(scores[0]))
    if trials.target is not None:
        trials, others = without_self_trials(trials)
        values = values[others]
        warn_of_two_scores(str(scores[0]), trials, values)
    columns = [values]
    for path in scores[1:]:
        trials, values = read_scores(Path(path), trials)
        warn_of_two_scores(str(path), trials, values)
        columns.append(values)
    origins = [read_origin(Path(path)) for path in scores]
    systems = tuple("" if origin is None else origin.system for origin in origins)
    return trials, np.stack(columns, axis=1), systems


def _measured(
    trials: Trials,
    measures: Sequence[str],
    embeddings: File | Embeddings | None,
    durations: File | None,
) -> Floats | None:
    """The measures of quality of each trial; None without any."""
    if not measures and (embeddings is not None or durations is not None):
        raise LikenessError("no measure of quality needs embeddings or durations; omit them")
    if not measures:
        return None
    if embeddings is None:
        raise LikenessError(f"{', '.join(measures)} need the embeddings; give --embeddings")
    scoring = Scoring(durations=read_durations(Path(durations)) if durations else None)
    with only_options(("--embeddings", "--durations")):  # `score` has more, but not for a fusion
        sides = sides_of(trials, embeddings_of(embeddings), scoring)
    return quality_of(sides, measures, scoring)
