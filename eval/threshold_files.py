"""Where a model's thresholds are kept, and which of them holds for the scores of two files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Annotated

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.provenance import digest, sha256
from likeness.eval.formats.runs import find_model
from likeness.eval.formats.subjects import CONNECTED
from likeness.eval.option import Option
from likeness.eval.scoring.origin import Origin, contradictions
from likeness.eval.scoring.settings import Scoring
from likeness.eval.scoring.thresholds import (
    LEAST_ERRORS,
    Far,
    OverSubjects,
    Thresholds,
    load,
)
from likeness.eval.types import Trials

FILE = "thresholds.json"  # in the folder of a run
SAVE = "likeness evaluate SCORES --save-to MODEL"
_BESIDE = (".onnx", ".safetensors")  # models that are one file


def place_of(model: str) -> Path | None:
    """Where the thresholds of a model lie; None for a model that has no place for them.

    Args:
        model: A MODEL, as `likeness.load` takes it.

    Example:
        >>> place_of("runs/voices").as_posix(), place_of("m.onnx").as_posix(), place_of("hub:x")
        ('runs/voices/thresholds.json', 'm.onnx.thresholds.json', None)
    """
    path = Path(model)
    if model and path.is_dir():
        return path / FILE
    kind, colon, _ = model.partition(":")  # as in insightface:FILE.onnx
    has_kind = bool(colon) and kind.isidentifier() and len(kind) > 1
    if path.suffix.lower() in _BESIDE and not has_kind:
        return path.with_name(f"{path.name}.{FILE}")
    return None


def find(model: str, file: str | PathLike[str] | None = None) -> tuple[Thresholds, ...]:
    """Read the thresholds in `file`, else those that lie with the model.

    Returns:
        The thresholds; empty where the model has none.

    Raises:
        LikenessError: There is no such file. The file holds no thresholds, or is damaged.
    """
    if file is not None:
        return load(Path(file))
    place = place_of(model)
    return load(place) if place is not None and place.is_file() else ()


def choose(entries: Sequence[Thresholds], meta: Mapping[str, str]) -> tuple[Thresholds | None, str]:
    """Choose the thresholds that hold for the plain scores of a model.

    Args:
        entries: What `find` gives.
        meta: Of the model's embeddings.

    Returns:
        The thresholds, and ""; or None, and why there are none, as a sentence.
    """
    if not entries:
        return None, (
            f"no threshold is stored for this model; measure one with `{SAVE}`, or give a number "
            "as the threshold"
        )
    system = Scoring().system(meta)
    for entry in entries:
        origin = entry.origin
        fits = origin.system == system and not origin.calibration
        if fits and not contradictions(origin.meta, meta):
            return entry, ""
    if entries[0].unlabelled and "centre" not in meta:
        return None, (
            f"the thresholds are of {entries[0].data}, where embeddings lack a mean; they are for "
            "`verify` and `serve` with --thresholds, and not for galleries or this model's scores"
        )
    return None, (
        f"none of the stored thresholds holds here: they are for [{entries[0].origin.system}], and "
        f"these scores are [{system}]; measure them anew with `{SAVE}`, from scores of this model "
        "by `likeness score` without further options"
    )


@dataclass(frozen=True)
class Rule:
    """What is to decide: a number of the user's own, or a stored threshold.

    Attributes:
        threshold: The score from which on two are taken for one subject: your own number.
        far: The false-accept rate of a stored threshold, such as 0.01, or eer. `likeness evaluate
            SCORES --save-to MODEL` stores thresholds.
        file: The file of stored thresholds, for a model that has no place for them.

    Raises:
        LikenessError: A number and a rate are given, the number is not finite, or the rate is none.
    """

    threshold: float | None = None
    far: Annotated[Far | None, Option(metavar="RATE")] = None
    file: Annotated[str | PathLike[str] | None, Option("--thresholds", path="file")] = None

    def __post_init__(self) -> None:
        number, far = self.threshold, self.far
        is_rate = far in (None, "eer") or (isinstance(far, Real) and 0 < far < 1)
        is_number = number is None or (far is None and math.isfinite(number))
        if not (is_rate and is_number):
            raise LikenessError(
                f"far {far} and threshold {number}: give one of them, a false-accept rate between "
                "0 and 1, such as 0.01, or eer, or a finite number"
            )

    @property
    def decides(self) -> bool:
        """Whether a threshold decides."""
        return self.threshold is not None or self.far is not None

    def decide(self, model: str, meta: Mapping[str, str]) -> tuple[float | None, str]:
        """The threshold that decides, and where it comes from.

        Args:
            model: A MODEL, with which thresholds may lie.
            meta: Of the model's embeddings.

        Returns:
            The number and ""; the stored threshold and its source; or None and "".

        Raises:
            LikenessError: There is no such threshold; the message says why and how to get one. As
                `find`.
        """
        if self.far is None:
            return self.threshold, ""
        chosen, reason = choose(find(model, self.file), meta)
        if chosen is None:
            raise LikenessError(f"far {self.far}: {reason}")
        point = chosen.at(self.far)
        return point.value, chosen.source(point)


def over_subjects(
    confidence: float | None,
    trials: Trials | None,
    subject_of: Mapping[str, str],
    *,
    source: object = "",
) -> OverSubjects | None:
    """What `likeness.eval.scoring.thresholds.measure` needs for rates that are kept with a
    confidence.

    Args:
        confidence: Between 0 and 1; None for no guarantee.
        trials: P trials; None where they are not known.
        subject_of: Id -> name of its subject.
        source: Where the subjects come from, as `subjects_of` and results say it.

    Raises:
        LikenessError: The subjects are not known. They are only supposed where they are the ids
            that target trials connect: one subject may be several such groups, and the trials of
            different groups are then not independent.

    Example:
        >>> trials = Trials(("b/1",), ("a/1", "b/2"), [0, 0], [0, 1])
        >>> over_subjects(0.95, trials, {"b/1": "b", "a/1": "a", "b/2": "b"}).pairs.tolist()
        [[1, 0], [1, 1]]
    """
    if confidence is None:
        return None
    ids = () if trials is None else sorted({*trials.enrol_ids, *trials.probe_ids})
    if trials is None or source == CONNECTED or any(id not in subject_of for id in ids):
        raise LikenessError(
            "the subjects of the trials are not known, and a guarantee is over subjects; give an "
            "`id subject` list"
        )
    # Numbers by the first id of each subject: the draw of pairs is then the same for any order of
    # rows, and whatever the subjects are called.
    number: dict[str, int] = {}
    of_id = {id: number.setdefault(subject_of[id], len(number)) for id in ids}
    enrol, probe = (
        np.array([of_id[id] for id in side], dtype=np.int32)
        for side in (trials.enrol_ids, trials.probe_ids)
    )
    return OverSubjects(confidence, np.stack([enrol[trials.enrol], probe[trials.probe]], axis=1))


def left_out(fars: Sequence[float], thresholds: Thresholds) -> str:
    """A sentence on rates that too few trials stand behind."""
    rates = ", ".join(f"{100 * far:.3g} %" for far in fars)
    return (
        f"not stored: the threshold at FAR {rates}; a FAR of {thresholds.nontargets:,} nontarget "
        f"trials has to be {LEAST_ERRORS} / their number or more"
    )


def place_for(to: str | PathLike[str], origin: Origin | None) -> tuple[Path, Origin]:
    """Where the thresholds of scores go, after checking that it is the place of their model.

    Args:
        to: The folder of a run, an .onnx or .safetensors file, or a .json file of any name.
        origin: What gave the scores; None where they do not say it.

    Returns:
        The file, and the origin.

    Raises:
        LikenessError: The scores do not say their model, or `to` is another model or no place for
            thresholds.
    """
    if origin is None or not origin.model:
        raise LikenessError(
            "nothing says which model gave these scores, so no threshold is kept; embed by "
            "`likeness embed` and score by `likeness score`, which writes that beside the scores"
        )
    path = Path(to)
    if path.suffix.lower() == ".json":
        place: Path | None = path
        known = [entry.origin.model for entry in load(path)] if path.exists() else [origin.model]
    else:
        place = place_of(str(to))
        known = _digests(path, origin.model) if place is not None and path.exists() else []
    if place is None or origin.model not in known:
        raise LikenessError(
            f"{to} is no place for the thresholds of model {origin.model[:16]}"
            + (f", but of model {known[0][:16]}" if known else "")
            + "; name the run or .onnx file that gave the scores, or a .json file for its "
            "thresholds, which verify, gallery and serve take as --thresholds"
        )
    return place, origin


def _digests(path: Path, asked: str) -> list[str]:
    """The digests that embeddings of a model may state, the usual one first.

    A file of `likeness export` states the digest of its model in plain text.
    """
    if path.suffix.lower() != ".onnx":
        return [sha256(find_model(path))]
    if asked.encode() in path.read_bytes():
        return [asked]
    # Which filterbanks an .onnx file of others was used with is not in the file.
    return [sha256(path), digest([sha256(path), "3dspeaker"])]
