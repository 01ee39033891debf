"""Score files as `likeness score` does, by the functions that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import likeness


def score_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    probe_embeddings: Path | None = None,
    enrolment: Path | None = None,
    **options: Any,
) -> str:
    """Write the scores; gives what scored them."""
    scored = likeness.score(
        trials, embeddings, likeness.Scoring(**options), probe=probe_embeddings, models=enrolment
    )
    scored.save(out)
    return scored.system


def calibrate_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    enrolment: Path | None = None,
    **options: Any,
) -> None:
    """Write the calibration."""
    likeness.calibrate(
        trials,
        embeddings,
        likeness.Scoring(**options),
        quality=quality,
        p_target=p_target,
        models=enrolment,
    ).save(out)
