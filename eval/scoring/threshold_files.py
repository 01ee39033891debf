"""Where the thresholds of a model lie, how they are read and written, and which of them decides."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import read_json
from likeness.eval.formats.provenance import digest, sha256
from likeness.eval.formats.runs import THRESHOLDS, find_model
from likeness.eval.intervals.guarantee import Guarantee
from likeness.eval.option import Option, if_option
from likeness.eval.scoring.origin import Origin, contradictions
from likeness.eval.scoring.settings import Scoring
from likeness.eval.scoring.thresholds import CurvePoint, Far, Threshold, Thresholds, is_rate
from likeness.eval.writing import write_json

FORMAT = "likeness.thresholds/1"
SAVE = "likeness evaluate SCORES --save-to MODEL"
_OTHERWISE = f"not a file of thresholds ({{error}}); make one with `{SAVE}`"
_MOST_BYTES = 2**31  # of an .onnx file
_BESIDE = (".onnx", ".safetensors")  # models that are one file


def thresholds_path(model: str, file: str = THRESHOLDS) -> Path | None:
    """Where the thresholds of a model lie; None for a model that has none.

    Args:
        model: A MODEL, as `likeness.load` takes it.
        file: What else lies with a model in the same way, by its name in the folder of a run.

    Example:
        >>> thresholds_path("runs/voices").as_posix(), thresholds_path("hub:x")
        ('runs/voices/thresholds.json', None)
        >>> thresholds_path("m.onnx").as_posix()
        'm.onnx.thresholds.json'
    """
    path = Path(model)
    if model and path.is_dir():
        return path / file
    kind, colon, _ = model.partition(":")  # as in insightface:FILE.onnx
    has_kind = bool(colon) and kind.isidentifier() and len(kind) > 1
    if path.suffix.lower() in _BESIDE and not has_kind:
        return path.with_name(f"{path.name}.{file}")
    return None


def read_thresholds(path: str | Path) -> tuple[Thresholds, ...]:
    """Read what `write_thresholds` wrote.

    Returns:
        The thresholds, one entry for each way of scoring.

    Raises:
        LikenessError: It is no such file, or it was damaged or edited so that it says nothing
            whole.
        FileNotFoundError: There is none.
    """
    return read_json(Path(path), FORMAT, _entries_from, _OTHERWISE)


def write_thresholds(
    path: str | Path, thresholds: Thresholds, *, replaces: bool = True
) -> Thresholds:
    """Keep thresholds in a file, whole or not at all.

    Those of other models and other ways of scoring stay in the file. Those of the same scoring
    are replaced; if they were measured on the same scores, their false-accept rates stay, too. Of
    these a guaranteed one stays only if the number of subjects is the same.

    Args:
        path: The file, which is made if it does not exist.
        thresholds: What was measured.
        replaces: Whether those of the same scoring are replaced that were measured on other scores.

    Returns:
        What the file now has of this scoring.

    Raises:
        LikenessError: The file holds something else, or thresholds that must not be replaced. It
            stays as it was.
    """
    path = Path(path)
    others = []
    # Those of a place are alone in their file.
    for entry in read_thresholds(path) if path.exists() and not thresholds.unlabelled else ():
        if replace(entry.origin, trials="") != replace(thresholds.origin, trials=""):
            others.append(entry)
        elif _measured(entry) == _measured(thresholds):
            new = thresholds.points
            for point in entry.points:
                known = point.at == "eer" or any(is_rate(other, point.far) for other in new)
                # A guarantee is over the subjects that it was measured on.
                holds = point.guarantee is None or entry.subjects == thresholds.subjects
                if holds and not known:
                    new = (*new, point)
            thresholds = replace(thresholds, points=new)
        elif not replaces:
            remedy = f"name another .json file{if_option(', or replace them by --force')}"
            raise LikenessError(f"{path} has such thresholds, measured on {entry.data}; {remedy}")
    measured = [_to_json(entry) for entry in (thresholds, *others)]
    write_json(path, {"format": FORMAT, "measured": measured}, allow_nan=False)
    return thresholds


def _measured(entry: Thresholds) -> tuple[object, ...]:
    """What is equal if thresholds were measured on the same scores, under the same name."""
    eer = [point for point in entry.points if point.at == "eer"]
    return entry.data, entry.targets, entry.nontargets, entry.curve, eer


def _to_json(entry: Thresholds) -> dict[str, Any]:
    left_out = () if entry.unlabelled else ("unlabelled", "centre")
    return {name: value for name, value in vars(entry).items() if name not in left_out} | {
        "origin": asdict(entry.origin),
        "points": [
            {"at": p.at, "far": p.far, "frr": p.frr, "threshold": p.value}
            | ({} if p.guarantee is None else {"guarantee": asdict(p.guarantee)})
            for p in entry.points
        ],
    }


def _entries_from(document: Mapping[str, Any]) -> tuple[Thresholds, ...]:
    entries = []
    for entry in document["measured"]:
        centre = tuple(map(float, entry.get("centre", ())))
        made = {"origin": Origin(**entry["origin"]), "centre": centre}
        curve = tuple(CurvePoint(*map(float, row)) for row in entry["curve"])
        points = []
        for point in entry["points"]:
            guarantee = Guarantee(**point["guarantee"]) if "guarantee" in point else None
            rates = point["far"], point["frr"], point["threshold"]
            points.append(Threshold(point["at"], *rates, guarantee))
        entries.append(Thresholds(**entry | made | {"points": tuple(points), "curve": curve}))
    return tuple(entries)


def thresholds_text(thresholds: Thresholds) -> str:
    """The thresholds as a text, which a gallery stores."""
    return json.dumps(_to_json(thresholds))


def thresholds_of(text: str) -> Thresholds:
    """The thresholds of a text of `thresholds_text`."""
    return _entries_from({"measured": [json.loads(text)]})[0]


def find(
    model: str, file: str | PathLike[str] | None = None, stored: Thresholds | None = None
) -> tuple[Thresholds, ...]:
    """Read the thresholds in `file`, else `stored` ones of a gallery, else those of the model.

    Returns:
        The thresholds; empty where the model has none.

    Raises:
        LikenessError: There is no such file. The file holds no thresholds, or is damaged.
    """
    if file is not None:
        return read_thresholds(Path(file))
    if stored is not None:
        return (stored,)
    path = thresholds_path(model)
    return read_thresholds(path) if path is not None and path.is_file() else ()


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
    if entries[0].unlabelled and entries[0].origin.model == meta.get("model"):
        return None, (
            f"the thresholds are for embeddings without the mean of {entries[0].data}, which "
            "`verify` and `serve` subtract, and a gallery that `enrol` makes with --thresholds"
        )
    return None, (
        f"none of the stored thresholds holds here: they are for [{entries[0].origin.system}], and "
        f"these scores are [{system}]; measure them anew with `{SAVE}`, from scores of this model "
        "by `likeness embed` and `likeness score` without further options"
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
        is_far = far in (None, "eer") or (isinstance(far, Real) and 0 < far < 1)
        is_number = number is None or (far is None and math.isfinite(number))
        if not (is_far and is_number):
            both = f"far {far} and threshold {number}: give one of them"
            raise LikenessError(f"{both}, a rate between 0 and 1, eer, or a finite number")
        if number is not None:  # of NumPy, it would make verdicts that are no bool
            object.__setattr__(self, "threshold", float(number))

    def decide(
        self, model: str, meta: Mapping[str, str], stored: Thresholds | None = None
    ) -> tuple[float | None, str]:
        """The threshold that decides, and where it comes from.

        Args:
            model: A MODEL, with which thresholds may lie.
            meta: Of the model's embeddings.
            stored: The thresholds of a gallery, which come before those of the model.

        Returns:
            The number and ""; the stored threshold and its source; or None and "".

        Raises:
            LikenessError: There is no such threshold; the message says why and how to get one. As
                `find`.
        """
        if self.far is None:
            return self.threshold, ""
        chosen, reason = choose(find(model, self.file, stored), meta)
        if chosen is None:
            raise LikenessError(f"far {self.far}: {reason}")
        point = chosen.at(self.far)
        return point.value, chosen.source(point)


def path_for_scores(to: str | PathLike[str], origin: Origin | None) -> tuple[Path, Origin]:
    """Where the thresholds of scores go, after checking that it belongs to their model.

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
        raise LikenessError("nothing says which model gave these scores; use `likeness score`")
    path = Path(to)
    if path.suffix.lower() == ".json":
        file: Path | None = path
        stored = read_thresholds(path) if path.exists() else ()
        known = [entry.origin.model for entry in stored] or [origin.model]
    else:
        file = thresholds_path(str(to))
        known = _digests(path, origin.model) if file is not None and path.exists() else []
    if file is None or origin.model not in known:
        other = f", but of model {known[0][:16]}" if known else ""
        problem = f"{to} is no place for the thresholds of model {origin.model[:16]}{other}"
        raise LikenessError(f"{problem}; name its run or .onnx file, or a .json file")
    return file, origin


def _digests(path: Path, asked: str) -> list[str]:
    """The digests that embeddings of a model may state, the usual one first.

    A file of `likeness export` states the digest of its model in plain text.
    """
    path = find_model(path) if path.is_dir() else path
    if path.suffix.lower() != ".onnx":
        return [sha256(find_model(path))]
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return []
    if f'"digest": "{asked}"'.encode() in path.read_bytes():
        return [asked]
    # Which filterbanks an .onnx file of others was used with is not in the file.
    return [sha256(path), digest([sha256(path), "3dspeaker"])]
