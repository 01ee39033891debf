"""Two recordings (or images): are they of one subject? The whole of `likeness verify` as one
function.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eval.calibration import Calibration, by_side, load_calibration, log_measure
from eval.results import as_html
from eval.scoring import Scoring
from eval.similarity import pairs
from toolkit.data.batch import Item
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import embed

CALIBRATION = "calibration.json"  # beside a run's checkpoints: taken where no other is named


class Verification(NamedTuple):
    """score: by `similarity`, higher = more similar. norms: of the two raw embeddings, a measure of
    their inputs' quality where the loss made it one.

    llr: natural log-likelihood ratio, and probability: that the two are of one subject where a
    share `prior` of trials is; None without a calibration.
    threshold: the score from which on they are accepted; None if the decision is by probability >=
    .5, or none is taken (same is None).
    """

    score: float
    similarity: str
    norms: tuple[float, float]
    llr: float | None = None
    prior: float | None = None
    probability: float | None = None
    threshold: float | None = None
    same: bool | None = None

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)

    def text(self) -> str:
        """What it says, in lines."""
        lines = [
            f"score        {self.score:.4f} ({self.similarity})",
            f"norms        {self.norms[0]:.4g} and {self.norms[1]:.4g} (quality, where the loss "
            "gave norms this meaning)",
        ]
        if self.llr is not None:
            lines += [
                f"llr          {self.llr:.3f}",
                f"probability  {self.probability:.4f} of the same subject, if {self.prior:g} of "
                "all pairs are",
            ]
        if self.same is not None:
            rule = (
                "probability at least 0.5"
                if self.threshold is None
                else f"score at least {self.threshold:g}"
            )
            lines.append(
                f"decision     {'the same' if self.same else 'different'} subject "
                f"({'' if self.same else 'not '}{rule})"
            )
        else:
            lines.append(
                "decision     none: give a threshold, or a calibration of `likeness score "
                "--calibrate`"
            )
        return "\n".join(lines)


def verify(
    model: Loaded,
    first: Path | Item,
    second: Path | Item,
    *,
    threshold: float | None = None,
    calibration: Calibration | None = None,
) -> Verification:
    """Embed two files and score them with the model's similarity.

    With a threshold the decision is score >= threshold; else with a calibration probability >= .5
    at the calibration's prior; else none is taken. ValueError names the files that the model's
    modality cannot read, a threshold that is no number, and a calibration of another system or with
    quality measures other than log_norm.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"threshold {threshold}: must be a finite number")
    system = Scoring().system(model.meta)
    if calibration is not None and calibration.system and calibration.system != system:
        raise ValueError(
            f"the calibration was fitted for [{calibration.system}], but these scores are "
            f"[{system}]; fit one for this system"
        )
    if calibration is not None and calibration.names not in ((), ("log_norm_low", "log_norm_high")):
        raise ValueError(
            f"the calibration needs {', '.join(calibration.names)}; two files alone give "
            "log_norm_low and log_norm_high: fit one with these or none"
        )
    items = [
        side._replace(id=name) if isinstance(side, Item) else Item(name, side)
        for name, side in (("first", first), ("second", second))
    ]
    absent = [str(item.path) for item in items if not item.path.is_file()]
    if absent:
        raise ValueError(f"{len(absent)} of 2 files do not exist: {' and '.join(absent)}")
    remedy = (
        "; with --detector SCRFD.onnx photographs are aligned"
        if model.modality == "face" and "faces" not in model.settings
        else ""
    )
    try:
        found, bad = embed(model.embedder, items, model.read, batch_size=2)
    except ValueError as error:
        raise ValueError(f"with this {model.modality} model, {error}{remedy}") from None
    if bad:
        raise ValueError(
            f"with this {model.modality} model, 1 of 2 items cannot be read: "
            f"{bad[0].reason}{remedy}"
        )
    score = float(pairs(found.matrix[:1], found.matrix[1:], [0], [0], model.similarity)[0])
    norms = (float(found.norms[0]), float(found.norms[1]))
    llr = prior = probability = None
    if calibration is not None:
        quality = (
            by_side(
                log_measure("the norm", norms[:1]), log_measure("the norm", norms[1:]), [0], [0]
            )
            if calibration.names
            else None
        )
        llr, prior = float(calibration.apply([score], quality)[0]), calibration.p_target
        probability = float(
            1 / (1 + np.exp(-np.clip(llr + math.log(prior / (1 - prior)), -700, 700)))
        )
    same = (
        score >= threshold
        if threshold is not None
        else probability >= 0.5
        if probability is not None
        else None
    )
    return Verification(score, model.similarity, norms, llr, prior, probability, threshold, same)


def find_calibration(model: str, given: Path | None) -> Calibration | None:
    """The calibration that was named, else that of the run directory MODEL, else none."""
    beside = Path(model) / CALIBRATION
    return (
        load_calibration(given) if given else load_calibration(beside) if beside.is_file() else None
    )
