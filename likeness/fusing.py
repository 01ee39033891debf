"""Fuse score files: fit the weights on labelled trials, and apply them to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from eval.calibration import Fusion, fit_fusion
from eval.errors import LikenessError
from eval.formats.trials import read_scores, write_scores
from eval.paired import match_trials
from eval.scoring.origin import read_origin
from eval.scoring.score import quality_of, sides_of
from eval.scoring.settings import Scoring, column_names, measures_of
from eval.types import Embeddings, Floats, Trials


class ScoreFiles:
    """The scores of several systems on the same trials.

    Args:
        paths: K score files. The order of their rows may differ.

    Attributes:
        trials: The P trials of the first file, with its labels or those of another file.
        values: (P, K) scores.
        systems: (K,) what gave the scores, as `likeness score` stored it beside them; "" where
            nothing is stored.

    Raises:
        LikenessError: A file does not exist. A file is damaged, or the files are of other trials or
            have other labels.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
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
        self.systems = tuple(map(_system, paths))

    def quality(
        self,
        measures: Sequence[str],
        embeddings: Embeddings | None,
        durations: Mapping[str, float] | None,
    ) -> Floats | None:
        """The quality measures of the trials (P, 2 M); None without measures.

        Raises:
            LikenessError: Embeddings or durations that a measure needs are missing.
        """
        if not measures:
            return None
        if embeddings is None:
            raise LikenessError(
                f"the quality measures {', '.join(measures)} need the embeddings of the items; "
                "give --embeddings"
            )
        scoring = Scoring(durations=durations)
        return quality_of(sides_of(self.trials, embeddings, scoring), measures, scoring)


def _system(path: Path) -> str:
    origin = read_origin(path)
    return "" if origin is None else origin.system


def fit(
    files: ScoreFiles,
    *,
    measures: Sequence[str] = (),
    embeddings: Embeddings | None = None,
    durations: Mapping[str, float] | None = None,
    p_target: float = 0.5,
) -> Fusion:
    """Fit a fusion on labelled score files.

    Args:
        files: The scores of all systems.
        measures: Quality measures, "log_norm" or "log_duration".
        embeddings: Of the items, for the measures.
        durations: The seconds of each item, for "log_duration".
        p_target: The prior of a target trial at which the fusion is to be good.

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
        quality=files.quality(measures, embeddings, durations),
        names=column_names(measures),
        p_target=p_target,
    )


def apply(
    files: ScoreFiles,
    fusion: Fusion,
    out: Path,
    *,
    embeddings: Embeddings | None = None,
    durations: Mapping[str, float] | None = None,
) -> None:
    """Write the fused scores of the trials, which are log-likelihood ratios.

    Args:
        files: The scores of the systems that were fused, in their order.
        fusion: What `fit` gave.
        out: The score file.
        embeddings: Of the items, for the quality measures of the fusion.
        durations: The seconds of each item.

    Raises:
        LikenessError: The files are of other systems, or what a measure needs is missing.
    """
    if len(files.systems) != len(fusion.systems):
        raise LikenessError(
            f"{len(files.systems)} score files, but the fusion is of {len(fusion.systems)} "
            "systems; give theirs, in its order"
        )
    for system, expected in zip(files.systems, fusion.systems, strict=True):
        if system and expected and system != expected:
            raise LikenessError(
                f"the fusion was fitted for scores of [{expected}], but these are of [{system}]; "
                "give the score files of its systems, in its order"
            )
    quality = files.quality(measures_of(fusion.names), embeddings, durations)
    write_scores(out, files.trials, fusion.apply(files.values, quality))
