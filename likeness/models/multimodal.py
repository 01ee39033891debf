"""Compare two people by a recording and a picture of each. A model of each kind gives a score, and
a fusion makes one verdict of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

from likeness.eval.errors import LikenessError
from likeness.eval.items.suffixes import suffix_of, suffixes_of
from likeness.eval.metrics.calibration import Fusion
from likeness.eval.scoring.settings import Scoring
from likeness.models.verdicts import Verification, with_probability


class Reading(Protocol):
    """What a loaded model says of itself."""

    @property
    def modality(self) -> str: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


M = TypeVar("M", bound=Reading)


def fuse(
    fusion: Fusion, models: Sequence[M], parts: Sequence[Verification], threshold: float | None
) -> Verification:
    """The verdict of two models.

    Args:
        fusion: Of both.
        models: In the order of the fusion.
        parts: What each model gave.
        threshold: The score from which on two people are taken for one; None lets the probability
            decide.
    """
    by_modality = {}
    for model, part in zip(models, parts, strict=True):
        own = {"score": part.score, "similarity": part.similarity, "norms": part.norms}
        by_modality[model.modality] = {"model": model.meta["model"], **own}
    score = float(fusion.apply([[part.score for part in parts]])[0])
    accepted = None if threshold is None else score >= threshold
    verified = Verification(score, "fusion", (), None, None, None, threshold, accepted)
    return with_probability(verified._replace(parts=by_modality), score, fusion.p_target)


def in_order_of(fusion: Fusion, models: Sequence[M]) -> Sequence[M]:
    """Two models in the order in which a fusion has their scores.

    Raises:
        LikenessError: One of them does not read recordings, or the other one pictures. The fusion
            was fitted for scores of others, or needs measures of quality.
    """
    modalities = sorted(model.modality for model in models)
    if modalities not in (["face", "speaker"], ["image", "speaker"]):
        raise LikenessError(
            f"these are models of modality {' and '.join(modalities)}; name one of recordings and, "
            "beside it, one of pictures, or join two of one kind by `likeness export`"
        )
    systems = [Scoring().system(model.meta) for model in models]
    if not fusion.names:
        if fusion.is_of(systems):
            return models
        if fusion.is_of(systems[::-1]):
            return models[::-1]
    raise LikenessError(
        f"the fusion {fusion.mismatch(systems)}; name the two models that it was fitted with, or "
        "fit one on plain scores of these by `likeness fit fusion`"
    )


def sorted_for(models: Sequence[M], files: Sequence[Any]) -> list[Any]:
    """The files of a person in the order of the models that read them.

    Args:
        models: One of recordings and one of pictures.
        files: One of each kind: paths and contents in any order, arrays and open files in that of
            the models.

    Raises:
        LikenessError: There are others.
    """
    files = [files] if isinstance(files, str | PathLike | bytes) else files
    kinds = [_kind(file) for file in files]
    known = [kind for kind in kinds if kind]
    if len(files) != 2 or len(set(known)) < len(known):
        there = [kind or "a file of another kind" for kind in kinds]
        raise LikenessError(
            "a recording and a picture are needed of each person, those of one person before those "
            f"of the other, but of one there is {' and '.join(there) or 'nothing'}"
        )
    read = [_kind_read_by(model) for model in models]
    is_turned = kinds[0] == read[1] or kinds[1] == read[0]
    return list(reversed(files)) if is_turned else list(files)


def refuse_other_kind(model: Reading, files: Sequence[Any]) -> None:
    """Refuse a picture for a model of recordings, or the other way round.

    Raises:
        LikenessError: The name or the first bytes of a file say that it is of the other kind.
    """
    read = _kind_read_by(model)
    for file in files:
        if (kind := _kind(file)) not in ("", read):
            named = f", {file}," if isinstance(file, str | PathLike) else ""
            raise LikenessError(
                f"{kind}{named} cannot be compared with {read}; give a recording and a picture of "
                "each person, and a fusion of both models"
            )


def _kind_read_by(model: Reading) -> str:
    return "a recording" if model.modality == "speaker" else "a picture"


def _kind(file: Any) -> str:
    """What a path or the content of a file is; "" where neither says it."""
    named = Path(file).suffix.lower() if isinstance(file, str | PathLike) else ""
    ending = suffix_of(file) if isinstance(file, bytes) else named
    kinds = {"a recording": suffixes_of("speaker"), "a picture": suffixes_of("face")}
    return next((kind for kind, endings in kinds.items() if ending in endings), "")
