"""Two recordings (or images): are they of one subject? The whole of `likeness verify` as one
function.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from eval.calibration import Calibration, by_side, load_calibration, log_measure
from eval.errors import LikenessError
from eval.formats.writing import atomic_path
from eval.scoring.settings import Scoring
from eval.similarity import pairs
from likeness.included import resolved
from toolkit.data.items import Item
from toolkit.models.embed import embed
from toolkit.models.loaded import Loaded

CALIBRATION = "calibration.json"  # beside a run's checkpoints: taken where no other is named
NO_DECISION = (
    "name a stored threshold by its false-accept rate (`--far`, in Python `far=`), which "
    "`likeness evaluate SCORES --save-to MODEL` stores, or give a number as the threshold"
)
_QUALITY = ("log_norm_low", "log_norm_high")  # the quality measures that two files alone give


class Verification(NamedTuple):
    """What a comparison of two recordings or images gave. Print it to read it.

    Attributes:
        score: By `similarity`. A higher score is more similar.
        similarity: How the embeddings were compared, such as "cosine".
        norms: Of the two raw embeddings. They measure the quality of their inputs where the loss
            gave norms this meaning.
        llr: The natural log-likelihood ratio; None without a calibration.
        prior: The share of pairs of one subject that `probability` takes for granted; None without
            a calibration.
        probability: That both are of one subject; None without a calibration.
        threshold: The score from which on both are taken for one subject. None where the
            probability decides, or nothing does.
        same: The decision: whether both are taken for one subject. None where there is neither a
            threshold nor a calibration.
        source: Where a stored threshold comes from; "" for a number that the caller gave.

    Example:
        >>> import likeness
        >>> result = likeness.load("runs/voices").verify("a.wav", "a.wav")
        >>> result.same, round(result.score, 3), result.probability
        (None, 1.0, None)
        >>> print(result)  # doctest: +ELLIPSIS
        score        1.0000 (cosine)
        norms        ...
        decision     none: ...
    """

    score: float
    similarity: str
    norms: tuple[float, float]
    llr: float | None = None
    prior: float | None = None
    probability: float | None = None
    threshold: float | None = None
    same: bool | None = None
    source: str = ""

    def __bool__(self) -> bool:
        """The decision, so that `if model.verify(a, b, far=0.01):` asks for it.

        Raises:
            LikenessError: Nothing was decided.
        """
        if self.same is None:
            raise LikenessError(
                "there is no decision, because there is neither a threshold nor a calibration; "
                "give far or threshold, or use the score"
            )
        return self.same

    def __str__(self) -> str:
        return self.text()

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
            verdict = "the same subject" if self.same else "different subjects"
            what = "probability" if self.threshold is None else "score"
            bound = 0.5 if self.threshold is None else self.threshold
            side = "at least" if self.same else "below"
            lines.append(f"decision     {verdict} ({what} {side} {bound:.4g})")
            if self.source:
                lines.append(f"threshold    {self.threshold:.4g} at {self.source}")
        else:
            lines.append(f"decision     none: {NO_DECISION}")
        return "\n".join(lines)

    def save(self, path: Path, *, files: Sequence[Path], meta: Mapping[str, str]) -> None:
        """Write it into a JSON file in the schema "likeness.verification/1".

        Args:
            path: The file.
            files: What was compared.
            meta: Of the model.
        """
        document = {
            "schema": "likeness.verification/1",
            "files": [str(file) for file in files],
            **meta,
            **self._asdict(),
        }
        with atomic_path(path) as partial_path:
            partial_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


class Comparer(NamedTuple):
    """What compares files: a model, and what decides.

    Attributes:
        model: Embeds them.
        calibration: Turns scores into probabilities, or None.
        threshold: The score from which on two are taken for one subject, or None.
        source: Where a stored threshold comes from; "" for a number of the caller's own.
    """

    model: Loaded
    calibration: Calibration | None
    threshold: float | None
    source: str


def verify(
    model: Loaded,
    first: Path | Item,
    second: Path | Item,
    *,
    threshold: float | None = None,
    calibration: Calibration | None = None,
    source: str = "",
) -> Verification:
    """Embed two files and score them with the model's similarity.

    Args:
        model: What embeds them.
        first: A recording or an image.
        second: The other one.
        threshold: Both are taken for one subject if score >= threshold. Without it a calibration
            decides, by probability >= 0.5 at its prior.
        calibration: Turns the score into a probability; `calibration_for` gives one that fits.
        source: Where the threshold comes from; "" for a number of the caller's own.

    Returns:
        The score, and what follows from the threshold and the calibration.

    Raises:
        LikenessError: The model cannot read a file.
    """
    items = [
        side._replace(id=name) if isinstance(side, Item) else Item(name, side)
        for name, side in (("first", first), ("second", second))
    ]
    remedy = remedy_for(model)
    try:
        embeddings, bad = embed(model.embedder, items, model.read, batch_size=2)
    except ValueError as error:
        raise LikenessError(f"with this {model.modality} model, {error}{remedy}") from None
    if bad:
        raise LikenessError(
            f"with this {model.modality} model, 1 of 2 items cannot be read: "
            f"{bad[0].reason}{remedy}"
        )
    score = float(
        pairs(embeddings.matrix[:1], embeddings.matrix[1:], [0], [0], model.similarity)[0]
    )
    norms = (float(embeddings.norms[0]), float(embeddings.norms[1]))
    return judged(Comparer(model, calibration, threshold, source), score, norms)


def judged(comparer: Comparer, score: float, norms: tuple[float, float]) -> Verification:
    """What follows from a score.

    Args:
        comparer: What decides.
        score: Of two embeddings, by the model's similarity.
        norms: Of the two raw embeddings.
    """
    _, calibration, threshold, source = comparer
    similarity = comparer.model.similarity
    result = Verification(score, similarity, norms, threshold=threshold, source=source)
    if calibration is not None:
        result = _calibrated(result, calibration)
    if threshold is not None:
        return result._replace(same=score >= threshold)
    if result.probability is not None:
        return result._replace(same=result.probability >= 0.5)
    return result


def calibration_for(
    model: Loaded, source: str, named: Calibration | str | PathLike[str] | Literal[False] | None
) -> Calibration | None:
    """The calibration of a model's scores.

    Args:
        model: What embeds the files.
        source: The text that named the model.
        named: A calibration or its file. None takes that in the folder of the run, if there is one
            and it serves the scores of the model; with a warning if it does not. False takes none.

    Returns:
        The calibration, or None.

    Raises:
        LikenessError: The calibration that was named was fitted on scores of another system, or
            needs quality measures that two files alone do not give. Its file is damaged.
    """
    if named is False or isinstance(named, Calibration):
        fitted = named or None
    else:
        path = Path(resolved(source)) / CALIBRATION if named is None else Path(named)
        fitted = load_calibration(path) if named is not None or path.is_file() else None
    if fitted is None or not (reason := _misfit(model, fitted)):
        return fitted
    if named is not None:
        raise LikenessError(reason)
    warnings.warn(f"{CALIBRATION} beside the model is left out: {reason}", stacklevel=3)
    return None


def _misfit(model: Loaded, calibration: Calibration) -> str:
    """Why a calibration does not serve the scores of a model; "" if it does."""
    system = Scoring().system(model.meta)
    if calibration.system and calibration.system != system:
        return (
            f"the calibration was fitted for [{calibration.system}], but these scores are "
            f"[{system}]; fit one for this system"
        )
    if calibration.names not in ((), _QUALITY):
        return (
            f"the calibration needs {', '.join(calibration.names)}; two files alone give "
            f"{' and '.join(_QUALITY)}: fit one with these or none"
        )
    return ""


def remedy_for(model: Loaded) -> str:
    """What may help where a file cannot be read, as the end of a sentence; "" for nothing."""
    if model.modality == "face" and "faces" not in model.settings:
        return "; with --detector FILE.onnx photographs are aligned"
    return ""


def _calibrated(result: Verification, calibration: Calibration) -> Verification:
    """The result with its log-likelihood ratio and its probability."""
    quality = None
    if calibration.names:
        norms = log_measure("the norm", result.norms)
        quality = by_side(norms[:1], norms[1:], [0], [0])
    llr, prior = float(calibration.apply([result.score], quality)[0]), calibration.p_target
    log_odds = np.clip(llr + math.log(prior / (1 - prior)), -700, 700)
    probability = float(1 / (1 + np.exp(-log_odds)))
    return result._replace(llr=llr, prior=prior, probability=probability)
