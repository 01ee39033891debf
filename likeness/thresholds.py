"""Where a model's thresholds are kept, and which of them holds for the scores of two files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path

import numpy as np

from eval.errors import LikenessError
from eval.formats.provenance import digest, sha256
from eval.formats.subjects import CONNECTED
from eval.guarantee import check_confidence
from eval.scoring.origin import Origin
from eval.scoring.settings import Scoring
from eval.thresholds import (
    LEAST_ERRORS,
    Far,
    OverSubjects,
    Thresholds,
    load,
    measure,
    save,
)
from eval.types import Scores, Trials
from likeness.included import is_within, resolved
from likeness.presence import refuse_missing_folder
from toolkit.gallery.store import contradictions

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
    if not model:
        return None
    if path.suffix.lower() in _BESIDE and (path.is_file() or not path.exists()):
        return None if _has_kind(model) else path.with_name(f"{path.name}.{FILE}")
    return path / FILE if path.is_dir() else None


def find(model: str, file: str | PathLike[str] | None = None) -> tuple[Thresholds, ...]:
    """Read the thresholds in `file`, else those that lie with the model.

    Returns:
        The thresholds; empty where the model has none.

    Raises:
        LikenessError: There is no such file. The file holds no thresholds, or is damaged.
    """
    if file is not None:
        return load(Path(file))
    place = place_of(resolved(model))
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
    return None, (
        f"none of the stored thresholds holds here: they are for [{entries[0].origin.system}], and "
        f"these scores are [{system}]; measure them anew with `{SAVE}`, from scores of this model "
        "by `likeness score` without further options"
    )


def look_up(
    model: str, meta: Mapping[str, str], file: str | PathLike[str] | None
) -> tuple[Thresholds | None, str]:
    """The stored thresholds of a model, where they are wanted and nothing depends on them.

    What is wrong with their file is a warning.

    Args:
        model: A MODEL, as `likeness.load` takes it.
        meta: Of the model's embeddings.
        file: The file of thresholds; None for the one that lies with the model.

    Returns:
        The thresholds, and ""; or None, and why there are none, as a sentence without paths.
    """
    try:
        return choose(find(model, file), meta)
    except (ValueError, OSError) as error:
        warnings.warn(str(error), stacklevel=2)
        return (
            None,
            "the file of stored thresholds cannot be read; the server said why at its start",
        )


@dataclass(frozen=True)
class Rule:
    """What is to decide: a number of the user's own, or a stored threshold.

    Attributes:
        threshold: The number, or None.
        far: The false-accept rate of the stored threshold, or "eer"; None for no stored one.
        file: The file of stored thresholds; None for the one that lies with the model.

    Raises:
        LikenessError: A number and a rate are given, the number is not finite, or the rate is none.
    """

    threshold: float | None = None
    far: Far | None = None
    file: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise LikenessError(f"threshold {self.threshold!r}: must be a finite number")
        if self.threshold is not None and self.far is not None:
            raise LikenessError(
                f"far {self.far} names a stored threshold, and threshold {self.threshold} is one; "
                "give one of them"
            )
        is_rate = isinstance(self.far, Real) and 0 < self.far < 1
        if self.far not in (None, "eer") and not is_rate:
            raise LikenessError(
                f"far {self.far!r}: give a false-accept rate between 0 and 1, such as 0.01, or eer"
            )

    @property
    def decides(self) -> bool:
        """Whether a threshold decides."""
        return self.threshold is not None or self.far is not None

    def read(self, model: str) -> tuple[Thresholds, ...]:
        """The stored thresholds of a model, where one of them is to decide; else nothing.

        Raises:
            LikenessError: As `find`, and as `decide` where there are none at all.
        """
        if self.far is None:
            return ()
        entries = find(model, self.file)
        if not entries:
            self.decide(entries, {})
        return entries

    def decide(
        self, entries: Sequence[Thresholds], meta: Mapping[str, str]
    ) -> tuple[float | None, str]:
        """The threshold that decides, and where it comes from.

        Args:
            entries: What `read` gave.
            meta: Of the model's embeddings.

        Returns:
            The number and ""; the stored threshold and its source; or None and "".

        Raises:
            LikenessError: There is no such threshold; the message says why and how to get one.
        """
        if self.far is None:
            return self.threshold, ""
        chosen, reason = choose(entries, meta)
        if chosen is None:
            raise LikenessError(f"far {self.far}: {reason}")
        point = chosen.at(self.far)
        return point.value, chosen.source(point)


def keep(
    path: Path,
    scores: Scores,
    origin: Origin,
    *,
    fars: Sequence[float],
    subjects: int | None = None,
    data: str | None = None,
    guarantee: OverSubjects | None = None,
) -> tuple[Thresholds, str]:
    """Measure the thresholds of scores and keep them in a file.

    Args:
        path: The file, which `place_for` gives.
        scores: P trials with labels.
        origin: What gave the scores.
        fars: The false-accept rates.
        subjects: How many subjects the trials are of, where it is known.
        data: What the trials are called; by default the name of their list.
        guarantee: The confidence with which each rate is to be kept, as `over_subjects` gives it;
            None for the rates that were measured.

    Returns:
        The thresholds that the file now has of this scoring, and a sentence on the rates that are
        not stored, or "".

    Raises:
        LikenessError: At the EER every trial has to be rejected, or there are too few subjects for
            a guarantee. The file stays as it was.
    """
    called = data or origin.trials or "unnamed trials"
    thresholds, left_out = measure(
        scores,
        origin,
        data="".join(sign if sign.isprintable() else "?" for sign in called),
        fars=fars,
        subjects=subjects,
        guarantee=guarantee,
    )
    if not thresholds.points:
        raise LikenessError(
            "every trial has to be rejected at the EER, so there is no threshold to keep"
        )
    return save(path, thresholds), _left_out(left_out, thresholds)


def over_subjects(
    confidence: float | None,
    trials: Trials | None,
    subject_of: Mapping[str, str],
    *,
    source: object = "",
    name: str = "the scores",
) -> OverSubjects | None:
    """What `keep` needs for false-accept rates that are kept with a confidence over subjects.

    Args:
        confidence: Between 0 and 1; None for no guarantee.
        trials: P trials; None where they are not known.
        subject_of: Id -> name of its subject.
        source: Where the subjects come from, as `subjects_of` and results say it.
        name: What errors call the scores.

    Raises:
        LikenessError: The confidence is out of range, or the subjects are not known. They are only
            supposed where they are the ids that target trials connect: one subject may be several
            such groups, and the trials of different groups are then not independent.

    Example:
        >>> trials = Trials(("b/1",), ("a/1", "b/2"), [0, 0], [0, 1])
        >>> over_subjects(0.95, trials, {"b/1": "b", "a/1": "a", "b/2": "b"}).pairs.tolist()
        [[1, 0], [1, 1]]
    """
    if confidence is None:
        return None
    check_confidence(confidence)
    ids = () if trials is None else sorted({*trials.enrol_ids, *trials.probe_ids})
    if trials is None or any(id not in subject_of for id in ids):
        raise LikenessError(
            f"{name}: the subjects of the trials are not known, and a guarantee is over subjects; "
            "give an `id subject` list"
        )
    if source == CONNECTED:
        raise LikenessError(
            f"{name}: the ids do not name their subjects, and one subject may be several of the "
            "groups that target trials connect, so nothing can be guaranteed over subjects; give "
            "an `id subject` list"
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


def carry(model: str, meta: Mapping[str, str], exported: Path) -> bool:
    """Take the thresholds of a model along to its export, which gives the same embeddings.

    Args:
        model: A MODEL, as `likeness.load` takes it.
        meta: Of the model's embeddings.
        exported: The .onnx file.

    Returns:
        Whether there were any.
    """
    entries = [entry for entry in find(model) if entry.origin.model == meta["model"]]
    place = place_of(str(exported))
    if place is None:
        return False
    for entry in reversed(entries):
        save(place, entry)
    return bool(entries)


def _left_out(fars: Sequence[float], thresholds: Thresholds) -> str:
    if not fars:
        return ""
    rates = ", ".join(f"{100 * far:.3g} %" for far in fars)
    least = LEAST_ERRORS / thresholds.nontargets
    supported = "no FAR" if least >= 1 else f"a FAR of {100 * least:.2g} % or more"
    return (
        f"not stored: the threshold at FAR {rates}; {thresholds.nontargets:,} nontarget trials "
        f"support {supported} ({LEAST_ERRORS} / their number)"
    )


def place_for(
    to: str | PathLike[str], origin: Origin | None, *, name: str = "the scores"
) -> tuple[Path, Origin]:
    """Where the thresholds of scores go, after checking that it is the place of their model.

    Args:
        to: The folder of a run, an .onnx or .safetensors file, or a .json file of any name.
        origin: What gave the scores; None where they do not say it.
        name: What errors call the scores.

    Returns:
        The file, and the origin.

    Raises:
        LikenessError: The scores do not say their model, or `to` is another model or no place for
            thresholds. `to` does not exist.
    """
    if origin is None or not origin.model:
        raise LikenessError(
            f"{name}: nothing says which model gave these scores, so no threshold is kept; embed "
            "by `likeness embed` and score by `likeness score`, which writes that beside the scores"
        )
    to = str(to)
    path = Path(to)
    if path.suffix.lower() == ".json" and not is_within(to):
        if path.exists() and (other := {e.origin.model for e in load(path)} - {origin.model}):
            raise LikenessError(
                f"{path} holds thresholds of another model ({min(other)[:16]}) than that of the "
                f"scores ({origin.model[:16]}); name another file"
            )
        refuse_missing_folder(path)
        return path, origin
    if not (_has_kind(to) or is_within(to) or path.exists()):
        raise LikenessError(f"model {to!r} does not exist; correct the path")
    place = None if is_within(to) else place_of(to)
    if place is None:
        raise LikenessError(
            f"{to} has no place of its own for thresholds; name a file, such as thresholds.json, "
            "and give it to verify, gallery and serve as --thresholds"
        )
    known = _digests(path)
    if origin.model not in known:
        raise LikenessError(
            f"the scores are of model {origin.model[:16]}, but {to} is model {known[0][:16]}; "
            "name the model that embedded them"
        )
    return place, origin


def _has_kind(model: str) -> bool:
    """Whether a MODEL names its kind, as in hub:ID."""
    kind, colon, _ = model.partition(":")
    return bool(colon) and kind.isidentifier() and len(kind) > 1


def _digests(path: Path) -> list[str]:
    """The digests that embeddings of a model may state, the usual one first."""
    if path.suffix.lower() == ".onnx":
        from toolkit.models.onnx import read

        contents = read(path)
        if contents is not None:
            return [str(contents[1]["digest"])]
        # Which filterbanks an .onnx file of others was used with is not in the file.
        return [sha256(path), digest([sha256(path), "3dspeaker"])]
    from toolkit.models import checkpoint

    return [checkpoint.read(checkpoint.find_model(path), checkpoint.FORMAT)[2]]
