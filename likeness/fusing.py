"""Fuse score files: fit the weights on labelled trials, and apply them to others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eval.calibration import Fusion, fit_fusion, load_fusion
from eval.errors import LikenessError
from eval.formats.embeddings import read
from eval.formats.subjects import read_durations
from eval.formats.trials import read_scores, write_scores
from eval.paired import match_trials
from eval.scoring.origin import read_origin
from eval.scoring.score import quality_of, sides_of
from eval.scoring.settings import Scoring, column_names, measures_of
from eval.types import Floats, Trials


class ScoreFiles:
    """The scores of several systems on the same trials.

    Args:
        paths: K score files. The order of their rows may differ.
        embeddings: A file of the items' embeddings, for quality measures.
        durations: Lines `id seconds`, for the measure "log_duration".

    Attributes:
        trials: The P trials of the first file, with its labels or those of another file.
        values: (P, K) scores.
        systems: (K,) what gave the scores, as `likeness score` stored it beside them; "" where
            nothing is stored.

    Raises:
        LikenessError: A file does not exist. A file is damaged, or the files are of other trials or
            have other labels.
    """

    def __init__(
        self, paths: Sequence[Path], embeddings: Path | None = None, durations: Path | None = None
    ) -> None:
        self.embeddings, self.durations = embeddings, durations
        first, values = read_scores(paths[0])
        target, aligned = first.target, [values]
        for path in paths[1:]:
            trials, values = read_scores(path)
            matched = match_trials(first, trials)
            if matched.order is None:
                raise LikenessError(
                    f"{paths[0]} and {path} are not of the same trials: {matched.only_first} are "
                    f"only in the first, {matched.only_second} only in the second, and "
                    f"{matched.other_label} have another label; score one list by all systems"
                )
            aligned.append(values[matched.order])
            if target is None and trials.target is not None:
                target = trials.target[matched.order]
        self.trials = Trials(first.enrol_ids, first.probe_ids, first.enrol, first.probe, target)
        self.values = np.stack(aligned, axis=1)
        origins = map(read_origin, paths)
        self.systems = tuple("" if origin is None else origin.system for origin in origins)

    def quality(self, measures: Sequence[str]) -> Floats | None:
        """The quality measures of the trials (P, 2 M); None without measures.

        Raises:
            LikenessError: Embeddings or durations that a measure needs are missing.
        """
        if not measures:
            return None
        if self.embeddings is None:
            raise LikenessError(
                f"the quality measures {', '.join(measures)} need the embeddings of the items; "
                "give --embeddings"
            )
        scoring = Scoring(durations=read_durations(self.durations) if self.durations else None)
        sides = sides_of(self.trials, read(self.embeddings), scoring)
        return quality_of(sides, measures, scoring)


def fit(files: ScoreFiles, measures: Sequence[str] = ()) -> Fusion:
    """Fit a fusion on labelled score files.

    Args:
        files: The scores of all systems.
        measures: Quality measures, "log_norm" or "log_duration".

    Raises:
        LikenessError: No file has labels; and as `fit_fusion`.
    """
    if files.trials.target is None:
        raise LikenessError(
            "none of the score files has labels; a fusion is fitted on labelled trials"
        )
    return fit_fusion(
        files.values,
        files.trials.target,
        systems=files.systems,
        quality=files.quality(measures),
        names=column_names(measures),
    )


def apply(files: ScoreFiles, fitted: Path, out: Path) -> None:
    """Write the fused scores of the trials, which are log-likelihood ratios.

    Args:
        files: The scores of the systems that were fused, in their order.
        fitted: The file of the fusion.
        out: The score file.

    Raises:
        LikenessError: The files are of other systems, or what a measure needs is missing.
    """
    fusion = load_fusion(fitted)
    fits = len(files.systems) == len(fusion.systems) and all(
        system == expected or not (system and expected)
        for system, expected in zip(files.systems, fusion.systems, strict=True)
    )
    if not fits:
        raise LikenessError(
            f"the fusion was fitted for scores of {list(fusion.systems)}, but these are of "
            f"{list(files.systems)}; give the score files of its systems, in its order"
        )
    quality = files.quality(measures_of(fusion.names))
    write_scores(out, files.trials, fusion.apply(files.values, quality))
