"""Where scores come from: the model, the scoring and the trial list, in a file beside the scores.

A score file of the field holds ids and numbers only. What gave the numbers stands in
`SCORES.origin.json`, which names the score file by its SHA-256. So a score file that was replaced
or changed says nothing of its origin, and never something wrong.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from likeness.eval.formats.files import read_json
from likeness.eval.formats.provenance import sha256
from likeness.eval.metrics.calibration import Fusion
from likeness.eval.writing import write_json

FORMAT = "likeness.origin/1"


@dataclass(frozen=True)
class Origin:
    """What gave a list of scores. Thresholds of one origin are not for scores of another.

    Attributes:
        system: The scoring in words, see `likeness.eval.scoring.score.Scoring.system`.
        meta: Of the embeddings that were scored, as a dictionary: the model's digest, the
            similarity and settings such as flips or crops.
        calibration: The SHA-256 of the calibration that turned the scores into log-likelihood
            ratios; "" where there is none.
        trials: The name of the trial list; "" where it is not known.

    Example:
        >>> Origin("cosine, model ab12", {"model": "ab12"}).model
        'ab12'
    """

    system: str
    meta: Mapping[str, str] = field(default_factory=dict)
    calibration: str = ""
    trials: str = ""

    @property
    def model(self) -> str:
        """The digest of the model; "" where the embeddings did not say it."""
        return self.meta.get("model", "")


def digest_of(calibration: Fusion | None) -> str:
    """The SHA-256 of a calibration's numbers; "" without one."""
    if calibration is None:
        return ""
    return hashlib.sha256(json.dumps(asdict(calibration), sort_keys=True).encode()).hexdigest()


def origin_path(scores: str | Path) -> Path:
    """Where the origin of a score file lies.

    Example:
        >>> origin_path("lists/scores.txt").as_posix()
        'lists/scores.txt.origin.json'
    """
    path = Path(scores)
    return path.with_name(f"{path.name}.origin.json")


def write_origin(scores: str | Path, origin: Origin) -> None:
    """Write the origin of a score file beside it; of a pipe or a device there is none.

    Args:
        scores: The score file, which is whole.
        origin: What gave its scores.

    Raises:
        OSError: The disk refuses it; the score file stays, and then says nothing of its origin.
    """
    path = Path(scores)
    if not path.is_file() or path.parent == Path("/dev"):
        return
    document = {"format": FORMAT, "scores_sha256": sha256(path), **asdict(origin)}
    write_json(origin_path(path), document)


def read_origin(scores: str | Path) -> Origin | None:
    """Read the origin of a score file.

    Args:
        scores: The score file.

    Returns:
        The origin. None where no file beside the scores says it, or where that file is of other
        scores, as after the score file was replaced or edited.

    Raises:
        LikenessError: The file beside the scores is damaged.
    """
    path = origin_path(scores)
    if not path.is_file():
        return None
    digest, origin = read_json(
        path,
        FORMAT,
        lambda fields: (fields.pop("scores_sha256"), Origin(**fields)),
        "damaged ({error}); remove it, or score the trials again",
    )
    return origin if digest == sha256(Path(scores)) else None


def contradictions(meta: Mapping[str, object], expected: Mapping[str, object] | None) -> list[str]:
    """Lists in what the meta of a gallery differs from what is expected of it.

    Where the expected meta names a model, settings (crops, flip, faces) that only the gallery has
    count too, because without them that model gives other embeddings. The similarity is the
    exception.

    Args:
        meta: What the gallery says.
        expected: What it should say; None for whatever it says.

    Returns:
        A text for each entry that differs.

    Example:
        >>> contradictions({"model": "a"}, {"model": "b"})
        ["model 'a' and not 'b'"]
    """
    needed = dict(expected or {})
    more = []
    if "model" in needed:
        more = [key for key in meta if key not in needed and key != "similarity"]
    return [
        f"{key} {meta.get(key)!r} and not {needed.get(key)!r}"
        for key in (*needed, *more)
        if meta.get(key) != needed.get(key)
    ]
