"""What a smaller model costs on the user's own trials: EER and TAR before and after."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError
from likeness.eval.protocols.side_by_side import Compared
from likeness.eval.protocols.verification import VerificationSettings
from likeness.eval.types import Trials
from likeness.evaluation import evaluate
from likeness.models.load import load_exported
from likeness.scoring import score
from likeness.toolkit.data.items import Item
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.loaded import Loaded


@dataclass(frozen=True)
class OnTrials:
    """The trials that a smaller model is measured on.

    Attributes:
        trials: P labelled trials.
        items: The items that they name, and perhaps others. Their labels are the subjects.
        name: What the trials are called.
        far: The false-accept rate of the TAR.
        max_loss: How much the EER may rise, in percentage points.
    """

    trials: Trials
    items: Sequence[Item]
    name: str
    far: float = 0.01
    max_loss: float = 0.2


def measure(before: Loaded, file: Path, about: OnTrials) -> Compared:
    """Measure what a smaller model costs, and refuse one that costs too much.

    Args:
        before: The model in float32.
        file: The .onnx file of the smaller model, under whatever name.
        about: The trials, and what they may cost.

    Returns:
        EER and TAR at `about.far` of both, and their differences.

    Raises:
        LikenessError: The EER rises by more than `about.max_loss`, the trials have no labels, or
            items of theirs are missing or cannot be read.
    """
    after = load_exported(file)
    assert after is not None
    needed = {*about.trials.enrol_ids, *about.trials.probe_ids}
    items = [item for item in about.items if item.id in needed]
    scores = {
        name: score(about.trials, embed(model.embedder, items, model.read, meta=model.meta)[0])
        for name, model in (("float32", before), ("smaller", after))
    }
    subjects = {item.id: item.label for item in items if item.label is not None}
    settings = VerificationSettings(p_targets=(), fars=(about.far,))
    known = subjects if len(subjects) == len(items) else None
    compared = evaluate(scores, settings, subjects=known).compared
    eer = {x.system: 100 * x.value for x in compared.results if x.metric == "eer"}
    rise = eer["smaller"] - eer["float32"]
    if not rise <= about.max_loss:
        raise LikenessError(
            f"the smaller model raises the EER on {about.name} by {rise:.2f} percentage points, "
            f"from {eer['float32']:.2f} to {eer['smaller']:.2f} %; at most {about.max_loss:g} are "
            "allowed: nothing was written; choose another precision, calibrate it, or allow more "
            "by --max-loss"
        )
    return compared


def to_json(compared: Compared, about: OnTrials) -> dict[str, Any]:
    """Return what the file's description keeps of the measurement."""
    return {
        "trials": about.name,
        "num_trials": len(about.trials),
        "results": [asdict(result) for result in compared.results],
        **compared.more_json(),
        "date": date.today().isoformat(),
    }
